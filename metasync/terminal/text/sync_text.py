"""What `push` and `pull` print. Pure: nothing here prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from metasync.local.state_keys import MISSING
from metasync.terminal.style import signed
from metasync.terminal.text.backends_text import trailing
from metasync.terminal.text.phrases import (
    EXAMPLES_MAX,
    LISTED_MAX,
    RESOLVE,
    count,
    listed,
    size,
    text,
    warnings,
)

if TYPE_CHECKING:
    from metasync.reports.sync import Changes, ConflictReport, ConflictSide, Met, PullReport, PushReport, Skipped


def changes(c: Changes) -> list[str]:
    moved: list[str] = ["  " + signed(">", f"{text(r.was)} -> {text(r.path)}") for r in c.renamed[:LISTED_MAX]]
    if len(c.renamed) > LISTED_MAX:
        moved.append("  " + signed(">", f"... and {len(c.renamed) - LISTED_MAX:,} more"))
    return [*listed("+", c.added), *listed("~", c.modified), *listed("-", c.deleted), *moved]


def changes_line(c: Changes) -> str:
    renamed = f", {len(c.renamed):,} renamed" if c.renamed else ""
    return f"{len(c.added):,} added, {len(c.modified):,} modified, {len(c.deleted):,} deleted{renamed}"


def conflicts(items: Sequence[ConflictReport]) -> list[str]:
    lines = [f"  {text(c.path)}{_brought_by(c.sides[0])}: {_kept(c)} ({c.reason})" for c in items]
    if lines:
        head = f"{count(len(items), 'conflict')}: what was pushed first kept the name."
        lines = [head, *lines, RESOLVE]
    return lines


def _brought_by(side: ConflictSide) -> str:
    """Who agreed what has the name: ` (laptop, version 3)`."""
    who = ["yours"] if side.here else [side.device] if side.device is not None else []
    known = who + ([f"version {side.version}"] if side.version is not None else [])
    return f" ({', '.join(known)})" if known else ""


def _kept(c: ConflictReport) -> str:
    return f"{c.whose} is kept as {text(c.kept)}"


def met(items: Sequence[Met]) -> list[str]:
    """Changes on both sides that were put together, in git's words."""
    return ["Changed on both sides:", *[f"  {text(m.path)} ({m.kind}): {_met(m)}" for m in items]] if items else []


def _met(m: Met) -> str:
    was = text(m.was or b"")
    if m.kind == "modify/delete":
        return {
            "modified": "modified here, deleted on the other side; it stays",
            "deleted": "deleted here, modified on the other side; it is back",
        }.get(m.here, "")
    if m.kind == "rename/rename":
        return f"renamed from {was} here, to {text(m.other or b'')} on the other side; both stay"
    if m.kind == "rename/delete":
        here = "renamed here, deleted on the other side" if m.here == "renamed" else "deleted here, renamed there"
        return f"was {was}: {here}; it stays"
    if m.here == "renamed":
        return f"renamed from {was} here; the other side's edit follows"
    return f"renamed from {was} on the other side; your edit follows"


def left_out(items: Sequence[Skipped], head: str) -> list[str]:
    return [head, *[f"  {text(s.path)}: {s.reason}" for s in items]] if items else []


def unplaced(items: Sequence[Skipped]) -> list[str]:
    """What is agreed and not on this disk."""
    unfit = [f"{text(s.path)}: {s.reason}" for s in items if s.reason != MISSING]
    missing = [text(s.path) for s in items if s.reason == MISSING]
    return [
        *_listed("Cannot be held here (they stay as they are for your other devices):", unfit),
        *_listed("Not here, though nobody deleted them (a pull brings them):", missing),
    ]


def _listed(head: str, items: Sequence[str]) -> list[str]:
    if not items:
        return []
    more = [f"  ... and {len(items) - LISTED_MAX:,} more"] if len(items) > LISTED_MAX else []
    return [head, *(f"  {item}" for item in items[:LISTED_MAX]), *more]


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
    lines += met(r.met)
    lines += conflicts(r.conflicts)
    lines += listed("*", r.resolved) and ["Conflicts that another device has resolved:", *listed("*", r.resolved)]
    lines += left_out(r.unreadable, "Could not be read here, so left as they are:")
    lines += left_out(r.skipped, "Left out:")
    lines += unplaced(r.unplaced)
    return lines + warnings(r.warnings) + down(r.down)


def push(r: PushReport, *, dry_run: bool) -> list[str]:
    lines: list[str] = []
    if r.found_again is not None:
        lines.append(f"An earlier push had become version {r.found_again}, though it was interrupted.")
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
    lines += warnings([found.reason for found in r.live])
    return lines + warnings(r.warnings) + down(r.down)


def _would_send(r: PushReport) -> list[str]:
    """How much would be read, and how much would go where."""
    if not r.files_to_read:
        return ["To send: 0 B of content: what was renamed is stored already."] if r.changes.renamed else []
    shares = ", ".join(f"{size(most)} to {name}" for name, most in r.to_send.items())
    return [
        f"To read: {count(r.files_to_read, 'file')}, {size(r.size_to_read)}. To send: at most"
        f" {size(r.size_to_read * r.copies)} of content, in {count(r.copies, 'copy', 'copies')}"
        f" (up to {shares or 'no backend'})."
    ]
