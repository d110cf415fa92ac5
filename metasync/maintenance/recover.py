"""`recover`: begins a new era on the backends that are left of a lost majority (consensus.md, rule 5.2).

What is agreed with whom is in `consensus.new_era`. Here: what the new config looks like, what of the data is left, and
what of it this folder can give back. Packs of which no backend that is left holds a copy leave the index, so that no
push takes for stored what is lost; the files of them that stand in this folder as they were agreed are stored anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from metasync.config import CHANGED_TAG, MOVING_TAG, Acceptor, BackendEntry, Config, RedundancyClass, Replicate, Storage
from metasync.consensus import (
    BIRTH_NONCE_BYTES,
    JOURNAL_KEY,
    ZERO_HASH,
    Change,
    EraRecord,
    Ref,
    State,
    birth_digest,
    birth_path,
    encode_birth,
)
from metasync.consensus.eras import find_record
from metasync.consensus.new_era import Content, Held, answering, begin, end_era
from metasync.consensus.new_era import held as look
from metasync.errors import (
    BackendError,
    DamagedError,
    MetaSyncError,
    NoQuorumError,
    PassphraseError,
    UsageError,
)
from metasync.events import Notice, Phase
from metasync.keys.device_set import DeviceSet
from metasync.keys.policy import allowing
from metasync.local.state_keys import UNFINISHED_KEY
from metasync.maintenance.reconfigure import has_copy, where_not
from metasync.maintenance.repair import give_back
from metasync.members.found import ID_BYTES
from metasync.members.key_store import Opened, open_admin_key
from metasync.reports.backends import RecoverReport
from metasync.runtime.effects import Op, each
from metasync.session import agreement
from metasync.session.folder import BASE_KEY
from metasync.session.session import Agreed, Session
from metasync.store import index as pack_index
from metasync.store import placement
from metasync.store.index import IndexRoot, IndexSegment, PackRecord
from metasync.transfer.copies import Place


@dataclass
class _New:
    """The config of the new era. `births`: nonces of its acceptors and of new storage ids. `notes`: what got less."""

    config: Config
    births: dict[bytes, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Left:
    """What is left of a state's data: its content, loaded, and the packs without any copy."""

    agreed: Agreed
    lost: tuple[PackRecord, ...]

    @property
    def lost_bytes(self) -> int:
        return sum(p.size for p in self.lost)


def recover(
    s: Session, without: Sequence[str], passphrase: str, *, confirm: str = "", dry_run: bool = False
) -> RecoverReport:
    """Begins a new era without these backends, or goes on with one that was begun.

    `UsageError`: the others, or those that answer, make a quorum, or none of them votes. `NoQuorumError`: one of the
    others does not answer. `PassphraseError`; `ForkError` when the workspace was restarted twice. `DamagedError`: what
    the newest version names is not to be had here. Run again after any failure.
    """
    if not without:
        raise UsageError("no backend is named", next_step="Name those that are lost: --without NAME.")
    if not dry_run and confirm != s.name:
        raise UsageError(
            f"to restart the workspace, its name {s.name!r} is to be given, not {confirm!r}",
            next_step="Type it where it is asked for, or give it with --confirm.",
        )
    known = s.newest_state()
    with contextlib.suppress(NoQuorumError, BackendError, DamagedError):
        known = agreement.newest_seen(s).state
        agreement.remember(s, known)
    m = s.group.participant
    record: EraRecord | None = s.runtime.run(find_record(m, known.era + 1, list(m.links.values())))
    lost = _lost(s.config, without)
    if record is None:
        _refuse(s, known, lost)
    before = placement.survives(s.config)
    if record is not None and not dry_run:
        s.runtime.run(end_era(m, s.group.enter, known, lost))
        return _finish(s, before, (), resumed=True)
    held: Held = s.runtime.run(look(m, s.group.enter, known))
    if dry_run:
        left = _content(s, held, lost)
        new = _restarted(s, left.agreed.config, held.ended, lost, _packs(left))
        return _report(s, held, left, new, before, without, dry_run=True)
    open_admin_key(s, held.ended, passphrase)  # before anything is changed
    s.listener(Phase("retire"))
    found = s.runtime.run(end_era(m, s.group.enter, known, lost))
    if isinstance(found, EraRecord):
        return _finish(s, before, (), resumed=True)
    return _begin(s, found, lost, without, passphrase, before)


