"""What of the product is exchanged while a simulation runs; all of it stands here.

- `Session.propose` tells the simulation which change a command proposes.
- Pure functions that are dear, and that every client calls with the same bytes, keep what they returned: deriving keys,
  checking signatures, decoding entries, device sets and index segments. Nothing is weaker than in earnest: whatever was
  not yet computed from exactly these bytes is computed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

import metasync
from metasync.consensus import Change, State, audit, chain, learner
from metasync.consensus import truncation as floors_
from metasync.consensus.acceptors import block, log
from metasync.consensus.participant import Member
from metasync.consensus.records import entry as entries
from metasync.consensus.records.entry import Kind
from metasync.consensus.records.log_replay import NEVER
from metasync.runtime.effects import Task
from metasync.session import agreement
from metasync.session.session import Session
from simulation.world import World

_ROOMS: Final = (
    *("consensus", "keys", "objects", "store", "sync", "translators", "merge", "worktree", "checkout", "transfer"),
    *("session", "members", "maintenance", "history", "local", "runtime", "reports", "workspace", "config", "codec"),
)
_FLOOR_STEP: Final = 4  # versions between floors where there are floors: 1024 in earnest
_LOGS_KEPT: Final = 6  # and 10,000
_REMEMBERED_MAX: Final = 4096
_PURE: Final[tuple[tuple[str, str], ...]] = (
    ("metasync.keys.derive", "derive"),
    ("metasync.keys.derive", "verify"),
    ("metasync.keys.derive", "sign_public"),
    ("metasync.keys.device_set", "decode_device_set"),
    ("metasync.consensus.records.entry", "open_entry"),
    ("metasync.consensus.records.entry", "open_block"),
    ("metasync.consensus.records.entry", "entry_path"),
    ("metasync.consensus.records.entry", "block_path"),
    ("metasync.store.index", "decode_segment"),
    ("metasync.store.index", "decode_root"),
)


def _load_all() -> None:
    """Loads what a command would only load when it comes to it: what is exchanged is looked for by who knows it."""
    for found in pkgutil.walk_packages(metasync.__path__, "metasync."):
        if found.name.split(".")[1] in _ROOMS:
            importlib.import_module(found.name)


_load_all()


@contextlib.contextmanager
def installed(world: World, *, floors: bool = False) -> Iterator[None]:
    """Everything in place; as it was, afterwards. Not for two threads at once. `floors`: logs are short-lived."""
    with contextlib.ExitStack() as stack:
        if floors:
            _shorten(stack)
        _count_events(stack, world)
        stack.enter_context(mock.patch.object(Session, "proposing", _proposed(Session.proposing)))
        for owner, name in _PURE:
            for module_name in _where(owner, name):
                function = getattr(sys.modules[module_name], name)
                stack.enter_context(mock.patch.object(sys.modules[module_name], name, remembering(function)))
        yield


def _shorten(stack: contextlib.ExitStack) -> None:
    for module, name in ((entries, "VERSIONS_PER_FOLDER"), (chain, "VERSIONS_PER_FOLDER"), (floors_, "STEP"),
                         (floors_, "BEHIND_LEAST")):  # fmt: skip
        stack.enter_context(mock.patch.object(module, name, _FLOOR_STEP))
    stack.enter_context(mock.patch.object(agreement, "LOGS_KEPT", _LOGS_KEPT))
    stack.enter_context(mock.patch.dict(floors_.bound_logs.__kwdefaults__, keep=_LOGS_KEPT))


def _count_events(stack: contextlib.ExitStack, world: World) -> None:
    """Notes what nobody else can see: steps of the protocol that are interesting to have been taken."""

    def patch(module: Any, name: str, told: Callable[..., None]) -> None:
        real = getattr(module, name)
        task = inspect.isgeneratorfunction(real)

        @functools.wraps(real)
        def wrapped(*a: Any, **k: Any) -> Any:
            if task:
                return watched(real(*a, **k), a)
            result = real(*a, **k)
            told(result, *a)
            return result

        def watched(running: Any, a: Any) -> Any:
            result = yield from running
            told(result, *a)
            return result

        stack.enter_context(mock.patch.object(module, name, wrapped))

    def leapt(result: Any, *_: Any) -> None:
        if result is not None:
            world.count("floor jump")

    def claimed(_: Any, m: Any, instance: Any, entry: Any) -> None:
        if entry.kind is Kind.DECIDED and entry.device_id != m.identity.device_id:
            world.count("fence met")

    def taken(result: Any, *_: Any) -> None:
        if result != NEVER:
            world.count("prepared ahead")

    def accused(_: Any, m: Any, instance: Any, acceptor_id: bytes, why: str) -> None:
        world.count("liar named")

    patch(learner, "_leap", leapt)
    patch(log, "note_claims", claimed)
    patch(block, "note_claims", claimed)
    patch(Member, "take_prepared", taken)
    patch(audit, "accuse", accused)


@functools.cache
def _where(owner: str, name: str) -> tuple[str, ...]:
    """The modules that know a function under its name."""
    function = getattr(sys.modules[owner], name)
    names = [n for n, m in sys.modules.items() if n.startswith("metasync.") and getattr(m, name, None) is function]
    return tuple(sorted(names))


def remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.lru_cache(maxsize=_REMEMBERED_MAX)(function)


def _proposed(proposing: Any) -> Any:
    @functools.wraps(proposing)
    def wrapped(self: Session, base: State, change: Change) -> Task:
        noted: list[bytes] = self.runtime._boot.proposed  # type: ignore[attr-defined]
        if change.op_id not in noted:
            noted.append(change.op_id)
        return proposing(self, base, change)  # type: ignore[no-any-return]

    return wrapped
