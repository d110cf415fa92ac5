"""`metasync auth`: on a terminal, in a script, with a browser and without one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.oauth_standin import CLIENT_ID, CLIENT_SECRET, Standin, oauth_standin
from terminal_kit import on_terminal
from workspace_kit import Lab, run_cli

from metasync.backends._shared import logins
from metasync.backends._shared.logins import kept, open_login
from metasync.commands import linking as dialogue

BROWSER = """
import sys, urllib.request
urllib.request.urlopen(sys.argv[1], timeout=60).read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    logins.forget_open()
    return tmp_path


@pytest.fixture(params=["dropbox", "onedrive", "box", "gdrive"])
def standin(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    with oauth_standin(request.param) as found:
        monkeypatch.setenv(f"METASYNC_{request.param.upper()}_ENDPOINT", found.url)
        yield found
        assert found.faults == []


def test_an_account_is_linked_listed_and_unlinked_by_a_script(
    standin: Standin, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = standin.provider.name
    monkeypatch.setenv(f"METASYNC_{name.upper()}_CLIENT_ID", CLIENT_ID)
    monkeypatch.setenv(f"METASYNC_{name.upper()}_CLIENT_SECRET", CLIENT_SECRET)
    monkeypatch.setattr("webbrowser.open", standin.browse)
    monkeypatch.setattr(dialogue, "has_browser", lambda: True)
    linked = run_cli("auth", name, "--json")
    assert linked.code == 0
    assert linked.json["accounts"][0]["provider"] == name and linked.json["accounts"][0]["account"] == "default"
    assert standin.holds(open_login(name, None).token())
    second = run_cli("auth", name, "--account", "work")
    assert second.code == 0
    assert f"{name}:/metasync?account=work" in second.out
    several = run_cli("auth", name)
    assert several.code == 2 and "default, work" in several.err
    listed = run_cli("auth", "--list", "--json").json
    assert [(a["provider"], a["account"], a["problem"]) for a in listed["accounts"]] == [
        (name, "default", ""), (name, "work", ""),
    ]  # fmt: skip
    for ran in (linked, second, several, run_cli("auth", "--list")):
        for secret in (CLIENT_SECRET, *standin.access, *standin.refresh):
            assert secret not in ran.out + ran.err
    gone = run_cli("auth", name, "--account", "work", "--remove", "--json").json
    assert gone["revoked"] is (name != "onedrive")
    kept_there = 1 if standin.provider.revoke else 2
    assert len(set(standin.refresh.values())) == kept_there
    assert run_cli("auth", name, "--remove").code == 0
    assert kept.accounts(name) == ()


def test_the_first_time_the_user_is_led_through_registering_an_app(folder: Path) -> None:
    browser = folder / "browser.py"
    browser.write_text(BROWSER)
    with oauth_standin("gdrive") as standin:
        env = {"BROWSER": f"{sys.executable} {browser} %s", "METASYNC_GDRIVE_ENDPOINT": standin.url}
        with on_terminal("auth", "gdrive", cwd=folder, env=env, columns=200, rows=50) as t:
            t.until("Client id")
            assert "Publish app" in t.text() and "console.cloud.google.com/auth/clients" in t.text()
            t.press("two words\r")
            t.until("That is no client id")
            t.press(f"{CLIENT_ID}\r")
            t.until("Client secret")
            t.press(f"{CLIENT_SECRET}\r")
            assert t.end() == 0
            assert "Linked the account of Google Drive" in t.text()
            assert CLIENT_SECRET not in t.text()
        assert standin.faults == []
        assert json.loads((folder / "config/metasync/logins/gdrive-default.json").read_text())["client_id"] == CLIENT_ID


def test_without_a_browser_a_code_is_typed_on_another_machine(folder: Path) -> None:
    with oauth_standin("onedrive") as standin:
        env = {"METASYNC_ONEDRIVE_ENDPOINT": standin.url, "METASYNC_ONEDRIVE_CLIENT_ID": CLIENT_ID}
        with on_terminal("auth", "onedrive", "--no-browser", cwd=folder, env=env, columns=200) as t:
            t.until("ABCD-1234")
            assert t.end() == 0
            assert "Linked the account of OneDrive" in t.text()


def test_without_a_browser_the_code_is_pasted(folder: Path) -> None:
    with oauth_standin("dropbox") as standin:
        env = {"METASYNC_DROPBOX_ENDPOINT": standin.url, "METASYNC_DROPBOX_CLIENT_ID": CLIENT_ID}
        with on_terminal("auth", "dropbox", "--no-browser", cwd=folder, env=env, columns=600) as t:
            t.until("The code that it shows")
            url = next(row.strip() for row in t.rows() if "/oauth2/authorize?" in row)
            t.press("http://a.address/\r")
            t.until("That is not the code")
            t.press(f"{standin.browse(url)}\r")
            assert t.end() == 0
        assert standin.faults == []
