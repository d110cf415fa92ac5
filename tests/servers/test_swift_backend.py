"""The Swift backend on a real cluster: the contract, and what it says when something is not right."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import object_calls
import pytest
import swift_server
from contract_kit import FULL, SMALL, passes
from object_calls import expect_outage, expect_prefixes_apart

from metasync.backends import swift as swift_module
from metasync.backends.api import Backend, Space, TellsSpace
from metasync.backends.registry import open_backend, parse_url
from metasync.backends.swift import SwiftBackend
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError
from metasync.testing.contract import CHECKS, Check, Store, check_id, run, scratch_name
from metasync.testing.verdict import BY_BLOCKS, NEEDS_ATOMIC_CREATE

pytestmark = pytest.mark.servers

CALLS: dict[str, Callable[[SwiftBackend], object]] = {
    **object_calls.CALLS,
    "digest": lambda b: b.digest("d/a"),
    "space": lambda b: b.space(),
}
BIG = 1 << 24
# While an object is replaced, one read in some hundred is answered with 503. Only who repeats it gets through.
WAITING = replace(SMALL, waits_s=(0.05, 0.2, 0.5))

# Checks that a prefix makes no difference to.
ON_NAMES_ALIKE = {*NEEDS_ATOMIC_CREATE, "interrupted-create", "interrupted-put", "threads", "fresh-create", "fresh-put"}


def _open(url: str) -> SwiftBackend:
    backend = open_backend(parse_url(url))
    assert isinstance(backend, SwiftBackend)
    return backend


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
def test_contract(swift: swift_server.SwiftServer, check: Check) -> None:
    """What needs an atomic create may fail: block form does without. (A race for 1,000 names takes 45 s.)"""
    scale = WAITING if check.name == "race" else FULL
    try:
        passes(check, Store.at(swift.url()), scale, f"contract-{secrets.token_hex(4)}")
    except AssertionError as error:
        if check.name not in NEEDS_ATOMIC_CREATE:
            raise
        pytest.xfail(f"as known of Swift: {error}")


@pytest.mark.parametrize("check", [c for c in CHECKS if c.name not in ON_NAMES_ALIKE], ids=check_id)
def test_contract_below_a_prefix(swift: swift_server.SwiftServer, check: Check) -> None:
    passes(check, Store.at(swift.url("some/prefix")), WAITING, f"contract-{secrets.token_hex(4)}")


def test_a_run_of_the_kit(swift: swift_server.SwiftServer) -> None:
    report = run(Store.at(swift.url("run")), scratch_name(), scale=replace(WAITING, kills=1, race_names=24))
    assert (report.verdict, report.reasons) == ("may vote", (BY_BLOCKS,))
    bad = {outcome.name for outcome in report.checks if outcome.result in ("failed", "skipped")}
    assert bad <= {*NEEDS_ATOMIC_CREATE, "watch"}, bad
    assert report.left_behind == 0
    assert _open(swift.url("run")).list("") == ()


def test_names_are_refused_before_any_request() -> None:
    nobody = SwiftBackend("c", "", swift_module.Login("token", secret="x", storage_url="http://127.0.0.1:9/v1/a"), {})
    for path in ("../a", "A", "a//b", ".tmp-1"):
        for call in (
            lambda path=path: nobody.create(path, b""),
            lambda path=path: nobody.put(path, b""),
            lambda path=path: nobody.get(path, max_bytes=1),
            lambda path=path: nobody.stat(path),
            lambda path=path: nobody.digest(path),
            lambda path=path: nobody.list(path),
            lambda path=path: nobody.delete(path),
        ):
            with pytest.raises(ValueError, match="not a path"):
                call()


def test_prefixes_are_apart(swift: swift_server.SwiftServer) -> None:
    expect_prefixes_apart(swift.url)


def test_a_list_of_several_pages(swift: swift_server.SwiftServer, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = _open(swift.url("pages"))
    for name in ("a", "b/1", "b/2", "b/3", "b-", "c/d/e", "c/f", "g"):
        backend.put(name, b"12")
    whole = backend.list("")
    assert [(e.name, e.size) for e in whole] == [("a", 2), ("b", None), ("b-", 2), ("c", None), ("g", 2)]
    for names in (1, 2, 3):
        monkeypatch.setattr(swift_module, "_PAGE_NAMES", names)
        assert backend.list("") == whole
        assert [e.name for e in backend.list("b")] == ["1", "2", "3"]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_container_that_is_not_there_is_never_an_empty_one(swift: swift_server.SwiftServer, call: Callable) -> None:
    with pytest.raises(UnreachableError, match="no container 'missing'"):
        call(_open(swift.url("x", container="missing")))


def test_no_verdict_without_a_container_or_a_key(
    swift: swift_server.SwiftServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnreachableError, match="no container"):
        run(Store.at(swift.url("x", container="missing")), scratch_name())
    monkeypatch.setenv("ST_KEY", "hunter2hunter2")
    with pytest.raises(RefusedError, match="refused the credentials"):
        run(Store.at(swift.url("x")), scratch_name())


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_container_that_was_deleted(
    swift: swift_server.SwiftServer, monkeypatch: pytest.MonkeyPatch, call: Callable
) -> None:
    monkeypatch.setattr(swift_module, "_SEEN_S", 0.0)
    name = f"deleted-{secrets.token_hex(4)}"
    swift.make_container(name)
    backend = _open(swift.url("x", container=name))
    backend.put("d/a", b"1")
    swift.remove_container(name)
    with pytest.raises(UnreachableError, match="no container"):
        call(backend)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("wrong", ["ST_USER", "ST_KEY"])
def test_a_wrong_key(
    swift: swift_server.SwiftServer, monkeypatch: pytest.MonkeyPatch, call: Callable, wrong: str
) -> None:
    monkeypatch.setenv(wrong, "hunter2:hunter2")
    backend = _open(swift.url("x"))
    with pytest.raises(RefusedError, match="ST_USER and ST_KEY") as caught:
        call(backend)
    said = f"{caught.value}{caught.value!r}{backend!r}{backend._tokens.login!r}"
    assert os.environ["ST_KEY"] not in said.replace("hunter2:hunter2'", "") or wrong == "ST_USER"
    assert swift.keys["ST_KEY"] not in said


def test_a_token_that_somebody_else_got(swift: swift_server.SwiftServer, monkeypatch: pytest.MonkeyPatch) -> None:
    login = {"X-Auth-User": swift.keys["ST_USER"], "X-Auth-Key": swift.keys["ST_KEY"]}
    request = urllib.request.Request(swift.env["ST_AUTH"], headers=login)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = answer.headers
    for name in ("ST_USER", "ST_KEY", "ST_AUTH"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("OS_STORAGE_URL", found["X-Storage-Url"])
    monkeypatch.setenv("OS_AUTH_TOKEN", found["X-Auth-Token"])
    backend = _open("swift://metasync/token")
    backend.put("a", b"1")
    assert backend.get("a", max_bytes=1) == b"1"
    monkeypatch.setenv("OS_AUTH_TOKEN", "AUTH_tkhunter2")
    for call in CALLS.values():
        with pytest.raises(RefusedError, match="OS_AUTH_TOKEN") as caught:
            call(_open("swift://metasync/token"))
        assert "hunter2" not in str(caught.value)


def test_who_may_only_read(swift: swift_server.SwiftServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of another account, whom the container's owner lets read."""
    name = f"shared-{secrets.token_hex(4)}"
    swift.make_container(name, X_Container_Read=swift_server.GUEST)
    owner = _open(swift.url("x", container=name))
    owner.put("a", b"1")
    storage = owner._tokens.current().storage_url
    for variable, value in {"ST_USER": swift_server.GUEST, "ST_KEY": swift.guest_key}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("OS_STORAGE_URL", storage)
    guest = _open(swift.url("x", container=name))
    assert guest.get("a", max_bytes=1) == b"1"
    assert guest.space() == Space(None, None)
    for call in (lambda: guest.put("a", b"2"), lambda: guest.create("b", b"2"), lambda: guest.delete("a")):
        with pytest.raises(RefusedError, match="403"):
            call()


