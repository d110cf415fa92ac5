"""Copies keyrings and key slots to backends that were away when the keys changed (architecture.md, D11).

Rings and slots are sealed and named by their hash, so copying them needs neither keys nor trust. The agreed state says
which copies count: it names the newest ring by hash; the admin keys of an older ring begin the device set's chain; the
device set lists the public keys of slots. A new passphrase may leave an older slot with the same public key on a
backend that was away. The one on a quorum of voting backends is in force, because a new one is put on a quorum first.

A slot is deleted only if an older agreed ring was sealed to it and all slots in force were seen: any other one may
belong to a change that is under way. It goes from a backend only once the slots in force lie there, so that there is
always one that opens.

A push lists `keys/` once after every change of the keys, and later on backends that gave no answer. `check` does
always.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from metasync.errors import FormatError, MetaSyncError, UpgradeError
from metasync.events import Notice
from metasync.keys.keyring import FIRST_EPOCH, RING_BYTES_MAX, read_ring, ring_place
from metasync.keys.slots import KINDS, is_intact
from metasync.local.state_keys import KEY_COPIES_KEY, KeyCopies, PendingKeys
from metasync.members import key_store
from metasync.members.key_store import ASK_TIMEOUT_S, FOLDER, PUT_TIMEOUT_S
from metasync.runtime.effects import Op, each

if TYPE_CHECKING:
    from metasync.config import Config
    from metasync.consensus import State
    from metasync.keys.device_set import DeviceSet
    from metasync.keys.keyring import Ring
    from metasync.members.key_store import KeyFiles
    from metasync.runtime.effects import Reply
    from metasync.session.session import Session

AGAIN_S: Final = 3600.0  # a backend that takes no copy, or that is not heard, is tried again after so long
SAME_EPOCH_MAX: Final = 8  # rings of one epoch that are read: two devices may change the keys at once, not many
FETCHES_MAX: Final = 256  # rings read in one look: anybody who may write to a store can leave names there
_RING: Final = re.compile(r"ring-([0-9]{1,9})-([0-9a-f]{64})")


@dataclass
class Copies:
    """What a look found: names below `keys/`.

    rings     agreed rings by epoch; an epoch without one has none intact within reach
    slots     slots in force by (kind, id of the key)
    unclear   (kind, id of the key) of which several slots are there, and none is in force for certain
    lacking   by backend: names that it does not hold intact
    old       slots of older epochs: name -> holders
    stale     slots of an older passphrase: name -> holders
    """

    files: KeyFiles
    rings: dict[int, str] = field(default_factory=dict)
    slots: dict[tuple[int, bytes], str] = field(default_factory=dict)
    unclear: list[tuple[int, bytes]] = field(default_factory=list)
    lacking: dict[str, tuple[str, ...]] = field(default_factory=dict)
    old: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stale: dict[str, tuple[str, ...]] = field(default_factory=dict)
    bodies: dict[str, bytes | None] = field(default_factory=dict)  # rings that were read; None: no copy is intact

    def wanted(self) -> tuple[str, ...]:
        return (*self.rings.values(), *self.slots.values())


# What is noted between operations.


def _noted(s: Session) -> KeyCopies:
    """The note. A damaged one costs a look."""
    return s.db.get(KEY_COPIES_KEY) or KeyCopies(0 if s.db.has(KEY_COPIES_KEY) else FIRST_EPOCH, {})


def note(s: Session, epoch: int, away: Collection[str], refusing: Collection[str] = ()) -> None:
    """Notes which backends lack something, or may hold too much: those `away`, and those that were heard."""
    ids = {name: backend_id.hex() for backend_id, name in s.names.items()}
    due_s = s.wall_ns() / 1e9 + AGAIN_S
    told = {ids[n]: PendingKeys(n in away, due_s) for n in (*away, *refusing) if n in ids}
    s.db.set(KEY_COPIES_KEY, KeyCopies(epoch, told))


def warnings(s: Session) -> tuple[str, ...]:
    """Names the backends that may lack the newest keys, from the note alone."""
    names = [n for i, n in s.names.items() if i.hex() in _noted(s).pending]
    if not names:
        return ()
    return (
        f"{', '.join(sorted(names))}: the newest keyring and key slots may be missing there, so that no new device can "
        "be cloned from there alone; a push brings them once it answers",
    )


# Bringing what is missing.


def bring(s: Session) -> None:
    """Brings missing rings and slots after a push, if the note says that any may be missing."""
    state, noted = s.newest_state(), _noted(s)
    due = [n for i, n in s.names.items() if i.hex() in noted.pending and _is_due(s, n, noted.pending[i.hex()])]
    if noted.epoch == state.epoch and not due:
        return
    with contextlib.suppress(MetaSyncError):  # nothing waits for it; a later push tries again
        found = look(s, state, [n for n in s.names.values() if n in due or _answers(s, n)])
        brought = _bring(s, found)
        _settle(s, state, found)
        if brought:
            s.listener(Notice(_told(brought)))


def _is_due(s: Session, name: str, pending: PendingKeys) -> bool:
    left_s = pending.due_s - s.wall_ns() / 1e9
    return (pending.away and _answers(s, name)) or not 0 < left_s <= AGAIN_S


def _answers(s: Session, name: str) -> bool:
    standing = s.group.standings.get(name)
    well = standing is None or standing.kind in ("ok", "unknown")
    return well and name not in s.down and name not in s.transfer.down


def _settle(s: Session, state: State, found: Copies) -> None:
    """Deletes what is old where all slots in force lie, and notes where something is left to do."""
    in_force = set(found.slots.values())
    without = {b for b, names in found.lacking.items() if not in_force.isdisjoint(names)}
    left = key_store.remove(s, {n: tuple(b for b in there if b not in without) for n, there in found.old.items()})
    noted = _noted(s)
    doubtful = {n for i, n in s.names.items() if i.hex() in noted.pending or noted.epoch != state.epoch}
    silent = doubtful - found.files.names.keys()  # one that had all of it when it was heard last has it still
    note(s, state.epoch, silent, (*left, *found.lacking))


def _bring(s: Session, found: Copies) -> dict[str, tuple[str, ...]]:
    """Copies each missing object to all backends that lack it. -> {backend: names}. Failures stay in `lacking`."""
    brought: dict[str, list[str]] = {}
    for name in found.wanted():
        lack = [b for b, names in found.lacking.items() if name in names]
        data = (found.files.slots.get(name) or _ring_of(s, found, name)) if lack else None
        if data is None:
            continue
        ops = {b: Op(b, "put", f"{FOLDER}/{name}", data, timeout_s=PUT_TIMEOUT_S) for b in lack}
        for b, reply in s.runtime.run(each(ops)).items():
            if reply.error is None:
                brought.setdefault(b, []).append(name)
    for b, names in brought.items():
        rest = tuple(n for n in found.lacking[b] if n not in names)
        found.lacking = {**found.lacking, b: rest} if rest else {k: v for k, v in found.lacking.items() if k != b}
    return {b: tuple(names) for b, names in brought.items()}


def give(s: Session, state: State, name: str) -> dict[str, bytes]:
    """Key files for a backend that is added: {path: bytes}. Of several slots for one key, the most common one."""
    found = look(s, state, [n for n in s.names.values() if n != name and n not in s.down])
    out: dict[str, bytes] = {}
    for public in found.unclear:
        same = [x for x, data in found.files.slots.items() if key_store.key_of(data) == public]
        found.slots[public] = max(same, key=lambda x: (len(found.files.holders(x)), x))
    for wanted in found.wanted():
        data = found.files.slots.get(wanted) or _ring_of(s, found, wanted)
        if data is not None:
            out[f"{FOLDER}/{wanted}"] = data
    return out


# Looking.


def look(s: Session, state: State, names: Collection[str], *, read_data: bool = False) -> Copies:
    """Finds what these backends hold of the key files that all should hold. `read_data` reads every copy."""
    devices, config = s.devices_of(state), s.config_of(state)
    found = Copies(key_store.look(s, names))
    _find_rings(s, state, devices, found)
    _find_slots(devices, config, found)
    altered = _altered(s, found) if read_data else {}
    for b, held in found.files.names.items():
        bad = altered.get(b, ())
        if lack := tuple(n for n in found.wanted() if n not in held or n in bad):
            found.lacking[b] = lack
    if len(found.slots) == len(devices.slots):
        _find_old(s, state, devices, found)
    return found


def _find_rings(s: Session, state: State, devices: DeviceSet, found: Copies) -> None:
    by_epoch: dict[int, list[str]] = {}
    for name in {n for names in found.files.names.values() for n in names}:
        if match := _RING.fullmatch(name):
            by_epoch.setdefault(int(match[1]), []).append(name)
    for epoch in range(FIRST_EPOCH, state.epoch):
        names = sorted(by_epoch.get(epoch, ()), key=lambda n: (-len(found.files.holders(n)), n))
        if len(names) == 1 and len(found.files.holders(names[0])) == len(found.files.names):
            found.rings[epoch] = names[0]  # one and the same everywhere: nothing is to be copied
            continue
        for name in names[:SAME_EPOCH_MAX]:
            ring = _read(_ring_of(s, found, name))
            if ring is not None and ring.chain.keys == devices.chain.keys[:epoch]:
                found.rings[epoch] = name
                break
    newest = ring_place(state.epoch, state.keyring).rpartition("/")[2]
    if newest in by_epoch.get(state.epoch, ()):
        found.rings[state.epoch] = newest


def _ring_of(s: Session, found: Copies, name: str) -> bytes | None:
    """A ring's bytes, from the first backend that has them intact; each is fetched once."""
    if name not in found.bodies and len(found.bodies) < FETCHES_MAX:
        found.bodies[name] = None
        for b in found.files.holders(name):
            reply: Reply = s.runtime.run(each({b: _get(b, name)}))[b]
            if reply.error is None and is_intact(name, reply.value):
                found.bodies[name] = reply.value
                break
    return found.bodies.get(name)


