"""What one valid device can still do to the others: it stops them, until somebody mends it.

Each test says what must hold and does not (docs/design/threat-model.md, the insider). Whoever mends one takes its mark
away, and changes the sentence there.
"""

from __future__ import annotations

import pytest
from test_votes import Place

from metasync.consensus.records.entry import Kind
from metasync.errors import ForkError


@pytest.mark.parametrize(("n", "f", "on"), [(3, 0, 1), (4, 1, 2)])
@pytest.mark.xfail(strict=True, raises=ForkError, reason="an entry on another state is taken for a fork")
def test_an_entry_on_a_state_that_never_was_stops_nobody(n: int, f: int, on: int) -> None:
    """A device signs the first entry of the next version on a state of its own making, on one backend or two."""
    p = Place(n, f)
    p.forger.tell(p.forger.lie(p.ws.genesis), p.names[:on], Kind.PREPARE, p.forger.round(1))
    assert p.world.do(p.group(3, 1).get_recent(p.ws.genesis), {}) == p.x


@pytest.mark.xfail(strict=True, raises=ForkError, reason="logs of versions before a revocation stay open to it")
def test_a_revoked_device_stops_nobody_who_was_away() -> None:
    """It appends to an agreed version, whose device set admits it, an entry on a state of its own making."""
    p = Place()
    y = p.push(p.honest, p.x, b"y")
    p.forger.tell(p.forger.lie(p.ws.genesis), p.names, Kind.PREPARE, p.forger.round(9))
    assert p.world.do(p.group(5, 1).get_recent(p.x), {}) == y
