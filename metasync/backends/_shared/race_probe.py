"""A look at a store on the spot: whether its creates keep the contract, and what became of one that broke off."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Final

from metasync.backends.api import Backend
from metasync.errors import BackendError, UnreachableError
from metasync.runtime.sizes import SMALL_BYTES_MAX

NAMES: Final = 4  # nginx's MOVE stood 200 races before it failed: few show what many miss (providers.md, section 1.4)
WRITERS: Final = 8


def keeps_creates(backend: Backend, *, races: bool = True) -> bool:
    """Whether a scratch object is created once and stays as it is, and, with `races`, one of eight threads gets a name.

    It can disprove, never prove, and leaves nothing behind. Errors of the contract pass through.
    """
    used: list[str] = []

    def new_name() -> str:
        used.append(f"probe-{os.urandom(12).hex()}")
        return used[-1]

    try:
        name = new_name()
        kept = backend.create(name, b"first") and not backend.create(name, b"second")
        if not kept or backend.get(name, max_bytes=64) != b"first":
            return False
        return all(_winners(backend.create, new_name()) <= 1 for _ in range(NAMES if races else 0))
    finally:
        with contextlib.suppress(BackendError):  # what is left over is 25 bytes under a name of its own
            for name in used:
                backend.delete(name)  # the first that fails is the last: one may take a minute


def create_by(put: Callable[[], bool], backend: Backend, path: str, data: bytes) -> bool:
    """What `put` says of a create. False also where its answer was lost, and the name has other bytes (`is_anothers`).

    A server may say "taken" before it has read a large body, and close: what it said is lost then.
    """
    try:
        return put()
    except UnreachableError:
        if len(data) > SMALL_BYTES_MAX and is_anothers(backend, path, data):
            return False
        raise


def is_anothers(backend: Backend, path: str, data: bytes) -> bool:
    """Whether a name holds other bytes than those of a large create that broke off.

    A server may say "taken" before the body is through, and close: 18 to 30 of 100 creates of 4 to 16 MiB over a taken
    name end in "connection reset" (versitygw 1.8). The same bytes tell nothing: this create may have put them there, or
    another caller, who got True.
    """
    try:
        size = backend.stat(path)
        return size != len(data) or backend.get(path, max_bytes=size) != data
    except BackendError:
        return False


def _winners(create: Callable[[str, bytes], bool], name: str) -> int:
    together = threading.Barrier(WRITERS)
    outcomes: list[bool] = []

    def race(writer: int) -> None:
        together.wait()
        try:
            outcomes.append(create(name, bytes([writer])))
        except BackendError:  # unknown: it counts neither for nor against the server
            return

    writers = [threading.Thread(target=race, args=(number,)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return sum(outcomes)
