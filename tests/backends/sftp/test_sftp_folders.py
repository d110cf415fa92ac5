"""Sessions that end, what a broken call leaves at an SFTP server, and folders that cannot be made there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("paramiko")

from sftp_kit import CALLS, EXTENSIONS, MKDIR, OPEN, REMOVE, STAT, WRITE, Answer, Opened, Script, sound, status

from metasync.backends.registry import open_backend, parse_url
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError


def test_sessions_that_the_server_ends(script: Script, opened: Opened) -> None:
    """Some do so after a while of silence: the connection stays, and no call fails."""
    backend = opened(script)
    threads = [threading.Thread(target=backend.list, args=("",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lent = list(backend._line._connection.idle)  # type: ignore[attr-defined]
    script.hang_up()
    until = time.monotonic() + 60
    while any(session.is_open() for session in lent) and time.monotonic() < until:
        time.sleep(0.01)
    for call in CALLS.values():
        with contextlib.suppress(NotFoundError, RefusedError):
            call(backend)
    assert script.connections == 1


def test_calls_that_are_under_way_when_it_is_closed(script: Script, opened: Opened) -> None:
    """Also those that wait for a session."""
    backend = opened(script)
    asked, over = threading.Semaphore(0), threading.Event()

    def waits(kind: int, body: bytes) -> Answer:
        if kind == STAT:
            asked.release()
            over.wait(60)
        return sound(kind, body)

    script.answer = waits
    ended: list[BaseException] = []

    def call() -> None:
        try:
            backend.stat("d/a")
        except BaseException as error:
            ended.append(error)

    threads = [threading.Thread(target=call) for _ in range(12)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        assert asked.acquire(timeout=60)
    backend.close()
    over.set()
    for thread in threads:
        thread.join(60)
    assert [type(error) for error in ended] == [UnreachableError] * 12, ended


def test_a_process_that_was_forked(script: Script) -> None:
    """It says so, and disturbs nothing: the socket is the one that the first process goes on with."""
    program = (
        "import os, sys\n"
        "from metasync.backends.registry import open_backend, parse_url\n"
        "from metasync.errors import RefusedError\n"
        "backend = open_backend(parse_url(sys.argv[1]))\n"
        "backend.list('')\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try:\n"
        "        backend.list('')\n"
        "    except RefusedError as error:\n"
        "        backend.close()\n"
        "        os._exit('was forked' not in error.message)\n"
        "    os._exit(2)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "backend.list('')\n"
        "backend.close()\n"
    )
    subprocess.run([sys.executable, "-c", program, script.url()], check=True, timeout=60, env=os.environ)
    assert script.connections == 1


@pytest.mark.parametrize("call", ["create", "put"])
def test_what_a_broken_write_left_is_removed(script: Script, opened: Opened, call: str) -> None:
    backend = opened(script)
    temps: list[bytes] = []

    def breaks(kind: int, body: bytes) -> Answer:
        if kind == OPEN:
            temps.append(body[4:-8])
        return None if kind == WRITE else sound(kind, body)

    script.answer = breaks
    with pytest.raises(UnreachableError):
        CALLS[call](backend)
    removed: list[bytes] = []

    def notes(kind: int, body: bytes) -> Answer:
        if kind == REMOVE:
            removed.append(body[4:])
        return sound(kind, body)

    script.answer = notes
    backend.list("")
    backend.list("")
    assert removed == temps
    assert len(temps) == 1


def test_nothing_is_left_at_a_server_without_links(script: Script, opened: Opened) -> None:
    backend = opened(script)
    script.drop()
    script.extensions = EXTENSIONS[1:]
    with contextlib.suppress(UnreachableError):
        backend.list("")
    script.asked.clear()
    with pytest.raises(UnreachableError, match="does not offer any more"):
        backend.create("d/new", b"x")
    backend.list("")
    assert script.asked.count(str(REMOVE)) == script.asked.count(str(OPEN)) == 1


# Folders that cannot be made.


@pytest.mark.parametrize(
    ("code", "expected", "said"),
    [
        (3, RefusedError, "permission denied"),
        (14, FullError, "no space"),
        (4, BackendError, "'failure' and no more"),
        (2, BackendError, "'no such file' and no more"),
    ],
)
@pytest.mark.parametrize("call", ["create", "put"])
def test_a_new_folder_that_cannot_be_made(
    script: Script, opened: Opened, call: str, code: int, expected: type[BackendError], said: str
) -> None:
    backend = opened(script)

    def reply(kind: int, body: bytes) -> Answer:
        if kind == MKDIR:
            return status(code)
        return status(2) if kind == OPEN else sound(kind, body)

    script.answer = reply
    with pytest.raises(expected, match=said) as caught:
        CALLS[call](backend)
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ({}, "is not there"),
        ({b"/store": 3}, "cannot make /store/deep at 127.0.0.1: permission denied"),
        ({b"/store": 4, b"/store/deep": 3}, "cannot make /store/deep at 127.0.0.1: permission denied"),
        ({b"/store": 4, b"/store/deep": 2}, "there is a file, or a link that leads nowhere"),
        ({b"/store": 4, b"/store/deep": 4}, "cannot make /store/deep at 127.0.0.1: failure"),
    ],
)
def test_a_root_that_cannot_be_made(script: Script, codes: dict[bytes, int], said: str) -> None:
    def reply(kind: int, body: bytes) -> Answer:
        if kind == MKDIR:
            return status(codes.get(body[4:-4], 0))
        return status(2) if kind == STAT else sound(kind, body)

    script.answer = reply
    with pytest.raises(BackendError, match=said) as caught:
        open_backend(parse_url(script.url("/store/deep")), create_root=bool(codes))
    assert caught.value.next_step


@pytest.mark.parametrize("path", ["/~/my/docs", "/~//my/docs", "/~/./my/docs/"])
def test_below_the_home(script: Script, path: str) -> None:
    """However many slashes: never a path from the root."""
    asked: list[bytes] = []

    def reply(kind: int, body: bytes) -> Answer:
        if kind == STAT:
            asked.append(body[4:])
            return status(2)
        return sound(kind, body)

    script.answer = reply
    with pytest.raises(UnreachableError, match=r"the folder ~/(\./)?my/docs at 127\.0\.0\.1 is not there"):
        open_backend(parse_url(script.url(path)))
    assert not asked[0].startswith(b"/")
