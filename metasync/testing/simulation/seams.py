"""What of the product is exchanged while a simulation runs; all of it stands here.

- `concurrent.futures.wait`, where the product waits for several futures: in virtual time.
- `Session.propose`: tells the simulation which change a command proposes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

from metasync.consensus import Change, Decided, State
from metasync.sync.session import Session
from metasync.testing.simulation import runtime

_WAITING = ("metasync.store.contents", "metasync.sync.upload", "metasync.sync.check")


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Everything in place; as it was, afterwards. Not for two threads at once."""
    with contextlib.ExitStack() as stack:
        for module in _WAITING:
            stack.enter_context(mock.patch(f"{module}.wait", runtime.wait))
        stack.enter_context(mock.patch.object(Session, "propose", _proposed(Session.propose)))
        yield


def _proposed(propose: Any) -> Any:
    @functools.wraps(propose)
    def wrapped(self: Session, base: State, change: Change) -> Decided:
        noted: list[bytes] = self.runtime._boot.proposed  # type: ignore[attr-defined]
        if change.op_id not in noted:
            noted.append(change.op_id)
        return propose(self, base, change)  # type: ignore[no-any-return]

    return wrapped
