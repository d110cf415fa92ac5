"""Empties a removed backend of what is the workspace's (`backend remove --wipe`).

All that a workspace has on a store lies in one folder, whose name is drawn at random when the backend is added: what is
deleted lies in there, and nothing else is looked at. It goes once the newest agreed version neither has the backend nor
reads it, which is so after the trim of the move, and once all backends that vote know that version themselves. The way
to it is noted before the removal, so that whoever was interrupted goes on, though the workspace has forgotten the
backend by then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final

from metasync.backends.api import Sweeps
from metasync.backends.wrappers.wrapper import Prefixed
from metasync.errors import BackendError, NotFoundError, UnreachableError, UsageError
from metasync.events import Phase, Progress
from metasync.reports.backends import Wiped
from metasync.runtime.effects import Op, Reply, Task, Urgency, each
from metasync.session import agreement, open_backend, witnesses
from metasync.session.connections import Connections
from metasync.session.folder import WIPE_KEY, Link
from metasync.session.session import Operations

DELETED_AT_ONCE: Final = 64
LIST_TIMEOUT_S: Final = 120.0
DEPTH_MAX: Final = 8  # of folders below the workspace's: packs lie four deep


def begin(c: Connections, name: str) -> None:
    """Notes the way to a backend that is to be emptied once it is removed. `UsageError`: this device has none."""
    noted: dict[str, Link] = c.db.get(WIPE_KEY) or {}
    if _key(noted, name):
        return
    for backend_id, way in c.ways.items():
        if name in (way.name, way.name.partition("~")[0]):
            c.db.set(WIPE_KEY, {**noted, f"{name}~{backend_id.hex()}": way.link})
            return
    raise UsageError(
        f"this device has no way to a backend called {name!r}",
        next_step=f"metasync backend link {name} URL, if it is in the workspace. Else delete the folder by hand.",
    )


def _key(noted: Mapping[str, Link], name: str) -> str:
    return next((key for key in noted if key.rpartition("~")[0] == name), "")


def wipe(work: Operations, name: str) -> Wiped:
    """Deletes what the workspace has on a removed backend. `UsageError`: it is in use, or something is read there."""
    c = work.connections
    with work.session("backend remove") as s:
        noted: dict[str, Link] = c.db.get(WIPE_KEY) or {}
        key = _key(noted, name)
        newest = agreement.ask_newest(s)
        if s.config.backend(bytes.fromhex(key.rpartition("~")[2])) is not None or s.config.prev_config is not None:
            raise UsageError(f"{name} is still in use, or data are still to be moved: nothing was deleted there")
        if lacking := witnesses.unaware(s, newest):
            why = "; ".join(f"{n}: {text.removeprefix(f'{n}: ')}" for n, text in sorted(lacking.items()))
            raise UnreachableError(
                f"{name} is removed, and nothing was deleted there: a backend that is left with an older version would "
                f"need it ({why})",
                next_step=f"Run again when all backends that vote answer: metasync backend remove {name} --wipe",
            )
        s.listener(Phase("wipe"))
        link = noted[key]
        with contextlib.closing(c.machine.way(name, link, suspected=False)) as backend:
            with open_backend.bare_runtime({name: Prefixed(backend, link.folder)}) as runtime:
                done = _empty(runtime.run, name, s.listener)
            if isinstance(backend, Sweeps) and not done.left:
                backend.sweep(link.folder)  # the folders themselves, where a store has any
        if not done.left:
            c.db.set(WIPE_KEY, {k: v for k, v in noted.items() if k != key} or None)
    return done


def _empty(run: Callable[[Task], Any], name: str, listener: Callable[[Progress], None]) -> Wiped:
    objects, size, left, why = 0, 0, 0, ""
    files = _below(partial(_listed, run, name), "", 0)
    while some := list(islice(files, DELETED_AT_ONCE)):
        ops = {path: Op(name, "delete", path, urgency=Urgency.LATER) for path, _ in some}
        replies: Mapping[str, Reply] = run(each(ops))
        for path, bytes_there in some:
            error = replies[path].error
            if error is None or isinstance(error, NotFoundError):
                objects, size = objects + 1, size + bytes_there
            else:
                left, why = left + 1, why or error.message
        listener(Progress("wipe", objects, None, "objects"))
    return Wiped(objects, size, left, why)


def _below(listed: Callable[[str], list[tuple[str, int | None]]], path: str, depth: int) -> Iterator[tuple[str, int]]:
    """The files below a folder, with sizes."""
    for entry, size in listed(path):
        full = f"{path}/{entry}" if path else entry
        if size is not None:
            yield full, size
        elif depth < DEPTH_MAX:
            yield from _below(listed, full, depth + 1)


def _listed(run: Callable[[Task], Any], name: str, path: str) -> list[tuple[str, int | None]]:
    reply: Reply = run(each({"": Op(name, "list", path, timeout_s=LIST_TIMEOUT_S, urgency=Urgency.LATER)}))[""]
    if isinstance(reply.error, NotFoundError):
        return []
    if isinstance(reply.error, BackendError):
        raise reply.error
    return [(item.name, item.size) for item in reply.value]
