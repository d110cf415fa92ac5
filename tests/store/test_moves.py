"""Which copies count while the backends change again and again: the rules of the model `Replicas`, on the real mapping.

Devices are asleep for any time: one that knows an old config copies a pack to where that wants it, and a deletion that
a trim allowed lands at any later time. At no moment may a pack be without a copy that nobody will ever delete.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count

import pytest
from effort import few_and_many

from metasync.config import NO_LIMIT, BackendEntry, Config, RedundancyClass, Replicate, Storage, decode_config
from metasync.errors import FormatError, UsageError
from metasync.store import moves
from metasync.store.index import PackRecord
from metasync.store.moves import Places
from metasync.store.placement import PARTITIONS, is_same_mapping, placement_of

NUMBERS = count(1)
PACKS = 24


def new_id(n: int = 16) -> bytes:
    return next(NUMBERS).to_bytes(n, "big")


def entry(weight: int, backend_id: bytes = b"") -> BackendEntry:
    backend_id = backend_id or new_id()
    return BackendEntry(backend_id, backend_id.hex(), "memory", weight, bytes(32), (store(),), None)


def store() -> Storage:
    return Storage(new_id(), new_id(32))


def config_of(entries: list[BackendEntry], copies: int = 2) -> Config:
    return Config((), redundancy=(RedundancyClass(NO_LIMIT, Replicate(copies)),)).with_backends(entries)


class World:
    """Everything that is stored, and everything that somebody may do to it at any later time."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.config = config_of([entry(rng.randrange(1, 9) << 30) for _ in range(3)])
        self.previous: Config | None = None
        self.known = [self.config]  # somebody may sleep with each of them
        self.names = [rng.randbytes(32) for _ in range(PACKS)]
        places = Places(self.config, None)
        self.copies = {(n, b, places.ids(b, n)[0]) for n in self.names for b in places.primary(n)}
        self.condemned: set[tuple[bytes, bytes, bytes]] = set()
        self.trims = self.merges = 0

    def take(self, config: Config, previous: Config | None) -> None:
        assert decode_config(config_with_vote(config)).tags == config.tags
        self.config, self.previous = config, previous
        self.known.append(config)

    def change(self) -> None:
        """Adds, removes or resizes a backend, or changes R."""
        rng, old, moving = self.rng, self.config, self.previous is not None
        if moving and not moves.may_merge(old):
            return
        backends, copies = list(old.backends), placement_of(old).copies
        match rng.randrange(4):
            case 0 if len(backends) < 6:
                backends.append(entry(rng.randrange(1, 9) << 30))
            case 1 if len(backends) > copies and len(backends) > 2:
                gone = rng.choice(backends)
                if any(not self._readable(n, but=gone.backend_id) for n in self.names):
                    return  # what is refused to a user: a pack has no copy elsewhere
                backends.remove(gone)
            case 2:
                at = rng.randrange(len(backends))
                backends[at] = replace(backends[at], capacity_bytes=rng.randrange(1, 9) << 30)
            case _:
                copies = rng.randrange(1, min(3, len(backends)) + 1)
        new = replace(old.with_backends(backends), redundancy=config_of([], copies).redundancy)
        if is_same_mapping(old, new):
            return
        gained = moves.fresh(old, new, self.previous)
        new = new.with_backends(
            [replace(b, storage=(*b.storage, store())) if b.backend_id in gained else b for b in new.backends]
        )
        self.merges += moving
        if moving:
            self.take(moves.merged(old, new), self.previous)
        else:
            self.take(replace(new, prev_config=bytes(32)), old)

    def trim(self) -> None:
        """Only when every displaced pack has all copies where they count; others are where they were."""
        if self.previous is None:
            return
        places = Places(self.config, self.previous)
        for n in self.names:
            if places.is_displaced(n) and not all(self._held(places, n, b) for b in places.primary(n)):
                return
        self.trims += 1
        self.take(moves.trimmed(self.config), None)
        places = Places(self.config, None)
        for n in self.names:
            for b in self.config.backends:
                for s in b.storage:
                    if places.is_surplus(b.backend_id, s.storage_id, PackRecord(n, 0, 1, b"", ())):
                        assert all(self._held(places, n, i) for i in places.primary(n))
                        self.condemned.add((n, b.backend_id, s.storage_id))

    def _held(self, places: Places, name: bytes, backend_id: bytes) -> bool:
        return any((name, backend_id, s) in self.copies for s in places.ids(backend_id, name))

    def copy(self) -> None:
        """Somebody who knows any config copies a pack to the newest id that this names, from any copy that is left."""
        config, name = self.rng.choice(self.known), self.rng.choice(self.names)
        backend_id = self.rng.choice(placement_of(config).primary(name))
        self.copies.add((name, backend_id, _newest(config)[backend_id]))

    def move(self) -> None:
        """Today's mover, for some packs."""
        places = Places(self.config, self.previous)
        for name in self.rng.sample(self.names, PACKS // 2):
            for b in places.primary(name):
                if not self._held(places, name, b):
                    self.copies.add((name, b, places.ids(b, name)[0]))

    def push(self) -> None:
        """Somebody who knows any config has stored a pack by it, and names it today if that is where it belongs."""
        base, name = self.rng.choice(self.known), self.rng.randbytes(32)
        self.copies |= {(name, b, _newest(base)[b]) for b in placement_of(base).primary(name)}
        if is_same_mapping(base, self.config) and _newest(base) == _newest(self.config):
            self.names = [*self.names[1:], name]

    def delete(self) -> None:
        self.copies -= set(self.rng.sample(sorted(self.condemned), min(len(self.condemned), 5)))

    def _readable(self, name: bytes, but: bytes = b"") -> bool:
        """Whether a reader of today finds a copy, on a backend other than `but`, that nobody will delete."""
        stores = {
            (b.backend_id, s.storage_id)
            for c in (self.previous, self.config)
            for b in (c.backends if c is not None else ())
            for s in b.storage
            if b.backend_id != but
        }
        return any((name, b, s) in self.copies and (name, b, s) not in self.condemned for b, s in stores)


def _newest(config: Config) -> dict[bytes, bytes]:
    return {b.backend_id: b.storage[-1].storage_id for b in config.backends}


def config_with_vote(config: Config) -> bytes:
    """Its bytes; a config without votes has none, and these tests need none."""
    from metasync.config import Acceptor

    first = replace(config.backends[0], acceptor=Acceptor(b"\xff" * 16, "log", bytes(32)))
    return config.with_backends([first, *config.backends[1:]]).encode()


@few_and_many("seeds", 8, 300)
def test_no_pack_is_ever_without_a_copy_that_nobody_will_delete(seeds: int) -> None:
    trims = merges = deleted = 0
    for seed in range(seeds):
        w = World(random.Random(seed))
        for _ in range(120):
            step = w.rng.choices([w.change, w.trim, w.copy, w.push, w.move, w.delete], [3, 4, 3, 2, 6, 3])[0]
            step()
            assert all(map(w._readable, w.names)), seed
        trims, merges, deleted = trims + w.trims, merges + w.merges, deleted + len(w.condemned - w.copies)
    assert trims > seeds
    assert merges > seeds
    assert deleted > seeds


@pytest.mark.parametrize("turn", ["back", "there"])
def test_a_copy_that_a_trim_gave_up_counts_never_again(turn: str) -> None:
    """A pack leaves a backend and comes back to it: the copy of its first stay may be deleted at any time."""
    one, other, third = (entry(1 << 30) for _ in range(3))
    names = [n.to_bytes(32, "big") for n in range(64)]
    config, old_ids = config_of([one, other], 1), {b.backend_id: b.storage[0].storage_id for b in (one, other)}
    for backends in ([one, other, third], [one, other]):
        kept = {b.backend_id: b for b in config.backends}
        new = config.with_backends([kept.get(b.backend_id, b) for b in backends])
        gained = moves.fresh(config, new)
        new = new.with_backends(
            [replace(b, storage=(*b.storage, store())) if b.backend_id in gained else b for b in new.backends]
        )
        config = moves.trimmed(new)
    places = Places(config, None)
    away = [n for n in names if placement_of(config_of([one, other, third], 1)).primary(n) == (third.backend_id,)]
    stayed = [n for n in names if n not in away]
    assert away
    for n in away if turn == "back" else stayed:
        (home,) = places.primary(n)
        assert (old_ids[home] in places.ids(home, n)) == (turn == "there")
        assert places.ids(home, n), "and there is a place where it counts"


def test_what_was_pushed_under_a_merged_change_is_still_to_move() -> None:
    """The mapping changed there and back while data moved: what was pushed in between lies elsewhere."""
    one, other = entry(1 << 30), entry(1 << 30)
    first = config_of([one, other], 1)
    second = replace(first.with_backends([replace(one, capacity_bytes=9 << 30), other]), prev_config=bytes(32))
    third = moves.merged(second, replace(first, prev_config=bytes(32)))
    places = Places(third, first)
    names = [n.to_bytes(32, "big") for n in range(64)]
    between = [n for n in names if placement_of(second).primary(n) != placement_of(first).primary(n)]
    assert between
    assert [n for n in names if places.is_displaced(n)] == between
    assert all(places.receivers(n) == list(places.primary(n)) for n in between)


def test_many_trims_are_told_apart_by_fewer_and_nothing_counts_that_should_not() -> None:
    config = config_of([entry(1 << 30) for _ in range(3)])
    first = {b.backend_id: b.storage[0].storage_id for b in config.backends}
    for n in range(moves.EARLIER_MAX + 5):
        new = config.with_backends(
            [replace(b, capacity_bytes=((n + i) % 3 + 1) << 30) for i, b in enumerate(config.backends)]
        )
        gained = moves.fresh(config, new)
        new = new.with_backends(
            [replace(b, storage=(*b.storage, store())) if b.backend_id in gained else b for b in new.backends]
        )
        config = moves.trimmed(new)
    assert len(moves.earlier(config)) == moves.EARLIER_MAX
    places = Places(config, None)
    for n in range(50):
        name = n.to_bytes(32, "big")
        for b in places.primary(name):
            assert places.ids(b, name)
            assert first[b] not in places.ids(b, name)


@pytest.mark.parametrize(
    "data", [b"\1", b"\1\2\0\0", b"\2\1\0\1" + bytes(40), b"\1\1\0\1" + bytes(40), b"\1\1\0\2" + bytes(40)]
)
def test_earlier_mappings_that_cannot_be_are_refused(data: bytes) -> None:
    config = config_of([entry(1 << 30)], 1)
    good = moves.trimmed(config)
    assert decode_config(config_with_vote(good)).tags == good.tags
    with pytest.raises(UsageError, match="earlier mapping"):
        config_with_vote(replace(config, tags=((4, data),)))
    forged = config_with_vote(good).replace(dict(good.tags)[4], data.ljust(len(dict(good.tags)[4]), b"\0"))
    with pytest.raises(FormatError):
        decode_config(forged)


@pytest.mark.long
@few_and_many("every", 8, 1)
def test_a_change_moves_what_it_must_and_one_point_at_most(every: int) -> None:
    """Bound: what exact shares would move, and one point of all data. Every so many-th partition is looked at."""
    rng = random.Random(3)
    for case in range(4 if every > 1 else 24):
        n = 3 + case % 6
        entries = [entry(rng.randrange(1, 50) << 30, rng.randbytes(16)) for _ in range(n)]
        old = config_of(entries, rng.randrange(1, 3))
        change = case % 4
        if change == 0:
            new = old.with_backends([*entries, entry(rng.randrange(1, 50) << 30, rng.randbytes(16))])
        elif change == 1:
            new = old.with_backends(entries[1:])
        elif change == 2:
            new = old.with_backends([replace(entries[0], capacity_bytes=rng.randrange(1, 90) << 30), *entries[1:]])
        else:
            new = replace(old, redundancy=config_of([], placement_of(old).copies + 1).redundancy)
        before, after = placement_of(old).expected_shares(), placement_of(new).expected_shares()
        ideal = float(sum(max(0, share - before.get(i, 0)) for i, share in after.items()))
        places = Places(new, old)
        looked_at = range(0, PARTITIONS, every)
        moved = sum(len(places.receivers(p.to_bytes(8, "big"))) for p in looked_at) / len(looked_at)
        assert moved <= ideal + 0.01, (case, n, moved, ideal)


# --- the rules one by one


def three() -> Config:
    return config_of([entry(1 << 30) for _ in range(3)])


def grown(config: Config, at: int = 0, by: int = 4) -> Config:
    """The same with one backend that has more weight, and so gets packs of the others."""
    entries = list(config.backends)
    entries[at] = replace(entries[at], capacity_bytes=entries[at].capacity_bytes * by)
    return config.with_backends(entries)


def test_a_backend_that_holds_nothing_is_in_no_earlier_mapping() -> None:
    """One may vote and store no packs: it has no storage id, needs none, and is no place."""
    config = three()
    voter = replace(entry(1 << 30), storage=())
    config = config.with_backends([*config.backends, voter])
    [item] = moves.earlier(moves.trimmed(config))
    assert {t.backend_id for t in item.targets} == {b.backend_id for b in config.backends} - {voter.backend_id}
    assert voter.backend_id not in moves.fresh(config, grown(config), config)


def test_trims_of_many_backends_fit_into_a_tag() -> None:
    config = config_of([entry(1 << 30) for _ in range(100)])
    for _ in range(moves.EARLIER_MAX):
        config = moves.trimmed(config)
    data = dict(config.tags)[moves.EARLIER_TAG]
    assert len(data) <= moves.TAG_BYTES_MAX
    items = moves.earlier(config)
    assert [bool(item.copies) for item in items] == [False, *[True] * (len(items) - 1)]
    assert len(items) == moves.TAG_BYTES_MAX // len(moves._encode(items[:1]))


def test_what_the_trims_were_says_nothing_of_merges() -> None:
    """A record of a scrub holds as long as the storage ids that count are the same: a merge changes none."""
    config = moves.trimmed(three())
    assert moves.trims(config) != b""
    assert moves.trims(moves.merged(config, grown(config))) == moves.trims(config)
    assert moves.trims(moves.merged(three(), grown(three()))) == b""


def test_who_removes_a_backend_says_what_becomes_of_it() -> None:
    config = three()
    a, b = (x.backend_id for x in config.backends[:2])
    left = moves.removing(config, a, emptied=True)
    assert [x.backend_id for x in left.backends] == [x.backend_id for x in config.backends[1:]]
    assert moves.to_empty(left) == {a}
    both = moves.removing(left, b, emptied=True)
    assert moves.to_empty(both) == {a, b}
    assert moves.to_empty(moves.removing(both, a)) == {b}, "it is said anew, and no longer so"
    assert dict(moves.removing(left, a).tags).keys() == dict(config.tags).keys(), "a note of nobody is none"


def test_so_many_changes_are_merged_into_one_and_trims_do_not_count() -> None:
    config = three()
    for _ in range(moves.MERGED_MAX + 1):
        config = moves.trimmed(config)
    for number in range(moves.MERGED_MAX):
        assert moves.may_merge(config), number
        config = moves.merged(config, grown(config, number % 3))
    assert not moves.may_merge(config)


def test_a_change_that_takes_a_backend_out_is_merged_on_top_of_so_many_others() -> None:
    config = three()
    for number in range(2 * moves.MERGED_MAX):
        assert moves.may_merge(config, takes_out=True), number
        config = moves.merged(config, grown(config, number % 3))
    assert not moves.may_merge(config, takes_out=True)


def test_what_takes_a_backend_out_is_merged_as_long_as_its_tag_has_room() -> None:
    config = config_of([entry(1 << 30) for _ in range(250)])
    fits = 0
    while moves.may_merge(config, takes_out=True):
        config, fits = moves.merged(config, grown(config)), fits + 1
    assert 0 < fits < moves.MERGED_MAX
    assert len(dict(config.tags)[moves.EARLIER_TAG]) <= moves.TAG_BYTES_MAX


def test_no_change_is_merged_where_its_tag_may_have_no_room() -> None:
    config = config_of([entry(1 << 30) for _ in range(250)])
    fits = 0
    while moves.may_merge(config):
        config, fits = moves.merged(config, grown(config)), fits + 1
    assert 0 < fits < moves.MERGED_MAX
    assert len(dict(config.tags)[moves.EARLIER_TAG]) <= moves.TAG_BYTES_MAX


def test_a_backend_whose_newest_id_an_old_trim_cut_needs_another() -> None:
    """Of trims that were folded into one it is not known what they placed where: no id of then counts any more."""
    config = three()
    for _ in range(moves.EARLIER_MAX):
        config = moves.trimmed(config)
    assert moves.fresh(config, config) == set(), "each trim is known by itself"
    config = moves.trimmed(config)
    assert moves.fresh(config, config) == {b.backend_id for b in config.backends}
    newer = config.with_backends(
        [replace(b, storage=(*b.storage, store())) if n else b for n, b in enumerate(config.backends)]
    )
    assert moves.fresh(newer, newer) == {config.backends[0].backend_id}


def test_an_id_that_came_in_the_course_of_a_change_serves_what_is_merged_into_it() -> None:
    before = three()
    gained = before.backends[0].backend_id
    old = grown(before).with_backends(
        [replace(b, storage=(*b.storage, store())) if b.backend_id == gained else b for b in grown(before).backends]
    )
    new = grown(old)
    assert moves.fresh(old, new) == {gained}
    assert moves.fresh(old, new, before) == set()
    assert moves.fresh(old, new, old) == {gained}, "that id was there before"


def test_packs_are_read_where_merged_changes_had_them_and_not_where_trims_had() -> None:
    first = three()
    second = grown(first, 0, 64)
    names = [random.Random(i).randbytes(32) for i in range(100)]
    still, moved = Places(second, first), Places(second, None)
    assert any(still.is_displaced(n) for n in names)
    assert not any(moved.is_displaced(n) or moved.had(n) or moved.givers(n) for n in names)
    after_trim = Places(moves.trimmed(second), None)
    assert not any(after_trim.is_displaced(n) for n in names)
    third = moves.merged(second, grown(second, 1, 64))
    merged = Places(third, None)
    assert any(merged.is_displaced(n) for n in names)
    for n in names:
        now, had = set(merged.primary(n)), placement_of(second).primary(n)
        assert merged.had(n) == had
        assert merged.givers(n) == [i for i in had if i not in now]
        assert merged.receivers(n) == [i for i in merged.primary(n) if i not in had]


def test_what_a_trim_gave_up_is_read_no_more_though_the_mapping_is_another_now() -> None:
    """Only merged mappings say where else packs lie: of those that were trimmed the copies may be gone."""
    trimmed = moves.trimmed(three())
    now = grown(trimmed, 0, 64)
    names = [random.Random(i).randbytes(32) for i in range(50)]
    places = Places(now, None)
    assert any(placement_of(trimmed).primary(n) != places.primary(n) for n in names)
    assert [n for n in names if places.is_displaced(n) or places.had(n)] == []


@pytest.mark.parametrize("is_trimmed", [True, False])
def test_a_mapping_that_placed_nothing_cuts_ids_if_it_was_trimmed(is_trimmed: bool) -> None:
    """What was merged has deleted nothing, whatever number of copies another device wrote there."""
    config = three()
    former = moves._former(config, is_trimmed=is_trimmed)._replace(copies=0)
    config = moves._with_earlier(config, [former])
    assert moves.fresh(config, config) == ({b.backend_id for b in config.backends} if is_trimmed else set())
