"""Checks of the conformance kit with many callers at once: races, readers beside writers, other connections."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from metasync.backends.api import Backend
from metasync.errors import BackendError, NotFoundError
from metasync.testing.harness import (
    Bench,
    BrokenPromiseError,
    Check,
    Note,
    absent,
    expect,
    expect_bytes,
    soon,
    together,
)
from metasync.testing.peer import PeerError, calls_of, content
from metasync.testing.race import WRITERS, Call, Judgement, Meeting, RacePlan, judge, look, meeting_file, run_writers

_T = TypeVar("_T")

_READERS = 3
_THREAD_ROUNDS = 2
_VERSION_BYTES = 1 << 16
_MANY = 1 << 20
_LOOK_S = 0.002
_PAUSES_S = (0.02, 0.05, 0.2, 0.5, 1.0)  # before a call is made again that the store asked to have made again
# At least so much of a race has to have been one: half of the names with two calls under way at once.
_MET_SHARE = 0.5
_UNKNOWN_SHARE_MAX = 0.2  # more errors than this, and the store is away or throttles: no race


def check_race(bench: Bench, base: str) -> Note:
    scale = bench.scale
    plan = RacePlan(f"{base}/race", scale.race_names, scale.race_turns, scale.race_read_every)
    calls, alone = _race(bench, plan)
    found = judge(calls, plan.names)
    who = f"{WRITERS} writers in {'one process' if alone else 'two processes'}"
    expect(not found.problems, f"of {who}: {'; '.join(found.problems)}")
    if found.unknown > _UNKNOWN_SHARE_MAX * found.calls:
        raise BackendError(f"{found.unknown:,} of {found.calls:,} racing creates ended in an error", retryable=True)
    _expect_lasting(bench, plan, found)
    bench.kept["raced"] = (plan.folder, [f"{number:05d}" for number in range(plan.names)])
    said = [f"{who} met at {found.met:,} of {plan.names:,} names"]
    if not alone:
        said[0] += f" ({found.met_across:,} across)"
    said += [f"{found.unknown:,} calls ended in an error"] if found.unknown else []
    said += [f"no second process: {alone}"] if alone else []
    figures = {"names": plan.names, "calls": found.calls, "met": found.met, "met_across": found.met_across}
    return Note("; ".join(said), weak=found.met < _MET_SHARE * plan.names, figures=figures)


def _race(bench: Bench, plan: RacePlan) -> tuple[list[Call], str]:
    """All calls of the race, and why there was no second process, if so."""
    tell = partial(_tell, bench, plan)
    try:
        peer = bench.peer()
    except PeerError as error:
        meeting = Meeting(None, plan.names)
        with contextlib.closing(meeting):
            return run_writers(plan, meeting, {writer: bench.open() for writer in range(WRITERS)}, tell), str(error)
    with meeting_file() as path, contextlib.closing(Meeting(path, plan.names, peer.alive)) as meeting:
        stores = {writer: bench.open() for writer in range(WRITERS // 2)}
        bench.note_names(plan.path(number) for number in range(plan.names))
        try:
            peer.send(
                do="race",
                folder=plan.folder,
                names=plan.names,
                turns=plan.turns,
                read_every=plan.read_every,
                meeting=path,
            )
            calls = run_writers(plan, meeting, stores, tell)
            answer = peer.receive()
        except PeerError as error:
            bench.drop_peer(gone=error)
            raise
        except BaseException:
            bench.drop_peer()
            raise
    bench.charge(*answer.get("cost", (0,)))
    if "error" in answer:
        raise BrokenPromiseError(f"in the other process: {answer['message']}")
    return calls + calls_of(answer), ""


def _tell(bench: Bench, plan: RacePlan, done: int) -> None:
    bench.tell("race", done, plan.names)


def _expect_lasting(bench: Bench, plan: RacePlan, found: Judgement) -> None:
    """What the winners stored is still there when all is quiet."""
    numbers = sorted(found.winners)
    few = numbers[:: max(1, len(numbers) // max(1, bench.scale.race_final_reads))]
    stores = [bench.open() for _ in range(WRITERS)]
    seen: list[int | None] = []
    for start in range(0, len(few), WRITERS):
        some = zip(stores, few[start : start + WRITERS], strict=False)
        seen += together(*(partial(_look_again, b, plan, number) for b, number in some))
    lost = [number for number, writer in zip(few, seen, strict=True) if writer not in (None, found.winners[number])]
    expect(not lost, f"{len(lost):,} of {len(few):,} names hold other bytes after the race than their winner's")


def _look_again(b: Backend, plan: RacePlan, number: int, _barrier: threading.Barrier) -> int | None:
    return look(b, plan.path(number), number)


def check_big_race(bench: Bench, base: str) -> Note:
    """While several create one big object, whoever can read it reads all of one."""
    size, looks = bench.scale.middle_bytes // 2, 0
    for number in range(bench.scale.middle_races):
        race = _BigRace(f"{base}/big-{number}", [content(f"big-{writer}", size) for writer in range(WRITERS // 2)])
        outcomes: list[Any] = together(
            *(partial(race.create, bench.open(), writer) for writer in range(WRITERS // 2)),
            *(partial(race.read, bench.open()) for _ in range(_READERS - 1)),
        )
        wins = [writer for writer, won in enumerate(outcomes[: WRITERS // 2]) if won]
        maybe = wins or [writer for writer, won in enumerate(outcomes[: WRITERS // 2]) if won is None]
        expect(len(wins) <= 1, f"a big object was created by {len(wins)} of {WRITERS // 2} racing writers")
        expect(bool(maybe), f"a big object was created by none of {WRITERS // 2} racing writers")
        got = bench.open().get(race.path, max_bytes=size)
        expect(got in [race.bodies[writer] for writer in maybe], "a big object holds other bytes than its winner's")
        looks += sum(outcomes[WRITERS // 2 :])
    return Note(figures={"reads_beside": looks})


class _BigRace:
    """Several creates of one big object, and readers beside them."""

    def __init__(self, path: str, bodies: list[bytes]) -> None:
        self.path = path
        self.bodies = bodies
        self._known = threading.Event()  # a create has answered: the object is there
        self._over = threading.Event()
        self._left = len(bodies)
        self._lock = threading.Lock()

    def create(self, b: Backend, writer: int, barrier: threading.Barrier) -> bool | None:
        """None: it ended in an error, and may have taken effect."""
        try:
            barrier.wait()
            won = b.create(self.path, self.bodies[writer])
            self._known.set()
        except BackendError:
            return None
        finally:
            with self._lock:
                self._left -= 1
            if not self._left:
                self._over.set()
        return won

    def read(self, b: Backend, barrier: threading.Barrier) -> int:
        """Looks until there is something, and whether it is whole. How often it looked beside the creates."""
        barrier.wait()
        looks = 0
        while True:
            known, over = self._known.is_set(), self._over.is_set()
            try:
                data = b.get(self.path, max_bytes=len(self.bodies[0]))
            except NotFoundError:
                expect(not known, "a big object was not found after a create of it had answered")
                if over:
                    return looks
            else:
                expect(
                    data in self.bodies, f"a reader saw {len(data):,} bytes of {len(self.bodies[0]):,}, or mixed ones"
                )
                return looks + (not known)
            looks += 1
            self._over.wait(_LOOK_S * looks)  # fewer and fewer: a slow store is not asked a thousand times


def check_put_whole(bench: Bench, base: str) -> Note | None:
    """In step: for each version the writer begins to put it while each reader reads twice.

    A store may say "try again" while an object is replaced, and does so more often the busier it is. That is no torn
    read; the call is made again, as for users.
    """
    path, versions = f"{base}/torn", bench.scale.versions
    readers = [bench.open() for _ in range(_READERS)]
    bench.open().put(path, _version(0))
    for reader in readers:  # how soon others see it is another check's
        expect(soon(bench, partial(_is_there, reader, path)) is not None, "what was put is not found by others")
    broken = together(
        partial(_put_versions, bench.open(), path, versions),
        *(partial(_read_versions, reader, path, versions) for reader in readers),
    )
    return Note(f"calls that the store had made again: {sum(broken)}") if any(broken) else None


def _version(number: int) -> bytes:
    return bytes([number]) * (_VERSION_BYTES - number)  # each its own length: a mixture shows in that as well


def _is_there(b: Backend, path: str) -> bool:
    return not _until_answered(partial(absent, b, path))[0]


def _put_versions(b: Backend, path: str, versions: int, barrier: threading.Barrier) -> int:
    """How many calls had to be made again."""
    broken = 0
    for number in range(1, versions):
        barrier.wait()
        broken += _until_answered(partial(b.put, path, _version(number)))[1]
    return broken


def _read_versions(b: Backend, path: str, versions: int, barrier: threading.Barrier) -> int:
    """How many calls had to be made again."""
    broken = 0
    for _ in range(1, versions):
        barrier.wait()
        for _ in range(2):
            try:
                data, tries = _until_answered(partial(b.get, path, max_bytes=_VERSION_BYTES))
            except NotFoundError as error:
                raise BrokenPromiseError("an object that is replaced was not found for a moment") from error
            whole = bool(data) and data == _version(data[0])
            expect(whole, f"a reader saw {len(data):,} bytes that are no version that was put")
            broken += tries
    return broken


def _until_answered(call: Callable[[], _T]) -> tuple[_T, int]:
    """What the call came to, and how many tries before it the store had made again. Raises what the last one did."""
    for tries, pause in enumerate(_PAUSES_S):
        try:
            return call(), tries
        except BackendError as error:
            if not error.retryable:
                raise
            time.sleep(pause)
    return call(), len(_PAUSES_S)


def check_fresh_create(bench: Bench, base: str) -> Note | None:
    """Each reader has looked before, and found nothing: a store that remembers that would hide what came since."""
    writer, reader = bench.open(), bench.open()
    far, why = _far_reader(bench)
    for number in range(bench.scale.rounds):
        path, data = f"{base}/fresh-{number}", f"fresh {number}".encode()
        expect(absent(reader, path), "a name that nobody stored can be read")
        if far:
            expect(far(path) is None, "a name that nobody stored can be read by another process")
        expect(writer.create(path, data) is True, "a create of a free name answered False")
        try:
            expect_bytes(reader.get(path, max_bytes=_MANY), data, "get by another connection, right after the create,")
        except NotFoundError as error:
            raise BrokenPromiseError("another connection did not find what was created just before") from error
        if far:
            expect(far(path) == data, "another process did not find what was created just before")
        expect(reader.create(path, b"mine") is False, "another connection could create a name taken just before")
    return Note(f"other connections only: {why}") if why else None


def check_fresh_put(bench: Bench, base: str) -> Note | None:
    """Right after a put all read the new bytes; beside one, nobody goes back from the new to the old."""
    writer, readers, path = bench.open(), [bench.open(), bench.open()], f"{base}/a"
    far, why = _far_reader(bench)
    writer.put(path, b"\0")
    for number in range(1, bench.scale.rounds):
        writer.put(path, bytes([number]))
        for reader in readers:
            seen = reader.get(path, max_bytes=1)
            expect(seen == bytes([number]), "another connection read an older version after the put had returned")
        if far:
            expect(far(path) == bytes([number]), "another process read an older version after the put had returned")
    together(
        partial(_put_numbers, writer, path, bench.scale.rounds),
        *(partial(_read_numbers, bench.open(), path, bench.scale.rounds) for _ in range(_READERS - 1)),
    )
    return Note(f"other connections only: {why}") if why else None


def _put_numbers(b: Backend, path: str, rounds: int, barrier: threading.Barrier) -> None:
    for number in range(rounds, 2 * rounds):
        barrier.wait()
        b.put(path, bytes([number]))


def _read_numbers(b: Backend, path: str, rounds: int, barrier: threading.Barrier) -> None:
    last = rounds - 1
    for _ in range(rounds):
        barrier.wait()
        for _ in range(2):
            data = b.get(path, max_bytes=1)
            expect(len(data) == 1, f"a reader saw {len(data)} bytes, which is no version that was put")
            now = data[0]
            expect(now >= last, "a reader saw an older version after a newer one")
            last = now


def _far_reader(bench: Bench) -> tuple[Callable[[str], bytes | None] | None, str]:
    """Reads one of a few known bodies in the other process. None and the reason, if there is no such process."""
    try:
        peer = bench.peer()
    except PeerError as error:
        return None, str(error)

    def read(path: str) -> bytes | None:
        answer = peer.ask(do="get", path=path, max_bytes=_MANY)
        bench.charge(*answer["cost"])
        if answer.get("error") == "NotFoundError":
            return None
        if "error" in answer:
            raise BackendError(f"in the other process: {answer['message']}")
        return bytes.fromhex(answer["data"])

    return read, ""


def check_threads(bench: Bench, base: str) -> None:
    """One backend object, eight threads, each with names of its own and every call."""
    b = bench.open()
    together(*(partial(_all_calls, b, f"{base}/t{number}") for number in range(WRITERS)))


def _all_calls(b: Backend, base: str, barrier: threading.Barrier) -> None:
    for turn in range(_THREAD_ROUNDS):
        path = f"{base}-{turn}"
        first, second = content(path, 3000), content(f"{path} again", 5000)
        barrier.wait()
        expect(b.create(path, first) is True, "with threads: a create of a free name answered False")
        expect_bytes(b.get(path, max_bytes=_MANY), first, "with threads: get")
        barrier.wait()
        b.put(path, second)
        expect(b.stat(path) == len(second), "with threads: stat gave another size")
        expect_bytes(b.get(path, offset=100, length=50, max_bytes=50), second[100:150], "with threads: get of a part")
        barrier.wait()
        b.delete(path)
        expect(absent(b, path), "with threads: a deleted object can be read")


def check_delete_beside(bench: Bench, base: str) -> None:
    """A backend that removes empty folders must not take one away from under a create."""
    a, b = bench.open(), bench.open()
    with ThreadPoolExecutor(1) as pool:
        for number in range(bench.scale.rounds):
            going, coming = f"{base}/busy-{number}/x", f"{base}/busy-{number}/y"
            a.put(going, b"")
            deleting = pool.submit(a.delete, going)
            try:
                created = b.create(coming, b"y")
            except BackendError as error:  # a server may ask for patience while it removes the folder
                if not error.retryable:
                    raise
                created = b.create(coming, b"y") or not absent(b, coming)  # what failed may have landed
            deleting.result()
            expect(created is True, "a create beside a delete in its folder answered False")
            expect(not absent(b, coming), "what was created beside a delete in its folder is gone")


def settle() -> None:
    """Time for what is still under way to arrive."""
    time.sleep(0.3)


CHECKS = (
    Check("put-whole", "readers beside a put see the old bytes or the new ones, whole",
          "replacing what was there, atomically for readers", "data", check_put_whole, ("put",)),
    Check("threads", "many threads share one backend object",
          "Calls come from several threads at once.", "data", check_threads, ("create", "put", "delete")),
    Check("delete-beside", "a delete does not disturb a create in the same folder",
          "Parents appear as needed.", "data", check_delete_beside, ("create", "delete")),
    Check("fresh-create", "what was created is found at once by other connections and processes",
          "From the moment a `create` or `put` returns, every `get`, whoever asks, sees what it stored.",
          "voting", check_fresh_create, ("create", "absent")),
    Check("fresh-put", "what was put is seen at once by all, and never followed by something older",
          "From the moment a `create` or `put` returns, every `get`, whoever asks, sees what it stored.",
          "voting", check_fresh_put, ("put",)),
    Check("race", "of eight racing writers in two processes exactly one gets each name",
          "of several racing callers exactly one gets True", "voting", check_race, ("create", "create-taken")),
    Check("big-race", "big objects that several create at once are never seen in part",
          "and no reader ever sees a part", "voting", check_big_race, ("create", "create-taken")),
)  # fmt: skip
