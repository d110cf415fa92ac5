"""The way to OpenSSH's own server and into it: what breaks, who is there, keys, agents and ways through others."""

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
from pathlib import Path

import openssh
import pytest
from object_calls import expect_return, open_url

from metasync.errors import NotFoundError, RefusedError, UnreachableError

pytestmark = pytest.mark.servers
paramiko = pytest.importorskip("paramiko")


def test_a_server_that_goes_and_comes_back(own_ssh_server: openssh.SshServer) -> None:
    expect_return(own_ssh_server)


def test_sessions_that_are_cut_off(own_ssh_server: openssh.SshServer) -> None:
    backend = open_url(own_ssh_server.url("x"))
    assert backend.create("a", b"1") is True
    own_ssh_server.drop()
    with contextlib.suppress(UnreachableError):  # or it was noticed already, and connected anew
        backend.get("a", max_bytes=1)
    assert backend.get("a", max_bytes=1) == b"1"


@pytest.mark.parametrize("verb", ["create", "put"])
def test_a_connection_that_breaks_in_the_midst_of_a_write(own_ssh_server: openssh.SshServer, verb: str) -> None:
    """Then nothing is there, or all; and an error leaves it open which."""
    url = own_ssh_server.url("x")
    backend, reader = open_url(url), open_url(url)
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
    monkeypatch.setattr("metasync.backends.sftp.SMALL_TIMEOUT_S", 0.5)
    monkeypatch.setattr("metasync.backends.sftp.connection._LOGIN_TIMEOUT_S", 1)
    backend = open_url(own_ssh_server.url("x"))
    backend.put("d/a", b"12")
    stopped = [own_ssh_server.pid, *own_ssh_server.sessions()]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(2):  # on the line there was, then on none
            with pytest.raises(UnreachableError, match="in time") as caught:
                backend.get("d/a", max_bytes=9)
            assert caught.value.retryable
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert backend.get("d/a", max_bytes=9) == b"12"


def test_a_server_that_allows_few_sessions(own_ssh_server: openssh.SshServer) -> None:
    own_ssh_server.stop()
    own_ssh_server.lines.append("MaxSessions 2")
    own_ssh_server.start()
    backend = open_url(own_ssh_server.url("x"))
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
        thread.join(60)
    assert not failed
    assert len(backend.list("d")) == 80
    assert len(own_ssh_server.sessions()) <= 5


def test_a_server_without_sftp(own_ssh_server: openssh.SshServer) -> None:
    url = own_ssh_server.url("x")
    own_ssh_server.stop()
    own_ssh_server.has_sftp = False
    own_ssh_server.start()
    with pytest.raises(RefusedError, match=r"lets \w+ in, but not use SFTP") as caught:
        open_url(url)
    assert "Subsystem sftp" in caught.value.next_step
    own_ssh_server.stop()
    own_ssh_server.lines.append("ForceCommand echo Welcome to this server")
    own_ssh_server.has_sftp = True
    own_ssh_server.start()
    if os.geteuid() != 0:  # the account under root has no shell
        with pytest.raises(RefusedError, match="login script"):
            open_url(url)
    own_ssh_server.stop()
    own_ssh_server.lines[:] = ["MaxSessions 0"]
    own_ssh_server.start()
    with pytest.raises(UnreachableError, match="opens no SFTP session"):
        open_url(url)


def test_close_leaves_no_thread_and_no_connection(own_ssh_server: openssh.SshServer) -> None:
    before = set(threading.enumerate())  # those of tests before this one among them
    backend = open_url(own_ssh_server.url("x"))
    backend.put("a", b"1")
    assert len(own_ssh_server.sessions()) > 0
    backend.close()
    assert set(threading.enumerate()) <= before
    deadline = time.monotonic() + 60
    while own_ssh_server.sessions() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert own_ssh_server.sessions() == []


