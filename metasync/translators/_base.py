"""The translator contract and the chain: `put` runs in order, `get` in reverse (MetaSync paper, section 3.5).

A chain works on segments, the parts of a pack that can be fetched alone. Third parties join by the entry-point group
`metasync.translators`; the agreed config names the chain, so every device builds the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias

from metasync.errors import FormatError

Buffer: TypeAlias = bytes | memoryview
"""Bytes on their way back: a view where that saves a copy, and with it the page faults of megabytes at a time."""


class IntegrityError(FormatError):
    """Stored bytes are not the ones that were stored: corrupted, cut short, or swapped."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a translator may know about the segment at hand. All but `digest` are the same on put and get.

    key        32 bytes, of this pack alone; entropy for it was drawn by the caller
    number     counts the segments of the pack; padding, footer and trailer have numbers of their own
    binding    what the sealed bytes belong to: workspace, epoch, kind of record, the pack's header
    raw_bytes  an upper bound of the translated-back size: nothing larger is ever built
    level      the compression level (put only)
    digest     SHA-256 of the stored bytes, where the caller does not yet know them to be right; None where it does
    encrypted  False in a workspace made with `--no-encryption`
    """

    key: bytes = field(repr=False)
    number: int
    binding: bytes
    raw_bytes: int
    level: int = 3
    digest: bytes | None = None
    encrypted: bool = True


class Translator(Protocol):
    """One step. Pure and stateless: the same bytes and context give the same result, from any thread."""

    name: ClassVar[str]
    keyed: ClassVar[bool]
    """Uses `key`, `number` or `binding`: then it, and all after it, run when the pack is sealed, not before."""
    # And `conceals: ClassVar[bool] = True` where, in an encrypted workspace, nobody reads what it gives without `key`.

    def put(self, data: bytes, context: Context) -> bytes:
        """Translates on the way to a backend."""
        ...

    def get(self, data: Buffer, context: Context) -> Buffer:
        """Undoes `put`; `FormatError` (or `IntegrityError`) when that cannot be done."""
        ...


class Chain:
    """Translators in the order of `put`, in two stretches: what shrinks a segment, and what seals it.

    The first can run before it is known which pack a segment falls into, which depends on its shrunken size; padding
    and trailer of a pack are sealed but not shrunk.
    """

    def __init__(self, steps: Sequence[Translator]) -> None:
        self.names = tuple(step.name for step in steps)
        first_keyed = next((i for i, step in enumerate(steps) if step.keyed), len(steps))
        self.conceals = any(getattr(step, "conceals", False) for step in steps)
        self._shrink = tuple(steps[:first_keyed])
        self._seal = tuple(steps[first_keyed:])

    def shrink(self, data: bytes, context: Context) -> bytes:
        for step in self._shrink:
            data = step.put(data, context)
        return data

    def seal(self, data: bytes, context: Context) -> bytes:
        for step in self._seal:
            data = step.put(data, context)
        return data

    def open(self, data: Buffer, context: Context) -> Buffer:
        """Undoes `seal`."""
        for step in reversed(self._seal):
            data = step.get(data, context)
        return data

    def get(self, data: Buffer, context: Context) -> Buffer:
        """Undoes `seal` and `shrink`."""
        data = self.open(data, context)
        for step in reversed(self._shrink):
            data = step.get(data, context)
        return data
