"""`make bench`: trees come out the same each time, wrong clones are found, ratios are taken run by run, and it runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import pytest
import report
import workloads
from peers import ALL, PEERS

BENCH = Path(__file__).parent / "bench.py"

# --- the trees ---


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `paper`, generated."""
    work = tmp_path_factory.mktemp("bench")
    workloads.ready(["paper"], work / "loads", "generated")
    return work


@pytest.mark.long
def test_a_generated_tree_is_always_the_same(work: Path, tmp_path: Path) -> None:
    (one,), (two,) = (workloads.ready(["paper"], place, "generated") for place in (work / "loads", tmp_path))
    assert one.digest == two.digest
    assert (one.files, one.folders, one.size_bytes) == (70, 3, 1_600_000)
    assert one.title == "paper (generated)"
    assert measure.differences(one.path, two.path, ALL) == []


def test_a_tree_is_used_again_only_if_it_is_as_it_was_made(work: Path, tmp_path: Path) -> None:
    place = tmp_path / "loads"
    shutil.copytree(work / "loads", place)
    made = workloads.ready(["paper"], work / "loads", "generated")[0]
    figure = place / "paper/figs/f00.png"
    info = figure.stat()

    (same,) = workloads.ready(["paper"], place, "auto")
    assert figure.stat().st_ino == info.st_ino, "nothing was made anew"

    data = figure.read_bytes()
    figure.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(figure, ns=(info.st_mtime_ns, info.st_mtime_ns))
    (again,) = workloads.ready(["paper"], place, "generated")
    assert again.digest == same.digest == made.digest
    assert figure.read_bytes() == data


def linux_like(root: Path) -> Path:
    """What `paper` and `kernel` need of a Linux source, small."""
    for i in range(400):
        workloads.write(root / f"Documentation/d{i % 7}/t{i}.rst", b"%d text\n" % i * (1500 if i < 60 else 1))
    for i in range(50):
        workloads.write(root / f"kernel/{i}.c", b"int main;\n" * i)
        workloads.write(root / f"drivers/staging/{i}.c", b"int driver;\n" * 1000 * i)
    (root / "kernel/link").symlink_to("0.c")
    return root


def test_a_folder_and_its_archive_give_the_same_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "KERNEL_FILES", 400)
    monkeypatch.setattr(workloads, "KERNEL_BYTES", 14_000_000)
    root = linux_like(tmp_path / "linux-source-1.0")
    archive = tmp_path / "linux-source-1.0.tar.gz"
    subprocess.run(["tar", "-C", tmp_path, "-caf", archive, root.name], check=True)
    names = ["kernel", "paper"]
    found = [workloads.ready(names, tmp_path / place, str(p)) for place, p in (("one", root), ("two", archive))]
    assert [load.digest for load in found[0]] == [load.digest for load in found[1]]
    assert {load.title for load in found[0]} == {"kernel", "paper"}
    assert {load.origin for loads in found for load in loads} == {"linux-source-1.0"}
    kernel = found[1][0]
    assert kernel.files == 400, "50 of the kernel's own, 40 large, 310 small"
    assert kernel.size_bytes == sum(p.stat().st_size for p in kernel.path.rglob("*.*") if p.is_file()) >= 14_000_000
    assert len(list(kernel.path.glob("drivers/staging/*"))) == 40


@pytest.mark.parametrize("given", ["nowhere", "."])
def test_what_is_no_linux_source_is_said(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=f"--linux {given}"):
        workloads.ready(["paper"], tmp_path / "loads", given)


# --- comparing ---


def two_trees(root: Path) -> tuple[Path, Path]:
    one = root / "one"
    workloads.write(one / "a/file", b"content")
    workloads.write(one / ".metasync/state", b"own")
    workloads.write(one / "a/.git/config", b"not the clone's own: that lies at the top")
    (one / "link").symlink_to("a/file")
    shutil.copytree(one, root / "two", symlinks=True)
    shutil.rmtree(root / "two/.metasync")
    return one, root / "two"


def test_the_same_trees(tmp_path: Path) -> None:
    assert measure.differences(*two_trees(tmp_path), ALL) == []


BREAKS: dict[str, Any] = {
    "content differs": lambda t: workloads.write(t / "a/file", b"Content"),
    "mode differs": lambda t: (t / "a/file").chmod(0o755),
    "mtime differs": lambda t: os.utime(t / "a/file", ns=(0, workloads.MTIME_S * 10**9 + 1)),
    "link differs": lambda t: ((t / "link").unlink(), (t / "link").symlink_to("a")),
    "kind differs": lambda t: ((t / "link").unlink(), shutil.copytree(t / "a", t / "link")),
    "only in one": lambda t: (t / "a/file").unlink(),
    "only in two": lambda t: workloads.write(t / "more", b""),
    "a/.git/config: content differs": lambda t: workloads.write(
        t / "a/.git/config", b"Not the clone's own: that lies at the top"
    ),
}


