"""`metasync.transfer.download`: real packs from several backends at once, in virtual time, whatever these do."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from content_kit import IDS, FakeBackend, noise
from transfers import FAR, STORAGE, Far, Service, best_s, photos, record_of
from workspace_kit import Lab, tree_of, write

from metasync.errors import DamagedError, NotFoundError, UnreachableError, UpgradeError
from metasync.runtime.effects import TRANSFER_TIMEOUT_S, Urgency
from metasync.runtime.tasks import Runtime
from metasync.store.pack_format import HEADER_BYTES, Located
from metasync.transfer.copies import pack_path
from metasync.transfer.download import Download
from metasync.transfer.estimates import ESTIMATES_KEY, Direction, Estimates
from metasync.transfer.schedule import CUT_BYTES_LEAST

PACKS = photos(60_000_000, 7)
ALL = Counter(o.id for p in PACKS for o in p.footer.objects)
BEST_S = sum(len(p.data) for p in PACKS) / 15e6


def with_last(**changes: Any) -> list[Service]:
    return [*FAR[:2], Service("three", **changes)]


def total(lines: Any) -> int:
    return sum(line.requests for line in lines.lines.values())


def test_all_come_once_from_all_at_once() -> None:
    far = Far(PACKS, FAR, 2)
    lines = far.fetch()
    assert far.got == ALL
    assert far.seconds <= 1.15 * BEST_S
    assert total(lines) <= len(PACKS) + 6
    assert far.transfer.faults == []
    assert far.transfer.down == {}
    assert far.transfer.silent == set()


def test_what_was_learned_serves_the_next_run() -> None:
    far = Far(PACKS, FAR, 2)
    far.fetch()
    kept = Estimates.decode(far.transfer.estimates.encode())
    for name in ("one", "two", "three"):
        assert kept.of(name, Direction.DOWN).bytes_per_s == pytest.approx(5e6, rel=0.15)


def test_two_holders_serve_one_pack_and_each_part_is_verified() -> None:
    far = Far(PACKS, FAR, 2)
    far.fetch()
    far.got.clear()
    lines = far.fetch(PACKS[:1])
    assert 2 <= total(lines) <= 3, "what the lines bear is known now"
    assert set(far.got.values()) == {1}
    liar = far.homes(PACKS[0])[0]
    path = pack_path(STORAGE, 0, PACKS[0].name)
    data = bytearray(far.stores[liar][path])
    for at in range(50, len(data), 100_000):
        data[at] ^= 1
    far.stores[liar][path] = bytes(data)
    far.got.clear()
    far.fetch(PACKS[:1])
    assert far.got.keys() == {o.id for o in PACKS[0].footer.objects}
    assert {(f.backend, f.missing) for f in far.transfer.faults} == {(liar, False)}
    assert len(far.transfer.faults) == 1, "one fault per copy, however many parts of it are wrong"


@pytest.mark.parametrize("first", [1, 2, 3, 4, 5])
def test_a_pack_whose_beginning_is_not_wanted_is_not_cut_there(first: int) -> None:
    """As when a clone goes on: most of a pack is wanted, so it is asked for as a whole, and both lines are known."""
    far = Far(PACKS, FAR, 2)
    far.fetch()
    far.got.clear()
    pack = PACKS[1]
    assert len(pack.footer.segments) == 6
    far.fetch([pack], only=lambda o: o.segment >= first)
    assert far.got == Counter(o.id for o in pack.footer.objects if o.segment >= first)


@pytest.mark.parametrize("dies_at_s", [0.0, 2.0])
def test_one_that_hangs_costs_no_timeout_and_is_asked_last_from_then_on(dies_at_s: float) -> None:
    far = Far(PACKS, with_last(dies_at_s=dies_at_s), 2)
    lines = far.fetch()
    assert far.got == ALL
    assert far.seconds < TRANSFER_TIMEOUT_S / 2
    assert lines.lines["three"].requests > 0
    assert far.transfer.silent == {"three"}
    assert far.transfer.faults == [], "late is no fault of the copy"
    again = far.fetch()
    assert again.lines["three"].requests == 0


@pytest.mark.long
def test_one_that_is_ten_times_slower_holds_nothing_up() -> None:
    """Where the packs lie is chance, and worth a tenth: three sets of photos, and the one in the middle."""
    took = []
    for seed in (1, 2, 3):
        packs = photos(60_000_000, seed)
        far = Far(packs, with_last(rate=0.5e6), 2)
        far.fetch()
        assert far.got == Counter(o.id for p in packs for o in p.footer.objects)
        took.append(far.seconds / best_s([(set(far.homes(p)), len(p.data)) for p in packs], far.services))
    assert sorted(took)[1] <= 1.25
    assert max(took) <= 1.4


@pytest.mark.parametrize("how", ["missing", "garbage"])
def test_one_that_lies_is_named_for_each_pack_and_the_others_serve(how: str) -> None:
    far = Far(PACKS, FAR, 2)
    if how == "missing":
        far.stores["three"].clear()
    else:
        far.stores["three"] = {path: noise(len(data), 3) for path, data in far.stores["three"].items()}
    far.fetch()
    assert far.got.keys() == ALL.keys()
    assert {f.backend for f in far.transfer.faults} == {"three"}
    assert {f.missing for f in far.transfer.faults} == {how == "missing"}
    assert len({f.pack for f in far.transfer.faults}) == len(far.transfer.faults)


def test_what_nobody_has_is_damage_and_what_hangs_is_not() -> None:
    far = Far(PACKS, FAR, 2)
    for store in far.stores.values():
        store.pop(pack_path(STORAGE, 0, PACKS[3].name), None)
    with pytest.raises(DamagedError, match=PACKS[3].name.hex()[:16]):
        far.fetch()
    silent = Far(PACKS[:3], [Service(s.name, dies_at_s=0.0) for s in FAR], 2)
    with pytest.raises(UnreachableError, match="cannot be read now"):
        silent.fetch()


def test_an_error_of_whom_it_is_delivered_to_ends_the_download() -> None:
    def full(_objects: Sequence[tuple[Located, memoryview]]) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        Far(PACKS[:3], FAR, 2).fetch(deliver=full)


# --- with threads, as in earnest


class Store(FakeBackend):
    """A backend of the real interface; a `gate` holds its answers back."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: threading.Event | None = None
        self.asked = 0

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        self.asked += 1
        if self.gate is not None:
            self.gate.wait(60)
        if path not in self.objects:
            raise NotFoundError("not there")
        data = self.objects[path]
        return data[offset:] if length is None else data[offset : offset + length]


