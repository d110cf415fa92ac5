"""Turns reports on history and conflicts into what a person reads. Pure: nothing here prints."""

from __future__ import annotations

import stat
from collections.abc import Sequence

from metasync.reports.history import (
    Counts,
    DiffReport,
    Facts,
    Listing,
    LogItem,
    NotRestored,
    PathChange,
    ResolveReport,
    RestoreReport,
    ShowReport,
    SkipReport,
    TextDiff,
)
from metasync.reports.sync import ConflictReport, ConflictSide
from metasync.terminal.style import Role, Safe, signed, styled
from metasync.terminal.text.phrases import LISTED_MAX, RESOLVE, count, listed, size, text, when
from metasync.terminal.text.sync_text import changes, changes_line, down, left_out

SIGNS = {"added": "+", "modified": "~", "deleted": "-", "renamed": ">", "mode": "m", "type": "T", "time": "t"}
HEAD_LINES = 2  # of a unified diff: `---` and `+++`
NAMES = {"file": "a file", "dir": "a directory", "link": "a link"}


def log(items: Sequence[LogItem], *, some: bool = False) -> list[str]:
    """`some`: only versions were asked for that fit."""
    lines: list[str] = []
    for item in items:
        if item.others_after and not any(other.version == item.version + 1 for other in items):
            what = _versions(item.version + 1, item.version + item.others_after)
            lines.append(styled("head", what) + "  changed no files: metasync log --all")
        lines += _item(item)
        if item.dropped:
            lines.append(styled("head", _versions(*item.dropped)) + "  no longer kept")
    lines += [item.begins for item in items if item.begins]
    return lines or ["No version fits." if some else "Nothing has been pushed yet."]


def _versions(first: int, last: int) -> str:
    return f"version {first}" if first == last else f"versions {first} {'and' if last - first == 1 else 'to'} {last}"


def skipped(versions: Sequence[int]) -> str:
    """What is said of versions, ascending, that were passed over."""
    what, is_one = _versions(versions[0], versions[-1]), len(versions) == 1
    return f"skips {what}, which cannot be read" if is_one else f"skips {what}, some of which cannot be read"


def skip(r: SkipReport) -> list[str]:
    """The outcome of `metasync skip`."""
    what = f"{_versions(r.skipped[0], r.skipped[-1])} by {', '.join(text(d.encode()) for d in r.devices)}"
    tree = f"the tree of version {r.good}" if r.good is not None else "an empty tree, for none before can be read"
    if r.version is None:
        return [f"Would skip {what}, and take {tree}. Nothing was changed."]
    return [
        f"Version {r.version} skips {what}, and has {tree}.",
        "Each device goes on with its next pull or push. What a folder has beyond that tree stays, as its own changes.",
    ]


def _item(item: LogItem) -> list[str]:
    what = "replaced by a merge" if item.kept else f"version {item.version}"
    if not item.snapshot:
        return [styled("head", what) + f"  {sentences(item.events)}"]
    lines: list[str] = [styled("head", what) + f"  {when(item.time_ns)}  {item.device}  {item.snapshot.hex()[:12]}"]
    lines += [f"    {line}" for line in item.message.splitlines()]
    lines += [f"    {skipped(item.skips)}"] if item.skips else []
    lines += ["    without what was forgotten"] if item.forgotten else []
    lines += [f"    {sentences(item.events)}"] if item.events else []
    if item.counts is not None:
        lines.append(f"    {counts(item.counts)}")
    if item.changes is not None:
        lines += ["    " + change(c) for c in item.changes[:LISTED_MAX]]
        if len(item.changes) > LISTED_MAX:
            lines.append(f"    ... and {len(item.changes) - LISTED_MAX:,} more")
    return lines


def sentences(events: Sequence[str]) -> str:
    return "; ".join(events)


def show(r: ShowReport) -> list[str]:
    return _item(r.version) + (diff(r.diff) if r.diff is not None else [])


