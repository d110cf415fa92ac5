"""Turns reports on conflicts into what a person reads. Pure: nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence

from metasync.reports.history import ConflictItem, ResolveReport
from metasync.reports.sync import ConflictReport
from metasync.terminal.sync_text import left_out
from metasync.terminal.text import LISTED_MAX, RESOLVE, count, text, when


def conflicts(items: Sequence[ConflictItem]) -> list[str]:
    if not items:
        return ["No conflicts."]
    lines = [f"{count(len(items), 'conflict')}:"]
    for c in items:
        origin = [f"version {c.version}"] if c.version is not None else []
        origin += [c.device] if c.device is not None else []
        origin += [when(c.time_ns)] if c.time_ns is not None else []
        lines.append(
            f"  {text(c.path)}: also as {text(c.copy)} ({'; '.join(filter(None, (c.reason, ', '.join(origin))))})"
        )
    return [*lines, RESOLVE]


def resolve(r: ResolveReport) -> list[str]:
    said = {
        "mine": f"{text(r.path)} is now what {text(r.copies[0])} was.",
        "theirs": f"{text(r.path)} stays; gone: {', '.join(map(text, r.copies))}.",
        "both": f"{text(r.path)} and {', '.join(map(text, r.copies))} both stay: no conflict any more on this device.",
    }
    lines = [said[r.keep]]
    if r.replaced:
        lines.append("What lost is kept until an agreed version holds it:")
        lines += [f"  {text(k.path)}: {k.at}" for k in r.replaced[:LISTED_MAX]]
        lines += [f"  ... and {len(r.replaced) - LISTED_MAX:,} more"] if len(r.replaced) > LISTED_MAX else []
    lines += _late(r.conflicts)
    lines += left_out(r.skipped, "Left as they are:")
    return lines if r.keep == "both" else [*lines, "`metasync push` tells the others."]


def _late(items: Sequence[ConflictReport]) -> list[str]:
    return [f"{text(c.path)}: {c.reason}; that is kept as {text(c.kept)}" for c in items]
