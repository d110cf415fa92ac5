"""`metasync.transfer.copies`: R copies up, any right copy down, and every wrong one named."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pytest
from content_kit import IDS, AtOnce, FakeBackend, Object, blob, digest, noise, pack_all, pack_format, run

from metasync.backends.digests import KINDS, digest_of
from metasync.errors import BackendError, DamagedError, FullError, RefusedError, UnreachableError, UpgradeError
from metasync.objects import directory
from metasync.objects.model import ObjectKind
from metasync.runtime.effects import Op, Urgency
from metasync.store import pack_format as packfile
from metasync.store.index import Index, PackRecord, make_segment
from metasync.store.pack_format import Located
from metasync.store.placement import Placement, Target
from metasync.transfer.contents import Contents
from metasync.transfer.copies import Place, Transfer, pack_path
from metasync.transfer.download import GAP_BYTES_MAX, WHOLE_BYTES_MAX, Download
from metasync.transfer.verify import CopyState, check_pack

KIB = 1 << 10
NAMES = ("a", "b", "c", "d")
OLD, NEW = b"o" * 16, b"n" * 16
COPIES = 2
GENERATION = 3
FORM = pack_format(segment_bytes=16 * KIB, pack_bytes=4 << 20)


def backend_id(name: str) -> bytes:
    return name.encode() * 16


class World:
    """Four backends, two copies of everything, one pack stored as `upload` stores it."""

    def __init__(self, chunks: list[Object] | None = None, *, large: bool = False) -> None:
        count = 40 if large else 5
        self.chunks = chunks or [blob(noise(20 * KIB, i)) for i in range(count)]
        (self.pack,) = pack_all(self.chunks, FORM)
        assert (len(self.pack.data) > WHOLE_BYTES_MAX) == large
        self.backends = {name: FakeBackend() for name in NAMES}
        self.t = self.transfer()
        p = self.pack
        self.record = PackRecord(p.name, GENERATION, len(p.data), p.data[: packfile.HEADER_BYTES], p.footer.segments)
        self.order = [place.name for place in self.t.order(p.name)]
        self.first, self.second, self.third, self.fourth = (self.backends[n] for n in self.order)
        self.path = pack_path(NEW, GENERATION, p.name)

    def transfer(self, ids: tuple[bytes, ...] = (OLD, NEW)) -> Transfer:
        placement = Placement([Target(backend_id(n), 1 << 40) for n in NAMES], copies=COPIES)
        return Transfer(placement, {backend_id(n): Place(n, backend_id(n), ids) for n in NAMES}, FORM, IDS.of)

    def upload(self) -> tuple[str, ...]:
        return run(self.t.upload(self.pack, GENERATION), self.backends).holders

    def stored(self) -> World:
        self.upload()
        self.t = self.transfer()
        for b in self.backends.values():
            b.calls.clear()
        return self

    def fetch(self, wanted: list[Located] | None = None) -> dict[bytes, bytes]:
        got: dict[bytes, bytes] = {}

        def deliver(objects: Sequence[tuple[Located, memoryview]]) -> None:
            for located, data in objects:
                assert IDS.of(located.kind, data) == located.id, "nothing unverified is ever delivered"
                got[located.id] = bytes(data)

        wanted = list(self.pack.footer.objects) if wanted is None else wanted
        download = Download(self.t, AtOnce(self.backends), deliver, Urgency.SOON)
        download.want(self.record, wanted)
        for lost in download.run():
            raise lost.error
        return got

    def expected(self) -> dict[bytes, bytes]:
        return {i: data for _, i, data in self.chunks}

    def check(self, *, read_data: bool) -> tuple[list[CopyState], list[CopyState]]:
        """What was found; how it was looked at is another question."""
        home, elsewhere = run(check_pack(self.t, self.record, read_data=read_data), self.backends)
        return [CopyState(*s[:3]) for s in home], [CopyState(*s[:3]) for s in elsewhere]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def large() -> World:
    return World(large=True).stored()


class Cache:
    """What a device keeps of trees and histories; a disk may alter it."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}

    def get_objects(self, ids: Collection[bytes]) -> dict[bytes, bytes]:
        return {i: self.kept[i] for i in ids if i in self.kept}

    def put_objects(self, items: Iterable[tuple[bytes, int, bytes]]) -> None:
        for i, _, data in items:
            self.kept.setdefault(i, data)


