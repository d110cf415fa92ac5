"""The WebDAV backend on real servers: the contract, and what it says when server, folder or login are not right."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import object_calls
import pytest
import webdav
from contract_kit import FULL, SMALL, passes
from http_kit import make_certificate
from object_calls import expect_outage, open_url

from metasync.backends.api import Backend
from metasync.backends.registry import open_backend, parse_url
from metasync.backends.webdav import folder as _webdav_folder
from metasync.errors import BackendError, NotFoundError, RefusedError, UnreachableError
from metasync.testing.contract import CHECKS, QUICK, Check, Store, check_id, run, scratch_name
from metasync.testing.verdict import BY_BLOCKS, NEEDS_ATOMIC_CREATE

pytestmark = pytest.mark.servers

SCALE = {
    "apache": replace(FULL, kills=3, big_again=3, versions=40),
    "wsgidav": replace(SMALL, listed_names=400, big_bytes=8 << 20, versions=40),  # 1 to 3 ms of its CPU for a request
}
RACES = {"race", "big-race", "lost-reply"}
"""What these servers break, and why they vote in block form: several creates of one name may win.

The writer of `lost-reply` is killed; the server may be at work on its create still, and the second one races it.
"""

CALLS: dict[str, Callable[[Backend], object]] = {**object_calls.CALLS, "space": lambda b: b.space()}


@pytest.mark.parametrize("check", [c for c in CHECKS if c.name not in RACES], ids=check_id)
def test_contract(dav_server: webdav.DavServer, check: Check) -> None:
    """All that holding data needs, all that voting in block form needs, and create as long as nobody races."""
    assert set(NEEDS_ATOMIC_CREATE) >= RACES
    url = dav_server.url("some/place")
    passes(check, Store.at(url), SCALE[dav_server.kind], f"contract-{secrets.token_hex(4)}")


def test_a_run_of_the_kit(dav_server: webdav.DavServer) -> None:
    url = dav_server.url("run")
    report = run(Store.at(url), scratch_name(), scale=replace(QUICK, kills=1, race_names=60))
    assert (report.verdict, report.reasons) == ("may vote", (BY_BLOCKS,)), [
        outcome for outcome in report.checks if outcome.result == "failed"
    ]
    failed = {outcome.name for outcome in report.checks if outcome.result == "failed"}
    assert failed <= RACES
    assert report.left_behind == 0
    assert list((dav_server.store / "run").iterdir()) == []


def test_several_creates_of_one_name_show_no_part(dav_server: webdav.DavServer) -> None:
    """More than one may be told that it won; whoever reads sees all of one of them."""
    url = dav_server.url("raced")
    bodies = [bytes([65 + writer]) * (200_000 + writer) for writer in range(4)]
    writers = [open_url(url) for _ in bodies]
    reader = open_url(url)
    with ThreadPoolExecutor(8) as pool:
        for number in range(8):
            path = f"name-{number}"
            together = threading.Barrier(5)

            def create(writer: int, path: str = path, together: threading.Barrier = together) -> bool | None:
                together.wait()
                try:
                    return writers[writer].create(path, bodies[writer])
                except BackendError:
                    return None

            over = threading.Event()

            def look(path: str = path, together: threading.Barrier = together, over: threading.Event = over) -> int:
                together.wait()
                seen, is_last = 0, False
                while not is_last and seen < 4:
                    is_last = over.is_set()
                    try:
                        data = reader.get(path, max_bytes=300_000)
                    except BackendError:  # not there, or out of order beside the writers: no answer is no wrong one
                        continue
                    assert data in bodies
                    seen += 1
                return seen

            looking = pool.submit(look)
            outcomes = list(pool.map(create, range(len(bodies))))
            over.set()
            assert looking.result() or None in outcomes
            if True in outcomes:
                assert reader.get(path, max_bytes=300_000) in bodies


def test_names_written_once_are_never_torn_or_stale(dav_server: webdav.DavServer) -> None:
    """What block form rests on: eight writers, each with names of its own, and readers who try the next names."""
    url = dav_server.url("blocks")
    rounds, bodies = 25, {}
    for writer in range(8):
        for number in range(rounds):
            bodies[f"w{writer}/{number}"] = f"{writer} {number} ".encode() * (300 + 17 * number)
    confirmed: set[str] = set()
    faults: list[str] = []
    over = threading.Event()
    counts: Counter[str] = Counter()

    def write(writer: int) -> None:
        b = open_url(url)
        for number in range(rounds):
            path = f"w{writer}/{number}"
            b.put(path, bodies[path])
            confirmed.add(path)

    def read(shift: int) -> None:
        b = open_url(url)
        at = dict.fromkeys(range(8), 0)
        while not over.is_set() or any(number < rounds for number in at.values()):
            for writer in [(shift + n) % 8 for n in range(8)]:
                path = f"w{writer}/{at[writer]}"
                if at[writer] == rounds:
                    continue
                due = path in confirmed
                try:
                    data = b.get(path, max_bytes=100_000)
                except NotFoundError:
                    counts["absent"] += 1
                    if due:
                        faults.append(f"{path}: absent after its write was confirmed")
                        return
                    continue
                counts["read"] += 1
                if data != bodies[path]:
                    faults.append(f"{path}: {len(data)} of {len(bodies[path])} bytes")
                    return
                at[writer] += 1

    readers = [threading.Thread(target=read, args=(shift,)) for shift in (0, 3)]
    for thread in readers:
        thread.start()
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(write, writer) for writer in range(8)]:
            done.result()
    over.set()
    for thread in readers:
        thread.join()
    assert faults == []
    assert counts["read"] == 2 * 8 * rounds


def test_a_put_is_seen_whole(dav_server: webdav.DavServer) -> None:
    """One writer replaces an object, of another size each time; two who know it read all the while."""
    url = dav_server.url("torn")
    versions = {bytes([65 + n % 26]) * (30_000 + 101 * n): n for n in range(60)}
    in_order = sorted(versions, key=versions.__getitem__)
    open_url(url).put("a", in_order[0])
    over = threading.Event()
    seen: list[int] = []
    faults: list[str] = []

    def read() -> None:
        b = open_url(url)
        assert b.get("a", max_bytes=100_000) in versions
        while not over.is_set():
            try:
                data = b.get("a", max_bytes=100_000)
            except NotFoundError:
                faults.append("absent")
                continue
            except BackendError:  # it changes all the time: no answer is no wrong one
                continue
            if data not in versions:
                faults.append(f"{len(data)} bytes that were never put")
            seen.append(1)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    writer = open_url(url)
    for _ in range(4):
        for data in in_order:
            writer.put("a", data)
            time.sleep(0.005)
    over.set()
    for thread in readers:
        thread.join()
    assert faults == []
    assert len(seen) > 20
    assert open_url(url).get("a", max_bytes=100_000) == in_order[-1]


def test_servers_are_independent(dav_servers: Callable[[webdav.Kind, int], list[webdav.DavServer]]) -> None:
    servers = [*dav_servers("apache", 1), *dav_servers("wsgidav", 2)]
    backends = [open_url(server.url("independent")) for server in servers]
    for number, backend in enumerate(backends):
        backend.put("same", b"%d" % number)
    assert [backend.get("same", max_bytes=1) for backend in backends] == [b"0", b"1", b"2"]
    assert len({backend.identity()[:16] for backend in backends}) == 3


def test_folders_with_odd_names(dav_server: webdav.DavServer) -> None:
    url = dav_server.url("grün & 100% (neu)+#'ü")
    url = url.replace("%", "%25").replace("#", "%23")
    backend = open_url(url)
    backend.put("d/a", b"1")
    assert [entry.name for entry in backend.list("")] == ["d"]
    assert backend.list("d")[0].size == 1
    assert (dav_server.store / "grün & 100% (neu)+#'ü" / "d" / "a").read_bytes() == b"1"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_folder_that_is_not_there_is_never_an_empty_one(dav_server: webdav.DavServer, call: Callable) -> None:
    with pytest.raises(UnreachableError, match="no such folder"):
        call(open_url(dav_server.url("gone").removesuffix("gone") + "missing/folder"))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_folder_that_was_removed(
    dav_server: webdav.DavServer, monkeypatch: pytest.MonkeyPatch, call: Callable
) -> None:
    monkeypatch.setattr(_webdav_folder, "ROOT_SEEN_S", 0.0)
    name = f"removed-{secrets.token_hex(4)}"
    backend = open_url(dav_server.url(name))
    backend.put("d/a", b"1")
    shutil.rmtree(dav_server.store / name)
    with pytest.raises(UnreachableError, match="no such folder"):
        call(backend)


def test_a_folder_is_made_where_init_asks_for_it(dav_server: webdav.DavServer) -> None:
    url = f"{dav_server.url()}/made-{secrets.token_hex(4)}/deep/er"
    backend = open_backend(parse_url(url), create_root=True)
    backend.put("a", b"1")
    backend.close()
    assert open_url(url).get("a", max_bytes=1) == b"1"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("wrong", ["METASYNC_WEBDAV_USER", "METASYNC_WEBDAV_PASSWORD"])
def test_a_wrong_login(
    dav_server: webdav.DavServer, monkeypatch: pytest.MonkeyPatch, call: Callable, wrong: str
) -> None:
    monkeypatch.setenv(wrong, "hunter2")
    backend = open_url(dav_server.url("x"))
    with pytest.raises(RefusedError, match="refused the login") as caught:
        call(backend)
    said = f"{caught.value!r}{backend!r}{caught.value}".replace(
        "'hunter2'", "" if wrong.endswith("USER") else "'hunter2'"
    )
    assert "hunter2" not in said
    assert dav_server.env["METASYNC_WEBDAV_PASSWORD"] not in said


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_no_login(dav_server: webdav.DavServer, monkeypatch: pytest.MonkeyPatch, call: Callable) -> None:
    monkeypatch.delenv("METASYNC_WEBDAV_PASSWORD")
    with pytest.raises(RefusedError, match="refused the login") as caught:
        call(open_url(dav_server.url("x")))
    assert "METASYNC_WEBDAV_PASSWORD" in caught.value.next_step


def test_a_folder_that_may_not_be_written(dav_server: webdav.DavServer) -> None:
    if os.geteuid() == 0 and dav_server.kind == "wsgidav":
        pytest.skip("root may write anywhere")
    folder = dav_server.store / "read-only"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o555)
    backend = open_url(f"{dav_server.url()}/read-only")
    assert backend.list("") == ()
    for call in (CALLS["create"], CALLS["put"], lambda b: b.put("a", b"1")):
        with pytest.raises(BackendError) as caught:
            call(backend)
        assert not isinstance(caught.value, UnreachableError)
    assert backend.list("") == ()


@pytest.mark.parametrize("kind", ["apache", "wsgidav"])
def test_digest(kind: webdav.Kind, dav_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = webdav.why_not(kind)
    if missing:
        pytest.skip(missing)
    with webdav.running(kind, 1, tmp_path, dav_env, digest=True) as [server]:
        url = server.url("x")
        backend = open_url(url)
        for number in range(20):
            backend.put(f"d/{number}", b"%d" % number)
        with ThreadPoolExecutor(4) as pool:
            got = list(pool.map(lambda n: backend.get(f"d/{n}", max_bytes=9), range(20)))
        assert got == [b"%d" % number for number in range(20)]
        server.stop()
        server.start()  # what the server hands out to be answered is new
        assert backend.get("d/3", max_bytes=9) == b"3"
        monkeypatch.setenv("METASYNC_WEBDAV_PASSWORD", "hunter2")
        with pytest.raises(RefusedError, match="refused the login"):
            open_url(url).list("")


@pytest.mark.parametrize("kind", ["apache", "wsgidav"])
def test_tls(kind: webdav.Kind, dav_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = webdav.why_not(kind)
    if missing:
        pytest.skip(missing)
    certificate = make_certificate(tmp_path)
    with webdav.running(kind, 1, tmp_path, dav_env, tls=certificate) as [server]:
        url = server.url("x")
        assert url.startswith("webdav://")
        with pytest.raises(UnreachableError, match="signed by itself"):
            open_url(url).list("")
        with pytest.raises(BackendError):
            open_url(url.replace("webdav://", "webdav+http://")).list("")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificate[0])
        backend = open_url(url)
        backend.put("d/a", bytes(1 << 20))
        assert backend.create("d/a", b"2") is False
        assert backend.get("d/a", offset=9, length=3, max_bytes=3) == bytes(3)


def test_a_server_that_goes_and_comes_back(own_dav_server: webdav.DavServer) -> None:
    backend = open_url(own_dav_server.url("x"))
    expect_outage(own_dav_server, backend, CALLS)
    own_dav_server.wipe()
    time.sleep(_webdav_folder.ROOT_SEEN_S)
    with pytest.raises(UnreachableError, match="no such folder"):
        backend.get("a", max_bytes=1)


def test_space(dav_servers: Callable[[webdav.Kind, int], list[webdav.DavServer]]) -> None:
    from metasync.backends.api import Space

    space = open_url(dav_servers("wsgidav", 1)[0].url("x")).space()  # type: ignore[attr-defined]
    assert 0 < space.free_bytes <= space.total_bytes
    assert open_url(dav_servers("apache", 1)[0].url("x")).space() == Space(None, None)  # type: ignore[attr-defined]


def test_the_script_for_benchmarks(tmp_path: Path) -> None:
    if webdav.why_not("wsgidav"):
        pytest.skip(webdav.why_not("wsgidav"))
    with subprocess.Popen(
        [sys.executable, webdav.__file__, "--kind", "wsgidav", "--count", "1", "--root", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        lines = [process.stdout.readline().strip() for _ in range(5)]
        assert lines[0].startswith("webdav+http://127.0.0.1:")
        assert all(line.startswith("export METASYNC_") for line in lines[1:4])
        assert lines[4] == "ready"
        process.stdin.close()
        assert process.wait(60) == 0