def filled(far: Far) -> dict[str, Store]:
    stores = {name: Store() for name in far.stores}
    for name, objects in far.stores.items():
        stores[name].objects.update(objects)
    return stores


def test_a_late_answer_of_one_that_hung_is_delivered_to_nobody() -> None:
    far = Far(PACKS[:6], FAR, 2)
    stores = filled(far)
    gate = stores["three"].gate = threading.Event()
    got: Counter[bytes] = Counter()
    started: list[Future[Any]] = []

    class Noting(Runtime):
        def start(self, task: Any) -> Future[Any]:
            started.append(super().start(task))
            return started[-1]

    with Noting(stores) as runtime:  # type: ignore[arg-type]
        download = Download(far.transfer, runtime, lambda o: got.update(i.id for i, _ in o), Urgency.SOON)
        for pack in PACKS[:6]:
            download.want(record_of(pack), pack.footer.objects)
        assert list(download.run()) == []
        wanted = Counter(o.id for p in PACKS[:6] for o in p.footer.objects)
        assert got == wanted
        assert far.transfer.silent == {"three"}
        gate.set()
        for future in started:
            future.result(60)
        assert got == wanted
    ends = time.monotonic() + 60
    while far.transfer.silent and time.monotonic() < ends:
        time.sleep(0.01)
    assert far.transfer.silent == set(), "it answered after all"


