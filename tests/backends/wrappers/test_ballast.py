"""The ballast: agreement goes on where space has ended, packs go elsewhere, the reserve comes back with the space."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from workspace_kit import CHEAP, PASSPHRASE, Lab, tree_of, write

from metasync.backends.api import Backend
from metasync.backends.folder import FolderBackend
from metasync.backends.memory import MemoryBackend, MemoryStore
from metasync.backends.wrappers.ballast import BALLAST_BYTES, BALLAST_PATH, WithBallast, is_pack_path
from metasync.errors import FullError, MetaSyncError, NoQuorumError, NotFoundError, RefusedError
from metasync.events import Event, Notice
from metasync.local.state import LocalDb
from metasync.testing.counting import CountingBackend
from metasync.testing.faults import FaultyBackend
from metasync.testing.quota import Quota, QuotaBackend
from metasync.transfer.copies import pack_path
from metasync.workspace import Workspace

SMALL = bytes(1000)
PACK = pack_path(b"s" * 16, 0, b"n" * 32)


class Full:
    """A store with its ballast and not a byte more."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.quota = Quota(BALLAST_BYTES)
        self.counts = CountingBackend(QuotaBackend(MemoryBackend(self.store), self.quota))
        self.told: list[str] = []
        self.counts.put(BALLAST_PATH, os.urandom(BALLAST_BYTES))
        self.counts.take()

    def view(self, name: str = "x") -> WithBallast:
        return WithBallast(self.counts, lambda: self.told.append(name))


def there(b: Backend) -> bool:
    try:
        return b.stat(BALLAST_PATH) == BALLAST_BYTES
    except NotFoundError:
        return False


# --- the wrapper


@pytest.mark.parametrize("kind", ["create", "put"])
def test_a_small_write_takes_the_place_of_the_ballast(kind: str) -> None:
    full = Full()
    with pytest.raises(FullError):
        getattr(full.counts, kind)("px/0/e", SMALL)
    full.counts.take()
    b = full.view()
    assert getattr(b, kind)("px/0/e", SMALL) in (True, None)
    assert b.get("px/0/e", max_bytes=2000) == SMALL
    assert not there(b)
    assert full.told == ["x"]
    assert full.counts.take().requests == {kind: 2, "delete": 1, "get": 1, "stat": 1}


@pytest.mark.parametrize("kind", ["create", "put"])
def test_packs_never_take_it(kind: str) -> None:
    full = Full()
    assert is_pack_path(PACK)
    with pytest.raises(FullError):
        getattr(full.view(), kind)(PACK, SMALL)
    assert there(full.counts) and not full.told


def test_it_is_given_up_for_a_pack_that_found_no_space_and_told() -> None:
    full = Full()
    b = full.view()
    with pytest.raises(FullError):
        b.put(PACK, SMALL)
    b.delete(BALLAST_PATH)
    b.put(PACK, SMALL)
    assert full.told == ["x"]


def test_whoever_takes_all_away_again_tells_of_no_full_store() -> None:
    full = Full()
    full.quota.limit_bytes += len(SMALL)
    b = full.view()
    b.put("px/0/e", SMALL)
    b.delete(BALLAST_PATH)
    assert not there(b) and full.told == []


@pytest.mark.parametrize("path", ["a/birth", "a/meta/0/packs", "packs/x", "keys/ring-1-ab", "devices/packs", "hint"])
def test_whatever_is_no_pack_does(path: str) -> None:
    full = Full()
    full.view().put(path, SMALL)
    assert full.told == ["x"]


def test_the_ballast_does_not_make_room_for_itself() -> None:
    full = Full()
    full.counts.delete(BALLAST_PATH)
    full.quota.fill()
    full.counts.take()
    with pytest.raises(FullError):
        full.view().create(BALLAST_PATH, bytes(BALLAST_BYTES))
    assert full.counts.take().requests == {"create": 1}
    assert not full.told


def test_without_a_ballast_the_store_is_full_and_says_so_once_more() -> None:
    full = Full()
    full.counts.delete(BALLAST_PATH)
    full.quota.fill()
    full.counts.take()
    b = full.view()
    for tries in (2, 1, 1):  # what another client gave up may have made room; what this one gave up did not
        with pytest.raises(FullError):
            b.put("px/0/e", SMALL)
        assert full.counts.take().requests["put"] == tries


