"""What happened between two states of a workspace, as entries of the log. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from metasync.reports.service import Problem, WorkspaceState

Entry = Mapping[str, Any]
"""`what` happened, `level` ("info", "warning"), and values by their names; `workspace` is the name of one."""

LOUD: Final = frozenset({"problem", "stuck"})
_QUIET: Final = frozenset({"looking", "starting", "stopping"})  # they come and go each minute, and say nothing


def happened(before: WorkspaceState | None, now: WorkspaceState) -> list[Entry]:
    """The entries for a change of state, oldest first."""
    out: list[dict[str, Any]] = []
    known = {p.key: p for p in before.problems} if before is not None else {}
    here = {p.key: p for p in now.problems}
    out += [{"what": "problem", **_told(p)} for key, p in here.items() if key not in known]
    out += [{"what": "problem over", **_told(p)} for key, p in known.items() if key not in here]
    if before is not None:
        out += _moved(before, now)
    if (before is None or before.doing != now.doing) and now.doing not in _QUIET:
        out.append({"what": now.doing, **({"why": now.why} if now.why else {})})
    return [
        {"level": "warning" if one["what"] in LOUD else "info", "workspace": now.name or now.directory, **one}
        for one in out
    ]


def _moved(before: WorkspaceState, now: WorkspaceState) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    if now.pulled_s is not None and now.pulled_s != before.pulled_s:
        out.append({"what": "pulled", "version": now.version, "was": before.version})
    if now.pushed_s is not None and now.pushed_s != before.pushed_s:
        out.append({"what": "pushed", "version": now.version})
    return out


def _told(problem: Problem) -> dict[str, Any]:
    return {"kind": problem.kind, "text": problem.text, "next_step": problem.next_step}


def words(entry: Entry) -> str:
    """An entry as people read it, without its time."""
    what, rest = str(entry.get("what", "")), dict(entry)
    for name in ("what", "level", "t", "workspace"):
        rest.pop(name, None)
    match what:
        case "problem" | "problem over":
            head = "" if what == "problem" else "over: "
            step = f" ({entry.get('next_step')})" if what == "problem" and entry.get("next_step") else ""
            said = f"{head}{entry.get('text', '')}{step}"
        case "pulled" | "pushed":
            said = f"{what} version {entry.get('version')}"
        case _:
            said = f"{what}: {rest.pop('why')}" if "why" in rest else what
            said += "".join(f" {key}={value}" for key, value in rest.items())
    where = entry.get("workspace")
    return f"{where}: {said}" if where else said
