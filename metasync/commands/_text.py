"""Turns reports into what a person reads, and into JSON values. Pure: nothing here prints."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from metasync.codec import amount
from metasync.config import DEFAULT_CAPACITY
from metasync.local.spill import Paths

if TYPE_CHECKING:  # the kit is not loaded for the commands that do not need it
    from metasync.reports.backends import BackendChange, BackendState, CheckReport, Moving, RecoverReport, Status
    from metasync.reports.sync import Changes, ConflictReport, PullReport, PushReport, Skipped, Trailing
    from metasync.testing.contract import Outcome, Report

NO_VALUES = frozenset({"error", "workspace"})  # fields of reports that hold live objects, for the library alone
RESOLVE = "Compare the two, then: metasync resolve PATH --keep mine|theirs|both"
EXAMPLES_MAX = 3  # in a line
LISTED_MAX = 20  # paths shown per kind before "and N more"


def text(path: bytes) -> str:
    """A path for people and for JSON: UTF-8 where it is, what can't be shown as `\\xNN` or `\\uNNNN`.

    Each path has a text of its own: from `\\x80` on it is a byte that is no UTF-8, a character from U+0080 on is
    `\\u0080`, and a backslash is doubled.
    """
    line = path.decode("utf-8", "surrogateescape").replace("\\", "\\\\")
    return printable(line)


def printable(line: str) -> str:
    """A line that moves no cursor and hides nothing, whatever names and servers' answers stand in it."""
    return line if line.isprintable() else "".join(c if c.isprintable() else _escaped(ord(c)) for c in line)


class Alarm(str):
    """A line that must not be overlooked: red on a terminal."""

    __slots__ = ()


class Safe(str):
    """A line that is safe to print as it is: `printable`, but for tabs, which a text is full of."""

    __slots__ = ()

    @classmethod
    def of(cls, line: str) -> Safe:
        return cls("\t".join(printable(part) for part in line.split("\t")))


