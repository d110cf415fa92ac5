"""What of the product is exchanged while a simulation runs; all of it stands here.

- `concurrent.futures.wait`, where the product waits for several futures: in virtual time.
- `Session.propose` tells the simulation which change a command proposes.
- Pure functions that are dear, and that every client calls with the same bytes, keep what they returned: deriving keys,
  checking signatures, decoding entries, device sets and index segments. Nothing is weaker than in earnest: whatever was
  not yet computed from exactly these bytes is computed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

from metasync.consensus import Change, Decided, State
from metasync.sync.session import Session
from metasync.testing.simulation import runtime

_WAITING: Final = ("metasync.store.contents", "metasync.sync.upload", "metasync.sync.check")
_REMEMBERED_MAX: Final = 4096
_PURE: Final[tuple[tuple[str, str], ...]] = (
    ("metasync.keys.derive", "derive"),
    ("metasync.keys.derive", "verify"),
    ("metasync.keys.derive", "sign_public"),
    ("metasync.keys.devices", "decode_device_set"),
    ("metasync.consensus.entries", "open_entry"),
    ("metasync.consensus.entries", "entry_path"),
    ("metasync.store.index", "decode_segment"),
    ("metasync.store.index", "decode_root"),
)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Everything in place; as it was, afterwards. Not for two threads at once."""
    with contextlib.ExitStack() as stack:
        for module in _WAITING:
            stack.enter_context(mock.patch.object(sys.modules[module], "wait", runtime.wait))
        stack.enter_context(mock.patch.object(Session, "propose", _proposed(Session.propose)))
        for owner, name in _PURE:
            for module_name in _where(owner, name):
                function = getattr(sys.modules[module_name], name)
                stack.enter_context(mock.patch.object(sys.modules[module_name], name, remembering(function)))
        yield


@functools.cache
def _where(owner: str, name: str) -> tuple[str, ...]:
    """The modules that know a function under its name."""
    function = getattr(sys.modules[owner], name)
    names = [n for n, m in sys.modules.items() if n.startswith("metasync.") and getattr(m, name, None) is function]
    return tuple(sorted(names))


def remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.lru_cache(maxsize=_REMEMBERED_MAX)(function)


def _proposed(propose: Any) -> Any:
    @functools.wraps(propose)
    def wrapped(self: Session, base: State, change: Change) -> Decided:
        noted: list[bytes] = self.runtime._boot.proposed  # type: ignore[attr-defined]
        if change.op_id not in noted:
            noted.append(change.op_id)
        return propose(self, base, change)  # type: ignore[no-any-return]

    return wrapped
