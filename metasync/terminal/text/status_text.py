"""What `status` prints: whether this folder is in step, whether the data are safe, what to do next. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metasync.errors import NoQuorumError
from metasync.local.state_keys import MISSING, NO_INODES, NO_ROOM
from metasync.reports.service import COPIES
from metasync.terminal.style import alarm, styled
from metasync.terminal.text.backends_text import backends, moving, trailing
from metasync.terminal.text.phrases import ago, count, sentence, since, text, warnings, when
from metasync.terminal.text.sync_text import changes, changes_line, conflicts, left_out, unplaced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metasync.reports.backends import BackendState, Status
    from metasync.reports.service import WorkspaceState


def status(s: Status, *, now_ns: int, verbose: bool = False, daemon: WorkspaceState | None = None) -> list[str]:
    """`daemon`: what it tells of the folder, above these lines; what it tells of copies is not told again."""
    told = {p.key for p in daemon.problems} if daemon is not None else set()
    lines = _verbose(s) if verbose else []
    safe, unsafe = _safety(s, now_ns)
    step, *rest = _step(s, now_ns)
    lines += [step + (" " + safe if safe else ""), *rest, *unsafe]
    if s.paused:
        lines.append(f"Transfers are paused here {s.paused}: `metasync resume` ends that.")
    lines += changes(s.changes)
    lines += conflicts(s.conflicts)
    lines += left_out(s.unreadable, "Cannot be read:")
    lines += left_out(s.skipped, "Left out:")
    lines += unplaced(s.unplaced)
    lines += _ignored(s, verbose=verbose)
    lines += warnings(s.warnings)
    lines += ["", *backends(s.backends, verbose=verbose), *moving(s.moving), *trailing(s.trailing)]
    lines += _looks(s, now_ns, verbose=verbose)
    lines += [
        f"warning: {b.backend}: {count(b.packs, 'copy', 'copies')} altered or gone there, as this device found (noticed"
        f" {when(b.since_ns or 0)})"
        for b in s.bad_copies
        if f"{COPIES}{b.backend}" not in told
    ]
    lines += [
        f"warning: {e.backend} is not to be trusted: {e.what} (noticed {when(e.time_ns)}; to end this"
        f" warning: metasync backend link {e.backend} URL)"
        for e in s.evidence
    ]
    if s.withdraw:
        names = ", ".join(dict.fromkeys(f"{i.device} at {i.backend}" for i in s.withdraw))
        lines.append(alarm(f"Revoked, and logins not withdrawn yet: {names}. See metasync device list."))
    return lines


def _looks(s: Status, now_ns: int, *, verbose: bool) -> list[str]:
    """When each backend was last seen in full; before the first time, only where more is asked for."""
    stores = [b for b in s.backends if "data" in b.roles]
    if not verbose and all(b.looked_ns is None for b in stores):
        return []
    by_age: dict[str, list[str]] = {}
    for b in stores:
        by_age.setdefault("never" if b.looked_ns is None else ago(b.looked_ns, now_ns), []).append(b.name)
    return ["Last full look: " + "; ".join(f"{', '.join(names)} {age}" for age, names in by_age.items()) + "."]


def _verbose(s: Status) -> list[str]:
    from metasync.keys.slots import fingerprint_words  # the word list, which nothing else of `status` needs

    words = fingerprint_words(bytes.fromhex(s.state))
    return [f"Workspace {s.name}, version {s.version} ({s.fingerprint}; in words: {words})"]


def _step(s: Status, now_ns: int) -> list[str]:
    """Whether this folder is in step with the newest version, and what to do where it is not."""
    here = f"version {s.version}"
    changed = f"changed here: {changes_line(s.changes)}" if len(s.changes) else ""
    if s.time_ns is not None:
        here += f" ({ago(s.time_ns, now_ns)}, from {s.device})"
    elif s.newest is not None and s.newest <= s.version:
        return [f"Nothing was pushed yet; {changed}." if changed else "Nothing was pushed yet.", _next("metasync push")]
    if s.newest is None:
        lines = [
            f"At {here}; whether there is a newer one is not known.",
            *([f"{sentence(changed)}."] if changed else []),
        ]
        lines.append(f"{sentence(s.problem).rstrip('.')}.")
        said_below = _may_restart(s) and any(b.condition == "down" for b in s.backends)
        step = s.error.next_step if s.error is not None and not said_below else ""
        return lines + ([sentence(step)] if step else [])
    if s.newest > s.version:
        behind = f"Behind by {count(s.newest - s.version, 'version')}: this folder is at {here}"
        if changed:
            return [f"{behind}, and {changed}.", _next("metasync sync")]
        return [f"{behind}.", _next("metasync pull")]
    if changed:
        return [f"{sentence(here)} is the newest; {changed}.", _next("metasync push")]
    if waiting := [one.reason for one in s.unplaced if one.reason.startswith(NO_ROOM)]:
        lacking = f"{count(len(waiting), 'file')} {'waits' if len(waiting) == 1 else 'wait'} for room on this disk"
        step = "delete some files" if NO_INODES in waiting[0] else "free some space"
        return [f"{sentence(here)} is the newest; {lacking}.", _next(f"{step}; then metasync pull")]
    if missing := sum(one.reason == MISSING for one in s.unplaced):
        lacking = f"{count(missing, 'path')} of it {'is' if missing == 1 else 'are'} missing here"
        return [f"{sentence(here)} is the newest; {lacking}.", _next("metasync pull")]
    return [styled("good", "In step") + f" with {here}."]


def _is_stuck(s: Status) -> bool:
    """Whether too few backends answer for a push."""
    return s.error is not None and s.error.exit_code == NoQuorumError.exit_code


def _may_restart(s: Status) -> bool:
    """Whether a restart helps if what is down is lost: not where a way is unknown, or nothing would be left."""
    return _is_stuck(s) and s.error is not None and "metasync recover --without" in s.error.next_step


def _next(step: str) -> str:
    return f"Next: {step.rstrip('.')}"


def _safety(s: Status, now_ns: int) -> tuple[str, list[str]]:
    """Whether every pack has its copies: (a sentence where all is well, lines where it is not)."""
    away = [b for b in s.backends if not b.holds]
    heads = [_away(b, now_ns) for b in away]
    if not s.packs:
        return "", [*(alarm(f"{head}.") for head in heads), *_steps(s, away)]
    whole = f"{count(s.copies, 'copy', 'copies')}"
    if not s.short:
        every = f"All {s.packs:,} packs have" if s.packs > 1 else "The only pack has"
        return f"{every} {whole}.", [*(alarm(f"{head}; it holds no packs.") for head in heads), *_steps(s, away)]
    if s.short > sum(s.by_copies[:-1]):
        lines: list[str] = [alarm(f"{head}: {_counts(s)}.") for head in heads] if sum(s.by_copies[:-1]) else []
        lines.append(f"{s.short:,} of {count(s.packs, 'pack')} were stored with fewer than {whole}.")
        return "", [
            *lines,
            *_steps(s, away),
            *([] if away else [_next("metasync check tells which copies are missing")]),
        ]
    said = f"{'; '.join(heads)}: {_counts(s)}." if heads else f"{sentence(_counts(s))}."
    return "", [alarm(said), *_steps(s, away)]


def _counts(s: Status) -> str:
    """How many packs have how many copies within reach, of those with fewer than promised."""
    told = [f"{_part(s, n)} {count(copies, 'copy', 'copies')}" for copies, n in enumerate(s.by_copies[1:-1], 1) if n]
    if not s.by_copies[0]:
        return f"{', '.join(told)}; nothing is lost"
    is_here = s.bad_copies and all(b.holds for b in s.backends)
    until = "as their copies are altered or gone" if is_here else "until a backend that has them is back"
    return ", ".join([*told, f"{s.by_copies[0]:,} of {s.packs:,} cannot be read {until}"])


def _part(s: Status, packs: int) -> str:
    if s.packs == 1:
        return "the only pack has"
    if s.packs == packs:
        return f"all {packs:,} packs have"
    return f"{packs:,} of {s.packs:,} packs {'has' if packs == 1 else 'have'}"


def _away(b: BackendState, now_ns: int) -> str:
    """What is the matter with a backend whose packs do not count."""
    what = {"down": "is down", "replaced": "was emptied or replaced", "rolled back": "was set back to an older state"}
    at = f" since {since(b.since_ns, now_ns)}" if b.since_ns is not None else ""
    if b.condition == "down":
        return f"{b.name} is down{at}"
    noticed = f" (noticed {since(b.since_ns, now_ns)})" if b.since_ns is not None else ""
    return f"{b.name} {what.get(b.condition, 'cannot be used')}{noticed}"


def _steps(s: Status, away: Sequence[BackendState]) -> list[str]:
    """What brings the copies back."""
    down = [b.name for b in away if b.condition not in ("replaced", "rolled back")]
    gone = [b.name for b in away if b.condition in ("replaced", "rolled back")]
    lines = []
    if down:
        names = " and ".join(down)
        lost = f"metasync backend add URL --replace {down[0]}"
        stuck = _is_stuck(s)
        if stuck:
            lost = "metasync recover " + " ".join(f"--without {name}" for name in down)
        it = "if it is" if len(down) == 1 else "if they are" if stuck else "for one that is"
        if_lost = f"; {it} lost for good: {lost}" if not stuck or _may_restart(s) else ""
        lines.append(f"Next: bring {names} back{if_lost}")
    if gone:
        lines.append(f"Next: metasync backend add URL --replace {gone[0]}")
    if not away and s.bad_copies:
        whole = s.by_copies[0] == 0
        lines.append(_next("metasync push" if whole else "metasync check --read-data --repair") + " mends bad copies")
    elif not away and s.trailing:
        lines.append("Next: metasync push makes the copies that are missing")
    return lines


def _ignored(s: Status, *, verbose: bool) -> list[str]:
    lines: list[str] = []
    if s.ignored_agreed:
        lines.append(
            f"In the version, but ignored now: {count(s.ignored_agreed, 'file')}, kept as they are there; edits are not"
            " pushed."
        )
    if verbose and s.ignored:
        lines.append(f"Ignored, and in no version: {count(s.ignored_total, 'path')}")
        lines += [f"  {text(p)}" for p in s.ignored]
        lines += [f"  ... and {s.ignored_total - len(s.ignored):,} more"] if s.ignored_total > len(s.ignored) else []
    return lines
