"""Logins to linked accounts: kept, renewed once, never lost by a process that ends, and told when they ended."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from servers.oauth_standin import CLIENT_SECRET, Standin, oauth_standin

from metasync.backends._shared import logins
from metasync.backends._shared.logins import kept, oauth, open_login
from metasync.errors import RefusedError, UnreachableError

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
        assert found.faults == []


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    with oauth_standin("box") as found:
        monkeypatch.setenv("METASYNC_BOX_ENDPOINT", found.url)
        yield found
        assert found.faults == []


def login_of(standin: Standin, account: str | None = None) -> logins.Login:
    return open_login(standin.provider.name, account)


def test_without_an_account_the_command_that_links_one_is_told() -> None:
    for provider in ALL:
        with pytest.raises(RefusedError, match="no account of") as caught:
            open_login(provider, None)
        assert caught.value.next_step == f"Run: metasync auth {provider}"
    with pytest.raises(RefusedError, match="as work") as caught:
        open_login("box", "work")
    assert caught.value.next_step == "Run: metasync auth box --account work"


def test_a_token_that_lives_is_given_out_without_a_request(standin: Standin) -> None:
    grant = standin.linked()
    assert [login_of(standin).token() for _ in range(3)] == [grant.access] * 3
    assert standin.requests == []


def test_a_token_that_ended_is_renewed_and_kept_for_the_next_process(standin: Standin) -> None:
    old = standin.linked(left_s=5.0)
    token = login_of(standin).token()
    assert standin.holds(token) and token != old.access
    logins.forget_open()
    assert login_of(standin).token() == token
    assert standin.renewals == 1


def test_a_token_that_is_about_to_end_is_given_out_while_it_is_renewed(standin: Standin) -> None:
    old = standin.linked(left_s=300.0)
    login = login_of(standin)
    standin.switches.hold = threading.Event()
    assert login.token() == old.access
    assert standin.switches.held.wait(60)
    assert login.token() == old.access
    standin.switches.hold.set()
    deadline = time.monotonic() + 60
    while login.token() == old.access:
        assert time.monotonic() < deadline
    assert standin.renewals == 1


def test_a_renewal_that_fails_early_costs_nobody_a_token(standin: Standin) -> None:
    old = standin.linked(left_s=300.0)
    standin.switches.failures = 100
    login = login_of(standin)
    assert [login.token() for _ in range(50)] == [old.access] * 50


def test_threads_that_need_a_token_at_once_ask_once(standin: Standin) -> None:
    standin.linked(left_s=0.0)
    login = login_of(standin)
    with ThreadPoolExecutor(16) as pool:
        tokens = {*pool.map(lambda _: login.token(), range(16))}
    assert len(tokens) == 1 and standin.renewals == 1


def test_after_a_401_another_token_is_had_and_another_process_s_counts(standin: Standin) -> None:
    old = standin.linked()
    login = login_of(standin)
    first = login.renewed(old.access)
    assert first != old.access and standin.holds(first)
    assert login.renewed(old.access) == first, "a second thread was refused with the same old token"
    logins.forget_open()
    other = login_of(standin)
    assert other.renewed(first) != first
    assert login.renewed(first) == other.token()
    assert standin.renewals == 2


def test_a_login_that_was_revoked_is_told_with_the_command_that_mends_it(standin: Standin) -> None:
    grant = standin.linked("work")
    login = login_of(standin)
    standin.revoke_all()
    for _ in range(2):
        with pytest.raises(RefusedError, match=r"ended or was revoked") as caught:
            login.renewed(grant.access)
        assert caught.value.next_step == f"Run: metasync auth {standin.provider.name} --account work"
    asked = len(standin.requests)
    with pytest.raises(RefusedError):
        login.renewed(grant.access)
    assert len(standin.requests) == asked, "32 calls that fail at once must not ask 32 times"


def test_a_new_login_counts_at_once_for_a_process_whose_old_one_ended(standin: Standin) -> None:
    old = standin.linked()
    login = login_of(standin)
    standin.revoke_all()
    new = standin.linked()
    assert login.renewed(old.access) == new.access


def test_a_provider_that_is_down_is_not_a_login_that_ended(standin: Standin) -> None:
    old = standin.linked(left_s=0.0)
    standin.switches.failures, standin.switches.retry_after = 1, "7"
    login = login_of(standin)
    with pytest.raises(UnreachableError, match="503") as caught:
        login.token()
    assert caught.value.retry_after_s == 7.0
    logins.forget_open()
    assert login_of(standin).token() != old.access


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b"{" * 10000, b'{"access_token": 1}', b'{"access_token": "a\\nb"}', b'{"access_token": ""}'],
)
def test_an_answer_of_another_kind_gives_no_token_and_costs_no_login(box: Standin, body: bytes) -> None:
    before = box.linked(left_s=0.0)
    box.switches.body = body
    with pytest.raises((UnreachableError, RefusedError)):
        login_of(box).token()
    assert kept.Place(box.provider, kept.DEFAULT).read().refresh == before.refresh


def test_a_life_that_is_no_number_or_far_too_long_is_not_believed(standin: Standin) -> None:
    for said in ("soon", -5, 1e300, float("nan"), None):
        logins.forget_open()
        standin.linked(left_s=0.0)
        standin.switches.expires_in = said
        login_of(standin).token()
        grant = kept.Place(standin.provider, kept.DEFAULT).read()
        assert time.time() - 10 < grant.ends_at < time.time() + oauth.LIFE_S_MAX + 1


def test_a_clock_that_was_set_back_does_not_keep_a_token_for_days(standin: Standin) -> None:
    old = standin.linked(left_s=40 * 86400.0)
    assert login_of(standin).token() != old.access


def test_a_lost_answer_of_a_token_that_is_taken_once_is_told_as_what_it_was(box: Standin) -> None:
    grant = box.linked(left_s=0.0)
    box.switches.lost_answers = 1
    with pytest.raises(UnreachableError):
        login_of(box).token()
    logins.forget_open()
    with pytest.raises(RefusedError, match=r"is lost: its renewal on .* broke off") as caught:
        login_of(box).token()
    assert caught.value.next_step == "Run: metasync auth box"
    assert grant.refresh not in str(caught.value)


def test_a_login_that_was_revoked_is_not_said_to_be_lost(box: Standin) -> None:
    box.linked(left_s=0.0)
    box.revoke_all()
    for _ in range(2):
        logins.forget_open()
        with pytest.raises(RefusedError, match="ended or was revoked"):
            login_of(box).token()


def test_a_lost_answer_of_a_token_that_holds_on_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in ("dropbox", "onedrive", "gdrive"):
        with oauth_standin(provider) as standin:
            monkeypatch.setenv(f"METASYNC_{provider.upper()}_ENDPOINT", standin.url)
            standin.linked(left_s=0.0)
            standin.switches.lost_answers = 1
            with pytest.raises(UnreachableError):
                login_of(standin).token()
            logins.forget_open()
            assert standin.holds(login_of(standin).token())


def test_the_refresh_token_before_serves_where_the_newest_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with oauth_standin("onedrive") as standin:
        monkeypatch.setenv("METASYNC_ONEDRIVE_ENDPOINT", standin.url)
        first = standin.linked(left_s=0.0)
        login = login_of(standin)
        token = login.token()
        newest = kept.Place(standin.provider, kept.DEFAULT).read()
        assert newest.previous == first.refresh
        del standin.refresh[newest.refresh]
        assert standin.holds(login.renewed(token))


def test_a_disk_that_is_full_keeps_the_login_in_this_process_until_it_can_be_written(
    box: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.linked(left_s=0.0)
    login = login_of(box)
    write, calls = kept.Place.write, []

    def second_fails(place: kept.Place, grant: kept.Grant) -> None:
        calls.append(grant)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        write(place, grant)

    monkeypatch.setattr(kept.Place, "write", second_fails)
    with pytest.raises(UnreachableError, match="No space left"):
        login.token()
    token = login.token()
    assert box.holds(token)
    box.end_access()
    assert box.holds(login.renewed(token))
    assert kept.Place(box.provider, kept.DEFAULT).read().access == login.token()


def test_the_file_is_its_owner_s_alone_and_says_nothing_in_a_repr(standin: Standin) -> None:
    grant = standin.linked(left_s=0.0)
    login = login_of(standin)
    login.token()
    path = kept.Place(standin.provider, kept.DEFAULT).path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.name == f"{standin.provider.name}-default.json"
    assert [p.name for p in path.parent.iterdir() if p.suffix not in (".json", ".lock")] == []
    for text in (repr(login), repr(grant), repr(grant.client), str(login._grant)):
        for secret in (grant.access, grant.refresh, CLIENT_SECRET):
            assert secret not in text


def test_a_file_that_others_could_read_is_closed_to_them(standin: Standin) -> None:
    standin.linked()
    path = kept.Place(standin.provider, kept.DEFAULT).path
    path.chmod(0o644)
    login_of(standin)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_damaged_file_is_told_with_the_command_that_mends_it(box: Standin) -> None:
    box.linked()
    path = kept.Place(box.provider, kept.DEFAULT).path
    sound = json.loads(path.read_text())
    damaged = [
        b"", b"{}", b"\xff", b"[" * 100_000, json.dumps({**sound, "format": 2}), json.dumps({**sound, "ends_at": "x"}),
        json.dumps({**sound, "access": 5}), json.dumps({**sound, "more": 1}), json.dumps({**sound, "account": "other"}),
    ]  # fmt: skip
    for content in damaged:
        logins.forget_open()
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        with pytest.raises(RefusedError, match="is damaged") as caught:
            login_of(box)
        assert caught.value.next_step == "Run: metasync auth box"


def test_of_several_accounts_the_url_says_which(standin: Standin) -> None:
    tokens = {label: standin.linked(label).access for label in ("home", "work")}
    assert {label: login_of(standin, label).token() for label in tokens} == tokens
    with pytest.raises(RefusedError, match=r"several accounts .* home, work") as caught:
        login_of(standin)
    assert "account=home" in caught.value.next_step


def test_a_url_without_a_label_goes_on_meaning_default_when_others_are_linked(standin: Standin) -> None:
    before = standin.linked().access
    for other in ("a-second", "work"):
        standin.linked(other)
    assert login_of(standin).token() == before
    assert login_of(standin).account == "default"


@pytest.mark.parametrize("account", ["default", "work"])
def test_what_is_told_of_a_login_mends_this_account_though_others_are_linked(standin: Standin, account: str) -> None:
    """Whatever the token endpoint answers: the command without its label would be refused, or mend another one."""
    name = standin.provider.name
    standin.linked("home")
    grant = standin.linked(account)
    own = f"Run: metasync auth {name} --account {account}"
    for body, status, step in (
        (b'{"error": "invalid_client"}', 401, f"{own} --new-app"),
        (b'{"error": "unauthorized_client"}', 400, f"{own} --new-app"),
        (b'{"error": "invalid_grant"}', 400, own),
        (b'{"error": "invalid_scope"}', 400, own),
        (b"{}", 400, own),
    ):
        logins.forget_open()
        standin.switches.status, standin.switches.failures, standin.switches.refusal = status, 2, body
        with pytest.raises(RefusedError) as caught:
            login_of(standin, account).renewed(grant.access)
        assert caught.value.next_step == step, body
    standin.switches.failures = 0


def test_a_login_is_shown_to_no_other_server_than_the_one_that_gave_it(
    box: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.linked(left_s=0.0)
    with oauth_standin("box") as other:
        monkeypatch.setenv("METASYNC_BOX_ENDPOINT", other.url)
        with pytest.raises(RefusedError, match="names another server"):
            login_of(box)
        assert other.requests == []
    monkeypatch.delenv("METASYNC_BOX_ENDPOINT")
    with pytest.raises(RefusedError, match="names another server"):
        login_of(box)
    assert box.requests == []


@pytest.mark.parametrize(
    "url",
    ["http://example.com", "ftp://127.0.0.1", "http://127.0.0.1.example.com:1", "https://u:p@127.0.0.1", "https://"],
)
def test_a_stand_in_is_on_this_machine_or_has_tls(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_DROPBOX_ENDPOINT", url)
    with pytest.raises(RefusedError, match="METASYNC_DROPBOX_ENDPOINT"):
        oauth.endpoint_of("dropbox")


class Keyring:
    """A keyring in memory, or one that is locked."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], str] = {}
        self.is_locked = False

    def set_password(self, service: str, account: str, value: str) -> None:
        self._look()
        self.entries[service, account] = value

    def get_password(self, service: str, account: str) -> str | None:
        self._look()
        return self.entries.get((service, account))

    def delete_password(self, service: str, account: str) -> None:
        self._look()
        del self.entries[service, account]

    def _look(self) -> None:
        if self.is_locked:
            raise RuntimeError("locked")


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Keyring:
    import keyring

    found = Keyring()
    for name in ("set_password", "get_password", "delete_password"):
        monkeypatch.setattr(keyring, name, getattr(found, name))
    monkeypatch.delenv("METASYNC_KEYRING")
    return found


