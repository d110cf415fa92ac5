"""`metasync gc`: retention, then the space of what nothing needs comes back (consensus.md, rules 6.2 and 6.3).

BEGIN raises the generation of new uploads. The mark finds what the kept versions need; packs of which little is needed
are packed anew, as by a push. FENCE is one version that drops the others from the index, says which versions are kept,
and fences older generations. After it `sweep` deletes. A run that breaks off leaves packs that nothing names, which the
next run of any device takes. Pushes never wait; one that had begun stores again what it had stored.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from metasync.consensus import JOURNAL_KEY, NOTHING, ZERO_HASH, Change, Ref
from metasync.errors import DamagedError, FullError, MetaSyncError, UnreachableError, UsageError, WorkspaceError
from metasync.events import Notice, Phase, Progress
from metasync.local.spill import IdSet
from metasync.local.state_keys import UNFINISHED_KEY
from metasync.maintenance import sweep
from metasync.maintenance.sweep import Swept
from metasync.objects.directory import Bytes, Needs
from metasync.objects.model import ObjectKind, Snapshot, decode_snapshot, version_of
from metasync.objects.reach import mark
from metasync.reports.backends import Freed, GcReport
from metasync.runtime.sizes import LOST_ROUNDS_MAX
from metasync.session import agreement, space
from metasync.session.folder import BASE_KEY
from metasync.session.session import Agreed, Session
from metasync.store import collection, retention
from metasync.store.collection import Plan
from metasync.store.index import IndexSegment, PackId
from metasync.store.retained import INTERVALS_MAX, NO_SNAPSHOT, Retained
from metasync.store.retention import Keep, Stamped
from metasync.transfer.contents import Contents
from metasync.transfer.upload import Upload

SNAPSHOTS_TOGETHER: Final = 256
PACKED_TOGETHER_BYTES: Final = 32 << 20  # of objects read to be packed anew
OP_ID_BYTES: Final = 16


def collect(s: Session, policy: Keep | None = None, *, dry_run: bool = False) -> GcReport:
    """Drops versions by a policy, the agreed one if none is given, and deletes what no kept version needs.

    `UsageError`: the policy cannot be applied. `DamagedError`: a version that is kept cannot be read, so that it is not
    known what it needs; nothing was changed. `NoQuorumError`.
    """
    return _Collection(s, policy, dry_run=dry_run).run()


@dataclass
class _Found:
    """What a base comes to: the versions that stay of it, and what becomes of its packs."""

    base: Agreed
    before: Retained
    retained: Retained
    kept: int
    dropped: int
    marked: IdSet
    plan: Plan

    @property
    def stays(self) -> Collection[PackId]:
        return self.base.index.packs().keys() - self.plan.gone

    @property
    def changes_nothing(self) -> bool:
        return not self.plan.gone and self.retained == self.before


class _Collection:
    """One run, over all its attempts. `marked`: what versions need of those that `was` says are kept."""

    def __init__(self, s: Session, policy: Keep | None, *, dry_run: bool) -> None:
        self.s = s
        self.policy = policy
        self.dry_run = dry_run
        self.marked = IdSet()
        self.was: Retained | None = None
        self.upload: Upload | None = None
        self.fence_above = -1  # the newest generation of what no index names and is to go
        self.op_id = s.entropy(OP_ID_BYTES)

    def run(self) -> GcReport:
        s = self.s
        agreement.settle_journal(s)
        base = agreement.newest(s)
        found = self.look(base)
        if self.dry_run:
            return self._preview(found)
        swept, notes = Swept(), []
        strays = self._strays(found) if found.changes_nothing else []
        self.fence_above = max((g for g in strays if g < base.state.gen), default=-1)
        if any(g >= base.state.gen for g in strays):
            found = self._begun(found)
            notes.append(
                "What pushes that broke off, or are under way, have stored since the last time goes with the next."
            )
        if not found.changes_nothing or self.fence_above >= 0:
            found, short = self._fenced(found, repack=True)
            if short:  # what goes as it is makes room
                swept = self._swept(found)
                found, short = self._fenced(self.look(agreement.newest(s)), repack=True)
            notes += [short] if short else []
        swept = self._swept(found, swept)
        self._sweep_records(base, found.base)
        return self._report(found, swept, tuple(notes))

    # --- what there is

    def look(self, base: Agreed, *, repack: bool = True) -> _Found:
        """Applies the policy to a base, marks what its kept versions need, and plans."""
        s = self.s
        before = s.indexes.retained(base.state)
        contents = s.contents(base)
        line = list(_line(s, base, before, contents))
        pushes = [(v, i, snapshot.time_ns) for v, i, snapshot in line]
        policy = self.policy if self.policy is not None else before.keep
        stay = {v for v, _, _ in pushes}
        if policy:
            _check_order(pushes)
            unknown = set(policy.tag) - {n.name for n in before.named}
            if unknown and self.policy is not None:
                raise UsageError(f"no version is called {sorted(unknown)[0]!r}", next_step="See `metasync tag`.")
            stamped = [Stamped(v, time_ns) for v, _, time_ns in pushes]
            stay = set(retention.kept(policy, stamped, before.named, s.wall_ns()))
        known = [(v, i) for v, i, _ in reversed(pushes)]
        if line and _before(line[-1][2], known[0][0], before) != ZERO_HASH:
            _check_unknown(known[0][0], len(known), policy, before)
            known.insert(0, (1, NO_SNAPSHOT))  # whatever there was: it goes with the versions before the oldest known
        after = before if stay >= {v for v, _ in known} else before.without(known, stay)
        if len(after.dropped) > INTERVALS_MAX:
            raise UsageError(
                "the policy leaves more gaps in history than can be agreed", next_step="Keep fewer versions."
            )
        self._mark([i for v, i in known if v in stay], before, base, contents)
        left = tuple(one for one in before.replaced if one.snapshot in self.marked)
        after = after._replace(replaced=left, purge=before.purge and not repack)
        planned = collection.plan(base.index, self.marked, IdSet(), repack=repack, purge=before.purge)
        return _Found(base, before, after, len(stay), len(pushes) - len(stay), self.marked, planned)

    def _mark(self, roots: list[bytes], retained: Retained, base: Agreed, contents: Contents) -> None:
        """Marks what these snapshots need. What an attempt before marked counts, unless others dropped versions."""
        was = self.was
        if was is not None and (was.dropped, was.replaced) != (retained.dropped, retained.replaced):
            self.marked, self.upload = IdSet(), None  # the index must name nothing whose parts it does not name
        self.was = retained
        self.s.listener(Phase("mark"))
        walked = _all_named(mark(roots, self.marked, base.index.__contains__, retained.replacing), base)
        try:
            contents.walk(walked)
        except MetaSyncError as e:
            if isinstance(e, DamagedError):
                e.next_step = (
                    "Nothing was deleted: what a version needs that cannot be read is not known. "
                    "`metasync check --read-data` tells more; `--keep-last 1` gives the older versions up."
                )
            raise

    def _strays(self, found: _Found) -> list[int]:
        """The generations of packs that no index names and no fence lets go: of pushes that broke off or are under way.

        Of those under way nothing is known. So what is of the newest generation is spared this time.
        """
        named, fence = found.base.index.packs(), found.base.state.min_gen
        return sorted({c.id[0] for c in sweep.listed(self.s, {}) if c.id not in named and c.id[0] >= fence})

    # --- the two versions

    def _begun(self, found: _Found) -> _Found:
        """BEGIN: has the generation of new uploads raised, so that the fence may stand above all that there is."""
        for _ in range(LOST_ROUNDS_MAX):
            base = found.base
            self.s.listener(Phase("agree"))
            mine, newest = self._propose(base, Change(op_id=self.s.entropy(OP_ID_BYTES), gen=base.state.gen + 1))
            found = replace(found, base=newest) if mine else self.look(newest)
            if mine:
                return found
        raise _others_were_faster()

    def _fence(self, found: _Found) -> int:
        """The first generation that is not fenced: all that goes is older. As low as can be, for pushes under way."""
        newest = max((g for g, _ in found.plan.gone), default=-1)
        return max(found.base.state.min_gen, newest + 1, self.fence_above + 1)

    def _fenced(self, found: _Found, *, repack: bool) -> tuple[_Found, str]:
        """FENCE, on whatever is agreed meanwhile. -> what came of it, and why nothing was packed anew, if so."""
        short = ""
        for _ in range(LOST_ROUNDS_MAX):
            if self._fence(found) > found.base.state.gen:
                found = self._begun(found)
            if repack and (short := self._pack(found)):
                repack = False
            if not repack:
                self.upload = None
                found = self.look(found.base, repack=False)
            if found.changes_nothing and self._fence(found) == found.base.state.min_gen:
                return found, short
            self.s.listener(Phase("agree"))
            mine, newest = self._propose(found.base, self._change(found))
            if mine:
                return replace(found, base=newest), short
            found = self.look(newest, repack=repack)
        raise _others_were_faster()

    def _change(self, found: _Found) -> Change:
        s, base, stays = self.s, found.base, found.stays
        upload = self.upload
        packed = upload.__contains__ if upload is not None else lambda _: False
        if lost := collection.uncovered(base.index, stays, packed, found.marked):
            raise WorkspaceError(f"{lost:,} objects would be lost; nothing was changed", next_step="Report this.")
        whole = [n for n, one in enumerate(base.segments) if collection.is_whole(one, stays, found.marked)]
        rest = (one for n, one in enumerate(base.segments) if n not in set(whole))
        anew = (collection.rewritten(one, stays, found.marked) for one in rest)
        own = self.upload.index_segments() if self.upload is not None else iter(())
        refs: list[Ref] = []
        if found.plan.gone or len(whole) < len(base.segments):
            new: Iterator[IndexSegment] = chain((one for one in anew if one is not None), own)
            refs = s.indexes.replace(base.state, base.root, base.segments, whole, new)
        retained = None
        if found.retained != found.before:
            retained = s.indexes.store_retained(base.state, found.retained)
        return Change(
            op_id=self.op_id,
            index=refs[-1] if refs else None,
            retained=retained,
            min_gen=min(self._fence(found), base.state.gen),
            adding=tuple(refs[:-1]) if refs and refs[-1] != NOTHING else (),
        )

    def _propose(self, base: Agreed, change: Change) -> tuple[bool, Agreed]:
        """Has a version agreed on this base. -> whether it was, and the newest state."""
        s = self.s
        decided = agreement.propose(s, base.state, change)
        if not decided.mine:
            return False, agreement.newest(s)
        if s.base_state().hash == base.state.hash and not s.db.has(UNFINISHED_KEY):
            s.db.set(BASE_KEY, decided.state)
        s.db.set(JOURNAL_KEY, None)
        return True, s.load(decided.state)

    # --- packing anew

    def _pack(self, found: _Found) -> str:
        """Stores what is needed of sparse packs in packs of its own; -> why that cannot be, "" if it was done.

        What an attempt before stored counts under the fence and in the epoch that it was made for. The old packs go
        only if each new one has all its copies.
        """
        s, state = self.s, found.base.state
        if self.upload is not None and not (
            self.upload.counting(state.min_gen, state.epoch) and self.upload.transfer.is_alike(s.transfer)
        ):
            self.upload = None
        if not found.plan.sparse:
            return ""
        if self.upload is None:
            self.upload = Upload(
                s.transfer, replace(s.form, epoch=state.epoch), state.gen, runner=s.runtime, listener=s.listener,
                entropy=s.entropy, begin=lambda: space.begin_asking(s, found.base.index), look=s.check,
            )  # fmt: skip
        try:
            s.listener(Phase("pack"))
            self._repack(found, self.upload)
            self.upload.finish()
        except (FullError, UnreachableError) as e:
            return f"what little is needed of {len(found.plan.sparse):,} packs could not be packed anew: {e.message}"
        if any(len(p.holders) < p.copies for p in self.upload.stored):
            return "too few backends have room for all copies of what is packed anew"
        return ""

    def _repack(self, found: _Found, upload: Upload) -> None:
        index, contents = found.base.index, self.s.contents(found.base)
        some: list[bytes] = []
        size = 0
        for n, ids in enumerate(collection.to_pack(index, found.plan, found.marked), 1):
            for object_id in ids:
                some.append(object_id)
                size += contents.size_of(object_id)
                if size >= PACKED_TOGETHER_BYTES:
                    _take(contents, some, upload)
                    some, size = [], 0
            self.s.listener(Progress("pack", n, len(found.plan.sparse), "packs"))
        _take(contents, some, upload)

    # --- the end

    def _swept(self, found: _Found, before: Swept | None = None) -> Swept:
        """Deletes by the state that was looked at, whoever fenced it: all that it keeps is there, as is known."""
        s, base = self.s, found.base
        s.listener(Phase("delete"))
        index, marked = base.index, found.marked

        def is_missed(object_id: bytes) -> bool:
            return object_id in marked and object_id not in index

        out = sweep.sweep(s, index.packs(), base.state.min_gen, is_missed if found.plan.missing else None)
        for name, packs in (before.packs if before is not None else {}).items():
            out.packs[name] += packs
            out.bytes[name] += before.bytes[name] if before is not None else 0
        return out

    def _sweep_records(self, before: Agreed, after: Agreed) -> None:
        """Deletes index records that the newest state does not need, nor the one that this run began with.

        So who restarts the workspace without a majority that alone held the fence has the index before it.
        """
        needed: set[Ref] = set()
        try:
            for agreed in (before, after):
                needed |= {agreed.state.retained, *self.s.indexes.names_of(agreed.state.index)}
                if agreed.config.moving is not None:
                    needed |= self.s.indexes.names_of(Ref(*agreed.config.moving))
        except MetaSyncError:
            return
        sweep.sweep_records(self.s, needed, after.state.min_gen)

    def _preview(self, found: _Found) -> GcReport:
        """What would go: packs that nothing names, those that are dead, and of sparse ones what is not needed."""
        named, out = found.base.index.packs(), Swept()
        spared = {use.record.id: use for use in found.plan.sparse}
        for copy in sweep.listed(self.s, out.away):
            if copy.id in spared:
                out.add(copy._replace(size=spared[copy.id].unused_bytes))
            elif copy.id not in named or copy.id in found.plan.gone:
                out.add(copy)
        return self._report(found, out, ())

    def _report(self, found: _Found, swept: Swept, notes: tuple[str, ...]) -> GcReport:
        s = self.s
        if lost := found.plan.missing:
            what = "1 object that a version needs is" if lost == 1 else f"{lost:,} objects that versions need are"
            more = "`metasync check --repair` tells which files that is, and stores what this folder has."
            notes = (*notes, f"{what} in no pack that is agreed. {more}")
        if swept.spared:
            packs = "1 copy of a pack was" if swept.spared == 1 else f"{swept.spared:,} copies of packs were"
            notes = (*notes, f"{packs} spared: they may hold what is missing.")
        if swept.away:
            away = ", ".join(sorted(swept.away))
            notes = (*notes, f"not reached: {away}. What lies there goes with the next `metasync gc` that reaches it.")
        for name, why in swept.away.items():
            s.listener(Notice(f"{name}: {why}", warning=True))
        return GcReport(
            version=None if self.dry_run else found.base.state.v,
            dry_run=self.dry_run,
            kept=found.kept,
            dropped=found.dropped,
            freed=tuple(Freed(n, swept.packs[n], swept.bytes[n]) for n in sorted(swept.packs)),
            packed_anew=len(found.plan.sparse),
            unused_bytes=found.plan.unused,
            away=dict(swept.away),
            notes=notes,
            missing=found.plan.missing,
        )


def _all_named(walk: Generator[Needs, Bytes, None], base: Agreed) -> Generator[Needs, Bytes, None]:
    """The same walk. `DamagedError` where it asks for what the index does not name, though it may be cached here."""
    needs = next(walk, None)
    while needs is not None:
        if lost := sum(i not in base.index for i in needs[1]):
            raise DamagedError(f"{lost:,} directories or versions are in no pack that is agreed")
        try:
            needs = walk.send((yield needs))
        except StopIteration:
            return


def _take(contents: Contents, ids: list[bytes], upload: Upload) -> None:
    """Adds objects to what is packed. They arrive in workers, in any order; one thread packs."""
    got: dict[bytes, tuple[ObjectKind, bytes]] = {}
    contents.fetch(
        [i for i in ids if i not in upload],
        lambda objects: got.update((o.id, (o.kind, bytes(data))) for o, data in objects),
    )
    for object_id in ids:
        if object_id in got:
            kind, data = got.pop(object_id)
            upload.add(kind, object_id, data)


def _others_were_faster() -> WorkspaceError:
    return WorkspaceError(
        f"others pushed {LOST_ROUNDS_MAX} times while garbage was collected; nothing is lost", next_step="Run again."
    )


def _line(s: Session, base: Agreed, retained: Retained, contents: Contents) -> Iterator[tuple[int, bytes, Snapshot]]:
    """The pushes that are kept, the newest first: version, id and snapshot of each."""
    ids: list[bytes] = []
    if base.state.master != ZERO_HASH:
        ids = [i for i in base.index.ids(ObjectKind.SNAPSHOT) if s.db.get_object(i) is None]
    for start in range(0, len(ids), SNAPSHOTS_TOGETHER):
        contents.load(ObjectKind.SNAPSHOT, ids[start : start + SNAPSHOTS_TOGETHER])
    current = base.state.master
    while current != ZERO_HASH and (current in base.index or current == base.state.master):
        snapshot = decode_snapshot(contents.load(ObjectKind.SNAPSHOT, [current])[current])
        v = version_of(snapshot)
        yield v, current, snapshot
        current = _before(snapshot, v, retained)


def _before(snapshot: Snapshot, v: int, retained: Retained) -> bytes:
    """The snapshot of the push before version `v` that is kept; zeros: there is none."""
    gap = retained.over(v - 1) if v else None
    return gap.below if gap is not None else next(iter(snapshot.parents), ZERO_HASH)


def _check_unknown(oldest: int, readable: int, policy: Keep, retained: Retained) -> None:
    """`DamagedError` unless all goes that is older than the oldest version whose snapshot can be read.

    Which versions these are nobody knows, nor what they need.
    """
    named = [n.name for n in retained.named if n.version < oldest]
    if not named and policy == Keep(last=policy.last) and 0 < policy.last <= readable:
        return
    what = f", such as {named[0]!r}" if named else ""
    raise DamagedError(
        f"the version before {oldest} is in no pack, so that what older ones need is not known{what}; "
        "nothing was deleted",
        next_step="`metasync check --repair` on a device that knows it brings it back. "
        + (f"`--keep-last {readable}` gives the older versions up, once none of them has a name." if readable else ""),
    )


def _check_order(pushes: list[tuple[int, bytes, int]]) -> None:
    """`WorkspaceError` unless versions descend: a policy must not drop one in the name of another."""
    above, newer = 1 << 64, ""
    for v, snapshot_id, _ in pushes:
        here = f"snapshot {snapshot_id.hex()[:12]} says that it is version {v}"
        if not 0 < v < above:
            raise WorkspaceError(
                f"{newer or here}, and cannot be, by what comes before it; no version was dropped",
                next_step="`metasync gc` without a policy deletes what no version needs.",
            )
        above, newer = v, here
