"""Reads copies of packs back from one backend, as many as there is time for (`maintenance.scrub`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from metasync.runtime.effects import Task, together
from metasync.runtime.sizes import GIVES_WAY_S
from metasync.session.session import Session
from metasync.store.index import PackRecord
from metasync.store.moves import Places
from metasync.transfer import verify
from metasync.transfer.copies import Place
from metasync.transfer.estimates import Direction
from metasync.transfer.inventories import Heard


class Reader:
    """Looks at copies byte for byte. `left_s`: how many seconds there are; None: as many as it takes.

    `mute`: names of backends that tell no digests, as one of them was asked for.
    """

    def __init__(self, s: Session, places: Places) -> None:
        self.left_s: Callable[[], float] | None = None
        self.mute: set[str] = set()
        self._s = s
        self._places = places

    def in_time(self, h: Heard, packs: Sequence[PackRecord]) -> Sequence[PackRecord]:
        """The first of these packs, as many as arrive in the time that is left by what is known of the line."""
        if self.left_s is None:
            return packs
        rate = self._s.estimates.of(h.place.name, Direction.DOWN).bytes_per_s or math.inf
        sizes = accumulate(p.size for p in packs)
        left_s = self.left_s()
        return [p for p, size in zip(packs, sizes, strict=True) if 0 < left_s >= size / rate]

    def copies(self, h: Heard, packs: Sequence[PackRecord]) -> list[verify.CopyState]:
        """The copies of these packs on a backend, as they were read. Empty: they took longer than the time left."""
        if not packs:
            return []
        running = self._s.runtime.start(together({p.name.hex(): self._copy(h, p) for p in packs}))
        if self.left_s is None:
            self._s.runtime.wait([running])
        else:
            left_s = self.left_s()
            while not self._s.runtime.wait([running], min(left_s, GIVES_WAY_S)):
                if left_s <= 0:
                    return []
                left_s = self.left_s()
        states: Mapping[str, verify.CopyState] = running.result()
        return [states[p.name.hex()] for p in packs]

    def _copy(self, h: Heard, record: PackRecord) -> Task:
        """Looks at a copy by all that it holds; by the digest that the store tells where it was not listed yet.

        Not if it is the only copy: the word of one store is no proof.
        """
        t, where = self._s.transfer, self.where(h, record)
        if t.placement.copies > 1 and not h.look.at_ns and h.place.name not in self.mute:
            state = yield from verify.check_copy(t, where, record, False, None)
            if state.how != "size" or state.problem is not None:
                return state
            self.mute.add(h.place.name)
        return (yield from verify.check_copy(t, where, record, True, None))

    def where(self, h: Heard, record: PackRecord) -> Place:
        """A backend with the storage ids in which a copy counts."""
        return h.place._replace(storage_ids=self._places.ids(h.place.backend_id, record.name)[::-1])
