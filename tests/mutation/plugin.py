"""The pytest plugin of `make mutants`: a census of which test meets which guard, then one fault after the other.

    --census DIRECTORY     runs the tests, and writes what each one met
    --hunt DIRECTORY       runs, for each guard, tests that met it, with the guard broken

The tests are collected once. Each fault gets a child of this process, which has all modules loaded, and runs the tests
that saw the guard decide: those of the room first, the quickest of them first. A fault is caught by the first test that
fails, or by a child that does not end. The environment says what is planted where (`PACKAGES`, `ROOT`).
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import select
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from mutation.guards import Guard, Planted, modules_of, planted_in

PACKAGES: Final = "MUTATION_PACKAGES"  # names of packages and modules, by spaces
ROOT: Final = "MUTATION_ROOT"  # the folder that they are in
HANGS_S: Final = 60.0  # a child that takes as much more than ten times what its tests took does not end
CHILD_BYTES_MAX: Final = 6 << 30

CAUGHT: Final = ("caught", "hangs")

packages: Final = os.environ[PACKAGES].split()
planted: Final[Planted] = planted_in(packages)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mutants")
    group.addoption("--census", type=Path, default=None, help="note which test meets which guard")
    group.addoption("--hunt", type=Path, default=None, help="break one guard after the other")
    group.addoption("--own", default="", help="the tests whose path begins so come first")
    group.addoption("--only", default="", help="only guards whose key has this in it")
    group.addoption("--left", action="store_true", help="only guards that nothing caught in the last run")
    group.addoption("--seconds", type=float, default=20.0, help="of tests' own time, for one fault; as much of others'")
    group.addoption("--children", type=int, default=1, help="so many faults at once")


def pytest_configure(config: pytest.Config) -> None:
    for name in modules_of(packages, Path(os.environ[ROOT])):  # in one order: a guard's number is the same everywhere
        importlib.import_module(name)
    if config.option.census is not None:
        planted.counting = True
        config.pluginmanager.register(_Census(config.option.census), "census")
    elif config.option.hunt is not None:
        config.pluginmanager.register(_Hunt(config.option), "hunt")


class _Census:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._met: dict[str, tuple[float, list[tuple[int, bool]]]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        planted.seen.clear()
        began = time.perf_counter()
        result = yield
        self._met[item.nodeid] = (time.perf_counter() - began, sorted(planted.seen))
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self._met:
            return  # the process that hands the tests out
        self._directory.mkdir(parents=True, exist_ok=True)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
        (self._directory / f"census-{worker}.json").write_text(json.dumps(self._met))


class _Hunt:
    def __init__(self, given: Any) -> None:
        self._given = given
        self._met: dict[str, tuple[float, list[list[int]]]] = {}
        for file in given.hunt.glob("census-*.json"):
            self._met.update(json.loads(file.read_text()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        met: set[int] = set()
        who: defaultdict[int, list[str]] = defaultdict(list)
        for nodeid, (_, seen) in sorted(self._met.items(), key=lambda of: of[1][0]):
            for number, value in seen:
                met.add(number)
                if nodeid in items and bool(value) is not planted.guards[number].fault:
                    who[number].append(nodeid)
        place = self._given.hunt / "outcomes.jsonl"
        before = place.read_text(encoding="utf-8").splitlines() if place.exists() else []
        caught = {o["guard"] for o in map(json.loads, before) if o["outcome"] in CAUGHT} if self._given.left else set()
        due = [n for n, g in enumerate(planted.guards) if self._given.only in g.key and g.key not in caught]
        running: dict[int, tuple[int, float, Path, int]] = {}
        with place.open("w", encoding="utf-8") as out:
            for line in before:
                if json.loads(line)["guard"] in caught:
                    out.write(line + "\n")
            while due or running:
                while due and len(running) < self._given.children:
                    number = due.pop(0)
                    chosen = self._chosen(who[number])
                    if not chosen:
                        _tell(out, planted.guards[number], "never decides" if number in met else "never met", 0)
                        continue
                    place = Path(tempfile.mkdtemp(prefix="mutant-"))
                    pid = _child(session, [items[nodeid] for nodeid in chosen], number, place)
                    ends = time.monotonic() + HANGS_S + 10 * sum(self._met[nodeid][0] for nodeid in chosen)
                    running[pid] = number, ends, place, len(chosen)
                _reap(out, running)
        return True

    def _chosen(self, nodeids: Sequence[str]) -> list[str]:
        own = [n for n in nodeids if n.startswith(self._given.own)]
        others = [n for n in nodeids if not n.startswith(self._given.own)]
        chosen: list[str] = []
        for these in (own, others):
            seconds = 0.0
            for n, nodeid in enumerate(these):
                seconds += self._met[nodeid][0]
                if n and seconds > self._given.seconds:
                    break
                chosen.append(nodeid)
        return chosen


def _reap(out: Any, running: dict[int, tuple[int, float, Path, int]]) -> None:
    select.select([], [], [], 0.02)
    for pid, (number, ends, place, tests) in list(running.items()):
        done, status = os.waitpid(pid, os.WNOHANG)
        outcome = ""
        if not done and time.monotonic() > ends:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            outcome = "hangs"
        elif done:
            outcome = "survives" if status == 0 else "caught"
        if outcome:
            del running[pid]
            shutil.rmtree(place, ignore_errors=True)
            _tell(out, planted.guards[number], outcome, tests)


def _tell(out: Any, guard: Guard, outcome: str, tests: int) -> None:
    file = os.path.relpath(guard.file, os.environ[ROOT])
    told = {"guard": guard.key, "file": file, "line": guard.line, "outcome": outcome, "tests": tests}
    out.write(json.dumps(told) + "\n")
    out.flush()


def _child(session: pytest.Session, items: list[pytest.Item], number: int, place: Path) -> int:
    """Runs tests with one guard broken, in a child. -> its id; it ends with 0 when all of them passed."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        session.config.pluginmanager.unregister(name="terminalreporter")
        resource.setrlimit(resource.RLIMIT_AS, (CHILD_BYTES_MAX, CHILD_BYTES_MAX))
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        os.environ["TMPDIR"] = tempfile.tempdir = str(place)
        session.config._tmp_path_factory._basetemp = place  # type: ignore[attr-defined]
        planted.broken = number
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                os._exit(1)
    except BaseException:
        os._exit(1)
    os._exit(0)
