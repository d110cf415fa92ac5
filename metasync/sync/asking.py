"""One call on each of several backends, side by side."""

from __future__ import annotations

from collections.abc import Mapping

from metasync.errors import BackendError
from metasync.runtime.effects import Gather, Op, Task


def each(ops: Mapping[str, Op]) -> Task:
    """All ops side by side; their replies by key."""
    return all_of({key: _one(op) for key, op in ops.items()})


def all_of(tasks: Mapping[str, Task]) -> Task:
    """All tasks side by side; their results by key."""
    return (yield Gather(tasks))


def _one(op: Op) -> Task:
    return (yield op)


def named(backend: str, error: BackendError) -> BackendError:
    """The same error, saying on which backend."""
    out = type(error)(f"{backend}: {error.message}")
    out.next_step = error.next_step
    return out
