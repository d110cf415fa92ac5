"""The SFTP backend on OpenSSH's own server: the contract, and what it says when server, folder or key are not right."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import openssh
import pytest
from contract_kit import FULL, SMALL, passes

from metasync.backends._base import Backend, TellsSpace
from metasync.backends._registry import open_backend, parse_url
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError
from metasync.testing.contract import CHECKS, QUICK, Check, Store, check_id, run, scratch_name

pytestmark = pytest.mark.servers
paramiko = pytest.importorskip("paramiko")

CALLS: dict[str, Callable[[Backend], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "create in the root": lambda b: b.create("new", b"x"),
    "put": lambda b: b.put("d/b", b"x"),
    "put in the root": lambda b: b.put("b", b"x"),
    "get": lambda b: b.get("d/a", max_bytes=9),
    "get part": lambda b: b.get("d/a", offset=1, length=1, max_bytes=9),
    "get nothing": lambda b: b.get("d/a", length=0, max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "list": lambda b: b.list("d"),
    "list root": lambda b: b.list(""),
    "delete": lambda b: b.delete("d/b"),
}
WRITES = ("create", "create in the root", "put", "put in the root")


def _open(url: str) -> Backend:
    return open_backend(parse_url(url))


def _everything_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
def test_contract(ssh_server: openssh.SshServer, check: Check) -> None:
    passes(check, Store.at(ssh_server.url("contract")), FULL, f"contract-{secrets.token_hex(4)}")


@pytest.mark.parametrize("check", [c for c in CHECKS if c.needed_for == "data"], ids=check_id)
def test_contract_in_block_form(ssh_server: openssh.SshServer, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at a server that is not OpenSSH: looks, then renames; reads and writes in small pieces."""
    monkeypatch.setattr("metasync.backends._sftp_line._OPENSSH", "SSH-2.0-another")
    url = ssh_server.url("block")
    passes(check, Store(lambda: _open(url)), SMALL, f"contract-{secrets.token_hex(4)}")


def test_a_run_of_the_kit(ssh_server: openssh.SshServer) -> None:
    report = run(Store.at(ssh_server.url("run")), scratch_name(), scale=replace(QUICK, kills=1))
    assert report.verdict == "may vote", report.reasons
    assert {outcome.name for outcome in report.checks if outcome.result != "passed"} == {"digest"}
    assert report.left_behind == 0
    assert not _everything_below(ssh_server.data / "run"), "not even what no list shows"


# Where it is.


def test_names_are_refused_before_any_request(ssh_server: openssh.SshServer) -> None:
    backend = _open(ssh_server.url("names"))
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
    one, two = _open(absolute), _open(f"sftp://{host}/~/data/home/x")
    one.put("a", b"1")
    assert two.get("a", max_bytes=1) == b"1"
    assert one.identity() == two.identity()
    other = _open(ssh_server.url("home/y"))
    assert other.identity()[:16] == one.identity()[:16]
    assert other.identity() != one.identity()
    with pytest.raises(NotFoundError):
        other.get("a", max_bytes=1)


def test_one_server_under_two_names_is_one_store(ssh_server: openssh.SshServer) -> None:
    url = ssh_server.url("twin")
    home = ssh_server.home
    with open(home.known_hosts, "a") as file:
        file.write(f"[localhost]:{ssh_server.port} {ssh_server.host_key}\n")
    assert _open(url).identity() == _open(url.replace("127.0.0.1", "localhost")).identity()


def test_servers_are_independent(
    ssh_server: openssh.SshServer, ssh_servers: Callable[[int], list[openssh.SshServer]]
) -> None:
    backends = [_open(server.url("independent")) for server in ssh_servers(3)]
    for number, backend in enumerate(backends):
        assert backend.create("same", b"%d" % number) is True
    assert [backend.get("same", max_bytes=1) for backend in backends] == [b"0", b"1", b"2"]
    assert len({backend.identity() for backend in backends}) == 3