def test_quotas(swift: swift_server.SwiftServer) -> None:
    name = f"quota-{secrets.token_hex(4)}"
    swift.make_container(name, X_Container_Meta_Quota_Bytes=str(1 << 20))
    backend = _open(swift.url("x", container=name))
    assert isinstance(backend, TellsSpace)
    assert backend.space() == Space(1 << 20, 1 << 20)
    for _ in range(5):  # a server that refuses a large body closes the connection under it
        for data in (bytes((1 << 20) + 1), bytes(BIG)):
            with pytest.raises(FullError, match="no space or quota"):
                backend.put("b", data)
            with pytest.raises(FullError, match="no space or quota"):
                backend.create("b", data)
    backend.put("fits", bytes(1 << 19))
    _until(lambda: backend.space() == Space(1 << 19, 1 << 20))
    assert backend.get("fits", max_bytes=1 << 20) == bytes(1 << 19), "reading goes on"
    swift.post("", X_Account_Meta_Quota_Bytes="1000")
    try:
        with pytest.raises(FullError):
            backend.put("c", bytes(1001))
        assert backend.space() == Space(1000, 1000), "the tighter of the two"
    finally:
        swift.post("", X_Remove_Account_Meta_Quota_Bytes="x")


def _until(done: Callable[[], object]) -> None:
    """Counters come late."""
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_server_that_goes_and_comes_back(own_swift: swift_server.SwiftServer) -> None:
    """Its tokens are worth nothing when it comes back: the first call gets a new one."""
    backend = _open(own_swift.url("x"))
    assert backend.create("d/a", b"12") is True
    assert backend.create("d/b", bytes(BIG)) is True
    expect_outage(own_swift, backend, CALLS)
    assert backend.get("d/a", max_bytes=2) == b"12"
    own_swift.stop_one("memcached")
    own_swift.start_one("memcached")
    assert backend.create("d/b", bytes(BIG)) is False
    assert backend.list("d")[0] == ("a", 2)