def _escaped(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8, as `os.fsdecode` gives it
        code -= 0xDC00
        return f"\\x{code:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def sentence(text: str) -> str:
    """With a capital at its beginning."""
    return text[:1].upper() + text[1:]


def size(n: int) -> str:
    """Bytes in a unit that fits, powers of 1,024."""
    return amount(n)


def count(n: int, what: str, plural: str | None = None) -> str:
    return f"{n:,} {what if n == 1 else plural or what + 's'}"


def when(time_ns: int) -> str:
    """Local time to the second, or the raw number when it is no date."""
    try:
        return dt.datetime.fromtimestamp(time_ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"


def listed(sign: str, paths: Sequence[bytes], most: int = LISTED_MAX) -> list[str]:
    lines = [f"  {sign} {text(p)}" for p in paths[:most]]
    if len(paths) > most:
        lines.append(f"  {sign} ... and {len(paths) - most:,} more")
    return lines


def changes(c: Changes) -> list[str]:
    return [*listed("+", c.added), *listed("~", c.modified), *listed("-", c.deleted)]


def changes_line(c: Changes) -> str:
    return f"{len(c.added):,} added, {len(c.modified):,} modified, {len(c.deleted):,} deleted"


def conflicts(items: Sequence[ConflictReport]) -> list[str]:
    lines = [f"  {text(c.path)}: yours is kept as {text(c.kept)} ({c.reason})" for c in items]
    if lines:
        head = f"{count(len(items), 'conflict')}: the agreed version kept the name."
        lines = [head, *lines, RESOLVE]
    return lines


def left_out(items: Sequence[Skipped], head: str) -> list[str]:
    return [head, *[f"  {text(s.path)}: {s.reason}" for s in items]] if items else []


def _warnings(items: Sequence[str]) -> list[str]:
    return [f"warning: {w}" for w in items]


def unplaced(items: Sequence[Skipped]) -> list[str]:
    """What is agreed and not on this disk."""
    if not items:
        return []
    lines = [f"  {text(s.path)}: {s.reason}" for s in items[:LISTED_MAX]]
    lines += [f"  ... and {len(items) - LISTED_MAX:,} more"] if len(items) > LISTED_MAX else []
    return ["Cannot be held here (they stay as they are for your other devices):", *lines]


def unportable(items: Sequence[Skipped]) -> list[str]:
    """One line on new names that other systems can't hold."""
    if not items:
        return []
    examples = "; ".join(f"{text(s.path)} ({s.reason})" for s in items[:EXAMPLES_MAX])
    more = ", ..." if len(items) > EXAMPLES_MAX else ""
    return [f"warning: {count(len(items), 'new name')} cannot be held by every system: {examples}{more}"]


def down(down: Mapping[str, str]) -> list[str]:
    return [f"warning: {name}: {why.removeprefix(f'{name}: ')}" for name, why in sorted(down.items())]


def pull(r: PullReport, *, dry_run: bool = False) -> list[str]:
    if r.before == r.version and not r.conflicts:
        lines = [f"Up to date at version {r.version}."]
    else:
        now = (
            f"Would go from version {r.before} to {r.version}"
            if dry_run
            else f"Now at version {r.version} (was {r.before})"
        )
        lines = [f"{now}: {changes_line(r.changes)}.", *changes(r.changes)]
    lines += listed("*", r.merged) and ["Merged line by line:", *listed("*", r.merged)]
    lines += conflicts(r.conflicts)
    lines += left_out(r.unreadable, "Could not be read here, so left as they are:")
    lines += left_out(r.skipped, "Left out:")
    lines += unplaced(r.unplaced)
    return lines + _warnings(r.warnings) + down(r.down)


def push(r: PushReport, *, dry_run: bool) -> list[str]:
    lines: list[str] = []
    if r.found_again is not None:
        lines.append(f"An earlier push had been agreed as version {r.found_again}, though it was interrupted.")
    if r.pulled is not None and (r.pulled.before != r.pulled.version or r.pulled.conflicts):
        lines += ["Others were faster; merged first:", *pull(r.pulled)]
    if dry_run:
        lines += [f"Would push {changes_line(r.changes)}.", *changes(r.changes), *_would_send(r)]
        lines += [
            f"warning: {t.name}: up to {size(t.needed_bytes)} would go there, and {size(t.fits_bytes)} fit."
            for t in r.tight
        ]
    elif r.version is None:
        lines.append("Nothing to push.")
    else:
        lines.append(f"Pushed version {r.version}: {changes_line(r.changes)}.")
        lines += changes(r.changes)
        lines.append(
            f"Stored {count(r.packs, 'pack')}, {size(r.bytes_stored)}, {count(r.copies, 'copy', 'copies')} each."
        )
    lines += trailing(r.trailing)
    if r.elsewhere:
        lines.append(f"warning: {count(r.elsewhere, 'pack')} found another place than their own, with all copies.")
    if r.under_replicated:
        lines.append(f"warning: {count(r.under_replicated, 'pack')} with fewer than {r.copies} copies.")
    lines += left_out(r.busy, "Changed while they were read; the next push takes them:")
    lines += left_out(r.unreadable, "Could not be read, so not pushed:")
    lines += left_out(r.skipped, "Left out:")
    lines += unportable(r.unportable)
    return lines + _warnings(r.warnings) + down(r.down)


def _would_send(r: PushReport) -> list[str]:
    """How much would be read, and how much would go where."""
    if not r.files_to_read:
        return []
    shares = ", ".join(f"{size(most)} to {name}" for name, most in r.to_send.items())
    return [
        f"To read: {count(r.files_to_read, 'file')}, {size(r.size_to_read)}. To send: at most"
        f" {size(r.size_to_read * r.copies)} of content, in {count(r.copies, 'copy', 'copies')}"
        f" (up to {shares or 'no backend'})."
    ]


def _ignored(s: Status, *, verbose: bool) -> list[str]:
    lines: list[str] = []
    if s.ignored_agreed:
        lines.append(
            f"Agreed but ignored now: {count(s.ignored_agreed, 'file')}, kept as agreed; edits are not pushed."
        )
    if verbose and s.ignored:
        lines.append(f"Ignored, and not agreed: {count(s.ignored_total, 'path')}")
        lines += [f"  {text(p)}" for p in s.ignored]
        lines += [f"  ... and {s.ignored_total - len(s.ignored):,} more"] if s.ignored_total > len(s.ignored) else []
    return lines


def status(s: Status, *, verbose: bool = False) -> list[str]:
    lines = [f"Workspace {s.name}, version {s.version} ({s.fingerprint})"]
    if s.newest is None:
        lines.append(f"The newest agreed version is unknown: {s.problem}")
        lines += [sentence(s.error.next_step)] if s.error is not None and s.error.next_step else []
    elif s.newest > s.version:
        lines.append(f"Behind by {count(s.newest - s.version, 'version')}: `metasync pull` brings them.")
    else:
        lines.append("Nothing newer is agreed.")
    if s.paused:
        lines.append(f"Transfers are paused here {s.paused}: `metasync resume` ends that.")
    if len(s.changes):
        lines += [f"Changed here, not pushed: {changes_line(s.changes)}", *changes(s.changes)]
    else:
        lines.append("Nothing changed here.")
    lines += conflicts(s.conflicts)
    lines += left_out(s.unreadable, "Cannot be read:")
    lines += left_out(s.skipped, "Left out:")
    lines += unplaced(s.unplaced)
    lines += _ignored(s, verbose=verbose)
    lines += _warnings(s.warnings)
    lines += ["", *backends(s.backends), *moving(s.moving), *trailing(s.trailing), "", s.survives]
    lines += [f"warning: {e.backend} is not to be trusted: {e.what} (noticed {when(e.time_ns)})" for e in s.evidence]
    if s.withdraw:
        names = ", ".join(dict.fromkeys(f"{i.device} at {i.backend}" for i in s.withdraw))
        lines.append(Alarm(f"Revoked, and logins not withdrawn yet: {names}. See metasync device list."))
    if s.under_replicated:
        lines.append(f"warning: {count(s.under_replicated, 'pack')} below the promised number of copies.")
    return lines


def backends(items: Sequence[BackendState]) -> list[str]:
    rows = [("backend", "holds", "used", "capacity", "free", "state", "where")]
    for b in items:
        used = size(b.used_bytes) if b.used_bytes is not None else "-"
        free = size(b.free_bytes) if b.free_bytes is not None else "?"
        free += f" of {size(b.total_bytes)}" if b.free_bytes is not None and b.total_bytes is not None else ""
        where = b.url if b.linked else f"not linked here: metasync backend link {b.name} URL"
        capacity = "equal" if b.capacity_bytes == DEFAULT_CAPACITY else size(b.capacity_bytes)
        rows.append((b.name, "+".join(b.roles), used, capacity, free, b.state, where))
    widths = [max(len(r[i]) for r in rows) for i in range(6)]
    lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(r, widths, strict=False)), r[6]]).rstrip() for r in rows]
    return lines + [f"warning: {b.warning}." for b in items if b.warning]