def test_space(ssh_server: openssh.SshServer) -> None:
    backend = _open(ssh_server.url("space"))
    assert isinstance(backend, TellsSpace)
    told, real = backend.space(), shutil.disk_usage(ssh_server.data)
    assert told.total_bytes is not None
    assert told.free_bytes is not None
    assert told.total_bytes >= real.total * 0.99
    assert abs(told.free_bytes - real.free) < 1 << 30


def test_probe(ssh_server: openssh.SshServer) -> None:
    backend = _open(ssh_server.url("probe"))
    assert backend.form == "log"
    assert backend.probe() == "log"  # type: ignore[attr-defined]
    assert backend.list("") == ()
    assert not _everything_below(ssh_server.data / "probe")


# The folder.


def test_a_folder_that_is_not_there(ssh_server: openssh.SshServer) -> None:
    url = ssh_server.url("missing") + "/below/that"
    with pytest.raises(UnreachableError, match=r"missing/below/that at 127\.0\.0\.1 is not there") as caught:
        _open(url)
    assert "Only init makes" in caught.value.next_step
    made = open_backend(parse_url(url), create_root=True)
    assert made.create("a", b"1") is True
    assert _open(url).get("a", max_bytes=1) == b"1"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_folder_that_goes_is_never_an_empty_one(ssh_server: openssh.SshServer, call: Callable) -> None:
    folder = ssh_server.data / "gone"
    backend = _open(ssh_server.url("gone"))
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
        backend = _open(url)
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
        backend = _open(url)
        backend.put("d/a", b"12")
        with pytest.raises(FullError, match="no space or quota is left"):
            backend.put("big", bytes(5 << 20))
        with pytest.raises(FullError, match="no space or quota is left"):
            backend.create("d/big", bytes(5 << 20))
        deadline = time.monotonic() + 5  # the remains are removed without waiting
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
    backend = _open(ssh_server.url(folder.name))
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


def test_a_folder_that_is_not_ours_to_enter(ssh_server: openssh.SshServer) -> None:
    folder = ssh_server.data / "closed"
    url = ssh_server.url("closed/inside")
    folder.chmod(0)
    try:
        with pytest.raises(RefusedError, match="permission denied"):
            _open(url)
    finally:
        folder.chmod(0o755)


