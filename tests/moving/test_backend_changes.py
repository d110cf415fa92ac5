"""Backends are added, removed and changed while devices push: whole workspaces, library and command line."""

from __future__ import annotations

import os
import shutil
import threading
from hashlib import sha256
from pathlib import Path

import pytest
from crash_kit import (
    NAME,
    Child,
    die_at_call,
    quiet_environment,
    run_backend_add,
    run_backend_role,
    run_clone,
    run_init,
    run_push,
)
from effort import few_and_many
from workspace_kit import PASSPHRASE, Lab, tree_of, wipe, write

from metasync.backends.folder import FolderBackend
from metasync.backends.memory import MemoryBackend
from metasync.config import Config
from metasync.errors import (
    MetaSyncError,
    NoQuorumError,
    PassphraseError,
    UnreachableError,
    UsageError,
    WeakeningError,
)
from metasync.events import Notice
from metasync.runtime.effects import Op, each
from metasync.session import agreement
from metasync.session.session import Session
from metasync.store import placement
from metasync.store.index import PackRecord
from metasync.testing.faults import FaultyBackend, Plan
from metasync.transfer.copies import Place, pack_path
from metasync.workspace import Workspace

quiet_environment()

FILES = {f"dir{n % 4}/file{n}": os.urandom(3000) for n in range(24)}


PUSHES = 12  # one pack each at least: that none of them is mapped to a new backend has a chance of 1 in 4096


def fill(lab: Lab, w: Workspace) -> None:
    """Pushes a dozen packs."""
    for n in range(PUSHES):
        write(w.directory, {f"dir{n % 4}/file{n}": FILES[f"dir{n % 4}/file{n}"]})
        w.push(f"push {n}")


def config_of(w: Workspace) -> Config:
    with w._session("test") as s:
        agreement.ask_newest(s)
        return s.config


def names_of(w: Workspace) -> set[str]:
    return {b.name for b in config_of(w).backends}


