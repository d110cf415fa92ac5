"""Brings the folder to an agreed state: scan, merge, checkout (D8).

What is here and not agreed stays: it is merged into the tree, and remains a change for the next push. `integrate` is
what a pull does with news, and what a push does when another was faster.
"""

from __future__ import annotations

import os
import stat as stat_
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from metasync.errors import DamagedError, WorkspaceError
from metasync.events import Phase, Progress
from metasync.localdb import Conflict as LocalConflict
from metasync.objects import walk
from metasync.objects.model import Chunk, Entry, Kind, ObjectKind
from metasync.objects.packfile import Located
from metasync.store.contents import Contents
from metasync.sync import guard
from metasync.sync.checkout import Applied, Change, Checkout
from metasync.sync.fsio import READ_FLAGS, split
from metasync.sync.ingest import Ingest
from metasync.sync.merge import Merge, merge
from metasync.sync.reports import Changes, ConflictReport, PullReport, Skipped
from metasync.sync.rows import Row, load_rows
from metasync.sync.scan import Scan
from metasync.sync.session import AGREED_MARK, BASE_KEY, KEPT_KEY, META_KIND, UNFINISHED_KEY, Agreed, Session
from metasync.sync.survey import store_survey, survey
from metasync.sync.texts import MergedText, kept_snapshot, merge_texts

ROUNDS_MAX = 3  # a folder that changes under every one of these merges is too busy to be merged now


class ChangedMeanwhile(Exception):  # noqa: N818 - a signal within this module: scan and merge again
    """A file that the merge was to move or keep is not what the scan saw."""


@dataclass
class Plan:
    """What a merge came to: the changes to the folder, and where their bytes are. `left`: what the agreed state would
    lose if the merged tree were agreed next."""

    base: Mapping[bytes, Entry]
    scan: Scan
    rows: dict[bytes, Row]
    merge: Merge
    left: guard.Loss
    texts: dict[bytes, MergedText] = field(default_factory=dict)


def changed(base: Mapping[bytes, Entry], tree: Mapping[bytes, Entry]) -> list[bytes]:
    """Paths at which two trees differ. Entries that are one object are equal at no cost."""
    out = [p for p, e in tree.items() if base.get(p) is not e and base.get(p) != e]
    out += [p for p in base if p not in tree]
    return out


def summary(pairs: Iterable[tuple[bytes, Entry | None, Entry | None]]) -> Changes:
    """Changes for people, from (path, before, after). Directories only where nothing inside them is named."""
    listed = [p for p in pairs if p[1] != p[2]]
    parents: set[bytes] = set()
    for path, _, _ in listed:
        while b"/" in path:
            path = path.rpartition(b"/")[0]
            if path in parents:
                break
            parents.add(path)
    shown = sorted(
        p for p in listed if p[0] not in parents or not any(e is not None and e.kind is Kind.DIR for e in p[1:])
    )
    return Changes(
        added=tuple(p for p, a, b in shown if a is None and b is not None),
        modified=tuple(p for p, a, b in shown if a is not None and b is not None),
        deleted=tuple(p for p, a, b in shown if a is not None and b is None),
    )


def noted(items: Iterable[tuple[bytes, str]]) -> tuple[Skipped, ...]:
    return tuple(Skipped(path, reason) for path, reason in items)


def integrate(
    s: Session, base: Agreed, target: Agreed, *, dry_run: bool = False, force: bool = False, pushing: bool = False
) -> PullReport:
    """Merges an agreed state into the folder, which then is at it. `WorkspaceError` if the folder never holds still.

    `GuardError`, unless `force`: most of the files here would go, or, when `pushing` is what comes next, most of the
    agreed ones; nothing was changed.
    """
    for _ in range(ROUNDS_MAX):
        try:
            return _integrate_once(s, base, target, dry_run=dry_run, force=force, pushing=pushing)
        except ChangedMeanwhile:
            continue
    raise WorkspaceError(
        f"files in {os.fsdecode(s.tree.root)} changed again and again while they were merged; nothing was replaced",
        next_step="Run again when the programs that write there are quiet.",
    )