def _get(backend: str, name: str) -> Op:
    return Op(backend, "get", f"{FOLDER}/{name}", max_bytes=RING_BYTES_MAX, timeout_s=ASK_TIMEOUT_S)


def _read(data: bytes | None) -> Ring | None:
    if data is None:
        return None
    try:
        return read_ring(data)
    except (FormatError, UpgradeError):
        return None


def _find_slots(devices: DeviceSet, config: Config, found: Copies) -> None:
    """Finds the slots in force. None is certain while fewer backends than a quorum were heard."""
    voters = {e.name for e, _ in config.acceptors}
    heard = len(voters & found.files.names.keys()) >= config.quorum
    for public in devices.slots:
        names = [n for n, data in sorted(found.files.slots.items()) if key_store.key_of(data) == public]
        on_quorum = [n for n in names if len(voters.intersection(found.files.holders(n))) >= config.quorum]
        if len(names) == 1 and heard:
            found.slots[public] = names[0]
        elif len(on_quorum) == 1:
            found.slots[public] = on_quorum[0]
            found.stale |= {n: found.files.holders(n) for n in names if n != on_quorum[0]}
        elif names:
            found.unclear.append(public)


def _find_old(s: Session, state: State, devices: DeviceSet, found: Copies) -> None:
    """Finds slots that open agreed rings of older epochs only. Reads those rings if a slot has no known use."""
    strange = {
        n: public[1]
        for n, data in found.files.slots.items()
        if (public := key_store.key_of(data)) is not None and public not in devices.slots
    }
    for epoch in range(state.epoch - 1, 0, -1):
        if not strange:
            return
        ring = _read(_ring_of(s, found, found.rings[epoch])) if epoch in found.rings else None
        if ring is None or ring.chain.keys != devices.chain.keys[:epoch]:
            continue
        opens = {recipient.key for recipient, _ in ring.admin_wraps}
        for name in [n for n, public in strange.items() if public in opens]:
            found.old[name] = found.files.holders(name)
            del strange[name]


