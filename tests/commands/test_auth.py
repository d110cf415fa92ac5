"""`metasync auth`: on a terminal, in a script, with a browser and without one."""

from __future__ import annotations

import importlib.util
import json
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.oauth_standin import CLIENT_ID, CLIENT_SECRET, Standin, oauth_standin
from terminal_kit import on_terminal
from workspace_kit import Lab, run_cli

from metasync.backends._shared import logins
from metasync.backends._shared.logins import kept, linking, open_login
from metasync.backends.registry import check_installed
from metasync.commands import guided
from metasync.commands import linking as dialogue
from metasync.errors import RefusedError, UsageError

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
    try:
        check_installed(request.param)
    except UsageError as error:
        pytest.skip(error.message)
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


LIBRARIES = {"dropbox": "dropbox", "box": "box_sdk_gen", "gdrive": "googleapiclient"}


@pytest.fixture
def without_library(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> Standin:
    """A provider whose library is not installed; whoever is asked for anything meanwhile fails."""
    name = standin.provider.name
    if name not in LIBRARIES:
        pytest.skip("it has no library")
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None if module == LIBRARIES[name] else found(module))
    monkeypatch.setattr("metasync.terminal.prompt.line", lambda *_, **__: pytest.fail("it asked for something"))
    return standin


def test_a_library_that_is_missing_is_told_before_an_app_is_registered(without_library: Standin, lab: Lab) -> None:
    name = without_library.provider.name
    ran = run_cli("auth", name)
    assert ran.code == 2
    assert "not installed" in ran.err and f"pip install 'metasync[{name}]'" in ran.err
    assert without_library.requests == [] and kept.accounts(name) == ()


def test_the_guided_start_too_tells_of_a_missing_library_first(
    without_library: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("metasync.terminal.prompt.tell", lambda *lines: told.extend(lines))
    assert guided._tried(guided._asking(without_library.provider.name)) is None
    assert len(told) == 2 and "not installed" in told[0] and "pip install" in told[1], "once, and no second try"
    assert without_library.requests == []


@pytest.mark.parametrize("failure", [False, webbrowser.Error("could not locate runnable browser")])
def test_a_browser_that_does_not_start_is_told_before_anybody_waits(
    standin: Standin, failure: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the way without one, for this account: a screen of another machine (SSH) has none that could come back."""
    told: list[str] = []

    def opens(_: str) -> bool:
        if isinstance(failure, Exception):
            raise failure
        return False

    def waits(*_: object) -> str:
        told.append("waits")
        raise RefusedError("nobody came", next_step=f"{standin.provider.step} --no-browser")

    monkeypatch.setenv(f"METASYNC_{standin.provider.name.upper()}_CLIENT_ID", CLIENT_ID)
    monkeypatch.setattr("metasync.terminal.prompt.tell", lambda *lines: told.extend(lines))
    monkeypatch.setattr("webbrowser.open", opens)
    monkeypatch.setattr(linking.Listener, "code", waits)
    monkeypatch.setattr(dialogue, "has_browser", lambda: True)
    with pytest.raises(RefusedError) as caught:
        dialogue.link(standin.provider, "work", browser=True)
    command = f"metasync auth {standin.provider.name} --account work --no-browser"
    assert told[-2:] == ["No browser could be started here.", "waits"]
    assert any(command in line for line in told)
    assert caught.value.next_step == f"Run: {command}"


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
