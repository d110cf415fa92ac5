"""`recover`: begins a new era on the backends that are left of a lost majority (consensus.md, rule 5.2), or on all of
them past a version that can be agreed no more (rule 5.5).

What is agreed with whom is in `consensus.new_era`. Here: what the new config looks like, what of the data is left, and
what of it this folder can give back. Packs of which no backend that is left holds a copy leave the index, so that no
push takes for stored what is lost; the files of them that stand in this folder as they were agreed are stored anew.

A device that is revoked with it has no part in the new era: this has keys of its own, which `members.rotation` makes as
for any revocation. They lie on a quorum before the record is written, which is sealed with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict, Unpack

from metasync.config import Config
from metasync.consensus import (
    ZERO_HASH,
    EraRecord,
    Ref,
    State,
    birth_path,
)
from metasync.consensus.eras import find_record, is_withdrawn
from metasync.consensus.new_era import Content, Held, answering, begin, end_era, seen_before, spread_record, unfenced
from metasync.consensus.new_era import held as look
from metasync.errors import (
    CANNOT_BE_READ,
    BackendError,
    DamagedError,
    MetaSyncError,
    NoQuorumError,
    NotFoundError,
    PassphraseError,
    UsageError,
)
from metasync.events import Notice, Phase
from metasync.keys.derive import sha256
from metasync.keys.device_set import Certificate, DeviceSet, names_of
from metasync.keys.keyring import ring_path
from metasync.keys.slots import COST, Cost, NewSlots
from metasync.maintenance.repair.give_back import give_back, name_in_index
from metasync.maintenance.restarted import Left, New, content, restarted, restarted_devices, write_births
from metasync.members import key_store, rotation
from metasync.members.devices import chosen
from metasync.members.found import ID_BYTES
from metasync.members.key_store import Opened, open_admin_key
from metasync.reports.backends import RecoverReport
from metasync.runtime.effects import Op, each
from metasync.runtime.sizes import SMALL_BYTES_MAX
from metasync.session import agreement
from metasync.session.session import Session
from metasync.store import index as pack_index
from metasync.store import placement
from metasync.store.index import IndexRoot


@dataclass(frozen=True)
class _Wanted:
    """What the user asked for. `lost`: ids of the backends `without`; `gone`: the devices that `revoke` means.

    `ended`: acceptors that can take no part in the next version any more, and why. `before`: what the workspace
    survives now.
    """

    without: tuple[str, ...]
    lost: frozenset[bytes]
    ended: tuple[tuple[str, str], ...]
    before: str
    revoke: Sequence[str]
    gone: tuple[Certificate, ...]
    passphrase: str = field(repr=False)
    new_passphrase: str | None = field(repr=False)
    cost: Cost


class Options(TypedDict, total=False):
    """How a workspace is restarted.

    revoke          devices that have no part in the new era, by name or by the beginning of their id
    new_passphrase  with `revoke`: the one that is to be in place of the old; None keeps it
    confirm         the workspace's name, as a sign that this is meant
    dry_run         changes nothing; a passphrase is checked if it is given
    """

    revoke: Sequence[str]
    new_passphrase: str | None
    confirm: str
    dry_run: bool


def recover(
    s: Session, without: Sequence[str], passphrase: str, *, cost: Cost = COST, **options: Unpack[Options]
) -> RecoverReport:
    """Begins a new era without these backends and devices, or goes on with one that was begun.

    `UsageError`: the others, or those that answer, can agree, or none of them votes; a device that is none, or this
    one. `NoQuorumError`: one of the others does not answer. `PassphraseError`; `ForkError` when the workspace was
    restarted twice. `DamagedError`: what the newest version names is not to be had here. Run again after any failure.
    """
    revoke, new_passphrase = options.get("revoke", ()), options.get("new_passphrase")
    confirm, dry_run = options.get("confirm", ""), options.get("dry_run", False)
    if not dry_run and confirm != s.name:
        raise UsageError(
            f"to restart the workspace, its name {s.name!r} is to be given, not {confirm!r}",
            next_step="Type it where it is asked for, or give it with --confirm.",
        )
    rotation.check_new(new_passphrase)
    m, before = s.group.participant, placement.survives(s.config)
    known = began = s.newest_state()
    with contextlib.suppress(NoQuorumError, BackendError, DamagedError):
        known = s.runtime.run(seen_before(m, s.group.enter, began))
        s.load(known)  # with the keys that it is for
    begun = m.followed.get(known.era) if known.era > began.era else None
    if begun is not None and dry_run:
        return _would_go_on(begun, before)
    with contextlib.suppress(NoQuorumError, BackendError, DamagedError):
        if begun is not None:
            s.runtime.run(spread_record(m, s.group.enter, begun))
    with contextlib.suppress(NoQuorumError, BackendError, DamagedError):
        agreement.remember(s, known)
    record: EraRecord | None = s.runtime.run(find_record(m, known.era + 1, list(m.links.values()), known))
    if record is not None and is_withdrawn(m, known, record):
        record = None
    if begun is not None:
        without = [name for name in without if name not in begun.without]
    lost = _lost(s.config, without)
    ended: dict[str, str] = {}
    if record is None:
        try:
            ended = _judge(s, known, lost)
        except UsageError:
            if begun is None:
                raise
            return _resumed(s, before, begun, revoke)
    elif dry_run:
        return _would_go_on(record, before)
    else:
        found = s.runtime.run(end_era(m, s.group.enter, known, lost))
        return _resumed(s, before, found, revoke)
    held: Held = s.runtime.run(look(m, s.group.enter, known))
    gone = _revoked(s, held.ended, revoke)
    told = tuple(sorted(ended.items()))
    w = _Wanted(tuple(sorted(without)), frozenset(lost), told, before, revoke, gone, passphrase, new_passphrase, cost)
    if passphrase or not dry_run:
        opened = open_admin_key(s, held.ended, passphrase)  # before anything is changed
        if gone and not dry_run:
            rotation.check_kept(opened, new_passphrase)
    left = content(s, held, lost)  # what cannot be read or told ends it here, before a backend that lives is retired
    if dry_run:
        new = restarted(s, left.agreed.config, held.ended, lost)
        return _report(s, held, left, new, w)
    return _retire(s, known, held, left, w)


def _retire(s: Session, known: State, held: Held, left: Left, w: _Wanted) -> RecoverReport:
    """Ends the era on the backends that are left, and begins the new one. `left`: what is left of `held`."""
    s.listener(Phase("retire"))
    found = s.runtime.run(end_era(s.group.participant, s.group.enter, known, w.lost))
    if isinstance(found, EraRecord):
        return _resumed(s, w.before, found, w.revoke)
    if (found.ended, found.carried) != (held.ended, held.carried):
        left = content(s, found, w.lost)
    return _begin(s, found, left, w)


def _begin(s: Session, held: Held, left: Left, w: _Wanted) -> RecoverReport:
    opened, state = _keys_of(s, held, left.agreed.state, w.passphrase)
    agreed = left.agreed
    new = restarted(s, agreed.config, held.ended, w.lost)
    ways = {b.backend_id: s.names[b.backend_id] for b in new.config.backends}
    write_births(s, new, ways)
    segments = [*agreed.segments]
    if left.lost:
        segments.append(pack_index.make_segment((), (p.id for p in left.lost)))
    items = [
        pack_index.RootItem(pack_index.Ref(0, ZERO_HASH), len(pack_index.encode_segment(g)), len(g), len(g.packs))
        for g in segments
    ]

    def make_root(refs: Sequence[Ref]) -> bytes:
        named = tuple(i._replace(ref=pack_index.Ref(*r)) for i, r in zip(items, refs, strict=True))
        return pack_index.encode_root(IndexRoot(named, agreed.root.tags))

    notes, retained = [*new.notes], b""
    try:
        retained = s.runtime.run(s.group.get_meta(state.retained))
    except CANNOT_BE_READ as e:
        notes.append(f"Which versions are kept, and their names, cannot be read, and are forgotten: {e.message}.")
    keys = _new_keys(s, held, opened, new.config, w)
    devices = restarted_devices(opened, state, held.ended, new.config)
    if keys is not None:
        devices = keys.made.devices
        state = replace(state, epoch=devices.chain.epoch, keyring=sha256(keys.made.ring))
    begun = Content(
        config=new.config,
        births={a.acceptor_id: new.births[a.acceptor_id] for _, a in new.config.acceptors},
        devices=devices.encode(),
        state=state,
        op_id=s.entropy(ID_BYTES),
        segments=[pack_index.encode_segment(g) for g in segments],
        make_root=make_root if segments else None,
        retained=retained,
        carried=held.carried if agreed.state == held.carried else None,
        without=w.without,
        at_ns=s.wall_ns(),
        links={a.acceptor_id: ways[b.backend_id] for b, a in new.config.acceptors},
    )
    s.listener(Phase("agree"))
    admin = opened.admin_private if keys is None else keys.made.admin_private
    record = _claimed(s, held, begun, devices, admin, keys)
    report = _finish(s, w.before, notes, left=left, ended=w.ended)
    if keys is None:
        return report
    if record.first.keyring != sha256(keys.made.ring):  # another process was faster
        key_store.remove(s, {path.rpartition("/")[2]: s.names.values() for path in keys.files})
        faster = "Another device restarted it at the same time: what that one chose is in force, a new passphrase too."
        return _with_notes(s, replace(report, notes=(*report.notes, faster)), w.revoke)
    changed = rotation.changed(
        s, opened, record.first.v, keys.made, keys.slots, keys.missing, w.new_passphrase is not None
    )
    return replace(report, keys=changed)


@dataclass(frozen=True)
class _Keys:
    """Keys of the new era, as they lie on the backends. `missing`: where they do not, and why."""

    made: rotation.Made
    slots: NewSlots
    files: dict[str, bytes]
    missing: tuple[tuple[str, str], ...]


def _new_keys(s: Session, held: Held, opened: Opened, config: Config, w: _Wanted) -> _Keys | None:
    """Makes the keys without the devices that go, and stores them on a quorum; None where nobody goes.

    A change of keys that is carried over may have revoked them already.
    """
    ids = {c.device_id for c in w.gone}
    gone = [c for c in opened.devices.certificates if c.device_id in ids]
    if not gone:
        return None
    slots = rotation.slots_for(s, opened, w.new_passphrase or w.passphrase, w.cost)
    made = rotation.make(s, opened, slots, gone, config, (held.ended.era + 1, held.ended.v + 1))
    files = {ring_path(made.ring): made.ring, **slots.files}
    kept = {b.name for b in config.backends}
    missing = tuple(item for item in key_store.store(s, config, files) if item[0] in kept)
    return _Keys(made, slots, files, missing)


def _claimed(
    s: Session, held: Held, content: Content, devices: DeviceSet, admin_private: bytes, keys: _Keys | None
) -> EraRecord:
    """Has the era begun. The new keys are taken up afterwards, as every device does that follows."""
    m = s.group.participant
    before = m.keys
    if keys is not None:
        m.keys = keys.made.keys
    try:
        record: EraRecord = s.runtime.run(begin(m, s.group.enter, held.ended, content, devices.chain, admin_private))
    finally:
        m.keys = before
    return record


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


def _judge(s: Session, known: State, lost: Collection[bytes]) -> dict[str, str]:
    """-> voting backends that can take no part in the version after `known` any more, or in closing that of `known`,
    and why.

    `UsageError` where the workspace can go on without a restart; `NoQuorumError` where one that is left is away.
    """
    config, needed, m = s.config, s.config.quorum, s.group.participant
    left = [b.name for b, _ in config.acceptors if b.backend_id not in lost]
    well, ended = s.runtime.run(answering(m, s.group.enter, known))
    retired = {b.name for b, a in config.acceptors if a.acceptor_id in m.tombstones}  # by an earlier try
    able = [name for name in left if name not in ended and name not in retired]
    stuck = dict[str, str]()
    with contextlib.suppress(BackendError, DamagedError, NoQuorumError):
        stuck = s.runtime.run(unfenced(m, s.group.enter, known))
    if lost and len(able) >= needed and not stuck:
        raise UsageError(
            f"the {len(able)} other voting backends make a quorum of {needed}: nothing is lost for good",
            next_step="`metasync backend remove NAME` takes a dead backend out, one after the other.",
        )
    voters = sorted(name for name in well if name not in retired and name not in ended)
    if len(voters) >= needed and not stuck:
        raise UsageError(
            f"{', '.join(voters)} answer, which is a quorum of {needed}: the workspace can go on as it is",
            next_step="`metasync backend remove NAME` takes a backend out without losing what it alone knows."
            if lost
            else "--without NAME is for backends lost for good. To revoke a device: metasync device revoke NAME.",
        )
    away = {name: s.group.standings[name] for name in left if name not in well}
    reasons = [f"{name}: {x.reason or x.kind}" for name, x in sorted(away.items())]
    reasons += [f"{name}: {why}" for name, why in sorted(_silent_stores(s, lost, well).items())]
    if reasons:
        raise NoQuorumError(
            f"a backend that is to be kept does not answer as it should ({'; '.join(reasons)}); nothing was changed",
            next_step="Run again when it answers, or name it as lost too: --without NAME.",
        )
    unlinked = sorted(b.name for b in config.backends if b.backend_id not in lost and b.backend_id not in s.names)
    if unlinked:
        raise NoQuorumError(
            f"this device has no way to {', '.join(unlinked)}; nothing was changed",
            next_step="`metasync backend link NAME URL` first, or name it as lost too.",
        )
    return {**ended, **stuck}


def _silent_stores(s: Session, lost: Collection[bytes], well: Collection[str]) -> dict[str, str]:
    """Backends that hold data, do not vote and do not answer: what they alone hold would be taken for lost."""
    ops = {
        b.name: Op(s.names[b.backend_id], "get", birth_path(b.storage[-1].storage_id), max_bytes=SMALL_BYTES_MAX)
        for b in s.config.backends
        if b.storage and b.acceptor is None and b.backend_id not in lost and b.backend_id in s.names
    }
    replies = s.runtime.run(each(ops))
    failed = {name: reply.error for name, reply in replies.items() if reply.error is not None}
    return {name: e.message for name, e in failed.items() if not isinstance(e, NotFoundError) and name not in well}


def _revoked(s: Session, ended: State, names: Sequence[str]) -> tuple[Certificate, ...]:
    """The devices that these names mean. `UsageError` for none, for this one, and where this one cannot go on."""
    devices = s.devices_of(ended)
    gone = chosen(s, devices, names)
    if gone and devices.get(s.device.device_id) is None:
        raise UsageError(
            "this device does not belong to the workspace yet, so that new keys would not be for it",
            next_step="Run this on a device that has pushed before.",
        )
    return gone


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
        s.take_keys(s.keys.until(held.ended.epoch))
    opened = open_admin_key(s, held.ended, passphrase)
    if state.epoch == held.ended.epoch:
        with contextlib.suppress(MetaSyncError):
            opened = replace(opened, devices=s.devices_of(state))
    return opened, replace(state, epoch=held.ended.epoch, keyring=held.ended.keyring)


# After the era began.


def _would_go_on(record: EraRecord, before: str) -> RecoverReport:
    """The dry run's report on a restart that was begun."""
    return RecoverReport(
        era=record.number,
        version=None,
        fingerprint="",
        dry_run=True,
        without=record.without,
        newest=record.ended.v,
        newest_fingerprint=record.ended.fingerprint,
        carried=record.carried is not None,
        before=before,
        after=placement.survives(record.config),
        resumed=True,
    )