def _altered(s: Session, found: Copies) -> dict[str, set[str]]:
    """Copies whose bytes are not those of their name, or cannot be read, by backend."""
    out: dict[str, set[str]] = {}
    for name in found.wanted():
        ops = {b: _get(b, name) for b in found.files.holders(name)}
        for b, reply in s.runtime.run(each(ops)).items():
            if reply.error is not None or not is_intact(name, reply.value):
                out.setdefault(b, set()).add(name)
    return out


# Checking.


def check(
    s: Session, state: State, ill: Collection[str], *, read_data: bool
) -> tuple[list[tuple[str, str]], list[str]]:
    """-> (problems as (backend, consequence), notes on what was put right). Asks no backend that is `ill`."""
    names = [n for n in s.names.values() if n not in s.down and n not in ill]
    found = look(s, state, names, read_data=read_data)
    brought = _bring(s, found)
    _settle(s, state, found)
    problems = [(b, _missing(found, b)) for b in sorted(found.lacking)]
    problems += [("all backends", text) for text in _nowhere(s, state, found)]
    notes = [_told(brought)] if brought else []
    for name, holders in sorted(found.stale.items()):
        notes.append(
            f"{', '.join(holders)}: an older {_kind(name)} still opens a key slot there; "
            "`metasync key change-passphrase` again, with the passphrase of today as the new one, removes it"
        )
    return problems, notes


