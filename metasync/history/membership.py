"""What versions changed of devices, keys and backends (`metasync log --all`).

A state names the device set and the config by their hashes, so two states tell whether anything between them changed.
The chain of states is searched as a skip list: from a state to the one that its `skip` names, and into the stretch
between two only if they differ, or if a version in it is no push. So k changes among n versions take about k log2 n
states, each of 402 bytes and one request at most; what was read once is kept in the local cache.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from typing import Final, TypeVar

from metasync.config import Config
from metasync.consensus import State, skip_version
from metasync.errors import DamagedError, MetaSyncError
from metasync.keys.device_set import DeviceSet, given_names, invitations, names_of, open_logins
from metasync.session.session import Session
from metasync.session.states import Chain
from metasync.store.retained import Retained

T = TypeVar("T")


def events(s: Session, newest: State, lowest: int, no_pushes: Collection[int]) -> dict[int, tuple[str, ...]]:
    """What changed in versions after `lowest`, as phrases by version; of version 0 who made it.

    Those in `no_pushes` are all there, of the others those that changed anything.

    `NoQuorumError` where a state on the way cannot be had now.
    """
    chain = Chain(s, newest)
    bottom = chain.lowest(lowest, newest)
    wanted = sorted(no_pushes)
    stretches = [] if bottom.v <= lowest else [(lowest, bottom)]
    out = {after.v: _changes(s, before, after) for before, after in _changing(chain, bottom, newest, wanted, stretches)}
    for low, state in stretches:
        out.update((v, (GONE,)) for v in wanted if low < v <= state.v)
        if state.era:
            out[state.v] = (f"the workspace was restarted as era {state.era}",)
    if not bottom.v:
        made = _read(
            lambda: [f"{', '.join(names_of(s.devices_of(bottom)).values())} made the workspace"],
            "the workspace was made",
        )
        out[0] = tuple(made)
    return out


GONE: Final = "what it changed cannot be read any more"  # before a restart: the states were on the lost backends


def _changing(
    chain: Chain, low: State, high: State, wanted: list[int], stretches: list[tuple[int, State]]
) -> Iterator[tuple[State, State]]:
    """(state before, state) of versions after `low` that are `wanted`, or in which something changed.

    Where states cannot be had any more, adds the stretch to `stretches`: the version below it, the first state after.
    """
    todo = [(low, high)]
    while todo:
        low, high = todo.pop()
        is_wanted = bisect_right(wanted, low.v) < bisect_right(wanted, high.v)
        if high.v <= low.v or not (is_wanted or _named(low) != _named(high)):
            continue
        if high.v == low.v + 1:
            yield low, high
            continue
        below = skip_version(high.v)
        try:
            middle = chain.at(high, below if below > low.v else high.v - 1)
        except DamagedError:
            oldest = chain.lowest(low.v + 1, high)
            stretches.append((low.v, oldest))
            todo.append((oldest, high))
            continue
        todo += [(low, middle), (middle, high)]


def _named(state: State) -> tuple[object, ...]:
    return state.config, state.devices, state.epoch, state.era, state.retained, state.gen, state.min_gen


def _changes(s: Session, a: State, b: State) -> tuple[str, ...]:
    out: list[str] = []
    if a.era != b.era:
        out.append(f"the workspace was restarted as era {b.era}")
    if a.devices != b.devices:
        out += _read(
            lambda: _of_devices(s.devices_of(a), s.devices_of(b), b.v),
            "the list of devices changed; how, cannot be read any more",
        )
    if a.epoch != b.epoch:
        out.append(f"new keys, of epoch {b.epoch}")
    if a.config != b.config:
        out += _read(
            lambda: _of_config(s.config_of(a), s.config_of(b)), "the backends changed; how, cannot be read any more"
        )
    if a.retained != b.retained:
        out += _read(
            lambda: _of_retained(s.indexes.retained(a), s.indexes.retained(b)),
            "which versions are kept changed; how, cannot be read any more",
        )
    if a.min_gen != b.min_gen:
        out.append("what nothing needs was given up: metasync gc")
    elif a.gen != b.gen:
        out.append("metasync gc began")
    return tuple(out) or (() if a.master != b.master else ("nothing of devices, keys or backends changed",))


def _read(told: Callable[[], list[str]], instead: str) -> list[str]:
    """What two records differ in; where one of them cannot be had any more, that they do."""
    try:
        return told()
    except MetaSyncError:
        return [instead]


def _of_retained(a: Retained, b: Retained) -> list[str]:
    before, after = ({n.name: n.version for n in r.named} for r in (a, b))
    out = [f"version {v} is called {name} now" for name, v in after.items() if before.get(name) != v]
    out += [f"version {v} is not called {name} any more" for name, v in before.items() if name not in after]
    if a.keep != b.keep:
        out.append(f"what is kept: {b.keep}" if b.keep else "all versions are kept")
    fewer = sum(d.last - d.first + 1 for d in b.dropped) - sum(d.last - d.first + 1 for d in a.dropped)
    out += [f"{fewer} {'version is' if fewer == 1 else 'versions are'} no longer kept"] if fewer else []
    cut = len(set(b.replaced) - set(a.replaced))
    return out + ([f"paths of {cut} {'version' if cut == 1 else 'versions'} were forgotten"] if cut else [])


def _of_devices(a: DeviceSet, b: DeviceSet, v: int) -> list[str]:
    before, after = {c.device_id for c in a.certificates}, {c.device_id for c in b.certificates}
    names, called = names_of(a), names_of(b)
    out = [f"{called[i]} joined" for i in sorted(after - before, key=called.__getitem__)]
    out += [f"{names[i]} was revoked" for i in sorted(before - after, key=names.__getitem__)]
    renamed = [i for i in before & after if names[i] != called[i]]
    out += [f"{names[i]} is called {called[i]} now" for i in sorted(renamed, key=names.__getitem__)]
    open_before = {i.invitation_id: i.name for i in invitations(a) if i.is_open(v - 1)}
    open_after = {i.invitation_id: i.name for i in invitations(b) if i.is_open(v)}
    used = {i.invitation_id for i in invitations(b) if i.device_id in after - before}
    out += [f"{name} was invited" for i, name in open_after.items() if i not in open_before]
    ended = [name for i, name in open_before.items() if i not in open_after and i not in used]
    out += [f"the invitation of {name} ended" for name in ended]
    left = {item.device_id: item.backends for item in open_logins(b)}
    done = [item for item in open_logins(a) if left.get(item.device_id, ()) != item.backends]
    out += [f"logins of {item.name} were confirmed as withdrawn" for item in done]
    known = given_names(a) != given_names(b) or a.tags != b.tags or a.slots != b.slots
    return out or ["the list of devices changed"] * known


def _of_config(a: Config, b: Config) -> list[str]:
    before, after = ({e.backend_id: e for e in c.backends} for c in (a, b))
    out = [f"backend {after[i].name} was added" for i in after if i not in before]
    out += [f"backend {before[i].name} was removed" for i in before if i not in after]
    for i in [i for i in after if i in before]:
        x, y = before[i], after[i]
        if x.name != y.name:
            out.append(f"backend {x.name} is called {y.name} now")
        if x.capacity_bytes != y.capacity_bytes:
            out.append(f"backend {y.name} has another capacity")
        if (x.acceptor is None) != (y.acceptor is None):
            out.append(f"backend {y.name} votes" + (" no more" if y.acceptor is None else " now"))
    return out or ["settings of the backends changed"]