def contents_of(world: World) -> Contents:
    index = Index([make_segment([(world.record, world.pack.footer.objects)])])
    return Contents(index, world.t, Cache(), AtOnce(world.backends))


def test_a_kept_object_that_the_disk_altered_is_fetched_again():
    data = directory.encode_dir((), IDS)[0][1]
    w = World([(ObjectKind.DIR, IDS.of(ObjectKind.DIR, data), data)]).stored()
    ((_, object_id, _),) = w.chunks
    contents = contents_of(w)
    assert contents.load(ObjectKind.DIR, [object_id]) == {object_id: data}
    asked = len(w.first.calls) + len(w.second.calls)
    assert contents.load(ObjectKind.DIR, [object_id]) == {object_id: data}
    assert len(w.first.calls) + len(w.second.calls) == asked, "kept"
    contents.cache.kept[object_id] = data[:-1] + b"!"  # type: ignore[attr-defined]
    assert contents.load(ObjectKind.DIR, [object_id]) == {object_id: data}


@pytest.mark.parametrize("kind", [ObjectKind.DIR, ObjectKind.FILE, ObjectKind.SNAPSHOT])
def test_an_object_of_another_kind_is_damage(world, kind):
    """A state may name a blob as its snapshot: an insider's device made it."""
    world.stored()
    with pytest.raises(DamagedError, match=f"is no {kind.name.lower()}"):
        contents_of(world).load(kind, [world.chunks[0][1]])


# --- up


def test_copies_go_to_the_first_in_the_order(world):
    stored = run(world.t.upload(world.pack, GENERATION), world.backends)
    assert stored.holders == tuple(world.order[:COPIES])
    assert stored.copies == COPIES
    for name in NAMES:
        objects = world.backends[name].objects
        assert objects == ({world.path: world.pack.data} if name in stored.holders else {})


def test_a_pack_lies_under_the_newest_storage_id_and_its_generation(world):
    h = world.pack.name.hex()
    assert world.path == f"{NEW.hex()}/packs/3/{h[:2]}/{h}"


FULL_NOW = FullError("no space")
AWAY = UnreachableError("no route")
TRIES = {"full": 1, "unreachable": 2, "refused": 1}


@pytest.mark.parametrize(
    ("kind", "error"), [("full", FULL_NOW), ("unreachable", AWAY), ("refused", RefusedError("not yours"))]
)
def test_a_backend_that_cannot_take_it_is_passed_over(world, kind, error):
    world.first.full = error
    assert world.upload() == (world.order[1], world.order[2])
    assert world.t.down == {world.order[0]: error}
    assert len(world.first.calls) == TRIES[kind], "what may succeed later is tried once more"
    world.upload()
    assert len(world.first.calls) == TRIES[kind], "and not asked again in this session"


def test_a_backend_that_stumbles_once_still_gets_its_copy(world):
    real, failures = world.first.do, [BackendError("slow down")]

    def do(op: object) -> object:
        if failures:
            raise failures.pop()
        return real(op)

    world.first.do = do
    assert world.upload() == tuple(world.order[:COPIES])
    assert world.t.down == {}


def test_fewer_copies_are_told(world):
    for b in (world.first, world.second, world.fourth):
        b.full = AWAY
    stored = run(world.t.upload(world.pack, GENERATION), world.backends)
    assert stored.holders == (world.order[2],)
    assert stored.copies == COPIES


