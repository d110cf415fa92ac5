"""Files of a checkout that another process makes: whatever becomes of it, the checkout comes to the same end."""

from __future__ import annotations

import errno
import marshal
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from checkout_kit import assert_nothing_left, assert_settled, full
from effort import examples
from hypothesis import HealthCheck, given, settings
from workdir import DIR, File, QuietDisk, Workspace, entries, entry, read, trees

from metasync.checkout import maker
from metasync.checkout.checkout import Change, Checkout
from metasync.checkout.file_maker import DATA_BYTES, FILES_MAX, MESSAGE, TABLE_BYTES, fields, make, serve, slot_at
from metasync.checkout.held import go_on, hold
from metasync.checkout.maker import NAMES_BYTES_MAX, Maker, is_python, may_pay
from metasync.checkout.staging import Stage
from metasync.errors import WorkspaceError
from metasync.local.state_keys import PLAN_KEY
from metasync.worktree.disk import Disk
from metasync.worktree.index import load_rows
from metasync.worktree.tree import DirTree

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create") or len(os.sched_getaffinity(0)) < 2, reason="no second core, or no shared memory"
)

TREE: dict[bytes, Any] = {
    b"d": DIR,
    b"d/e": DIR,
    b"d/e/large": b"l" * 3_000,
    b"d/e/private": File(b"private", 0o600),
    b"d/empty": b"",
    b"d/read": File(b"for reading", 0o444, 1),
    b"d/run": File(b"#!", 0o755, -5),
    b"top": b"at the top",
    b"top2": File(b"another", 0o640),
}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process for one file already. One that a failed test held does not stay."""
    begun: list[Maker] = []
    start = Maker.start

    def noted(directory: int) -> Maker | None:
        found = start(directory)
        begun.extend([found] if found is not None else [])
        return found

    monkeypatch.setattr(maker, "FILES_LEAST", 1)
    monkeypatch.setattr(Maker, "start", noted)
    yield
    for found in begun:
        found.close()


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace(tmp_path / "w", Disk()) as found:
        yield found


class Begun:
    """A checkout of a tree that is under way."""

    def __init__(self, work: Workspace, tree: dict[bytes, Any] = TREE, **options: Any) -> None:
        self.work = work
        self.tree = tree
        work.scan_past()
        self.checkout = Checkout(work.db, work.tree)
        self.changes = work.changes({}, entries(tree))
        self.awaited = self.checkout.begin(self.changes, **options)

    @property
    def maker(self) -> Maker:
        handed = self.checkout._handed
        assert handed is not None, "no process was begun"
        return handed._maker

    @property
    def process(self) -> subprocess.Popen[bytes]:
        process = self.maker._process
        assert process is not None
        return process

    def deliver(self) -> None:
        self.work.stage(self.checkout, self.changes, self.awaited, self.tree)

    def one_is_made(self, path: bytes) -> None:
        self.checkout.stage_whole(path, TREE[path])
        self.checkout.settle()

    def stopped(self) -> None:
        """Holds the process, so that it makes nothing of what it is given."""
        self.process.send_signal(signal.SIGSTOP)

    def number(self, path: bytes) -> int:
        return self.checkout._numbers[path]

    def staged(self, path: bytes) -> Path:
        """Where a file is staged."""
        parent, name = self.checkout._stage_of().place(self.number(path))
        return self.work.root / ".metasync" / "tmp" / os.fsdecode(parent) / os.fsdecode(name)

    def ends_well(self) -> None:
        applied = self.checkout.apply()
        assert (applied.kept, applied.unplaced, applied.conflicts) == ([], [], [])
        assert read(self.work.root) == full(self.tree)
        assert_nothing_left(self.work)
        self.work.base = entries(self.tree)
        assert_settled(self.work, self.tree)


# ---- no process


def test_a_process_pays_for_many_files_on_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maker, "FILES_LEAST", 10)
    assert may_pay(Disk(), 10)
    assert not may_pay(Disk(), 9)
    assert not may_pay(QuietDisk(), 10), "what another disk does, the process does not do"
    monkeypatch.setattr(sys, "executable", "/usr/bin/blender")
    assert not may_pay(Disk(), 10), "it would begin the program anew"
    monkeypatch.undo()
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert not may_pay(Disk(), maker.FILES_LEAST)
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert not may_pay(Disk(), maker.FILES_LEAST)
    monkeypatch.undo()
    monkeypatch.delattr(os, "memfd_create")
    assert not may_pay(Disk(), maker.FILES_LEAST)


@pytest.mark.parametrize(
    ("program", "is_one"),
    [
        ("/usr/bin/python3", True), ("/x/python3.13t", True), ("python", True), ("", False), (None, False),
        ("/x/python-app", False), ("/usr/bin/metasync", False),
    ],
)  # fmt: skip
def test_which_programs_are_a_python(program: str | None, is_one: bool) -> None:
    assert is_python(program) is is_one


def no_process(*_args: Any, **_options: Any) -> Any:
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


@pytest.mark.parametrize(
    ("where", "name"), [(socket, "socketpair"), (os, "memfd_create"), (mmap, "mmap"), (subprocess, "Popen")]
)
def test_a_process_that_cannot_be_started(
    work: Workspace, monkeypatch: pytest.MonkeyPatch, where: Any, name: str
) -> None:
    monkeypatch.setattr(where, name, no_process)
    begun = Begun(work)
    assert begun.checkout._handed is None
    begun.deliver()
    begun.ends_well()


def test_a_process_that_ends_at_once(work: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    begun = Begun(work)
    begun.process.wait()
    begun.deliver()
    begun.ends_well()


def test_the_process_starts_before_anything_else_is_done(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start takes a core that is idle until the first file comes."""
    order: list[str] = []
    start, make_dirs, set_value = Maker.start, Stage.make_dirs, type(work.db).set_value
    monkeypatch.setattr(Maker, "start", lambda fd: order.append("process") or start(fd))
    monkeypatch.setattr(Stage, "make_dirs", lambda stage: order.append("directories") or make_dirs(stage))
    monkeypatch.setattr(type(work.db), "set_value", lambda db, *a: order.append(a[0]) or set_value(db, *a))
    begun = Begun(work)
    assert order.index("process") < order.index(PLAN_KEY.name) < order.index("directories")
    begun.deliver()
    begun.ends_well()


