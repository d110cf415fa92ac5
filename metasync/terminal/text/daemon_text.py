"""What `daemon ...` prints, and `status` of a folder that the daemon keeps. Pure: nothing here prints."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from metasync.terminal.style import alarm, styled
from metasync.terminal.text.phrases import count, sentence, since, size

if TYPE_CHECKING:
    from metasync.reports.service import Activity, DaemonState, Problem, WorkspaceState


_OF_FILES: Final = frozenset({"conflict", "unplaced"})  # kinds of problems whose texts begin with a file's name


def _at(seconds: float, now_s: float) -> str:
    return since(int(seconds * 1e9), int(now_s * 1e9))


def status(s: DaemonState, now_s: float) -> list[str]:
    """All workspaces of the daemon."""
    lines: list[str] = [f"The daemon runs since {_at(s.began_s, now_s)} (process {s.pid})."]
    if not s.workspaces:
        return [*lines, "It keeps no workspace in step.", "Next: metasync daemon add DIR"]
    for w in s.workspaces:
        told = ["Its broker tells it of news."] if w.has_broker else []
        lines += ["", f"{w.name}  {w.directory}", *(f"  {line}" for line in (*workspace(w, now_s), *told))]
    return lines


def workspace(w: WorkspaceState, now_s: float) -> list[str]:
    """What one workspace is at, what waits, what is wrong and since when."""
    return [_doing(w, now_s), *(line for p in w.problems for line in _problem(p, now_s))]


def kept(w: WorkspaceState, now_s: float) -> list[str]:
    """The same above the lines of `metasync status`."""
    first, *rest = workspace(w, now_s)
    return ["The daemon keeps this folder: " + _small(first), *rest, ""]


def _small(line: str) -> str:
    return line[:1].lower() + line[1:]


def _doing(w: WorkspaceState, now_s: float) -> str:
    at = f"since {_at(w.since_s, now_s)}"
    if w.doing == "in step":
        return styled("good", "In step") + f" with version {w.version} {at}."
    if w.doing == "paused":
        until = w.paused_until_s
        ends = "until it is resumed" if until is None or until == math.inf else f"until {_at(until, until)}"
        return f"Paused {ends}{_waiting(w)}."
    if w.doing == "stuck":
        return alarm(f"Stuck {at}") + f"{_waiting(w)}."
    why = f" for {w.why}" if w.doing == "waiting" and w.why else f" ({w.why})" if w.why else ""
    return f"{sentence(w.doing)}{why} {at}{_waiting(w)}{_activity(w.activity)}."


def _waiting(w: WorkspaceState) -> str:
    if not w.changed:
        return ""
    estimate = f" (about {size(w.changed_bytes)})" if w.changed_bytes else ""
    return f"; {count(w.changed, 'change')}{estimate} to push"


def _activity(a: Activity | None) -> str:
    if a is None:
        return ""
    done = size(a.done) if a.unit == "B" else f"{a.done:,}"
    total = "" if a.total is None else f" of {size(a.total)}" if a.unit == "B" else f" of {a.total:,}"
    unit = f" {a.unit}" if a.unit and a.unit != "B" else ""
    return f"; {a.phase} {done}{total}{unit}"


def _problem(p: Problem, now_s: float) -> list[str]:
    text = p.text if p.text.endswith("...") else p.text.rstrip(".")  # of names left out, or the end of a sentence
    said = text if p.kind in _OF_FILES else sentence(text)
    at = f"since {_at(p.since_s, now_s)}"
    head = f"{said} ({at})." if said.endswith("?") else f"{said}, {at}."
    return [alarm(head) if p.blocks else head, *([f"Next: {p.next_step.rstrip('.')}"] if p.next_step else [])]
