"""Checks of the conformance kit in which a process is killed while it writes.

A killed client is the one lost connection that can be brought about on any store: what was under way arrives whole, or
not at all, now or a little later. How long the write takes is measured first, and the kills are spread over that time.
The system kills it, by an alarm that was set as the write began: another process would be late on a busy machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from metasync.backends.api import Backend
from metasync.errors import NotFoundError
from metasync.testing.harness import Bench, BrokenPromiseError, Check, Note, NotShownError, expect
from metasync.testing.many_callers import settle
from metasync.testing.peer import Peer, PeerError, content

_SMALL_BYTES = 512
_LAST_KILL = 0.9
_TRIES = 2  # as many kills again, all at the beginning, if every one came too late
_WHOLE = "whole"
_MANY = 1 << 20


def check_interrupted_create(bench: Bench, base: str) -> Note:
    b, size, what = bench.open(), bench.scale.middle_bytes, "an interrupted create left"
    at_once: dict[str, str | None] = {}
    versions: dict[str, dict[str, bytes]] = {}
    caught = 0
    for path, label, cut in _killed_writes(bench, f"{base}/k", "create", size):
        versions[path] = {label: content(label, size)}
        at_once[path] = _one_of(b, path, size, versions[path], what, or_absent=True)
        caught += cut
    settle()
    later = {path: _one_of(b, path, size, versions[path], what, or_absent=True) for path in versions}
    for path, first in at_once.items():
        expect(first is None or later[path] is not None, "an object that was there after an interrupted create is gone")
    _expect_clean_list(bench, b, f"{base}/k", size)
    whole = sum(label is not None for label in later.values())
    return _note(caught, len(later), f"{whole} of {len(later)} objects arrived whole")


def check_interrupted_put(bench: Bench, base: str) -> Note:
    b, size, what = bench.open(), bench.scale.middle_bytes, "an interrupted put left"
    old = content("old", size - _SMALL_BYTES)
    at_once: dict[str, str | None] = {}
    versions: dict[str, dict[str, bytes]] = {}
    caught = 0
    for path, label, cut in _killed_writes(bench, f"{base}/k", "put", size, old):
        versions[path] = {"old": old, label: content(label, size)}
        at_once[path] = _one_of(b, path, size, versions[path], what)
        caught += cut
    settle()
    later = {path: _one_of(b, path, size, versions[path], what) for path in versions}
    for path, first in at_once.items():
        expect(first == "old" or later[path] != "old", "after an interrupted put the old bytes came back")
    _expect_clean_list(bench, b, f"{base}/k", size, len(old))
    new = sum(label != "old" for label in later.values())
    return _note(caught, len(later), f"{new} of {len(later)} objects have the new bytes")


def check_lost_reply(bench: Bench, base: str) -> Note:
    """Whoever hears nothing creates once more: what that answers is true, and stays true."""
    b = bench.open()
    wanted: dict[str, bytes] = {}
    caught = won = 0
    for path, label, cut in _killed_writes(bench, f"{base}/k", "create", _SMALL_BYTES):
        mine = b.create(path, b"mine")
        wanted[path] = b"mine" if mine else content(label, _SMALL_BYTES)
        _expect_there(b, path, wanted[path], f"after a create without a reply and a second that answered {mine}")
        caught, won = caught + cut, won + mine
    settle()
    for path, data in wanted.items():
        _expect_there(b, path, data, "some time after a create without a reply and a second one")
    return _note(caught, len(wanted), f"{won} of {len(wanted)} second creates won")


def _expect_there(b: Backend, path: str, data: bytes, when: str) -> None:
    try:
        got = b.get(path, max_bytes=_MANY)
    except NotFoundError as error:
        raise BrokenPromiseError(f"{when}, nothing is there") from error
    expect(got == data, f"{when}, other bytes are there than that answer means")


def _killed_writes(
    bench: Bench, folder: str, kind: Literal["create", "put"], size: int, old: bytes | None = None
) -> Iterator[tuple[str, str, bool]]:
    """Path and label of one killed write after the other, and whether the kill came before its end.

    The kills come from before the first byte has left until shortly before the last one: at 0 to 0.9 of the time that
    a whole write takes. If none came in time, as many follow at once after the beginning. With `old` those bytes are
    there before.
    """
    try:
        peer = bench.new_peer()
    except PeerError as error:
        raise NotShownError(str(error)) from error
    kills = bench.scale.kills
    bench.note_names(f"{folder}/{name}" for name in (_WHOLE, *range(_TRIES * kills)))
    with contextlib.closing(peer):
        _begin(bench, peer, f"{folder}/{_WHOLE}", kind, "whole", size)
        answer = peer.receive()
    if "error" in answer:
        raise NotShownError(f"the other process could not write: {answer['message']}")
    b, caught = bench.open(), False
    for number in range(_TRIES * kills):
        if number >= kills and caught:
            return
        path, label = f"{folder}/{number}", f"{kind} {number}"
        if old is not None:
            b.put(path, old)
        peer = bench.new_peer()
        share = number / max(1, kills - 1) if number < kills else 0.0
        try:
            _begin(bench, peer, path, kind, label, size, die_after_s=answer["seconds"] * _LAST_KILL * share)
            cut = peer.dies()
        finally:
            peer.kill()
        caught = caught or cut
        yield path, label, cut


def _begin(
    bench: Bench, peer: Peer, path: str, kind: str, label: str, size: int, *, die_after_s: float | None = None
) -> None:
    peer.send(do="write", kind=kind, path=path, label=label, size=size, die_after_s=die_after_s)
    peer.receive()
    bench.charge(1, size)


def _one_of(
    b: Backend, path: str, size: int, versions: dict[str, bytes], what: str, *, or_absent: bool = False
) -> str | None:
    """Which of the versions is there, whole; None if nothing is and that is allowed."""
    try:
        data = b.get(path, max_bytes=size)
    except NotFoundError:
        expect(or_absent, f"{what} nothing in place of the object")
        return None
    found = next((label for label, version in versions.items() if version == data), None)
    expect(found is not None, f"{what} {len(data):,} bytes that nobody stored; whole are {size:,}")
    return found


def _expect_clean_list(bench: Bench, b: Backend, folder: str, *sizes: int) -> None:
    """A list shows only what can be read whole: no half-written object, no temporary name."""
    names = {_WHOLE, *(str(number) for number in range(_TRIES * bench.scale.kills))}
    for name, size_bytes in b.list(folder):
        expect(name in names, f"after an interrupted write a list shows {name!r}, which nobody stored")
        expect(size_bytes in sizes, f"after an interrupted write a list shows {name!r} with {size_bytes} bytes")


def _note(caught: int, kills: int, said: str) -> Note:
    text = f"{caught} of {kills} writes were killed under way; {said}"
    return Note(text, weak=not caught, figures={"kills": kills, "under_way": caught})


CHECKS = (
    Check("interrupted-create", "a create whose process is killed leaves nothing, or the whole object",
          "After an error of `create` or `put` the object may or may not exist.", "data",
          check_interrupted_create, ("create", "big")),
    Check("interrupted-put", "a put whose process is killed leaves the old bytes or the new ones, whole",
          "replacing what was there, atomically for readers", "data", check_interrupted_put, ("put", "big")),
    Check("lost-reply", "a create whose reply was lost is found by a second one, or never happens",
          "After an error of `create` or `put` the object may or may not exist.", "voting",
          check_lost_reply, ("create", "create-taken")),
)  # fmt: skip
