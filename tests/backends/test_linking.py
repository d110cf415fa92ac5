"""Linking an account: what a browser, a user and a provider bring; and what others try at the same door."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from servers.oauth_standin import CLIENT_ID, CLIENT_SECRET, Standin, oauth_standin

from metasync.backends._shared import logins
from metasync.backends._shared.logins import kept, linking, oauth, open_login
from metasync.errors import RefusedError, UsageError

ALL = sorted(oauth.PROVIDERS)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    logins.forget_open()


@pytest.fixture(params=ALL)
def standin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    with oauth_standin(request.param) as found:
        monkeypatch.setenv(f"METASYNC_{request.param.upper()}_ENDPOINT", found.url)
        yield found


def client(standin: Standin) -> oauth.Client:
    return oauth.Client(CLIENT_ID, CLIENT_SECRET if standin.provider.has_secret else "")


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    with oauth_standin("gdrive") as found:
        monkeypatch.setenv("METASYNC_GDRIVE_ENDPOINT", found.url)
        yield found


def test_an_account_is_linked_in_a_browser(standin: Standin) -> None:
    with linking.listening(standin.provider, client(standin)) as listener:
        page = standin.browse(listener.attempt.url)
        tokens = listener.attempt.tokens(listener.code(60))
    assert "You may close this page" in page
    linking.keep(standin.provider, "work", client(standin), tokens)
    assert standin.holds(open_login(standin.provider.name, "work").token())
    assert standin.faults == []


def test_an_account_is_linked_by_what_is_pasted(standin: Standin) -> None:
    redirect = "" if standin.provider.shows_code else standin.provider.redirect.format(port=linking.PASTE_PORT)
    attempt = linking.begun(standin.provider, client(standin), redirect)
    if redirect:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.build_opener(Stays).open(attempt.url)
        pasted = caught.value.headers["Location"]
        caught.value.close()
        assert pasted.startswith(redirect)
    else:
        pasted = standin.browse(attempt.url)
    assert standin.holds(attempt.tokens(attempt.pasted(f"  {pasted}\n")).access)
    assert standin.faults == []


class Stays(urllib.request.HTTPRedirectHandler):
    """A browser that finds nothing where it is sent."""

    def redirect_request(self, *_: object) -> None:
        return None


def test_an_account_is_linked_by_a_code_typed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with oauth_standin("onedrive") as standin:
        monkeypatch.setenv("METASYNC_ONEDRIVE_ENDPOINT", standin.url)
        standin.switches.types_code_after = 2
        slept: list[float] = []
        code = oauth.device_code(standin.provider, client(standin))
        tokens = linking.await_device(standin.provider, client(standin), code, slept.append)
        assert standin.holds(tokens.access) and slept == [1.0] * 3
        standin.switches.says_no = True
        code = oauth.device_code(standin.provider, client(standin))
        with pytest.raises(RefusedError, match="told no"):
            linking.await_device(standin.provider, client(standin), code, slept.append)
        assert standin.faults == []


def test_a_user_who_says_no_links_nothing(standin: Standin) -> None:
    standin.switches.says_no = True
    with linking.listening(standin.provider, client(standin)) as listener:
        assert "was not linked" in standin.browse(listener.attempt.url)
        with pytest.raises(RefusedError, match="told no") as caught:
            listener.code(60)
    assert caught.value.next_step == f"Run: metasync auth {standin.provider.name}"


def fetched(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_what_is_not_the_answer_waited_for_changes_nothing(google: Standin) -> None:
    """Another page in the user's browser sends it to the listener, with a code of its own account."""
    with linking.listening(google.provider, client(google)) as listener:
        top = listener.attempt.redirect
        state = listener.attempt.state
        for path in ("", "/", "/?code=theirs", "/?code=theirs&state=", f"/?code=theirs&state={state[:-1]}x",
                     f"/?state={state}", f"/?code=&state={state}", f"/?code={'x' * 5000}&state={state}",
                     f"/other?code=theirs&state={state}", "/?error=access_denied", "/?state=%ff&code=x"):  # fmt: skip
            assert fetched(top + path)[0] == 404, path
        assert fetched(f"{top}/?code=theirs&state={state}", "POST")[0] == 501
        with pytest.raises(RefusedError, match="no browser came back"):
            listener.code(0.0)
        assert "You may close" in google.browse(listener.attempt.url)
        assert fetched(f"{top}/?code=theirs&state={state}")[0] == 404, "the first answer counts"
        assert google.holds(listener.attempt.tokens(listener.code(60)).access)


def test_what_the_provider_says_is_not_put_into_the_page(google: Standin) -> None:
    with linking.listening(google.provider, client(google)) as listener:
        said = f"{listener.attempt.redirect}/?error=%3Cscript%3E&state={listener.attempt.state}"
        status, page = fetched(said)
        assert status == 200 and "script" not in page
        with pytest.raises(RefusedError, match=r"refused it \(unknown\)"):
            listener.code(60)


