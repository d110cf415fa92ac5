"""Walking the chain of states backwards, by hash (consensus.md, rules 1.1 and 3.3).

State u stands, as the base of every entry of version u+1, in the acceptors' logs; so an ancestor is fetched from slot
0 of the next version, or from `const/` once that log is deleted (`floors`), and its hash proves it. Steps along `skip`
make the walk short (`states`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from metasync.consensus.instance import Instance
from metasync.consensus.objects import CONST_BYTES_MAX, Copy, block_opener, const_path, get_anywhere, state_opener
from metasync.consensus.participant import Member
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.entry import VERSIONS_PER_FOLDER, block_path, entry_path, open_block, open_entry
from metasync.consensus.records.state import State, skip_version, step_back
from metasync.errors import FormatError
from metasync.runtime.effects import Task

ERAS_MAX: Final = 8  # an acceptor that is in none of the last eras is not there to be asked


WRITERS_MAX: Final = 1024  # devices whose first blocks are asked for


def ancestor(m: Member, instance: Instance, state: State, v: int) -> Task:
    """-> the hash of version `v <= state.v` in the chain that ends with `state`.

    `DamagedError` or `NoQuorumError` when a state on the way cannot be had.
    """
    while state.v > v:
        below = step_back(state.v, v)
        digest = state.skip if below == skip_version(state.v) else state.prev
        if below == v:
            return digest
        state = yield from fetch_state(m, instance, below, digest, state.epoch)
    return state.hash


def fetch_state(m: Member, instance: Instance, v: int, digest: bytes, epoch: int) -> Task:
    """-> state `v`, whose hash is `digest`. `epoch`: of a later state."""
    known = m.states.get(digest)
    if known is not None:
        return known
    epochs = sorted((e for e, _ in m.keys.epoch_keys if e <= epoch), reverse=True)  # `skip` may lead over rotations
    reachable = [(a, link) for a in instance.names if (link := m.backend_of(instance, a))]
    reachable += [(a, link) for a, link in m.links.items() if a not in instance.names]  # of configs before or after
    eras = range(instance.base.era, max(-1, instance.base.era - ERAS_MAX), -1)
    name = m.keys.state_name(digest)
    copies = [
        Copy(link, entry_path(m.keys, e, era, a, v + 1, 0), _base_opener(m, instance, a, era, e, v, digest))
        for era in eras
        for e in epochs
        for a, link in reachable
        if not isinstance(instance.logs.get(a), Blocks)
    ]
    copies += _in_blocks(m, instance, reachable, epochs, v, digest)
    copies += [Copy(link, const_path(a, name), state_opener(m.keys, digest)) for a, link in reachable]
    for block in (m.keys.states_name(era, v // VERSIONS_PER_FOLDER) for era in eras):
        copies += [Copy(link, const_path(a, block), block_opener(m.keys, digest)) for a, link in reachable]
    state: State = yield from get_anywhere(copies, CONST_BYTES_MAX, f"the state of version {v}")
    m.remember_state(state)
    return state


def _base_opener(
    m: Member, instance: Instance, acceptor_id: bytes, era: int, epoch: int, v: int, digest: bytes
) -> Callable[[bytes], State]:
    """Takes the base out of slot 0 of the next version. Its hash vouches for it, whoever signed the entry."""

    def opened(data: bytes) -> State:
        base = instance.base
        signed = open_entry(
            m.keys,
            data,
            ns_id=base.ns_id,
            era=era,
            epoch=epoch,
            acceptor_id=acceptor_id,
            v=v + 1,
            idx=0,
        )
        if signed.entry.base.hash != digest:
            raise FormatError("a log stands on another state")
        return signed.entry.base

    return opened


def _in_blocks(
    m: Member, instance: Instance, reachable: Sequence[tuple[bytes, str]], epochs: Sequence[int], v: int, digest: bytes
) -> list[Copy]:
    """The first blocks of version v + 1 by every device there is, or was."""
    era = instance.base.era
    sets = [instance.devices, *m.device_sets.values()]  # of states ahead, too: who joined later wrote first blocks
    known = (i for devices in sets for i in (*(c.device_id for c in devices.certificates), *devices.revoked_ids))
    writers = list(dict.fromkeys(known))[:WRITERS_MAX]

    def opener(acceptor_id: bytes, epoch: int, writer: bytes) -> Callable[[bytes], State]:
        base = replace(instance.base, epoch=epoch)

        def opened(data: bytes) -> State:
            signed = open_block(m.keys, data, base=base, acceptor_id=acceptor_id, v=v + 1, device_id=writer, idx=0)
            if signed.entry.base.hash != digest:
                raise FormatError("a block stands on another state")
            return signed.entry.base

        return opened

    return [
        Copy(link, block_path(m.keys, epoch, era, a, v + 1, writer, 0), opener(a, epoch, writer))
        for epoch in epochs
        for a, link in reachable
        if isinstance(instance.logs.get(a), Blocks)
        for writer in writers
    ]