def test_no_place_at_all(world):
    for b in world.backends.values():
        b.full = FULL_NOW
    with pytest.raises(FullError, match="every backend is full"):
        world.upload()
    world.t = world.transfer()
    world.second.full = AWAY
    with pytest.raises(UnreachableError, match="no route"):
        world.upload()


# --- down


def test_all_objects_come_from_one_copy(world):
    world.stored()
    assert world.fetch() == world.expected()
    assert sum(len(b.calls) for b in world.backends.values()) == 1
    assert world.t.faults == []


def flipped(data: bytes) -> bytes:
    return data[:5000] + bytes((data[5000] ^ 1,)) + data[5001:]


def other_pack(data: bytes) -> bytes:
    (pack,) = pack_all([blob(noise(20 * KIB, 1000 + i)) for i in range(5)], FORM)
    return pack.data


WRONG: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda data: None,
    "garbage": lambda data: noise(len(data), 9),
    "garbage that is longer": lambda data: noise(len(data) + 1, 9),
    "longer": lambda data: data + b"\0",
    "cut short": lambda data: data[:-1],
    "cut to the header": lambda data: data[:38],
    "empty": lambda data: b"",
    "a bit flipped": flipped,
    "another pack": other_pack,
}


def spoil(b: FakeBackend, path: str, how: str) -> None:
    new = WRONG[how](b.objects[path])
    if new is None:
        del b.objects[path]
    else:
        b.objects[path] = new


@pytest.mark.parametrize("large", [False, True], ids=["whole", "ranges"])
@pytest.mark.parametrize("how", WRONG)
def test_another_copy_serves_and_the_fault_is_named(how, large):
    world = World(large=large).stored()
    spoil(world.first, world.path, how)
    wanted = [world.pack.footer.objects[0], world.pack.footer.objects[-1]] if large else None
    expected = world.expected()
    if wanted is not None:
        expected = {o.id: expected[o.id] for o in wanted}
    if large and how in ("longer", "cut short"):
        assert world.fetch(wanted) == expected, "what was asked for is right"
        return
    assert world.fetch(wanted) == expected
    (fault,) = world.t.faults
    assert (fault.backend, fault.pack, fault.missing) == (world.order[0], world.pack.name, how == "missing")
    assert fault.altered == (how != "missing")
    assert fault.why


@pytest.mark.parametrize("other", [AWAY, "as long"], ids=str)
def test_a_refusal_is_no_altered_copy_while_its_length_is_not_known_to_be_another(world, other, monkeypatch):
    world.stored()
    does = FakeBackend.do

    def do(self: FakeBackend, op: Op) -> Any:
        given = does(self, op) if op.kind != "stat" or other != AWAY else AWAY
        if self is world.first and op.kind == "get":
            raise RefusedError("not yours")
        if isinstance(given, BackendError):
            raise given
        return given

    monkeypatch.setattr(FakeBackend, "do", do)
    assert world.fetch() == world.expected()
    (fault,) = world.t.faults
    assert (fault.backend, fault.missing, fault.altered) == (world.order[0], False, False)
    assert [c.kind for c in world.first.calls][:1] == ["get"]


@pytest.mark.parametrize("how", WRONG)
def test_without_any_right_copy_data_are_damaged(world, how):
    world.stored()
    spoil(world.first, world.path, how)
    spoil(world.second, world.path, how)
    with pytest.raises(DamagedError, match="intact on no backend"):
        world.fetch()
    assert {f.backend for f in world.t.faults} == set(world.order[:COPIES]), "nobody else promised a copy"


def test_a_copy_elsewhere_is_found(world):
    """A pack that went to the next in the order while a backend was full."""
    world.first.full = FULL_NOW
    world.stored()
    world.second.objects.clear()
    assert world.fetch() == world.expected()
    assert [(f.backend, f.missing) for f in world.t.faults] == [(n, True) for n in world.order[:2]]


def test_an_unreachable_backend_is_asked_once(world):
    world.stored()
    world.first.broken = AWAY
    assert world.fetch() == world.fetch() == world.expected()
    assert len(world.first.calls) == 1
    assert world.t.faults == [], "away is no fault of the copy"