def test_an_answer_that_got_lost_is_not_read_as_another_store(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    laptop, desktop = lab.init(lab.urls("a", "b", "c")), lab.clone(lab.urls("a", "b", "c"))
    laptop.backend_add(lab.url("d"))
    desktop.pull()
    lab.faults["d"].plan = no_births = Plan(rates={"unreachable": 1.0}, paths=lambda path: "birth" in path)
    with pytest.raises(UnreachableError):
        desktop.link("d", lab.url("d"))
    lab.faults["d"].plan = Plan()
    assert desktop.link("d", lab.url("d")).state == "ok"
    # The same store at another address of its server, which is another identity.
    monkeypatch.setattr(FolderBackend, "identity", lambda self: sha256(self._root.encode()).digest())
    lab.store("e").symlink_to(lab.store("d"))
    for plan, error in ((no_births, UnreachableError), (Plan(), UsageError)):
        lab.url("e")
        lab.faults["e"] = FaultyBackend(MemoryBackend(), plan=plan)
        with pytest.raises(error, match="birth" if error is UnreachableError else "holds the backend d .* already"):
            laptop.backend_add(lab.url("e"))


def test_add_and_everybody_goes_on(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    fill(lab, laptop)
    desktop = lab.clone(lab.urls("a", "b", "c"))
    report = laptop.backend_add(lab.url("d"))
    assert report.version is not None
    assert (report.voting, report.storing) == (4, 4)
    assert report.moving.packs
    assert "any 2 of the 3 that vote" in report.before
    assert "any 3 of the 4 that vote" in report.after
    assert laptop.backend_list().moving == report.moving
    write(lab.root / "laptop", {"new": b"new bytes"})
    assert laptop.push("second").version == report.version + 2
    desktop.pull()
    assert tree_of(lab.root / "desktop") == tree_of(lab.root / "laptop")
    states = {b.name: b for b in desktop.backends()}
    assert not states["d"].linked
    assert desktop.link("d", lab.url("d")).state == "ok"
    write(lab.root / "desktop", {"from desktop": b"mine"})
    assert desktop.push("third").version is not None
    laptop.pull()
    assert tree_of(lab.root / "desktop") == tree_of(lab.root / "laptop")
    assert laptop.check(read_data=True).problems == ()


def test_clone_from_the_new_backend_and_one_old(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b"))
    fill(lab, laptop)
    laptop.backend_add(lab.url("c"))
    desktop = lab.clone(lab.urls("c", "b"))
    assert tree_of(lab.root / "desktop") == tree_of(lab.root / "laptop")
    lab.faults["a"].down = True
    write(lab.root / "desktop", {"more": b"more"})
    assert desktop.push("from c and b").version is not None


def test_remove_of_a_dead_backend(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    fill(lab, laptop)
    desktop = lab.clone(lab.urls("a", "b", "c"))
    lab.lose("c")
    report = lab.reopen(laptop).backend_remove("c")
    assert report.version is not None
    laptop = lab.reopen(laptop)
    assert names_of(laptop) == {"a", "b"}
    assert report.moving.packs
    write(lab.root / "laptop", {"new": b"new"})
    assert laptop.push("without c").version is not None
    desktop.pull()
    assert tree_of(lab.root / "desktop") == tree_of(lab.root / "laptop")
    fresh = lab.clone(lab.urls("a", "b"), device="fresh")
    assert tree_of(lab.root / "fresh") == tree_of(lab.root / "laptop")
    fresh.close()


@pytest.mark.long
def test_what_only_the_removed_backend_holds_is_not_given_up(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    fill(lab, laptop)
    on_c = {pack.name for pack in lab.objects("c", "packs")}
    for pack in (*lab.objects("a", "packs"), *lab.objects("b", "packs")):
        pack.unlink()
    lab.faults["c"].down = True
    for dry_run in (False, True):
        with pytest.raises(UsageError, match="no copy on another backend"):
            laptop.backend_remove("c", dry_run=dry_run)
    assert names_of(laptop) == {"a", "b", "c"}
    lab.faults["c"].down = False
    assert lab.reopen(laptop).backend_remove("c").version is not None
    assert on_c <= {pack.name for name in "ab" for pack in lab.objects(name, "packs")}


def test_a_removed_backend_is_read_as_long_as_it_is_linked(lab: Lab) -> None:
    laptop = lab.init([*lab.urls("a", "b"), lab.url("c")], replicas=2)
    fill(lab, laptop)
    laptop.backend_remove("c")
    laptop = lab.reopen(laptop)
    for pack in lab.objects("a", "packs"):  # of the pack's two old copies the other one may lie on c
        pack.unlink()
    held = {p.name for name in ("b", "c") for p in lab.objects(name, "packs")}
    assert held
    laptop.restore(str(PUSHES), to=lab.root / "out")
    there = {k: v.data for k, v in tree_of(lab.root / "out").items() if v.kind == "file"}
    assert there == {os.fsencode(k): v for k, v in [*FILES.items()][:PUSHES]}


def test_the_removed_backend_may_be_wiped_and_added_again(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    desktop = lab.clone(lab.urls("a", "b", "c"))
    laptop.backend_remove("c")
    wipe(lab.store("c"))
    write(lab.root / "desktop", {"x": b"x"})
    assert desktop.push("with c wiped").version is not None
    report = laptop.backend_add(lab.url("c"))
    assert (report.voting, report.storing) == (3, 3)
    desktop.pull()
    desktop.link("c", lab.url("c"))
    write(lab.root / "desktop", {"y": b"y"})
    desktop.push("again")
    laptop.pull()
    assert tree_of(lab.root / "desktop") == tree_of(lab.root / "laptop")
    assert laptop.check().meta_problems == ()


def test_refusals_change_nothing(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    fill(lab, laptop)
    version = laptop.status().version
    inside = f"file://{lab.root}/laptop/store"
    for url, why in (
        (lab.url("a"), "a backend of this workspace is called"),
        (f"file://{lab.store('a')}?name=again", "that is the store of the backend a of this workspace already"),
        (inside, "lies inside the workspace"),
    ):
        with pytest.raises(UsageError, match=why):
            laptop.backend_add(url)
    copy = lab.store("copy")
    shutil.copytree(lab.store("b"), copy)
    with pytest.raises(UsageError, match="holds the backend b"):
        laptop.backend_add(f"file://{copy}")
    with pytest.raises(UsageError, match="no backend of this workspace"):
        laptop.backend_remove("nobody")
    with pytest.raises(UsageError, match="another backend is called"):
        laptop.backend_set("a", new_name="b")
    assert laptop.status().version == version
    laptop.backend_remove("c")
    with pytest.raises(UsageError, match=r"2 copies need 2 backends|would stay"):
        laptop.backend_remove("b")


@pytest.mark.long
def test_of_two_emptied_backends_each_is_replaced_where_it_was(lab: Lab) -> None:
    """The replacement of the first gives the second a new place for data, whose birth is written there."""
    names = ("a", "b", "c", "d", "e")
    laptop = lab.init(lab.urls(*names), replicas=3)
    fill(lab, laptop)
    with pytest.raises(UsageError, match="holds the backend d") as refused:
        laptop.backend_add(f"file://{lab.store('d')}?name=new", replaces="d")
    assert "Empty that store" in (refused.value.next_step or "")
    for name in ("d", "e"):
        for path in lab.store(name).iterdir():
            shutil.rmtree(path)
    laptop.backend_add(f"file://{lab.store('d')}?name=d2", replaces="d")
    assert any(lab.store("e").iterdir())
    laptop.backend_add(f"file://{lab.store('e')}?name=e2", replaces="e")
    assert names_of(laptop) == {"a", "b", "c", "d2", "e2"}
    laptop.rebalance()
    report = laptop.check(read_data=True)
    assert (report.problems, report.meta_problems, report.lost) == ((), (), ())


@pytest.mark.long
def test_a_rename_while_data_move_changes_nothing_else(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    fill(lab, laptop)
    desktop = lab.clone(lab.urls("a", "b", "c"))
    moving = laptop.backend_add(lab.url("d")).moving
    laptop.backend_set("a", new_name="alpha")
    assert names_of(laptop) == {"alpha", "b", "c", "d"}
    assert laptop.backend_list().moving == moving
    write(lab.root / "laptop", {"new": b"n" * 5000})
    laptop.push("renamed")
    assert laptop.backend_list().moving == moving, "what is pushed since lies where it belongs"
    desktop.pull()
    assert tree_of(lab.root / "desktop") == tree_of(lab.root / "laptop")
    states = {b.name: b for b in desktop.backends()}
    assert states["alpha"].linked
    assert states["alpha"].state == "ok"
    assert desktop.status().moving == moving


def test_a_device_that_comes_meanwhile_knows_what_is_still_to_move(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    fill(lab, laptop)
    moving = laptop.backend_add(lab.url("d")).moving
    assert moving.packs
    desktop = lab.clone(lab.urls("a", "b", "c", "d"))
    assert desktop.status().moving == moving
    desktop = lab.reopen(desktop)
    assert desktop.backend_list().moving == moving
    assert desktop.status().moving == moving


def test_roles_and_capacities(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    assert laptop.backend_set("c", role="storage").voting == 2
    assert laptop.backend_set("c", role="both").voting == 3
    laptop.backend_set("b", capacity_bytes=5 << 30)
    entry = config_of(laptop).named("b")
    assert entry is not None
    assert entry.limit_bytes == 5 << 30
    assert laptop.backend_set("b", capacity_bytes=5 << 30).version is None
    fresh = lab.clone(lab.urls("a", "c"), device="fresh")
    write(lab.root / "fresh", {"x": b"x"})
    assert fresh.push().version is not None


def test_as_many_liars_are_allowed_for_as_are_outvoted(lab: Lab) -> None:
    """Four outvote one at no cost; three cannot, and that is told."""
    laptop = lab.init(lab.urls("a", "b", "c"))
    assert (config_of(laptop).mode, config_of(laptop).f) == ("crash", 0)
    added = laptop.backend_add(lab.url("d"))
    assert "any 1 of them may lie" in added.after
    assert (config_of(laptop).mode, config_of(laptop).f) == ("bft", 1)
    write(lab.root / "laptop", {"x": b"x"})
    assert laptop.push().version is not None
    removed = laptop.backend_remove("d")
    assert "may lie" not in removed.after
    assert (config_of(laptop).mode, config_of(laptop).f) == ("crash", 0)
    write(lab.root / "laptop", {"x": b"y"})
    assert laptop.push().version is not None


@pytest.mark.long
def test_what_weakens_the_workspace_takes_the_passphrase_and_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A liar among four was promised by `init`: three cannot keep that."""
    laptop = lab.init(lab.urls("a", "b", "c", "d"))
    other = lab.clone(lab.urls("a", "b", "c", "d"))
    before = config_of(laptop)
    with pytest.raises(WeakeningError, match="0 backends that lie, and the policy says 1"):
        laptop.backend_remove("d")
    with pytest.raises(PassphraseError, match="wrong passphrase"):
        laptop.backend_remove("d", passphrase="another")
    assert config_of(laptop) == before
    shown = laptop.backend_remove("d", dry_run=True)
    assert any("takes the workspace's passphrase" in text for text in shown.kept)
    monkeypatch.delenv("METASYNC_PASSPHRASE")
    ran = lab.cli("backend", "remove", "d")
    assert (ran.code, "no passphrase" in ran.err) == (2, True)
    monkeypatch.setenv("METASYNC_PASSPHRASE", PASSPHRASE)
    assert lab.cli("backend", "remove", "d").code == 0
    told: list[str] = []
    other.on_event = lambda event: told.append(event.text) if isinstance(event, Notice) else None
    other.pull()
    assert [text for text in told if "may lie" in text and "0 instead of 1" in text]
    assert config_of(other).f == 0
    write(lab.root / "desktop", {"x": b"x"})
    assert other.push().version is not None
    lab.reopen(laptop).key_rotate(PASSPHRASE)  # what is in force becomes what is promised


def test_a_second_vote_that_nobody_vouched_for_takes_the_passphrase(lab: Lab) -> None:
    """One device cannot put votes of its own in the place of all others, one after the other."""
    laptop = lab.init(lab.urls("a", "b", "c"))
    laptop.backend_add(lab.url("d"))
    with pytest.raises(WeakeningError, match="2 of its 4 voting backends"):
        laptop.backend_add(lab.url("e"), replaces="a")
    assert names_of(laptop) == {"a", "b", "c", "d"}
    laptop.backend_add(lab.url("e"), replaces="a", passphrase=PASSPHRASE)
    write(lab.root / "laptop", {"x": b"x"})
    assert laptop.push().version is not None


def test_who_chose_to_allow_for_no_liar_keeps_it_so(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c", "d"), byzantine=False)
    laptop.backend_add(lab.url("e"))
    laptop.backend_remove("d")
    assert (config_of(laptop).mode, config_of(laptop).f) == ("crash", 0)


def test_a_liar_is_allowed_for_by_more_voters_too(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c", "d"))
    assert laptop.backend_add(lab.url("e")).voting == 5
    assert laptop.backend_remove("d").voting == 4
    write(lab.root / "laptop", {"x": b"x"})
    assert laptop.push().version is not None
    assert (config_of(laptop).mode, config_of(laptop).f) == ("bft", 1)


def test_dry_runs_change_nothing(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    fill(lab, laptop)
    lab.store("d").mkdir(parents=True)
    before = {name: len(lab.objects(name, "px")) for name in "abc"}
    report = laptop.backend_add(lab.url("d"), dry_run=True)
    assert report.dry_run
    assert report.version is None
    assert report.storing == 4
    assert report.moving.packs
    assert laptop.backend_remove("c", dry_run=True).storing == 2
    assert not list(lab.store("d").iterdir())
    assert {name: len(lab.objects(name, "px")) for name in "abc"} == before


def test_a_sleeper_over_three_changes(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    sleeper = lab.clone(lab.urls("a", "b", "c"))
    sleeper.close()
    laptop.backend_add(lab.url("d"), passphrase=PASSPHRASE)
    laptop.backend_remove("a")
    laptop.backend_add(lab.url("e"), passphrase=PASSPHRASE)
    write(lab.root / "laptop", {"x": b"x"})
    laptop.push("after all that")
    sleeper = lab.reopen(sleeper)
    lab.hurry(3.0)
    with pytest.raises(NoQuorumError) as e:
        sleeper.pull()
    assert "backend link" in (e.value.next_step or "")
    sleeper.link("d", lab.url("d"))
    sleeper.pull()
    assert tree_of(lab.root / "desktop") == tree_of(lab.root / "laptop")


def test_others_push_meanwhile(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    others = [lab.clone(lab.urls("a", "b", "c"), device=f"other{n}") for n in range(2)]
    errors: list[BaseException] = []

    def pushing(w: Workspace, n: int) -> None:
        try:
            for k in range(4):
                write(lab.root / f"other{n}", {f"of {n}": f"{k}".encode() * 500})
                w.push(f"{n} {k}")
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=pushing, args=(w, n)) for n, w in enumerate(others)]
    for t in threads:
        t.start()
    laptop.backend_add(lab.url("d"))
    for t in threads:
        t.join()
    assert errors == []
    laptop.pull()
    for n in range(2):
        assert (lab.root / "laptop" / f"of {n}").read_bytes() == b"3" * 500
        others[n].pull()
        assert names_of(others[n]) == {"a", "b", "c", "d"}
    assert laptop.check(read_data=True).lost == ()


@pytest.mark.long
def test_a_workspace_that_stays_open_follows_another_process(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    fill(lab, laptop)
    other = lab.keep(Workspace.open(lab.root / "laptop"))
    other.status()
    with other._session("held open") as s:
        laptop.backend_add(lab.url("d"))
        laptop.backend_set("a", new_name="alpha")
        assert agreement.ask_newest(s).config == s.connections.config_hash
        assert {b.name for b in s.config.backends} == {"alpha", "b", "c", "d"}
        assert sorted(s.names.values()) == ["alpha", "b", "c"]  # the way to d is opened with the next operation
    assert {b.name for b in other.backends() if b.linked} == {"alpha", "b", "c", "d"}
    write(lab.root / "laptop", {"x": b"x"})
    assert other.push().version is not None
    assert laptop.push().version is None
    laptop.backend_set("alpha", new_name="a")
    assert {b.name for b in other.backends()} == {"a", "b", "c", "d"}
    assert other.check(read_data=True).lost == ()


@pytest.mark.few(1)
@pytest.mark.parametrize("back_first", [True, False])
def test_a_process_that_could_not_open_a_backend_follows_its_new_name(lab: Lab, back_first: bool) -> None:
    urls = lab.urls("a", "b", "c")
    w = lab.init(urls)
    write(w.directory, {"f": b"1"})
    w.push()
    d = lab.reopen(lab.clone(urls))
    lab.store("b").rename(lab.store("away"))
    assert d.status().newest == w.status().newest
    w.backend_set("b", new_name="bee")
    if not back_first:
        d.pull()
    lab.store("away").rename(lab.store("b"))
    d.pull()
    assert d.pull().version == w.status().newest
    assert {b.name: b.state for b in d.backends()} == {"a": "ok", "bee": "ok", "c": "ok"}


def test_an_add_that_fails_leaves_nothing_agreed(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    url = lab.url("d")
    lab.store("d").mkdir(parents=True)
    Path(lab.store("d")).chmod(0o755)
    laptop.backend_add(url, dry_run=True)
    lab.faults["d"].read_only = True
    with pytest.raises(MetaSyncError):
        laptop.backend_add(url)
    assert names_of(laptop) == {"a", "b", "c"}
    lab.faults["d"].read_only = False
    assert laptop.backend_add(url).voting == 4


STRIDE = int(os.environ.get("METASYNC_RECONFIG_STRIDE", "29"))  # of `make test-long`; 1 kills at every call


@few_and_many("stride", 61, STRIDE)
@pytest.mark.long
def test_add_killed_at_any_call(tmp_path: Path, stride: int) -> None:
    """`backend add` dies at its k-th call; all devices go on, and agree on who takes part."""
    total = k = struck = agreed = 0
    while k <= total:
        here = tmp_path / str(k)
        urls, a, b = [f"file://{here}/b{n}" for n in range(3)], str(here / "a"), str(here / "b")
        new = f"file://{here}/d?name=d"
        run_init(a, urls)
        write(here / "a", {"x": b"x"})
        run_push(a)
        run_clone(b, urls, NAME, "b")
        if not k:
            total, _ = Child(die_at_call, 0, run_backend_add, a, new).wait()
            k += 1
            continue
        good, _ = Child(die_at_call, k, run_backend_add, a, new).outcome()
        struck += not good
        for folder in (b, a):
            with Workspace.open(folder) as w:
                w.pull()
                write(Path(folder), {"x": f"{k} {folder}".encode()})
                assert w.push().version is not None
        with Workspace.open(a) as one, Workspace.open(b) as two:
            two.pull()
            assert tree_of(here / "a") == tree_of(here / "b")
            assert names_of(one) == names_of(two)
            assert all(state.linked for state in one.backends()), "the one who added it knows the way"
            agreed += "d" in names_of(one)
            if "d" not in names_of(one):
                assert one.backend_add(new).voting == 4
            assert one.check(read_data=True).lost == ()
        k += stride
    assert struck > 1
    assert agreed


@few_and_many("stride", 61, STRIDE)
@pytest.mark.long
def test_a_vote_given_and_taken_killed_at_any_call(tmp_path: Path, stride: int) -> None:
    urls, a, b = [f"file://{tmp_path}/b{n}" for n in range(5)], str(tmp_path / "a"), str(tmp_path / "b")
    run_init(a, urls)
    write(tmp_path / "a", {"x": b"x"})
    run_push(a)
    run_clone(b, urls, NAME, "b")
    total, _ = Child(die_at_call, 0, run_backend_role, a, "b3", "storage").wait()
    Child(run_backend_role, a, "b3", "both").wait()
    struck = 0
    for k in range(1, total + stride, stride):
        for role in ("storage", "both"):
            good, _ = Child(die_at_call, k, run_backend_role, a, "b3", role).outcome()
            struck += not good
            for folder in (b, a):
                with Workspace.open(folder) as w:
                    w.pull()
                    write(Path(folder), {"x": f"{k} {folder}".encode()})
                    assert w.push().version is not None
            with Workspace.open(a) as w:
                assert w.backend_set("b3", role=role).voting == (4 if role == "storage" else 5)
    assert struck > 1


@pytest.mark.long
def test_what_somebody_else_has_moved_is_verified_and_not_sent_again(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    fill(lab, laptop)
    laptop.backend_add(lab.url("d"))
    everything = {p.name: p for name in "abc" for p in lab.objects(name, "packs")}
    with laptop._session("test") as s:
        index = s.indexes.at_hand(s.base_state().index)
        assert index is not None
        for record in index.packs().values():
            for place in s.transfer.order(record.name)[: s.transfer.placement.copies]:
                data = everything[record.name.hex()].read_bytes()
                put_pack(s, place, record, data)
    report = laptop.rebalance()
    assert report.version is not None
    assert report.sent == ()
    assert laptop.backend_remove("a").version is not None
    assert names_of(laptop) == {"b", "c", "d"}
    laptop.check(read_data=True)
    laptop.restore("latest", to=lab.root / "out")
    assert {k: v.data for k, v in tree_of(lab.root / "out").items()} == {
        k: v.data for k, v in tree_of(lab.root / "laptop").items()
    }


def put_pack(s: Session, place: Place, record: PackRecord, data: bytes) -> None:
    path = pack_path(place.storage_ids[-1], record.generation, record.name)
    assert s.runtime.run(each({"": Op(place.name, "put", path, data)}))[""].error is None


def test_the_commands(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    fill(lab, laptop)
    laptop.close()
    dry = lab.cli("backend", "add", lab.url("d"), "--dry-run")
    assert dry.code == 0, dry.err
    done = lab.cli("--json", "backend", "add", lab.url("d"))
    assert done.code == 0, done.err
    assert done.json["command"] == "backend add"
    assert done.json["voting"] == 4
    assert done.json["moving"]["packs"] > 0
    status = lab.cli("status")
    assert "Still to move" in status.out
    assert "Still to move" in lab.cli("backend", "list").out
    assert lab.cli("backend", "set", "a", "--name", "alpha").code == 0
    assert "alpha" in lab.cli("backend", "list").out


@pytest.mark.long
def test_gaining_is_never_too_little() -> None:
    """Whoever may be mapped something new is said to gain, whatever the change."""
    import random

    from metasync.config import BackendEntry, Storage

    rng = random.Random(7)
    packs = [rng.randbytes(32) for _ in range(300)]

    def entry(n: int) -> BackendEntry:
        store = (Storage(bytes([n]) * 16, bytes(32)),)
        return BackendEntry(bytes([n + 100]) * 16, f"b{n}", "memory", rng.randrange(1, 9) << 30, bytes(32), store, None)

    for _ in range(60):
        old = Config(()).with_backends([entry(n) for n in range(rng.randrange(2, 6))])
        kept = [b for b in old.backends if rng.random() < 0.8] or list(old.backends)
        new = old.with_backends([*kept, *([entry(9)] if rng.random() < 0.5 else [])])
        if len(new.backends) < 2:
            continue
        before, after = placement.placement_of(old), placement.placement_of(new)
        both = {b.backend_id for b in old.backends} & {b.backend_id for b in new.backends}
        seen = {i for p in packs for i in set(after.primary(p)) - set(before.primary(p))} & both
        assert seen <= placement.gaining(old, new)


def test_a_voter_that_another_program_copies_now_is_warned_of(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    assert [b.warning for b in w.backends()] == [""] * 3
    (lab.store("b") / ".stfolder").mkdir()
    w = lab.reopen(w)
    warnings = {b.name: b.warning for b in w.backends()}
    assert (warnings["a"], warnings["c"]) == ("", "")
    assert f"b votes and should not: Syncthing keeps {lab.store('b')} in step" in warnings["b"]
    assert "metasync backend set b --role storage" in warnings["b"]
    w.backend_set("b", role="storage")
    w = lab.reopen(w)
    assert {b.warning for b in w.backends()} == {""}


def test_a_replaced_backend_is_named_and_not_the_new_one(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    (kept,) = w.backend_add(lab.url("d"), replaces="c").kept
    assert kept == "What c holds was left there; keep it until nothing is left to move."


@pytest.mark.long
def test_a_device_slept_while_a_backend_that_it_has_a_way_to_got_a_vote(lab: Lab) -> None:
    """... which the quorum of a later version needs. It was told that it has no way there, though it has."""
    w = lab.init(lab.urls("a", "b", "c", "d"))
    w.backend_set("c", role="storage", passphrase=PASSPHRASE)
    w.backend_set("d", role="storage", passphrase=PASSPHRASE)
    other = lab.clone(lab.urls("a", "b", "c", "d"))
    other.close()
    for gone, comes in (("a", "c"), ("b", "d")):
        w.backend_set(comes, role="both", passphrase=PASSPHRASE)
        w.backend_set(gone, role="storage", passphrase=PASSPHRASE)
        write(w.directory, {f"after {comes}": b"x"})
        w.push()
    lab.faults["a"].down = lab.faults["b"].down = False
    assert lab.reopen(other).pull().version == w.status().version
