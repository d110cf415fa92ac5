"""What was read long ago is read again before it counts (consensus.md, rule 4.3)."""

from __future__ import annotations

from forger_kit import Forger
from paxos_world import World, change, make_workspace

from metasync.consensus.records.entry import Kind, Round
from metasync.runtime.effects import Now, Sleep, Task


def test_one_entry_read_today_makes_a_log_of_forty_days_ago_no_fresher() -> None:
    """A process read a vote, slept, and meets one more entry where it appends. What lies behind it is unread."""
    world = World(3, ["a", "b", "c"])
    ws = make_workspace(world)
    world.do(ws.group(b"1" * 16).propose(ws.genesis, lambda: change(b"1" * 16)))
    world.run()
    sleeper = ws.group(b"2" * 16, 1)
    view = world.do(sleeper.enter(ws.genesis)).acceptors[ws.acceptor_of("a")]
    world.do(view.look())
    assert view.counts()
    other = Forger(world, ws, 2)
    for n in (7, 8):
        other.tell(ws.genesis, "a", Kind.PREPARE, other.round(n))

    def wakes() -> Task:
        yield Sleep(40 * 86_400)
        sleeper.participant.now = yield Now()
        return (yield from view.append(Kind.PREPARE, Round(5, b"2" * 16), None, Round(5, b"2" * 16)))

    assert world.do(wakes()).kind == "rejected"
    assert view.log.promised == other.round(7), "it has read no further"
    assert not view.is_fresh()
    world.do(view.look())
    assert view.counts()