def test_nothing_is_delivered_after_a_download_has_ended() -> None:
    """Whoever gave it up may have removed what is delivered to."""
    far = Far(PACKS[:6], FAR, 1)
    stores = filled(far)
    over = threading.Event()
    late: list[int] = []

    def slowly(objects: Sequence[tuple[Located, memoryview]]) -> None:
        time.sleep(0.02)
        late.append(len(objects)) if over.is_set() else None

    with Runtime(stores) as runtime:  # type: ignore[arg-type]
        download = Download(far.transfer, runtime, slowly, Urgency.SOON)
        wrong = record_of(PACKS[0])._replace(header=b"\2" + PACKS[0].data[1:HEADER_BYTES])
        download.want(wrong, PACKS[0].footer.objects[:1])
        for pack in PACKS[1:6]:
            download.want(record_of(pack), pack.footer.objects)
        with pytest.raises(UpgradeError):
            for _lost in download.run():
                pass
        over.set()
        runtime.submit_work(lambda: None).result(60)
    assert late == []


def test_the_largest_piece_that_is_cut_has_parts_of_the_least_size() -> None:
    far = Far(PACKS, FAR, 2)
    asked: list[int] = []
    far.transfer.estimates.begin = lambda *a: asked.append(a[2]) or Estimates.begin(far.transfer.estimates, *a)  # type: ignore[method-assign,func-returns-value]
    far.fetch()
    far.fetch()
    assert min(asked) >= 0.9 * min(CUT_BYTES_LEAST, *(len(p.data) for p in PACKS))
    assert IDS is not None


# --- in a workspace


def test_what_is_learned_is_kept_between_commands_and_a_damaged_note_is_none(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b"))
    write(w.directory, {f"{n}.jpg": noise(900_000, n) for n in range(4)})
    w.push()
    sent = w._db.need(ESTIMATES_KEY)
    assert any(sent.of(name, Direction.UP).bytes_per_s for name in ("a", "b"))
    clone = lab.clone(lab.urls("a", "b"))
    known, note = clone._db.need(ESTIMATES_KEY), clone._db.value(ESTIMATES_KEY.name)
    assert note is not None
    assert any(known.of(name, Direction.DOWN).bytes_per_s for name in ("a", "b"))
    clone._db.set_value(ESTIMATES_KEY.name, note[:-1] + b"damaged")
    write(w.directory, {"more.jpg": noise(900_000, 9)})
    w.push()
    assert clone.pull().changes.added == (b"more.jpg",)
    assert tree_of(clone.directory) == tree_of(w.directory)
    assert clone._db.has(ESTIMATES_KEY)
    clone._db.need(ESTIMATES_KEY)


def test_objects_are_checked_and_delivered_by_one_thread_at_a_time() -> None:
    """Several would wait for Python's lock at each small object. Answers are verified and unpacked beside that."""
    far = Far(PACKS[:6], FAR, 1)
    busy, met = threading.Lock(), threading.Event()
    got: Counter[bytes] = Counter()
    check = far.transfer.check

    def alone(step: Callable[[], Any]) -> Any:
        if not busy.acquire(blocking=False):
            met.set()
            return step()
        try:
            met.wait(0.002)  # another thread comes in the meantime, if any may
            return step()
        finally:
            busy.release()

    far.transfer.check = lambda kind, data: alone(lambda: check(kind, data))  # type: ignore[method-assign, assignment]
    with Runtime(filled(far)) as runtime:  # type: ignore[arg-type]
        download = Download(
            far.transfer, runtime, lambda o: alone(lambda: got.update(i.id for i, _ in o)), Urgency.SOON
        )
        for pack in PACKS[:6]:
            download.want(record_of(pack), pack.footer.objects)
        assert list(download.run()) == []
    assert got == Counter(o.id for p in PACKS[:6] for o in p.footer.objects)
    assert not met.is_set()