def counts(c: Counts) -> str:
    some = [f"{c.added:,} added", f"{c.modified:,} modified", f"{c.deleted:,} deleted"]
    some += [f"{c.renamed:,} renamed"] if c.renamed else []
    some += [f"{c.other:,} with another mode, time or type"] if c.other else []
    return ", ".join(some)


def change(c: PathChange) -> str:
    """One path that differs: `~ notes.txt (20 B, was 12 B)`."""
    return signed(SIGNS[c.kind], _change(c))


def _change(c: PathChange) -> str:
    a, b = c.before, c.after
    path = named(c.path, b or a)
    if c.kind == "renamed" and c.was is not None:
        return f"{text(c.was)} -> {path}"
    if a is None or b is None:
        one = a or b
        return f"{path} ({size(one.size)})" if one is not None and one.kind == "file" else path
    if c.kind == "type":
        return f"{path} ({NAMES[b.kind]}, was {NAMES[a.kind]})"
    if c.kind == "mode":
        return f"{path} (mode {b.mode:o}, was {a.mode:o})"
    if c.kind == "time":
        return f"{path} (only its time)"
    if b.kind == "link":
        return f"{path} -> {text(b.target or b'')}, was {text(a.target or b'')}"
    return f"{path} ({size(b.size)}, was {size(a.size)})"


def named(path: bytes, facts: Facts | None) -> str:
    return text(path) + ("/" if facts is not None and facts.kind == "dir" else "")


def diff(r: DiffReport) -> list[str]:
    lines = [f"From {r.a} to {r.b}:", *("  " + change(c) for c in r.changes)]
    if not r.changes:
        lines = [f"No difference between {r.a} and {r.b}."]
    for one in r.texts:
        lines += text_diff(one)
    if r.changes:
        lines.append(counts(r.counts))
    lines += left_out(r.unreadable, "Cannot be read, so taken as unchanged:")
    lines += left_out(r.busy, "Changing right now:")
    lines += left_out(r.skipped, "Left out:")
    return lines + [f"warning: {w}" for w in r.warnings]


def text_diff(d: TextDiff) -> list[str]:
    if d.note:
        return [f"{text(d.path)}: {d.note}"]
    return [Safe.of(line, _role(line, head=n < HEAD_LINES)) for n, line in enumerate(d.lines)]


def _role(line: str, *, head: bool) -> Role | None:
    """Of a line of a unified diff, as git colours it."""
    if head or line.startswith("@@"):
        return "hunk"
    return "added" if line.startswith("+") else "deleted" if line.startswith("-") else None


def listing(r: Listing, *, long: bool) -> list[str]:
    if not long:
        return [named(item.path, item.facts) for item in r.entries]
    rows = []
    for item in r.entries:
        f = item.facts
        kind = {"file": stat.S_IFREG, "dir": stat.S_IFDIR, "link": stat.S_IFLNK}[f.kind]
        mode = stat.filemode(kind | (f.mode if f.kind != "link" else 0o777))
        target = f" -> {text(f.target)}" if f.target is not None else ""
        time = when(f.mtime_ns) if f.kind != "dir" else ""
        rows.append((mode, size(f.size) if f.kind == "file" else "", time, named(item.path, f) + target))
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    return [f"{m}  {s:>{widths[1]}}  {t:{widths[2]}}  {path}" for m, s, t, path in rows]