def moving(m: Moving) -> list[str]:
    """What a change of the backends left where it was."""
    if not m.packs:
        return []
    return [f"Still to move: {count(m.packs, 'pack')}, {size(m.bytes)}; until then they are read where they are."]


def trailing(items: Sequence[Trailing]) -> list[str]:
    """Copies of agreed packs that are still to be made."""
    return [f"{count(t.packs, 'pack')} ({size(t.bytes)}) still to be copied to {t.name}." for t in items]


def backend_change(what: str, c: BackendChange) -> list[str]:
    """What was agreed of the backends, and what the workspace survives before and after."""
    did = {"add": "Added", "remove": "Removed", "set": "Changed"}[what]
    if c.dry_run:
        head = f"Would {'change' if what == 'set' else what} {c.name}; nothing was changed."
    elif c.version is None:
        head = f"{c.name} is so already; nothing was changed."
    else:
        head = f"{did} {c.name}, agreed as version {c.version}; fingerprint now {c.fingerprint}."
    lines = [head]
    if c.after != c.before:
        lines += [f"  before: {c.before}", f"  {'would be' if c.dry_run else 'now'}:    {c.after}"]
    else:
        lines.append(f"  {c.after}")
    if c.moving.packs:
        lines.append(f"Still to move{' then' * c.dry_run}: {count(c.moving.packs, 'pack')}, {size(c.moving.bytes)}.")
    return [*lines, *c.kept]