def test_a_full_backend_still_serves_what_it_has(world):
    world.stored()
    (more,) = pack_all([blob(noise(9000, 77 + i)) for i in range(3)], FORM)
    for b in world.backends.values():
        b.full = FULL_NOW
    with pytest.raises(FullError):
        run(world.t.upload(more, GENERATION), world.backends)
    assert set(world.t.down) == set(NAMES)
    assert world.fetch() == world.expected()
    assert world.check(read_data=True)[0] == [CopyState(n, None) for n in world.order[:COPIES]]


def test_holders_away_is_not_damage(world):
    world.stored()
    world.first.broken = world.second.broken = AWAY
    with pytest.raises(UnreachableError, match="cannot be read now"):
        world.fetch()
    assert world.t.faults == [], "those who never promised a copy are not blamed"
    with pytest.raises(UnreachableError):
        world.fetch()


def test_one_copy_wrong_and_the_other_away(world):
    world.stored()
    spoil(world.first, world.path, "garbage")
    world.second.broken = AWAY
    with pytest.raises(DamagedError, match=f"{world.order[1]} cannot be reached"):
        world.fetch()


def test_older_storage_ids_are_asked_when_newer_ones_lack_it(world):
    world.t = world.transfer((OLD,))
    world.stored()
    world.t = world.transfer((OLD, NEW))
    assert world.fetch() == world.expected()
    assert world.t.faults == []
    assert world.check(read_data=False)[0] == [CopyState(n, None) for n in world.order[:COPIES]]


def test_a_pack_of_another_format_is_no_damage(world):
    world.stored()
    world.record = world.record._replace(header=b"\2" + world.record.header[1:])
    with pytest.raises(UpgradeError):
        world.fetch()


def test_a_swapped_index_entry_is_noticed(world):
    """The pack is intact, and yet the object is not what its id says: the index was wrong, so no copy can help."""
    world.stored()
    wrong = world.pack.footer.objects[0]._replace(id=digest(5))
    with pytest.raises(DamagedError, match="not what its id says"):
        world.fetch([wrong])


def lost_of(world: World, wanted: list[Located], deliver: Any) -> set[bytes]:
    """What a download of these tells as lost."""
    download = Download(world.t, AtOnce(world.backends), deliver, Urgency.SOON)
    download.want(world.record, wanted)
    return {o.id for lost in download.run() for o in lost.objects}


def test_what_is_right_beside_a_swapped_entry_is_delivered(world):
    world.stored()
    right = list(world.pack.footer.objects)
    wrong, got = right[0]._replace(id=digest(5)), set[bytes]()
    lost = lost_of(world, [wrong, *right], lambda objects: got.update(o.id for o, _ in objects))
    assert (lost, got) == ({digest(5)}, {o.id for o in right})


def test_what_a_taker_refuses_is_lost(world):
    """It refuses what is intact, and does not say which objects it means."""

    def refuse(_: object) -> None:
        raise DamagedError("twelve bytes, and the entry says seven")

    world.stored()
    (first, *_) = world.pack.footer.objects
    assert lost_of(world, [first], refuse) == {first.id}


# --- how much is asked for


def asked(world: World) -> list[tuple[int, int | None, int]]:
    return [(c.offset, c.length, c.max_bytes) for n in world.order for c in world.backends[n].calls]


def by_segment(world: World, *numbers: int) -> list[Located]:
    return [o for o in world.pack.footer.objects if o.segment in numbers]


def test_a_small_pack_is_fetched_whole(world):
    world.stored()
    world.fetch(by_segment(world, 2))
    assert asked(world) == [(0, None, len(world.pack.data))]


def test_one_segment_of_a_large_pack_is_one_range(large):
    at = packfile.offsets(large.pack.footer.segments)
    got = large.fetch(by_segment(large, 7))
    assert len(got) == 1
    n = large.pack.footer.segments[7].stored_bytes
    assert asked(large) == [(at[7], n, n)]


