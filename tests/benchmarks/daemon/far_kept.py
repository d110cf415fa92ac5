"""For real daemons: three S3 servers as stores, 80 ms away on lines of 5 MB/s, counted at the proxy between.

All devices share the lines here: with lines of their own they would be no slower.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import far
from shaping import Shape

SHAPE = Shape(far.ROUND_TRIP_S, 5e6, 5e6)
QUIET_S = 5.0  # the batch time of a change that comes alone


@contextmanager
def stores(folder: Path) -> Iterator[tuple[far.Far, list[str]]]:
    """The services, and the URLs of a workspace on them; the keys are in the environment."""
    with far.running(dict.fromkeys(("one", "two", "three"), SHAPE), folder) as found:
        os.environ.update(found.keys)
        yield found, found.urls("kept")


def wire_bytes(found: far.Far) -> int:
    """What went through the proxy so far, both ways."""
    return sum(one.up_bytes + one.down_bytes for one in found.proxy.counted())
