"""What holds for every test: where its files lie, how many examples a property tries, that Ctrl-C reaches children.

Files lie in memory where this machine has a file system for that (`_memory`): flushing to a disk was a third of all CPU
time. A test whose subject is a real file system mounts its own. `--basetemp` or `TMPDIR` names another place.

`make test` proves: few examples, the same ones each time. `make test-long` explores: it takes the profile `long`, which
tries more, and other ones each time. No example has a deadline, because a busy machine is no bug.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import tempfile
import textwrap
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from workspace_kit import Lab, laboratory

from metasync.sync import sides

always = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", always, max_examples=25, derandomize=True)
settings.register_profile("long", always, max_examples=200, print_blob=True)
settings.load_profile("few")


HERE = Path(__file__).parent
MEMORY = "/dev/shm"
MEMORY_BYTES_MIN = 2 << 30  # a run holds some hundred MiB at once, and what failed tests leave
REASON_CHARS_MAX = 80
REASON_LINES_MAX = 4


def _memory() -> str | None:
    """The folder in memory for temporary files; None if there is none, it is small, or programs may not run there."""
    if "TMPDIR" in os.environ or not os.path.ismount(MEMORY) or not os.access(MEMORY, os.W_OK | os.X_OK):
        return None
    found = os.statvfs(MEMORY)
    noexec = found.f_flag & getattr(os, "ST_NOEXEC", 0)
    return None if noexec or found.f_bavail * found.f_frsize < MEMORY_BYTES_MIN else MEMORY


if (memory := _memory()) is not None:
    os.environ["TMPDIR"] = memory  # for the worker processes and all that the tests start, too
    tempfile.tempdir = None


os.environ["METASYNC_DAEMON"] = "off"  # of whoever runs the tests: none of them is to meet it


def pytest_configure(config: pytest.Config) -> None:
    """Gives Ctrl-C its usual meaning, also under `nohup` and in a background job, where it begins as ignored.

    Tests press it in child processes, which inherit what is ignored here.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if (worker := getattr(config, "workerinput", None)) is not None and config.args == ["tests"]:
        config.args = _rooms(int(worker["workerid"][2:]), int(worker["workercount"]))


def _rooms(worker: int, workers: int) -> list[str]:
    """All rooms, those first that are this worker's to begin with.

    Every worker reads all modules. In a fresh clone the first to meet one compiles it, which takes twice as long as all
    else of collecting: workers that go the same way compile everything at the same time, each for itself.
    """
    names = sorted(p.name for p in HERE.iterdir() if p.is_dir() or p.match("test_*.py"))
    return [f"tests/{name}" for n in range(workers) for name in names[(worker + n) % workers :: workers]]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the collector of garbage away from what lives to the end: 12,000 tests, a tenth of the CPU time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves cases of a test with the marker `few` to `make test-long`, before that asks for markers.

    The order is the same in all workers, whichever room one began with.
    """
    items.sort(key=lambda item: item.path.parts[len(HERE.parts) :][:1])
    cases: dict[tuple[object, int | None], list[pytest.Item]] = {}
    for item in items:
        few = item.get_closest_marker("few")
        if few is not None and item.get_closest_marker("long") is None:
            count = few.args[0] if few.args else None
            cases.setdefault((getattr(item, "function", item), count), []).append(item)
    for (_, count), all_of_it in cases.items():
        proves = _each_value_once(all_of_it) if count is None else _evenly(count, len(all_of_it))
        for at, item in enumerate(all_of_it):
            if at not in proves:
                item.add_marker(pytest.mark.long)


def _evenly(count: int, of: int) -> set[int]:
    step = max(1, of / count)
    return {int(n * step) for n in range(count)}


def _each_value_once(cases: Sequence[pytest.Item]) -> set[int]:
    """Few cases such that each value of each parameter occurs: of n times m cases as many as the larger number."""
    values = [_values(item) for item in cases]
    left, proves = set().union(*values), set()
    while left:
        best = max(range(len(values)), key=lambda at: len(values[at] & left))
        left -= values[best]
        proves.add(best)
    return proves


def _values(item: pytest.Item) -> set[tuple[object, ...]]:
    """What each `parametrize` gave to this case; parameters that it gave together are one value."""
    params = item.callspec.params  # type: ignore[attr-defined]
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    split = [name.replace(" ", "").split(",") if isinstance(name, str) else list(name) for name in names]
    return {(*together, *(id(params[name]) for name in together)) for together in split}


@pytest.fixture(autouse=True)
def _one_day(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conflict copies have the date in their names: it is the same one for all tests, but where time is simulated."""
    if "simulation" not in request.path.parts:
        monkeypatch.setattr(sides, "date_of", lambda _: "20261122")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says in a few lines what this machine lacks for the tests that were skipped."""
    reports = terminalreporter.stats.get("skipped", ())
    told = [r.longrepr if isinstance(r.longrepr, tuple) else ("", 0, str(r.longrepr)) for r in reports]
    kit = sum(str(path).endswith("contract_kit.py") for path, _, _ in told)
    if kit:
        terminalreporter.write_line(f"skipped {kit}: checks that do not concern their kind of store")
    lacking = {
        re.sub(r" /\S+:", "", reason.removeprefix("Skipped: "))[:REASON_CHARS_MAX]
        for path, _, reason in told
        if not str(path).endswith("contract_kit.py")
    }
    if lacking:
        text = f"skipped {len(told) - kit}: {'; '.join(sorted(lacking))}"
        lines = textwrap.wrap(text, 118, max_lines=REASON_LINES_MAX, placeholder=" ... (-rs says all)")
        terminalreporter.write_line("\n".join(lines))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    """Named stores that can be broken and devices on them, below one temporary folder."""
    with laboratory(tmp_path, monkeypatch, capsys) as made:
        yield made
