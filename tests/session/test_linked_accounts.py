"""Stores of linked accounts in a workspace: a login that ended is one backend away, and costs no store its time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import linked_kit
import pytest
from servers.oauth_standin import Standin, oauth_standin
from workspace_kit import Lab, write

from metasync.backends._shared import logins
from metasync.backends.registry import parse_url
from metasync.errors import RefusedError
from metasync.session import open_backend


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    logins.forget_open()
    with oauth_standin("box") as found:
        linked_kit.install(monkeypatch, found)
        yield found


def test_the_store_s_time_begins_when_the_account_has_a_token(
    box: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.linked(left_s=0.0)
    box.switches.hold = threading.Event()
    slow: list[int] = []
    monkeypatch.setattr(open_backend, "SLOW_S", 0.01)
    inner = open_backend.wait

    def waited(futures: list[object], seconds: float) -> object:
        assert box.renewals == 1, "the store's time runs while the account's server is asked"
        return inner(futures, 60)  # type: ignore[arg-type]

    def on_slow() -> None:
        slow.append(box.renewals)
        assert box.switches.hold is not None
        box.switches.hold.set()

    monkeypatch.setattr(open_backend, "wait", waited)
    (tmp_path / "store").mkdir()
    url = parse_url(f"box:{tmp_path}/store")
    open_backend.reached("work", url, on_slow=on_slow).close()
    assert slow == [0]


def test_a_store_whose_account_is_not_linked_says_how_to_link_it(box: Standin, tmp_path: Path) -> None:
    with pytest.raises(
        RefusedError, match="work: no account of Box is linked as home; `metasync auth box --account home` links it"
    ) as caught:
        open_backend.reached("work", parse_url(f"box:{tmp_path}/store?account=home"))
    assert caught.value.next_step == "Run: metasync auth box --account home"


def test_a_revoked_login_is_one_backend_away_until_the_account_is_linked_again(box: Standin, lab: Lab) -> None:
    box.linked()
    w = lab.init([*lab.urls("a", "b"), f"box:{lab.root}/stores/work?name=work"])
    write(w.directory, {"one": b"1"})
    w.push()
    w.close()
    box.revoke_all()
    logins.forget_open()
    write(w.directory, {"two": b"2"})
    pushed = lab.cli("push")
    assert pushed.code == 0, "the other two are a quorum, and hold two copies"
    assert "work: the login to Box ended or was revoked" in pushed.out + pushed.err
    assert "metasync auth box" in pushed.out + pushed.err
    status = lab.cli("status")
    assert "metasync auth box" in status.out + status.err
    box.linked()
    logins.forget_open()
    assert lab.cli("push").code == 0


def test_tokens_that_end_during_a_push_are_renewed_and_nobody_hears_of_it(box: Standin, lab: Lab) -> None:
    box.linked()
    w = lab.init([*lab.urls("a", "b"), f"box:{lab.root}/stores/work?name=work"])
    write(w.directory, {"one": b"1"})
    box.end_access()
    report = w.push()
    assert report.version == 1 and not report.down
    assert box.renewals == 1
