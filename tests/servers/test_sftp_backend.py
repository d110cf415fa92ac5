"""The SFTP backend on OpenSSH's own server: the contract, and what it says when server, folder or key are not right."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import object_calls
import openssh
import pytest
from contract_kit import FULL, SMALL, passes
from object_calls import open_url

from metasync.backends.api import Backend, TellsSpace
from metasync.backends.registry import open_backend, parse_url
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError
from metasync.testing.contract import CHECKS, QUICK, Check, Store, check_id, run, scratch_name

pytestmark = pytest.mark.servers
pytest.importorskip("paramiko")

CALLS: dict[str, Callable[[Backend], object]] = {
    **object_calls.CALLS,
    "create in the root": lambda b: b.create("new", b"x"),
    "put in the root": lambda b: b.put("b", b"x"),
}
WRITES = ("create", "create in the root", "put", "put in the root")


def _everything_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
def test_contract(ssh_server: openssh.SshServer, check: Check) -> None:
    passes(check, Store.at(ssh_server.url("contract")), FULL, f"contract-{secrets.token_hex(4)}")


@pytest.mark.parametrize("check", [c for c in CHECKS if c.needed_for == "data"], ids=check_id)
def test_contract_in_block_form(ssh_server: openssh.SshServer, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at a server that is not OpenSSH: looks, then renames; reads and writes in small pieces."""
    monkeypatch.setattr("metasync.backends.sftp.connection._OPENSSH", "SSH-2.0-another")
    url = ssh_server.url("block")
    passes(check, Store(lambda: open_url(url)), SMALL, f"contract-{secrets.token_hex(4)}")


def test_a_run_of_the_kit(ssh_server: openssh.SshServer) -> None:
    report = run(Store.at(ssh_server.url("run")), scratch_name(), scale=replace(QUICK, kills=1))
    assert report.verdict == "may vote", report.reasons
    assert {outcome.name for outcome in report.checks if outcome.result != "passed"} == {"digest", "watch"}
    assert report.left_behind == 0
    assert not _everything_below(ssh_server.data / "run"), "not even what no list shows"


# Where it is.


def test_names_are_refused_before_any_request(ssh_server: openssh.SshServer) -> None:
    backend = open_url(ssh_server.url("names"))
    backend.close()
    for path in ("../a", "A", "a//b", ".tmp-1"):
        for call in (
            lambda path=path: backend.create(path, b""),
            lambda path=path: backend.put(path, b""),
            lambda path=path: backend.get(path, max_bytes=1),
            lambda path=path: backend.stat(path),
            lambda path=path: backend.list(path),
            lambda path=path: backend.delete(path),
        ):
            with pytest.raises(ValueError, match="not a path"):
                call()


def test_paths_from_the_root_and_from_home(ssh_server: openssh.SshServer) -> None:
    absolute = ssh_server.url("home/x")
    host = absolute.removeprefix("sftp://").partition("/")[0]
    one, two = open_url(absolute), open_url(f"sftp://{host}/~/data/home/x")
    one.put("a", b"1")
    assert two.get("a", max_bytes=1) == b"1"
    assert one.identity() == two.identity()
    other = open_url(ssh_server.url("home/y"))
    assert other.identity()[:16] == one.identity()[:16]
    assert other.identity() != one.identity()
    with pytest.raises(NotFoundError):
        other.get("a", max_bytes=1)


def test_one_server_under_two_names_is_one_store(ssh_server: openssh.SshServer) -> None:
    url = ssh_server.url("twin")
    home = ssh_server.home
    with open(home.known_hosts, "a") as file:
        file.write(f"[localhost]:{ssh_server.port} {ssh_server.host_key}\n")
    assert open_url(url).identity() == open_url(url.replace("127.0.0.1", "localhost")).identity()


def test_servers_are_independent(
    ssh_server: openssh.SshServer, ssh_servers: Callable[[int], list[openssh.SshServer]]
) -> None:
    backends = [open_url(server.url("independent")) for server in ssh_servers(3)]
    for number, backend in enumerate(backends):
        assert backend.create("same", b"%d" % number) is True
    assert [backend.get("same", max_bytes=1) for backend in backends] == [b"0", b"1", b"2"]
    assert len({backend.identity() for backend in backends}) == 3