def _begin(
    s: Session, held: Held, lost: Collection[bytes], without: Sequence[str], passphrase: str, before: str
) -> RecoverReport:
    left = _content(s, held, lost)
    opened, state = _keys_of(s, held, left.agreed.state, passphrase)
    agreed = left.agreed
    new = _restarted(s, agreed.config, held.ended, lost, _packs(left))
    ways = {b.backend_id: s.names[b.backend_id] for b in new.config.backends}
    _write_births(s, new, ways)
    segments = [*agreed.segments]
    if left.lost:
        segments.append(IndexSegment((), b"", tuple(sorted((p.generation, p.name) for p in left.lost))))
    items = [
        pack_index.RootItem(pack_index.Ref(0, ZERO_HASH), len(pack_index.encode_segment(g)), len(g), len(g.packs))
        for g in segments
    ]

    def make_root(refs: Sequence[Ref]) -> bytes:
        named = tuple(i._replace(ref=pack_index.Ref(*r)) for i, r in zip(items, refs, strict=True))
        return pack_index.encode_root(IndexRoot(named, agreed.root.tags))

    content = Content(
        config=new.config,
        births={a.acceptor_id: new.births[a.acceptor_id] for _, a in new.config.acceptors},
        devices=_restarted_devices(opened, state, held.ended, new.config).encode(),
        state=state,
        op_id=s.entropy(ID_BYTES),
        segments=[pack_index.encode_segment(g) for g in segments],
        make_root=make_root if segments else None,
        retained=s.runtime.run(s.group.get_meta(state.retained)),
        carried=held.carried if agreed.state == held.carried else None,
        without=tuple(sorted(without)),
        at_ns=s.wall_ns(),
        links={a.acceptor_id: ways[b.backend_id] for b, a in new.config.acceptors},
    )
    s.listener(Phase("agree"))
    task = begin(s.group.participant, s.group.enter, held.ended, content, opened.devices.chain, opened.admin_private)
    s.runtime.run(task)
    return _finish(s, before, new.notes, held=held, left=left)


# What may be done.


def _lost(config: Config, without: Sequence[str]) -> set[bytes]:
    """The ids of the backends of these names."""
    entries = {b.name: b for b in config.backends}
    for name in without:
        if name not in entries:
            raise UsageError(
                f"no backend of this workspace is called {name!r}", next_step=f"They are: {', '.join(sorted(entries))}."
            )
    lost = {entries[name].backend_id for name in without}
    voting = [b for b, _ in config.acceptors if b.backend_id not in lost]
    if not voting:
        raise UsageError(
            "no voting backend would be left, and so nothing that knows what was agreed",
            next_step="Clone what can be read elsewhere, or make a new workspace of this folder's files.",
        )
    if not any(b.storage for b in config.backends if b.backend_id not in lost):
        raise UsageError("no backend that holds data would be left", next_step="Keep one that does.")
    return lost


def _refuse(s: Session, known: State, lost: Collection[bytes]) -> None:
    """`UsageError` where the workspace can go on without a restart; `NoQuorumError` where one that is left is away."""
    config, needed = s.config, s.config.quorum
    left = [b.name for b, _ in config.acceptors if b.backend_id not in lost]
    if len(left) >= needed:
        raise UsageError(
            f"the {len(left)} other voting backends make a quorum of {needed}: nothing is lost for good",
            next_step="`metasync backend remove NAME` takes a dead backend out, one after the other.",
        )
    well = sorted(s.runtime.run(answering(s.group.participant, s.group.enter, known)))
    retired = {
        b.name for b, a in config.acceptors if a.acceptor_id in s.group.participant.tombstones
    }  # by an earlier try
    voters = [name for name in well if name not in retired]
    if len(voters) >= needed:
        raise UsageError(
            f"{', '.join(voters)} answer, which is a quorum of {needed}: the workspace can go on as it is",
            next_step="`metasync backend remove NAME` takes a backend out without losing what it alone knows.",
        )
    away = {name: s.group.standings[name] for name in left if name not in well}
    if away:
        reasons = "; ".join(f"{name}: {x.reason or x.kind}" for name, x in sorted(away.items()))
        raise NoQuorumError(
            f"a backend that is to be kept does not answer as it should ({reasons}); nothing was changed",
            next_step="Run again when it answers, or name it as lost too.",
        )
    unlinked = sorted(b.name for b in config.backends if b.backend_id not in lost and b.backend_id not in s.names)
    if unlinked:
        raise NoQuorumError(
            f"this device has no way to {', '.join(unlinked)}; nothing was changed",
            next_step="`metasync backend link NAME URL` first, or name it as lost too.",
        )


# What there is to go on from.


def _content(s: Session, held: Held, lost: Collection[bytes]) -> _Left:
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
    return _Left(agreed, tuple(_without_copy(s, agreed.index.packs().values(), lost)))


def _without_copy(s: Session, packs: Iterable[PackRecord], lost: Collection[bytes]) -> list[PackRecord]:
    def others(record: PackRecord) -> list[Place]:
        return [p for p in s.transfer.read_order(record.name) if p.backend_id not in lost]

    return where_not(s, [(p, has_copy(others(p), p)) for p in packs])


def _packs(left: _Left) -> list[PackRecord]:
    gone = {(p.generation, p.name) for p in left.lost}
    return [p for key, p in left.agreed.index.packs().items() if key not in gone]


