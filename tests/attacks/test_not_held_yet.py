"""What one valid device can still do to the others: it stops them, until somebody mends it.

Each test says what must hold and does not (docs/design/threat-model.md, the insider). Whoever mends one takes its mark
away, and changes the sentence there.
"""

from __future__ import annotations

import pytest
from test_votes import Place

from metasync.consensus.records.entry import Kind
from metasync.consensus.records.state import step_versions


@pytest.mark.parametrize(("n", "f"), [(3, 0), (4, 1)])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="a jump looks at where it begins and where it ends")
def test_a_history_that_one_device_voted_for_alone_leads_no_sleeper_astray(n: int, f: int) -> None:
    """A device makes up versions on top of the newest one, with all votes but for the first of them. Who knows the
    newest stays there, and who comes from further back jumps over the place where the votes are missing."""
    p = Place(n, f)
    y = p.push(p.honest, p.x, b"y")
    chain = [p.ws.genesis, p.x, y, p.forger.lie(y)]
    while len(chain) < 12:
        last, v = chain[-1], len(chain)
        chain.append(p.forger.lie(last, bytes([v, *b"lie"]), skip=chain[v & (v - 1)].hash))
        p.forger.tell(last, p.names, Kind.PREPARE, p.forger.round(1))
        steps = [chain[u] for u in step_versions(v)]
        p.forger.tell(last, p.names, Kind.ACCEPT, p.forger.round(1), chain[-1], steps=steps)
    for known in (y, p.x, p.ws.genesis):
        assert p.world.do(p.group(3, 1).get_recent(known), {}) == y, f"from version {known.v}"