def test_a_store_too_full_to_delete_is_full() -> None:
    full = Full()
    faulty = FaultyBackend(full.counts)
    b = WithBallast(faulty, lambda: full.told.append("x"))
    faulty.fail_next("refused", kind="delete")
    with pytest.raises(FullError):
        b.put("px/0/e", SMALL)
    assert there(b) and not full.told
    b.put("px/0/e", SMALL)  # the next one tries again
    assert full.told == ["x"]


def test_other_refusals_leave_it_alone() -> None:
    full = Full()
    faulty = FaultyBackend(full.counts)
    faulty.read_only = True
    with pytest.raises(RefusedError):
        WithBallast(faulty, lambda: full.told.append("x")).put("px/0/e", SMALL)
    assert there(faulty) and not full.told


def test_many_threads_that_fail_together_are_all_served() -> None:
    full, failed = Full(), threading.Barrier(8)

    class AllFailFirst(CountingBackend):
        def create(self, path: str, data: bytes) -> bool:
            try:
                return super().create(path, data)
            except FullError:
                failed.wait(60)
                raise

    counts = AllFailFirst(full.counts)
    b = WithBallast(counts, lambda: full.told.append("x"))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda number: b.create(f"px/0/{number}", SMALL), range(8))) == [True] * 8
    assert full.told == ["x"]
    assert counts.take().requests == {"create": 16, "delete": 1}


def test_many_clients_may_give_it_up_at_once() -> None:
    full = Full()
    views, together = [full.view(str(i)) for i in range(8)], threading.Barrier(8)

    def one(number: int) -> bool:
        together.wait(60)
        return views[number].create(f"px/0/{number}", SMALL)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(8))) == [True] * 8
    assert 1 <= len(full.told) <= 8


def test_once_put_back_it_serves_again() -> None:
    full = Full()
    b = full.view()
    b.put("px/0/a", SMALL)
    full.quota.limit_bytes += len(SMALL)
    assert b.create(BALLAST_PATH, os.urandom(BALLAST_BYTES))
    full.quota.fill()
    b.put("px/0/b", SMALL)
    assert full.told == ["x", "x"]


# --- a workspace over accounts that fill up


class Told(list[str]):
    """The warnings and notices of a workspace, in order, but for those that a slow machine adds."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Notice) and not event.text.startswith("waiting for "):
            self.append(event.text)


ROOMY = 64 << 20


def filling(lab: Lab, *names: str, silent: str = "") -> list[str]:
    """URLs of accounts with a quota; those in `silent` do not tell how much is left."""
    for n in names:
        lab.quotas[n] = Quota(ROOMY)
        if n in silent:
            lab.silent.add(n)
    return lab.urls(*names)


def began(lab: Lab, silent: str = "") -> Workspace:
    """Three accounts, a first push with some files, and all that it left under way has landed."""
    w = lab.init(filling(lab, "a", "b", "c", silent=silent))
    write(w.directory, {f"f{i}": os.urandom(300) for i in range(12)})
    w.push("first")
    return lab.reopen(w)


def ballast(lab: Lab, name: str) -> Path | None:
    found = [p for p in lab.store(name).glob("*/ballast") if p.is_file()]
    assert len(found) <= 1
    return found[0] if found else None


def again(lab: Lab, w: Workspace) -> tuple[Workspace, Told]:
    """The workspace as the next command has it, and what it is told."""
    w.close()
    told = Told()
    return lab.keep(Workspace.open(w.directory, on_event=told)), told


def test_init_leaves_one_on_every_backend(lab: Lab) -> None:
    lab.init([*filling(lab, "a", "b"), lab.url("c", role="storage")])
    found = [p.read_bytes() for n in "abc" if (p := ballast(lab, n))]
    assert [len(data) for data in found] == [BALLAST_BYTES] * 3
    assert len(set(found)) == 3
    assert all(len(zlib.compress(data)) > 0.99 * BALLAST_BYTES for data in found)


def test_init_without_room_for_it_leaves_nothing(lab: Lab) -> None:
    urls = filling(lab, "a", "b", "c")
    lab.quotas["b"].limit_bytes = BALLAST_BYTES
    with pytest.raises(FullError, match="b: "):
        lab.init(urls)
    assert not (lab.root / "laptop" / ".metasync").exists()
    for n in "abc":
        assert not [p for p in lab.store(n).rglob("*") if p.is_file()]


def voters(lab: Lab, silent: str = "") -> tuple[Workspace, Workspace]:
    """Two devices over three voters, of which b is down from now on, and a store for data: a's vote is needed."""
    urls = [*filling(lab, "a", "b", "c", silent=silent), lab.url("d", role="storage")]
    w = lab.init(urls)
    write(w.directory, {f"f{i}": os.urandom(300) for i in range(12)})
    w.push("first")
    c = lab.clone(urls)
    w.close()
    c.close()
    lab.faults["b"].down = True
    return w, c


