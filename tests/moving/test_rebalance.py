"""Data move after the backends changed: nothing is lost at any step, and in the end all is where it belongs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from crash_kit import DEAD, NAME, Child, die_at_call, quiet_environment, run_clone, run_init, run_push, run_rebalance
from effort import few_and_many
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.consensus import Change
from metasync.errors import UnreachableError, UsageError, WeakeningError
from metasync.maintenance.repair import mend
from metasync.moving import rebalance as rebalancing
from metasync.objects.model import ObjectKind
from metasync.reports.backends import RebalanceReport
from metasync.session import agreement
from metasync.session.session import Session
from metasync.store.moves import Places
from metasync.store.retention import Keep
from metasync.testing.quota import Quota
from metasync.workspace import Workspace

quiet_environment()

PUSHES = 14  # that none of them is mapped to a fourth backend has a chance of 1 in 16,384


def fill(w: Workspace, pushes: int = PUSHES, mark: str = "") -> None:
    """Pushes some packs."""
    for n in range(pushes):
        write(w.directory, {f"dir{n % 3}/file{mark}{n}": f"{mark} {n} ".encode() * 700})
        w.push(f"push {mark}{n}")


def add(lab: Lab, w: Workspace, name: str) -> None:
    w.backend_add(lab.url(name), passphrase=PASSPHRASE)


def all_is_in_place(lab: Lab, w: Workspace) -> None:
    """Every pack that the index names lies on exactly the backends that it belongs on, once, and is intact there."""
    with w._session("test") as s:
        index, places = agreement.newest(s).index, Places(s.config, s.previous)
        names = {b.backend_id: b.name for b in s.config.backends}
        assert s.previous is None
        want = sorted((names[i], p.name.hex()) for p in index.packs().values() for i in places.primary(p.name))
    have = [(n, path.name) for n in names.values() for path in lab.objects(n, "packs")]
    assert sorted(have) == want
    report = w.check(read_data=True)
    assert (report.problems, report.lost, report.short) == ((), (), 0)


def readable_without_any(lab: Lab, w: Workspace) -> None:
    """All that the newest index names can be read byte for byte with any one backend away."""
    with w._session("test") as s:
        agreed = agreement.newest(s)
        ids = [o.id for p in agreed.index.packs().values() for o in agreed.index.inside(p) if o.kind == ObjectKind.BLOB]
    for name in sorted({b.name for b in w.backends()}):
        lab.faults[name].down = True
        try:
            with w._session("test") as s:
                got: set[bytes] = set()
                s.contents(agreed).fetch(ids, lambda objects, got=got: got.update(o.id for o, _ in objects))
                assert got == set(ids), name
        finally:
            lab.faults[name].down = False


@pytest.mark.long
def test_add_remove_resize_and_other_numbers_of_copies_one_after_another(lab: Lab) -> None:
    """Ten changes, each with a push after it; between any two all is in place, and everything readable."""
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w, 6)

    def copies(n: int) -> None:
        w.set_copies(n, passphrase=PASSPHRASE)

    changes = [
        lambda: add(lab, w, "d"),
        lambda: copies(3),
        lambda: w.backend_remove("a", passphrase=PASSPHRASE),
        lambda: w.backend_set("d", capacity_bytes=1 << 30),
        lambda: copies(2),
        lambda: add(lab, w, "e"),
        lambda: w.backend_set("e", role="storage", passphrase=PASSPHRASE),
        lambda: w.backend_remove("b", passphrase=PASSPHRASE),
        lambda: add(lab, w, "f"),
        lambda: w.backend_remove("d", passphrase=PASSPHRASE),
    ]
    for number, change in enumerate(changes):
        change()
        readable_without_any(lab, w)
        fill(w, 1, f"{number}-")
        report = w.rebalance()
        assert report.is_whole, report
        assert w.status().moving.packs == 0
        assert w.status().short == 0
        all_is_in_place(lab, w)
    readable_without_any(lab, w)
    assert w.rebalance() == RebalanceReport(False, None, w.status().fingerprint, w.status().moving)
    desktop = lab.clone(lab.urls("c", "e", "f"))
    assert {k: v.data for k, v in tree_of(desktop.directory).items()} == {
        k: v.data for k, v in tree_of(w.directory).items()
    }


@pytest.mark.long
def test_a_dry_run_tells_what_is_done_then(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w)
    assert w.rebalance(dry_run=True).is_whole
    add(lab, w, "d")
    before = {n: len(lab.objects(n, "packs")) for n in "abcd"}
    plan = w.rebalance(dry_run=True)
    assert {n: len(lab.objects(n, "packs")) for n in "abcd"} == before
    assert plan.left.packs
    done = w.rebalance()
    assert (done.sent, done.freed) == (plan.sent, plan.freed)
    assert [x.backend for x in done.sent] == ["d"], "what did not change hands stays"
    assert done.version is not None


def test_changes_while_data_move_are_merged(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w)
    add(lab, w, "d")
    fill(w, 3, "d")
    w.set_copies(3)
    fill(w, 3, "3")
    w.backend_remove("a", passphrase=PASSPHRASE)
    fill(w, 3, "a")
    w.set_copies(2, passphrase=PASSPHRASE)
    readable_without_any(lab, w)
    assert w.rebalance().is_whole
    all_is_in_place(lab, w)
    readable_without_any(lab, w)


@pytest.mark.long
def test_the_ninth_change_while_data_move_says_what_it_waits_for(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w, 2)
    for n in range(9):
        w.set_copies(2 + (n + 1) % 2, passphrase=PASSPHRASE)
    with pytest.raises(UsageError, match="data of earlier changes still move") as told:
        w.set_copies(2, passphrase=PASSPHRASE)
    assert "moves them; then" in (told.value.next_step or ""), "nothing is known of lines that sent so little"
    w.backend_set("a", new_name="alpha")
    assert w.rebalance().is_whole
    w.set_copies(2, passphrase=PASSPHRASE)


@pytest.mark.few(1)
@pytest.mark.parametrize("replaced", [False, True])
def test_a_backend_that_dies_after_eight_merged_changes_is_taken_out(lab: Lab, replaced: bool) -> None:
    """The move waits for the dead one, so taking that out must not wait for the move."""
    w = lab.init(lab.urls("a", "b", "c", "d"), byzantine=False)
    fill(w, 4)
    for n in range(9):
        w.set_copies(2 + (n + 1) % 2, passphrase=PASSPHRASE)
    lab.lose("d")
    w = lab.reopen(w)
    assert not w.rebalance().is_whole
    with pytest.raises(UsageError, match="8 changes were merged"):
        w.set_copies(2, passphrase=PASSPHRASE)
    if replaced:
        w.backend_add(lab.url("e"), replaces="d", passphrase=PASSPHRASE)
    else:
        w.backend_remove("d", passphrase=PASSPHRASE, dead=True)
    w = lab.reopen(w)
    assert w.rebalance().is_whole
    all_is_in_place(lab, w)
    readable_without_any(lab, w)
    w.set_copies(2, passphrase=PASSPHRASE)


@pytest.mark.long
def test_a_dead_backend_goes_after_an_earlier_change(lab: Lab) -> None:
    """While data move to a new backend another one dies: it is taken out, and the data move all the same."""
    w = lab.init(lab.urls("a", "b", "c", "d"), byzantine=False)
    fill(w)
    add(lab, w, "e")
    with w._session("test") as s:  # one that a pack on its way belongs on, too
        places, names = Places(s.config, s.previous), {b.backend_id: b.name for b in s.config.backends}
        moved = next(p.name for p in agreement.newest(s).index.packs().values() if places.is_displaced(p.name))
        dead = next(names[i] for i in places.primary(moved) if names[i] != "e")
    lab.lose(dead)
    w = lab.reopen(w)
    report = w.rebalance()
    assert not report.is_whole
    assert [name for name, _ in report.waiting] == [dead]
    w.backend_remove(dead, passphrase=PASSPHRASE)
    report = w.rebalance()
    assert report.is_whole, report
    all_is_in_place(lab, w)
    assert w.status().short == 0


@pytest.mark.long
def test_a_backend_that_is_dead_and_was_to_receive(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c", "d"), byzantine=False)
    fill(w)
    add(lab, w, "e")
    lab.lose("e")
    w = lab.reopen(w)
    assert [name for name, _ in w.rebalance().waiting] == ["e"]
    readable_without_any(lab, w)
    w.backend_remove("e", passphrase=PASSPHRASE)
    assert w.rebalance().is_whole
    all_is_in_place(lab, w)


@pytest.mark.long
def test_a_full_receiver_keeps_it_from_its_end_and_nothing_is_deleted(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w)
    held = {n: len(lab.objects(n, "packs")) for n in "abc"}
    lab.quotas["d"] = Quota(1 << 24)
    add(lab, w, "d")
    lab.quotas["d"].fill()
    report = w.rebalance()
    assert not report.is_whole
    assert report.version is None
    assert [name for name, _ in report.waiting] == ["d"]
    assert {n: len(lab.objects(n, "packs")) for n in "abc"} == held
    readable_without_any(lab, w)
    ran = lab.cli("rebalance")
    assert ran.code == 4
    assert "d keeps it from its end" in ran.out
    lab.quotas["d"].other_bytes = 0
    assert w.rebalance().is_whole
    all_is_in_place(lab, w)


@pytest.mark.long
def test_a_receiver_that_fails_half_way_and_comes_back(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w, 20)
    add(lab, w, "d")
    total = w.rebalance(dry_run=True).sent[0].copies
    w = lab.reopen(w)
    w.backends()
    real, left = lab.faults["d"].put, [1]

    def put(path: str, data: bytes) -> None:
        left[0] -= "/packs/" in path
        if left[0] < 0:
            raise UnreachableError("d: it does not answer")
        real(path, data)

    monkeypatch.setattr(lab.faults["d"], "put", put)
    report = w.rebalance()
    assert not report.is_whole
    assert [name for name, _ in report.waiting] == ["d"]
    readable_without_any(lab, w)
    monkeypatch.undo()
    left[0] = 1 << 30
    w = lab.reopen(w)
    report = w.rebalance()
    assert report.is_whole, report
    assert report.sent[0].copies < total, "what was brought before is not brought again"
    all_is_in_place(lab, w)


@pytest.mark.long
def test_a_backend_that_claims_a_write_it_did_not_do(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w)
    held = {n: len(lab.objects(n, "packs")) for n in "abc"}
    add(lab, w, "d")
    w = lab.reopen(w)
    w.backends()
    real, claims = lab.faults["d"].put, [True]

    def put(path: str, data: bytes) -> None:
        if "/packs/" in path and claims[0]:
            return
        real(path, data)

    monkeypatch.setattr(lab.faults["d"], "put", put)
    report = w.rebalance()
    assert not report.is_whole
    assert report.version is None
    assert "has not what was stored there" in dict(report.waiting)["d"]
    assert {n: len(lab.objects(n, "packs")) for n in "abc"} == held
    readable_without_any(lab, w)
    claims[0] = False
    assert w.rebalance().is_whole
    all_is_in_place(lab, w)


def test_a_backend_that_stores_other_bytes_is_found_out(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w)
    held = {n: len(lab.objects(n, "packs")) for n in "abc"}
    add(lab, w, "d")
    w = lab.reopen(w)
    w.backends()
    real = lab.faults["d"].put
    monkeypatch.setattr(
        lab.faults["d"], "put", lambda path, data: real(path, data[::-1] if "/packs/" in path else data)
    )
    assert not w.rebalance().is_whole
    assert {n: len(lab.objects(n, "packs")) for n in "abc"} == held
    readable_without_any(lab, w)


def test_two_devices_move_at_once(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w, 16)
    desktop = lab.clone(lab.urls("a", "b", "c"))
    add(lab, w, "d")
    desktop.pull()
    desktop.link("d", lab.url("d"))
    reports: list[RebalanceReport] = []
    devices = [threading.Thread(target=lambda x=x: reports.append(x.rebalance())) for x in (w, desktop)]
    for t in devices:
        t.start()
    for t in devices:
        t.join(60)
    assert [r.is_whole for r in reports] == [True, True], reports
    assert sum(r.version is not None for r in reports) >= 1
    all_is_in_place(lab, w)
    all_is_in_place(lab, desktop)


@pytest.mark.long
def test_a_pusher_with_the_old_backends_beside_a_mover(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packs of a push are stored; before it is agreed another device adds a backend, moves all and frees."""
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w)
    desktop = lab.clone(lab.urls("a", "b", "c"))
    write(desktop.directory, {f"new{n}": f"new {n} ".encode() * 900 for n in range(40)})
    real, waiting = agreement.propose, [True]

    def propose(s: Session, *args: object, **kwargs: object) -> object:
        if waiting and s.directory == desktop.directory:
            waiting.clear()
            add(lab, w, "d")
            assert w.rebalance().is_whole
            w.backend_remove("a", passphrase=PASSPHRASE)
            assert w.rebalance().is_whole
        return real(s, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(agreement, "propose", propose)
    assert desktop.push().version is not None
    monkeypatch.undo()
    assert not waiting
    assert w.check(read_data=True).short == 0, "the packs of the push were placed anew"
    readable_without_any(lab, w)
    w.pull()
    assert tree_of(w.directory) == tree_of(desktop.directory)


@pytest.mark.long
def test_a_reader_with_the_old_backends_beside_a_mover(lab: Lab) -> None:
    """While a device reads by an old version all data move, and what it knew of is deleted: it looks again."""
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w)
    w.set_copies(1, passphrase=PASSPHRASE)
    for name, size in (("a", 1 << 40), ("b", 1 << 10), ("c", 1 << 10)):
        w.backend_set(name, capacity_bytes=size)
    assert w.rebalance().is_whole
    assert len(lab.objects("a", "packs")) == PUSHES
    desktop = lab.clone(lab.urls("a", "b", "c"))
    with desktop._session("test") as s:
        agreed = s.base()
        contents = s.contents(agreed)
        w.backend_set("a", capacity_bytes=1 << 10)
        w.backend_set("b", capacity_bytes=1 << 40)
        assert w.rebalance().is_whole
        all_is_in_place(lab, w)
        assert lab.objects("a", "packs") == []
        ids = [o.id for p in agreed.index.packs().values() for o in agreed.index.inside(p) if o.kind == ObjectKind.BLOB]
        got: set[bytes] = set()
        contents.fetch(ids, lambda objects: got.update(o.id for o, _ in objects))
        assert got == set(ids)