def _integrate_once(
    s: Session, base: Agreed, target: Agreed, *, dry_run: bool, force: bool, pushing: bool
) -> PullReport:
    contents = s.contents(target)
    base_tree = s.flat(base, contents)
    news = contents.walk(walk.diff(base.tree_root, target.tree_root)) if base.tree_root != target.tree_root else {}
    plan = _plan(s, base, base_tree, news, contents)
    taken = guard.loss(plan.scan.tree, plan.merge.changes)
    if not dry_run:
        guard.guard("pull", taken, force=force)
        if pushing:
            guard.guard("push", plan.left, force=force)
    stop = guard.stop("pull", taken) if dry_run else None
    report = PullReport(
        before=base.state.v,
        version=target.state.v,
        changes=summary((p, plan.scan.tree.get(p), e) for p, e in plan.merge.changes.items()),
        merged=tuple(sorted(plan.texts)),
        unreadable=noted(plan.scan.unreadable),
        skipped=noted(plan.scan.skipped),
        down=dict(s.down),
        conflicts=tuple(ConflictReport(c.path, c.kept, str(c.reason)) for c in plan.merge.conflicts),
        warnings=(*plan.scan.warnings, *([guard.warning(stop)] if stop is not None else [])),
    )
    if dry_run:
        return report
    applied = _check_out(s, base, target, plan, contents)
    return replace(
        report,
        conflicts=report.conflicts + tuple(ConflictReport(c.path, c.copy, c.reason) for c in applied.conflicts),
        skipped=report.skipped + noted(applied.kept) + noted(applied.unplaced),
        down=dict(s.down),
    )


def _plan(
    s: Session, base: Agreed, base_tree: dict[bytes, Entry], news: Mapping[bytes, walk.Change], contents: Contents
) -> Plan:
    """Scans and merges. The rows of the scan are stored: they are true of the disk, whatever becomes of the merge."""
    s.listener(Phase("scan"))
    rows = load_rows(s.db)
    ingest = Ingest(s.chunker, s.ids)
    seen = survey(s.tree, s.db, base_tree, ingest, rows)
    store_survey(s.db, seen)
    rows.update(seen.put_rows)
    for path in seen.delete_rows:
        rows.pop(path, None)
    theirs = dict(base_tree)
    for path, (_, entry) in news.items():
        if entry is None:
            theirs.pop(path, None)
        else:
            theirs[path] = entry
    paths = {*changed(base_tree, seen.tree), *news}
    task = merge(base_tree, seen.tree, theirs, sorted(paths))
    texts: dict[bytes, MergedText] = {}
    try:
        requests = next(task)
        texts = merge_texts(requests, lambda p, e: _read_here(s, p, e), lambda es: _whole(s, contents, es), ingest)
        task.send({path: text.entry for path, text in texts.items()})
    except StopIteration as stop:
        result: Merge = stop.value
    outgoing = {p: result.changes.get(p, seen.tree.get(p)) for p in paths | result.changes.keys()}
    left = guard.loss(theirs, {p: e for p, e in outgoing.items() if e != theirs.get(p)})
    return Plan(base_tree, seen, rows, result, left, {t.path: texts[t.path] for t in result.text})


def _read_here(s: Session, path: bytes, entry: Entry) -> bytes | None:
    """A local file's bytes if they are still those of `entry`, else None."""
    parent, name = split(path)
    try:
        fd = os.open(name, READ_FLAGS, dir_fd=s.tree.dir(parent))
    except OSError:
        return None
    try:
        if not stat_.S_ISREG(os.fstat(fd).st_mode):
            return None
        data = b"".join(iter(lambda: os.read(fd, 1 << 20), b""))
    finally:
        os.close(fd)
    return data if s.ids.blob(data) == entry.content else None


