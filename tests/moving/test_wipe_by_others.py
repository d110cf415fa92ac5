"""A removed backend is emptied by whichever device has a way to it, whoever began; never what was added there since."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crash_kit import DEAD, Child, die_at_call, quiet_environment, run_clone, run_init, run_push
from effort import few_and_many
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.errors import MetaSyncError, UsageError
from metasync.local.state_keys import WIPE_KEY
from metasync.moving import removal, upkeep, wipe
from metasync.moving.rebalance import Deadline
from metasync.moving.reconfigure import Wanted, change
from metasync.reports.backends import Wiped
from metasync.store import moves
from metasync.sync.operations import changing
from metasync.workspace import Workspace

quiet_environment()

NAMES = ("a", "b", "c", "d")


class Killed(BaseException):
    """What ends a device in the midst of something: nothing handles it."""


def two(lab: Lab, *, copies: int = 2) -> tuple[Workspace, Workspace]:
    """Two devices of a workspace, with packs on the last of its backends."""
    one = lab.init(lab.urls(*NAMES), replicas=copies)
    other = lab.clone(lab.urls(*NAMES))
    n = 0
    while n < 4 or not lab.objects("d", "packs"):
        write(one.directory, {f"file{n}": f"{n} ".encode() * 900})
        one.push(f"push {n}")
        n += 1
    other.pull()
    return lab.reopen(one), lab.reopen(other)


def begun(lab: Lab, w: Workspace) -> Wiped:
    """The device removes d, and can delete nothing there."""
    lab.faults["d"].read_only = True
    done = w.backend_remove("d", passphrase=PASSPHRASE, wipe=True).wiped
    lab.faults["d"].read_only = False
    assert done is not None
    assert done.left
    return done


def waiting(w: Workspace) -> int:
    """How many removed backends are to be emptied, by the newest agreed config."""
    w.pull()
    with w._session("test") as s:
        return len(moves.to_empty(s.config))


def is_whole(lab: Lab, *devices: Workspace) -> None:
    """All can be read, every copy is good, and every device can push and pull."""
    for w in devices:
        write(w.directory, {f"of-{w.directory.name}": b"more"})
        w.sync()
    trees = []
    for w in [lab.reopen(w) for w in devices]:  # no copy is on its way any more
        w.pull()
        report = w.check(read_data=True)
        assert (report.problems, report.lost, report.short, report.meta_problems) == ((), (), 0, ())
        trees.append({k: v.data for k, v in tree_of(w.directory).items()})
    assert all(tree == trees[0] for tree in trees)


# ---- what must not go


@pytest.mark.long
def test_who_slept_in_the_midst_deletes_nothing_of_what_was_added_since(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One device is about to delete; another has emptied the store, and added it again, under the same name."""
    one, other = two(lab)
    begun(lab, one)
    other.pull()
    real = wipe._empty
    seen: list[int] = []

    def late(*args: Any) -> Wiped:
        monkeypatch.setattr(wipe, "_empty", real)
        assert one.rebalance().emptied
        one.backend_add(lab.url("d"), passphrase=PASSPHRASE)
        assert one.rebalance().is_whole
        while not lab.objects("d", "packs"):  # where a pack lies is drawn
            write(one.directory, {"another": bytes(len(tree_of(one.directory))) + one.status().state.encode()})
            one.push()
        seen.append(len(lab.objects("d", "packs")))
        return real(*args)

    monkeypatch.setattr(wipe, "_empty", late)
    other.rebalance()
    assert seen[0]
    assert len(lab.objects("d", "packs")) == seen[0]
    other.link("d", lab.url("d"))
    is_whole(lab, one, other)


@pytest.mark.long
def test_what_was_added_inside_the_old_folder_stops_it(lab: Lab) -> None:
    """Somebody adds a store in the very folder that is to be emptied: whoever comes to it deletes nothing there."""
    one, other = two(lab)
    begun(lab, one)
    folder = next(p for p in lab.store("d").iterdir() if p.is_dir())
    one.backend_add(f"file://{folder}/deeper?name=inside", passphrase=PASSPHRASE)
    assert one.rebalance().unemptied
    before = {p.relative_to(folder) for p in (folder / "deeper").rglob("*")}
    assert "in use" in dict(one.rebalance().unemptied)["d"]
    assert {p.relative_to(folder) for p in (folder / "deeper").rglob("*")} == before
    other.pull()
    other.link("inside", f"file://{folder}/deeper?name=inside")
    is_whole(lab, one, other)