@pytest.mark.few(1)
@pytest.mark.parametrize("silent", ["", "abc"])
def test_agreement_goes_on_where_one_is_full(lab: Lab, silent: str) -> None:
    w, c = voters(lab, silent)
    lab.quotas["a"].fill()
    for device in (w, c, w, c):  # several devices, several versions: the reserve lasts
        device, told = again(lab, device)
        device.pull()
        write(device.directory, {f"by {device.directory.name}": os.urandom(20_000)})
        r = device.push()
        assert (r.version is not None, r.under_replicated) == (True, 0)
        device.close()
        full = [t for t in told if t.startswith("a is full: its reserve was used")]
        assert len(full) == (r.version == 3), "told once, by who used it"
    assert ballast(lab, "a") is None
    assert ballast(lab, "b") and ballast(lab, "c")
    lab.faults["b"].down = False
    end = lab.clone(lab.urls("a", "b", "c"), device="third")
    assert tree_of(end.directory) == tree_of(c.directory)


def test_without_it_a_full_voter_is_down(lab: Lab) -> None:
    """What the ballast is for: the same without one."""
    w, _ = voters(lab)
    path = ballast(lab, "a")
    assert path is not None
    path.unlink()
    lab.quotas["a"].sizes = {k: v for k, v in lab.quotas["a"].sizes.items() if not k.endswith("/ballast")}
    lab.quotas["a"].fill()
    w, _ = again(lab, w)
    write(w.directory, {"new": os.urandom(20_000)})
    lab.hurry(proposing=True)
    with pytest.raises(NoQuorumError, match="free space on a, then run again"):
        w.push()


def test_the_state_is_shown_until_space_is_back(lab: Lab) -> None:
    w = began(lab)
    lab.quotas["a"].fill()
    write(w.directory, {"new": b"1"})
    w.push()
    for _ in range(2):
        w = lab.reopen(w)
        states = {b.name: b for b in w.backends()}
        assert (states["a"].state, states["a"].reserve_used) == ("full: its reserve was used", True)
        assert (states["b"].state, states["b"].reserve_used) == ("ok", False)
        assert {b.name: b.state for b in w.status().backends}["a"] == "full: its reserve was used"
    w.close()
    ran = lab.cli("status")
    assert ran.code == 0 and "full: its reserve was used" in ran.out
    assert lab.cli("backend", "list", "--json").json["backends"][0]["reserve_used"] is True


@pytest.mark.few(1)
@pytest.mark.parametrize("silent", ["", "a"])
@pytest.mark.parametrize("changed", [True, False])
def test_a_later_push_puts_it_back(lab: Lab, silent: str, changed: bool) -> None:
    w = began(lab, silent)
    lab.quotas["a"].fill()
    write(w.directory, {"new": b"1"})
    w.push()
    w, told = again(lab, w)
    lab.counts["a"].take()
    assert w.push().version is None
    assert lab.counts["a"].take().errors["create"] == (1 if silent else 0), "tried once, or known to be of no use"
    assert ballast(lab, "a") is None and not told
    lab.quotas["a"].other_bytes = 0
    w, told = again(lab, w)
    if changed:
        write(w.directory, {"newer": b"2"})
    assert (w.push().version is not None) is changed
    path = ballast(lab, "a")
    assert path is not None and path.stat().st_size == BALLAST_BYTES
    assert told == ["a has space again: its reserve was put back"]
    assert {b.state for b in w.backends()} == {"ok"}
    lab.quotas["a"].fill()
    w, told = again(lab, w)
    write(w.directory, {"newest": b"3"})
    assert w.push().version is not None
    w.close()
    assert ballast(lab, "a") is None, "and serves again"


