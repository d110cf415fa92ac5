"""A device writes rubbish in the place of the index root that rides in log entries (consensus.md, rule 1.14).

What is not the root that the state names is no vote, so no version comes of it. What is, and says what nobody can read,
is a version that cannot be read: it is told whose it is, and skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from attack_kit import Insider, insider
from test_unreadable_version import EMPTY, _put
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.consensus import JOURNAL_KEY, ZERO_HASH, Change, Ref, State
from metasync.consensus.records.entry import RANDOM_BYTES, RIDING_BYTES_MAX, ROOT_TAG, Round, entry_path, seal_entry
from metasync.consensus.records.entry import Entry as LogEntry
from metasync.consensus.records.entry import Kind as LogKind
from metasync.consensus.records.state import hint_is_due, skip_after, successor
from metasync.errors import UnreadableError, UpgradeError
from metasync.keys.derive import sha256
from metasync.session import agreement
from metasync.session.folder import BASE_KEY
from metasync.store import index as pack_index
from metasync.store.index import INLINE_TAG, IndexRoot, RootItem, encode_root, encode_segment, make_segment, root_after
from metasync.store.index_root import ROOTS_MAX
from metasync.workspace import Workspace

STORES = ("a", "b", "c")


def _inside(m: Insider, data: bytes, **changes: Any) -> RootItem:
    """A row of a segment that stands in the root."""
    ref = pack_index.Ref(m.base.state.gen, sha256(data))
    return RootItem(ref, len(data), 0, 0, ((INLINE_TAG, data),))._replace(**changes)


def _root(m: Insider, *items: RootItem, after: Ref | None = None) -> bytes:
    """A root as a push makes one: it goes on from that of its base."""
    return encode_root(root_after(pack_index.Ref(*(after or m.base.state.index)), items))


def _good(m: Insider) -> bytes:
    return _root(m, _inside(m, EMPTY))


# ---- what is not the root that the state names


@dataclass
class Vote:
    """What stands in each log as a vote for a version of this device: its value, and the tags of its entry."""

    m: Insider
    root: bytes

    def __post_init__(self) -> None:
        s, base = self.m.s, self.m.base.state
        ref, riding = s.runtime.run(s.group.name_root(base, self.root, generation=base.gen))
        self.riding: bytes = riding
        change = Change(s.entropy(16), index=ref, index_rides=True)
        self.value: State = successor(base, change, skip=skip_after(base), writer=s.device.device_id)
        self.tags: Any = ((ROOT_TAG, riding),)

    def carry(self, riding: bytes) -> None:
        self.tags = ((ROOT_TAG, riding),)

    def cast(self, lab: Lab) -> None:
        """Promises a round, and votes in it, in every log."""
        s, base = self.m.s, self.m.base.state
        rnd, v = Round(1, b"\x66" * 16), base.v + 1
        for backend, acceptor in s.config.acceptors:
            a, last = acceptor.acceptor_id, ZERO_HASH
            folder = next(lab.store(backend.name).rglob(a.hex())).parent
            for idx, kind in enumerate((LogKind.PREPARE, LogKind.ACCEPT)):
                entry = LogEntry(
                    acceptor_id=a, v=v, idx=idx, prev_entry=last, base=base, kind=kind, round=rnd, value=None,
                    entry_id=bytes([idx]) * 16, device_id=s.device.device_id,
                )  # fmt: skip
                if kind is LogKind.ACCEPT:
                    entry = replace(entry, value=self.value, tags=self.tags)
                data = seal_entry(s.keys, entry, s.device.sign_private, bytes([idx + 1]) * 32)
                last = sha256(data)
                place = folder / entry_path(s.keys, base.epoch, base.era, a, v, idx)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)


def _nothing(vote: Vote) -> None:
    vote.tags = ()


def _another_tag(vote: Vote) -> None:
    vote.tags = ((ROOT_TAG + 1, vote.riding),)


def _empty(vote: Vote) -> None:
    vote.carry(b"")


def _random_alone(vote: Vote) -> None:
    """Of the right object, but for the root."""
    vote.carry(vote.riding[:RANDOM_BYTES])


def _cut(vote: Vote) -> None:
    vote.carry(vote.riding[:-1])


def _cut_within_the_random_bytes(vote: Vote) -> None:
    vote.carry(vote.riding[: RANDOM_BYTES - 1])


def _longer(vote: Vote) -> None:
    vote.carry(vote.riding + b"\0")


def _of_another_hash(vote: Vote) -> None:
    vote.carry(
        vote.riding[:RANDOM_BYTES] + _root(vote.m, _inside(vote.m, encode_segment(make_segment((), {(1, b"p" * 32)}))))
    )


def _with_other_random_bytes(vote: Vote) -> None:
    vote.carry(bytes(RANDOM_BYTES) + vote.riding[RANDOM_BYTES:])


def _of_the_base(vote: Vote) -> None:
    """The root that the base names, in the place of that of the value."""
    vote.carry(bytes(RANDOM_BYTES) + encode_root(vote.m.base.root))


def _too_large(vote: Vote) -> None:
    """It is the root that the state names, and one byte longer than one may be."""
    Vote.__init__(vote, vote.m, b"\1" * (RIDING_BYTES_MAX + 1))


FALSE = (
    _nothing, _another_tag, _empty, _random_alone, _cut, _cut_within_the_random_bytes, _longer, _of_another_hash,
    _with_other_random_bytes, _of_the_base, _too_large,
)  # fmt: skip


def state_of(w: Workspace) -> State:
    state: State = w._db.need(BASE_KEY)
    return state


@pytest.fixture
def pair(lab: Lab) -> tuple[Workspace, Workspace]:
    """Two devices at version 2; the second one is the attacker's."""
    victim = lab.init(lab.urls(*STORES))
    write(victim.directory, {"kept": b"of the victim", "d/f": b"one"})
    victim.push("first")
    mallory = lab.clone(lab.urls(*STORES), device="mallory")
    victim.pull()
    return victim, mallory