@pytest.mark.long
def test_a_backend_that_is_in_use_is_not_emptied_and_its_removal_says_anew_whether_it_is(lab: Lab) -> None:
    """A device may have written into the config that a backend in use is to be emptied: nothing comes of it."""
    one, other = two(lab)
    with changing(one._work, "test", reopen=True) as s:
        entry = s.config.named("d")
        assert entry is not None
        tags = tuple(sorted({**dict(s.config.tags), moves.TO_EMPTY_TAG: entry.backend_id}.items()))
        change(s, Wanted("d", lambda config: replace(config, tags=tags)))
    other.pull()
    packs = lab.objects("d", "packs")
    assert (other.rebalance().emptied, one.rebalance().emptied) == ((), ())
    assert lab.objects("d", "packs") == packs
    one.backend_remove("d", passphrase=PASSPHRASE)
    one.rebalance()
    other.pull()
    assert other.rebalance().emptied == ()
    assert waiting(other) == 0
    assert {p.name for p in lab.objects("d", "packs")} >= {p.name for p in packs}


@pytest.mark.long
def test_nothing_goes_while_data_are_still_read_there(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two(lab, copies=2)
    monkeypatch.setattr(removal, "_moved", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        one.backend_remove("d", passphrase=PASSPHRASE, wipe=True)
    other.pull()
    packs = lab.objects("d", "packs")
    (backend_id,) = wipe.noted(other._work.connections)
    with pytest.raises(UsageError, match="still to be moved"):
        wipe.wipe(other._work, backend_id)
    assert lab.objects("d", "packs") == packs
    assert other.rebalance().emptied
    assert not lab.objects("d", "packs")
    is_whole(lab, one, other)


# ---- who goes on with it


@pytest.mark.long
def test_another_device_goes_on_by_rebalance(lab: Lab) -> None:
    one, other = two(lab)
    begun(lab, one)
    one.close()
    report = other.rebalance()
    assert [x.backend for x in report.emptied] == ["d"]
    assert not list(lab.store("d").iterdir())
    assert waiting(other) == 0
    one = lab.reopen(one)
    one.pull()
    with one._session("test") as s:
        assert not s.db.has(WIPE_KEY), "the way is forgotten with the wish"
    is_whole(lab, one, other)


@pytest.mark.long
def test_another_device_goes_on_beside_its_pushes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two(lab)
    begun(lab, one)
    other.pull()
    monkeypatch.setattr(upkeep, "Deadline", lambda _: Deadline(0.0))
    monkeypatch.setattr(upkeep, "BUDGET_S", 600.0)
    write(other.directory, {"more": b"1"})
    other.push()
    assert list(lab.store("d").iterdir()), "there was no time"
    monkeypatch.setattr(upkeep, "Deadline", Deadline)
    with other._session("test") as s:
        s.db.set(upkeep.UPKEEP_KEY, None)
    write(other.directory, {"more": b"2"})
    other.push()
    assert not list(lab.store("d").iterdir())
    assert waiting(one) == 0
    is_whole(lab, one, other)


@pytest.mark.long
def test_a_store_that_fails_half_way_and_comes_back(lab: Lab) -> None:
    one, other = two(lab)
    begun(lab, one)
    lab.faults["d"].down = True
    report = other.rebalance()
    assert (report.emptied, [name for name, _ in report.unemptied], report.is_whole) == ((), ["d"], False)
    assert waiting(one) == 1
    lab.faults["d"].down = False
    lab.faults["d"].read_only = True
    assert [name for name, _ in other.rebalance().unemptied] == ["d"]
    lab.faults["d"].read_only = False
    assert other.rebalance().is_whole
    assert waiting(one) == 0
    assert not list(lab.store("d").iterdir())
    is_whole(lab, one, other)


@pytest.mark.long
def test_two_devices_at_once(lab: Lab) -> None:
    one, other = two(lab)
    begun(lab, one)
    other.pull()
    failed: list[BaseException] = []

    def go(w: Workspace) -> None:
        try:
            w.rebalance()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=go, args=(w,)) for w in (one, other)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failed
    assert one.rebalance().is_whole
    assert waiting(other) == 0
    assert not list(lab.store("d").iterdir())
    is_whole(lab, one, other)


def killed_once(real: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if after:
            real(*args, **kwargs)
        raise Killed

    return call


@pytest.mark.few
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", ["moved", "delete", "sweep", "agree"])
@pytest.mark.long
def test_killed_at_each_step_another_device_ends_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, where: str, after: bool
) -> None:
    one, other = two(lab)
    at: tuple[Any, str] = {
        "moved": (removal, "_moved"),
        "delete": (wipe, "each"),
        "sweep": (wipe, "_empty"),
        "agree": (wipe, "_agree"),
    }[where]
    with monkeypatch.context() as m:
        m.setattr(*at, killed_once(getattr(*at), after=after))
        with pytest.raises(Killed):
            one.backend_remove("d", passphrase=PASSPHRASE, wipe=True)
    one.close()
    assert other.rebalance().is_whole
    assert waiting(other) == 0
    assert not list(lab.store("d").iterdir())
    is_whole(lab, lab.reopen(one), other)


def run_remove_and_wipe(directory: str) -> bool:
    with Workspace.open(directory) as w:
        if "d" in {b.name for b in w.backends()}:
            with contextlib.suppress(UsageError):  # the other one has removed and emptied it meanwhile
                w.backend_remove("d", passphrase=PASSPHRASE, wipe=True)
        return w.rebalance().is_whole


@few_and_many("stride", 151, 7)
@pytest.mark.long
def test_killed_anywhere_again_and_again(tmp_path: Path, stride: int) -> None:
    """Two devices take turns; each is killed at a later call, until one of them comes through."""
    urls = [f"file://{tmp_path}/{n}?name={n}" for n in NAMES]
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    run_init(one, urls)
    for n in range(4):
        write(tmp_path / "one", {f"file{n}": f"{n}".encode() * 3000})
        run_push(one)
    run_clone(other, urls)
    before = {p: v.data for p, v in tree_of(tmp_path / "one").items()}
    k, struck = stride, 0
    while True:
        good, value = Child(die_at_call, k, run_remove_and_wipe, (one, other)[struck % 2]).outcome()
        if good:
            assert value[1]
            break
        assert str(DEAD) in value
        struck, k = struck + 1, k + stride
    assert struck > 1
    for folder in (one, other):
        with Workspace.open(folder) as w:
            w.sync()
            assert w.rebalance().is_whole
            report = w.check(read_data=True)
            assert (report.problems, report.lost, report.short) == ((), (), 0)
            assert {p: v.data for p, v in tree_of(w.directory).items()} == before
    left = [p for p in (tmp_path / "d").rglob("*") if p.is_file()]
    assert [str(p) for p in left if "px" not in p.parts] == []  # a device that has not heard may vote there once more


# ---- who does not


@pytest.mark.long
def test_it_can_be_given_up(lab: Lab) -> None:
    """A store that nobody reaches any more: `--dead` takes the note away, for all devices."""
    one, other = two(lab)
    begun(lab, one)
    lab.lose("d")
    assert other.rebalance().unemptied
    other.backend_remove("d", dead=True)
    assert (waiting(one), waiting(other)) == (0, 0)
    assert other.rebalance().is_whole
    with pytest.raises(MetaSyncError):
        other.backend_remove("d", dead=True)
    is_whole(lab, one, other)


@pytest.mark.long
def test_a_device_without_a_way_leaves_it_to_others(lab: Lab) -> None:
    one, other = two(lab)
    other.link("d", None)
    begun(lab, one)
    assert other.rebalance().is_whole
    with pytest.raises(UsageError, match="no way to"):
        other.backend_remove("d", wipe=True)
    assert waiting(other) == 1
    assert one.backend_remove("d", wipe=True).wiped
    assert waiting(other) == 0


@pytest.mark.long
def test_one_that_was_removed_before_is_emptied_where_it_is_still_read(lab: Lab) -> None:
    one, other = two(lab)
    one.backend_remove("d", passphrase=PASSPHRASE)
    other.pull()
    done = other.backend_remove("d", wipe=True)
    assert done.wiped is not None
    assert (done.wiped.left, list(lab.store("d").iterdir())) == (0, [])
    assert waiting(one) == 0
    is_whole(lab, one, other)