def test_near_segments_are_one_range_and_far_ones_two(large):
    at = packfile.offsets(large.pack.footer.segments)
    assert at[5] - at[3] < GAP_BYTES_MAX < at[30] - at[6]
    assert len(large.fetch(by_segment(large, 2, 5, 30))) == 3
    assert [(o, n) for o, n, _ in asked(large)] == [(at[2], at[6] - at[2]), (at[30], at[31] - at[30])]


def test_most_of_a_large_pack_is_fetched_whole(large):
    large.fetch(by_segment(large, *range(0, 40, 2), 1))
    assert asked(large) == [(0, None, len(large.pack.data))]


def test_small_objects_of_one_segment_cost_one_request():
    world = World()
    world.chunks = [blob(noise(100, i)) for i in range(50)]
    (world.pack,) = pack_all(world.chunks, FORM)
    p = world.pack
    world.record = PackRecord(p.name, GENERATION, len(p.data), p.data[:38], p.footer.segments)
    world.stored()
    assert world.fetch() == world.expected()
    assert sum(len(b.calls) for b in world.backends.values()) == 1


# --- check


@pytest.mark.parametrize("read_data", [False, True])
def test_check_finds_all_well(world, read_data):
    world.stored()
    assert world.check(read_data=read_data) == ([CopyState(n, None) for n in world.order[:COPIES]], [])
    kinds = {c.kind for b in world.backends.values() for c in b.calls}
    assert kinds == ({"get"} if read_data else {"digest"})
    assert not world.third.calls, "others are asked only when something is wrong"


@pytest.mark.parametrize("read_data", [False, True])
@pytest.mark.parametrize("how", WRONG)
def test_check_names_what_is_wrong(world, how, read_data):
    world.stored()
    spoil(world.first, world.path, how)
    world.fourth.objects[world.path] = world.pack.data
    states, elsewhere = world.check(read_data=read_data)
    assert states[1] == CopyState(world.order[1], None)
    if how in ("garbage", "a bit flipped", "another pack") and not read_data:
        assert states[0].problem is None, "sizes are right: only reading the data shows it"
        return
    assert states[0].problem is not None
    assert states[0].missing == (how == "missing")
    (seen, _), _ = run(check_pack(world.t, world.record, read_data=read_data), world.backends)
    assert not seen.unknown
    if read_data and how != "missing":
        assert seen.how == "read"
    if how == "missing":
        assert states[0].problem == "missing"
    assert elsewhere == [CopyState(world.order[3], None)], "a copy found elsewhere in its stead"


def checked(world: World, **more: Any) -> list[CopyState]:
    return run(check_pack(world.t, world.record, read_data=False, **more), world.backends)[0]


@pytest.mark.parametrize("kind", ["sha256", *KINDS])
def test_check_compares_the_digest_that_a_store_tells(world, kind):
    world.stored()
    tags = tuple((of.tag, of.make(world.pack.data)) for of in KINDS.values())
    world.record = world.record._replace(tags=tags)
    world.first.tells = kind, lambda data: digest_of(kind, data)
    pieces = dict.fromkeys(world.order, 0)
    told, other = checked(world, pieces=pieces)
    assert (told.problem, told.how, told.bytes_read) == (None, "digest", 0)
    assert (other.problem, other.how) == (None, "piece")
    spoil(world.first, world.path, "a bit flipped")
    told, _ = checked(world)
    assert (told.problem, told.how) == ("altered", "read"), "a digest alone is no verdict"


@pytest.mark.parametrize(
    "tells", [("md5", b"m" * 16), ("md5", None), ("sha256", None), ("crc", b"c"), ("md5", b"")], ids=str
)
def test_a_digest_that_says_nothing(world, tells):
    """A service may encrypt what it stores; it may have none, or another kind; who stored it may have noted none."""
    world.stored()
    world.first.tells = tells[0], lambda _: tells[1]
    (state, _) = checked(world)
    assert (state.problem, state.how) == (None, "size")
    world.record = world.record._replace(tags=((KINDS["md5"].tag, b"n" * 16),))
    (state, _) = checked(world)
    assert (state.problem, state.how) == (None, "read" if tells[0] == "md5" and tells[1] is not None else "size")