def lacks(s: Session, state: State, names: Collection[str]) -> list[str]:
    """What these backends do not have among them, so that no new device can enter: sentences. Brings nothing."""
    return _nowhere(s, state, look(s, state, names))


def _missing(found: Copies, backend: str) -> str:
    lack = found.lacking[backend]
    newest = max(found.rings, default=0)
    texts = []
    for epoch, name in sorted(found.rings.items()):
        if name in lack:
            who = "who reaches" if epoch == newest else "a device that slept since then and reaches"
            texts.append(f"the keyring of epoch {epoch} is missing: {who} this backend alone cannot get these keys")
    kinds = [_kind(name) for name in found.slots.values() if name in lack]
    if kinds:
        texts.append(f"the key slot of the {' and of the '.join(kinds)} is missing: it opens nothing there")
    return "; ".join(texts)


def _nowhere(s: Session, state: State, found: Copies) -> list[str]:
    """Problems of key files that no answering backend holds."""
    texts = []
    for epoch in sorted({*range(FIRST_EPOCH, state.epoch + 1)} - found.rings.keys()):
        who = "no device can follow or be cloned" if epoch == state.epoch else "devices that slept since cannot follow"
        texts.append(f"no intact keyring of epoch {epoch} is on any backend that answers: {who}")
    for kind, public in s.devices_of(state).slots:
        what = KINDS[kind]
        if (kind, public) in found.unclear:
            texts.append(
                f"which key slot of the {what} is in force cannot be told: backends hold different ones; "
                "`metasync key change-passphrase` makes one of them"
            )
        elif (kind, public) not in found.slots and len(found.files.names) > len(found.files.failed):
            texts.append(
                f"no key slot of the {what} is on any backend that answers: it opens nothing; `metasync key rotate` "
                "with the other secret makes new ones"
            )
    return texts


def _kind(slot: str) -> str:
    return KINDS[int(slot.split("-")[1])]


def _told(brought: Mapping[str, tuple[str, ...]]) -> str:
    return f"brought keyrings and key slots to {', '.join(sorted(brought))}, where they were missing"
