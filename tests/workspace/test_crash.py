"""`kill -9` at any moment of init, push, pull and clone: the next run goes on, and no file is a mixture.

METASYNC_CRASH_KILLS: how many kills of each command `make test-long` tries (16); METASYNC_CRASH_SEED replays one run.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_kit import (
    DEAD,
    NAME,
    POINTS,
    Child,
    Node,
    check_log,
    content_id,
    die_at,
    die_at_call,
    edit_some,
    make_tree,
    pull_with_editor,
    quiet_environment,
    read_past,
    read_tree,
    run_clone,
    run_init,
    run_pull,
    run_push,
    same_trees,
)
from effort import few_and_many

from metasync.errors import MetaSyncError
from metasync.workspace import Workspace

quiet_environment()

KILLS = int(os.environ.get("METASYNC_CRASH_KILLS", "16"))
SEED = int(os.environ.get("METASYNC_CRASH_SEED", "20261120"))
FEW = 3
MISSES_MAX = 4  # a run that ends before the kill is tried again, sooner

Tree = dict[bytes, Node]


@pytest.fixture
def rng() -> Iterator[random.Random]:
    print(f"METASYNC_CRASH_SEED={SEED}")
    yield random.Random(SEED)


def urls_in(root: Path) -> list[str]:
    return [f"file://{root}/b{i}" for i in range(3)]


def killed(rng: random.Random, longest_s: float, function: Callable[..., Any], *arguments: Any) -> bool:
    """Kills one run of a command at a random moment. False: it was over each time."""
    for _ in range(MISSES_MAX):
        child = Child(function, *arguments)
        child.ready()
        time.sleep(rng.random() * longest_s)
        if child.kill() and not child.told():
            return True
        longest_s /= 2
    return False


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    child = Child(function, *arguments)
    child.ready()
    start = time.monotonic()
    child.wait()
    return time.monotonic() - start


def no_mixture(now: Tree, *sides: Tree) -> None:
    """Every file is what one of the sides has at its path; nothing is there that neither has."""
    for path, node in now.items():
        if node.kind == "dir":
            continue
        allowed = [side[path].data for side in sides if path in side]
        assert node.data in allowed, f"{path!r}: {len(node.data)} bytes that are neither the old nor the new ones"


@pytest.mark.long
def test_kill_push_and_pull(tmp_path: Path, rng: random.Random) -> None:
    """One device pushes, another with changes of its own pulls; both are killed all the time."""
    urls, a, b = urls_in(tmp_path), tmp_path / "a", tmp_path / "b"
    make_tree(a, rng)
    run_init(str(a), urls)
    pushing = seconds(run_push, str(a), "first")
    cloning = seconds(run_clone, str(b), urls, NAME, "b")
    longest_push, longest_pull = pushing / 2, cloning / 2
    struck = {"push": 0, "pull": 0}
    found_again = 0
    pushed: dict[str, int] = {}
    everything: set[bytes] = set()
    (b / "only-b").write_bytes(b"b's own, never in the way\n")
    for number in range(KILLS):
        edit_some(a, rng, 30, f"edit{number:03d}")
        before = read_tree(a)
        everything |= {node.data for node in before.values() if node.kind == "file"}
        message = f"push {number}"
        one_more = rng.random() < 0.3
        for turn in range(2 if one_more else 1):
            struck["push"] += killed(rng, longest_push, run_push, str(a), f"{message} killed {turn}")
            assert read_tree(a) == before, "a push changed the folder"
        start = time.monotonic()
        version, again = Child(run_push, str(a), message).wait()
        longest_push = 0.7 * longest_push + 0.3 * (time.monotonic() - start)
        found_again += again is not None
        if version is not None:
            pushed[message] = version
        assert read_tree(a) == before

        old = read_tree(b)
        wanted = {**before, b"only-b": old[b"only-b"]}
        struck["pull"] += killed(rng, longest_pull, run_pull, str(b))
        no_mixture(read_tree(b), old, wanted)
        if rng.random() < 0.3:
            struck["pull"] += killed(rng, longest_pull / 2, run_pull, str(b))
            no_mixture(read_tree(b), old, wanted)
        start = time.monotonic()
        Child(run_pull, str(b)).wait()
        longest_pull = 0.7 * longest_pull + 0.3 * (time.monotonic() - start)
        same_trees({"a and b's own": wanted, "b": read_tree(b)})
    print(f"killed {struck}, found again {found_again}, a push about {longest_push:.2f} s, a pull {longest_pull:.2f} s")
    assert struck["push"] >= KILLS // 4
    assert struck["pull"] >= KILLS // 4
    version, _ = Child(run_push, str(b), "b's own").wait()
    pushed["b's own"] = version
    Child(run_pull, str(a)).wait()
    same_trees({"a": read_tree(a), "b": read_tree(b)})
    assert not (b / ".metasync/tmp").exists() or not any((b / ".metasync/tmp").iterdir())
    with Workspace.open(a) as w:
        past = read_past(w)
        check_log(past, pushed)
        lost = [data for data in everything if content_id(w, Node("file", 0, 0, data)) not in past.contents]
        assert not lost, f"{len(lost)} contents that were pushed are in no version"
        report = w.check(read_data=True)
        assert not (report.problems or report.lost or report.short or report.meta_problems), report


@pytest.mark.long
def test_kill_clone(tmp_path: Path, rng: random.Random) -> None:
    urls, a = urls_in(tmp_path), tmp_path / "a"
    make_tree(a, rng)
    run_init(str(a), urls)
    Child(run_push, str(a), "first").wait()
    before = read_tree(a)
    longest = seconds(run_clone, str(tmp_path / "c"), urls, NAME, "c")
    same_trees({"a": before, "c": read_tree(tmp_path / "c")})
    struck = 0
    number = 0
    while struck < KILLS:
        place = tmp_path / f"c{number}"
        number += 1
        assert number <= 3 * KILLS, "nearly all clones ended before they were killed"
        for _ in range(rng.randrange(1, 4)):
            if not killed(rng, longest, run_clone, str(place), urls, NAME, f"c{number}"):
                break
            struck += 1
            if place.exists():
                no_mixture(read_tree(place), before)
        finish_clone(place, urls, f"c{number}")
        same_trees({"a": before, "clone": read_tree(place)})
        shutil.rmtree(place)
    print(f"killed {struck} runs of {number} clones")
    with Workspace.open(a) as w:
        assert not w.check(read_data=True).problems


def finish_clone(place: Path, urls: list[str], device: str) -> None:
    """Runs the same command again, as somebody would whose machine had crashed."""
    good, value = Child(run_clone, str(place), urls, NAME, device).outcome()
    if not good:  # the one case in which nothing is left to do: it was killed between its last write and its exit
        assert "is a workspace already" in value, value
    with Workspace.open(place) as w:
        w.pull()
        assert w.status().problem == ""


@pytest.mark.few(1)
@pytest.mark.parametrize("point", POINTS)
def test_a_push_that_was_agreed_and_never_said_so(tmp_path: Path, point: str) -> None:
    urls, a, b = urls_in(tmp_path), tmp_path / "a", tmp_path / "b"
    a.mkdir()
    (a / "one").write_bytes(b"1")
    (a / "doomed").write_bytes(b"to be deleted")
    run_init(str(a), urls)
    run_push(str(a), "first")
    run_clone(str(b), urls, NAME, "b")
    (a / "two").write_bytes(b"2")
    (a / "doomed").unlink()
    child = Child(die_at, point, run_push, str(a), "the one")
    assert not child.outcome()[0]
    assert child.exit_code == DEAD
    (a / "three").write_bytes(b"3")  # since then
    (a / "two").write_bytes(b"2 again")
    version, found_again = Child(run_push, str(a), "later").wait()
    with Workspace.open(a) as w:
        messages = [item.message for item in w.log()]
        past = read_past(w)
        check_log(past, {"later": version})
    decided = {"accept_quorum", "decided_not_remembered", "before_the_report"}
    if point in decided:
        assert found_again == version - 1
    if point == "accept_sent":
        assert found_again is None
        assert messages == ["later", "first"]
    elif point == "accept_minority":
        assert messages == (["later", "the one", "first"] if found_again else ["later", "first"])
    else:
        assert messages == ["later", "the one", "first"]
    Child(run_pull, str(b)).wait()
    same_trees({"a": read_tree(a), "b": read_tree(b)})
    assert {path: node.data for path, node in read_tree(b).items()} == {
        b"one": b"1",
        b"two": b"2 again",
        b"three": b"3",
    }
    assert Child(run_push, str(a), "nothing").wait() == (None, None)


@pytest.mark.few(1)
@pytest.mark.parametrize("point", POINTS)
def test_another_device_finishes_it(tmp_path: Path, point: str) -> None:
    """The dead device's push is met by another's; then its owner comes back with a pull."""
    urls, a, b = urls_in(tmp_path), tmp_path / "a", tmp_path / "b"
    a.mkdir()
    (a / "one").write_bytes(b"1")
    run_init(str(a), urls)
    run_push(str(a), "first")
    run_clone(str(b), urls, NAME, "b")
    (a / "two").write_bytes(b"2")
    assert not Child(die_at, point, run_push, str(a), "the one").outcome()[0]
    (b / "other").write_bytes(b"b")
    pushed = {"b's": Child(run_push, str(b), "b's").wait()[0]}
    Child(run_pull, str(a)).wait()
    version, found_again = Child(run_push, str(a), "again").wait()
    if version is not None:
        pushed["again"] = version
    Child(run_pull, str(b)).wait()
    same_trees({"a": read_tree(a), "b": read_tree(b)})
    assert {path: node.data for path, node in read_tree(b).items()} == {b"one": b"1", b"two": b"2", b"other": b"b"}
    with Workspace.open(b) as w:
        past = read_past(w)
        check_log(past, pushed)
        assert len([s for s in past.main if s.message in {"the one", "again"}]) == 1, "pushed once, in one of the two"
    assert found_again is None, "the pull has found it out"


def steps(total: int, about: int, rng: random.Random) -> list[int]:
    """About so many call numbers, spread over all with a random offset."""
    width = max(1, total // about)
    return [min(total, k + rng.randrange(width)) for k in range(1, total + 1, width)]


@few_and_many("kills", FEW, KILLS)
def test_kill_at_any_call_of_push(tmp_path: Path, rng: random.Random, kills: int) -> None:
    """Not by the clock: at every n-th call on the disk, the local state and the backends."""
    urls, a, b = urls_in(tmp_path), tmp_path / "a", tmp_path / "b"
    make_tree(a, rng, files=12, big=1)
    run_init(str(a), urls)
    run_push(str(a), "first")
    run_clone(str(b), urls, NAME, "b")
    (a / "x").write_bytes(b"x")
    total, _ = Child(die_at_call, 0, run_push, str(a), "counted").wait()
    pushed: dict[str, int] = {}
    for k in steps(total, kills, rng):
        edit_some(a, rng, 3, f"at{k}")
        before = read_tree(a)
        good, _ = Child(die_at_call, k, run_push, str(a), f"killed at {k}").outcome()
        version, found_again = Child(run_push, str(a), f"after {k}").wait()
        if version is not None:
            pushed[f"after {k}"] = version
        assert good or version is not None or found_again is not None or k > total - 30, f"killed at call {k}: lost?"
        Child(run_pull, str(b)).wait()
        same_trees({"before": before, "a": read_tree(a), "b": read_tree(b)})
    with Workspace.open(a) as w:
        check_log(read_past(w), pushed)
        assert not w.check(read_data=True).problems


@few_and_many("kills", FEW, KILLS)
def test_kill_at_any_call_of_pull(tmp_path: Path, rng: random.Random, kills: int) -> None:
    urls, a, b = urls_in(tmp_path), tmp_path / "a", tmp_path / "b"
    make_tree(a, rng, files=12, big=1)
    run_init(str(a), urls)
    run_push(str(a), "first")
    run_clone(str(b), urls, NAME, "b")
    kinds(a, 0)
    run_push(str(a), "counted")
    total, _ = Child(die_at_call, 0, run_pull, str(b)).wait()
    same_trees({"a": read_tree(a), "b": read_tree(b)})
    for number, k in enumerate(steps(total, kills, rng), 1):
        edit_some(a, rng, 3, f"at{k}")
        kinds(a, number)
        old, wanted = read_tree(b), read_tree(a)
        run_push(str(a), f"before {k}")
        Child(die_at_call, k, run_pull, str(b)).outcome()
        no_mixture(read_tree(b), old, wanted)
        Child(die_at_call, k // 2 + 1, run_pull, str(b)).outcome()  # and in the middle of making up for it
        no_mixture(read_tree(b), old, wanted)
        Child(run_pull, str(b)).wait()
        same_trees({"a": wanted, "b": read_tree(b)})
        assert run_push(str(b), "nothing to push")[0] is None, f"killed at call {k}: the pull left changes behind"


@pytest.mark.few(2)
@pytest.mark.parametrize("dies_after", [0, 1, 3, 5])
def test_an_editor_saves_during_a_pull_that_is_killed(tmp_path: Path, dies_after: int) -> None:
    """What is in our hands when we die is the user's: it comes back as a conflict copy."""
    urls, a, b = urls_in(tmp_path), tmp_path / "a", tmp_path / "b"
    a.mkdir()
    names = [f"f{i}" for i in range(5)]
    for name in names:
        (a / name).write_bytes(b"\0old " + name.encode())
    run_init(str(a), urls)
    run_push(str(a), "first")
    run_clone(str(b), urls, NAME, "b")
    for name in names:
        (a / name).write_bytes(b"\0new " + name.encode())
    run_push(str(a), "second")
    child = Child(pull_with_editor, str(b), dies_after)
    assert child.outcome()[0] == (dies_after == 0)
    Child(run_pull, str(b)).wait()
    run_push(str(b), "third")
    run_pull(str(a))
    trees = {"a": read_tree(a), "b": read_tree(b)}
    same_trees(trees)
    there = {node.data for node in trees["a"].values()}
    assert {b"\0new " + name.encode() for name in names} <= there
    late = {b"late: " + name.encode() for name in names[: dies_after or len(names)]}
    assert late <= there, f"lost: {late - there}"