def restore(r: RestoreReport, *, dry_run: bool) -> list[str]:
    what = f"version {r.version}" if r.version is not None else f"snapshot {r.snapshot.hex()[:12]}"
    lines = ["Dry run: nothing was changed."] if dry_run else []
    verb = "Would restore" if dry_run else "Restored"
    if r.to is not None:
        written = count(len(r.changes.added), "path")
        lines.append(f"{verb} {what} to {r.to}: {written}, {size(r.size_written)}.")
        lines += [f"{count(r.unchanged, 'path')} there already."] if r.unchanged else []
    elif len(r.changes) or r.conflicts or r.failed:
        lines.append(f"{verb} {what}: {changes_line(r.changes)}.")
        lines += changes(r.changes)
    else:
        lines.append(f"All is as in {what}.")
    if r.conflicts:
        lines.append(f"{count(len(r.conflicts), 'unsaved path was', 'unsaved paths were')} in the way, and kept:")
        lines += [f"  {text(c.path)}: kept as {text(c.kept)}" for c in r.conflicts]
        lines.append(RESOLVE)
    if dry_run and r.unsaved:
        lines.append("Unsaved and in the way: would be kept as conflict copies:")
        lines += listed("!", r.unsaved)
    lines += failed(r.failed)
    lines += left_out(r.unreadable, "Could not be read here, so left as they are:")
    lines += left_out(r.skipped, "Left as they are:")
    if r.to is None and len(r.changes) and not dry_run:
        lines.append("`metasync push` makes it the newest version, where it differs from that.")
    return lines + down(r.down)


def failed(items: Sequence[NotRestored]) -> list[str]:
    head = [f"Could not be restored: {count(len(items), 'path')}"] if items else []
    return head + [f"  {text(f.path)}: {f.reason}" for f in items]


def conflicts(items: Sequence[ConflictReport], texts: Sequence[TextDiff] = ()) -> list[str]:
    if not items:
        return ["No conflicts."]
    lines = [f"{count(len(items), 'conflict')}:"]
    for c in items:
        lines.append(f"  {text(c.path)}: {c.reason}")
        width = max(len(text(side.path)) for side in c.sides)
        is_ours = any(side.here for side in c.sides) and not all(side.here for side in c.sides)
        for side in c.sides:
            word = ("ours    " if side.here else "theirs  ") if is_ours else ""
            lines.append(f"    {word}{text(side.path):{width}}  {_whose(side, is_copy=side is c.sides[1])}".rstrip())
    return [*lines, *(line for one in texts for line in text_diff(one)), RESOLVE]


def _whose(side: ConflictSide, *, is_copy: bool) -> str:
    """Device, version and time of a side, as far as they are known."""
    known = [side.device] if side.device is not None else []
    if side.version is not None:
        known.append(f"changed on version {side.version}" if is_copy else f"version {side.version}")
    known += [when(side.time_ns)] if side.time_ns is not None else []
    return ", ".join(known)


def resolved(reports: Sequence[ResolveReport]) -> list[str]:
    lines = [line for r in reports for line in _resolved(r)]
    return [*lines, "`metasync push` tells the others."] if lines else ["Nothing to resolve."]


def _resolved(r: ResolveReport) -> list[str]:
    if r.merged:
        lines = [f"{text(r.path)} is merged; gone: {', '.join(map(text, r.copies))}."]
    elif r.kept is None:
        lines = [f"{text(r.path)} and {', '.join(map(text, r.copies))} all stay: no conflict any more."]
    elif r.kept == r.path:
        lines = [f"{text(r.path)} stays; gone: {', '.join(map(text, r.copies))}."]
    else:
        lines = [f"{text(r.path)} is now what {text(r.kept)} was."]
        others = [copy for copy in r.copies if copy != r.kept]
        lines += [f"Gone: {', '.join(map(text, others))}."] if others else []
    if r.replaced:
        lines.append("What lost is kept until a pushed version holds it:")
        lines += [f"  {text(k.path)}: {k.at}" for k in r.replaced[:LISTED_MAX]]
        lines += [f"  ... and {len(r.replaced) - LISTED_MAX:,} more"] if len(r.replaced) > LISTED_MAX else []
    lines += [f"{text(c.path)}: {c.reason}; that is kept as {text(c.kept)}" for c in r.conflicts]
    return lines + left_out(r.skipped, "Left as they are:")
