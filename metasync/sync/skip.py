"""`metasync skip`: passes over versions that cannot be read (`docs/design/format-agreement.md`, 6.4).

A version on top of the newest has the tree of the last one that can be read. The policy that it names, signed by the
admin key, says what was passed over. Nothing of the folder changes here: the next pull brings it there, as on every
device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from metasync.codec import u64
from metasync.consensus import JOURNAL_KEY, NOTHING, ZERO_HASH, Change, Ref, State
from metasync.errors import CANNOT_BE_READ, NoQuorumError, UsageError, WorkspaceError
from metasync.events import Phase
from metasync.keys.policy import Skip
from metasync.members.admission import changed_devices
from metasync.members.key_store import open_admin_key
from metasync.objects import walk
from metasync.objects.model import VERSION_TAG, ObjectKind, Snapshot, encode_snapshot
from metasync.reports.history import SkipReport
from metasync.runtime.sizes import LOST_ROUNDS_MAX
from metasync.session import agreement, unreadable
from metasync.session.session import Agreed, Session
from metasync.store.index import Index, IndexRoot
from metasync.sync.packing import Packing

if TYPE_CHECKING:
    from metasync.members.key_store import Opened

OP_ID_BYTES: Final = 16


class _Found(NamedTuple):
    """What is to be passed over: the states `bad` that brought it, newest first.

    good   the last state before them whose tree can be read; None: there is none, and the tree is empty
    tree   the root of that tree
    above  the newest state, with the index of `good`. What the index of a bad one names may be lost, or lies in no pack
           that ever was: what devices have of it is stored anew with their next push
    lists  the states that brought a list of what is kept that cannot be read, newest first
    kept   the last list before them
    """

    above: Agreed
    bad: tuple[State, ...]
    good: State | None
    tree: bytes | None
    lists: tuple[State, ...] = ()
    kept: Ref | None = None

    @property
    def states(self) -> list[State]:
        """All that is passed over, the oldest first."""
        return sorted({state.v: state for state in (*self.bad, *self.lists)}.values(), key=lambda state: state.v)


def skip(s: Session, version: int, passphrase: str, *, dry_run: bool = False) -> SkipReport:
    """Has a version agreed that has the tree of the last one that can be read, and passes over all after that.

    `version`: one of those. `UsageError`: it can be read, or all from there on can; `PassphraseError`, `NoQuorumError`.
    An `UnreachableError` where a backend that is away may hold what is missing. `dry_run` asks for the passphrase, too.
    """
    agreement.settle_journal(s)
    state = agreement.ask_newest(s)
    if not 0 < version <= state.v:
        raise UsageError(f"there is no version {version}: the newest is {state.v}", next_step="See `metasync log`.")
    opened: Opened | None = None
    fetched: set[bytes] = set()
    for _ in range(LOST_ROUNDS_MAX):
        found = _find(s, state, version, fetched)
        if opened is None or opened.state.epoch != state.epoch:
            opened = open_admin_key(s, state, passphrase)
        if dry_run:
            return _report(s, found, None, version)
        decided, mine = _commit(s, found, opened) if found.bad else _agree(s, state, _kept(s, found))
        if mine:
            return _report(s, found, decided.v, version)
        state = decided
    raise WorkspaceError(f"others were faster {LOST_ROUNDS_MAX} times; nothing was skipped", next_step="Run again.")


def _report(s: Session, found: _Found, made: int | None, version: int) -> SkipReport:
    good = found.good if found.bad else found.above.state
    return SkipReport(
        version=made,
        named=version,
        skipped=tuple(state.v for state in found.states),
        devices=tuple(sorted({unreadable.author(s, state) for state in found.states})),
        good=(found.bad[-1].v - 1 if found.bad else good.v) if good is not None else None,
        down=dict(s.down),
    )


# ---- what is to be passed over


def _find(s: Session, newest: State, version: int, fetched: set[bytes]) -> _Found:
    """Finds the last version that can be read. `UsageError`: the newest can be, or a newer one than is named.

    What a backend that is away may still hold is not given up: its error is raised as it is.
    """
    s.listener(Phase("scan"))
    found = _lists(s, newest, _tree(s, newest, fetched))
    if not found.states:
        _refuse(s, newest, version)
    first = found.states[0].v
    if version < first:
        raise UsageError(
            f"version {version} is in nobody's way: what cannot be read begins with version {first}",
            next_step=f"To pass over that and what is newer: metasync skip {first}",
        )
    return found


def _tree(s: Session, newest: State, fetched: set[bytes]) -> _Found:
    """The states whose tree or index cannot be read, down to the first one where both can be."""
    held = _held(s)
    floor = held.state.v if held is not None and held.state.era == newest.era else 0
    above = _bare(s, newest, IndexRoot(), Index())
    bad: list[State] = []
    good, tree = None, None
    for state in unreadable.brought(s, newest):
        if held is not None and 0 < state.v <= floor:
            good, tree = state, held.tree_root
            above = _bare(s, newest, held.root, held.index)
            break
        try:
            indexed = _bare(s, newest, *s.indexes.of_state(state))
            _open(indexed)
            if state.master == ZERO_HASH:  # nothing was pushed so far
                above = indexed
                break
            contents = s.contents(indexed)
            snapshot = unreadable.snapshot_of(contents, state)
            root = held.tree_root if held is not None else None
            unreadable.read_through(s, contents, root, snapshot.root, fetched=fetched)
        except CANNOT_BE_READ:
            bad.append(state)
            continue
        good, tree, above = state, snapshot.root, indexed
        break
    return _Found(above, tuple(bad), good, tree)


def _lists(s: Session, newest: State, found: _Found) -> _Found:
    """The same, with the states whose list of what is kept cannot be read, and the last list before them."""
    bad: list[State] = []
    kept = NOTHING
    for state in unreadable.brought(s, newest, unreadable.list_of):
        try:
            s.indexes.list_of(state)
        except CANNOT_BE_READ:
            bad.append(state)
        else:
            kept = state.retained
            break
    return found._replace(lists=tuple(bad), kept=kept if bad else None)


def _open(agreed: Agreed) -> None:
    """Reads all of an index: a folder that came to be at a version may have read none of it."""
    _ = agreed.index.segments


def _held(s: Session) -> Agreed | None:
    """What the folder is at, if its tree can be read: no contents are asked for that it has."""
    try:
        base = s.base()
        _open(base)
    except CANNOT_BE_READ:
        return None
    return base if base.snapshot is not None else None


def _refuse(s: Session, newest: State, version: int) -> None:
    """Raises `UsageError`: nothing is to be skipped."""
    earlier = s.devices_of(newest).policy.skip_over(version)
    if earlier is not None:
        raise UsageError(f"version {version} was skipped before, by version {earlier.at}")
    if packs := _left_out(s, newest, version):
        raise UsageError(
            f"nothing is to be skipped: version {newest.v}, the newest, can be read here; but version {version} left "
            f"{packs:,} {'pack' if packs == 1 else 'packs'} out of the index",
            next_step="`metasync check --repair` puts back what older versions need of that.",
        )
    raise UsageError(
        f"nothing is to be skipped: version {newest.v}, the newest, can be read here",
        next_step="Where another device cannot read it, run the command there.",
    )


def _left_out(s: Session, newest: State, version: int) -> int:
    """How many packs the index of a version lacks that the one before names, and no collection let go."""
    try:
        state: State = s.runtime.run(s.group.state_at(newest, version))
        before: State = s.runtime.run(s.group.state_at(newest, version - 1, state))
        if state.index == before.index or (state.min_gen, state.retained) != (before.min_gen, before.retained):
            return 0
        named = s.indexes.of_state(state)[1].packs()
        return sum(pack not in named for pack in s.indexes.of_state(before)[1].packs())
    except (*CANNOT_BE_READ, NoQuorumError):
        return 0


def _bare(s: Session, newest: State, root: IndexRoot, index: Index) -> Agreed:
    return Agreed(newest, s.config_of(newest), s.devices_of(newest), root, index, None)


# ---- the version that passes over it


def _commit(s: Session, found: _Found, opened: Opened) -> tuple[State, bool]:
    """Proposes it. -> the state that was decided, and whether it is this one."""
    base, state = found.above, found.above.state
    begin: Callable[[Agreed], Callable[[], None]] = lambda _: lambda: None  # noqa: E731
    upload = Packing(s, None, s.check, begin, {}).upload_for(base)
    tree = found.tree
    if tree is None:
        tree, nodes = walk.build({}, s.ids)
        for object_id, data in nodes.items():
            upload.add(ObjectKind.DIR, object_id, data)
    good, old = found.good, base.devices.policy
    made = Skip(state.v + 1, found.bad[-1].v - 1, tree, good.master if good is not None else ZERO_HASH)
    policy = old.signed(opened.admin_private, era=state.era, version=state.v + 1, tags=old.skipping(made))
    parents = (good.master,) if good is not None else ()
    tags = ((VERSION_TAG, u64(state.v + 1)),)
    data = encode_snapshot(Snapshot(tree, parents, s.device.device_id, s.wall_ns(), "", tags))
    master = s.ids.of(ObjectKind.SNAPSHOT, data)
    upload.add(ObjectKind.SNAPSHOT, master, data)
    s.db.put_objects([(master, int(ObjectKind.SNAPSHOT), data)])
    s.listener(Phase("upload"))
    upload.seal()
    with s.indexes.storing(state, base.root, base.segments, upload.index_segments()) as stored:
        skipping = replace(base.devices, policy_data=policy.encode())
        devices = changed_devices(s, state, skipping) or s.put_const(state, skipping.encode())
        upload.finish()
        refs = stored()
    change = _kept(s, found)
    change = replace(change, master=master, index=refs[-1], devices=devices, adding=tuple(refs[:-1]))
    return _agree(s, state, change)


def _kept(s: Session, found: _Found) -> Change:
    """The list of what is kept that counts again. One is no part of a skip: any device may propose another."""
    return Change(s.entropy(OP_ID_BYTES), retained=found.kept)


def _agree(s: Session, state: State, change: Change) -> tuple[State, bool]:
    s.listener(Phase("agree"))
    decided = agreement.propose(s, state, change)
    if decided.mine:
        with agreement.telling(s, state, decided.state):
            s.db.set(JOURNAL_KEY, None)
    return decided.state, decided.mine
