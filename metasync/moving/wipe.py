"""Empties removed backends of what is the workspace's (`backend remove --wipe`).

The agreed config says which ones (its tag 6), from their removal on. Every device that learns of it notes the way that
it has, and goes on with what another began: at the end of pushes (`moving.upkeep`), by `rebalance`, or by the same
command. Who finds nothing left there has that agreed, too.

All that a workspace has on a store lies in one folder, whose name is drawn at random when the backend is added: what is
deleted lies in there, and nothing else is looked at. A store that is added again gets another folder and other ids, so
whoever slept over that deletes nothing that is new. The folder goes once the newest agreed version neither has the
backend nor reads it, which is so after the trim of the move, and once all backends that vote know that version
themselves. Where a place of a backend in use is met in there all the same, nothing more is deleted.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import islice
from typing import Any, Final

from metasync.backends.api import Sweeps
from metasync.backends.wrappers.wrapper import Prefixed
from metasync.config import Config
from metasync.errors import BackendError, MetaSyncError, NoQuorumError, NotFoundError, UnreachableError, UsageError
from metasync.events import Phase, Progress
from metasync.moving.reconfigure import Wanted, change
from metasync.reports.backends import Wiped
from metasync.runtime.effects import Op, Reply, Task, Urgency, each
from metasync.session import agreement, open_backend, witnesses
from metasync.session.connections import Connections
from metasync.session.folder import WIPE_KEY
from metasync.session.session import Operations, Session
from metasync.store import moves
from metasync.sync.operations import changing

DELETED_AT_ONCE: Final = 64
LIST_TIMEOUT_S: Final = 120.0
DEPTH_MAX: Final = 8  # of folders below the workspace's: packs lie four deep
WHAT: Final = "backend remove"


def noted(c: Connections, name: str = "") -> dict[bytes, str]:
    """The removed backends that are to be emptied and that this device has a way to: id -> name."""
    keys = [key.rpartition("~") for key in c.db.get(WIPE_KEY) or {}]
    return {bytes.fromhex(i): known for known, _, i in keys if name in ("", known)}


def begin(work: Operations, name: str) -> None:
    """Has it agreed that a backend is to be emptied that was removed before, if that is not agreed yet.

    `UsageError`: this device has no way to one of that name.
    """
    c = work.connections
    former = {i for i, way in c.ways.items() if way.name.partition("~")[0] == name and c.config.backend(i) is None}
    waiting = noted(c, name)
    if not former and not waiting:
        raise no_way(name)
    if former - waiting.keys():
        _agree(work, name, former - waiting.keys(), emptied=True)


def no_way(name: str) -> UsageError:
    return UsageError(
        f"this device has no way to a backend called {name!r}",
        next_step=f"If it is in the workspace, run: metasync backend link {name} URL\nIf it is to be emptied already, a"
        " device that has its way goes on with that. Else delete the folder by hand.",
    )


def give_up(work: Operations, name: str) -> bool:
    """Has it agreed that a removed backend is not to be emptied any more. -> whether one of that name was to be."""
    waiting = noted(work.connections, name)
    if waiting:
        _agree(work, name, waiting.keys(), emptied=False)
    return bool(waiting)


def _agree(work: Operations, name: str, ids: Set[bytes], *, emptied: bool) -> None:
    def make(config: Config) -> Config:
        for backend_id in ids:
            if config.backend(backend_id) is None:
                config = moves.removing(config, backend_id, emptied=emptied)
        return config

    with changing(work, WHAT, reopen=True) as s:
        change(s, Wanted(name, make))


def go_on(work: Operations, left_s: Callable[[], float] = lambda: math.inf) -> dict[str, Wiped | MetaSyncError]:
    """Empties what this device knows is to be emptied. -> by name what was deleted, or why nothing was."""
    out: dict[str, Wiped | MetaSyncError] = {}
    for backend_id, name in sorted(noted(work.connections).items()):
        try:
            done = wipe(work, backend_id, left_s, suspected=True)
        except (BackendError, NoQuorumError, UsageError) as e:
            out[name] = e
        else:
            out[name] = together([w for w in (out.get(name), done) if isinstance(w, Wiped)])
    return out


def wipe(
    work: Operations,
    backend_id: bytes,
    left_s: Callable[[], float] = lambda: math.inf,
    *,
    suspected: bool = False,
) -> Wiped:
    """Deletes what the workspace has on a removed backend, and has it agreed when nothing is left there.

    `UsageError`: it is in use, something is read there, or it is not to be emptied. `BackendError`: it does not answer.
    `left_s`: how many seconds there are; what is not deleted by then is left. `suspected`: it may well be away.
    """
    c = work.connections
    with work.session(WHAT) as s:
        newest = agreement.ask_newest(s)
        ways = {bytes.fromhex(key.rpartition("~")[2]): (key, link) for key, link in (c.db.get(WIPE_KEY) or {}).items()}
        if backend_id not in moves.to_empty(s.config) or backend_id not in ways:
            return Wiped(0, 0)  # another device has done it meanwhile, or it is in use
        key, link = ways[backend_id]
        name = key.rpartition("~")[0]
        if s.config.prev_config is not None:
            raise UsageError(f"{name}: data are still to be moved, so nothing was deleted there")
        with contextlib.closing(c.machine.way(name, link, suspected=suspected)) as backend:
            if lacking := witnesses.unaware(s, newest):
                why = "; ".join(f"{n}: {text.removeprefix(f'{n}: ')}" for n, text in sorted(lacking.items()))
                raise UnreachableError(
                    f"{name} is removed, and nothing was deleted there: a backend that is left with an older version "
                    f"would need it ({why})",
                    next_step=f"Run again when all backends that vote answer: metasync backend remove {name} --wipe",
                )
            s.listener(Phase("wipe"))
            with open_backend.bare_runtime({name: Prefixed(backend, link.folder)}) as runtime:
                done = _empty(s, runtime.run, name, left_s)
            if isinstance(backend, Sweeps) and not done.left:
                backend.sweep(link.folder)  # the folders themselves, where a store has any
    if not done.left:
        with contextlib.suppress(NoQuorumError):  # who goes on with it finds nothing there
            _agree(work, name, {backend_id}, emptied=False)
    return done


def together(parts: Sequence[Wiped]) -> Wiped:
    """What was deleted on several, told as one."""
    why = next((w.why for w in parts if w.why), "")
    return Wiped(sum(w.objects for w in parts), sum(w.bytes for w in parts), sum(w.left for w in parts), why)


def _empty(s: Session, run: Callable[[Task], Any], name: str, left_s: Callable[[], float]) -> Wiped:
    in_use = {p.storage_id.hex() for b in s.config.backends for p in b.storage}
    in_use |= {a.acceptor_id.hex() for _, a in s.config.acceptors}
    objects, size, left, why = 0, 0, 0, ""
    files = _below(partial(_listed, run, name), "", 0, in_use)
    while some := list(islice(files, DELETED_AT_ONCE)):
        if left_s() <= 0:
            return Wiped(objects, size, left + len(some), why or "the time for it was over")
        ops = {path: Op(name, "delete", path, urgency=Urgency.LATER) for path, _ in some}
        replies: Mapping[str, Reply] = run(each(ops))
        for path, bytes_there in some:
            error = replies[path].error
            if error is None or isinstance(error, NotFoundError):
                objects, size = objects + 1, size + bytes_there
            else:
                left, why = left + 1, why or error.message
        s.listener(Progress("wipe", objects, None, "objects"))
    return Wiped(objects, size, left, why)


def _below(
    listed: Callable[[str], list[tuple[str, int | None]]], path: str, depth: int, in_use: Set[str]
) -> Iterator[tuple[str, int]]:
    """The files below a folder, with sizes. `UsageError` at a place that is in use, before anything beside it."""
    entries = listed(path)
    if any(entry in in_use for entry, _ in entries):
        raise UsageError(
            f"what is to be emptied holds a backend that is in use, in {path or 'its top folder'}: nothing more was"
            " deleted there",
            next_step="`metasync backend list` tells which ones are in use. Delete what is left by hand.",
        )
    for entry, size in entries:
        full = f"{path}/{entry}" if path else entry
        if size is not None:
            yield full, size
        elif depth < DEPTH_MAX:
            yield from _below(listed, full, depth + 1, in_use)


def _listed(run: Callable[[Task], Any], name: str, path: str) -> list[tuple[str, int | None]]:
    reply: Reply = run(each({"": Op(name, "list", path, timeout_s=LIST_TIMEOUT_S, urgency=Urgency.LATER)}))[""]
    if isinstance(reply.error, NotFoundError):
        return []
    if isinstance(reply.error, BackendError):
        raise reply.error
    return [(item.name, item.size) for item in reply.value]
