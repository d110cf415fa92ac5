"""Turns reports on conflicts into what a person reads. Pure: nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence

from metasync.reports.history import ResolveReport, TextDiff
from metasync.reports.sync import ConflictReport, ConflictSide
from metasync.terminal.history_text import text_diff
from metasync.terminal.sync_text import left_out
from metasync.terminal.text import LISTED_MAX, RESOLVE, count, text, when


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