def test_a_file_where_a_folder_should_be(ssh_server: openssh.SshServer) -> None:
    backend = _open(ssh_server.url("mixed"))
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
    backend = _open(ssh_server.url("odd"))
    backend.put("a", b"1")
    (folder / "UPPER").write_bytes(b"")
    (folder / ".tmp-half").write_bytes(b"")
    (folder / "f\udcff".encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")).write_bytes(b"")
    (folder / "link").symlink_to("a")
    (folder / "d").mkdir()
    assert [tuple(entry) for entry in backend.list("")] == [("a", 1), ("d", None)]


def test_sweep(ssh_server: openssh.SshServer) -> None:
    folder = ssh_server.data / "swept"
    backend = _open(ssh_server.url("swept"))
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


# The connection.


def test_a_server_that_goes_and_comes_back(own_ssh_server: openssh.SshServer) -> None:
    backend = _open(own_ssh_server.url("x"))
    assert backend.create("d/a", b"12") is True
    own_ssh_server.stop()
    for call in CALLS.values():
        began = time.monotonic()
        with pytest.raises(UnreachableError) as caught:
            call(backend)
        assert caught.value.retryable
        assert time.monotonic() - began < 3, "no retries below us"
    own_ssh_server.start()
    assert backend.get("d/a", max_bytes=9) == b"12"
    backend.close()


def test_sessions_that_are_cut_off(own_ssh_server: openssh.SshServer) -> None:
    backend = _open(own_ssh_server.url("x"))
    assert backend.create("a", b"1") is True
    own_ssh_server.drop()
    with contextlib.suppress(UnreachableError):  # or it was noticed already, and connected anew
        backend.get("a", max_bytes=1)
    assert backend.get("a", max_bytes=1) == b"1"


@pytest.mark.parametrize("verb", ["create", "put"])
def test_a_connection_that_breaks_in_the_midst_of_a_write(own_ssh_server: openssh.SshServer, verb: str) -> None:
    """Then nothing is there, or all; and an error leaves it open which."""
    url = own_ssh_server.url("x")
    backend, reader = _open(url), _open(url)
    old, new = b"old" * 1000, os.urandom(8 << 20)
    if verb == "put":
        backend.put("d/a", old)
    outcomes = set()
    for turn in range(12):
        backend.list("")
        cut = threading.Timer(0.002 * turn**1.5, own_ssh_server.drop)
        cut.start()
        try:
            getattr(backend, verb)("d/a", new)
            outcomes.add("done")
        except UnreachableError as error:
            assert error.retryable
            outcomes.add("unknown")
        cut.join()
        with contextlib.suppress(UnreachableError):
            reader.list("")
        try:
            found = reader.get("d/a", max_bytes=9 << 20)
        except NotFoundError:
            found = None
        assert found in ((new, None) if verb == "create" else (new, old))
        if verb == "put":
            backend.put("d/a", old)
        else:
            backend.delete("d/a")
    assert "unknown" in outcomes


def test_a_server_that_falls_silent(own_ssh_server: openssh.SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasync.backends.sftp._SMALL_TIMEOUT_S", 0.5)
    monkeypatch.setattr("metasync.backends._sftp_line._LOGIN_TIMEOUT_S", 1)
    backend = _open(own_ssh_server.url("x"))
    backend.put("d/a", b"12")
    stopped = [own_ssh_server.pid, *own_ssh_server.sessions()]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(2):  # on the line there was, then on none
            began = time.monotonic()
            with pytest.raises(UnreachableError, match="in time") as caught:
                backend.get("d/a", max_bytes=9)
            assert caught.value.retryable
            assert time.monotonic() - began < 5
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert backend.get("d/a", max_bytes=9) == b"12"


def test_a_server_that_allows_few_sessions(own_ssh_server: openssh.SshServer) -> None:
    own_ssh_server.stop()
    own_ssh_server.lines.append("MaxSessions 2")
    own_ssh_server.start()
    backend = _open(own_ssh_server.url("x"))
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                assert backend.create(f"d/{number}-{turn}", b"x" * number)
                assert backend.stat(f"d/{number}-{turn}") == number
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failed
    assert len(backend.list("d")) == 80
    assert len(own_ssh_server.sessions()) <= 5


def test_a_server_without_sftp(own_ssh_server: openssh.SshServer) -> None:
    url = own_ssh_server.url("x")
    own_ssh_server.stop()
    own_ssh_server.has_sftp = False
    own_ssh_server.start()
    with pytest.raises(RefusedError, match=r"lets \w+ in, but not use SFTP") as caught:
        _open(url)
    assert "Subsystem sftp" in caught.value.next_step
    own_ssh_server.stop()
    own_ssh_server.lines.append("ForceCommand echo Welcome to this server")
    own_ssh_server.has_sftp = True
    own_ssh_server.start()
    if os.geteuid() != 0:  # the account under root has no shell
        with pytest.raises(RefusedError, match="login script"):
            _open(url)
    own_ssh_server.stop()
    own_ssh_server.lines[:] = ["MaxSessions 0"]
    own_ssh_server.start()
    with pytest.raises(UnreachableError, match="opens no SFTP session"):
        _open(url)


def test_close_leaves_no_thread_and_no_connection(own_ssh_server: openssh.SshServer) -> None:
    before = set(threading.enumerate())  # those of tests before this one among them
    backend = _open(own_ssh_server.url("x"))
    backend.put("a", b"1")
    assert len(own_ssh_server.sessions()) > 0
    backend.close()
    assert set(threading.enumerate()) <= before
    deadline = time.monotonic() + 10
    while own_ssh_server.sessions() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert own_ssh_server.sessions() == []


def test_an_interrupt_ends_the_process(own_ssh_server: openssh.SshServer) -> None:
    """In the midst of a call; nothing that runs beside it holds the process."""
    program = (
        "import sys\n"
        "from metasync.backends._registry import open_backend, parse_url\n"
        "backend = open_backend(parse_url(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    backend.put('d/a', bytes(1 << 20))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, own_ssh_server.url("x")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) != 0
        assert process.stderr.read().rstrip().endswith("KeyboardInterrupt")
    assert len(_open(own_ssh_server.url("x")).get("d/a", max_bytes=1 << 20)) == 1 << 20


# Who is there.


def test_an_unknown_server(own_ssh_server: openssh.SshServer) -> None:
    url = own_ssh_server.url("x")
    own_ssh_server.home.forgets(own_ssh_server)
    with pytest.raises(RefusedError, match=r"not known here: it shows the host key ssh-ed25519 SHA256:") as caught:
        _open(url)
    assert f"ssh-keyscan -p {own_ssh_server.port} 127.0.0.1 >> ~/.ssh/known_hosts" in caught.value.next_step
    assert f"ssh -p {own_ssh_server.port} {openssh.account()}@127.0.0.1" in caught.value.next_step
    assert own_ssh_server.home.known_hosts.read_text() == "", "nothing is ever accepted by itself"
    assert "Accepted" not in own_ssh_server.log(), "and no login was tried"
    own_ssh_server.home.known_hosts.unlink()
    with pytest.raises(RefusedError, match="not known here"):
        _open(url)


def test_a_changed_host_key(own_ssh_server: openssh.SshServer) -> None:
    url = own_ssh_server.url("x")
    backend = _open(url)
    own_ssh_server.stop()
    own_ssh_server.new_host_key()
    own_ssh_server.start()
    for call in (lambda: _open(url), lambda: backend.list("")):  # also on the way back from an outage
        with pytest.raises(RefusedError, match="HAS CHANGED") as caught:
            call()
        assert f"ssh-keygen -R '[127.0.0.1]:{own_ssh_server.port}'" in caught.value.next_step


def test_a_server_with_several_keys(own_ssh_server: openssh.SshServer) -> None:
    """It is asked for the one that is known, whichever it would show first."""
    key = paramiko.RSAKey.generate(2048)
    key.write_private_key_file(str(own_ssh_server.root / "rsa_key"))
    url = own_ssh_server.url("x")
    own_ssh_server.stop()
    own_ssh_server.lines.append(f"HostKey {own_ssh_server.root}/rsa_key")
    if os.geteuid() == 0:
        shutil.chown(own_ssh_server.root / "rsa_key", openssh.account())
    own_ssh_server.start()
    assert _open(url).list("") == ()
    own_ssh_server.home.known_hosts.write_text(f"[127.0.0.1]:{own_ssh_server.port} ssh-rsa {key.get_base64()}\n")
    assert _open(url).list("") == ()


def test_a_hashed_known_host(own_ssh_server: openssh.SshServer) -> None:
    name = openssh.hashed(f"[127.0.0.1]:{own_ssh_server.port}")
    own_ssh_server.home.known_hosts.write_text(f"{name} {own_ssh_server.host_key}\n")
    assert _open(own_ssh_server.url("x")).list("") == ()


def test_a_wrong_key(own_ssh_server: openssh.SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = own_ssh_server.url("x")
    key = own_ssh_server.home.ssh / "id_ed25519"
    openssh.make_key(key)
    with pytest.raises(RefusedError, match=rf"is not let in \(tried: {key}; the server takes: publickey\)") as caught:
        _open(url)
    assert f"ssh-copy-id -p {own_ssh_server.port}" in caught.value.next_step
    monkeypatch.setenv("METASYNC_SFTP_PASSWORD", "hunter2")
    with pytest.raises(RefusedError) as caught:
        _open(url)
    assert "hunter2" not in f"{caught.value}{caught.value!r}"
    key.unlink()
    with pytest.raises(RefusedError, match="there is nothing to log in with"):
        _open(url)


def test_an_encrypted_key(own_ssh_server: openssh.SshServer) -> None:
    url = own_ssh_server.url("x")
    key = own_ssh_server.home.ssh / "id_ed25519"
    line = openssh.make_key(key, b"a passphrase")
    (own_ssh_server.root / "authorized_keys").write_text(line + "\n")
    with pytest.raises(RefusedError, match="is not let in") as caught:
        _open(url)
    assert f"The key {key} is encrypted: run ssh-add {key}." in caught.value.next_step


@pytest.mark.skipif(shutil.which("ssh-agent") is None, reason="no ssh-agent on the PATH")
def test_keys_of_an_agent(own_ssh_server: openssh.SshServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = own_ssh_server.url("x")
    key = own_ssh_server.home.ssh / "id_ed25519"
    socket = Path(f"/tmp/metasync-agent-{secrets.token_hex(4)}")  # a socket's name is short
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL) as agent:
        try:
            monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
            deadline = time.monotonic() + 10
            while not socket.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            subprocess.run(["ssh-add", "-q", str(key)], check=True, capture_output=True)
            key.rename(tmp_path / "moved")
            assert _open(url).list("") == ()
            # Named by its public half alone, among others that would use up what the server allows.
            for number in range(8):
                openssh.make_key(tmp_path / str(number))
                subprocess.run(["ssh-add", "-q", str(tmp_path / str(number))], check=True, capture_output=True)
            subprocess.run(["ssh-add", "-q", "-d", str(key.with_suffix(".pub"))], check=True, capture_output=True)
            subprocess.run(["ssh-add", "-q", str(tmp_path / "moved")], check=True, capture_output=True)
            with pytest.raises(RefusedError, match="is not let in"):
                _open(url)
            (own_ssh_server.home.ssh / "config").write_text(
                f"Host 127.0.0.1\n  IdentityFile {key}.pub\n  IdentitiesOnly yes\n"
            )
            assert _open(url).list("") == ()
        finally:
            agent.terminate()


def test_the_users_configuration(own_ssh_server: openssh.SshServer) -> None:
    folder = own_ssh_server.url("x").partition(f":{own_ssh_server.port}")[2]
    ssh = own_ssh_server.home.ssh
    (ssh / "id_ed25519").rename(ssh / "work")
    (ssh / "known_hosts").rename(ssh / "work_hosts")
    (ssh / "config").write_text(
        f"Host nas\n  HostName 127.0.0.1\n  Port {own_ssh_server.port}\n  User {openssh.account()}\n"
        "  IdentityFile ~/.ssh/work\n  UserKnownHostsFile ~/.ssh/work_hosts\n"
    )
    backend = _open(f"sftp://nas{folder}")
    assert backend.create("a", b"1") is True
    (ssh / "config").write_text("Host nas\n  Port many\n")
    with pytest.raises(RefusedError, match="names no port"):
        _open(f"sftp://nas{folder}")
    (ssh / "config").write_bytes(b"Host \xff\n")
    with pytest.raises(RefusedError, match=r"cannot read .*\.ssh/config"):
        _open(f"sftp://nas{folder}")


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh on the PATH")
def test_a_way_through_another_server(own_ssh_server: openssh.SshServer) -> None:
    """ProxyJump and ProxyCommand are left to the system's ssh."""
    ssh = own_ssh_server.home.ssh
    folder = own_ssh_server.url("x").partition(f":{own_ssh_server.port}")[2]
    options = f"-o UserKnownHostsFile={ssh}/known_hosts -i {ssh}/id_ed25519 -F none"
    way = f"ssh {options} -p {own_ssh_server.port} {openssh.account()}@127.0.0.1 -W 127.0.0.1:{own_ssh_server.port}"
    (ssh / "config").write_text(
        f"Host inner\n  HostKeyAlias [127.0.0.1]:{own_ssh_server.port}\n  User {openssh.account()}\n"
        f"  ProxyCommand {way}\n"
    )
    backend = _open(f"sftp://inner{folder}")
    assert backend.create("d/a", b"12") is True
    assert backend.get("d/a", max_bytes=9) == b"12"
    backend.close()
    (ssh / "config").write_text("Host inner\n  ProxyCommand false\n")
    with pytest.raises(UnreachableError):
        _open(f"sftp://inner{folder}")


def test_the_script_says_what_to_run() -> None:
    script = Path(openssh.__file__).with_suffix(".sh")
    said = subprocess.run(
        [script], capture_output=True, text=True, env={**os.environ, "METASYNC_SSH_SERVER": "/x/sshd"}
    )
    assert said.stdout == "/x/sshd\n"
