"""Each switch of the clouds' stand-ins, on each provider: what the backend makes of it.

An answer lost after the write, a delay between check and write, lists that are stale, hide, reorder or double, requests
refused with 429 and 5xx, tokens that ended or were revoked, a quota that is full, bodies that are torn, cut and slow. A
switch without a test here fails `test_every_switch_is_tried`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from clouds_kit import CLOUDS, Cloud, each_cloud
from servers.standin import Standin, Switches, linked

from metasync.backends.api import Backend
from metasync.backends.registry import LINKED, open_backend, parse_url
from metasync.errors import BackendError, FullError, RefusedError, UnreachableError

DATA = bytes(range(256)) * 8
TRIED: set[str] = {"only"}  # a filter of the others


def tries(*switches: str) -> Callable[[Any], Any]:
    """Says which switches a test is about, and runs it for each provider."""
    TRIED.update(switches)
    return each_cloud


@pytest.fixture
def cloud(request: pytest.FixtureRequest) -> Cloud:
    found: Cloud = request.param
    return found


@pytest.fixture
def standin(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Standin]:
    with linked(cloud.make(), monkeypatch, tmp_path / "config") as made:
        yield made


@pytest.fixture
def opened(cloud: Cloud, standin: Standin) -> Iterator[Callable[[], Backend]]:
    with contextlib.ExitStack() as stack:

        def one() -> Backend:
            backend = open_backend(parse_url(f"{cloud.name}:/notes"), create_root=True)
            stack.callback(backend.close)
            return backend

        yield one


@pytest.fixture
def filled(opened: Callable[[], Backend], standin: Standin) -> Backend:
    """With three objects, of which `d/a` is known by its id where there are ids."""
    backend = opened()
    for name in ("a", "b", "c"):
        backend.put(f"d/{name}", DATA)
    standin.take_log()
    return backend


def names(backend: Backend) -> list[str]:
    return [entry.name for entry in backend.list("d")]


def got(backend: Backend, path: str = "d/a") -> bytes:
    return backend.get(path, max_bytes=1 << 20)


def after_a_hang_up(backend: Backend, call: Callable[[], Any]) -> Any:
    """What a call says, once the stand-in has closed the connections that it broke."""
    for _ in range(3):
        with contextlib.suppress(UnreachableError):
            return call()
    return call()


CALLS: dict[str, Callable[[Any], object]] = {
    "create": lambda b: b.create("d/new", DATA),
    "put": lambda b: b.put("d/new", DATA[::-1]),
    "get": got,
    "get part": lambda b: b.get("d/a", offset=1, length=1, max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "digest": lambda b: b.digest("d/a"),
    "list": names,
    "inventory": lambda b: b.inventory("d", ""),
    "delete": lambda b: b.delete("d/a"),
    "space": lambda b: b.space(),
}
POWERS: dict[str, Callable[[Any], object]] = {
    "watch": lambda b: b.watch("d", "", 30),
    "sweep": lambda b: b.sweep("d"),
}


def tries_with_each_call(*switches: str) -> Callable[[Any], Any]:
    """The same for each call that a provider has."""
    TRIED.update(switches)
    cases = [
        pytest.param(cloud, call, id=f"{cloud.name}-{name}")
        for cloud in CLOUDS
        for name, call in {**CALLS, **{power: POWERS[power] for power in cloud.powers}}.items()
    ]
    return pytest.mark.parametrize(("cloud", "call"), cases)


@pytest.mark.few
@tries_with_each_call("refused")
@pytest.mark.parametrize(
    ("status", "said", "after_s"), [(429, "7", 7.0), (429, None, 1.0), (503, "9", 9.0), (500, None, None)]
)
def test_refused(
    filled: Backend, standin: Standin, call: Callable[[Backend], object], status: int, said: str | None, after_s: Any
) -> None:
    """Nothing is tried twice here: the wrappers wait as long as the server says, all calls together."""
    standin.switches.refused = [(status, said)]
    with pytest.raises(BackendError) as caught:
        call(filled)
    assert type(caught.value) is BackendError
    assert caught.value.retryable
    assert caught.value.retry_after_s == after_s
    assert len(standin.take_log()) == 1
    assert [got(filled, f"d/{name}") for name in "abc"] == [DATA] * 3


@tries("lost")
def test_lost_after_it_took_effect(cloud: Cloud, filled: Backend, standin: Standin) -> None:
    """Who asks again is told the truth: the object is there, with these bytes, once."""
    standin.switches.lost = 1
    with contextlib.suppress(UnreachableError):
        filled.put("d/x", b"put")
    standin.switches.lost = 0
    after_a_hang_up(filled, lambda: filled.put("d/x", b"put"))
    assert got(filled, "d/x") == b"put"
    standin.switches.lost = 1
    with contextlib.suppress(UnreachableError):
        filled.create("d/y", b"first")
    standin.switches.lost = 0
    after_a_hang_up(filled, lambda: filled.create("d/y", b"second"))
    assert got(filled, "d/y") in (b"first", b"second")
    assert names(filled) == ["a", "b", "c", "x", "y"]


@pytest.mark.few(15)
@tries_with_each_call("dropped")
def test_not_heard_at_all(filled: Backend, standin: Standin, call: Callable[[Backend], object]) -> None:
    standin.switches.dropped = 1
    with pytest.raises(UnreachableError):
        call(filled)
    assert after_a_hang_up(filled, lambda: names(filled)) == ["a", "b", "c"]
    assert got(filled) == DATA


@pytest.mark.few(15)
@tries_with_each_call("lost")
def test_an_answer_that_is_lost(filled: Backend, standin: Standin, call: Callable[[Backend], object]) -> None:
    standin.switches.lost = 1
    with pytest.raises(UnreachableError):
        call(filled)


@pytest.mark.few(15)
@tries_with_each_call("truncated")
def test_an_answer_that_is_half(filled: Backend, standin: Standin, call: Callable[[Backend], object]) -> None:
    standin.switches.truncated = 2  # where the first answer has no body, the second one is cut
    with contextlib.suppress(UnreachableError):
        call(filled)
        assert not any(exchange.answer_bytes for exchange in standin.take_log()), "there was nothing to cut"


@tries("truncated", "torn")
@pytest.mark.parametrize("switch", ["truncated", "torn"])
def test_bodies_that_are_cut(filled: Backend, standin: Standin, switch: str) -> None:
    """Less than was sent is an error; or the beginning, where the head lies about the length. Never other bytes."""
    for most in (1, 2):  # some providers answer a get with an address first, and without a body
        setattr(standin.switches, switch, most)
        with contextlib.suppress(BackendError):
            read = got(filled)
            assert DATA.startswith(read) if switch == "torn" else read == DATA
        setattr(standin.switches, switch, 0)
        assert after_a_hang_up(filled, lambda: got(filled)) == DATA
        setattr(standin.switches, switch, most)
        with contextlib.suppress(BackendError):
            assert names(filled) == ["a", "b", "c"]
        setattr(standin.switches, switch, 0)
        assert after_a_hang_up(filled, lambda: names(filled)) == ["a", "b", "c"]


@pytest.mark.few(1)
@tries("drip_s", "latency_s")
def test_slow_bodies_and_answers(filled: Backend, standin: Standin) -> None:
    standin.switches.drip_s = 1e-6
    standin.switches.latency_s = 1e-3
    assert got(filled) == DATA
    assert names(filled) == ["a", "b", "c"]


@tries("between")
def test_two_that_create_at_once(
    cloud: Cloud, filled: Backend, opened: Callable[[], Backend], standin: Standin
) -> None:
    """Another device writes between the provider's check and its write. All read the same afterwards.

    Dropbox and OneDrive let both win here, as they would without their locks: a probe finds that out, and they do not
    vote so (`contract`). Box says that one was first, and so does our own code at Google Drive.
    """
    other, wins, met = opened(), [], []

    def between() -> None:
        standin.switches.between = None
        met.append(1)
        wins.append(other.create("d/new", b"other"))

    standin.switches.between = between
    mine = filled.create("d/new", b"mine")
    assert met, "the stand-in has such a moment"
    standin.switches.between = None
    read = {got(filled, "d/new"), got(other, "d/new")}
    assert len(read) == 1, "all devices read the same"
    if cloud.name in ("box", "gdrive"):
        assert [mine, *wins].count(True) == 1


@tries("stale")
def test_stale_lists(filled: Backend, standin: Any) -> None:
    """What this device wrote it reads, whatever lists show."""
    standin.freeze()
    filled.put("d/late", DATA)
    assert "late" not in names(filled)
    assert got(filled, "d/late") == DATA
    assert filled.stat("d/late") == len(DATA)
    standin.switches.stale = False
    assert names(filled) == ["a", "b", "c", "late"]


@tries("hidden")
def test_hidden_entries(filled: Backend, standin: Standin) -> None:
    standin.switches.hidden = {"a", "d,a", "d/a"}
    assert names(filled) == ["b", "c"]
    assert got(filled) == DATA, "a list is no proof that something is gone"


@tries("reordered", "doubled")
@pytest.mark.parametrize("switch", ["reordered", "doubled"])
def test_lists_in_another_order_or_with_names_twice(filled: Backend, standin: Standin, switch: str) -> None:
    setattr(standin.switches, switch, True)
    assert names(filled) == ["a", "b", "c"]


@tries("full")
def test_a_full_account(filled: Backend, standin: Standin) -> None:
    standin.switches.full = True
    for write in (filled.put, filled.create):
        with pytest.raises(FullError) as caught:
            write("d/more", DATA)
        assert caught.value.next_step
    filled.delete("d/b")
    assert got(filled) == DATA
    standin.switches.full = False
    filled.put("d/more", DATA)


@pytest.mark.few(22)
@tries_with_each_call("ended", "revoked")
@pytest.mark.parametrize("how", ["ended", "revoked"])
def test_a_token_whose_time_is_over_is_renewed_once(
    filled: Backend, standin: Standin, call: Callable[[Backend], object], how: str
) -> None:
    getattr(standin.switches, how).add(standin.token)
    call(filled)
    assert standin.renewals == 1


@pytest.mark.few(15)
@tries_with_each_call("revoked")
def test_a_login_that_was_revoked(
    cloud: Cloud, filled: Backend, standin: Standin, call: Callable[[Backend], object]
) -> None:
    standin.switches.revoked |= {standin.token, standin.refresh}
    with pytest.raises(RefusedError) as caught:
        call(filled)
    assert f"metasync auth {cloud.name}" in caught.value.next_step
    assert standin.refresh not in f"{caught.value} {caught.value!r}"


def test_every_switch_is_tried() -> None:
    assert {field.name for field in fields(Switches)} == TRIED


def test_every_cloud_is_tried() -> None:
    assert {cloud.name for cloud in CLOUDS} == set(LINKED)
