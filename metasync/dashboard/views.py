"""What the page is told: reports as JSON values, bounded, with names that hide nothing.

A path goes out twice: as text to be shown, and as an *id* that comes back when it is meant, its bytes in base64url.
Texts come from other devices and from servers: what is not printable in them is escaped here, so that a name cannot
turn a line around, and the page makes text of them and never markup.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from metasync.codec import printable
from metasync.errors import GuardError, MetaSyncError, UsageError
from metasync.reports.backends import BackendList, BackendState, Status
from metasync.reports.history import Facts, Listing, LogItem, PathChange, ResolveReport, RestoreReport, ShowReport
from metasync.reports.members import DeviceList, InviteReport
from metasync.reports.service import Problem, WorkspaceState
from metasync.reports.settings import SettingsReport
from metasync.reports.sync import Changes, ConflictReport, ConflictSide, PullReport, PushReport, Skipped, path_str

Json: TypeAlias = Any

LISTED_MAX: Final = 200  # paths of one kind; of what is more their number is told
ENTRIES_MAX: Final = 5_000  # of a directory
ID_CHARS_MAX: Final = 8 << 10


def shown(path: bytes) -> str:
    """A path for people."""
    return printable(path_str(path))


def path_id(path: bytes) -> str:
    """A path as the page gives it back."""
    return base64.urlsafe_b64encode(path).decode().rstrip("=")


def path_of(text: object) -> bytes:
    """The path of an id. `UsageError` for what is none."""
    if not isinstance(text, str) or len(text) > ID_CHARS_MAX or not text.isascii():
        raise UsageError("no path is called that")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as e:
        raise UsageError("no path is called that") from e


def workspace_id(directory: Path) -> str:
    """What the page calls a workspace."""
    return hashlib.sha256(str(directory).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def path(value: bytes) -> Json:
    return {"text": shown(value), "id": path_id(value)}


def error(e: MetaSyncError) -> Json:
    """An error. `guard`: of a guard, what would be deleted of how much."""
    guard = {"deleted": e.deleted, "files": e.files} if isinstance(e, GuardError) else None
    return {
        "kind": type(e).__name__,
        "message": printable(e.message),
        "next_step": printable(e.next_step),
        "guard": guard,
    }


def seconds(value: float | None) -> float | None:
    """A time, or None where it is none that JSON knows: a pause without an end."""
    return value if value is not None and math.isfinite(value) else None


def state(s: WorkspaceState, *, by_daemon: bool) -> Json:
    """A workspace as it fares now. `by_daemon`: the daemon keeps it in step."""
    activity = s.activity
    return {
        "id": workspace_id(Path(s.directory)),
        "directory": printable(_from_home(s.directory)),
        "name": printable(s.name),
        "daemon": by_daemon,
        "doing": s.doing,
        "why": printable(s.why),
        "since": seconds(s.since_s),
        "version": s.version,
        "changed": s.changed,
        "changed_bytes": s.changed_bytes,
        "activity": None
        if activity is None
        else {
            "phase": printable(activity.phase),
            "done": activity.done,
            "total": activity.total,
            "unit": activity.unit,
            "up": activity.up_bytes,
            "down": activity.down_bytes,
        },
        "problems": [problem(p) for p in s.problems],
        "lines": [
            {
                "backend": printable(line.backend),
                "up": line.up_bytes,
                "down": line.down_bytes,
                "requests": line.requests,
                "away": printable(line.away),
                "since": seconds(line.since_s),
            }
            for line in s.lines
        ],
        "pushed": seconds(s.pushed_s),
        "pulled": seconds(s.pulled_s),
        "looked": seconds(s.looked_s),
        "look_at": seconds(s.look_at_s),
        "paused": s.paused_until_s is not None,
        "paused_until": seconds(s.paused_until_s),
    }


def _from_home(directory: str) -> str:
    """A folder below the user's own as people write it."""
    home = os.path.expanduser("~").rstrip("/")
    return f"~{directory.removeprefix(home)}" if home and directory.startswith(f"{home}/") else directory


