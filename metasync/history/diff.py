"""What differs between two versions, or between a version and the folder (`metasync diff`), and what a version holds
(`metasync ls`). Nothing is changed, and nothing is read that is not needed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from metasync.consensus import ZERO_HASH
from metasync.errors import DamagedError, UnreachableError, UsageError
from metasync.history.log import History, Moment, is_below, item_of, last_with
from metasync.history.versions import Version, required, resolve
from metasync.local.memory import room_for_tree
from metasync.merge.changes import Pair, counts, described, facts
from metasync.merge.lines import DIFF_BYTES_MAX, TOO_LARGE, unified
from metasync.objects import walk
from metasync.objects.model import Entry, Kind, version_of
from metasync.reports.history import DiffReport, Listed, Listing, LogItem, PathChange, ShowReport, TextDiff
from metasync.session.session import Session
from metasync.sync.fetch import read_here, whole
from metasync.sync.scanned import noted
from metasync.worktree.merge_walk import walk_folder, walk_index
from metasync.worktree.overlay import changed
from metasync.worktree.scan import Scan, scan

TEXTS_BATCH_BYTES = 8 << 20  # of texts in memory at a time, each side
HERE = "the folder"
LOOK_BACK = 1000  # versions in which a path is looked for that the one asked for lacks: `undelete` looks in all


def top_paths(paths: Sequence[bytes]) -> tuple[bytes, ...]:
    """The paths that are not below another of them; the root where none is given."""
    out: list[bytes] = []
    for path in sorted(set(paths)) or [b""]:
        if not any(is_below(path, top) for top in out):
            out.append(path)
    return tuple(out)


def diff(s: Session, a: str | None, b: str | None, paths: Sequence[bytes], *, text: bool) -> DiffReport:
    """Compares `a` (this folder's base) with `b` (the folder as it stands), at these paths and below."""
    first, second = required(a or "base"), required(b) if b is not None else None
    history = History(s, ask=text or any(spec.kind != "base" for spec in (first, second) if spec is not None))
    old = resolve(history, first)
    new = resolve(history, second) if second is not None else None
    tops = top_paths(paths)
    seen: Scan | None = None
    if new is not None:
        pairs = history.pairs(old.root, new.root, tops)
    else:
        seen, pairs = _against_folder(history, old, tops)
    changes = described(pairs)
    entries = {path: (x, y) for path, x, y in pairs}
    missing = [p for p in tops if p and p not in entries and not _is_there(history, old, new, seen, p)]
    if missing:
        raise UsageError(
            f"{os.fsdecode(missing[0])} is neither in {old.title} nor in {new.title if new else HERE}",
            next_step="`metasync ls -r` lists what is there.",
        )
    return DiffReport(
        a=old.title,
        b=new.title if new is not None else HERE,
        changes=changes,
        counts=counts(changes),
        texts=tuple(_texts(history, changes, entries, in_folder=new is None)) if text else (),
        unreadable=noted(seen.unreadable) if seen is not None else (),
        skipped=noted(seen.skipped) if seen is not None else (),
        busy=noted((p, "being written to") for p in seen.busy) if seen is not None else (),
        warnings=tuple(seen.warnings) if seen is not None else (),
    )


def show(s: Session, version: str, paths: Sequence[bytes], *, text: bool) -> ShowReport:
    """One version, and what it changed at these paths and below. `UsageError`: there is no such version or path."""
    history = History(s)
    spec = required(version)
    new = resolve(history, spec)
    if new.snapshot is None or (spec.kind == "number" and not spec.back and version_of(new.snapshot) != new.number):
        from metasync.history.membership import events

        v = new.number or 0
        told = events(s, history.newest.state, max(v - 1, 0), [v])
        return ShowReport(LogItem(v, b"", "", 0, "", events=told.get(v, ())), None)
    shown = new.snapshot
    new = Version(version_of(shown) or None, new.id, shown)  # the push that `latest` has its files from
    item = item_of(history, Moment(new.id, shown), kept=new.number is None)
    parent = history.before(shown)
    if parent == ZERO_HASH and not shown.parents:
        root, title = None, "nothing"
    elif parent != ZERO_HASH and parent in history.contents:
        before = history.snapshot(parent)
        root, title = before.root, Version(version_of(before) or None, parent, before).title
    else:
        raise UsageError(
            f"what {new.title} changed cannot be told: the version before it is no longer kept",
            next_step="`metasync ls -r VERSION` lists what it holds.",
        )
    tops = top_paths(paths)
    pairs = history.pairs(root, new.root, tops)
    for path in tops:
        found = history.find(new.root, path)
        if found.entry is None and path and history.find(root, path).entry is None:
            raise nothing_there(history, new, path, found.reached)
    changes = described(pairs)
    entries = {path: (x, y) for path, x, y in pairs}
    texts = tuple(_texts(history, changes, entries, in_folder=False)) if text else ()
    return ShowReport(item, DiffReport(title, new.title, changes, counts(changes), texts))


def _against_folder(history: History, old: Version, tops: Sequence[bytes]) -> tuple[Scan, list[Pair]]:
    """A version and the folder: the folder is only read where it is not what the base has."""
    s = history.s
    base = s.base()
    walked = walk_index(s.tree, s.db, base.tree_root)
    seen = scan(walked or walk_folder(s.tree, s.db, s.flat(base, history.contents)), s.ingest())
    since = history.contents.walk(walk.diff(old.root, base.tree_root, room_for_tree))
    before = {path: x for path, (x, _) in since.items()}
    differing = {*since, *changed(seen.tree)}
    pairs = [(p, before[p] if p in before else seen.base.get(p), seen.tree.get(p)) for p in differing]
    return seen, [pair for pair in pairs if any(is_below(pair[0], top) for top in tops)]


def _is_there(history: History, old: Version, new: Version | None, seen: Scan | None, path: bytes) -> bool:
    if seen is not None and path in seen.tree:
        return True
    roots = [old.root, new.root if new is not None else None]
    return any(history.find(root, path).entry is not None for root in roots)


# ---- texts


def _texts(
    history: History,
    changes: Sequence[PathChange],
    entries: dict[bytes, tuple[Entry | None, Entry | None]],
    *,
    in_folder: bool,
) -> Iterator[TextDiff]:
    """The texts of changed files, some at a time."""
    batch: list[tuple[PathChange, Entry | None, Entry | None]] = []
    size = 0
    for change in changes:
        old = entries[change.was if change.was is not None else change.path][0]
        new = entries[change.path][1]
        sides = [e for e in (old, new) if e is not None and e.kind is Kind.FILE]
        if not sides or (old is not None and new is not None and old.content == new.content):
            continue
        if max(e.size for e in sides) > DIFF_BYTES_MAX:
            yield TextDiff(change.path, note=TOO_LARGE)
            continue
        if batch and size + sum(e.size for e in sides) > TEXTS_BATCH_BYTES:
            yield from _batch(history, batch, in_folder=in_folder)
            batch, size = [], 0
        batch.append((change, old, new))
        size += sum(e.size for e in sides)
    yield from _batch(history, batch, in_folder=in_folder)


def _batch(
    history: History, batch: Sequence[tuple[PathChange, Entry | None, Entry | None]], *, in_folder: bool
) -> Iterator[TextDiff]:
    stored = [e for _, old, new in batch for e in ((old,) if in_folder else (old, new)) if e and e.kind is Kind.FILE]
    try:
        texts = whole(history.s, history.contents, stored)
    except (DamagedError, UnreachableError) as e:
        if len(batch) == 1:
            yield TextDiff(batch[0][0].path, note=f"cannot be read: {e.message}")
            return
        for one in batch:
            yield from _batch(history, [one], in_folder=in_folder)
        return
    for change, old, new in batch:
        before = texts[old.content] if old is not None and old.kind is Kind.FILE else b""
        after: bytes | None = b""
        if new is not None and new.kind is Kind.FILE:
            after = read_here(history.s, change.path, new) if in_folder else texts[new.content]
        if after is None:
            yield TextDiff(change.path, note="is being written to")
            continue
        outcome = unified(before, after, _name("a/", old, change.was or change.path), _name("b/", new, change.path))
        yield TextDiff(change.path, note=outcome) if isinstance(outcome, str) else TextDiff(change.path, outcome)


def _name(prefix: str, entry: Entry | None, path: bytes) -> str:
    return prefix + os.fsdecode(path) if entry is not None and entry.kind is Kind.FILE else "/dev/null"


# ---- listings


def listing(s: Session, version: str | None, path: bytes, *, recursive: bool) -> Listing:
    """What a version (the newest) holds at a path: a directory's names, or the file itself. `UsageError`: nothing."""
    history = History(s, ask=version != "base")
    found = resolve(history, required(version or "latest"))
    here = history.find(found.root, path)
    if here.entry is None and (path or found.root is not None):
        raise nothing_there(history, found, path, here.reached)
    number, entry = found.number, here.entry
    if entry is None:
        return Listing(number, found.id, path, ())
    if entry.kind is not Kind.DIR:
        return Listing(number, found.id, path, (Listed(path, facts(entry)),))
    if recursive:
        tree = history.subtree(found.root, path)
        tree.pop(path, None)
    else:
        prefix = path + b"/" if path else b""
        tree = {prefix + name: e for name, e in history.contents.walk(walk.listing(entry.content))}
    return Listing(number, found.id, path, tuple(Listed(p, facts(e)) for p, e in sorted(tree.items())))


def nothing_there(history: History, version: Version, path: bytes, reached: bytes) -> UsageError:
    """The error for a path that a version lacks: how far the way to it goes, and what is there."""
    names: list[str] = []
    entry = history.find(version.root, reached).entry
    if entry is not None and entry.kind is Kind.DIR:
        listed = history.contents.walk(walk.listing(entry.content))
        names = [os.fsdecode(name) + ("/" if e.kind is Kind.DIR else "") for name, e in listed[:6]]
        names += ["..."] if len(listed) > len(names) else []
    where = os.fsdecode(reached) + "/" if reached else "the root"
    near = f"Nearest to it is {where}, with {', '.join(names) or 'nothing in it'}."
    message = f"{version.title} has nothing at {os.fsdecode(path)}"
    with contextlib.suppress(DamagedError, UnreachableError):
        if (there := last_with(history, path, LOOK_BACK)) is not None:
            v = version_of(there.snapshot)
            return UsageError(
                f"{message}; the last that has it is version {v}",
                next_step=f"`metasync restore {v} PATH` brings that back, and so does `metasync undelete PATH`. {near}",
            )
    return UsageError(message, next_step=f"{near} `metasync log PATH` tells in which versions a path changed.")