def test_space(ssh_server: openssh.SshServer) -> None:
    backend = open_url(ssh_server.url("space"))
    assert isinstance(backend, TellsSpace)
    told, real = backend.space(), shutil.disk_usage(ssh_server.data)
    assert told.total_bytes is not None
    assert told.free_bytes is not None
    assert told.total_bytes >= real.total * 0.99
    assert abs(told.free_bytes - real.free) < 1 << 30


def test_probe(ssh_server: openssh.SshServer) -> None:
    backend = open_url(ssh_server.url("probe"))
    assert backend.form == "log"
    assert backend.probe() == "log"  # type: ignore[attr-defined]
    assert backend.list("") == ()
    assert not _everything_below(ssh_server.data / "probe")


# The folder.


def test_a_folder_that_is_not_there(ssh_server: openssh.SshServer) -> None:
    url = ssh_server.url("missing") + "/below/that"
    with pytest.raises(UnreachableError, match=r"missing/below/that at 127\.0\.0\.1 is not there") as caught:
        open_url(url)
    assert "Only init makes" in caught.value.next_step
    made = open_backend(parse_url(url), create_root=True)
    assert made.create("a", b"1") is True
    assert open_url(url).get("a", max_bytes=1) == b"1"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_folder_that_goes_is_never_an_empty_one(ssh_server: openssh.SshServer, call: Callable) -> None:
    folder = ssh_server.data / "gone"
    backend = open_url(ssh_server.url("gone"))
    backend.put("d/a", b"12")
    shutil.rmtree(folder)
    with pytest.raises(UnreachableError, match=r"gone at 127\.0\.0\.1 is not there"):
        call(backend)
    folder.write_bytes(b"a file in its place")
    with pytest.raises(UnreachableError, match=r"gone at 127\.0\.0\.1 is not there"):
        call(backend)
    folder.unlink()
    assert not folder.exists()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_drive_that_is_unmounted(
    ssh_server: openssh.SshServer, call: Callable, request: pytest.FixtureRequest
) -> None:
    """What lies below the mount point is another file system: nothing is looked up or made there."""
    folder = ssh_server.data / f"drive-{secrets.token_hex(4)}"
    url = ssh_server.url(folder.name)
    with _tmpfs(folder, "1m") as unmount:
        backend = open_url(url)
        backend.put("d/a", b"12")
        unmount()
        failed = None
        try:
            call(backend)
        except BackendError as error:
            failed = error
    assert isinstance(failed, UnreachableError)
    assert "another file system" in failed.message
    assert not _everything_below(folder)


@pytest.mark.parametrize("call", WRITES)
def test_a_full_file_system(ssh_server: openssh.SshServer, call: str) -> None:
    folder = ssh_server.data / f"full-{secrets.token_hex(4)}"
    url = ssh_server.url(folder.name)
    with _tmpfs(folder, "3m"):
        backend = open_url(url)
        backend.put("d/a", b"12")
        with pytest.raises(FullError, match="no space or quota is left"):
            backend.put("big", bytes(5 << 20))
        with pytest.raises(FullError, match="no space or quota is left"):
            backend.create("d/big", bytes(5 << 20))
        deadline = time.monotonic() + 60  # the remains are removed without waiting
        while _everything_below(folder) != {"d/a"} and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _everything_below(folder) == {"d/a"}
        assert backend.get("d/a", max_bytes=9) == b"12"
        with contextlib.suppress(OSError), open(folder / "filler", "wb") as file:
            while True:
                file.write(bytes(1 << 16))
        with pytest.raises(FullError, match="no space or quota is left"):
            {"create": backend.create, "put": backend.put}[call.split()[0]](
                "new" if "root" in call else "d/new", bytes(8192)
            )
        backend.close()


@contextlib.contextmanager
def _tmpfs(folder: Path, size: str):
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder]).returncode:
        pytest.skip("no file system can be mounted here")
    shutil.chown(folder, openssh.account())

    def unmount() -> None:
        subprocess.run(["umount", "-l", folder], check=False, capture_output=True)

    try:
        yield unmount
    finally:
        unmount()


