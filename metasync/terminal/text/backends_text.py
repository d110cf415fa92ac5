"""What the commands on backends, and `check` and `recover`, print. Pure: nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from metasync.codec import duration
from metasync.terminal.style import alarm, joined, styled
from metasync.terminal.text.phrases import count, size, text

COLUMNS_MAX = 100  # of a table: a terminal of usual width
NAME_COLUMNS = 16  # of a name in it; and the least that is left for a URL
MUCH = 1 << 20  # no bound
GAP = "..."
GONE_NAMED = 100  # lost files
PACKS_NAMED = 3  # of those with which the same is wrong
REPLACED = ("replaced", "emptied or replaced", "rolled back")  # how `session.health` begins about such a store
WHERE_MISSING = ", here and on each device that may have what is missing"
AWAY = "cannot be reached"  # how problems of packs begin whose backend does not answer: `transfer.verify`

if TYPE_CHECKING:
    from metasync.reports.backends import (
        BackendChange,
        BackendState,
        Gone,
        Moving,
        RebalanceReport,
        RecoverReport,
        Share,
    )
    from metasync.reports.checks import CheckProblem, CheckReport, DrillReport, Repaired, ScrubLook, ScrubReport, Untrue
    from metasync.reports.sync import Trailing
    from metasync.terminal.style import Role
    from metasync.testing.contract import Outcome, Report


def backends(items: Sequence[BackendState], *, verbose: bool = False) -> list[str]:
    """A row a backend, of `COLUMNS_MAX` at most; what is wrong with some below. `verbose`: names and URLs uncut."""
    most = MUCH if verbose else COLUMNS_MAX
    rows: list[tuple[str, ...]] = [("backend", "role", "used", "share", "capacity", "free", "state", "where")]
    for b in items:
        rows.append(
            (
                fitted(b.name, MUCH if verbose else NAME_COLUMNS),
                "both" if {"data", "vote"} <= set(b.roles) else "data only" if "data" in b.roles else "vote only",
                size(b.used_bytes) if b.used_bytes is not None else "-",
                f"{b.share:.0%}" if b.share is not None else "-",
                size(b.limit_bytes) if b.limit_bytes is not None else "-",
                size(b.free_bytes) if b.free_bytes is not None else "?",
                styled(_role(b), b.condition),
                b.url or "-",
            )
        )
    shown = [i for i in range(8) if i not in (1, 4) or len({r[i] for r in rows[1:]} - {"both", "-"})]
    widths = {i: max(len(r[i]) for r in rows) for i in shown}
    rest = max(NAME_COLUMNS, most - sum(widths[i] + 2 for i in shown[:-1]))
    lines = [joined("  ", [*(r[i].ljust(widths[i]) for i in shown[:-1]), fitted(r[7], rest)]) for r in rows]
    return [*lines, *(line for b in items for line in _trouble(b))]


def _role(b: BackendState) -> Role:
    return "good" if b.condition == "ok" else "warning" if b.holds else "alarm"


def fitted(text: str, columns: int) -> str:
    """A text of so many columns at most, without its middle where it is longer."""
    if len(text) <= columns:
        return text
    kept = columns - len(GAP)
    return text[: kept // 2] + GAP + text[len(text) - (kept - kept // 2) :]


def _trouble(b: BackendState) -> list[str]:
    """What is wrong with a backend, and the next step where it is known."""
    lines = [f"warning: {b.warning}."] if b.warning else []
    if not b.linked:
        return [f"{b.name}: not linked here. Next: metasync backend link {b.name} URL", *lines]
    if b.state != "ok":
        lines.insert(0, f"{b.name}: {b.state.removeprefix('unreachable: ').removeprefix(f'{b.name}: ')}")
    return lines


def moving(m: Moving, then: str = "metasync rebalance") -> list[str]:
    """What a change of the backends left where it was. `then`: what is to be done next."""
    if not m.packs:
        return []
    left = f"{count(m.packs, 'pack')}, {size(m.bytes)}"
    takes = "" if m.seconds is None else f", about {duration(m.seconds)}"
    return [f"Still to move: {left}{takes}; they are read where they are. Next: {then}"]


def trailing(items: Sequence[Trailing]) -> list[str]:
    """Copies of agreed packs that are still to be made."""
    return [f"{count(t.packs, 'pack')} ({size(t.bytes)}) still to be copied to {t.name}." for t in items]


def backend_change(what: str, c: BackendChange) -> list[str]:
    """What became of the backends, and what the workspace survives before and after."""
    did = {"add": "Added", "remove": "Removed", "set": "Changed"}[what]
    if c.dry_run:
        head = f"Would {'change' if what == 'set' else what} {c.name}; nothing was changed."
    elif c.version is None:
        head = f"{c.name} is so already; nothing was changed."
    else:
        head = f"{did} {c.name}, for all devices, as of version {c.version} ({c.fingerprint})."
    lines = [head]
    if c.after != c.before:
        lines += _before_and_after(c.before, c.after, would=c.dry_run)
    else:
        lines.append(f"  {c.after}")
    if c.moving.packs:
        lines.append(f"Still to move{' then' * c.dry_run}: {count(c.moving.packs, 'pack')}, {size(c.moving.bytes)}.")
    if c.wiped is not None:
        lines.append(f"Deleted there: {count(c.wiped.objects, 'object')}, {size(c.wiped.bytes)}.")
    if c.wiped is not None and c.wiped.left:
        left = count(c.wiped.left, "object")
        lines.append(f"{left} could not be deleted: {c.wiped.why}. Next: metasync backend remove {c.name} --wipe")
    return [*lines, *losses(c), *c.kept]


def losses(c: BackendChange, *, verbose: bool = False) -> list[str]:
    """What only a dead backend had, and who may have it still."""
    if not c.lost_packs:
        return []
    was = "would be" if c.dry_run else "was" if c.lost_packs == 1 else "were"
    lines: list[str] = [alarm(f"{count(c.lost_packs, 'pack')} {was} on no other backend that answers.")]
    lines += gone(c.gone, c.gone_objects, "would be lost", verbose=verbose)
    return [*lines, "What this folder or another device has of it, it stores anew: metasync check --repair"]


def rebalance(r: RebalanceReport) -> list[str]:
    """What was moved and freed, or would be; and what keeps it from its end."""
    copied, deleted = ("Would copy", "Would delete") if r.dry_run else ("Copied", "Deleted")
    lines = [f"{copied} {_share(x)} to {x.backend}." for x in r.sent]
    lines += [f"{deleted} {_share(x)} from {x.backend}." for x in r.freed]
    lines += [
        f"Deleted {count(x.copies, 'object')} ({size(x.bytes)}) from {x.backend}, which is removed." for x in r.emptied
    ]
    if r.dry_run:
        return lines or ["Nothing to move: all is where it belongs."]
    if r.version is not None:
        lines.append(f"All is where it belongs, as of version {r.version} ({r.fingerprint}).")
    elif r.is_whole and not lines:
        lines.append("Nothing to move: all is where it belongs.")
    then = f"metasync check --repair{WHERE_MISSING}" if r.lost else "metasync rebalance"
    lines += moving(r.left, then)
    lines += [f"{name} keeps it from its end: {why.removeprefix(f'{name}: ')}" for name, why in r.waiting]
    lines += [f"{name} may hold surplus copies still: {why.removeprefix(f'{name}: ')}" for name, why in r.unfreed]
    lines += [f"{name} is not empty yet: {why.removeprefix(f'{name}: ')}" for name, why in r.unemptied]
    if r.lost:
        lines.append(alarm(f"{count(len(r.lost), 'pack')} cannot be had intact from any backend: metasync check"))
    return lines if r.is_whole or r.left.packs else [*lines, f"Next: {then}"]


def _share(x: Share) -> str:
    return f"{count(x.copies, 'copy', 'copies')} ({size(x.bytes)})"


def _before_and_after(before: str, after: str, *, would: bool) -> list[str]:
    then = "would be:" if would else "now:"
    width = max(len(then), len("before:"))
    return [f"  {'before:':{width}} {before}", f"  {then:{width}} {after}"]


def _packs(problems: Sequence[CheckProblem], *, verbose: bool) -> list[str]:
    """What is wrong with packs: a line a pack, or one for many with which the same is wrong on the same backend."""
    alike: dict[tuple[str, str], list[bytes]] = {}
    for p in problems:
        alike.setdefault((p.backend, p.problem), []).append(p.pack)
    lines = []
    for (backend, problem), packs in alike.items():
        if verbose or len(packs) <= PACKS_NAMED:
            lines += [f"  {backend}: pack {pack.hex()[:16]} {problem}" for pack in packs]
        else:
            lines.append(f"  {backend}: {count(len(packs), 'pack')} {problem}")
    return lines


def check(r: CheckReport, *, read_data: bool, verbose: bool = False) -> list[str]:
    """What was looked at, what is wrong, and what it comes to. `verbose`: every pack by name."""
    done = r.repaired
    lines = _packs(r.problems if done is None else done.found, verbose=verbose)
    lines += [_untrue(one) for one in (r.untrue if done is None else done.untrue)]
    lines += [f"  {p.backend}: {p.problem}" for p in r.meta_problems]
    how = f"read {size(r.bytes_read)}"
    if not read_data:
        how = "compared sizes" + (f" and {count(r.by_digest, 'digest')}" if r.by_digest else "")
        how += f", read {count(r.pieces_read, 'piece')} ({size(r.bytes_read)})" if r.pieces_read else ""
    head = f"Checked version {r.version}: {count(r.packs, 'pack')}, {count(r.copies_checked, 'copy', 'copies')}, {how}."
    if done is not None:
        lines += _repaired(done, verbose=verbose)
        lines += [f"Still wrong: {count(len(r.problems), 'copy', 'copies')}."] * bool(r.problems and done.copies)
    told = {g.path for g in done.gone} if done is not None else set()
    lost = (p for p in r.nowhere if p not in told)
    named = [*lost] if verbose else [*islice(lost, GONE_NAMED)]
    lines += [alarm(f"lost: {text(p)}: no pack has it any more") for p in named]
    if more := sum(1 for _ in lost):
        lines.append(alarm(f"lost: and {more:,} more; --verbose names them"))
    if named:
        lines.append("A device that has it stores it again: metasync check --repair there.")
    if r.lost:
        lines.append(f"{count(len(r.lost), 'pack')} cannot be had intact from any backend that answers.")
    elif r.nowhere or (done is not None and (done.gone or done.gone_objects)):
        lines.append("All else is there." + (" Some packs have too few copies." if r.short else ""))
    elif r.problems or r.meta_problems or r.short or r.untrue:
        lines.append("Everything can still be read." + (" Some packs have too few copies." if r.short else ""))
    else:
        lines.append("All is there, as often as promised.")
    return [head, *lines, *trailing(r.trailing), *(f"note: {note}" for note in r.notes), *_next(r, read_data)]


def _next(r: CheckReport, read_data: bool) -> list[str]:
    """The step that makes whole what a check has found wrong with packs; after a repair only where it lacked room."""
    others = sorted({p.backend for p in r.meta_problems if p.problem.startswith(REPLACED)})
    wrong = [p for p in r.problems if not p.problem.startswith(AWAY) and (r.lost or p.backend not in others)]
    lines = [f"Next: metasync backend add URL --replace {name}" for name in others[:1]]  # one after the other
    if r.repaired is not None:
        return lines + _more_room(r.repaired)
    if not (r.untrue or wrong):
        return lines
    where = WHERE_MISSING if r.lost else ""
    return [*lines, f"Next: metasync check --repair{' --read-data' if read_data else ''}{where}"]


def _more_room(r: Repaired) -> list[str]:
    """The step after a repair that lacked room for copies."""
    full = ", ".join(u.backend for u in r.unmade if u.is_full)
    return [f"Next: free space on {full}, or add a backend; then metasync check --repair"] * bool(full)


def _untrue(u: Untrue) -> str:
    """A pack that does not hold what is listed in it, by whom, and for which paths."""
    by = f", as of version {u.version}, which {u.device} wrote" if u.version is not None else ""
    some = ", ".join(map(text, u.paths)) or "nothing in the newest version"
    of = count(u.objects, "object")
    return f"  pack {u.pack.hex()[:16]} does not hold {of} that the index lists in it{by}: needed for {some}"


def scrub(r: ScrubReport, *, verbose: bool = False) -> list[str]:
    """How each backend was looked at, what is wrong, and what it comes to."""
    done = r.repaired
    lines = [f"  {b.backend}: {_look(b)}" for b in r.backends]
    lines += [f"Read {count(r.read, 'copy', 'copies')} whose turn it was ({size(r.bytes_read)})."] * bool(r.read)
    lines += _packs(r.problems if done is None else done.found, verbose=verbose)
    if done is not None:
        lines += _repaired(done, verbose=verbose)
        lines += [f"Still wrong: {count(len(r.problems), 'copy', 'copies')}."] * bool(r.problems and done.copies)
    if r.lost:
        lines.append(f"{count(len(r.lost), 'pack')} cannot be had intact from any backend that answers.")
    elif r.problems or r.short:
        lines.append("Everything that was asked for can still be read; some packs have too few copies.")
    elif not any(b.how == "away" for b in r.backends):
        lines.append("All is listed, as often as promised.")
    asked = f"; {count(r.asked, 'pack')} {'was' if r.asked == 1 else 'were'} asked for" if r.asked else ""
    lines += _more_room(done) if done is not None else []
    return [f"Looked at version {r.version}{asked}.", *lines]


def _look(b: ScrubLook) -> str:
    if b.how == "listed":
        return f"listed {count(b.packs, 'pack')}"
    if b.how == "changes":
        return f"{count(b.changes, 'change')} since the last time, {count(b.packs, 'pack')} in all"
    return "seen less than a day ago" if b.how == "not due" else f"not asked: {b.why}"


def _repaired(r: Repaired, *, verbose: bool) -> list[str]:
    """What a repair made whole, and what nobody has."""
    lines = []
    if r.copies:
        lines.append(f"Made {count(r.copies, 'copy', 'copies')} again, {size(r.copied_bytes)}.")
    lines += [f"{u.backend}: {count(u.copies, 'copy', 'copies')} could not be made there: {u.why}" for u in r.unmade]
    for one in r.left_out:
        packs = f"{count(one.packs, 'pack')} that version {one.version}, which {one.device} wrote, had left out"
        lines.append(f"Put back into the index: {packs}.")
    if r.stored_bytes:
        lines.append(f"Stored anew from this folder: {size(r.stored_bytes)}.")
    lines += gone(r.gone, r.gone_objects, "lost", ": nobody who was asked has it", verbose=verbose)
    if r.gone or r.gone_objects:
        lines.append("Another device that has it stores it again: metasync check --repair there.")
    if r.waits:
        lines.append(f"{count(r.waits, 'pack')} may be on a backend that is away: run it again when all answer.")
    return lines


def drill(r: DrillReport, *, verbose: bool = False) -> list[str]:
    """What would go on without some backends, and what would be lost. `verbose`: every file."""
    read = f", read {size(r.bytes_read)}" if r.bytes_read else ""
    digests = f", {count(r.by_digest, 'digest')}" if r.by_digest else ""
    names = ", ".join(r.without)
    head = (
        f"Without {names}: version {r.version} ({r.fingerprint}), {count(r.copies_checked, 'copy', 'copies')}{digests}"
    )
    lines = [f"{head}{read}."]
    quorum = f"{r.voting} that vote {'is' if r.voting == 1 else 'are'} left and answer, {r.quorum} must agree"
    if r.agrees:
        lines.append(f"  agree: yes; {quorum}")
    else:
        words = " ".join(f"--without {name}" for name in r.without)
        lines.append(f"  agree: no; {quorum}. Nobody could push or pull before a restart: metasync recover {words}")
    joins = "yes; keys and key slots are there" if r.joins else "no; that takes the agreement and all keys"
    lines.append(f"  join:  {joins}")
    have = [f"{count(n, 'pack')} with {count(i, 'copy', 'copies')}" for i, n in enumerate(r.by_copies) if n and i]
    total = sum(r.by_copies)
    every = f"{len(r.lost)} of {count(total, 'pack')} would be lost ({size(r.lost_bytes)})" if r.lost else "everything"
    lines.append("  read:  " + ("; ".join([every, *have]) if total else "nothing was pushed yet"))
    lines += [f"{p.backend + ': ' if p.backend else ''}{p.problem}" for p in r.problems]
    lines += gone(r.gone, r.gone_objects, "would be lost", verbose=verbose)
    if r.is_passed:
        return [*lines, f"All could go on without {names}."]
    return [*lines, f"Not all could go on without {names}."]


def gone(files: Sequence[Gone], objects: int, lost: str, why: str = "", *, verbose: bool) -> list[str]:
    """Files that nobody has, or will have, a line each; and how many directories and versions."""
    named = files if verbose else files[:GONE_NAMED]
    lines: list[str] = []
    for g in named:
        versions = f"version {g.first}" if g.first == g.last else f"versions {g.first} to {g.last}"
        lines.append(alarm(f"{lost}: {text(g.path)} of {versions}{why}"))
    if len(files) > len(named):
        lines.append(alarm(f"{lost}: and {len(files) - len(named)} more; --verbose names them"))
    if objects:
        lines.append(alarm(f"{lost}: {count(objects, 'object')} of directories or of the history"))
    return lines


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


def recovery(r: RecoverReport) -> list[str]:
    """What a restart goes on from, and what it lost; and the new keys, where devices were revoked with it."""
    era = f"era {r.era}" + (f" without {', '.join(r.without)}" if r.without else "")
    if r.version is not None:
        done = "Went on with a restart:" if r.resumed else "Restarted the workspace as"
        head = f"{done} {era}, as of version {r.version} ({r.fingerprint})."
    elif r.resumed:
        head = f"Would go on with a restart that was begun: {era}; nothing was changed."
    else:
        head = f"Would restart the workspace as {era}; nothing was changed."
    lines = [head, f"  newest version known: {r.newest} ({r.newest_fingerprint})"]
    if r.ended:
        lines.append(f"  version {r.newest + 1} could not be agreed any more:")
        lines += [f"    {name}: {why}" for name, why in r.ended]
    if r.carried:
        lines.append(
            f"  and what was proposed as version {r.newest + 1}, of which it is not known whether it was decided"
        )
    if r.after != r.before:
        lines += _before_and_after(r.before, r.after, would=r.version is None)
    else:
        lines.append(f"  {r.after}")
    lines += r.notes
    if r.lost_packs:
        lines.append(
            f"{count(r.lost_packs, 'pack')} ({size(r.lost_bytes)}) had no copy on a backend that is left"
            + (": what this folder has of them would be stored anew." if r.version is None else ".")
        )
    if r.stored_again:
        lines.append(f"Stored anew from this folder: {size(r.stored_again)}.")
    lines += [alarm(f"lost: {text(p)}: no backend that is left has it, and it is not here") for p in r.missing]
    if r.without:
        lines.append(
            "Versions that only the lost backends held come back from the devices that have them: run sync there."
        )
    if r.keys is not None:
        from metasync.terminal.text import devices_text  # a push loads this module, and no reports on devices

        lines += ["", *devices_text.rotation(r.keys)]
    return lines