@pytest.mark.parametrize("where", ["the journal", "the directories"])
def test_no_process_stays_where_a_checkout_cannot_begin(
    work: Workspace, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    started: list[Maker] = []
    start = Maker.start

    def noted(directory: int) -> Maker | None:
        found = start(directory)
        assert found is not None
        started.append(found)
        return found

    set_value = type(work.db).set_value

    def fails(*given: Any) -> None:
        if isinstance(given[0], Stage) or given[1] == PLAN_KEY.name:
            raise WorkspaceError("nothing can be written")
        set_value(*given)

    monkeypatch.setattr(Maker, "start", noted)
    with monkeypatch.context() as m:
        m.setattr(*((type(work.db), "set_value") if where == "the journal" else (Stage, "make_dirs")), fails)
        with pytest.raises(WorkspaceError, match="nothing can be written"):
            Begun(work)
    assert len(started) == 1
    assert started[0]._process is None, "it was ended"
    begun = Begun(work)
    begun.deliver()
    begun.ends_well()


def test_no_process_starts_where_there_is_no_room(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Maker, "start", None)
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: 1000)
    with pytest.raises(WorkspaceError, match="1,000 are free"):
        Begun(work, needed=None)


def test_no_process_for_what_goes_on_after_a_pause(work: Workspace) -> None:
    begun = Begun(work)
    begun.deliver()
    held = hold(begun.checkout)
    assert held is not None
    assert held.awaited == frozenset(), "what was handed over is made before the pause"
    again = Checkout(work.db, work.tree)
    assert go_on(again, held) == []
    again.apply()
    assert read(work.root) == full(TREE)


# ---- a process that ends


def killed(begun: Begun) -> None:
    begun.process.kill()


def left_in_part(begun: Begun) -> None:
    """It was at one file, whose contents had not come."""
    begun.staged(b"d/run").write_bytes(b"#")
    killed(begun)


def left_whole(begun: Begun) -> None:
    """It had made a file, and had not told of it."""
    begun.staged(b"d/run").write_bytes(b"#!")
    begun.staged(b"top").write_bytes(b"at the top")
    killed(begun)


