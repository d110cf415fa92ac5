"""Finds a workspace on backends by its passphrase, for `metasync clone` (architecture.md, D11).

A backend does not say which workspaces it holds; a key slot that opens does. Whoever can write to a backend can put any
number of slots there. So the clear parts are read first, and slots are tried by the number of backends that hold them,
cheap ones first, up to a bound on the work in all. "Wrong passphrase" is reported only after every reachable slot was
tried; what was left untried, or could not be read, is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from metasync.errors import (
    BackendError,
    DamagedError,
    FormatError,
    PassphraseError,
    UnreachableError,
    UpgradeError,
    WorkspaceError,
)
from metasync.keys.derive import SLOT_KEY, sha256
from metasync.keys.keyring import RING_BYTES_MAX, WorkspaceKeys, open_admin, open_ring
from metasync.keys.policy import CHAIN_MAX
from metasync.keys.slots import (
    RECOVERY,
    SLOT_BYTES_MAX,
    SlotSecret,
    is_intact,
    open_slot,
    phrase_fault,
    phrase_in,
    read_slot,
    trials,
)
from metasync.runtime.effects import Op, Reply, Task, each

SEARCH_TIMEOUT_S: Final = 10.0  # for a small object or a listing: a backend that hangs does not hold up the others
FOLDERS_MAX: Final = 256  # workspaces on one backend whose slots are tried
SLOTS_MAX: Final = 1024  # read in one search, of at most 4 KiB each
FEW_SLOTS: Final = 16  # of more than so many on one backend, the others are asked first which they hold as well
MORE_TRIES: Final = 16  # after the first that opens: those of changes of keys and passphrase that were cut short
RINGS_MAX: Final = 512  # of one workspace; the one in force is the first, or near it after a change cut short
FOLDER: Final = re.compile(r"[0-9a-f]{32}")
_SLOT = re.compile(r"slot-([12])-[0-9a-f]{64}")
_RING = re.compile(r"ring-([0-9]{1,9})-([0-9a-f]{64})")

Run = Callable[[Task], Mapping[str, Reply]]
Start = Callable[[Task], Future[Mapping[str, Reply]]]


@dataclass
class Found:
    """What a passphrase opened. `folders`: the workspace's random folder by backend; `names`: of all it opened.

    `secrets`: of that workspace; several where the passphrase opens an older slot too. `secret`: the first of them.
    `keys`: names under `keys/` of each (backend, folder). `unread`: folders that were not listed, because the workspace
    was found before. `closed`: slots that did not open. `begun`: keyrings on their way, by backend and name.

    Slots that were not tried: `left`, because there are too many; `unheard`, because no backend gave one (why, by
    slot); `damaged`, whose bytes are nowhere those of their names; `newer`, of a format that a newer program knows.
    """

    secret: SlotSecret | None = None
    secrets: list[SlotSecret] = field(default_factory=list)
    folders: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    tried: int = 0
    failed: dict[str, BackendError] = field(default_factory=dict)
    spent_kib: int = 0
    left: int = 0
    newer: int = 0
    unheard: dict[str, str] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    keys: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    unread: dict[str, list[str]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    begun: dict[tuple[str, str], Future[Mapping[str, Reply]]] = field(default_factory=dict)


def search(
    backends: list[str],
    name: str,
    passphrase: str,
    run: Run,
    *,
    everywhere: bool = True,
    on_folders: Callable[[Mapping[str, Sequence[str]]], None] = lambda _: None,
    start: Start | None = None,
) -> Found:
    """Tries the passphrase on key slots, each fetched and opened once. `run` runs a task to its end.

    `on_folders` is told the possible workspace folders by backend. `start` runs a task beside: listings then overlap
    with that call, and the newest keyring is fetched while a slot is opened. Unless `everywhere`, the search ends at
    the first backend that has the workspace; its config tells which folders on the others belong to it.
    """
    out = Found()
    for n, reply in run(each({n: Op(n, "list", "", timeout_s=SEARCH_TIMEOUT_S) for n in backends})).items():
        if reply.error is not None:
            out.failed[n] = reply.error
            continue
        folders = [e.name for e in reply.value if e.size is None and FOLDER.fullmatch(e.name)]
        out.unread[n] = folders[:FOLDERS_MAX]
    folders_of = dict(out.unread)
    turns = [list(out.unread)] if everywhere else [[n] for n in out.unread]
    for number, turn in enumerate(turns):
        if out.secret is not None:
            break
        asked = {
            f"{n} {folder}": Op(n, "list", f"{folder}/keys", timeout_s=SEARCH_TIMEOUT_S)
            for n in turn
            for folder in out.unread.pop(n)
        }
        begun = start(each(asked)) if start is not None and number == 0 else None
        if number == 0:
            on_folders(folders_of)
        for key, reply in (run(each(asked)) if begun is None else begun.result()).items():
            n, _, folder = key.partition(" ")
            if reply.error is not None:
                out.failed[n] = reply.error
            else:
                out.keys[n, folder] = [e.name for e in reply.value]
        if start is not None:
            _begin_ring(start, out)
        if number < len(turns) - 1 and sum(len(_slots(names)) for names in out.keys.values()) > FEW_SLOTS:
            continue
        _try_slots(name, passphrase, run, out, most=None if everywhere else MORE_TRIES)
    return out


def _slots(names: Iterable[str]) -> list[str]:
    return [x for x in names if _SLOT.fullmatch(x)]


def _begin_ring(start: Start, out: Found) -> None:
    """Begins to fetch the newest keyring, if only one folder was listed."""
    if len(out.keys) == 1:
        ((n, folder), names) = next(iter(out.keys.items()))
        for ring in _newest_first(x for x in names if _RING.fullmatch(x))[:1]:
            out.begun[n, ring] = start(each({n: _get(n, folder, ring, RING_BYTES_MAX)}))


def _get(n: str, folder: str, name: str, bytes_max: int) -> Op:
    return Op(n, "get", f"{folder}/keys/{name}", max_bytes=bytes_max, timeout_s=SEARCH_TIMEOUT_S)


def _newest_first(rings: Iterable[str]) -> list[str]:
    return sorted(rings, key=lambda r: (-int(r.split("-")[1]), r))


def _try_slots(name: str, passphrase: str, run: Run, out: Found, *, most: int | None) -> None:
    """Tries the slots that were listed so far. `most`: how many more once one opened; None: all."""
    phrase = phrase_in(passphrase)
    holders: dict[str, list[tuple[str, str]]] = {}
    for place, names in out.keys.items():
        for slot in _slots(names):
            if slot not in out.closed and (phrase or not slot.startswith(f"slot-{RECOVERY}-")):
                holders.setdefault(slot, []).append(place)
    copies = {slot: len({n for n, _ in places}) for slot, places in holders.items()}
    ranked = sorted(holders, key=lambda x: (-copies[x], x))
    bodies = _bodies({x: holders[x] for x in ranked[:SLOTS_MAX]}, run, out)
    order = trials(bodies, copies.__getitem__, out.spent_kib)
    out.left, out.newer = len(ranked[SLOTS_MAX:]) + order.left, order.newer
    more = len(order.names) if most is None else most
    for slot in order.names:
        if out.secret is not None and not more:
            break
        more -= out.secret is not None
        secret = _open(bodies[slot], passphrase, out)
        if secret is None:
            out.closed.add(slot)
            continue
        out.names.add(secret.name)
        if secret.name == name and (out.secret is None or out.secret.ns_id == secret.ns_id):
            out.secret = out.secret or secret
            out.secrets.append(secret)
            out.folders.update(holders[slot])


def _bodies(holders: Mapping[str, Sequence[tuple[str, str]]], run: Run, out: Found) -> dict[str, bytes]:
    """The bytes of slots, each from the first place that has them intact: all are asked for at once."""
    found: dict[str, bytes] = {}
    out.unheard, out.damaged = {}, set()
    for turn in range(max(map(len, holders.values()), default=0)):
        asked = {x: places[turn] for x, places in holders.items() if x not in found and turn < len(places)}
        for x, reply in run(each({x: _get(*place, x, SLOT_BYTES_MAX) for x, place in asked.items()})).items():
            if reply.error is not None:
                out.unheard.setdefault(x, f"{asked[x][0]}: {reply.error.message}")
            elif is_intact(x, reply.value):
                found[x] = bytes(reply.value)
            else:
                out.damaged.add(x)
    for x in found:
        out.unheard.pop(x, None)
        out.damaged.discard(x)
    return found


def _open(data: bytes, passphrase: str, out: Found) -> SlotSecret | None:
    out.tried += 1
    try:
        slot = read_slot(data)
        out.spent_kib += slot.cost.work_kib
        return open_slot(data, phrase_in(passphrase) if slot.kind == RECOVERY else passphrase)
    except (PassphraseError, FormatError, UpgradeError):
        return None


def require(out: Found, name: str, backends: list[str], passphrase: str) -> SlotSecret:
    """The secret that was searched for, or the error that says why there is none."""
    if out.secret is not None:
        return out.secret
    if len(out.failed) == len(backends):
        failed = sorted(out.failed.items())
        reasons = "; ".join(f"{n}: {e.message.removeprefix(f'{n}: ')}" for n, e in failed)
        steps = " ".join(dict.fromkeys(e.next_step for _, e in failed if e.next_step))
        raise UnreachableError(
            f"none of the backends answers ({reasons})", next_step=steps or "Check the URLs, then run again."
        )
    if out.names:
        raise WorkspaceError(
            f"the passphrase opens no workspace named {name!r} there, only {', '.join(sorted(map(repr, out.names)))}",
            next_step="Give one of these names.",
        )
    where = ", ".join(sorted(backends))
    if out.left:
        raise WorkspaceError(
            f"none of the {out.tried} key slots that were tried opens with this passphrase, and {out.left} more on "
            f"{where} were left untried: a workspace has two, and somebody put the others there{_untried(out)}",
            next_step="Check the passphrase. Then give fewer backends, those that you trust; or join by an invitation.",
        )
    if out.tried:
        slots = "does not open the key slot" if out.tried == 1 else f"opens none of the {out.tried} key slots"
        fault = phrase_fault(passphrase)
        raise PassphraseError(
            f"wrong passphrase: {fault.message if fault else f'it {slots} on {where}'}{_untried(out)}",
            next_step="Compare it with what you wrote down, or give the passphrase in its place."
            if fault
            else "Try again, or use the recovery phrase in its place.",
        )
    if out.unheard:
        raise UnreachableError(f"no key slot can be read{_untried(out)}", next_step="Run again, or give more backends.")
    if out.newer:
        raise UpgradeError(
            f"the key slots on {where} are of a newer version of MetaSync",
            next_step="Upgrade metasync on this device.",
        )
    if out.damaged:
        raise DamagedError(f"the key slots on {where} are damaged", next_step="Give more of the workspace's backends.")
    raise WorkspaceError(
        f"there is no workspace on {where}",
        next_step="Check the URLs; `metasync init` makes a new workspace.",
    )


def _untried(out: Found) -> str:
    """What was not tried for another reason than the number of slots, in brackets."""
    told = []
    if out.unheard:
        told.append(f"{len(out.unheard)} could not be read: {next(iter(out.unheard.values()))}")
    if out.newer:
        told.append(f"{out.newer} of a newer version of MetaSync")
    if out.damaged:
        told.append(f"{len(out.damaged)} damaged")
    if out.failed:
        told.append(f"{', '.join(sorted(out.failed))} did not answer")
    return f" ({'; '.join(told)})" if told else ""


@dataclass(frozen=True)
class Opening:
    """What a keyring gave: the keys and the admin's private key. `digest`: of the ring's bytes, as a state names it."""

    keys: WorkspaceKeys
    admin_private: bytes = field(repr=False)
    digest: bytes


def open_rings(out: Found, run: Run) -> Iterator[Opening]:
    """The keyrings that the passphrase opens, newest epoch first. `DamagedError` in the end if there was none.

    An agreed state tells which is in force: a change of keys that lost leaves a ring behind.
    """
    newer: UpgradeError | None = None
    rings: dict[str, list[tuple[str, str]]] = {}
    for place in out.folders.items():
        for ring in out.keys[place]:
            if _RING.fullmatch(ring):
                rings.setdefault(ring, []).append(place)
    found = False
    unheard: dict[str, str] = {}
    possible = [ring for ring in _newest_first(rings) if int(ring.split("-")[1]) <= CHAIN_MAX]
    possible.sort(key=lambda ring: 2 * len(rings[ring]) <= len(out.folders))  # what a few backends show comes last
    for ring in possible[:RINGS_MAX]:
        data = _fetched(ring, rings[ring], RING_BYTES_MAX, run, out, unheard)
        if data is None:
            continue
        for secret in out.secrets:
            try:
                keys = open_ring(data, secret.key, secret.ns_id, kind=SLOT_KEY)
                opening = Opening(keys, open_admin(data, secret.key, secret.ns_id), sha256(data))
            except UpgradeError as e:  # or made up: a backend can give any bytes the name of their hash, but not others
                newer = e if 2 * len(rings[ring]) > len(out.folders) else newer
            except (FormatError, PassphraseError):
                pass  # intact, and not ours: another copy of it is no better
            else:
                found = True
                yield opening
    if found:
        return
    if newer is not None:
        raise newer
    if unheard:
        raise UnreachableError(
            "no keyring of this workspace could be read: " + "; ".join(f"{n}: {why}" for n, why in unheard.items()),
            next_step="Run again, or give more of its backends.",
        )
    raise DamagedError(
        "no keyring of this workspace is intact on the backends given", next_step="Give more of its backends."
    )


def _fetched(
    name: str, places: list[tuple[str, str]], bytes_max: int, run: Run, out: Found, unheard: dict[str, str]
) -> bytes | None:
    """The bytes of a ring from the first place that has them intact; else `unheard` is told who did not answer."""
    silent: dict[str, str] = {}
    for n, folder in places:
        begun = out.begun.pop((n, name), None)
        reply = (begun.result() if begun is not None else run(each({n: _get(n, folder, name, bytes_max)})))[n]
        if reply.error is not None:
            silent[n] = reply.error.message
        elif is_intact(name, reply.value):
            return bytes(reply.value)
    unheard.update(silent)
    return None