@pytest.mark.long
def test_others_change_the_backends_between_verifying_and_the_trim(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w)
    desktop = lab.clone(lab.urls("a", "b", "c"))
    add(lab, w, "d")
    desktop.pull()
    desktop.link("d", lab.url("d"))
    real, waiting = agreement.propose, [True]

    def propose(s: Session, base: object, change: Change, **kwargs: object) -> object:
        if waiting and s.directory == w.directory:
            waiting.clear()
            desktop.backend_remove("a", passphrase=PASSPHRASE)
        return real(s, base, change, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(agreement, "propose", propose)
    report = w.rebalance()
    monkeypatch.undo()
    assert not waiting
    assert report.is_whole
    all_is_in_place(lab, w)
    readable_without_any(lab, w)


@pytest.mark.long
def test_old_versions_are_collected_while_data_move(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs that are on their way are dropped by another device, before the move and in the middle of it."""
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w)
    write(w.directory, {f"dir{n % 3}/file{n}": f"again {n}".encode() * 300 for n in range(PUSHES)})
    w.push()
    desktop = lab.clone(lab.urls("a", "b", "c"))
    add(lab, w, "d")
    desktop.pull()
    desktop.link("d", lab.url("d"))
    real, waiting = rebalancing._trim, [True]

    def trim(s: Session, mover: rebalancing.Mover) -> int | None:
        if waiting:
            waiting.clear()
            desktop.gc(Keep(last=1))
        return real(s, mover)

    monkeypatch.setattr(rebalancing, "_trim", trim)
    report = w.rebalance()
    assert not waiting
    assert report.is_whole, report
    desktop.gc(Keep(last=1))
    with w._session("test") as s:
        assert len(agreement.newest(s).index.packs()) < PUSHES, "old versions went"
    all_is_in_place(lab, w)


def test_a_restart_in_the_middle_of_a_move(lab: Lab) -> None:
    """Most votes are lost while data move: the new era goes on with the move, from wherever the packs lie."""
    votes = [lab.url(n) for n in "abc"]
    w = lab.init([*votes, *(lab.url(n, role="storage") for n in "de")], replicas=3)
    fill(w)
    add(lab, w, "f")
    w.set_copies(4)
    lab.lose("a")
    lab.lose("b")
    lab.hurry()
    w = lab.reopen(w)
    report = w.recover(["a", "b"], PASSPHRASE, confirm="docs")
    assert report.lost_packs == 0
    w = lab.reopen(w)
    assert w.rebalance().is_whole
    all_is_in_place(lab, w)


def test_what_nobody_has_is_named_and_blocks_nothing(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w)
    add(lab, w, "d")
    with w._session("test") as s:
        places = Places(s.config, s.previous)
        lost = next(p for p in agreement.newest(s).index.packs().values() if places.is_displaced(p.name))
    for name in "abc":
        for path in lab.objects(name, "packs"):
            if path.name == lost.name.hex():
                path.unlink()
    report = w.rebalance()
    assert report.lost == (lost.name,)
    assert report.version is not None
    assert lab.cli("rebalance").code == 0, "what is lost is told by check from now on"


def moved_and_not_freed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A fourth backend `d` got its data, and the mover died after the trim."""
    from metasync.moving import surplus

    w = lab.init(lab.urls("a", "b", "c"))
    fill(w)
    add(lab, w, "d")
    with monkeypatch.context() as patch:
        patch.setattr(surplus, "free", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            w.rebalance()
    return w


def test_a_copy_is_not_deleted_where_one_that_counts_went_bad_meanwhile(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mover dies after the trim. Before another one deletes, a copy that counts is damaged: it is made good first."""
    w = moved_and_not_freed(lab, monkeypatch)
    for path in lab.objects("d", "packs"):
        path.write_bytes(path.read_bytes()[::-1])
    w = lab.reopen(w)
    report = w.rebalance()
    assert report.is_whole
    assert report.sent, "the bad ones were made good from those that were surplus"
    all_is_in_place(lab, w)


@pytest.mark.long
def test_a_copy_that_was_given_up_excuses_no_other(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mover dies after the trim, and copies that count are lost. Others may delete at any time what is surplus then,
    so it does not stand in for them."""
    w = moved_and_not_freed(lab, monkeypatch)
    lost = lab.objects("d", "packs")
    for path in lost:
        path.unlink()
    w = lab.reopen(w)
    found = w.check()
    assert {p.pack.hex() for p in found.problems if p.backend == "d"} == {path.name for path in lost}
    assert not found.lost
    mended = w.check(repair=True)
    assert mended.repaired is not None
    assert mended.repaired.copies == len(lost)
    assert not mended.problems
    w.rebalance()
    all_is_in_place(lab, w)


@pytest.mark.long
@few_and_many("stride", 41, 1)
def test_killed_at_any_call_and_gone_on_with(tmp_path: Path, stride: int) -> None:
    """The mover dies at call after call, on two devices in turn; at the end all is in place, and nothing was lost."""
    urls, a, b = [f"file://{tmp_path}/b{n}" for n in range(3)], str(tmp_path / "a"), str(tmp_path / "b")
    run_init(a, urls)
    for n in range(12):
        write(tmp_path / "a", {f"f{n}": f"{n} ".encode() * 2000})
        run_push(a)
    run_clone(b, urls, NAME, "b")
    before = {k: v.data for k, v in tree_of(tmp_path / "a").items()}
    new = f"file://{tmp_path}/d?name=d"
    with Workspace.open(a) as one:
        one.backend_add(new, passphrase=PASSPHRASE)
    with Workspace.open(b) as two:
        two.pull()
        two.link("d", new)
    struck, k = 0, 1
    while True:
        good, value = Child(die_at_call, k, run_rebalance, (a, b)[struck % 2]).outcome()
        if good:
            assert value[1]
            break
        assert str(DEAD) in value
        struck += 1
        k += stride
        with Workspace.open(a) as one:
            one.restore("latest", to=tmp_path / f"out{struck}")
        assert {p: v.data for p, v in tree_of(tmp_path / f"out{struck}").items()} == before
    assert struck > 1
    for folder in (a, b):
        with Workspace.open(folder) as w:
            assert w.rebalance().is_whole
            report = w.check(read_data=True)
            assert (report.problems, report.lost, report.short) == ((), (), 0)
            assert w.status().moving.packs == 0
            write(Path(folder), {"after": folder.encode()})
            w.pull()
            assert w.push().version is not None


def test_refusals(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    for n in (0, 256, 4):
        with pytest.raises(UsageError, match="cop"):
            w.set_copies(n)
    with pytest.raises(WeakeningError):
        w.set_copies(1)
    assert w.copies == 2
    assert w.set_copies(3, dry_run=True).version is None
    assert lab.cli("config", "set", "copies", "3").code == 0
    assert lab.cli("config", "get", "copies").out == "3\n"
    assert lab.cli("config", "set", "copies", "many").code == 2


def test_the_command(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w)
    add(lab, w, "d")
    assert "Next: metasync rebalance" in lab.cli("status").out
    plan = lab.cli("rebalance", "--dry-run")
    assert plan.code == 0
    assert "Would copy" in plan.out
    assert "Would delete" in plan.out
    done = lab.cli("--json", "rebalance", "--read-data")
    assert done.code == 0, done.err
    assert done.json["left"] == {"packs": 0, "bytes": 0, "seconds": None}
    assert done.json["version"] is not None
    assert lab.cli("rebalance").out == "Nothing to move: all is where it belongs.\n"
    assert lab.cli("status").code == 0


def test_a_repair_leaves_out_a_backend_on_which_a_copy_counts_no_more(lab: Lab) -> None:
    """The backends were changed between what a check found and its repair."""
    w = lab.init(lab.urls("a", "b", "c"))
    fill(w)
    add(lab, w, "d")
    w.rebalance()
    with w._session("test") as s:
        index, places = agreement.newest(s).index, Places(s.config, s.previous)
        ids = [b.backend_id for b in s.config.backends]
        record, gone = next((p, i) for p in index.packs().values() for i in ids if not places.ids(i, p.name))
        found = mend.Finding(record, places.primary(record.name), (gone,), is_sure=True)
        assert mend._mend(s, [found]) == mend._Made()
    all_is_in_place(lab, w)