@pytest.mark.parametrize("what", [killed, left_in_part, left_whole])
def test_a_process_that_is_killed_costs_time_alone(work: Workspace, what: Callable[[Begun], None]) -> None:
    begun = Begun(work)
    begun.stopped()
    begun.deliver()
    assert len(begun.checkout._awaited) == 6, "all was handed over"
    what(begun)
    begun.ends_well()


def test_a_process_that_is_killed_before_it_gets_anything(work: Workspace) -> None:
    begun = Begun(work)
    begun.process.kill()
    begun.deliver()
    begun.ends_well()


def test_a_process_that_is_killed_when_it_has_made_some(work: Workspace) -> None:
    many = {b"d": DIR, **{b"d/%03d" % i: b"%d" % i for i in range(3 * FILES_MAX)}}
    begun = Begun(work, many)
    for path in begun.awaited[:FILES_MAX]:
        begun.checkout.stage_whole(path, many[path])
    begun.checkout.settle()
    assert len(begun.checkout._awaited) == 2 * FILES_MAX
    begun.stopped()
    for path in begun.awaited[FILES_MAX:]:
        begun.checkout.stage_whole(path, many[path])
    killed(begun)
    begun.ends_well()


def test_a_name_that_is_another_staged_file_stays(work: Workspace) -> None:
    """A disk may take two names for one. What a killed process had made under the other name is not removed."""
    begun = Begun(work)
    begun.deliver()
    begun.checkout.settle()
    there = begun.staged(b"d/run")
    begun.checkout._stats.pop(begun.number(b"d/read"))  # as if it had not been told of
    begun.staged(b"d/read").unlink()
    os.link(there, begun.staged(b"d/read"))
    handed = begun.checkout._handed
    assert handed is not None
    handed._remove(begun.number(b"d/read"))
    assert begun.staged(b"d/read").exists(), "it is the same file as d/run"
    begun.staged(b"d/read").unlink()
    begun.staged(b"d/read").write_bytes(b"a part")
    handed._remove(begun.number(b"d/read"))
    assert not begun.staged(b"d/read").exists()
    begun.checkout.pause()


def test_a_name_that_is_a_file_in_parts_stays(work: Workspace) -> None:
    large = entry(b"123456")._replace(root=b"r" * 32)
    checkout = Checkout(work.db, work.tree)
    checkout.begin([Change(b"large", large, None), Change(b"other", entry(b"x"), None)])
    checkout.stage_part(b"large", 0, b"123")
    tmp, handed = work.root / ".metasync" / "tmp", checkout._handed
    assert handed is not None
    os.link(tmp / "0", tmp / "1")
    handed._remove(1)
    assert (tmp / "1").exists()
    (tmp / "1").unlink()
    (tmp / "1").write_bytes(b"a part")
    handed._remove(1)
    assert not (tmp / "1").exists()
    checkout.pause()


def test_a_name_that_is_a_directory_stays(work: Workspace) -> None:
    begun = Begun(work)
    begun.stopped()
    begun.staged(b"d/run").mkdir()
    handed = begun.checkout._handed
    assert handed is not None
    handed._remove(begun.number(b"d/run"))
    assert begun.staged(b"d/run").is_dir()
    begun.staged(b"d/run").rmdir()
    handed._remove(begun.number(b"d/run"))
    begun.checkout.abandon()


def test_nothing_is_handed_to_a_process_that_is_no_more(work: Workspace) -> None:
    begun = Begun(work)
    begun.process.kill()
    begun.one_is_made(b"top")
    begun.checkout.stage_whole(b"top2", TREE[b"top2"].data)
    assert begun.number(b"top2") not in begun.checkout._awaited, "it is made here"
    begun.deliver()
    begun.ends_well()


def test_a_process_that_says_nothing_is_ended(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maker, "SILENT_S", 0.05)
    begun = Begun(work)
    begun.stopped()
    begun.deliver()
    begun.ends_well()


def test_ctrl_c_is_the_checkouts_alone(work: Workspace) -> None:
    begun = Begun(work)
    begun.one_is_made(b"top")
    begun.process.send_signal(signal.SIGINT)
    begun.deliver()
    begun.checkout.settle()
    assert begun.process.poll() is None
    begun.ends_well()


BEGINS = """
import os, sys, time
from metasync.checkout.maker import Maker
found = Maker.start(os.open(sys.argv[1], os.O_RDONLY))
print(found._process.pid, flush=True)
time.sleep(600)
"""