def _whole(s: Session, contents: Contents, entries: list[Entry]) -> dict[bytes, bytes]:
    """Whole agreed files by content hash: those small enough for a merge of texts."""
    big = tuple({e.root for e in entries if e.root})
    pieces = contents.walk(walk.chunks(big)) if big else {}
    for e in entries:
        if e.root and sum(c.size for c in pieces[e.root]) != e.size:  # or a small entry would bring terabytes
            raise DamagedError(f"the chunks of a file of {e.size} bytes have another size together")
    wanted = [e.content for e in entries if not e.root and e.size]
    wanted += [c.id for cs in pieces.values() for c in cs]
    blobs = contents.load(ObjectKind.BLOB, wanted)
    out: dict[bytes, bytes] = {}
    for e in entries:
        chunks = pieces[e.root] if e.root else [Chunk(e.content, e.size)] if e.size else []
        sound = all(len(blobs[c.id]) == c.size for c in chunks)
        data = b"".join(blobs[c.id] for c in chunks) if sound else b""
        if not sound or s.ids.blob(data) != e.content:
            raise DamagedError(f"a file of {e.size} bytes does not have the content its entry says")
        out[e.content] = data
    return out


def _check_out(s: Session, base: Agreed, target: Agreed, plan: Plan, contents: Contents) -> Applied:
    """Journals, stages and applies the plan; the folder is at `target` afterwards."""
    s.listener(Phase("checkout"))
    merged = dict(plan.merge.changes)
    for path in s.db.unplaced():  # what this disk could not take last time, it is offered again
        if path not in merged and (again := plan.scan.tree.get(path)) is not None:
            merged[path] = again
    gone = set(plan.scan.deleted)
    commit: dict[str, bytes | None] = {BASE_KEY: target.state.encode(), UNFINISHED_KEY: None}
    if plan.texts:
        commit[KEPT_KEY] = _stage_kept(s, base, plan.texts)
    changes = [Change(p, e, None if p in gone else _expected(plan, p, e)) for p, e in merged.items()]
    s.db.put_objects(
        (was.content, META_KIND, AGREED_MARK)
        for p in merged
        if (was := plan.base.get(p)) is not None and was.root and p in plan.rows and plan.rows[p].entry == was
    )
    checkout = Checkout(s.db, s.tree)
    wanted = checkout.begin(changes, commit, version=target.state.v)
    try:
        for path, text in plan.texts.items():
            if path in wanted:
                checkout.stage_whole(path, text.data)
        entries = {p: e for p in wanted if p not in plan.texts and (e := merged[p]) is not None}
        _deliver(s, checkout, entries, plan, contents)
    except BaseException:
        checkout.abandon()
        raise
    conflicts = [LocalConflict(c.path, c.kept, str(c.reason), target.state.v) for c in plan.merge.conflicts]
    return checkout.apply(lambda: s.db.put_conflicts(conflicts))


def _expected(plan: Plan, path: bytes, new: Entry | None) -> Row | None:
    """The row by which the checkout knows what it may replace at a path: one of agreed bytes, or of those that come.

    Where the scan kept the base's entry (ignored paths, busy files), the row may tell of bytes that no version holds.
    """
    row, ours = plan.rows.get(path), plan.scan.tree.get(path)
    if row is None or any(e is not None and _same(row.entry, e) for e in (ours, new)):
        return row
    return None


def _same(one: Entry, other: Entry) -> bool:
    return (one.kind, one.size, one.content) == (other.kind, other.size, other.content)


def _stage_kept(s: Session, base: Agreed, texts: Mapping[bytes, MergedText]) -> bytes:
    """Stages what clean merges replace, for the next push to carry; returns the snapshot's id."""

    def stage(kind: ObjectKind, object_id: bytes, data: bytes) -> None:
        s.db.stage_object(object_id, int(kind), data)

    with s.db.transaction():
        parents: tuple[bytes, ...] = (base.state.master,) if base.snapshot is not None else ()
        kept = s.db.get(KEPT_KEY)
        if kept is not None:
            parents += (kept,)
        ingest = Ingest(s.chunker, s.ids, sink=stage)
        return kept_snapshot(texts, parents, s.device.device_id, s.wall_ns(), s.ids, ingest, stage)


