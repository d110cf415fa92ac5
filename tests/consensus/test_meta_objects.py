"""Meta objects and heads: where they are put, and who is waited for. Index segments are stored with their root."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from learn_kit import NAMES, forget_requests, group_of, push, push_while, stored
from paxos_world import Workspace, World

from metasync.consensus import NOTHING, Ref
from metasync.consensus.objects import meta_path
from metasync.consensus.reconfigure import give_state
from metasync.consensus.records.entry import entry_path
from metasync.errors import DamagedError, NoQuorumError, WorkspaceError


def test_meta_objects_are_put_and_got(world: World, ws: Workspace) -> None:
    group = group_of(ws, 1)
    ref = stored(world, group, ws.genesis, b"index" * 1000, 7)
    assert ref.generation == 7
    world.run()
    assert all(meta_path(ws.acceptor_of(n), ref) in world.stores[n] for n in NAMES)
    assert world.do(group.get_meta(ref)) == b"index" * 1000
    assert world.do(group.get_meta(NOTHING)) == b""
    for name in ("a", "b"):
        world.stores[name][meta_path(ws.acceptor_of(name), ref)] = b"altered"
    assert world.do(group_of(ws, 2, 1).get_meta(ref)) == b"index" * 1000
    del world.stores["c"][meta_path(ws.acceptor_of("c"), ref)]
    with pytest.raises(DamagedError, match="altered"):
        world.do(group.get_meta(ref))
    world.down.add("c")
    with pytest.raises(NoQuorumError):
        world.do(group.get_meta(Ref(7, b"z" * 32)))


def test_meta_objects_wait_for_enough_and_not_for_the_stuck(world: World, ws: Workspace) -> None:
    group = group_of(ws, 1)
    world.stuck.add("a")
    before = world.now
    ref = stored(world, group, ws.genesis, b"x", 0)
    assert world.now - before < 2
    before = world.now
    assert world.do(group.get_meta(ref)) == b"x"
    assert world.now - before < 4
    world.down |= {"b", "c"}
    with pytest.raises(NoQuorumError, match=r"1 of 2|0 of 2"):
        stored(world, group, ws.genesis, b"y", 0)


def test_states_get_objects_of_their_own(world: World, ws: Workspace) -> None:
    latest = push(world, ws, group_of(ws, 1), ws.genesis, 4)
    group = group_of(ws, 1)
    second = world.do(group.state_at(latest, 2))
    config = group.participant.configs[ws.genesis.config]
    world.do(give_state(group.participant, group.participant.links, config, [], second))
    for name in NAMES:
        for v in (3, 4):
            world.stores[name].pop(entry_path(ws.keys, 1, 0, ws.acceptor_of(name), v, 0), None)
    third = world.do(group.state_at(latest, 3))
    assert world.do(group_of(ws, 2, 1).state_at(third, 2)) == second


def test_heads_are_written_everywhere_and_the_newest_is_read(world: World, ws: Workspace) -> None:
    group = group_of(ws, 1)
    state = push_while(world, group, ws.genesis)
    assert world.do(group.write_head(ws.genesis, head=b"1" * 32, prev=b"0" * 32, backends=NAMES)) >= 2
    world.run()
    world.down.add("a")
    assert world.do(group.write_head(state, head=b"2" * 32, prev=b"1" * 32, backends=NAMES)) >= 2
    world.down.clear()
    mine = ws.identities[0].device_id
    reader = group_of(ws, 2, 1)
    head = world.do(reader.read_head(state, mine, NAMES))
    assert (head.v, head.head, head.prev, head.state_hash) == (1, b"2" * 32, b"1" * 32, state.hash)
    assert world.do(reader.read_head(state, ws.identities[1].device_id, NAMES)) is None
    other = f"devices/{ws.identities[1].device_id.hex()}"
    world.stores["a"][other] = world.stores["b"][f"devices/{mine.hex()}"]
    assert world.do(reader.read_head(state, ws.identities[1].device_id, NAMES)) is None


class Leaves:
    """Plaintexts; notes what lay on the backends when each was asked for."""

    def __init__(self, world: World, texts: list[bytes]) -> None:
        self.world = world
        self.texts = texts
        self.seen: list[list[int]] = []

    def here(self) -> list[int]:
        return [sum("/meta/" in path for path in store) for store in self.world.stores.values()]

    def __iter__(self) -> Iterator[Callable[[], bytes]]:
        return (partial(self.get, n) for n in range(len(self.texts)))

    def get(self, n: int) -> bytes:
        self.seen.append(self.here())
        return self.texts[n]


def put_leaves(ws: Workspace, leaves: Leaves) -> tuple[list[Ref], bytes]:
    made = b"".join
    group = ws.group(b"w" * 16)
    put = group.put_index(ws.genesis, leaves, lambda refs: made(ref.hash for ref in refs), generation=0)
    return leaves.world.do(put)  # type: ignore[no-any-return]


def test_small_segments_and_their_root_are_stored_side_by_side(world: World, ws: Workspace) -> None:
    leaves = Leaves(world, [b"a" * 5000, b"b" * 5000, b"c"])
    forget_requests(world)
    before = leaves.here()
    refs, root = put_leaves(ws, leaves)
    assert leaves.seen == [before] * 3, "all are made before anything is stored"
    assert root == b"".join(ref.hash for ref in refs[:-1])
    world.run()
    assert {name: len(requests) for name, requests in world.requests.items()} == dict.fromkeys(NAMES, 4)


def test_large_segments_are_stored_before_the_next_is_made(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasync.consensus.group.META_BYTES_TOGETHER", 8000)
    texts = [b"a" * 9000, b"b" * 5000, b"c" * 5000, b"d" * 100]
    leaves = Leaves(world, texts)
    before = leaves.here()
    refs, root = put_leaves(ws, leaves)
    copies = [sum(seen) - sum(before) for seen in leaves.seen]
    enough = ws.config.meta_copies
    assert copies[0] == 0
    assert copies[1] >= enough, "the first is large: it is stored before the second is made"
    assert copies[2] - copies[1] <= len(NAMES) - enough, (
        "the second is not, and goes with the third; the first may land"
    )
    assert copies[3] >= 3 * enough
    world.run()
    assert leaves.here() == [n + 5 for n in before]
    stored = [world.do(ws.group(b"r" * 16).get_meta(ref)) for ref in refs]
    assert stored == [*texts, root]


def test_what_cannot_be_stored_ends_it_before_a_root_is_made(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasync.consensus.group.META_BYTES_TOGETHER", 8000)
    leaves = Leaves(world, [b"a" * 9000, b"b" * 9000, b"c" * 9000])
    rooted: list[int] = []
    world.down.update(NAMES[1:])
    put = ws.group(b"w" * 16).put_index(ws.genesis, leaves, lambda refs: b"%d" % rooted.append(1), generation=0)
    with pytest.raises(NoQuorumError, match="a meta object"):
        world.do(put)
    assert (len(leaves.seen), rooted) == (1, [])


def test_a_segment_that_cannot_be_read_ends_it(world: World, ws: Workspace) -> None:
    def broken() -> bytes:
        raise WorkspaceError("gone", next_step="-")

    put = ws.group(b"w" * 16).put_index(ws.genesis, [broken], lambda refs: b"root", generation=0)
    with pytest.raises(WorkspaceError, match="gone"):
        world.do(put)
