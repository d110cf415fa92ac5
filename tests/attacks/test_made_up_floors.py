"""Floors and hints of a history that one device made up (consensus.md, rule 1.11): nothing behind them was deleted.

They stand on all backends, and are as old as the device likes. The logs of the block's first versions are there, so
they count for nothing.
"""

from __future__ import annotations

import pytest
from test_other_histories import SIZES, invented, liar_of, told
from test_votes import Place

from metasync.consensus import State
from metasync.consensus.participant import Word
from metasync.consensus.records import entry as entries
from metasync.consensus.records.entry import Kind
from metasync.errors import NoQuorumError


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floors at multiples of 8 in place of 1024."""
    monkeypatch.setattr(entries, "VERSIONS_PER_FOLDER", 8)


def floored(n: int, f: int) -> tuple[Place, State]:
    """A device has made up nine versions on top of the newest, which has no vote for the first of them, and tells of
    them. -> what is newest."""
    p = Place(n, f)
    y = p.push(p.honest, p.x, b"y")
    lies = invented(p, y, 9, [p.ws.genesis, p.x])
    p.forger.tell(y, "a", Kind.PREPARE, p.forger.round(1))  # so that the way back can be walked
    told(p, liar_of(p), lies[-2], lies[-1])
    return p, y


@pytest.mark.few(2)
@SIZES
@pytest.mark.parametrize("known", [0, 1, 2], ids=["from the genesis", "one behind", "at the newest"])
def test_floors_and_hints_of_a_made_up_history_lead_nobody_astray(n: int, f: int, known: int) -> None:
    """With each of the backends away, and with none."""
    p, y = floored(n, f)
    for number, away in enumerate((*p.names, "")):
        p.world.down = {away} - {""}
        sleeper = p.group(3 + number, 1)
        try:
            assert p.world.do(sleeper.get_recent((p.ws.genesis, p.x, y)[known]), {}) == y, f"{away} was away"
        except NoQuorumError:  # where one may lie, all must tell
            assert f and away
            continue
        assert sleeper.evidence == ()
        told_of = sleeper.take_void_values()
        assert {device for device, _ in told_of} == {liar_of(p).device_id}
        assert all("the backends do not bear out" in why and isinstance(why, Word) for why in told_of.values())


def test_who_goes_on_there_pushes_as_ever() -> None:
    """A device that looks first, and the owner of the newest version, who does not."""
    p, y = floored(3, 0)
    reader = p.group(5, 1)
    assert p.world.do(reader.get_recent(y), {}) == y
    z = p.push(reader, y, b"z")
    assert p.world.do(p.group(6, 0).get_recent(p.ws.genesis), {}) == z
    with pytest.raises(NoQuorumError, match="was not agreed yet"):
        p.world.do(p.group(7, 1).propose(z, lambda: pytest.fail("asked for a change")), {})


def test_a_floor_on_one_backend_stops_nobody() -> None:
    """Its log of the first version is gone as well, by the same device: the others have theirs."""
    p, y = floored(3, 0)
    for name in "ab":
        p.world.stores[name] = type(p.world.stores[name])(
            {path: data for path, data in p.world.stores[name].items() if "/floor/" not in path}
        )
    for path in [path for path in p.world.stores["c"] if "/px/0/" in path]:
        del p.world.stores["c"][path]
    for known in (p.ws.genesis, p.x, y):
        assert p.world.do(p.group(5, 1).get_recent(known), {}) == y