def _keys_of(s: Session, held: Held, state: State, passphrase: str) -> tuple[Opened, State]:
    """The admin key to sign with, and `state` with the keys that it is for.

    A change of keys that was proposed last and not seen decided is carried too, where its keyring opens: whom it
    revoked must not come back by a restart.
    """
    if state.epoch > held.ended.epoch:
        try:
            s.follow_keys(state)
            return open_admin_key(s, state, passphrase), state
        except (BackendError, DamagedError, NoQuorumError, PassphraseError) as e:
            text = f"a change of keys that was proposed as version {state.v} is not carried over: {e.message}"
            s.listener(Notice(f"{text}. Look at `metasync device list`.", warning=True))
    opened = open_admin_key(s, held.ended, passphrase)
    if state.epoch == held.ended.epoch:
        with contextlib.suppress(MetaSyncError):
            opened = replace(opened, devices=s.devices_of(state))
    return opened, replace(state, epoch=held.ended.epoch, keyring=held.ended.keyring)


def _restarted(s: Session, old: Config, ended: State, lost: Collection[bytes], packs: Sequence[PackRecord]) -> _New:
    """The config without the lost backends; every vote is a new one, on a root of its own."""
    new = _New(old)
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
    new.config = replace(config, prev_config=ended.config).tagged(MOVING_TAG, moving).check()
    return new


def _restarted_devices(opened: Opened, state: State, ended: State, config: Config) -> DeviceSet:
    """The device set of the new era: the same devices, under a policy that its config can keep to."""
    old = opened.devices.policy
    first = {"era": ended.era + 1, "version": ended.v + 1, "keyring": state.keyring, "min_fmt": state.min_fmt}
    policy = allowing(old, config, opened.admin_private, **first)
    return replace(opened.devices, policy_data=policy.encode())


def _with_new_vote(s: Session, entry: BackendEntry, new: _New) -> BackendEntry:
    if entry.acceptor is None:
        return entry
    acceptor_id, nonce = s.entropy(ID_BYTES), s.entropy(BIRTH_NONCE_BYTES)
    new.births[acceptor_id] = nonce
    return replace(entry, acceptor=Acceptor(acceptor_id, entry.acceptor.form, birth_digest(nonce)))


def _policy(c: RedundancyClass, storing: int, new: _New) -> Replicate:
    copies = c.policy.losses + 1
    if copies > storing:
        new.notes.append(f"{copies} copies of everything were promised, and only {storing} can be kept now.")
    return Replicate(min(copies, storing)) if copies > storing else c.policy


def _write_births(s: Session, new: _New, ways: dict[bytes, str]) -> None:
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


# After the era began.


def _finish(
    s: Session,
    before: str,
    notes: Sequence[str],
    *,
    resumed: bool = False,
    held: Held | None = None,
    left: _Left | None = None,
) -> RecoverReport:
    """Follows the record as any other device does, gives back what this folder has, and confirms that all works."""
    first = agreement.ask_newest(s)
    agreement.settle_journal(s)
    agreed = s.load(first)
    healed, missing = give_back(s, agreed)
    change = Change(op_id=s.entropy(ID_BYTES), index=healed[0])
    decided = agreement.propose(s, first, change)
    s.db.set(JOURNAL_KEY, None)
    with contextlib.suppress(BackendError, NoQuorumError):
        s.runtime.run(s.group.write_hint(first, decided.state, now=True, everywhere=True))
    state = decided.state
    if s.base_state().master == state.master and not s.db.has(UNFINISHED_KEY):
        s.load(state)
        s.db.set(BASE_KEY, state)
    record = s.group.participant.followed.get(state.era)
    return RecoverReport(
        era=state.era,
        version=state.v,
        fingerprint=state.fingerprint,
        dry_run=False,
        without=record.without if record is not None else (),
        newest=record.ended.v if record is not None else 0,
        newest_fingerprint=record.ended.fingerprint if record is not None else "",
        carried=record is not None and record.carried is not None,
        before=before,
        after=placement.survives(s.config),
        lost_packs=len(left.lost) if left is not None else 0,
        lost_bytes=left.lost_bytes if left is not None else 0,
        stored_again=healed[1],
        missing=tuple(missing),
        resumed=resumed,
        notes=tuple(notes),
    )


def _report(
    s: Session, held: Held, left: _Left, new: _New, before: str, without: Sequence[str], *, dry_run: bool
) -> RecoverReport:
    return RecoverReport(
        era=held.ended.era + 1,
        version=None,
        fingerprint="",
        dry_run=dry_run,
        without=tuple(sorted(without)),
        newest=held.ended.v,
        newest_fingerprint=held.ended.fingerprint,
        carried=held.carried is not None and left.agreed.state == held.carried,
        before=before,
        after=placement.survives(new.config),
        lost_packs=len(left.lost),
        lost_bytes=left.lost_bytes,
        notes=tuple(new.notes),
    )