@pytest.mark.parametrize("call", WRITES)
def test_a_folder_that_is_not_ours_to_write_in(ssh_server: openssh.SshServer, call: str) -> None:
    folder = ssh_server.data / f"theirs-{secrets.token_hex(4)}"
    backend = open_url(ssh_server.url(folder.name))
    backend.put("d/a", b"12")
    for path in (folder / "d", folder):
        path.chmod(0o555)
    try:
        with pytest.raises(RefusedError, match="permission denied") as caught:
            CALLS[call](backend)
        assert openssh.account() in caught.value.next_step
        assert backend.get("d/a", max_bytes=9) == b"12"
        with pytest.raises(RefusedError, match="permission denied"):
            backend.delete("d/a")
    finally:
        for path in (folder, folder / "d"):
            path.chmod(0o755)


@pytest.mark.parametrize("create_root", [False, True])
def test_new_folders_where_we_may_not_make_any(ssh_server: openssh.SshServer, create_root: bool) -> None:
    folder = ssh_server.data / f"theirs-{secrets.token_hex(4)}"
    url = ssh_server.url(folder.name)
    folder.chmod(0o555)
    try:
        backend = open_url(url)
        call = (
            (lambda: open_backend(parse_url(f"{url}/new/deep"), create_root=True))
            if create_root
            else (lambda: backend.put("new/deep/a", b"1"))
        )
        with pytest.raises(RefusedError, match="permission denied"):
            call()
    finally:
        folder.chmod(0o755)


def test_a_folder_that_is_not_ours_to_enter(ssh_server: openssh.SshServer) -> None:
    folder = ssh_server.data / "closed"
    url = ssh_server.url("closed/inside")
    folder.chmod(0)
    try:
        with pytest.raises(RefusedError, match="permission denied"):
            open_url(url)
    finally:
        folder.chmod(0o755)


def test_a_file_where_a_folder_should_be(ssh_server: openssh.SshServer) -> None:
    backend = open_url(ssh_server.url("mixed"))
    backend.put("d", b"12")
    for read in (lambda: backend.get("d/a", max_bytes=9), lambda: backend.stat("d/a")):
        with pytest.raises(NotFoundError):
            read()
    assert backend.list("d/a") == ()
    assert backend.list("d") == ()
    backend.delete("d/a")
    for call in WRITES[::2]:
        with pytest.raises(RefusedError, match="a file stands where a folder should"):
            CALLS[call](backend)
    backend.put("e/a", b"1")
    for call in (lambda: backend.get("e", max_bytes=9), lambda: backend.stat("e")):
        with pytest.raises(RefusedError, match="is not a file"):
            call()
    with pytest.raises(BackendError):
        backend.delete("e")
    with pytest.raises(BackendError):
        backend.put("e", b"1")
    assert backend.create("e", b"1") is False
    assert backend.get("e/a", max_bytes=9) == b"1"


def test_lists_leave_out_what_is_no_object(ssh_server: openssh.SshServer) -> None:
    folder = ssh_server.data / "odd"
    backend = open_url(ssh_server.url("odd"))
    backend.put("a", b"1")
    (folder / "UPPER").write_bytes(b"")
    (folder / ".tmp-half").write_bytes(b"")
    (folder / "f\udcff".encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")).write_bytes(b"")
    (folder / "link").symlink_to("a")
    (folder / "d").mkdir()
    assert [tuple(entry) for entry in backend.list("")] == [("a", 1), ("d", None)]


def test_sweep(ssh_server: openssh.SshServer) -> None:
    folder = ssh_server.data / "swept"
    backend = open_url(ssh_server.url("swept"))
    backend.put("run/d/e/a", b"1")
    backend.put("other", b"1")
    (folder / "run/d/.tmp-half").write_bytes(b"")
    (folder / "run/d/out").symlink_to(folder)
    backend.sweep("run")  # type: ignore[attr-defined]
    assert _everything_below(folder) == {"other", "run/d/e/a"}
    backend.delete("run/d/e/a")
    (folder / "run/d/out").unlink()
    backend.sweep("run")  # type: ignore[attr-defined]
    assert not (folder / "run").exists()
    backend.sweep("run")  # type: ignore[attr-defined]


def test_the_script_says_what_to_run() -> None:
    script = Path(openssh.__file__).with_suffix(".sh")
    said = subprocess.run(
        [script], capture_output=True, text=True, env={**os.environ, "METASYNC_SSH_SERVER": "/x/sshd"}
    )
    assert said.stdout == "/x/sshd\n"