@pytest.mark.parametrize("said", BREAKS)
def test_a_wrong_clone_is_found(said: str, tmp_path: Path) -> None:
    one, two = two_trees(tmp_path)
    BREAKS[said](two)
    found = measure.differences(one, two, ALL)
    assert any(said in line for line in found), found


def test_what_a_program_does_not_keep_is_not_held_against_it(tmp_path: Path) -> None:
    one, two = two_trees(tmp_path)
    (two / "a/file").chmod(0o755)
    os.utime(two / "a/file", ns=(0, workloads.MTIME_S * 10**9 + 999_999_999))
    (two / "link").unlink()
    assert measure.differences(one, two, frozenset({"seconds"})) == []
    os.utime(two / "a/file", (0, workloads.MTIME_S + 1))
    assert measure.differences(one, two, frozenset({"seconds"})) == ["a/file: mtime differs"]
    workloads.write(two / "a/file", b"contents")
    assert "a/file: content differs" in measure.differences(one, two, frozenset())


# --- measuring ---


def run(argv: list[str], tmp_path: Path, timeout_s: float = 60.0) -> measure.Usage:
    return measure.measured(argv, dict(os.environ), cwd=tmp_path, log=tmp_path / "log", timeout_s=timeout_s)


BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


def test_cpu_and_memory_of_children_count(tmp_path: Path) -> None:
    big = (
        "import subprocess, sys; x = b'x' * 80_000_000; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    )
    usage = run([sys.executable, "-c", big, BURN], tmp_path)
    assert usage.exit_code == 0
    assert usage.cpu_s >= 0.3
    assert usage.wall_s >= 0.3
    assert 80 < usage.peak_mb < 400


def test_our_own_memory_does_not_count(tmp_path: Path) -> None:
    ballast = b"x" * 100_000_000
    assert run(["true"], tmp_path).peak_mb < measure.FLOOR_MB
    assert ballast


def test_failure_and_output_are_told(tmp_path: Path) -> None:
    usage = run(["sh", "-c", "echo out; echo err >&2; exit 3"], tmp_path)
    assert (usage.exit_code, usage.output, usage.timed_out) == (3, "out\nerr\n", False)
    assert run([str(tmp_path / "missing")], tmp_path).exit_code == 127


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    usage = run(["sh", "-c", f"sleep 300 & echo $! > {tmp_path}/pid; wait"], tmp_path, timeout_s=0.5)
    assert usage.timed_out
    assert usage.exit_code == -signal.SIGTERM
    child = int((tmp_path / "pid").read_text())
    while alive(child):  # for ever, if it was left alone
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Not a zombie either: nobody may be there to collect it."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- the report ---


def row(peer: str, number: int, wall_s: float, **other: Any) -> dict[str, Any]:
    base = {"net": "near", "load": "kernel", "run": number, "peer": peer, "step": "push", "cpu_s": wall_s / 2}
    return {**base, "wall_s": wall_s, "peak_mb": 99.0, "exit_code": 0, "timed_out": False, **other}


def test_ratios_are_taken_run_by_run() -> None:
    ours, others = [1.0, 4.0, 9.0], [2.0, 4.0, 3.0]
    rows = [row("metasync", i, w) for i, w in enumerate(ours)]
    rows += [row("restic", i, w) for i, w in reversed(list(enumerate(others)))]
    assert report.ratio(rows, "restic", "push") == "1.00 (1.00)"
    assert report.ratio(rows[:2] + rows[3:], "restic", "push") == "0.75 (0.75)", "a run that one of them lacks"
    assert report.ratio(rows, "borg", "push") == "-"


def test_a_step_that_was_given_up_or_failed_is_no_figure() -> None:
    ours = row("metasync", 1, 5.0)
    late = row("rclone", 1, 420.0, timed_out=True, exit_code=-15)
    assert report.ratio([ours, late], "rclone", "push") == "< 0.01"
    assert report.ratio([ours, row("rclone", 1, 0.1, exit_code=1)], "rclone", "push") == "-"
    assert report.ratio([{**ours, "exit_code": 1}, row("rclone", 1, 1.0)], "rclone", "push") == "-"
    load = {"name": "kernel", "title": "kernel", "files": 1, "folders": 1, "size_bytes": 1, "origin": "x"}
    text = "\n".join(report.section("near", load, [late, row("borg", 1, 1.0, exit_code=2)], ["borg", "rclone"]))
    assert "| borg | failed | -" in text
    assert "| rclone | > 420 | -" in text


@pytest.mark.parametrize(
    ("wall_s", "peak_mb", "said"),
    [(0.5, 250.0, ["met", "met"]), (0.51, 100.0, ["not met", "met"]), (0.1, 251.0, ["met", "not met"])],
)
def test_the_bounds(wall_s: float, peak_mb: float, said: list[str]) -> None:
    rows = [row("metasync", 1, wall_s, step="no-change push", peak_mb=peak_mb), row("metasync", 1, 9.0)]
    rows += [row("metasync", 0, 99.0, step="no-change push", peak_mb=999.0), row("restic", 1, 9.0, peak_mb=999.0)]
    lines = [line for line in report.bars(rows) if line.startswith("- ")]
    assert [line.rpartition(": ")[2] for line in lines] == said
    assert report.bars([r for r in rows if r["peer"] == "restic"]) == []


# --- all of it ---


def bench(work: Path, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(BENCH), "--work", str(work), *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=600)


@pytest.mark.long
def test_the_quick_bench_over_folders(work: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    quick = ["--quick", "--stores", "folders", "--linux", "generated", "--peers", "metasync,cp"]
    result = bench(work, *quick, "--out", str(out))
    assert result.returncode == 0, result.stderr
    measured = json.loads(out.read_text())
    steps = {(r["peer"], r["step"]) for r in measured["rows"]}
    assert steps == {("metasync", step) for step in report.STEPS} | {("cp", "push"), ("cp", "clone")}
    assert all(r["wall_s"] > 0 and r["exit_code"] == 0 for r in measured["rows"])
    assert "### near, paper (generated), 1 run" in result.stdout
    assert "nothing was counted" in result.stdout
    assert result.stdout.strip() == report.markdown(measured).strip()
    assert [p.name for p in work.iterdir()] == ["loads"], "what it made is gone"


@pytest.fixture
def false_cp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a script first on the PATH as `cp`; the real one is `$cp` in it."""
    real = shutil.which("cp")

    def put(script: str) -> None:
        path = tmp_path / "bin/cp"
        path.parent.mkdir()
        path.write_text(f'#!/bin/sh\ncp={real}\n[ "$1" = --version ] && exec $cp "$1"\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")

    return put


def test_a_wrong_clone_fails_the_bench(work: Path, false_cp: Callable[[str], None]) -> None:
    false_cp('$cp "$@" && printf x >> "$3/s00.tex"')
    result = bench(work, "--quick", "--stores", "folders", "--linux", "generated", "--peers", "cp")
    assert result.returncode == 1
    assert "cp clone: 1 wrong: s00.tex: content differs" in result.stdout


def test_a_bench_that_is_ended_leaves_nothing_running(
    work: Path, tmp_path: Path, false_cp: Callable[[str], None]
) -> None:
    false_cp(f"echo $$ > {tmp_path}/pid.new && mv {tmp_path}/pid.new {tmp_path}/pid && sleep 300")
    options = ["--work", str(work), "--quick", "--stores", "folders", "--linux", "generated", "--peers", "cp"]
    process = subprocess.Popen([sys.executable, str(BENCH), *options], stderr=subprocess.DEVNULL)
    while not (tmp_path / "pid").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    assert process.wait(60) == 143
    ends, pid = time.monotonic() + 60, int((tmp_path / "pid").read_text())
    while alive(pid):  # killed, and not gone before it runs once more, which takes its time on a busy machine
        assert time.monotonic() < ends
        time.sleep(0.01)
    assert [p.name for p in work.iterdir()] == ["loads"]


def test_programs_that_are_not_there_are_named(work: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        result = bench(work, "--quick", "--stores", "folders", "--linux", "generated", "--peers", "cp,restic")
    assert result.returncode != 0
    assert "none of cp, restic is installed" in result.stderr


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--peers", "cp,rsnc"], f"no such program: rsnc; there are {', '.join(PEERS)}"),
        (["--net", "far", "--stores", "folders"], "no versitygw"),
        (["--net", "far", "--peers", "git,cp"], "far: none of git, cp speaks S3"),
        (["--net", "nearer"], "nearer: there are near, far"),
        (["--load", "video"], "video: there are kernel, paper, photos"),
        (["--runs", "0"], "--runs: at least one"),
    ],
)
def test_wrong_usage_is_said(options: list[str], said: str, work: Path) -> None:
    result = bench(work, "--quick", "--linux", "generated", *options)
    assert result.returncode != 0
    assert said in result.stderr
    assert [p.name for p in work.iterdir()] == ["loads"]
