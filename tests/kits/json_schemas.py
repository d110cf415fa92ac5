"""Makes the JSON schemas of what `metasync ... --json` prints (docs/reference/json), from the types of the reports.

    python tests/kits/json_schemas.py          writes them anew
    python tests/kits/json_schemas.py --check  exits 1 if the files are not what the types say

A command's document has `command`, `exit_code` and the fields of its report; one that failed has `error` in their
place. Fields may be added later, so readers ignore those they do not know; none is removed or changes its meaning.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metasync.events import Travelled
from metasync.merge import changes
from metasync.reports import accounts, backends, checks, history, members, service, settings, start, sync
from metasync.service import install
from metasync.session import evidence
from metasync.terminal.text import phrases
from metasync.testing import contract

FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
EXIT_CODES = (0, 1, 2, 3, 4, 5, 6, 7, 130)


def fields_of(kind: Any) -> dict[str, Any]:
    """The fields that a document of this type has, for a document with more of its own."""
    hints = typing.get_type_hints(kind, localns={**REPORTED, **vars(sys.modules[kind.__module__])})
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if f.name not in phrases.NO_VALUES}


# What reports name that their own module imports for type checkers alone.
REPORTED = {
    name: value
    for module in (backends, checks, history, changes, members, evidence, sync)
    for name, value in vars(module).items()
}

COMMANDS: dict[str, Any] = {
    "init": start.InitReport,
    "clone": start.CloneReport | start.ClonePreview,
    "status": {**fields_of(backends.Status), "daemon": service.WorkspaceState | None},
    "push": sync.PushReport,
    "pull": sync.PullReport,
    "sync": {"pull": sync.PullReport, "push": sync.PushReport},
    "log": {"versions": tuple[history.LogItem, ...]},
    "show": history.ShowReport,
    "diff": history.DiffReport,
    "ls": history.Listing,
    "cat": {**fields_of(history.CatReport), "path": str, "base64": str},
    "restore": history.RestoreReport,
    "undelete": history.RestoreReport,
    "skip": history.SkipReport,
    "tag": history.TagReport,
    "forget": history.ForgetReport,
    "gc": backends.GcReport,
    "conflicts": {"conflicts": tuple[sync.ConflictReport, ...], "texts": tuple[history.TextDiff, ...]},
    "resolve": {"resolved": tuple[history.ResolveReport, ...]},
    "check": checks.CheckReport,
    "scrub": checks.ScrubReport,
    "rebalance": backends.RebalanceReport,
    "drill": checks.DrillReport,
    "backend list": backends.BackendList,
    "backend link": backends.BackendState,
    "backend unlink": backends.BackendState,
    "backend add": backends.BackendChange,
    "backend remove": backends.BackendChange,
    "backend set": backends.BackendChange,
    "device list": members.DeviceList,
    "device revoke": members.RotationReport | members.NoteReport,
    "device rename": members.RenameReport,
    "device confirm": members.NoteReport,
    "invite": members.InviteReport,
    "auth": accounts.AuthReport,
    "recover": backends.RecoverReport,
    "key show": members.KeyReport,
    "key change-passphrase": members.PassphraseReport,
    "key rotate": members.RotationReport,
    **dict.fromkeys(("config list", "config unset", "pause", "resume"), settings.SettingsReport),
    "config set": settings.SettingsReport | backends.BackendChange,
    "config get": {"key": str, "value": str | None},
    "ui": {"url": str},
    **dict.fromkeys(("daemon start", "daemon status", "daemon pause", "daemon resume"), service.DaemonState),
    "daemon run": {},
    "daemon stop": {"was_running": bool},
    **{name: {"directory": str, "is_running": bool} for name in ("daemon add", "daemon remove")},
    "daemon log": {"entries": tuple[dict[str, str | float | bool | None], ...]},
    "daemon install": install.Installed,
    "completion": {"shell": str, "script": str},
    "backend check": {"url": str, "folder": str, **typing.get_type_hints(contract.Report)},
}
"""What each command reports: a dataclass, or the types of its document's own fields."""

FOR_EVER = {"paused_until_s": {"anyOf": [{"type": "number"}, {"const": "inf"}, {"type": "null"}]}}
"""Fields whose infinity is written as a word: JSON has none."""

ERROR = {
    "type": "object",
    "properties": {"kind": {"type": "string"}, "message": {"type": "string"}, "next_step": {"type": "string"}},
    "required": ["kind", "message", "next_step"],
}


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a value of this type, as `phrases.value` gives it."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return object_of(fields_of(kind))
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(k) for k in inner]}
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin is tuple and inner[-1] is not Ellipsis:
        return {"type": "array", "prefixItems": [schema_of(k) for k in inner], "items": False}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": schema_of(inner[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": schema_of(inner[0])}
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if isinstance(kind, type) and issubclass(kind, str | bytes):
        return {"type": "string"}
    plain = {int: "integer", float: "number", bool: "boolean", type(None): "null"}
    return {"type": plain[kind]}


def object_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: FOR_EVER.get(name) or schema_of(kind) for name, kind in fields.items()},
        "required": sorted(fields),
    }


def document(command: str) -> dict[str, Any]:
    """The schema of all that a command may print under --json."""
    kind = COMMANDS[command]
    done = object_of(kind) if isinstance(kind, dict) else schema_of(kind)
    failed = {"type": "object", "properties": {"error": ERROR}, "required": ["error"]}
    return {
        "$schema": DIALECT,
        "title": f"metasync {command} --json",
        "type": "object",
        "properties": {
            "command": {"const": command},
            "exit_code": {"enum": list(EXIT_CODES)},
            "travelled": schema_of(Travelled),
        },
        "required": ["command", "exit_code", "travelled"],
        "oneOf": [failed, {"not": {"required": ["error"]}, **done}],
    }


def files() -> dict[Path, str]:
    """What the folder is to hold."""
    return {
        FOLDER / f"{command.replace(' ', '-')}.schema.json": json.dumps(document(command), indent=2) + "\n"
        for command in COMMANDS
    }


def main() -> int:
    wanted = files()
    stale = [p for p, text in wanted.items() if not p.is_file() or p.read_text("utf-8") != text]
    stale += [p for p in FOLDER.glob("*.json") if p not in wanted]
    if "--check" in sys.argv:
        print(*(f"not as the types say: {p.name}" for p in stale), sep="\n")
        return 1 if stale else 0
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
