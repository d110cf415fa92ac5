"""What a page can have done, by name: what it takes, and which operation that is. One table, checked as it comes in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from metasync.dashboard import views
from metasync.errors import UsageError
from metasync.workspace import Workspace

TEXT_CHARS_MAX: Final = 4_096
PAUSE_S_MAX: Final = 366 * 86_400.0
SETTABLE: Final = re.compile(
    r"copies|keep|limit\.(up|down|connections)(\..*)?|durability|upkeep|scrub\.days|(base-)?cache-mb|nice"
    r"|notify\.(desktop|after)|daemon\.(quiet|delta|longest|ask|trash)"
)
"""Settings that the page changes. Not those that name a program or a server, or weaken what this device keeps out: who
got hold of a page must not get this machine with it."""


class Action(NamedTuple):
    """A change that the page may ask for.

    takes   the fields that come with it, and their types; those that may be None may be left out
    do      does it, and gives what the page is told
    shows   what the page says while it lasts: a word of `sources.DOING`, or a few words
    """

    takes: Mapping[str, Any]
    do: Callable[[Workspace, Mapping[str, Any]], Any]
    shows: str


def _push(w: Workspace, a: Mapping[str, Any]) -> Any:
    return views.pushed(w.push(a["message"] or "", force=bool(a["force"])))


def _pull(w: Workspace, a: Mapping[str, Any]) -> Any:
    return views.pulled(w.pull(force=bool(a["force"])))


def _sync(w: Workspace, a: Mapping[str, Any]) -> Any:
    pulled, pushed = w.sync(a["message"] or "", force=bool(a["force"]))
    return {"pulled": views.pulled(pulled), "pushed": views.pushed(pushed)}


def _restore(w: Workspace, a: Mapping[str, Any]) -> Any:
    """Into place, and what the version lacks stays: a click on a folder must delete nothing."""
    return views.restored(w.restore(a["version"], [views.path_of(a["path"])], delete=False, dry_run=bool(a["dry_run"])))


def _undelete(w: Workspace, a: Mapping[str, Any]) -> Any:
    return views.restored(w.undelete(views.path_of(a["path"]), dry_run=bool(a["dry_run"])))


def _resolve(w: Workspace, a: Mapping[str, Any]) -> Any:
    keep: Any = "both" if a["keep"] is None else views.path_of(a["keep"])
    return views.resolved(w.resolve(views.path_of(a["copy"]), keep))


def _invite(w: Workspace, a: Mapping[str, Any]) -> Any:
    r = w.invite(a["name"], a["passphrase"], expires_after=a["expires"])
    return views.invited(r, qr(r.code))


def _set(w: Workspace, a: Mapping[str, Any]) -> Any:
    key, value = a["key"], a["value"]
    if not SETTABLE.fullmatch(key):
        raise UsageError(f"the page does not set {key[:40]}", next_step=f"`metasync config set {key[:40]} VALUE` does.")
    if key == "keep":
        w.keep(value, change=True)
    elif key == "copies":
        if value is None or not value.isascii() or not value.isdecimal():
            raise UsageError("copies: a number, such as 2.")
        w.set_copies(int(value))
    elif value is not None or key in w.settings().settings:
        w.configure(key, value)
    return settings(w)


def _pause(w: Workspace, a: Mapping[str, Any]) -> Any:
    w.pause(a["seconds"])
    return settings(w)


def _resume(w: Workspace, _: Mapping[str, Any]) -> Any:
    w.resume()
    return settings(w)


def _take_back(w: Workspace, a: Mapping[str, Any]) -> Any:
    return {"names": list(w.invitation_revoke([a["invitation"]]).names)}


def _rename(w: Workspace, a: Mapping[str, Any]) -> Any:
    return {"name": w.device_rename(a["device"], a["name"]).name}


def settings(w: Workspace) -> Any:
    """All that is set, here and by agreement as this device knows it."""
    return views.settings(w.settings(), w.keep(ask=False).keep, w.copies)


_FORCE: Final = {"message": str | None, "force": bool | None}
ACTIONS: Final[Mapping[str, Action]] = {
    "sync": Action(_FORCE, _sync, "sync"),
    "push": Action(_FORCE, _push, "push"),
    "pull": Action(_FORCE, _pull, "pull"),
    "restore": Action({"version": str, "path": str, "dry_run": bool | None}, _restore, "restoring"),
    "undelete": Action({"path": str, "dry_run": bool | None}, _undelete, "restoring"),
    "resolve": Action({"copy": str, "keep": str | None}, _resolve, "ending a conflict"),
    "invite": Action({"name": str, "passphrase": str, "expires": int | None}, _invite, "making an invitation"),
    "take_back": Action({"invitation": str}, _take_back, "taking an invitation back"),
    "rename": Action({"device": str, "name": str}, _rename, "renaming a device"),
    "set": Action({"key": str, "value": str | None}, _set, "changing a setting"),
    "pause": Action({"seconds": float | None}, _pause, "pausing"),
    "resume": Action({}, _resume, "going on"),
}


def understood(name: str, given: object) -> Mapping[str, Any]:
    """The fields of an action, all of them there. `UsageError` for an unknown action or field, or another type."""
    if name not in ACTIONS:
        raise UsageError("there is no such action")
    if not isinstance(given, dict) or not all(isinstance(key, str) for key in given):
        raise UsageError("an action takes fields by name")
    takes = ACTIONS[name].takes
    if unknown := sorted(given.keys() - takes.keys()):
        raise UsageError(f"{name} takes no {unknown[0][:40]!r}")
    return {key: _checked(key, given.get(key), kind) for key, kind in takes.items()}


def _checked(key: str, value: Any, kind: Any) -> Any:
    if kind in (float | None,) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) <= PAUSE_S_MAX else -1.0
    fits = isinstance(value, kind) and not (isinstance(value, bool) and kind in (int | None, float | None))
    if not fits:
        raise UsageError(f"{key} is missing, or not what it should be")
    if isinstance(value, str):
        if len(value) > TEXT_CHARS_MAX and key not in ("path", "copy", "keep"):
            raise UsageError(f"{key} is too long")
        try:
            value.encode()
        except UnicodeEncodeError as e:
            raise UsageError(f"{key} is no text") from e
    return value


def qr(text: str) -> tuple[str, ...]:
    """The QR code of a text, a row a string of 0 and 1 (dark); none where it is too long, or there is no segno."""
    try:
        import segno
    except ImportError:
        return ()
    try:
        code = segno.make(text, error="l", micro=False)
    except segno.DataOverflowError:
        return ()
    return tuple("".join("1" if cell else "0" for cell in row) for row in code.matrix)