def kinds(root: Path, number: int) -> None:
    """Changes of kind, mode and time, for which a checkout takes other ways than for bytes."""
    thing, shut = root / "thing", root / "shut"
    if thing.is_symlink() or thing.is_file():
        thing.unlink()
    elif thing.is_dir():
        shutil.rmtree(thing)
    if number % 3 == 0:
        thing.mkdir()
        (thing / "in it").write_bytes(b"%d" % number)
    elif number % 3 == 1:
        thing.write_bytes(b"a file %d" % number)
    else:
        thing.symlink_to(f"target {number}")
    shut.write_bytes(b"%d" % (number // 2))
    shut.chmod(0o600 if number % 2 else 0o755)
    os.utime(shut, ns=(1, 10**18 + number))


@few_and_many("kills", FEW, KILLS)
def test_kill_clone_at_any_call(tmp_path: Path, rng: random.Random, kills: int) -> None:
    urls, a = urls_in(tmp_path), tmp_path / "a"
    make_tree(a, rng, files=12, big=1)
    run_init(str(a), urls)
    run_push(str(a), "first")
    before = read_tree(a)
    total, _ = Child(die_at_call, 0, run_clone, str(tmp_path / "c"), urls, NAME, "c").wait()
    for k in steps(total, kills, rng):
        place = tmp_path / f"c{k}"
        died = not Child(die_at_call, k, run_clone, str(place), urls, NAME, f"c{k}").outcome()[0]
        if place.exists():
            no_mixture(read_tree(place), before)
        if died:
            run_clone(str(place), urls, NAME, f"c{k}")
        same_trees({"a": before, f"clone killed at call {k} of {total}": read_tree(place)})
        (place / f"of {k}").write_bytes(b"mine")
        run_push(str(place), f"of {k}")
        (place / f"of {k}").unlink()
        run_push(str(place), f"not of {k}")


@few_and_many("kills", 2 * FEW, KILLS)
def test_kill_init_at_any_call(tmp_path: Path, rng: random.Random, kills: int) -> None:
    """The same command again works, or says that the workspace is there, and then a clone works."""
    folder = tmp_path / "count"
    total, _ = Child(die_at_call, 0, run_init, str(folder), urls_in(tmp_path / "count-on")).wait()
    said: dict[str, int] = {}
    for k in steps(total, kills // 2, rng):
        root = tmp_path / f"k{k}"
        place = root / "d"
        place.mkdir(parents=True)
        (place / "mine").write_bytes(b"the user's")
        urls = urls_in(root)
        Child(die_at_call, k, run_init, str(place), urls).outcome()
        assert (place / "mine").read_bytes() == b"the user's"
        try:
            run_init(str(place), urls)
            how = "made"
        except MetaSyncError as e:
            how = "already here" if "is a workspace already" in e.message else "already there"
            assert e.next_step, f"killed at call {k}: {e.message}"
            if how == "already there":
                assert "a workspace named" in e.message, f"killed at call {k}: {e.message}"
                assert "clone" in e.next_step
                assert "another name" in e.next_step
                run_init(str(place), urls, "another name")
        said[how] = said.get(how, 0) + 1
        assert run_push(str(place), "first")[0] is not None
        run_clone(str(root / "clone"), urls, NAME if how != "already there" else "another name", "clone")
        assert (root / "clone/mine").read_bytes() == b"the user's"
        shutil.rmtree(root)
    print(said)
    assert said["made"]


@pytest.mark.long
def test_kill_init_by_the_clock(tmp_path: Path, rng: random.Random) -> None:
    longest = seconds(run_init, str(tmp_path / "d"), urls_in(tmp_path))
    for number in range(max(4, KILLS // 3)):
        root = tmp_path / f"r{number}"
        place, urls = root / "d", urls_in(root)
        killed(rng, longest, run_init, str(place), urls)
        try:
            run_init(str(place), urls)
        except MetaSyncError as e:
            assert "workspace" in e.message
            assert e.next_step
            continue
        assert run_push(str(place))[0] is None  # empty folder: nothing to push
        (place / "f").write_bytes(b"f")
        assert run_push(str(place))[0] is not None


def test_clone_of_a_version_with_a_hint(tmp_path: Path) -> None:
    """A device that starts from the newest version itself has to be brought its tree all the same."""
    urls, a = urls_in(tmp_path), tmp_path / "a"
    run_init(str(a), urls)
    for number in range(1, 17):
        (a / f"f{number}").write_bytes(b"%d" % number)
        assert run_push(str(a))[0] == number
    assert run_clone(str(tmp_path / "b"), urls, NAME, "b") == 17
    same_trees({"a": read_tree(a), "b": read_tree(tmp_path / "b")})
