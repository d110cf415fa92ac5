"""One push's own packs: objects go in, stored packs and an index segment come out (D4, CONSENSUS 6.2).

An upload lives as long as the push, over all its attempts: what was stored for an attempt that lost counts for the
next one, as long as its generation is not fenced and its key epoch is still the base's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from metasync.codec import Reader, u32, u64
from metasync.effects import Task
from metasync.events import Listener, Progress
from metasync.objects.model import ObjectKind
from metasync.objects.packfile import Located
from metasync.store.balance import Balance
from metasync.store.index import (
    Index,
    IndexSegment,
    PackRecord,
    decode_segment,
    encode_segment,
    make_segments,
)
from metasync.store.packs import Packer, PackFormat, SealedPack
from metasync.store.transfer import Stored, Transfer

UPLOADING_BYTES_MAX = 24 << 20  # of sealed packs under way, each sent to its R backends from the same bytes


class Upload:
    """Packs objects and stores the packs while the caller goes on reading.

    `start` runs a task, `work` a function in a worker; both return futures (the runtime's). `begin` is called once,
    with the first object; what it returns is called before the first pack is sent. `carried`: what `carry` returned
    after the push before, so that backends of unequal capacities get their shares.
    """

    def __init__(
        self,
        transfer: Transfer,
        form: PackFormat,
        generation: int,
        *,
        start: Callable[[Task], Future[Any]],
        work: Callable[[Callable[[], Any]], Future[Any]],
        listener: Listener,
        entropy: Callable[[int], bytes],
        begin: Callable[[], Callable[[], None]],
        carried: bytes = b"",
    ) -> None:
        self.transfer = transfer
        self.form = form
        self.generation = generation
        self.stored: list[Stored] = []
        self.bytes_stored = 0
        self._own: set[bytes] = set()
        self._records: list[tuple[PackRecord, tuple[Located, ...]]] = []
        self._resumed: list[tuple[PackRecord, tuple[Located, ...]]] = []
        self._kept: dict[bytes, int] = {}  # objects of an earlier push -> which of `_resumed` holds them
        self._used: set[int] = set()
        self._start = start
        self._work = work
        self._listener = listener
        self._entropy = entropy
        self._begin: Callable[[], Callable[[], None]] | None = begin
        self._before: Callable[[], None] | None = None
        self._running: deque[Future[Any]] = deque()
        self._uploading_bytes = 0
        self._changed = threading.Condition()
        self._packer: Packer | None = None
        self._carried = carried
        self._balance: Balance | None = None

    def __contains__(self, object_id: bytes) -> bool:
        """True when this push stores the object, or is about to."""
        if object_id in self._own:
            return True
        if object_id in self._kept:
            self._used.add(self._kept[object_id])
            return True
        return False

    def add(self, kind: ObjectKind, object_id: bytes, data: bytes) -> None:
        """Takes an object to be stored. Blocks while too much is under way."""
        if object_id in self:
            return
        self._own.add(object_id)
        if self._begin is not None:
            begin, self._begin = self._begin, None
            self._before = begin()
        if self._packer is None:
            balance = self._balance = self._balance or Balance(self.transfer.placement, self._carried)
            choose = balance.choose if balance.matters else None
            self._packer = Packer(self.form, self._work, self._entropy, self._send, choose)
        self._packer.add(kind, object_id, data)

    def _send(self, pack: SealedPack) -> None:
        before, self._before = self._before, None
        if before is not None:
            before()
        size = len(pack.data)
        with self._changed:
            while self._uploading_bytes and self._uploading_bytes + size > UPLOADING_BYTES_MAX:
                self._changed.wait()
            self._uploading_bytes += size
        self._raise_failed()
        future = self._start(self.transfer.upload(pack, self.generation))
        future.add_done_callback(lambda _f: self._ended(size))
        self._running.append(future)

    def _ended(self, size: int) -> None:
        with self._changed:
            self._uploading_bytes -= size
            self._changed.notify_all()

    def _raise_failed(self) -> None:
        for future in self._running:
            if future.done():
                future.result()

    def finish(self) -> None:
        """Waits until all that was added is stored; raises what the storing of a pack raised."""
        packer, self._packer = self._packer, None
        if packer is not None:
            packer.finish()
        while self._running:
            self._take(self._running[0].result())
            self._running.popleft()
            self._listener(Progress("upload", self.bytes_stored, None, "B"))

    def _take(self, stored: Stored) -> None:
        self._records.append((stored.record, stored.objects))
        self.bytes_stored += stored.record.size
        self.stored.append(stored._replace(objects=()))

    def keep(self, wait_s: float) -> bytes:
        """What a push that failed has stored, for `resume` in the next one; waits so long for what is under way."""
        wait(self._running, timeout=wait_s)
        for future in self._running:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._take(future.result())
        self._running.clear()
        short = {p.record.name for p in self.stored if len(p.holders) < p.copies}
        segments = make_segments([*self._resumed, *(r for r in self._records if r[0].name not in short)])
        return u64(self.generation) + u32(self.form.epoch) + encode_segment(segments[0]) if segments else b""

    def resume(self, kept: bytes, index: Index) -> None:
        """Counts packs as stored that an earlier push left behind, those of which this push needs an object.

        Those that `index` names by now are left out, and all of them if they were made for another generation or epoch.
        """
        r = Reader(kept, "packs of an earlier push")
        if (r.u64(), r.u32()) != (self.generation, self.form.epoch):
            return
        segment = decode_segment(kept[12:])
        named = index.packs()
        for record in segment.packs:
            if (record.generation, record.name) not in named:
                objects = tuple(segment.inside(record))
                self._kept.update((located.id, len(self._resumed)) for located in objects)
                self._resumed.append((record, objects))

    def carry(self) -> bytes:
        """How unevenly the backends are loaded now, for `carried` of the next push."""
        return self._balance.carry() if self._balance is not None else self._carried

    def counting(self, min_generation: int, epoch: int) -> bool:
        """True when what it stored, and what it is going to, may be named by a state with this fence and epoch."""
        return self.generation >= min_generation and self.form.epoch == epoch

    def index_segments(self) -> list[IndexSegment]:
        """The index segments of all packs stored so far: one as a rule, none when there are no packs."""
        return make_segments([*(self._resumed[n] for n in sorted(self._used)), *self._records])


def known_in(index: Index, upload: Upload) -> Callable[[bytes], bool]:
    """Whether an object need not be stored: the base's index names it, or this push stores it (D4)."""
    return lambda object_id: object_id in upload or object_id in index