def test_a_piece_of_a_copy_is_read_where_the_store_tells_no_digest(large):
    last = len(large.record.segments) - 1
    for number in (0, last):
        states = checked(large, pieces={large.order[0]: number})
        assert [(s.problem, s.how, s.bytes_read) for s in states] == [
            (None, "piece", large.record.segments[number].stored_bytes),
            (None, "size", 0),
        ]
    at = packfile.offsets(large.record.segments)[last]
    data = bytearray(large.first.objects[large.path])
    data[at] ^= 1
    large.first.objects[large.path] = bytes(data)
    assert [checked(large, pieces={large.order[0]: n})[0].problem for n in (0, last)] == [None, "altered"]


@pytest.mark.parametrize("read_data", [False, True])
def test_check_of_what_cannot_be_reached(world, read_data):
    world.stored()
    world.second.broken = AWAY
    states, elsewhere = world.check(read_data=read_data)
    assert states[0].problem is None
    assert states[1].problem == "cannot be reached: no route"
    assert not states[1].missing
    world.check(read_data=read_data)
    assert len(world.second.calls) == 1, "asked once in a session"
    assert elsewhere == []


def test_check_of_what_is_refused(world):
    world.stored()
    world.first.broken = RefusedError("not yours")
    states, _ = world.check(read_data=True)
    assert states[0] == CopyState(world.order[0], "not yours", False)


def test_check_prefers_a_right_old_copy_to_a_wrong_new_one(world):
    world.stored()
    world.first.objects[pack_path(OLD, GENERATION, world.pack.name)] = world.pack.data
    spoil(world.first, world.path, "a bit flipped")
    assert world.check(read_data=True)[0][0] == CopyState(world.order[0], None)


def test_a_bad_copy_is_one_fault_however_many_ranges_of_it_were_asked_for(large):
    for b in (large.first, large.second):
        spoil(b, large.path, "garbage")
    with pytest.raises(DamagedError, match="intact on no backend"):
        large.fetch(by_segment(large, 0, 15, 30))
    assert sorted(f.backend for f in large.t.faults) == sorted(large.order[:COPIES])


def test_one_copy_goes_where_the_least_is_on_its_way_and_the_rest_later(world):
    """With `least` the first copy is on one of the pack's own places, and `complete` makes the others from it."""
    world.t.room.sending[world.order[0]] = 10
    stored = run(world.t.upload(world.pack, GENERATION, least=1), world.backends)
    assert (stored.holders, stored.copies, stored.elsewhere) == ((world.order[1],), COPIES, False)
    held = (backend_id(world.order[1]),)
    p = world.pack
    holders = run(world.t.complete(p.name, GENERATION, len(p.data), held, None), world.backends)
    assert set(holders) == {backend_id(n) for n in world.order[:COPIES]}
    assert world.check(read_data=True)[0] == [CopyState(n, None) for n in world.order[:COPIES]]


@pytest.mark.parametrize("how", WRONG)
def test_an_altered_copy_that_others_are_made_of_is_noted(world, how):
    """`complete` reads another holder then. A copy that is gone is no fault: it may have been moved."""
    world.stored()
    spoil(world.first, world.path, how)
    del world.second.objects[world.path]
    world.third.objects[world.path] = world.pack.data
    held = tuple(backend_id(n) for n in (world.order[0], world.order[2]))
    p = world.pack
    run(world.t.complete(p.name, GENERATION, len(p.data), held, None), world.backends)
    noted = [(f.backend, f.pack, f.altered) for f in world.t.faults]
    assert noted == ([] if how == "missing" else [(world.order[0], p.name, True)])