def test_where_there_is_a_keyring_the_file_holds_no_secret(standin: Standin, ring: Keyring) -> None:
    grant = standin.linked(left_s=0.0)
    place = kept.Place(standin.provider, kept.DEFAULT)
    token = login_of(standin).token()
    assert json.loads(place.path.read_text()) == {"format": 1, "kept_in": "keyring"}
    assert place.read().access == token and grant.access != token
    assert len(ring.entries) == 1
    place.remove()
    assert ring.entries == {} and kept.accounts(standin.provider.name) == ()


def test_a_keyring_that_is_locked_is_told_and_one_that_locks_midway_costs_no_login(box: Standin, ring: Keyring) -> None:
    box.linked(left_s=0.0)
    login = login_of(box)
    ring.is_locked = True
    with pytest.raises(RefusedError, match="keyring is locked"):
        login.token()
    assert box.renewals == 0
    ring.is_locked = False
    box.switches.hold = threading.Event()
    logins.forget_open()
    login = login_of(box)
    with ThreadPoolExecutor(1) as pool:
        token = pool.submit(login.token)
        assert box.switches.held.wait(60)
        ring.is_locked = True
        box.switches.hold.set()
        assert box.holds(token.result(60))
    logins.forget_open()
    assert login_of(box).token() == token.result()


