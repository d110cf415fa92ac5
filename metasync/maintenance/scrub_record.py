"""What devices tell each other of their scrubs, so that one listing a day serves all of them (docs/design/scrub.md).

A small record for each backend says when all of it was listed, and up to where its copies were read. It lies on the
backend next to it on a ring of their ids. It is a hint: one that is missing, refused or too old costs a listing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from metasync.consensus.hints import certificate_for
from metasync.consensus.participant import OP_TIMEOUT_S, Participant
from metasync.consensus.records.scrubbed import (
    SCRUBBED_BYTES_MAX,
    Scrubbed,
    open_scrubbed,
    scrubbed_path,
    seal_scrubbed,
)
from metasync.errors import FormatError, NotFoundError, UpgradeError
from metasync.keys.device_set import DeviceSet
from metasync.runtime.effects import Op, Random, Reply, Task, together

if TYPE_CHECKING:
    from metasync.consensus import State
    from metasync.session.session import Session
    from metasync.transfer.inventories import Heard

DAY_NS: Final = 86_400 * 10**9  # between two listings of a backend without a feed
LATER_NS: Final = 3600 * 10**9  # a look that is noted further in the future was noted by a wrong clock
KEEPERS: Final = 2  # backends next to one on the ring that are tried with its record


def is_within(at_ns: int, now_ns: int, age_ns: int) -> bool:
    """Whether a time is known, and no longer ago than this."""
    return at_ns > 0 and at_ns - LATER_NS <= now_ns < at_ns + age_ns


def keepers(heard: Sequence[Heard], h: Heard) -> list[str]:
    """The backends that keep the record of one: those next to it on a ring by id; itself where it is alone."""
    ring = sorted(heard, key=lambda o: o.place.backend_id)
    at = ring.index(h)
    others = [o.place.name for o in ring[at + 1 :] + ring[:at] if o.how != "away"]
    return others[:KEEPERS] or [h.place.name]


def hear(s: Session, state: State, heard: Sequence[Heard], some: Sequence[Heard]) -> None:
    """Takes over what others say of `some` of the backends: when all was listed, and up to where copies were read."""
    if not some:
        return
    m, devices, now = s.group.participant, s.devices_of(state), s.wall_ns()
    tasks = {h.place.name: _read(m, devices, h.place.backend_id, keepers(heard, h)) for h in some}
    found: Mapping[str, Scrubbed | None] = s.runtime.run(together(tasks))
    for h in some:
        seen = found[h.place.name]
        if seen is None or seen.stores != h.look.stores:
            continue
        h.seen = seen
        if not seen.wrong and seen.device_id != s.device.device_id and is_within(seen.at_ns, now, DAY_NS):
            h.look = h.look._replace(others_ns=seen.at_ns, since_ns=h.look.since_ns or now)
        if h.look.read_ns < seen.read_ns <= now + LATER_NS:
            h.look = h.look._replace(read_to=seen.read_to, read_ns=seen.read_ns)
        h.is_begun = True


def tell(s: Session, state: State, heard: Sequence[Heard]) -> None:
    """Tells the other devices of the listings, and of the copies that were read. A refusal fails nothing."""
    tasks = {}
    for h in (h for h in heard if h.is_to_tell):
        look, at_ns, wrong = h.look, h.look.at_ns, sum(map(len, h.wrong.values()))
        if h.how != "listed" and h.seen is not None and h.seen.at_ns > at_ns:  # what is told of a listing stays told
            at_ns, wrong = h.seen.at_ns, h.seen.wrong
        seen = Scrubbed(b"", look.backend, look.stores, at_ns, wrong, look.read_to, look.read_ns)
        tasks[h.place.name] = _write(s.group.participant, state, seen, keepers(heard, h))
    if tasks:
        s.runtime.run(together(tasks))


def _write(m: Participant, state: State, told: Scrubbed, names: Sequence[str]) -> Task:
    """Overwrites the record of one backend on the first of these that takes it. -> whether one did."""
    random = yield Random(32)
    mine = replace(told, device_id=m.identity.device_id, certificate=certificate_for(m, state))
    data = seal_scrubbed(m.keys, mine, m.identity, era=state.era, epoch=state.epoch, random=random)
    for keeper in names:
        reply: Reply = yield Op(keeper, "put", scrubbed_path(told.backend_id), data, timeout_s=OP_TIMEOUT_S)
        if reply.error is None:
            return True
    return False


def _read(m: Participant, devices: DeviceSet, backend_id: bytes, names: Sequence[str]) -> Task:
    """-> the record of a backend that the first of these has which answers; None: it has none that counts."""
    for keeper in names:
        path = scrubbed_path(backend_id)
        reply: Reply = yield Op(keeper, "get", path, max_bytes=SCRUBBED_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
        if isinstance(reply.error, NotFoundError):
            return None
        if reply.error is None:
            try:
                return open_scrubbed(m.keys, devices, reply.value, backend_id)
            except (FormatError, UpgradeError):
                return None
    return None