def test_nothing_is_asked_about_it_when_nothing_is_wrong(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = began(lab)
    seen: list[str] = []
    for kind in ("create", "put", "get", "stat", "delete"):
        real = getattr(CountingBackend, kind)

        def noting(self: CountingBackend, path: str, *rest: object, _real: object = real, **part: object) -> object:
            seen.append(path)
            return _real(self, path, *rest, **part)

        monkeypatch.setattr(CountingBackend, kind, noting)
    write(w.directory, {"new": b"1"})
    w.push()
    w = lab.reopen(w)
    w.push()
    w.pull()
    w.status()
    assert seen and not [p for p in seen if p.endswith("ballast")]


def test_what_is_left_of_it_is_not_for_packs(lab: Lab) -> None:
    """A full account that does not tell: after the ballast went, small packs would fit where it was."""
    w = began(lab, "a")
    lab.quotas["a"].fill()
    write(w.directory, {"new": b"1"})
    w.push()
    for i in range(6):
        w = lab.reopen(w)
        before = len(lab.objects("a", "packs"))
        write(w.directory, {f"new{i}": os.urandom(5000)})
        lab.counts["a"].take()
        r = w.push()
        assert (r.version is not None, r.under_replicated) == (True, 0)
        assert len(lab.objects("a", "packs")) == before
        assert lab.counts["a"].take().errors["create"] == 1, "the ballast is tried once"


def test_a_workspace_closes_its_database_whatever_fails(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = began(lab)
    w._connections.given_up.add("a")
    monkeypatch.setattr(LocalDb, "set_value", lambda *_: (_ for _ in ()).throw(MetaSyncError("the disk is full")))
    with pytest.raises(MetaSyncError, match="the disk is full"):
        w.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        w._db._db.execute("SELECT 1")


@pytest.mark.long
def test_all_full_and_files_were_deleted(lab: Lab) -> None:
    """Trees are packs too: a deletion needs one of a few hundred bytes, and has it from the reserve."""
    w = began(lab)
    for n in "abc":
        lab.quotas[n].fill()
    for i in range(5):
        (w.directory / f"f{i}").unlink()
        (w.directory / f"f{i + 5}").rename(w.directory / f"renamed {i}")
        w = lab.reopen(w)
        r = w.push()
        assert (r.packs, r.under_replicated, r.changes.deleted != ()) == (1, 0, True)
    w.close()
    assert {ballast(lab, n) for n in "abc"} == {None}
    assert lab.cli("check").code == 0
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)


def test_all_full_and_files_are_new(lab: Lab) -> None:
    w = began(lab)
    for n in "abc":
        lab.quotas[n].fill(leaving_bytes=10_000)
    write(w.directory, {"big": os.urandom(50_000)})
    before = tree_of(w.directory)
    w.close()
    ran = lab.cli("push")
    assert ran.code == 1
    for n in "abc":
        assert f"{n}: " in ran.err
        assert ballast(lab, n), "packs leave it alone"
    assert re.search(r"every backend is full: none has room for a pack of 5\d\.\d KiB", ran.err)
    assert re.search(r"a: [89]\.8 KiB are free there; a pack of ", ran.err)  # an entry of the log may be there before
    assert "nothing is lost" in ran.err
    assert tree_of(w.directory) == before
    for n in "abc":
        lab.quotas[n].other_bytes = 0
    assert lab.cli("push").code == 0
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == before


def test_one_that_went_missing_is_no_error(lab: Lab) -> None:
    w = began(lab)
    for n in "abc":
        path = ballast(lab, n)
        assert path is not None
        path.unlink()
    w = lab.reopen(w)
    write(w.directory, {"new": b"1"})
    assert w.push().version == 2
    assert {b.state for b in w.backends()} == {"ok"}
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)


def test_check_looks_for_it_and_puts_it_back(lab: Lab) -> None:
    w = began(lab)
    for n in "ab":
        path = ballast(lab, n)
        assert path is not None
        path.unlink()
    w = lab.reopen(w)
    lab.quotas["b"].fill()
    w.close()
    ran = lab.cli("check")
    assert ran.code == 0, "a missing reserve is no fault of the data"
    assert "All is there, as often as promised." in ran.out
    assert "note: a: its reserve was missing, and was put back" in ran.out
    assert "note: b: its reserve is missing, and could not be put back; is there space?" in ran.out
    assert ballast(lab, "a") and ballast(lab, "b") is None
    w = lab.keep(Workspace.open(w.directory))
    assert {b.name: b.reserve_used for b in w.backends()} == {"a": False, "b": True, "c": False}
    lab.quotas["b"].other_bytes = 0
    assert w.check().notes == ("b: its reserve was missing, and was put back",)
    assert w.check().notes == ()
    assert not any(b.reserve_used for b in w.backends())


def test_check_writes_none_into_a_store_that_was_emptied(lab: Lab) -> None:
    w = began(lab)
    w.close()
    for path in lab.store("a").rglob("*"):
        if path.is_file():
            path.unlink()
    w = lab.keep(Workspace.open(w.directory))
    assert not [note for note in w.check().notes if note.startswith("a:")]
    assert ballast(lab, "a") is None


# --- a file system that is really full


