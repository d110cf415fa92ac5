"""What one valid device can still do to the others: it stops them, or leads them apart, until somebody mends it.

Each test says what must hold and does not (docs/design/threat-model.md, the insider). Whoever mends one takes its mark
away, and changes the sentence there.
"""

from __future__ import annotations

import pytest
from test_other_histories import SIZES, invented, liar_of, told
from test_votes import Place

from metasync.consensus.records import entry as entries
from metasync.consensus.records.entry import Kind


@SIZES
@pytest.mark.parametrize("known", [0, 1, 2], ids=["from the genesis", "one behind", "at the newest"])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="a floor counts though the logs below it are there")
def test_floors_and_hints_of_a_made_up_history_lead_nobody_astray(
    n: int, f: int, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device puts them on all backends. The history that they tell of goes on from the newest version, and has no
    votes for its first; no log was deleted."""
    monkeypatch.setattr(entries, "VERSIONS_PER_FOLDER", 8)
    p = Place(n, f)
    y = p.push(p.honest, p.x, b"y")
    lies = invented(p, y, 9, [p.ws.genesis, p.x])
    p.forger.tell(y, "a", Kind.PREPARE, p.forger.round(1))  # so that the way back can be walked
    told(p, liar_of(p), lies[-2], lies[-1])
    sleeper = p.group(3, 1)
    assert p.world.do(sleeper.get_recent((p.ws.genesis, p.x, y)[known]), {}) == y