def test_a_vote_with_the_root_that_its_state_names_counts(pair: tuple[Workspace, Workspace], lab: Lab) -> None:
    """What the next test writes is no vote by its root alone."""
    victim, mallory = pair
    with insider(mallory) as m:
        vote = Vote(m, _good(m))
        vote.cast(lab)
    victim.pull()
    assert state_of(victim) == vote.value
    assert state_of(victim).index_rides
    write(victim.directory, {"mine": b"m"})
    assert victim.push().version == vote.value.v + 1


@pytest.mark.few(4)
@pytest.mark.parametrize("lie", FALSE)
def test_a_vote_without_the_root_that_its_state_names_is_none(
    pair: tuple[Workspace, Workspace], lab: Lab, lie: Callable[[Vote], None]
) -> None:
    """In every log stands a vote for the next version, and nobody takes it for one, nor is anybody stopped by it."""
    victim, mallory = pair
    with insider(mallory) as m:
        vote = Vote(m, _good(m))
        lie(vote)
        vote.cast(lab)
    before = state_of(victim)
    assert victim.pull().version == before.v
    assert state_of(victim) == before
    third = lab.clone(lab.urls(*STORES), device="third")  # its entry into the workspace is that version
    assert state_of(third).v == vote.value.v
    assert state_of(third).index == before.index
    write(victim.directory, {"mine": b"m"})
    assert victim.push().version == vote.value.v + 1
    third.pull()
    assert tree_of(third.directory) == tree_of(victim.directory)
    assert victim.check().problems == ()


@pytest.mark.few(1)
@pytest.mark.parametrize("lie", [_cut, _too_large])
def test_a_push_goes_past_votes_that_are_none(
    pair: tuple[Workspace, Workspace], lab: Lab, lie: Callable[[Vote], None]
) -> None:
    victim, mallory = pair
    with insider(mallory) as m:
        vote = Vote(m, _good(m))
        lie(vote)
        vote.cast(lab)
    write(victim.directory, {"mine": b"m"})
    assert victim.push().version == vote.value.v
    mallory.pull()
    assert tree_of(mallory.directory) == tree_of(victim.directory)


# ---- the root that the state names, which nobody can read


NOWHERE = Ref(1, b"\x77" * 32)
FAR_BACK = 2 * ROOTS_MAX


def _garbage(m: Insider) -> bytes:
    return b"\1\0\0\0\7"


def _largest(m: Insider) -> bytes:
    return b"\1" * RIDING_BYTES_MAX


def _one_byte(m: Insider) -> bytes:
    return b"\1"


def _newer(m: Insider) -> bytes:
    return b"\2" + _good(m)[1:]


def _more(m: Insider) -> bytes:
    """Bytes behind the root."""
    return _good(m) + b"\0"


def _segments_that_nobody_has(m: Insider) -> bytes:
    return _root(m, RootItem(pack_index.Ref(*NOWHERE), 100, 1, 1))