def test_an_interrupt_ends_the_process(own_ssh_server: openssh.SshServer) -> None:
    """In the midst of a call; nothing that runs beside it holds the process."""
    program = (
        "import sys\n"
        "from metasync.backends.registry import open_backend, parse_url\n"
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
        assert process.wait(60) != 0
        assert process.stderr.read().rstrip().endswith("KeyboardInterrupt")
    assert len(open_url(own_ssh_server.url("x")).get("d/a", max_bytes=1 << 20)) == 1 << 20


# Who is there.


def test_an_unknown_server(own_ssh_server: openssh.SshServer) -> None:
    url = own_ssh_server.url("x")
    own_ssh_server.home.forgets(own_ssh_server)
    with pytest.raises(RefusedError, match=r"not known here: it shows the host key ssh-ed25519 SHA256:") as caught:
        open_url(url)
    assert f"ssh-keyscan -p {own_ssh_server.port} 127.0.0.1 >> ~/.ssh/known_hosts" in caught.value.next_step
    assert f"ssh -p {own_ssh_server.port} {openssh.account()}@127.0.0.1" in caught.value.next_step
    assert own_ssh_server.home.known_hosts.read_text() == "", "nothing is ever accepted by itself"
    assert "Accepted" not in own_ssh_server.log(), "and no login was tried"
    own_ssh_server.home.known_hosts.unlink()
    with pytest.raises(RefusedError, match="not known here"):
        open_url(url)


def test_a_changed_host_key(own_ssh_server: openssh.SshServer) -> None:
    url = own_ssh_server.url("x")
    backend = open_url(url)
    own_ssh_server.stop()
    own_ssh_server.new_host_key()
    own_ssh_server.start()
    for call in (lambda: open_url(url), lambda: backend.list("")):  # also on the way back from an outage
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
    assert open_url(url).list("") == ()
    own_ssh_server.home.known_hosts.write_text(f"[127.0.0.1]:{own_ssh_server.port} ssh-rsa {key.get_base64()}\n")
    assert open_url(url).list("") == ()


def test_a_hashed_known_host(own_ssh_server: openssh.SshServer) -> None:
    name = openssh.hashed(f"[127.0.0.1]:{own_ssh_server.port}")
    own_ssh_server.home.known_hosts.write_text(f"{name} {own_ssh_server.host_key}\n")
    assert open_url(own_ssh_server.url("x")).list("") == ()


def test_a_wrong_key(own_ssh_server: openssh.SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = own_ssh_server.url("x")
    key = own_ssh_server.home.ssh / "id_ed25519"
    openssh.make_key(key)
    with pytest.raises(RefusedError, match=rf"is not let in \(tried: {key}; the server takes: publickey\)") as caught:
        open_url(url)
    assert f"ssh-copy-id -p {own_ssh_server.port}" in caught.value.next_step
    monkeypatch.setenv("METASYNC_SFTP_PASSWORD", "hunter2")
    with pytest.raises(RefusedError) as caught:
        open_url(url)
    assert "hunter2" not in f"{caught.value}{caught.value!r}"
    key.unlink()
    with pytest.raises(RefusedError, match="there is nothing to log in with"):
        open_url(url)


def test_an_encrypted_key(own_ssh_server: openssh.SshServer) -> None:
    url = own_ssh_server.url("x")
    key = own_ssh_server.home.ssh / "id_ed25519"
    line = openssh.make_key(key, b"a passphrase")
    (own_ssh_server.root / "authorized_keys").write_text(line + "\n")
    with pytest.raises(RefusedError, match="is not let in") as caught:
        open_url(url)
    assert f"The key {key} is encrypted: run ssh-add {key}." in caught.value.next_step


@pytest.mark.skipif(shutil.which("ssh-agent") is None, reason="no ssh-agent on the PATH")
def test_keys_of_an_agent(own_ssh_server: openssh.SshServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = own_ssh_server.url("x")
    key = own_ssh_server.home.ssh / "id_ed25519"
    socket = Path(f"/tmp/metasync-agent-{secrets.token_hex(4)}")  # a socket's name is short
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL) as agent:
        try:
            monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
            deadline = time.monotonic() + 60
            while not socket.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            subprocess.run(["ssh-add", "-q", str(key)], check=True, capture_output=True)
            key.rename(tmp_path / "moved")
            assert open_url(url).list("") == ()
            # Named by its public half alone, among others that would use up what the server allows.
            for number in range(8):
                openssh.make_key(tmp_path / str(number))
                subprocess.run(["ssh-add", "-q", str(tmp_path / str(number))], check=True, capture_output=True)
            subprocess.run(["ssh-add", "-q", "-d", str(key.with_suffix(".pub"))], check=True, capture_output=True)
            subprocess.run(["ssh-add", "-q", str(tmp_path / "moved")], check=True, capture_output=True)
            with pytest.raises(RefusedError, match="is not let in"):
                open_url(url)
            (own_ssh_server.home.ssh / "config").write_text(
                f"Host 127.0.0.1\n  IdentityFile {key}.pub\n  IdentitiesOnly yes\n"
            )
            assert open_url(url).list("") == ()
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
    backend = open_url(f"sftp://nas{folder}")
    assert backend.create("a", b"1") is True
    (ssh / "config").write_text("Host nas\n  Port many\n")
    with pytest.raises(RefusedError, match="names no port"):
        open_url(f"sftp://nas{folder}")
    (ssh / "config").write_bytes(b"Host \xff\n")
    with pytest.raises(RefusedError, match=r"cannot make sense of .*\.ssh/config"):
        open_url(f"sftp://nas{folder}")


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
    backend = open_url(f"sftp://inner{folder}")
    assert backend.create("d/a", b"12") is True
    assert backend.get("d/a", max_bytes=9) == b"12"
    backend.close()
    (ssh / "config").write_text("Host inner\n  ProxyCommand false\n")
    with pytest.raises(UnreachableError):
        open_url(f"sftp://inner{folder}")


def test_an_address_with_colons(own_ssh_server: openssh.SshServer) -> None:
    url = own_ssh_server.url("x")
    own_ssh_server.stop()
    own_ssh_server.lines.append("ListenAddress ::1")
    try:
        own_ssh_server.start()
    except RuntimeError:
        pytest.skip("no IPv6 here")
    six = url.replace("127.0.0.1", "[::1]")
    with pytest.raises(RefusedError, match="the server ::1 is not known here"):
        open_url(six)
    with open(own_ssh_server.home.known_hosts, "a") as file:
        file.write(f"[::1]:{own_ssh_server.port} {own_ssh_server.host_key}\n")
    assert open_url(six).identity() == open_url(url).identity()
