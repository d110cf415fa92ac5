"""What a restarted workspace begins with: its config, its device set, and what is left of the data (`recover`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from metasync.config import CHANGED_TAG, MOVING_TAG, Acceptor, BackendEntry, Config, RedundancyClass, Replicate, Storage
from metasync.consensus import BIRTH_NONCE_BYTES, State, birth_digest, birth_path, encode_birth
from metasync.consensus.new_era import Held
from metasync.errors import BackendError, MetaSyncError, NoQuorumError
from metasync.events import Notice, Phase
from metasync.keys.device_set import DeviceSet
from metasync.keys.policy import allowing
from metasync.members.found import ID_BYTES
from metasync.members.key_store import Opened
from metasync.runtime.effects import Op, each
from metasync.session.session import Agreed, Session
from metasync.store import moves, placement
from metasync.store.index import PackRecord
from metasync.transfer.copies import Place
from metasync.transfer.verify import has_copy, where_not


@dataclass
class New:
    """The config of the new era. `births`: nonces of its acceptors and of new storage ids. `notes`: what got less."""

    config: Config
    births: dict[bytes, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Left:
    """What is left of a state's data: its content, loaded, and the packs without any copy."""

    agreed: Agreed
    lost: tuple[PackRecord, ...]

    @property
    def lost_bytes(self) -> int:
        return sum(p.size for p in self.lost)


def content(s: Session, held: Held, lost: Collection[bytes]) -> Left:
    """What the new era begins with: the content of the value that was accepted last, or of the last agreed state."""
    agreed: Agreed | None = None
    carried = held.carried
    if carried is not None and carried.config == held.ended.config:
        try:
            agreed = s.load(carried)
        except MetaSyncError as e:
            text = f"what was proposed as version {carried.v} cannot be read here and is not carried over: {e.message}"
            s.listener(Notice(f"{text}. The device that proposed it has it, and pushes it again.", warning=True))
    elif carried is not None:
        text = f"a change of the backends that was proposed as version {carried.v} is not carried over"
        s.listener(Notice(text, warning=True))
    agreed = agreed or s.load(held.ended)
    s.listener(Phase("check"))
    return Left(agreed, tuple(_without_copy(s, agreed.index.packs().values(), lost)))


def _without_copy(s: Session, packs: Iterable[PackRecord], lost: Collection[bytes]) -> list[PackRecord]:
    """The packs of which no backend that is left holds a copy. `NoQuorumError` where one did not tell: the new era
    drops what is lost from the index, for good.
    """

    def others(record: PackRecord) -> list[Place]:
        return [p for p in s.transfer.read_order(record.name) if p.backend_id not in lost]

    silent: dict[bytes, BackendError] = {}
    alone = where_not(s.runtime, [(p, has_copy(others(p), p, silent)) for p in packs])
    for b in (b for b in s.config.backends if b.backend_id in silent):
        why = silent[b.backend_id].message.removeprefix(f"{b.name}: ")
        raise NoQuorumError(
            f"{b.name}, which is to be kept, does not say which packs it holds ({why})",
            next_step="Run again when it answers, or name it as lost too: --without NAME.",
        )
    return alone


def restarted(s: Session, old: Config, ended: State, lost: Collection[bytes]) -> New:
    """The config without the lost backends; every vote is a new one, on a root of its own."""
    new = New(old)
    entries = [_with_new_vote(s, b, new) for b in old.backends if b.backend_id not in lost]
    storing = sum(bool(b.storage) for b in entries)
    redundancy = tuple(replace(c, policy=_policy(c, storing, new)) for c in old.redundancy)
    n = sum(b.acceptor is not None for b in entries)
    mode, f = old.mode, old.f
    if mode == "bft" and n < 3 * f + 1:
        mode, f = "crash", 0
        new.notes.append(f"With {n} voting backends none of them may lie any more.")
    config = replace(old.with_backends(entries), redundancy=redundancy, mode=mode, f=f).tagged(CHANGED_TAG, None)
    for backend_id in placement.gaining(old, config):
        storage_id, nonce = s.entropy(ID_BYTES), s.entropy(BIRTH_NONCE_BYTES)
        new.births[storage_id] = nonce
        config = config.with_backends(
            [replace(b, storage=(*b.storage, Storage(storage_id, birth_digest(nonce))))
             if b.backend_id == backend_id else b for b in config.backends]
        )  # fmt: skip
    # The acceptors of the era before are found by it; what nobody has to move is settled with the next change.
    moving = (ended.index.generation, ended.index.hash)
    if s.previous is not None:  # data moved when the era ended: they may lie where they were before that, too
        config = moves.merged(s.previous, config, since=old)
    new.config = replace(config, prev_config=ended.config).tagged(MOVING_TAG, moving).check()
    return new


def restarted_devices(opened: Opened, state: State, ended: State, config: Config) -> DeviceSet:
    """The device set of the new era: the same devices, under a policy that its config can keep to."""
    old = opened.devices.policy
    first = {"era": ended.era + 1, "version": ended.v + 1, "keyring": state.keyring, "min_fmt": state.min_fmt}
    policy = allowing(old, config, opened.admin_private, **first)
    return replace(opened.devices, policy_data=policy.encode())


def _with_new_vote(s: Session, entry: BackendEntry, new: New) -> BackendEntry:
    if entry.acceptor is None:
        return entry
    acceptor_id, nonce = s.entropy(ID_BYTES), s.entropy(BIRTH_NONCE_BYTES)
    new.births[acceptor_id] = nonce
    return replace(entry, acceptor=Acceptor(acceptor_id, entry.acceptor.form, birth_digest(nonce)))


def _policy(c: RedundancyClass, storing: int, new: New) -> Replicate:
    copies = c.policy.losses + 1
    if copies > storing:
        new.notes.append(f"{copies} copies of everything were promised, and only {storing} can be kept now.")
    return Replicate(min(copies, storing)) if copies > storing else c.policy


def write_births(s: Session, new: New, ways: dict[bytes, str]) -> None:
    """The births of new storage ids; those of acceptors are written with all else that these must hold."""
    ops = {
        e.name: Op(
            ways[e.backend_id], "put", birth_path(x.storage_id), encode_birth(x.storage_id, new.births[x.storage_id])
        )
        for e in new.config.backends
        for x in e.storage
        if x.storage_id in new.births
    }
    for name, reply in sorted(s.runtime.run(each(ops)).items()):
        if reply.error is not None:
            raise reply.error.on(name)
