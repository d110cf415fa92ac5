"""`metasync init` without backends: on a terminal it asks, links and invites; elsewhere it says what is missing."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from http_kit import Answer
from requests.structures import CaseInsensitiveDict
from servers.oauth_standin import CLIENT_ID, oauth_standin
from servers.oauth_standin import Standin as OAuth
from terminal_kit import Terminal, on_terminal
from workspace_kit import Lab, run_cli, write

from metasync.backends._shared.logins import forget_open
from metasync.commands import guided

pytest.importorskip("dropbox")
from servers.dropbox_standin import DropboxStandin
from servers.standin import Request, linked, running

PASSPHRASE = "seven quiet herons by the mill"


def test_without_a_terminal_the_error_says_all_that_is_missing(lab: Lab) -> None:
    """At once, as words that can be added; a folder's name stands for the workspace's."""
    for words, what, step in (
        ((), "neither a name nor a backend was given", "Add --name laptop --backend URL --backend URL"),
        (("--name", "docs"), "no backend was given", "Add --backend URL --backend URL"),
        (("--backend", "file:///x"), "no name was given", "Add one: --name laptop"),
    ):
        ran = run_cli("init", str(lab.root / "laptop"), *words)
        assert ran.code == 2
        assert ran.err.startswith(f"metasync: {what}")
        assert f"\n{step}" in ran.err
    odd = run_cli("init", str(lab.root / "it's\n"), "--backend", "file:///x")
    assert "--name docs" in odd.err


def test_on_a_terminal_a_name_that_is_missing_is_asked_for(tmp_path: Path) -> None:
    stores = [word for name in "abc" for word in ("--backend", f"file://{tmp_path}/{name}")]
    with on_terminal("init", "docs", *stores, cwd=tmp_path, columns=300, rows=60) as t:
        t.until("What is the workspace called, on all devices? (Enter: docs)")
        t.press("papers\r")
        t.until("seven words are made")
        t.press(f"{PASSPHRASE}\r")
        t.until("Repeat it")
        t.press(f"{PASSPHRASE}\r")
        assert t.end() == 0
        assert "Workspace papers in " in t.text()


class LinkingDropbox(DropboxStandin):
    """Dropbox with its pages for linking an account; a login that was linked there opens the store."""

    def __init__(self, oauth: OAuth) -> None:
        super().__init__()
        self._oauth = oauth

    def respond(self, request: Request) -> Answer:
        if request.path.startswith("/oauth2/"):
            headers = CaseInsensitiveDict(request.headers)
            return self._oauth.answer(request.method, request.target, headers, request.body)
        self._tokens = {*self._oauth.access}
        return super().respond(request)


@pytest.mark.long
def test_a_cloud_and_two_folders_from_nothing_to_a_second_device(tmp_path: Path, lab: Lab) -> None:
    """Without a browser, too: the code that Dropbox shows is pasted. The second device has a login of its own."""
    write(tmp_path / "docs", {"notes": b"one", "deep/er": b"two"})

    def links(t: Terminal, standin: LinkingDropbox) -> None:
        t.until("The code that it shows")
        shown = next(row.strip() for row in t.rows() if row.strip().startswith(standin.url))
        t.press(standin._oauth.browse(shown) + "\r")

    with oauth_standin("dropbox") as oauth, running(LinkingDropbox(oauth)) as standin:
        oauth.url = standin.url
        shared = {"METASYNC_DROPBOX_ENDPOINT": standin.url, "METASYNC_DROPBOX_CLIENT_ID": CLIENT_ID,
                  "BROWSER": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""}  # fmt: skip
        first, second = (
            shared | {f"XDG_{kind}_HOME": f"{tmp_path}/{device}-{kind}" for kind in ("CONFIG", "STATE")}
            for device in ("first", "second")
        )
        with on_terminal("init", "docs", cwd=tmp_path, env=first, columns=1000, rows=80) as t:
            t.until("A number")
            number = next(row.split()[0] for row in t.rows() if "Dropbox (an account" in row)
            t.press(f"{number}\r")
            links(t, standin)
            t.until("Linked the account of Dropbox")
            t.press("store\r")
            t.until("With this one: none may be lost; for a push none may be away. 3 are advised.")
            for folder in ("a", "b"):
                t.press(f"1\r{tmp_path}/{folder}\r")
                t.until(f"file://{tmp_path}/{folder}")
            t.until("With these 3: any 1 of the 3 may be lost without losing data; for a push 1 may be away.")
            t.press("\r\r")
            t.until("Make the workspace docs?")
            assert "Everything is stored on 2 of the 3" in t.text()
            t.press("y\r")
            t.until("seven words are made")
            t.press(f"{PASSPHRASE}\r")
            t.until("Repeat it")
            t.press(f"{PASSPHRASE}\r")
            t.until("A name for your second device")
            t.press("tablet\r")
            assert t.end() == 0
            code = re.search(r"metasync clone docs --invite (\S+)", t.text())
            assert code is not None, t.text()
            assert "It holds no login: link the accounts there first." in t.text()
        assert any(path.startswith("/store/") for path in standin.objects())
        with pytest.MonkeyPatch.context() as patch:
            _use(patch, first)
            assert run_cli("-C", str(tmp_path / "docs"), "push").code == 0
            _use(patch, second)
            tablet = str(tmp_path / "tablet")
            with on_terminal("clone", "tablet", "--invite", code[1], cwd=tmp_path, env=second, columns=1000) as t:
                t.until("dropbox api.dropboxapi.com")
                t.press("y\r")
                assert t.end() == 0
                later = re.search(r"Run: metasync auth dropbox; then: metasync (-C \S+ backend link \S+ \S+)", t.text())
                assert later is not None, t.text()
            with on_terminal("auth", "dropbox", cwd=tmp_path, env=second, columns=1000, rows=40) as t:
                links(t, standin)
                assert t.end() == 0
            forget_open()
            assert run_cli(*later[1].split()).code == 0
            assert (tmp_path / "tablet/deep/er").read_bytes() == b"two"
            (tmp_path / "a").rename(tmp_path / "away")  # what the choice survives
            write(tmp_path / "tablet", {"more": b"three"})
            assert run_cli("-C", tablet, "push").code == 0
            _use(patch, first)
            assert run_cli("-C", str(tmp_path / "docs"), "pull").code == 0
            assert (tmp_path / "docs/more").read_bytes() == b"three"
        assert oauth.faults == []


def test_two_accounts_of_one_provider_serve_one_workspace(
    tmp_path: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL of the first one, without a label, goes on meaning it."""
    with linked(DropboxStandin(), monkeypatch, tmp_path / "config") as standin:
        standin.link(monkeypatch, tmp_path / "config", "work")
        answers = iter(["default", "one", "work", "two"])
        monkeypatch.setattr("metasync.terminal.prompt.line", lambda *_, **__: next(answers))
        urls = [guided._account("dropbox"), guided._account("dropbox"), f"file://{tmp_path}/c"]
        assert urls[:2] == ["dropbox:/one", "dropbox:/two?account=work"]
        write(tmp_path / "docs", {"notes": b"one"})
        made = run_cli(
            "init", str(tmp_path / "docs"), "--name", "docs", *(w for url in urls for w in ("--backend", url))
        )
        assert made.code == 0, made.err
        pushed = run_cli("-C", str(tmp_path / "docs"), "push")
        assert pushed.code == 0 and "warning" not in pushed.err, pushed.err
        assert {path.split("/")[1] for path in standin.objects()} == {"one", "two"}


def _use(patch: pytest.MonkeyPatch, device: dict[str, str]) -> None:
    """From now on this process is this device."""
    for name, value in device.items():
        patch.setenv(name, value)
    forget_open()


@pytest.mark.long
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
