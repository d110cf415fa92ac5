"""What a simulation with deltas exchanges in the product: from which size on chunks are kept and stored as deltas.

The files of a seed have some hundred bytes, and the product takes no delta below some thousand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from metasync.objects import delta
from metasync.sync import fetch, old_chunks, replaced_chunks


@contextlib.contextmanager
def small_deltas() -> Iterator[None]:
    """Every chunk may be a delta that saves a byte; as it was, afterwards. Not for two threads at once."""
    places = (
        (replaced_chunks, "SMALL_BYTES_LEAST", 1),
        (old_chunks, "SMALL_BYTES_LEAST", 1),
        (fetch, "SMALL_BYTES_LEAST", 1),
        (delta, "GAIN_BYTES_LEAST", 1),
        (delta, "GAIN_SHARE", 1 << 20),
    )
    with contextlib.ExitStack() as stack:
        for module, name, value in places:
            stack.enter_context(mock.patch.object(module, name, value))
        yield
