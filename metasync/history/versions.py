"""The names that people give to versions, and what they name.

12, v12              an agreed version by its number
latest, base         the newest agreed version; the one this folder is at
ab12cd34             a snapshot by the beginning of its id, as `metasync log` shows it
@2026-11-20          the newest version of that day or before, by the authors' clocks, in local time
@2026-11-20T14:00    the newest version at or before that time; `@yesterday`, `@2 days ago` and others (`history.times`)
first-draft          the version that was given this name (`metasync tag`)
latest~3             so many steps back in the log from any of these; `~` is one
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from metasync.consensus import ZERO_HASH
from metasync.errors import DamagedError, NoQuorumError, UsageError
from metasync.history.log import History
from metasync.history.times import WAYS, span
from metasync.objects.model import Snapshot, version_of
from metasync.store import retention

PREFIX_DIGITS_MIN = 8
_NAME = re.compile(r"(?P<what>[^~]+)(?:~(?P<back>[0-9]{0,9}))?")
_NUMBER = re.compile(r"v?[0-9]{1,18}")
_ID = re.compile(rf"[0-9a-f]{{{PREFIX_DIGITS_MIN},64}}")
_WAYS = (
    "A version is a number, `latest`, `base`, `latest~3`, 8 or more digits of a snapshot's id, `@2026-11-20T14:00`, "
    "or a name that `metasync tag` lists."
)


@dataclass(frozen=True, slots=True)
class Spec:
    """A version as it was named. `until_ns`: for a time. `back`: steps back from there."""

    text: str
    kind: Literal["number", "latest", "base", "id", "time", "tag"]
    number: int = 0
    until_ns: int = 0
    back: int = 0


@dataclass(frozen=True, slots=True)
class Version:
    """What was named. `number`: the agreed version, None for a kept snapshot; no snapshot: the empty tree."""

    number: int | None
    id: bytes
    snapshot: Snapshot | None

    @property
    def root(self) -> bytes | None:
        return self.snapshot.root if self.snapshot is not None else None

    @property
    def title(self) -> str:
        return f"version {self.number}" if self.number is not None else f"snapshot {self.id.hex()[:12]}"


def parse(text: str) -> Spec | None:
    """What a text names as a version; None if it is no such name. A time that is none: `UsageError`."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    what = found["what"]
    back = 0 if found["back"] is None else int(found["back"] or 1)
    if what in ("latest", "base"):
        return Spec(text, "latest" if what == "latest" else "base", back=back)
    if _NUMBER.fullmatch(what):
        return Spec(text, "number", number=int(what.lstrip("v")), back=back)
    if _ID.fullmatch(what):
        return Spec(text, "id", back=back)
    if what.startswith("@"):
        return Spec(text, "time", until_ns=_until_ns(what[1:]), back=back)
    return Spec(text, "tag", back=back) if retention.is_name(what) else None


def is_version_name(text: str) -> bool:
    """Whether a text is written like a version, be there one or not. Any word may be the name of one: that is none."""
    spec = None if text.startswith("@") else parse(text)
    return text.startswith("@") or (spec is not None and spec.kind != "tag")


def required(text: str) -> Spec:
    """The same, where nothing but a version will do. `UsageError`."""
    spec = parse(text)
    if spec is None:
        raise _unnamed(text)
    return spec


def _unnamed(text: str) -> UsageError:
    return UsageError(f"{text!r} names no version", next_step=_WAYS)


def _until_ns(text: str) -> int:
    """The last nanosecond that a date (its whole day) or a time (its whole second) takes in."""
    try:
        return span(text)[1]
    except ValueError as e:
        raise UsageError(f"@{text} is no date or time", next_step=f"Write @ and one of {WAYS}.") from e


def resolve(history: History, spec: Spec) -> Version:
    """The version that was named. `UsageError`: there is none, or several; `NoQuorumError`: that can't be told now."""
    version = _at(history, spec)
    history.needed_by = min(history.needed_by or version.number or 0, version.number or 0)
    if not spec.back:
        return version
    moments = history.line(version.id) if version.snapshot is not None else iter(())
    steps = -1
    for steps, moment in enumerate(moments):
        if steps == spec.back:
            return Version(version_of(moment.snapshot) or None, moment.id, moment.snapshot)
    raise UsageError(
        f"{spec.text}: {version.title} has {max(steps, 0)} before it that are kept",
        next_step="`metasync log` lists them.",
    )


def _at(history: History, spec: Spec) -> Version:
    newest = history.newest.state
    if spec.kind == "latest":
        return _agreed(history, newest.v, newest.master)
    if spec.kind == "base":
        base = history.s.base()
        return Version(base.state.v, base.state.master if base.snapshot is not None else ZERO_HASH, base.snapshot)
    if spec.kind == "number" and (skip := history.newest.devices.policy.skip_over(spec.number)) is not None:
        raise UsageError(
            f"version {spec.number} was skipped by version {skip.at}: it cannot be read",
            next_step=f"Version {skip.good} is the last before it that can be.",
        )
    if spec.kind == "number" and spec.number <= newest.v:
        return _agreed(history, spec.number, history.master_at(spec.number))
    if spec.kind == "time":
        return _at_time(history, spec)
    prefix = spec.text.partition("~")[0]
    if spec.kind == "tag":
        number = next((n.version for n in history.retained.named if n.name == prefix), None)
        if number is None:
            raise _unnamed(spec.text)
        return _agreed(history, number, history.master_at(number))
    ids = history.ids_like(prefix) if _ID.fullmatch(prefix) else []
    if len(ids) == 1:
        snapshot = history.snapshot(ids[0])
        return Version(version_of(snapshot) or None, ids[0], snapshot)
    if ids:
        some = ", ".join(i.hex()[: len(prefix) + 4] for i in ids[:5])
        raise UsageError(f"{prefix} is the beginning of {len(ids)} snapshots: {some}", next_step="Give more digits.")
    what = f"version {spec.number}" if spec.kind == "number" else f"snapshot {prefix}"
    raise _unknown(history, f"there is no {what}: the newest is version {newest.v}")


def _agreed(history: History, v: int, master: bytes) -> Version:
    if master == ZERO_HASH:
        return Version(v, master, None)
    if master not in history.contents:
        error = DamagedError(
            f"version {v} is in no pack, though nobody dropped it",
            next_step="`metasync log` lists the versions that can be read.",
        )
        error.objects, history.needed_by = (master,), v
        raise history.explained(error)
    return Version(v, master, history.snapshot(master))


def _at_time(history: History, spec: Spec) -> Version:
    oldest = None
    for moment in history.line():
        if moment.snapshot.time_ns <= spec.until_ns:
            return Version(version_of(moment.snapshot) or None, moment.id, moment.snapshot)
        oldest = moment
    if oldest is None:
        raise _unknown(history, f"{spec.text}: nothing has been pushed yet")
    raise _unknown(history, f"{spec.text}: the oldest that is kept, version {version_of(oldest.snapshot)}, is newer")


def _unknown(history: History, message: str) -> UsageError | NoQuorumError:
    """There is no such version; or, where it is not known which is the newest, that can't be told."""
    if history.problem is not None:
        return NoQuorumError(
            f"{message} that can be seen now ({history.problem.message})", next_step=history.problem.next_step
        )
    return UsageError(message, next_step=f"`metasync log` lists the versions. {_WAYS}")
