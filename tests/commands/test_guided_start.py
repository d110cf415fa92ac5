"""`metasync init` without backends: on a terminal it asks, links and invites; elsewhere it says what is missing."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from servers.oauth_standin import CLIENT_ID, oauth_standin
from terminal_kit import on_terminal
from workspace_kit import Lab, run_cli, write

PASSPHRASE = "seven quiet herons by the mill"


def test_without_a_terminal_the_error_says_what_is_missing(lab: Lab) -> None:
    for words, missing in (((), "--name"), (("--name", "docs"), "--backend"), (("--backend", "file:///x"), "--name")):
        ran = run_cli("init", str(lab.root / "laptop"), *words)
        assert ran.code == 2 and f"Missing option '{missing}'" in ran.err


def test_three_folders_and_a_second_device(tmp_path: Path, lab: Lab) -> None:
    write(tmp_path / "docs", {"notes": b"one", "large": os.urandom(3 << 20)})
    with on_terminal("init", "docs", cwd=tmp_path, columns=1000, rows=60) as t:
        t.until("Name stores that do not fail together")
        t.press("9\r")
        t.until("none of the numbers")
        for folder in ("a", "b"):
            t.press("1\r")
            t.until("Its path")
            t.press(f"{tmp_path}/{folder}\r" if folder == "a" else f"relative\r{tmp_path}/{folder}\r")
            t.until(f"file://{tmp_path}/{folder}")
        assert "does not begin with /" in t.text()
        t.until(
            "With these 2: any 1 of the 2 may be lost without losing data; for a push none may be away. 3 are advised."
        )
        t.press(f"1\r{tmp_path}/a\r")
        t.until("chosen already")
        t.press(f"1\r{tmp_path}/c\r")
        t.until("With these 3: any 1 of the 3 may be lost without losing data; for a push 1 may be away.")
        t.press("\r")
        t.until("What is the workspace called")
        t.press("\r")
        t.until("Everything is stored on 2 of the 3")
        assert "The folder has 3.0 MiB: that is 6.0 MiB before compression." in t.text()
        t.press("y\r")
        t.until("seven words are made")
        t.press(f"{PASSPHRASE}\r")
        t.until("Repeat it")
        t.press(f"{PASSPHRASE}\r")
        t.until("A name for your second device")
        assert "Recovery phrase" in t.text(), "shown before anything else may go wrong"
        t.press("tablet\r")
        assert t.end() == 0
        code = re.search(r"metasync clone docs --invite (\S+)", t.text())
        assert code is not None
    assert run_cli("-C", str(tmp_path / "docs"), "push").code == 0
    assert run_cli("clone", str(tmp_path / "tablet"), "--invite", code[1]).code == 0
    assert (tmp_path / "tablet/notes").read_bytes() == b"one"


def test_an_account_is_linked_on_the_way_and_no_changes_nothing_else(tmp_path: Path) -> None:
    browser = tmp_path / "browser.py"
    browser.write_text("import sys, urllib.request\nurllib.request.urlopen(sys.argv[1], timeout=60).read()\n")
    with oauth_standin("onedrive") as standin:
        env = {
            "BROWSER": f"{sys.executable} {browser} %s", "METASYNC_ONEDRIVE_ENDPOINT": standin.url,
            "METASYNC_ONEDRIVE_CLIENT_ID": CLIENT_ID, "XDG_CONFIG_HOME": str(tmp_path / "config"),
        }  # fmt: skip
        with on_terminal("init", "docs", "--name", "docs", cwd=tmp_path, env=env, columns=300, rows=60) as t:
            t.until("OneDrive (an account that you link)")
            number = next(row.split()[0] for row in t.rows() if "OneDrive (an account" in row)
            t.press(f"{number}\r")
            t.until("Linked the account of OneDrive")
            t.press("\r")
            t.until("With this one: none may be lost")
            t.press("\r")
            t.until("Go on with this one?")
            t.press("y\r")
            t.until("Make the workspace docs?")
            t.press("n\r")
            assert t.end() == 1
            assert t.text().endswith("Nothing was made. Accounts that were linked stay linked: metasync auth --list")
        assert standin.faults == []
    assert (tmp_path / "config/metasync/logins/onedrive-default.json").exists()
    assert not (tmp_path / "docs").exists()
