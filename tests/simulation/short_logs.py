"""The one thing that a simulation exchanges in the product: how many versions lie between two floors.

A floor stands at every 1,024th version and logs are kept for 10,000: numbers of the format, and of one module each. A
seed has some dozens of versions, so a plan with floors has them at every fourth, and keeps the logs of six.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final
from unittest import mock

from metasync.consensus import chain, truncation
from metasync.consensus.records import entry
from metasync.session import agreement

STEP: Final = 4  # versions between floors, in place of 1,024
KEEP: Final = 6  # newest versions whose logs stay, in place of 10,000


@contextlib.contextmanager
def short_logs() -> Iterator[None]:
    """Floors come after few versions, and logs go soon; as it was, afterwards. Not for two threads at once."""
    places = (
        (entry, "VERSIONS_PER_FOLDER", STEP),
        (chain, "VERSIONS_PER_FOLDER", STEP),
        (truncation, "STEP", STEP),
        (truncation, "BEHIND_LEAST", STEP),
        (agreement, "LOGS_KEPT", KEEP),
    )
    with contextlib.ExitStack() as stack:
        for module, name, value in places:
            stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(mock.patch.dict(truncation.bound_logs.__kwdefaults__, keep=KEEP))
        yield