def _resumed(s: Session, before: str, record: EraRecord, revoke: Sequence[str]) -> RecoverReport:
    """Goes on with a restart that was begun before: what was asked for may not be part of it."""
    report = _finish(s, before, (), resumed=True)
    notes = list(report.notes)
    if record.first.epoch > record.ended.epoch:
        notes.append(
            "The keys were changed with it; a passphrase that was chosen then is in force. If you did not see the new "
            "recovery phrase: metasync key rotate"
        )
    return _with_notes(s, replace(report, notes=tuple(notes)), revoke)


def _with_notes(s: Session, report: RecoverReport, revoke: Sequence[str]) -> RecoverReport:
    """Says which of the devices that were to be revoked still belong to the workspace."""
    devices, left = s.devices_of(s.newest_state()), []
    for word in revoke:
        with contextlib.suppress(UsageError):
            left += [names_of(devices)[c.device_id] for c in chosen(s, devices, [word])]
    if not left:
        return report
    text = f"{', '.join(left)} still belongs to the workspace. Next: metasync device revoke {' '.join(left)}"
    return replace(report, notes=(*report.notes, text))


def _finish(
    s: Session,
    before: str,
    notes: Sequence[str],
    *,
    resumed: bool = False,
    left: Left | None = None,
    ended: tuple[tuple[str, str], ...] = (),
) -> RecoverReport:
    """Follows the record as any other device does, gives back what this folder has, and confirms that all works."""
    first = agreement.ask_newest(s)
    agreement.settle_journal(s)
    agreed = s.load(first)
    given = give_back(s, agreed)
    state, _ = name_in_index(s, first, given.root)
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
        stored_again=given.bytes_stored,
        missing=given.missing,
        resumed=resumed,
        notes=tuple(notes),
        ended=ended,
    )


def _report(s: Session, held: Held, left: Left, new: New, w: _Wanted) -> RecoverReport:
    """The dry run's."""
    keys = None
    if w.gone:
        devices = s.devices_of(held.ended)
        keys = rotation.preview(s, held.ended, devices, w.revoke, w.new_passphrase)
    return RecoverReport(
        era=held.ended.era + 1,
        version=None,
        fingerprint="",
        dry_run=True,
        without=w.without,
        newest=held.ended.v,
        newest_fingerprint=held.ended.fingerprint,
        carried=held.carried is not None and left.agreed.state == held.carried,
        before=w.before,
        after=placement.survives(new.config),
        lost_packs=len(left.lost),
        lost_bytes=left.lost_bytes,
        notes=tuple(new.notes),
        ended=w.ended,
        keys=keys,
    )
