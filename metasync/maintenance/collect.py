"""`metasync gc`: retention, then the space of what nothing needs comes back (consensus.md, rules 6.2 and 6.3).

BEGIN raises the generation of new uploads. The mark finds what the kept versions need; packs of which little is needed
are packed anew, as by a push. FENCE is one version that drops the others from the index, says which versions are kept,
and fences older generations. After it `sweep` deletes. A run that breaks off leaves packs that nothing names, which the
next run of any device takes. Pushes never wait; one that had begun stores again what it had stored.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, pairwise
from typing import Final

from metasync.consensus import JOURNAL_KEY, NOTHING, ZERO_HASH, Change, Ref, State
from metasync.errors import DamagedError, FullError, MetaSyncError, UnreachableError, UsageError, WorkspaceError
from metasync.events import Notice, Phase, Progress
from metasync.local.spill import IdSet
from metasync.local.state_keys import UNFINISHED_KEY
from metasync.maintenance import line, sweep
from metasync.maintenance.duplicates import Duplicates
from metasync.maintenance.sweep import Refusals, Swept
from metasync.objects.model import ObjectKind, decode_snapshot, version_of
from metasync.objects.reach import mark
from metasync.reports.backends import Freed, GcReport
from metasync.runtime.sizes import LOST_ROUNDS_MAX
from metasync.session import agreement, space, witnesses
from metasync.session.folder import BASE_KEY
from metasync.session.session import Agreed, Session
from metasync.store import collection, deltas, retention
from metasync.store.collection import Plan
from metasync.store.deltas import Ids, Link
from metasync.store.index import Index, IndexSegment, PackId
from metasync.store.retained import INTERVALS_MAX, NO_SNAPSHOT, Retained
from metasync.store.retention import Keep, Stamped
from metasync.transfer.contents import Contents
from metasync.transfer.upload import Upload

PACKED_TOGETHER_BYTES: Final = 32 << 20  # of objects read to be packed anew
OP_ID_BYTES: Final = 16
FOLLOWED_MAX: Final = 256  # pushes that are followed without a look at everything
ALIKE: Final = ("era", "config", "retained", "epoch", "gen", "min_gen")  # of the states of two such bases


def collect(s: Session, policy: Keep | None = None, *, dry_run: bool = False) -> GcReport:
    """Drops versions by a policy, the agreed one if none is given, and deletes what no kept version needs.

    `UsageError`: the policy cannot be applied. `DamagedError`: a version that is kept cannot be read, so that it is not
    known what it needs; nothing was changed. `NoQuorumError`.
    """
    return _Collection(s, policy, dry_run=dry_run).run()


@dataclass
class _Found:
    """What a base comes to: the versions that stay of it, and what becomes of its packs.

    `marked`: what they need, and what that is made of, where it is stored as deltas.
    `known`: the pushes that are kept so far, ascending, with their snapshots; `stay`: which of them stay.
    `is_followed`: the base has only more pushes than the one before, and no more was looked at (`_follow`).
    """

    base: Agreed
    before: Retained
    retained: Retained
    kept: int
    dropped: int
    marked: Ids
    plan: Plan
    known: tuple[tuple[int, bytes], ...]
    stay: frozenset[int]
    is_followed: bool = False

    def stays(self, pack: PackId) -> bool:
        """Whether a pack stays in the index."""
        return pack in self.base.index.packs() and pack not in self.plan.gone

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
        self.stored: tuple[Agreed, list[Ref]] | None = None  # the index of an attempt, and the base it was made of
        self.fence_above = -1  # the newest generation of what no index names and is to go
        self.op_id = s.entropy(OP_ID_BYTES)
        self.duplicates = Duplicates()
        self._refused = cache(partial(witnesses.refusals, s))

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
                swept, self.op_id = self._swept(found), s.entropy(OP_ID_BYTES)  # for another change
                found, short = self._fenced(self.look(agreement.newest(s)), repack=True)
            notes += [short] if short else []
        swept = self._swept(found, swept)
        if not found.plan.missing and not swept.spared:  # older indexes may name it
            self._sweep_records(found.base)
        return self._report(found, swept, tuple(notes))

    # --- what there is

    def look(self, base: Agreed, *, repack: bool = True) -> _Found:
        """Applies the policy to a base, marks what its kept versions need, and plans."""
        s = self.s
        before = s.indexes.retained(base.state)
        contents = s.contents(base)
        there, is_whole = line.agreed(s, base, before, contents)
        pushes = [(v, i, snapshot.time_ns) for v, i, snapshot in there]
        policy = self.policy if self.policy is not None else before.keep
        stay = {v for v, _, _ in pushes}
        if policy:
            line.check_order(pushes)
            unknown = set(policy.tag) - {n.name for n in before.named}
            if unknown and self.policy is not None:
                raise UsageError(f"no version is called {sorted(unknown)[0]!r}", next_step="See `metasync tag`.")
            stamped = [Stamped(v, time_ns) for v, _, time_ns in pushes]
            stay = set(retention.kept(policy, stamped, before.named, s.wall_ns()))
        known = [(v, i) for v, i, _ in reversed(pushes)]
        if not is_whole:
            line.check_unknown(s, base.state, known[0][0], len(known), policy, before)
            known.insert(0, (1, NO_SNAPSHOT))  # whatever there was: it goes with the versions before the oldest known
        after = before if stay >= {v for v, _ in known} else before.without(known, stay)
        if len(after.dropped) > INTERVALS_MAX:
            raise UsageError(
                "the policy leaves more gaps in history than can be agreed", next_step="Keep fewer versions."
            )
        self._mark([i for v, i in known if v in stay], before, base, contents)
        left = tuple(one for one in before.replaced if one.snapshot in self.marked)
        after = after._replace(replaced=left, purge=before.purge and not repack)
        purge = before.purge and repack
        needed = self.marked if purge else deltas.with_bases(base.index, self.marked, IdSet())
        planned, is_all = self._plan(base, contents, needed, repack=repack, purge=purge)
        if purge and not is_all:  # what is to be wiped may lie in a pack that stays for now
            after = after._replace(purge=True)
        self.stored = None
        counts = len(stay), len(pushes) - len(stay)
        return _Found(base, before, after, *counts, needed, planned, tuple(known), frozenset(stay))

    def _plan(self, base: Agreed, contents: Contents, needed: Ids, *, repack: bool, purge: bool) -> tuple[Plan, bool]:
        """What becomes of the packs, and whether all go that may.

        None goes of which others are only said to have what is in it (`duplicates`).
        """
        stay: set[PackId] = set()
        while True:
            planned = collection.plan(base.index, needed, repack=repack, purge=purge, stay=stay)
            if self.dry_run:
                return planned, True
            doubted = self.duplicates.in_doubt(base.index, contents, planned, needed)
            if not doubted:
                return planned, not stay
            stay |= doubted  # of those that stay none is asked for again

    def _follow(self, found: _Found, newest: Agreed) -> _Found | None:
        """The same on a base that has only more pushes, at the cost of these; None: all is to be looked at again.

        While others push without a pause, no run that looks at everything each time would come to its fence.
        """
        s, base, gone = self.s, found.base, found.plan.gone
        if self.stored is None or any(getattr(base.state, n) != getattr(newest.state, n) for n in ALIKE):
            return None
        named = newest.index.packs()
        if not all(pack in named for pack in base.index.packs()):
            return None
        contents, current, new = s.contents(newest), newest.state.master, list[tuple[int, bytes]]()
        while current != base.state.master:
            if current == ZERO_HASH or len(new) >= FOLLOWED_MAX:
                return None
            snapshot = decode_snapshot(contents.load(ObjectKind.SNAPSHOT, [current])[current])
            new.insert(0, (version_of(snapshot), current))
            current = next(iter(snapshot.parents), ZERO_HASH)
        known = [*found.known, *new]
        if any(a >= b for (a, _), (b, _) in pairwise(known)) or not line.is_agreed(s, base, newest, new):
            return None
        fresh = line.Fresh(found.marked)
        walked = mark([i for _, i in new], fresh, newest.index.__contains__, found.before.replacing)
        contents.walk(line.all_named(walked, newest))
        added = Index(tuple(newest.segments[n] for n in _new_items(newest, base)))
        if any(one.tombstones for one in added.segments):
            return None
        for i in fresh.ids:  # they go back to nothing that was about to go
            places = added.find(i)
            if not any(r.id not in gone and deltas.is_relied_on(newest.index, r, o, found.marked) for r, o in places):
                return None
            if any(r.id in gone for r, _ in newest.index.find(i)):  # what the others say of it was not looked at
                return None
        stay, retained = found.stay | {v for v, _ in new}, found.retained
        if found.dropped:
            retained = retained._replace(dropped=found.before.without(known, stay).dropped)
        return replace(
            found, base=newest, retained=retained, kept=found.kept + len(new), known=tuple(known), stay=stay,
            is_followed=True,
        )  # fmt: skip

    def _mark(self, roots: list[bytes], retained: Retained, base: Agreed, contents: Contents) -> None:
        """Marks what these snapshots need. What an attempt before marked counts, unless others dropped versions."""
        was = self.was
        if was is not None and (was.dropped, was.replaced) != (retained.dropped, retained.replaced):
            self.marked, self.upload = IdSet(), None  # the index must name nothing whose parts it does not name
        self.was = retained
        self.s.listener(Phase("mark"))
        walked = line.all_named(mark(roots, self.marked, base.index.__contains__, retained.replacing), base)
        try:
            contents.walk(walked)
        except DamagedError as e:
            from metasync.maintenance.repair import lost_paths

            error, gone = lost_paths.named(self.s, base, e)
            paths = dict.fromkeys(
                shlex.quote(one.path_str) for one in gone[: lost_paths.NAMED_MAX] if one.path[-1:] != b"/"
            )
            way = f"`metasync forget {' '.join(paths)}` takes that out of them; " if paths else ""
            error.next_step = (
                "Nothing was deleted: what a version needs that cannot be read is not known. `metasync check --repair` "
                f"on a device that has it stores it again; {way}`metasync gc --keep-last 1` gives up older versions."
            )
            raise error from e

    def _strays(self, found: _Found) -> list[int]:
        """The generations of packs that no index names and no fence lets go: of pushes that broke off or are under way.

        Of those under way nothing is known. So what is of the newest generation is spared this time.
        """
        named, fence = found.base.index.packs(), found.base.state.min_gen
        return sorted({c.id[0] for c in sweep.listed(self.s, {}) if c.id not in named and c.id[0] >= fence})

    # --- the two versions

    def _begun(self, found: _Found) -> _Found:
        """BEGIN: has the generation of new uploads raised, so that the fence may stand above all that there is."""
        s, state = self.s, found.base.state
        s.listener(Phase("agree"))
        for _ in range(LOST_ROUNDS_MAX):
            decided = agreement.propose(s, state, Change(op_id=s.entropy(OP_ID_BYTES), gen=state.gen + 1))
            if decided.mine:
                newest = self._taken(state, decided.state)
                return replace(found, base=newest) if state == found.base.state else self.look(newest)
            state = agreement.ask_newest(s)
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
            if repack and not found.is_followed and (short := self._pack(found)):
                repack = False
            if not repack and not found.is_followed:
                self.upload = None
                found = self.look(found.base, repack=False)
            if found.changes_nothing and self._fence(found) == found.base.state.min_gen:
                return found, short
            self.s.listener(Phase("agree"))
            mine, newest = self._propose(found.base, self._change(found))
            if mine:
                return replace(found, base=newest), short
            found = self._follow(found, newest) or self.look(newest, repack=repack)
        raise _others_were_faster()

    def _change(self, found: _Found) -> Change:
        s, base = self.s, found.base
        refs = self._index_again(found) if found.is_followed else self._index(found)
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

    def _index(self, found: _Found) -> list[Ref]:
        """Stores the index of what is needed. -> the names of what is new, the root's last; none: all stays."""
        s, base, stays = self.s, found.base, found.stays
        upload = self.upload
        packed = upload.__contains__ if upload is not None else lambda _: False
        if lost := collection.uncovered(base.index, stays, packed, found.marked):
            raise WorkspaceError(f"{lost:,} objects would be lost; nothing was changed", next_step="Report this.")
        whole = [n for n, one in enumerate(base.segments) if collection.is_whole(one, stays, found.marked)]
        rest = (one for n, one in enumerate(base.segments) if n not in set(whole))
        anew = (collection.rewritten(one, stays, found.marked) for one in rest)
        own = self.upload.index_segments() if self.upload is not None else iter(())
        if len(whole) == len(base.segments):
            return []
        new: Iterator[IndexSegment] = chain((one for one in anew if one is not None), own)
        refs = s.indexes.replace(base.state, base.root, base.segments, whole, new)
        self.stored = (base, refs) if refs[-1] != NOTHING else None
        return refs

    def _index_again(self, found: _Found) -> list[Ref]:
        """The same by what an attempt before stored, and the segments that its base did not have."""
        assert self.stored is not None
        s, base, (first, refs) = self.s, found.base, self.stored
        root, index = s.indexes.opened(refs[-1])
        numbers, stays = _new_items(base, first), found.stays
        whole = [n for n in numbers if collection.is_whole(base.segments[n], stays, found.marked)]
        anew = [collection.rewritten(base.segments[n], stays, found.marked) for n in numbers if n not in whole]
        items = (*root.items, *(base.root.items[n] for n in whole))
        segments = (*index.segments, *(base.segments[n] for n in whole))
        new = [one for one in anew if one is not None]
        more = s.indexes.replace(base.state, root._replace(items=items), segments, range(len(items)), new)
        return [*refs[:-1], *more]

    def _taken(self, base: State, decided: State) -> Agreed:
        """Notes that this version was agreed, and loads it."""
        s = self.s
        if s.base_state().hash == base.hash and not s.db.has(UNFINISHED_KEY):
            s.db.set(BASE_KEY, decided)
        s.db.set(JOURNAL_KEY, None)
        return s.load(decided)

    def _propose(self, base: Agreed, change: Change) -> tuple[bool, Agreed]:
        """Has a version agreed on this base. -> whether it was, and the newest state."""
        s = self.s
        decided = agreement.propose(s, base.state, change)
        if not decided.mine:
            return False, agreement.newest(s)
        return True, self._taken(base.state, decided.state)

    # --- packing anew

    def _pack(self, found: _Found) -> str:
        """Stores what is needed of sparse packs in packs of its own; -> why that cannot be, "" if it was done.

        What an attempt before stored counts under the fence and in the epoch that it was made for. The old packs go
        only if each new one has all its copies.
        """
        s, state = self.s, found.base.state
        if self.upload is not None and not (
            self.upload.counting(state.min_gen, state.epoch)
            and self.upload.transfer.is_alike(s.transfer)
            and deltas.are_kept(found.base.index, self.upload.index_segments(), found.marked)
        ):
            self.upload = None
        if not found.plan.sparse:
            return ""
        if self.upload is None:
            self.upload = Upload(
                s.transfer, replace(s.form, epoch=state.epoch), state.gen, runner=s.runtime, listener=s.listener,
                entropy=s.entropy, clock=s.runtime.clock, look=s.check,
                begin=lambda: space.begin_asking(s, found.base.index),
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
        some: dict[bytes, Link | None] = {}
        size = 0
        for n, ids in enumerate(collection.to_pack(index, found.plan, found.marked), 1):
            for object_id in ids:
                link = some[object_id] = deltas.moved_as(index, object_id, found.marked)
                size += contents.size_of(object_id) if link is None else link.located.length
                if size >= PACKED_TOGETHER_BYTES:
                    _take(contents, some, upload)
                    some, size = {}, 0
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

        is_shown = self.duplicates.shown(index, s.contents(base), marked)
        missed = is_missed if found.plan.missing else None
        refusals = self._refusals(base)
        named, fence, gone = index.packs(), base.state.min_gen, found.plan.gone
        out = sweep.sweep(s, named, fence, refusals, missed, planned=gone, is_shown=is_shown)
        for name, packs in (before.packs if before is not None else {}).items():
            out.packs[name] += packs
            out.bytes[name] += before.bytes[name] if before is not None else 0
        return out

    def _refusals(self, base: Agreed) -> Refusals:
        """Where the base is not known, so that nothing that it let go may be deleted: asked once, if it matters."""
        return partial(self._refused, base.state)

    def _sweep_records(self, base: Agreed) -> None:
        """Deletes index records that the newest state does not need, nor a change of the backends under way."""
        try:
            needed = {base.state.retained, *self.s.indexes.names_of(base.state.index)}
            if base.config.moving is not None:
                needed |= self.s.indexes.names_of(Ref(*base.config.moving))
        except MetaSyncError:
            return
        sweep.sweep_records(self.s, needed, base.state.min_gen, self._refusals(base))

    def _preview(self, found: _Found) -> GcReport:
        """What would go: packs that nothing names, those that are dead, and of sparse ones what is not needed."""
        named, out = found.base.index.packs(), Swept()
        for copy in sweep.listed(self.s, out.away):
            if copy.id in found.plan.gone:
                use = found.plan.use_of(copy.id)
                out.add(copy if use is None else copy._replace(size=use.unused_bytes))
            elif copy.id not in named:
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
            notes = (*notes, f"{packs} spared: they may hold what is missing, or nowhere else.")
        if swept.away:
            away = ", ".join(sorted(swept.away))
            notes = (*notes, f"not all may be gone on {away}: the rest goes with a `metasync gc` when all answer.")
        for name, why in swept.away.items():
            s.listener(Notice(f"{name}: {why.removeprefix(f'{name}: ')}", warning=True))
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


def _new_items(newer: Agreed, older: Agreed) -> list[int]:
    """The numbers of the segments of an index that another one does not have."""
    there = {item.ref.hash for item in older.root.items}
    return [n for n, item in enumerate(newer.root.items) if item.ref.hash not in there]


def _take(contents: Contents, some: dict[bytes, Link | None], upload: Upload) -> None:
    """Adds objects to what is packed, deltas as they are. They arrive in workers, in any order; one thread packs."""
    ids = [i for i in some if i not in upload]
    moved = contents.fetch_deltas(link for i in ids if (link := some[i]) is not None)
    got: dict[bytes, tuple[ObjectKind, bytes]] = {}
    contents.fetch(
        [i for i in ids if i not in moved],
        lambda objects: got.update((o.id, (o.kind, bytes(data))) for o, data in objects),
    )
    for object_id in ids:
        if object_id in got:
            kind, data = got.pop(object_id)
            upload.add(kind, object_id, data)
        elif (link := some[object_id]) is not None:
            upload.add(ObjectKind.BLOB, object_id, moved[object_id], link.delta)


def _others_were_faster() -> WorkspaceError:
    return WorkspaceError(
        f"others pushed {LOST_ROUNDS_MAX} times while garbage was collected; nothing is lost", next_step="Run again."
    )