def problem(p: Problem) -> Json:
    return {
        "key": p.key,
        "kind": p.kind,
        "text": printable(p.text),
        "next_step": printable(p.next_step),
        "since": seconds(p.since_s),
        "asks": p.asks,
        "blocks": p.blocks,
    }


def backend(b: BackendState, evidence: Sequence[Json] = ()) -> Json:
    return {
        "name": printable(b.name),
        "url": printable(b.url),
        "data": "data" in b.roles,
        "votes": "vote" in b.roles,
        "condition": b.condition,
        "state": printable(b.state),
        "holds": b.holds,
        "linked": b.linked,
        "since": _ns(b.since_ns),
        "share": b.share,
        "limit": b.limit_bytes,
        "used": b.used_bytes,
        "free": b.free_bytes,
        "total": b.total_bytes,
        "reserve_used": b.reserve_used,
        "warning": printable(b.warning),
        "looked": _ns(b.looked_ns),
        "evidence": list(evidence),
    }


def status(s: Status) -> Json:
    """The state at a glance, asked for now."""
    evidence = [
        {"backend": printable(e.backend), "what": printable(e.what), "since": _ns(e.time_ns)} for e in s.evidence
    ]
    return {
        "name": printable(s.name),
        "version": s.version,
        "newest": s.newest,
        "fingerprint": s.fingerprint,
        "device": printable(s.device),
        "time": _ns(s.time_ns),
        "copies": s.copies,
        "packs": s.packs,
        "short": s.short,
        "by_copies": list(s.by_copies),
        "survives": printable(s.survives),
        "problem": printable(s.problem),
        "error": None if s.error is None else error(s.error),
        "paused": s.paused,
        "changes": changes(s.changes),
        "conflicts": len(s.conflicts),
        "warnings": [printable(w) for w in s.warnings],
        "unreadable": skipped(s.unreadable),
        "skipped": skipped(s.skipped),
        "unplaced": skipped(s.unplaced),
        "moving": {"packs": s.moving.packs, "bytes": s.moving.bytes},
        "backends": [backend(b, [e for e in evidence if e["backend"] == printable(b.name)]) for b in s.backends],
        "withdraw": [f"{printable(w.device)} at {printable(w.backend)}" for w in s.withdraw],
        "trailing": [{"backend": printable(t.name), "packs": t.packs, "bytes": t.bytes} for t in s.trailing],
    }


def backends(listed: BackendList) -> Json:
    return {
        "backends": [backend(b) for b in listed.backends],
        "survives": printable(listed.survives),
        "moving": {"packs": listed.moving.packs, "bytes": listed.moving.bytes},
        "together": [{"backends": [printable(n) for n in t.backends], "share": t.share} for t in listed.together],
    }


def changes(c: Changes) -> Json:
    """What differs, the first of each kind; `count` is of all."""
    return {
        "count": len(c),
        "added": {"count": len(c.added), "first": [path(p) for p in c.added[:LISTED_MAX]]},
        "modified": {"count": len(c.modified), "first": [path(p) for p in c.modified[:LISTED_MAX]]},
        "deleted": {"count": len(c.deleted), "first": [path(p) for p in c.deleted[:LISTED_MAX]]},
        "renamed": {
            "count": len(c.renamed),
            "first": [{**path(r.path), "was": shown(r.was)} for r in c.renamed[:LISTED_MAX]],
        },
    }


def skipped(items: Sequence[Skipped]) -> Json:
    return [{**path(i.path), "reason": printable(i.reason)} for i in items[:LISTED_MAX]]


def item(i: LogItem) -> Json:
    counts = i.counts
    return {
        "version": i.version,
        "device": printable(i.device),
        "time": _ns(i.time_ns),
        "message": printable(i.message),
        "kept": i.kept,
        "begins": printable(i.begins),
        "events": [printable(e) for e in i.events],
        "forgotten": i.forgotten,
        "dropped": list(i.dropped) if i.dropped is not None else None,
        "counts": None
        if counts is None
        else {
            "added": counts.added,
            "modified": counts.modified,
            "deleted": counts.deleted,
            "renamed": counts.renamed,
            "other": counts.other,
        },
        "changes": None if i.changes is None else [change(c) for c in i.changes[:LISTED_MAX]],
    }