def test_connections_that_say_nothing_keep_no_browser_out(google: Standin) -> None:
    with linking.listening(google.provider, client(google)) as listener:
        port = urlsplit(listener.attempt.redirect).port
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
        assert "You may close" in google.browse(listener.attempt.url)
        for one in silent:
            one.close()


def test_the_listener_is_on_this_machine_alone(google: Standin) -> None:
    with linking.listening(google.provider, client(google)) as listener:
        port = urlsplit(listener.attempt.redirect).port
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", port), 5):
            pass


def test_a_port_that_is_taken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with oauth_standin("dropbox") as standin:
        monkeypatch.setenv("METASYNC_DROPBOX_ENDPOINT", standin.url)
        with linking.listening(standin.provider, client(standin)):
            second = linking.listening(standin.provider, client(standin))
            with pytest.raises(RefusedError, match="cannot wait for the browser") as caught, second:
                pass
            assert "--no-browser" in caught.value.next_step


@pytest.mark.parametrize("text", ["", " ", "http://127.0.0.1:53117/?code=a", "a code", "x" * 100_000, "http://[::1/"])
def test_what_was_pasted_is_the_answer_of_this_attempt_or_nothing(google: Standin, text: str) -> None:
    attempt = linking.begun(google.provider, client(google), "http://127.0.0.1:53117")
    with pytest.raises(UsageError):
        attempt.pasted(text)


def test_each_attempt_has_a_state_and_a_verifier_of_its_own(standin: Standin) -> None:
    attempts = [linking.begun(standin.provider, client(standin), "http://localhost:1") for _ in range(2)]
    assert len({a.state for a in attempts}) == len({a.verifier for a in attempts}) == 2
    for attempt in attempts:
        query = parse_qs(urlsplit(attempt.url).query)
        assert attempt.verifier not in attempt.url and CLIENT_SECRET not in attempt.url
        assert query["state"] == [attempt.state]
        assert ("code_challenge" in query) == standin.provider.has_pkce
        for secret in (attempt.state, attempt.verifier):
            assert secret not in repr(attempt) or secret in attempt.url


def test_a_login_with_fewer_rights_or_without_an_end_is_refused(google: Standin) -> None:
    for switch, value, said in (
        ("scope", "https://www.googleapis.com/auth/userinfo.email", "fewer rights"),
        ("forgets_refresh", True, "without a refresh token"),
    ):
        setattr(google.switches, switch, value)
        with linking.listening(google.provider, client(google)) as listener:
            google.browse(listener.attempt.url)
            with pytest.raises(RefusedError, match=said):
                listener.attempt.tokens(listener.code(60))
        google.switches.scope, google.switches.forgets_refresh = None, False


def test_a_wrong_secret_is_told_and_not_shown(google: Standin) -> None:
    wrong = oauth.Client(CLIENT_ID, "wrong-secret")
    with linking.listening(google.provider, wrong) as listener:
        google.browse(listener.attempt.url)
        with pytest.raises(RefusedError, match="does not know the app") as caught:
            listener.attempt.tokens(listener.code(60))
    assert "secret-of" not in str(caught.value) and "wrong-secret" not in str(caught.value)


def test_an_account_is_unlinked_at_the_provider_too(standin: Standin) -> None:
    standin.linked("work", left_s=0.0)
    place = kept.Place(standin.provider, "work")
    assert linking.unlink(place) is (standin.provider.name != "onedrive")
    if standin.provider.revoke:
        assert standin.refresh == {} and standin.access == {}
    assert kept.accounts(standin.provider.name) == () and not place.path.exists()
    assert standin.faults == []


def test_a_login_that_ended_is_forgotten_here_all_the_same(standin: Standin) -> None:
    standin.linked(left_s=0.0)
    standin.revoke_all()
    assert linking.unlink(kept.Place(standin.provider, kept.DEFAULT)) is False
    assert kept.accounts(standin.provider.name) == ()


def test_whoever_packs_the_program_may_bring_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert oauth.shipped_client("box", {}) is None
    monkeypatch.setattr(oauth, "__file__", str(tmp_path / "oauth.py"))
    beside = tmp_path / "oauth_clients.json"
    beside.write_text('{"box": {"id": "of-the-distribution", "secret": "s"}, "dropbox": {"id": "d"}}')
    assert oauth.shipped_client("box", {}) == oauth.Client("of-the-distribution", "s")
    assert oauth.shipped_client("dropbox", {}) == oauth.Client("d")
    assert oauth.shipped_client("gdrive", {}) is None
    own = {"METASYNC_BOX_CLIENT_ID": "own", "METASYNC_BOX_CLIENT_SECRET": "t"}
    assert oauth.shipped_client("box", own) == oauth.Client("own", "t")
    beside.write_text("[")
    with pytest.raises(RefusedError, match="cannot be read"):
        oauth.shipped_client("box", {})