def test_no_process_stays_behind_a_killed_checkout(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", BEGINS, str(tmp_path)], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    until = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < until, "it runs on"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_what_a_process_is_told_by_its_arguments_is_no_name(work: Workspace) -> None:
    begun = Begun(work)
    words = Path(f"/proc/{begun.process.pid}/cmdline").read_bytes().split(b"\0")
    assert [word for word in words[-4:-1] if not word.isdigit()] == []
    assert not any(b"private" in word or os.fsencode(work.root) in word for word in words)
    begun.checkout.abandon()


# ---- a disk that refuses


def limited(begun: Begun) -> None:
    """Writes of the process fail from the third byte of a file on."""
    resource.prlimit(begun.process.pid, resource.RLIMIT_FSIZE, (2, 2))


def test_what_the_process_cannot_write_is_made_here(work: Workspace) -> None:
    begun = Begun(work)
    begun.one_is_made(b"top")
    limited(begun)
    begun.deliver()
    begun.ends_well()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES])
def test_errors_are_those_of_a_checkout_without_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refused(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    told = []
    for least in (1, 1000):
        monkeypatch.setattr(maker, "FILES_LEAST", least)
        with Workspace(tmp_path / "w", Disk()) as work:
            begun = Begun(work, needed=None)
            if least == 1:
                begun.one_is_made(b"top")
                limited(begun)
            with monkeypatch.context() as patched:
                patched.setattr(Disk, "write", refused)
                with pytest.raises(WorkspaceError) as caught:
                    begun.one_is_made(b"d/e/large")
            told.append((caught.value.message, caught.value.next_step, type(caught.value.__cause__)))
            begun.checkout.abandon()
            assert_nothing_left(work)
    assert told[0] == told[1]


def test_what_may_wait_is_left_out_where_the_disk_is_full(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Begun(work)
    begun.one_is_made(b"top")
    limited(begun)

    def refused(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "write", refused)
        begun.deliver()
        begun.checkout.settle()
    applied = begun.checkout.apply()
    assert {noted.path for noted in applied.unplaced} == {*begun.awaited, b"d/empty"}
    assert not any(isinstance(spec, File) for spec in read(work.root).values())


def test_a_file_that_appears_meanwhile_is_not_replaced(work: Workspace) -> None:
    """Somebody's file under the name of a staged one: the staged one is set apart, and the placing tells."""
    begun = Begun(work)
    begun.staged(b"d/run").write_bytes(b"somebody's")
    begun.deliver()
    applied = begun.checkout.apply()
    assert [conflict.path for conflict in applied.conflicts] or [noted.path for noted in applied.unplaced]
    assert b"somebody's" in {spec.data for spec in read(work.root).values() if isinstance(spec, File)}


# ---- what is done with files that were handed over


def test_what_is_left_out_is_not_made(work: Workspace) -> None:
    begun = Begun(work)
    begun.stopped()
    begun.deliver()
    begun.process.send_signal(signal.SIGCONT)
    begun.checkout.leave_out({b"d/run": "lost", b"top": "lost"})
    applied = begun.checkout.apply()
    assert {noted.path for noted in applied.unplaced} == {b"d/run", b"top"}
    assert not (work.root / "d" / "run").exists()
    assert not (work.root / "top").exists()


def test_what_was_left_out_and_comes_all_the_same_is_not_made(work: Workspace) -> None:
    begun = Begun(work)
    begun.checkout.leave_out({b"d/run": "lost"})
    begun.deliver()
    begun.checkout.settle()
    assert not begun.staged(b"d/run").exists()
    applied = begun.checkout.apply()
    assert [noted.path for noted in applied.unplaced] == [b"d/run"]
    assert not (work.root / "d" / "run").exists()


@pytest.mark.parametrize("meanwhile", ["nothing", "made", "killed"])
def test_what_comes_twice_is_made_anew(work: Workspace, meanwhile: str) -> None:
    begun = Begun(work)
    begun.deliver()
    if meanwhile == "made":
        begun.checkout.settle()
    begun.deliver()
    if meanwhile == "killed":
        killed(begun)
    begun.ends_well()


def test_large_files_and_long_names_are_made_here(work: Workspace) -> None:
    deep = b"/".join([b"n" * 200] * 4)
    dirs: dict[bytes, Any] = {deep[: 201 * i - 1]: DIR for i in (1, 2, 3, 4)}
    tree = {**dirs, deep + b"/f": b"1", b"large": b"l" * (DATA_BYTES + 1), b"fits": b"f" * DATA_BYTES, b"g": b"g"}
    begun = Begun(work, tree)
    begun.stopped()
    begun.deliver()
    assert begun.checkout._awaited == {begun.number(b"fits"), begun.number(b"g")}
    begun.process.send_signal(signal.SIGCONT)
    begun.ends_well()


def test_the_checkout_makes_files_itself_while_the_process_has_enough(work: Workspace) -> None:
    many = {b"d": DIR, **{b"d/%04d" % i: b"%d" % i for i in range(5 * FILES_MAX)}}
    begun = Begun(work, many)
    begun.stopped()
    begun.deliver()
    assert len(begun.checkout._awaited) == maker.SLOTS * FILES_MAX
    begun.process.send_signal(signal.SIGCONT)
    begun.ends_well()


def test_tables_have_room_for_what_they_may_hold() -> None:
    number = (1 << 63) - 1
    job = (b"p" * NAMES_BYTES_MAX, b"", 0o777, 0o7777, -number, DATA_BYTES)
    assert len(marshal.dumps([job] * FILES_MAX, 0)) <= TABLE_BYTES
    outcome = (*[number] * 10, *[1e300] * 3, *[number] * 3)
    assert len(marshal.dumps([outcome] * FILES_MAX, 0)) <= TABLE_BYTES


def test_the_process_fills_tables_until_its_socket_ends(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, mmap.mmap(-1, maker.SLOTS * (TABLE_BYTES + DATA_BYTES)) as memory:
        table, at = slot_at(1)
        packed = marshal.dumps([(b"", b"one", 0o600, 0o640, 7, 3), (b"", b"one", 0o600, 0o600, 7, 3)])
        memory[table : table + len(packed)] = packed
        memory[at : at + 6] = b"onetwo"
        ours.send(MESSAGE.pack(1, len(packed)))
        ours.shutdown(socket.SHUT_WR)
        with closing(DirTree(b"", os.open(tmp_path, os.O_RDONLY), Disk())) as dirs:
            serve(theirs.fileno(), memory, dirs)
        slot, size = MESSAGE.unpack(ours.recv(MESSAGE.size))
        made, taken = marshal.loads(memory[table : table + size])
    assert (slot, taken) == (1, ())
    assert read(tmp_path) == {b"one": File(b"one", 0o640, 7)}
    assert os.stat_result(made).st_ino == (tmp_path / "one").stat().st_ino


class Refusing(Disk):
    """Takes a part of a file, and no more."""

    def write(self, fd: int, data: bytes | memoryview, offset: int = 0) -> None:
        super().write(fd, data[:1], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_process_leaves_nothing_of_what_it_cannot_make(tmp_path: Path) -> None:
    with closing(DirTree(b"", os.open(tmp_path, os.O_RDONLY), Refusing())) as dirs:
        assert make(dirs, (b"", b"f", 0o600, 0o600, 0, 3), memoryview(b"abc")) == ()
        assert make(dirs, (b"none", b"f", 0o600, 0o600, 0, 3), memoryview(b"abc")) == ()
    assert os.listdir(tmp_path) == []


def test_a_stat_comes_back_as_it_was(tmp_path: Path) -> None:
    st = os.stat(tmp_path)
    back = os.stat_result(marshal.loads(marshal.dumps(fields(st))))  # type: ignore[arg-type]
    assert back == st
    names = ("st_ino", "st_dev", "st_mode", "st_nlink", "st_size", "st_mtime_ns", "st_ctime_ns", "st_atime_ns")
    assert [getattr(back, name) for name in names] == [getattr(st, name) for name in names]


# ---- any tree


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees)
def test_any_tree_comes_out_as_without_a_process(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[bytes, Any]
) -> None:
    rows = []
    for least in (1, 1000):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(maker, "FILES_LEAST", least)
            with Workspace(tmp_path_factory.mktemp("w"), Disk()) as work:
                begun = Begun(work, tree)
                assert (begun.checkout._handed is not None) is (least == 1 and bool(begun.awaited))
                begun.deliver()
                begun.ends_well()
                found = load_rows(work.db).items()
                rows.append({path: row._replace(dev=0, ino=0, ctime_ns=0) for path, row in found if path})
    assert rows[0] == rows[1]
