"""`make bench-chunks` on small documents: what it tells adds up."""

from __future__ import annotations

import random
from itertools import islice

import chunks
import pytest


@pytest.mark.parametrize("kind", chunks.KINDS)
def test_an_edit_stores_less_by_deltas_and_by_finer_chunks_longer_lists(kind):
    versions = list(islice(kind(random.Random(1), 400_000), 4))
    assert len(set(versions)) == 4
    told = [chunks.measured(versions, sizes) for sizes in (chunks.SIZES[0], chunks.SIZES[-1])]
    for first, whole, deltas, lists in told:
        assert 0 < deltas <= whole < 2 * first
        assert lists >= chunks.LISTED_BYTES
    assert told[0][3] > told[1][3]