def _a_root_that_nobody_has(m: Insider) -> bytes:
    return _root(m, _inside(m, EMPTY), after=NOWHERE)


def _a_root_too_far_back(m: Insider) -> bytes:
    """It goes on from objects that go on from one another, more than a reader goes through."""
    at = m.base.state.index
    for _ in range(ROOTS_MAX):
        at = _put(m, _root(m, after=at))
    return _root(m, _inside(m, EMPTY), after=at)


def _garbage_that_it_goes_on_from(m: Insider) -> bytes:
    return _root(m, after=_put(m, b"\1garbage"))


def _a_name_that_is_none(m: Insider) -> bytes:
    return encode_root(IndexRoot((), ((pack_index.AFTER_TAG, b"short"),)))


def _a_garbage_segment(m: Insider) -> bytes:
    return _root(m, _inside(m, b"\1garbage"))


def _a_segment_of_another_size(m: Insider) -> bytes:
    return _root(m, _inside(m, EMPTY, size=len(EMPTY) + 1))


def _a_segment_of_more_objects(m: Insider) -> bytes:
    return _root(m, _inside(m, EMPTY, objects=1 << 63))


def _a_segment_of_another_name(m: Insider) -> bytes:
    return _root(m, _inside(m, EMPTY, ref=pack_index.Ref(*NOWHERE)))


def _a_segment_twice(m: Insider) -> bytes:
    item = RootItem(pack_index.Ref(*_put(m, EMPTY)), len(EMPTY), 0, 0)
    return _root(m, item, item)


UNREADABLE = (
    _garbage, _largest, _one_byte, _newer, _more, _segments_that_nobody_has, _a_root_that_nobody_has,
    _a_root_too_far_back, _garbage_that_it_goes_on_from, _a_name_that_is_none, _a_garbage_segment,
    _a_segment_of_another_size, _a_segment_of_more_objects, _a_segment_of_another_name, _a_segment_twice,
)  # fmt: skip


def _ride(m: Insider, root: bytes) -> int:
    """Has a version agreed whose entries carry these bytes as its index; -> its number."""
    s, base = m.s, m.base.state
    ref, riding = s.runtime.run(s.group.name_root(base, root, generation=base.gen))
    decided = agreement.propose(s, base, Change(s.entropy(16), index=ref, index_rides=True, riding=riding))
    s.db.set(JOURNAL_KEY, None)
    assert decided.mine
    return decided.state.v


@pytest.mark.few(4)
@pytest.mark.parametrize("way", UNREADABLE)
@pytest.mark.parametrize("good_rides", [False, True])
def test_a_version_whose_index_rides_and_cannot_be_read_has_a_way_past_it(
    lab: Lab, way: Callable[[Insider], bytes], good_rides: bool
) -> None:
    """It is told which version it is and whose, and a skip passes over it; `good_rides`: to one whose index rides, too,
    and is in no object yet."""
    urls = lab.urls("a", kind="memory")
    victim = lab.init(urls)
    write(victim.directory, {"kept": b"of the victim", "d/f": b"one"})
    victim.push("first")
    mallory = lab.clone(urls, device="mallory")
    while good_rides and not (state_of(victim).index_rides and not hint_is_due(state_of(victim).v + 1)):
        write(victim.directory, {"d/f": b"%d" % state_of(victim).v})
        victim.push()
    with insider(mallory) as m:
        assert m.base.state.index_rides is good_rides
        bad = _ride(m, way(m))
    write(victim.directory, {"mine": b"m", "kept": b"edited"})
    before = tree_of(victim.directory)
    for operation in (victim.pull, victim.push, lambda: lab.clone(urls, device="third")):
        with pytest.raises((UnreadableError, UpgradeError)) as raised:
            operation()
        assert f"version {bad}, which mallory wrote, cannot be read" in raised.value.message
        assert f"`metasync skip {bad}`" in raised.value.next_step
        assert raised.value.version == bad
    assert tree_of(victim.directory) == before
    assert victim.skip(bad, PASSPHRASE).skipped == (bad,)
    pulled = victim.pull()
    assert (pulled.conflicts, pulled.changes.deleted) == ((), ())
    assert tree_of(victim.directory) == before
    assert victim.push().changes.added == (b"mine",)
    fourth = lab.clone(urls, device="fourth")
    assert tree_of(fourth.directory) == tree_of(victim.directory)
    assert victim.check().problems == ()