RENEWING = """
import sys
from metasync.backends._shared.logins import open_login
login = open_login(sys.argv[1], None)
for count in range(1, int(sys.argv[2]) + 1):
    token = login.token()
    token = login.renewed(token)
    print(token, flush=True)
    if count == int(sys.argv[3]):
        sys.stdin.readline()  # here it is killed, between two renewals
"""


def _renewing(provider: str, times: int, pause: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", RENEWING, provider, str(times), str(pause)]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def _two_processes(standin: Standin, times: int, kill_every: int) -> None:
    """Two processes renew `times` each, and one of them is killed now and then: at Box between two renewals, where
    tokens are taken once, else anywhere."""
    standin.linked()
    name = standin.provider.name
    other = _renewing(name, times, 0)
    done = 0
    while done < times:
        process = _renewing(name, times - done, kill_every if standin.provider.single_use else 0)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        for count, line in enumerate(process.stdout, start=1):
            assert line.startswith("access-")
            done += 1
            if count == kill_every:
                process.send_signal(signal.SIGKILL)
                break
        process.wait(60)
        assert process.stderr.read() == ""
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
    _, said = other.communicate(timeout=600)
    assert (other.returncode, said) == (0, "")
    logins.forget_open()
    assert standin.holds(login_of(standin).token())
    if standin.provider.single_use:
        assert len(standin.refresh) == 1, "a refresh token was forked"


@pytest.mark.few(1)
def test_two_processes_renew_one_login(standin: Standin) -> None:
    if standin.provider.name in ("dropbox", "gdrive"):
        pytest.skip("the other two are as hard or harder")
    _two_processes(standin, 12, 5)


@pytest.mark.long
def test_two_processes_renew_one_login_a_thousand_times(standin: Standin) -> None:
    _two_processes(standin, 500, 40)


KILLED = """
import os, signal, sys
from metasync.backends._shared.logins import kept, oauth, open_login
renewed = oauth.renewed
def die(*words): os.kill(os.getpid(), signal.SIGKILL)
match sys.argv[2]:
    case "before it asks": oauth.renewed = die
    case "in its first write": os.fsync = die
    case "with the answer": oauth.renewed = lambda *words: die(renewed(*words))
login = open_login(sys.argv[1], None)
login.token()
"""


@pytest.mark.few(4)
@pytest.mark.parametrize("when", ["before it asks", "in its first write", "with the answer"])
def test_a_process_that_is_killed_over_a_renewal_costs_no_login_or_it_is_told(standin: Standin, when: str) -> None:
    standin.linked(left_s=0.0)
    killed = subprocess.run([sys.executable, "-c", KILLED, standin.provider.name, when], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    login = login_of(standin)
    if when == "with the answer" and standin.provider.single_use:
        with pytest.raises(RefusedError, match="is lost: its renewal") as caught:
            login.token()
        assert caught.value.next_step == "Run: metasync auth box"
    else:
        assert standin.holds(login.token())


ENDING = """
import sys, threading
from metasync.backends._shared.logins import open_login
from metasync.terminal import interrupt
login = open_login(sys.argv[1], None)
login.token()  # renews in the background
sys.stdin.readline()
if sys.argv[2] == "command":
    interrupt.end(0)
"""


@pytest.mark.parametrize("kind", ["command", "program"])
def test_a_process_that_ends_waits_for_a_renewal_that_is_under_way(box: Standin, kind: str) -> None:
    box.linked(left_s=300.0)
    box.switches.hold = threading.Event()
    ending = subprocess.Popen([sys.executable, "-c", ENDING, "box", kind], stdin=subprocess.PIPE, text=True)
    assert box.switches.held.wait(60)
    assert ending.stdin is not None
    ending.stdin.write("\n")
    ending.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        ending.wait(0.3)
    box.switches.hold.set()
    assert ending.wait(60) == 0
    box.switches.hold = None
    logins.forget_open()
    assert box.holds(login_of(box).token()) and box.renewals == 1


def test_nothing_of_this_is_loaded_by_the_package(tmp_path: Path) -> None:
    code = "import sys, metasync.workspace; print([m for m in sys.modules if 'logins' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.strip() == "[]"
