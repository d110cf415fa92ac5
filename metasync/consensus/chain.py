"""Walking the chain of states backwards, by hash (consensus.md, rules 1.1 and 3.3).

State u stands, as the base of every entry of version u+1, in the acceptors' logs. So an ancestor is fetched from entry
0 of the next version, or from `const/` once that log is deleted (`truncation`), and its hash proves it. Steps along
`skip` make the walk short (`records.state`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Final

from metasync.consensus.instance import Instance
from metasync.consensus.objects import CONST_BYTES_MAX, Copy, const_path, get_anywhere, open_state, open_state_in_block
from metasync.consensus.participant import Participant
from metasync.consensus.records.entry import VERSIONS_PER_FOLDER, base_of_block, base_of_entry, block_path, entry_path
from metasync.consensus.records.state import State, skip_version
from metasync.runtime.effects import Task

ERAS_MAX: Final = 8  # an acceptor that is in none of the last eras is not there to be asked
WRITERS_MAX: Final = 1024  # devices whose first blocks are asked for


def step_back(v: int, least: int) -> int:
    """The version to go to from v on the shortest way down to `least`: along `skip` if it does not overshoot."""
    far = skip_version(v)
    return far if far >= least else v - 1


def ancestor(m: Participant, instance: Instance, state: State, v: int) -> Task:
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


def fetch_state(m: Participant, instance: Instance, v: int, digest: bytes, epoch: int) -> Task:
    """-> state `v`, whose hash is `digest`. `epoch`: of a later state.

    It lies in the logs and blocks of the next version, and maybe on its own. Its hash vouches for every copy.
    """
    known = m.states.get(digest)
    if known is not None:
        return known
    keys = m.keys
    after = v + 1
    views = instance.acceptors
    reachable = [(a, link) for a, view in views.items() if (link := view.reach())]
    reachable += [(a, link) for a, link in m.links.items() if a not in views]  # of configs before or after
    in_blocks = [(a, link) for a, link in reachable if a in views and views[a].form == "block"]
    in_logs = [pair for pair in reachable if pair not in in_blocks]
    writers = _writers(m, instance) if in_blocks else []
    eras = range(instance.base.era, max(-1, instance.base.era - ERAS_MAX), -1)
    epochs = sorted((e for e, _ in keys.epoch_keys if e <= epoch), reverse=True)  # `skip` may lead over rotations
    places = [replace(instance.base, era=era, epoch=e) for era in eras for e in epochs]
    copies = [
        Copy(link, entry_path(keys, at.epoch, at.era, a, after, 0), partial(base_of_entry, keys, digest, at, a, after))
        for at in places
        for a, link in in_logs
    ]
    for at, (a, link), w in product(places[: len(epochs)], in_blocks, writers):
        path = block_path(keys, at.epoch, at.era, a, after, w, 0)
        copies.append(Copy(link, path, partial(base_of_block, keys, digest, at, a, after, w)))
    name = keys.state_name(digest)
    copies += [Copy(link, const_path(a, name), partial(open_state, keys, digest)) for a, link in reachable]
    for name in (keys.states_name(era, v // VERSIONS_PER_FOLDER) for era in eras):
        copies += [Copy(link, const_path(a, name), partial(open_state_in_block, keys, digest)) for a, link in reachable]
    state: State = yield from get_anywhere(copies, CONST_BYTES_MAX, f"the state of version {v}")
    m.remember_state(state)
    return state


def _writers(m: Participant, instance: Instance) -> list[bytes]:
    """Every device there is, or was: each may have written the first block of a version."""
    sets = [instance.devices, *m.device_sets.values()]  # of states ahead, too: who joined later wrote first blocks
    known = (i for devices in sets for i in (*(c.device_id for c in devices.certificates), *devices.revoked_ids))
    return list(dict.fromkeys(known))[:WRITERS_MAX]
