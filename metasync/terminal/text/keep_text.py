"""Turns reports on what is kept into what a person reads. Pure: nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence

from metasync.reports.backends import GcReport
from metasync.reports.history import ForgetReport, KeepReport, TagReport
from metasync.terminal.text.phrases import count, size, text


def tags(
    r: TagReport,
    *,
    given: str | None = None,
    version: str | None = None,
    gone: Sequence[str] = (),
    dry_run: bool = False,
) -> list[str]:
    """The outcome of `metasync tag`: `given` is the name that a version got, `gone` those that were given up."""
    would = "Would be: " if dry_run else ""
    if given is not None:
        number = next(t.number for t in r.tags if t.name == given)
        already = " already" if r.version is None and not dry_run else ""
        return [f"{would}version {number} is called {given}{already}, and is kept."]
    if gone:
        what = ", ".join(dict.fromkeys(gone))
        return [f"{would}given up: {what}. Such versions are kept as long as all others are: metasync config get keep"]
    widest = max((len(t.name) for t in r.tags), default=0)
    return [f"{t.name:<{widest}}  version {t.number}" for t in r.tags] or ["No version has a name."]


def keep(r: KeepReport) -> list[str]:
    """The agreed policy."""
    if r.keep is None:
        return ["keep is not set: `metasync gc` drops no version."]
    return [f"keep = {r.keep}", "It holds for all devices. Versions go when `metasync gc` runs, which anybody may do."]


def gc(r: GcReport) -> list[str]:
    """The outcome of `metasync gc`."""
    would = "Would keep" if r.dry_run else "Kept"
    lines = [
        f"{would} {count(r.kept, 'version')}"
        + (f", and drop {r.dropped:,}." if r.dry_run else f"; {_dropped(r.dropped)}.")
    ]
    if r.dropped == 0:
        lines = [f"{would} all {count(r.kept, 'version')}."]
    lines += [
        f"{name}: {count(packs, 'pack')}, {size(bytes_)}, {'would be freed' if r.dry_run else 'freed'}"
        for name, packs, bytes_ in ((f.backend, f.packs, f.bytes) for f in r.freed)
    ]
    if not r.freed:
        lines.append("Nothing to free." if not r.away else "Nothing to free on the backends within reach.")
    if r.packed_anew:
        what = "would be" if r.dry_run else "was"
        lines.append(f"Of {count(r.packed_anew, 'pack')} little was needed: that {what} packed anew.")
    return [*lines, *r.notes]


def _dropped(versions: int) -> str:
    return f"{versions:,} {'is' if versions == 1 else 'are'} kept no more"


def to_forget(r: ForgetReport) -> str:
    """What `metasync forget` is about to do."""
    what = f"version {r.first}" if r.first == r.last else f"{count(r.versions, 'version')} ({r.first} to {r.last})"
    return f"{', '.join(map(text, r.paths))}: in {what}, {count(r.contents, 'content')}, {size(r.bytes)}"


def forget(r: ForgetReport) -> list[str]:
    """The outcome of `metasync forget`."""
    lines = [f"{'Would forget' if r.version is None else 'Forgot'} {to_forget(r)}."]
    if r.freed is not None:
        lines += gc(r.freed)[1:]
        lines += [f"{count(r.stay, 'content')} stayed: other paths have the same bytes."] if r.stay else []
    elif r.version is not None:
        lines.append("The backends still hold the bytes. This deletes them: metasync gc")
    if r.version is None:
        return lines
    return [
        *lines,
        "It may be left: in what providers keep of deleted objects (versions, a trash), and in folders",
        "of devices. A secret that others may have seen is to be changed.",
    ]