def test_copies_that_are_away(own_swift: swift_server.SwiftServer) -> None:
    """Three copies. What was confirmed is seen while any two are there, and is never said to be absent."""
    backend = _open(own_swift.url("x"))
    own_swift.stop_one("object-server-0")
    backend.put("a", b"1")  # on the second and the third
    own_swift.start_one("object-server-0")
    own_swift.stop_one("object-server-1")
    for _ in range(10):
        assert backend.get("a", max_bytes=1) == b"1"
        assert backend.stat("a") == 1
        with pytest.raises(NotFoundError):
            backend.get("b", max_bytes=1)
    own_swift.stop_one("object-server-2")  # only the one that never had it is left
    for call in (
        lambda: backend.get("a", max_bytes=1),
        lambda: backend.stat("a"),
        lambda: backend.put("c", b"1"),
        lambda: backend.create("c", b"1"),
    ):
        for _ in range(5):
            with pytest.raises(BackendError) as caught:
                call()
            assert caught.value.retryable
            assert type(caught.value) is BackendError
    own_swift.start_one("object-server-1")
    own_swift.start_one("object-server-2")
    time.sleep(1.1)  # the proxy leaves those that failed alone for a second
    assert backend.get("a", max_bytes=1) == b"1"


def test_probe(swift: swift_server.SwiftServer) -> None:
    backend = _open(swift.url("probe"))
    assert backend.probe() == "block"
    assert backend.list("") == ()


def test_what_was_wiped_behind_our_back(own_swift: swift_server.SwiftServer) -> None:
    backend: Backend = _open(own_swift.url("x"))
    backend.put("a", b"1")
    own_swift.wipe()
    with pytest.raises(NotFoundError):
        backend.get("a", max_bytes=1)
    assert backend.list("") == ()
    backend.put("a", b"1")


def test_the_script_for_benchmarks(tmp_path: Path) -> None:
    if swift_server.find_binaries() is None:
        pytest.skip("no Swift: tests/servers/swift_server.sh fetches it")
    with subprocess.Popen(
        [sys.executable, str(Path(swift_server.__file__)), "--root", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        lines = [process.stdout.readline().strip() for _ in range(5)]
        assert lines[4] == "ready"
        env = dict(line.removeprefix("export ").split("=", 1) for line in lines[1:4])
        with pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            _open(lines[0]).put("a", b"1")
            process.stdin.close()
            assert process.wait(60) == 0
            with pytest.raises(UnreachableError), contextlib.closing(_open(lines[0])) as backend:
                backend.list("")