def check(r: CheckReport, *, read_data: bool) -> list[str]:
    lines = [f"  {p.backend}: pack {p.pack.hex()[:16]} {p.problem}" for p in r.problems]
    lines += [f"  {p.backend}: {p.problem}" for p in r.meta_problems]
    how = f"read {size(r.bytes_read)}"
    if not read_data:
        how = "compared sizes" + (f" and {count(r.by_digest, 'digest')}" if r.by_digest else "")
        how += f", read {count(r.pieces_read, 'piece')} ({size(r.bytes_read)})" if r.pieces_read else ""
    head = f"Checked version {r.version}: {count(r.packs, 'pack')}, {count(r.copies_checked, 'copy', 'copies')}, {how}."
    if r.lost:
        lines.append(f"{count(len(r.lost), 'pack')} cannot be had intact from any backend that answers.")
    elif lines:
        lines.append("Everything can still be read." + (" Some packs have too few copies." if r.short else ""))
    else:
        lines.append("All is there, as often as promised.")
    return [head, *lines, *trailing(r.trailing), *(f"note: {note}" for note in r.notes)]


def outcome(o: Outcome) -> str:
    """One line on one check of a store."""
    said = o.why if o.result != "passed" else f"{o.what} ({o.why})" if o.why else o.what
    return f"  {'ok' if o.result == 'passed' else o.result:8} {o.name:19} {said}"


def verdict(r: Report) -> list[str]:
    """What a store is fit for, why it is not more, and what it cost to find out."""
    results = [o.result for o in r.checks]
    told = ", ".join(f"{results.count(x)} {x}" for x in ("passed", "failed", "weak", "skipped") if x in results)
    lines = [
        f"{count(len(results), 'check')}: {told}. Cost {count(r.requests, 'request')}, {size(r.up_bytes)} up,"
        f" {size(r.down_bytes)} down, {r.seconds:.1f} s.",
        *([f"Free space: {size(r.free_bytes)}."] if r.free_bytes is not None else []),
        "",
        f"Verdict: {r.verdict}{' (quick)' if r.scale == 'quick' else ''}.",
    ]
    lines += [f"  because {reason}" for reason in r.reasons]
    lines += [f"  note: {note}" for note in r.notes]
    return [*lines, r.advice]


def value(x: Any) -> Any:
    """A JSON value of a report: dataclasses and named tuples as objects, paths as text, other bytes in hex."""
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {f.name: _field(f.name, getattr(x, f.name)) for f in dataclasses.fields(x) if f.name not in NO_VALUES}
    if isinstance(x, bytes):
        return text(x)
    if isinstance(x, Mapping):
        return {str(k): value(v) for k, v in x.items()}
    if isinstance(x, tuple | list | Paths):
        return [value(v) for v in x]
    return x


def _field(name: str, x: Any) -> Any:
    if isinstance(x, bytes) and name in ("snapshot", "pack"):
        return x.hex()
    if name == "lost":
        return [p.hex() for p in x]
    return value(x)


def recovery(r: RecoverReport) -> list[str]:
    """What a restart without lost backends goes on from, and what it lost."""
    names = ", ".join(r.without)
    head = f"Would restart the workspace as era {r.era} without {names}; nothing was changed."
    if r.version is not None:
        done = "Went on with a restart: era" if r.resumed else "Restarted the workspace as era"
        head = f"{done} {r.era} without {names}, agreed as version {r.version} ({r.fingerprint})."
    lines = [head, f"  newest version known: {r.newest} ({r.newest_fingerprint})"]
    if r.carried:
        lines.append(
            f"  and what was proposed as version {r.newest + 1}, of which it is not known whether it was agreed"
        )
    lines += [f"  before: {r.before}", f"  {'would be' if r.version is None else 'now'}:    {r.after}", *r.notes]
    if r.lost_packs:
        lines.append(
            f"{count(r.lost_packs, 'pack')} ({size(r.lost_bytes)}) had no copy on a backend that is left"
            + (": what this folder has of them would be stored anew." if r.version is None else ".")
        )
    if r.stored_again:
        lines.append(f"Stored anew from this folder: {size(r.stored_again)}.")
    lines += [Alarm(f"lost: {text(p)}: no backend that is left has it, and it is not here") for p in r.missing]
    lines.append("Versions that only the lost backends held come back from the devices that have them: run sync there.")
    return lines
