"""Finds, opens, stores and removes key files under `keys/` on the backends of an open workspace.

A slot is tried only if the agreed device set lists the id of its key, which whoever can write to a backend can copy
into slots of his own. So those that most backends hold are tried first, and of these the cheap ones. "Wrong
passphrase" is reported only after all reachable slots were tried (architecture.md, D11).
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from metasync.config import Config
from metasync.consensus import State
from metasync.errors import (
    NO_WAY,
    DamagedError,
    FormatError,
    NoQuorumError,
    NotFoundError,
    PassphraseError,
    UpgradeError,
    WorkspaceError,
)
from metasync.keys.device_set import DeviceSet
from metasync.keys.keyring import open_admin, read_ring
from metasync.keys.slots import (
    RECOVERY,
    SLOT_BYTES_MAX,
    PhraseFault,
    SlotSecret,
    is_intact,
    open_slot,
    phrase_fault,
    phrase_in,
    read_slot,
    trials,
)
from metasync.runtime.effects import Op, Reply, each
from metasync.session import agreement
from metasync.session.session import Session

FOLDER: Final = "keys"
ASK_TIMEOUT_S: Final = 10.0
PUT_TIMEOUT_S: Final = 30.0
SLOT_FILES_MAX: Final = 1024  # read in one look; a workspace has two, and a few of changes that were cut short
_SLOT: Final = re.compile(r"slot-[12]-([0-9a-f]{64})")


@dataclass
class KeyFiles:
    """Key files: `names` by backend, intact `slots` by name. `failed`: backends that did not answer, and why.

    `left`: how many slots were not read, because there are too many.
    """

    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    slots: dict[str, bytes] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    left: int = 0

    def holders(self, name: str) -> tuple[str, ...]:
        return tuple(sorted(b for b, names in self.names.items() if name in names))


@dataclass(frozen=True)
class Opened:
    """The slot that a passphrase opened, and the admin key of `state`'s epoch."""

    state: State
    devices: DeviceSet
    secret: SlotSecret
    admin_private: bytes = field(repr=False)
    files: KeyFiles


def look(s: Session, among: Collection[str] | None = None) -> KeyFiles:
    """Lists `keys/` on all linked backends, or on those in `among`, and fetches each slot once."""
    out = KeyFiles()
    asked_for = s.names.values() if among is None else among
    ops = {n: Op(n, "list", FOLDER, timeout_s=ASK_TIMEOUT_S) for n in asked_for}
    for n, reply in s.runtime.run(each(ops)).items():
        if isinstance(reply.error, NotFoundError):
            out.names[n] = ()
        elif reply.error is not None:
            out.failed[n] = reply.error.message
        else:
            out.names[n] = tuple(sorted(e.name for e in reply.value))
    copies = Counter(x for names in out.names.values() for x in names if _SLOT.fullmatch(x))
    wanted_all = frozenset(sorted(copies, key=lambda x: (-copies[x], x))[:SLOT_FILES_MAX])
    out.left = len(copies) - len(wanted_all)
    for n, names in sorted(out.names.items()):
        wanted = [x for x in names if x in wanted_all and x not in out.slots]
        asked = {x: Op(n, "get", f"{FOLDER}/{x}", max_bytes=SLOT_BYTES_MAX, timeout_s=ASK_TIMEOUT_S) for x in wanted}
        for x, reply in s.runtime.run(each(asked)).items():
            if reply.error is None and is_intact(x, reply.value):
                out.slots[x] = reply.value
    return out


def key_of(data: bytes) -> tuple[int, bytes] | None:
    """(kind, id of the key) of a slot; None for bytes that are no slot of this format."""
    try:
        slot = read_slot(data)
    except (FormatError, UpgradeError):
        return None
    return slot.kind, slot.recipient.key


