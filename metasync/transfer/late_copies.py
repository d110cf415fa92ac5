"""Makes the copies that a push with `durability` did not wait for (paper section 5.3).

Theory of operation. Such a push waits for the first copies of each pack. Before it is agreed, the local state notes
which packs lack which copies. The same process makes them afterwards, or the next `push` or `sync`. The bytes come from
memory, else from a holder, and the pack's name verifies them. Making a copy twice does no harm, so two processes may do
it, and the note may lag behind. Packs that no agreed index names are dropped: their push did not end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from metasync.codec import Reader, u8, u32, u64
from metasync.errors import UsageError
from metasync.events import Listener, Progress
from metasync.local import state_keys
from metasync.local.state import LocalDb
from metasync.reports.sync import Trailing
from metasync.runtime.effects import Runner
from metasync.store.index import Index
from metasync.store.placement import Placement
from metasync.transfer.copies import Stored, Transfer

AT_ONCE_BYTES: Final = 24 << 20  # of packs being copied, each held in memory
KEPT_BYTES_MAX: Final = 64 << 20  # of sealed packs that wait in memory; further ones are read back from a backend
NOTE_EVERY_S: Final = 1.0  # a copy whose end was not noted yet is made again after a kill
WAIT_S: Final = 0.2  # between looks whether to stop
ID_BYTES: Final = 16
NAME_BYTES: Final = 32


def copies_to_wait_for(durability: int | None, copies: int) -> int | None:
    """How many of the `copies` promised a push waits for; None: all. `UsageError`."""
    if durability is not None and not 1 <= durability <= copies:
        raise UsageError(
            f"durability {durability}: a push waits for one copy of everything at least, and at most for the {copies}"
            " promised",
            next_step="Leave it out to wait for all.",
        )
    return durability if durability is not None and durability < copies else None


class Trail(NamedTuple):
    """A pack that lacks copies: which backends hold it, and which ones should, by id."""

    name: bytes
    generation: int
    size: int
    holders: tuple[bytes, ...]
    missing: tuple[bytes, ...]

    @property
    def key(self) -> tuple[int, bytes]:
        return self.generation, self.name


def trail_of(stored: Stored, transfer: Transfer) -> Trail | None:
    """The missing copies of a stored pack; None if it has all."""
    record = stored.record
    ids = {p.name: i for i, p in transfer.places.items()}
    bare = Trail(record.name, record.generation, record.size, (), ())
    trail = _held_by(bare, [ids[n] for n in stored.holders], transfer.placement, stored.copies)
    return trail if trail.missing else None


def _held_by(trail: Trail, holders: Sequence[bytes], placement: Placement, copies: int) -> Trail:
    """The same pack with these holders, and what it lacks then."""
    order = placement.order(trail.name)
    missing = [i for i in order if i not in holders][: max(0, copies - len(holders))]
    return trail._replace(holders=tuple(holders), missing=tuple(missing))


def encode_trails(trails: Sequence[Trail]) -> bytes:
    out = [u8(1), u32(len(trails))]
    for t in trails:
        out += [t.name, u64(t.generation), u64(t.size), u8(len(t.holders)), *t.holders, u8(len(t.missing)), *t.missing]
    return b"".join(out)


def decode_trails(data: bytes) -> list[Trail]:
    r = Reader(data, "copies on their way")
    if r.u8() != 1:
        raise r.fail("unknown format")
    out = []
    for _ in range(r.count(r.u32(), NAME_BYTES + 18)):
        name, generation, size = r.take(NAME_BYTES), r.u64(), r.u64()
        holders = tuple(r.take(ID_BYTES) for _ in range(r.u8()))
        out.append(Trail(name, generation, size, holders, tuple(r.take(ID_BYTES) for _ in range(r.u8()))))
    r.end()
    return out


TRAILING_KEY: Final = state_keys.TRAILING_KEY.holding(encode_trails, decode_trails)


def load(db: LocalDb) -> dict[tuple[int, bytes], Trail]:
    """The noted packs. `WorkspaceError` where the local state is damaged: none is forgotten in silence."""
    return {t.key: t for t in db.get(TRAILING_KEY) or ()}


def note(db: LocalDb, trails: Iterable[Trail], *, drop: Iterable[tuple[int, bytes]] = ()) -> None:
    """Notes these packs in place of earlier notes, and takes out `drop`."""
    gone, new = set(drop), {t.key: t for t in trails}
    if not gone and not new:
        return
    with db.transaction():
        known = load(db)
        now = {k: t for k, t in {**known, **new}.items() if k not in gone}
        if now != known:
            db.set(TRAILING_KEY, list(now.values()) or None)


def forget_unnamed(db: LocalDb, index: Index) -> None:
    """Drops what the newest agreed index does not name."""
    known = load(db)
    if known:
        named = index.packs()
        note(db, (), drop=[k for k in known if k not in named])


def summary(trails: Iterable[Trail], names: Mapping[bytes, str]) -> tuple[Trailing, ...]:
    """How much each backend lacks, by its name or else its id."""
    packs: dict[str, list[int]] = {}
    for t in trails:
        for i in t.missing:
            packs.setdefault(names.get(i, i.hex()), []).append(t.size)
    return tuple(Trailing(name, len(sizes), sum(sizes)) for name, sizes in sorted(packs.items()))


@dataclass(eq=False)
class Finishing:
    """Makes the copies that are noted, in a thread of its own, until all are made or cannot be made now.

    `at_hand`: sealed packs by name; taken over, and emptied on the way.
    """

    transfer: Transfer
    runner: Runner
    db: LocalDb
    listener: Listener
    at_hand: dict[bytes, bytes] = field(default_factory=dict)
    _tried: set[tuple[int, bytes]] = field(default_factory=set, init=False)
    _more: bool = field(default=False, init=False)
    _ended: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _error: BaseException | None = field(default=None, init=False)

    def start(self) -> None:
        """Begins in the background."""
        self._thread = threading.Thread(target=self._run, name="metasync-trailing", daemon=True)
        self._thread.start()

    def more(self, at_hand: Mapping[bytes, bytes]) -> bool:
        """More was noted meanwhile. False: too late, this one has come to its end."""
        with self._lock:
            if self._ended:
                return False
            self._more = True
            self.at_hand.update(at_hand)
            return True

    def join(self, heed: Callable[[], None] = lambda: None) -> None:
        """Waits for the end, and raises what it ended with. May be interrupted, also by what `heed` raises, which is
        called meanwhile; the copies then go on."""
        while self._thread is not None and self._thread.is_alive():
            heed()
            self._thread.join(WAIT_S)
        if self._error is not None:
            raise self._error

    def stop(self, wait_s: float) -> None:
        """Begins no more copies. What is not finished stays noted."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(wait_s)

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as e:  # noqa: BLE001  # whatever it is belongs to whoever waits
            self._error = e
        finally:
            with self._lock:
                self._ended = True

    def run(self) -> None:
        """Makes the copies; returns when each was made, or tried once, or after `stop`."""
        while True:
            found = [t for t in load(self.db).values() if t.key not in self._tried]
            self._tried.update(t.key for t in found)
            self._make(sorted(found, key=lambda t: t.name in self.at_hand))
            with self._lock:
                if self._stop.is_set() or not self._more:
                    self._ended = True
                    return
                self._more = False

    def _make(self, todo: list[Trail]) -> None:
        """Makes copies of these, the last ones first."""
        total = sum(t.size * len(t.missing) for t in todo)
        running: dict[Future[Any], Trail] = {}
        ended: list[Trail] = []
        done_bytes, last = 0, time.monotonic()
        while running or (todo and not self._stop.is_set()):
            while todo and not self._stop.is_set():
                held = sum(r.size for r in running.values())
                if held and held + todo[-1].size > AT_ONCE_BYTES:
                    break
                t = todo.pop()
                data = self.at_hand.pop(t.name, None)
                running[self.runner.start(self.transfer.complete(t.name, t.generation, t.size, t.holders, data))] = t
            for future in self.runner.wait(running, WAIT_S):
                t = running.pop(future)
                try:
                    holders: tuple[bytes, ...] = future.result()
                except CancelledError:  # the runtime is closed: it stays noted
                    self._stop.set()
                    continue
                placement = self.transfer.placement
                ended.append(_held_by(t, holders, placement, placement.copies))
                done_bytes += t.size * (len(t.missing) - len(ended[-1].missing))
                self.listener(Progress("copies", done_bytes, total, "B"))
            if ended and time.monotonic() - last >= NOTE_EVERY_S:
                self._note(ended)
                ended, last = [], time.monotonic()
        self._note(ended)

    def _note(self, ended: Sequence[Trail]) -> None:
        note(self.db, [t for t in ended if t.missing], drop=[t.key for t in ended if not t.missing])


def go_on(
    now: Finishing | None,
    transfer: Transfer,
    runner: Runner,
    db: LocalDb,
    listener: Listener,
    at_hand: dict[bytes, bytes],
) -> Finishing | None:
    """The running `Finishing`, or a new one; None if no copies are noted."""
    if now is not None and now.more(at_hand):
        return now
    if not load(db):
        return None
    begun = Finishing(transfer, runner, db, listener, at_hand)
    begun.start()
    return begun