def _deliver(s: Session, checkout: Checkout, entries: dict[bytes, Entry], plan: Plan, contents: Contents) -> None:
    """Brings the bytes of files: from the folder itself where they are there already, else from packs."""
    here = {e.content: p for p, e in plan.scan.tree.items() if e.kind is Kind.FILE and p not in plan.scan.busy}
    remote: dict[bytes, Entry] = {}
    for path, entry in entries.items():
        source = here.get(entry.content)
        if source is None or not _copy_here(s, checkout, source, path, entry):
            remote[path] = entry
    small, parts = _where(remote, contents)
    total = sum(e.size for e in remote.values())
    done = 0
    one_writer = threading.Lock()  # two threads creating files in one directory wait for each other in the kernel
    s.listener(Phase("download"))

    def deliver(objects: Sequence[tuple[Located, memoryview]]) -> None:
        nonlocal done
        with one_writer:
            for located, data in objects:
                for path in small.get(located.id, ()):
                    checkout.stage_whole(path, data)
                for path, offset in parts.get(located.id, ()):
                    checkout.stage_part(path, offset, data)
                done += located.length
            s.listener(Progress("download", done, total, "B"))

    contents.fetch([*small, *parts], deliver)
    for path, entry in remote.items():
        if entry.root:
            checkout.finish(path)


Places = tuple[dict[bytes, list[bytes]], dict[bytes, list[tuple[bytes, int]]]]


def _where(remote: Mapping[bytes, Entry], contents: Contents) -> Places:
    """Which blob is which whole file, and which is a piece of which file at what offset."""
    small: dict[bytes, list[bytes]] = defaultdict(list)
    parts: dict[bytes, list[tuple[bytes, int]]] = defaultdict(list)
    for entry in remote.values():
        if (entry.root or entry.content) not in contents.index:
            raise ChangedMeanwhile  # bytes that are only here, and were not what the scan saw
    roots = tuple({e.root for e in remote.values() if e.root})
    pieces = contents.walk(walk.chunks(roots)) if roots else {}
    for path, entry in remote.items():
        if not entry.root:
            small[entry.content].append(path)
            continue
        offset = 0
        for chunk in pieces[entry.root]:
            parts[chunk.id].append((path, offset))
            offset += chunk.size
        if offset != entry.size:
            raise DamagedError(f"the chunks of {os.fsdecode(path)} are {offset} bytes, its entry says {entry.size}")
    return small, parts


def _copy_here(s: Session, checkout: Checkout, source: bytes, path: bytes, entry: Entry) -> bool:
    """Stages a file from another place in the folder; False when its bytes are not the expected ones any more."""
    parent, name = split(source)
    try:
        fd = os.open(name, READ_FLAGS, dir_fd=s.tree.dir(parent))
    except OSError:
        return False
    try:
        st = os.fstat(fd)
        if not stat_.S_ISREG(st.st_mode) or st.st_size != entry.size:
            return False
        if not entry.root:
            data = os.read(fd, entry.size + 1)
            if len(data) != entry.size or s.ids.blob(data) != entry.content:
                return False
            checkout.stage_whole(path, data)
            return True
        hasher, offset = s.ids.content(), 0
        while piece := os.read(fd, 1 << 20):
            hasher.update(piece)
            checkout.stage_part(path, offset, piece)
            offset += len(piece)
        if offset != entry.size or hasher.digest() != entry.content:
            raise ChangedMeanwhile  # part of it is staged already: start anew
        checkout.finish(path)
        return True
    finally:
        os.close(fd)


def pull(s: Session, base: Agreed, target: Agreed, *, dry_run: bool = False, force: bool = False) -> PullReport:
    """Brings the folder to `target`, or says that it is there already. `GuardError`: see `integrate`."""
    if target.state.hash == base.state.hash and not s.db.unplaced():
        return PullReport(base.state.v, base.state.v, down=dict(s.down))
    if target.state.master == base.state.master and not dry_run and not s.db.unplaced():
        s.db.set(BASE_KEY, target.state.encode())
        return PullReport(base.state.v, target.state.v, down=dict(s.down))
    return integrate(s, base, target, dry_run=dry_run, force=force)