def change(c: PathChange) -> Json:
    return {
        **path(c.path),
        "kind": c.kind,
        "was": None if c.was is None else shown(c.was),
        "before": None if c.before is None else facts(c.before),
        "after": None if c.after is None else facts(c.after),
    }


def show(r: ShowReport) -> Json:
    found = () if r.diff is None else r.diff.changes
    return {"version": item(r.version), "count": len(found), "changes": [change(c) for c in found[:LISTED_MAX]]}


def facts(f: Facts) -> Json:
    return {
        "kind": f.kind,
        "size": f.size,
        "time": _ns(f.mtime_ns) if f.mtime_ns else None,
        "target": None if f.target is None else shown(f.target),
    }


def listing(r: Listing) -> Json:
    """A directory of a version, directories first."""
    prefix = r.path + b"/" if r.path else b""
    entries = sorted(r.entries, key=lambda e: (e.facts.kind != "dir", e.path))
    first = [(e, shown(e.path.removeprefix(prefix))) for e in entries[:ENTRIES_MAX]]
    return {
        "version": r.version,
        "path": path(r.path),
        "count": len(entries),
        "entries": [{**path(e.path), "name": name, **facts(e.facts)} for e, name in first],
    }


def conflict(c: ConflictReport) -> Json:
    return {
        **path(c.path),
        "copy": path(c.kept),
        "reason": printable(c.reason),
        "sides": [side(s) for s in c.sides],
    }


def side(s: ConflictSide) -> Json:
    return {
        **path(s.path),
        "device": None if s.device is None else printable(s.device),
        "here": s.here,
        "version": s.version,
        "time": None if s.time_ns is None else _ns(s.time_ns),
    }


def devices(d: DeviceList) -> Json:
    return {
        "version": d.version,
        "problem": printable(d.problem),
        "devices": [
            {
                "id": v.device_id,
                "name": printable(v.name),
                "this": v.this,
                "state": v.state,
                "version": v.version,
                "seen": _ns(v.seen_ns),
            }
            for v in d.devices
        ],
        "invitations": [
            {"id": i.invitation_id, "name": printable(i.name), "expires": i.expires} for i in d.invitations
        ],
        "withdraw": [
            {"device": printable(w.device), "backend": printable(w.backend), "what": printable(w.what)}
            for w in d.withdraw
        ],
    }


def settings(r: SettingsReport, keep: str | None, copies: int) -> Json:
    return {"settings": dict(r.settings), "paused": r.paused, "keep": keep, "copies": copies}


def restored(r: RestoreReport) -> Json:
    return {
        "version": r.version,
        "changes": changes(r.changes),
        "unchanged": r.unchanged,
        "bytes": r.size_written,
        "conflicts": [conflict(c) for c in r.conflicts[:LISTED_MAX]],
        "unsaved": [path(p) for p in r.unsaved[:LISTED_MAX]],
        "failed": [{**path(f.path), "reason": printable(f.reason)} for f in r.failed[:LISTED_MAX]],
        "skipped": skipped(r.skipped),
    }


def resolved(r: ResolveReport) -> Json:
    return {**path(r.path), "kept": None if r.kept is None else path(r.kept), "replaced": len(r.replaced)}


def pulled(r: PullReport) -> Json:
    return {
        "before": r.before,
        "version": r.version,
        "changes": changes(r.changes),
        "conflicts": len(r.conflicts),
        "merged": len(r.merged),
    }


def pushed(r: PushReport) -> Json:
    return {
        "version": r.version,
        "changes": changes(r.changes),
        "under_replicated": r.under_replicated,
        "busy": skipped(r.busy),
        "pulled": None if r.pulled is None else pulled(r.pulled),
    }


def invited(r: InviteReport, code: Sequence[str]) -> Json:
    """An invitation. `code`: its QR code, a row a string of 0 and 1."""
    return {
        "name": printable(r.name),
        "id": r.invitation_id,
        "code": r.code,
        "version": r.version,
        "expires": r.expires,
        "qr": list(code),
        "missing": [printable(name) for name, _ in r.missing],
    }


def _ns(value: int | None) -> float | None:
    """Seconds since 1970, to the millisecond."""
    return None if value is None else value // 1_000_000 / 1000