def open_admin_key(s: Session, state: State, passphrase: str) -> Opened:
    """Opens the admin key of `state`'s epoch with the passphrase or the recovery phrase.

    `PassphraseError` once all slots within reach were tried, `NoQuorumError` or `DamagedError` when there is none;
    `WorkspaceError` where another device changed the keys since `state` was agreed, and so deleted the slots of these.
    """
    devices = s.devices_of(state)
    files = look(s)
    ring: bytes = s.runtime.run(s.group.get_ring(state))
    candidates = {name: data for name, data in files.slots.items() if key_of(data) in devices.slots}
    phrase = phrase_in(passphrase)
    usable = {name: data for name, data in candidates.items() if phrase or data[1] != RECOVERY}
    order = trials(usable, lambda name: len(files.holders(name)))
    for data in (usable[name] for name in order.names):
        try:
            secret = open_slot(data, phrase if data[1] == RECOVERY else passphrase)
            if read_ring(ring, state.ns_id).epoch == state.epoch and secret.ns_id == state.ns_id:
                admin = open_admin(ring, secret.key, state.ns_id)
                return Opened(state, devices, secret, admin, files)
        except (PassphraseError, FormatError, UpgradeError):
            continue
    if not candidates and not files.failed:
        _refuse_older(s, state)
    raise _closed(files, len(candidates), len(order.names), order.left + files.left, phrase_fault(passphrase))


def _refuse_older(s: Session, state: State) -> None:
    """`WorkspaceError` where a version with other keys was agreed since `state`. Without a quorum nobody knows."""
    with contextlib.suppress(NoQuorumError):
        if agreement.ask_newest(s, deadline_s=ASK_TIMEOUT_S).epoch != state.epoch:
            raise WorkspaceError(
                "another device changed the keys meanwhile; nothing was changed by this one", next_step="Run again."
            )


def _closed(files: KeyFiles, found: int, tried: int, left: int, fault: PhraseFault | None) -> Exception:
    away = f" ({', '.join(sorted(files.failed))} did not answer)" if files.failed else ""
    if left:
        return WorkspaceError(
            f"none of the {tried} key slots that were tried opens with this passphrase, and {left} more were left "
            f"untried: a workspace has two, and somebody put the others there{away}",
            next_step="Check the passphrase; then have the others deleted from `keys/` on the backends.",
        )
    if found and fault is not None:
        return PassphraseError(
            f"wrong passphrase: {fault.message}{away}",
            next_step="Compare it with what you wrote down, or give the passphrase in its place.",
        )
    if found:
        slots = "the key slot" if tried == 1 else f"any of the {tried} key slots"
        return PassphraseError(
            f"wrong passphrase: it does not open {slots} of the workspace{away}"
            if tried
            else f"the recovery phrase is wrong, and no key slot for a passphrase can be had{away}",
            next_step="Try again, or give the recovery phrase in its place. If another device changed the passphrase "
            "or the keys a moment ago, give the new one.",
        )
    if files.failed:
        return NoQuorumError(
            f"no key slot of the workspace can be had{away}", next_step="Run again when more backends are reachable."
        )
    return DamagedError(
        "no backend holds a key slot of the workspace", next_step="See `metasync key show`; `metasync backend link`."
    )


def store(s: Session, config: Config, files: Mapping[str, bytes]) -> tuple[tuple[str, str], ...]:
    """Puts objects on all linked backends. -> those that do not hold all of them, and why.

    `NoQuorumError` when fewer voters than a quorum hold them: nothing may build on them then.
    """
    linked = set(s.names.values())
    away = [e.name for e in config.backends if e.name not in linked]
    missing = {name: s.down.get(name, NO_WAY) for name in away}
    ops = {
        f"{n} {path}": Op(n, "put", path, data, timeout_s=PUT_TIMEOUT_S)
        for n in sorted(linked)
        for path, data in files.items()
    }
    replies: Mapping[str, Reply] = s.runtime.run(each(ops))
    for key, reply in sorted(replies.items()):
        if reply.error is not None:
            missing.setdefault(key.partition(" ")[0], reply.error.message)
    good = sum(e.name not in missing for e, _ in config.acceptors)
    if good < config.quorum:
        reasons = "; ".join(f"{n}: {why}" for n, why in sorted(missing.items()))
        raise NoQuorumError(
            f"the new keys are on {good} voting backends of {config.quorum} needed ({reasons}); nothing was changed",
            next_step="Run again when more backends are reachable.",
        )
    return tuple(sorted(missing.items()))


def remove(s: Session, holders: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Deletes objects below `keys/`, given as {name: backends}. -> backends that kept one."""
    ops = {
        f"{n} {name}": Op(n, "delete", f"{FOLDER}/{name}", timeout_s=ASK_TIMEOUT_S)
        for name, backends in holders.items()
        for n in backends
    }
    replies: Mapping[str, Reply] = s.runtime.run(each(ops))
    bad = (k for k, reply in replies.items() if reply.error is not None and not isinstance(reply.error, NotFoundError))
    return tuple(sorted({key.partition(" ")[0] for key in bad}))
