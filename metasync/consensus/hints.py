"""Hints, from which a new device starts, and heads, which say what a device has synchronised. Neither decides anything.

Both are sealed, signed and overwritten; a backend that does not take one fails nothing. Devices that know a version go
on without hints. A new device needs one, on any backend, where the backends of today are not those of the genesis, or
of the record of the newest era: nothing else names them. `check` puts lost ones back (`session.genesis`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from metasync.consensus.chain import ancestor
from metasync.consensus.instance import Instance
from metasync.consensus.participant import OP_TIMEOUT_S, Participant
from metasync.consensus.records.entry import (
    ENTRY_BYTES_MAX,
    Entry,
    Head,
    Kind,
    Round,
    head_path,
    hint_path,
    open_head,
    seal_head,
    seal_hint,
)
from metasync.consensus.records.state import ZERO_HASH, ZERO_ID, State
from metasync.errors import DamagedError, FormatError, NoQuorumError, UpgradeError
from metasync.keys.derive import read_header
from metasync.runtime.effects import Gather, Now, Op, Random, Reply, Task

HEADS_MAX: Final = 64  # devices whose heads are compared
AHEAD_MAX: Final = 1 << 20  # versions; a head that claims more beyond the newest is made up (consensus.md, rule 8.3)
WAIT_S: Final = 5.0  # so long is waited for them
HEAD_EVERY_S: Final = 60.0  # a process that pushes again and again writes its head so often, and in the end


def decided_entry(m: Participant, acceptor_id: bytes, base: State, state: State, entry_id: bytes) -> Entry:
    """Says, outside any log, that `state` was decided after `base`."""
    return Entry(
        acceptor_id=acceptor_id,
        v=state.v,
        idx=0,
        prev_entry=ZERO_HASH,
        base=base,
        kind=Kind.DECIDED,
        round=Round(0, ZERO_ID),
        value=state,
        entry_id=entry_id,
        device_id=m.identity.device_id,
        certificate=certificate_for(m, base),
    )


def certificate_for(m: Participant, state: State) -> bytes:
    """This device's certificate, where the device set of `state` is not known to hold it."""
    known = m.device_sets.get(state.devices)
    return b"" if known is not None and known.get(m.identity.device_id) is not None else m.certificate


def write_hints(m: Participant, links: Mapping[bytes, str], base: State, state: State, *, everywhere: bool) -> Task:
    """Overwrites the hints of these acceptors. -> how many confirmed."""

    def one(acceptor_id: bytes, link: str) -> Task:
        entropy = yield Random(48)
        entry = decided_entry(m, acceptor_id, base, state, entropy[32:])
        data = seal_hint(m.keys, entry, m.identity.sign_private, entropy[:32])
        return (yield from _put(link, hint_path(acceptor_id), data))

    hints = {a.hex(): one(a, link) for a, link in links.items()}
    return _some(hints, len(hints) if everywhere else len(hints) // 2 + 1)


def write_head(m: Participant, state: State, head: bytes, prev: bytes, backends: Sequence[str]) -> Task:
    """Overwrites this device's head. -> how many confirmed."""
    mine = Head(m.identity.device_id, state.v, state.hash, head, prev, certificate_for(m, state))
    random = yield Random(32)
    data = seal_head(m.keys, mine, m.identity, era=state.era, epoch=state.epoch, random=random)
    heads = {b: _put(b, head_path(mine.device_id), data) for b in backends}
    return (yield from _some(heads, len(heads) // 2 + 1))


@dataclass
class OwnHead:
    """This device's head, as one process writes it: at once, then every HEAD_EVERY_S, and in the end.

    `waiting`: what it is to say, as `write_head` takes it, where that was not written yet.
    """

    waiting: tuple[State, bytes, bytes] | None = None
    written_s: float | None = None

    def say(self, state: State, head: bytes, prev: bytes, now_s: float) -> bool:
        """Takes what it is to say now. -> whether it is time to write it."""
        self.waiting = state, head, prev
        return self.written_s is None or not 0 <= now_s - self.written_s < HEAD_EVERY_S

    def written(self, m: Participant, backends: Sequence[str]) -> Task:
        """Writes what waits. -> how many confirmed."""
        said, self.waiting = self.waiting, None
        self.written_s = yield Now()
        return 0 if said is None else (yield from write_head(m, *said, backends))


def read_head(
    m: Participant, instance: Instance, device_id: bytes, backends: Sequence[str], enough: int | None = None
) -> Task:
    """-> the newest Head of a device, or None. `enough`: so many answers; all, as far as they come, by default."""
    asked = {b: _get(b, head_path(device_id)) for b in backends}
    got = yield Gather(asked, lambda answers: len(answers) == enough, deadline_s=WAIT_S)
    heads = []
    for data in got.values():
        if data is not None:
            try:
                head = open_head(m.keys, instance.devices, data, device_id)
                heads += [head] * (read_header(data).era == instance.base.era)  # of another era: other versions
            except (FormatError, UpgradeError):
                continue  # a forged head is no head; `check` looks at backends, not at hints
    return max(heads, key=lambda h: h.v, default=None)


def read_heads(
    m: Participant, instance: Instance, devices: Sequence[bytes], backends: Sequence[str], enough: int | None = None
) -> Task:
    """-> {device id: its newest Head, or None}, of at most HEADS_MAX devices. `enough`: as in `read_head`."""
    got = yield Gather({d.hex(): read_head(m, instance, d, backends, enough) for d in devices[:HEADS_MAX]})
    return {bytes.fromhex(d): head for d, head in got.items()}


def check_heads(m: Participant, instance: Instance, backends: Sequence[str]) -> Task:
    """-> (heads of versions after the instance's base, heads of versions that are not in its chain)."""
    others = [c.device_id for c in instance.devices.certificates if c.device_id != m.identity.device_id]
    got = yield Gather({d.hex(): read_head(m, instance, d, backends) for d in others[:HEADS_MAX]})
    state = instance.base
    ahead, apart = [], []
    for head in (h for h in got.values() if h is not None):
        if head.v > state.v + AHEAD_MAX:
            continue
        if head.v > state.v:
            ahead.append(head)
        elif (yield from _hash_at(m, instance, head.v)) not in (head.state_hash, None):
            apart.append(head)
    return tuple(ahead), tuple(apart)


def _hash_at(m: Participant, instance: Instance, v: int) -> Task:
    """-> the hash of version v in the chain that the instance stands on; None when it cannot be had now."""
    try:
        return (yield from ancestor(m, instance, instance.base, v))
    except (DamagedError, NoQuorumError):
        return None


def _some(branches: Mapping[str, Task], enough: int) -> Task:
    """Runs writes that may fail, until `enough` succeeded. -> how many did."""

    def until(results: Mapping[str, Any]) -> bool:
        return sum(good is True for good in results.values()) >= enough

    got = yield Gather(branches, until, deadline_s=WAIT_S)
    return sum(got.values())


def _put(backend: str, path: str, data: bytes) -> Task:
    reply: Reply = yield Op(backend, "put", path, data, timeout_s=OP_TIMEOUT_S)
    return reply.error is None


def _get(backend: str, path: str) -> Task:
    reply: Reply = yield Op(backend, "get", path, max_bytes=ENTRY_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
    return None if reply.error is not None else reply.value