@pytest.fixture
def small_disks(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Three file systems of 2 MiB; skips where this user may not mount any."""
    disks = {n: tmp_path / "disks" / n for n in "abc"}
    mounted: list[Path] = []
    try:
        for disk in disks.values():
            disk.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=60)
            except (OSError, subprocess.SubprocessError):
                pytest.skip("no right to mount a file system here")
            mounted.append(disk)
        yield disks
    finally:
        for disk in mounted:
            subprocess.run(["umount", "-l", str(disk)], check=True, timeout=60)


def free_bytes(disk: Path) -> int:
    room = os.statvfs(disk)
    return room.f_bavail * room.f_frsize


def fill_up(disk: Path) -> None:
    """To the last byte."""
    with (disk / "other").open("ab", buffering=0) as file:
        step = 1 << 16
        while step:
            try:
                step = step if file.write(bytes(step)) == step else step // 2
            except OSError:
                step //= 2
    assert free_bytes(disk) == 0


def test_a_full_folder_keeps_no_half_file(small_disks: dict[str, Path]) -> None:
    disk = small_disks["a"]
    b = FolderBackend(str(disk))
    b.put("d/there", b"before")
    fill_up(disk)
    for number in range(3):
        for call in (b.create, b.put):
            with pytest.raises(FullError, match="No space left"):
                call(f"d/{number}", bytes(5000))
            with pytest.raises(FullError, match="No space left"):
                call(f"new/{number}/x", bytes(5000))
    with pytest.raises(FullError):
        b.put("d/there", bytes(5000))
    assert b.get("d/there", max_bytes=10) == b"before"
    assert sorted(p.name for p in disk.rglob("*") if p.is_file()) == ["other", "there"]


def test_a_disk_filled_to_the_last_byte_still_votes(lab: Lab, small_disks: dict[str, Path]) -> None:
    urls = [f"file://{disk}/root?name={n}" for n, disk in small_disks.items()]
    w = Workspace.init(lab.root / "laptop", name="docs", backends=urls, passphrase=PASSPHRASE, kdf=CHEAP).workspace
    write(w.directory, {f"f{i}": os.urandom(300) for i in range(12)})
    lab.keep(w).push("first")
    c = lab.clone(urls)
    w.close()
    c.close()
    full = small_disks["a"]
    fill_up(full)
    write(c.directory, {"from the desktop": os.urandom(20_000)})
    away = small_disks["b"] / "away"
    (small_disks["b"] / "root").rename(away)  # now a version needs the vote of the full one
    with Workspace.open(c.directory) as device:
        r = device.push()
    assert (r.version is not None, r.under_replicated) == (True, 1)
    assert not list(full.glob("root/*/ballast"))
    away.rename(small_disks["b"] / "root")
    for n in "bc":
        fill_up(small_disks[n])
    for i in range(3):
        (w.directory / f"f{i}").unlink()
        with Workspace.open(w.directory) as device:
            device.pull()
            r = device.push()
        assert (r.version is not None, r.under_replicated) == (True, 0)
    write(w.directory, {"too large": os.urandom(400_000)})
    before = tree_of(w.directory)
    with Workspace.open(w.directory) as device, pytest.raises(FullError, match="every backend is full"):
        device.push()
    assert tree_of(w.directory) == before
    for disk in small_disks.values():
        (disk / "other").unlink()
        assert not [p for p in disk.rglob("*") if p.name.startswith(".tmp-")], "no half file stays"
    with Workspace.open(w.directory) as device:
        assert device.push().under_replicated == 0
        report = device.check(read_data=True)
        assert (report.lost, report.short) == ((), 1), "the copy that b missed while it was away"
    assert all(list(disk.glob("root/*/ballast")) for disk in small_disks.values()), "there is space again"
    with Workspace.open(c.directory) as device:
        device.pull()
    assert tree_of(c.directory) == tree_of(w.directory)


@pytest.mark.long
def test_when_even_the_reserve_ends_nothing_is_lost(lab: Lab) -> None:
    w = began(lab)
    for n in "abc":
        lab.quotas[n].fill()
    versions = 0
    for i in range(12):
        (w.directory / f"f{i}").unlink()
        if i == 3:
            for n in "abc":
                lab.quotas[n].fill()  # somebody else takes what the ballast had left
        w = lab.reopen(w)
        try:
            versions += w.push().version is not None
        except MetaSyncError as e:
            assert "are free" in str(e) or "full" in str(e)
            break
    assert versions == 3
    before = tree_of(w.directory)
    for n in "abc":
        lab.quotas[n].other_bytes = 0
    w = lab.reopen(w)
    w.push()
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory) == before
