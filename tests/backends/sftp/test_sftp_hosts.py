"""Which server an SFTP URL means, what known_hosts says of it, and URLs that are none."""

from __future__ import annotations

import base64
import hmac
import os
import subprocess
import sys
from pathlib import Path

import pytest

from metasync.backends.registry import open_backend, parse_url
from metasync.errors import RefusedError, UsageError

pytest.importorskip("paramiko")

from metasync.backends.sftp.hosts import KnownKeys, Server, by_known, check_key, fingerprint, keys_in, server_of

KEY = b"\0\0\0\x0bssh-ed25519" + bytes(36)
OTHER = b"\0\0\0\x0bssh-ed25519" + bytes(35) + b"1"
B64 = base64.b64encode(KEY).decode()
OTHER64 = base64.b64encode(OTHER).decode()
SERVER = Server("nas.example", 2222, "bob", "[nas.example]:2222", (), False, "", ())


def hashed(name: str, salt: bytes = b"salt" * 5) -> str:
    parts = (salt, hmac.digest(salt, name.encode(), "sha1"))
    return "|1|" + "|".join(base64.b64encode(part).decode() for part in parts)


@pytest.mark.parametrize(
    ("line", "name", "known"),
    [
        (f"nas ssh-ed25519 {B64}", "nas", True),
        (f"nas ssh-ed25519 {B64} a comment", "nas", True),
        (f"NAS ssh-ed25519 {B64}", "nas", True),
        (f"nas ssh-ed25519 {B64}", "nas2", False),
        (f"nas ssh-ed25519 {B64}", "[nas]:2222", False),
        (f"[nas]:2222 ssh-ed25519 {B64}", "[nas]:2222", True),
        (f"[nas]:2222 ssh-ed25519 {B64}", "nas", False),
        (f"a,nas,b ssh-ed25519 {B64}", "nas", True),
        (f"*.example ssh-ed25519 {B64}", "nas.example", True),
        (f"*.example,!nas.example ssh-ed25519 {B64}", "nas.example", False),
        (f"!nas.example,*.example ssh-ed25519 {B64}", "nas.example", False),
        (f"!other ssh-ed25519 {B64}", "nas", False),
        (f"na? ssh-ed25519 {B64}", "nas", True),
        (f"na. ssh-ed25519 {B64}", "nas", False),
        (f"*******************************x ssh-ed25519 {B64}", "a" * 200, False),
        (f"{hashed('nas')} ssh-ed25519 {B64}", "nas", True),
        (f"{hashed('nas')} ssh-ed25519 {B64}", "nat", False),
        (f"{hashed('[nas]:22')} ssh-ed25519 {B64}", "[nas]:22", True),
        (f"|1|x|y ssh-ed25519 {B64}", "nas", False),
        (f"|2|x ssh-ed25519 {B64}", "nas", False),
        (f"# nas ssh-ed25519 {B64}", "#", False),
        (f"@cert-authority nas ssh-ed25519 {B64}", "nas", False),
        ("nas ssh-ed25519 %%%", "nas", False),
        ("nas ssh-ed25519", "nas", False),
        ("@revoked", "nas", False),
        ("", "nas", False),
    ],
)
def test_lines_of_known_hosts(line: str, name: str, known: bool) -> None:
    assert keys_in([line], name) == KnownKeys((("ssh-ed25519", KEY),) if known else (), frozenset())


def test_several_lines() -> None:
    lines = [f"nas ssh-ed25519 {B64}", f"nas ssh-rsa {OTHER64}", f"@revoked * ssh-ed25519 {B64}"]
    assert keys_in(lines, "nas") == KnownKeys((("ssh-ed25519", KEY), ("ssh-rsa", OTHER)), frozenset({KEY}))


def test_only_the_very_key_that_is_known_is_accepted() -> None:
    check_key(SERVER, KnownKeys((("ssh-rsa", OTHER), ("ssh-ed25519", KEY)), frozenset()), "ssh-ed25519", KEY)
    with pytest.raises(RefusedError, match="not known here") as unknown:
        check_key(SERVER, KnownKeys((), frozenset()), "ssh-ed25519", KEY)
    assert fingerprint(KEY) in unknown.value.message
    assert "ssh-keyscan -p 2222 nas.example >> ~/.ssh/known_hosts" in unknown.value.next_step
    assert "ssh -p 2222 bob@nas.example" in unknown.value.next_step
    with pytest.raises(RefusedError, match=r"THE HOST KEY OF nas\.example HAS CHANGED") as changed:
        check_key(SERVER, KnownKeys((("ssh-ed25519", OTHER),), frozenset()), "ssh-ed25519", KEY)
    assert fingerprint(KEY) in changed.value.message
    assert fingerprint(OTHER) in changed.value.message
    assert "ssh-keygen -R '[nas.example]:2222'" in changed.value.next_step
    with pytest.raises(RefusedError, match="revoked"):
        check_key(SERVER, KnownKeys((("ssh-ed25519", KEY),), frozenset({KEY})), "ssh-ed25519", KEY)


def test_fingerprints_are_those_of_ssh_keygen(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    line = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (tmp_path / "key.pub").write_bytes(line + b"\n")
    try:
        said = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key.pub"], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("no ssh-keygen on the PATH")
    assert fingerprint(base64.b64decode(line.split()[1])) == said.stdout.split()[1]


def test_a_known_kind_of_key_is_asked_for_first() -> None:
    offered = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256")
    known = KnownKeys((("ssh-rsa", KEY),), frozenset())
    assert by_known(offered, known) == ("rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519", "ecdsa-sha2-nistp256")
    assert by_known(offered, KnownKeys((), frozenset())) == offered


# The user's configuration.


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "localuser")
    (tmp_path / ".ssh").mkdir()
    return tmp_path / ".ssh"


def test_without_a_configuration(ssh: Path) -> None:
    server = server_of("nas", None, None)
    assert (server.host, server.port, server.user, server.known_as) == ("nas", 22, "localuser", "nas")
    assert server.known_hosts[:2] == (str(ssh / "known_hosts"), str(ssh / "known_hosts2"))
    assert "/etc/ssh/ssh_known_hosts" in server.known_hosts
    assert (server.key_files, server.only_those, server.proxy) == ((), False, "")


def test_the_url_wins_over_the_configuration(ssh: Path) -> None:
    (ssh / "config").write_text(
        "Host nas\n  HostName nas.example\n  User carol\n  Port 2200\n"
        "  IdentityFile ~/.ssh/a\n  IdentityFile ~/.ssh/b\n  IdentitiesOnly yes\n"
        "Host alias\n  HostKeyAlias box\n  UserKnownHostsFile ~/.ssh/one ~/.ssh/two\n  GlobalKnownHostsFile /x\n"
        "Host *\n  User everybody\n"
    )
    server = server_of("nas", None, None)
    assert (server.host, server.port, server.user) == ("nas.example", 2200, "carol")
    assert server.known_as == "[nas.example]:2200"
    assert server.key_files == (str(ssh / "a"), str(ssh / "b"))
    assert server.only_those
    assert server.login == "carol@nas.example"
    server = server_of("nas", 22, "bob")
    assert (server.port, server.user, server.known_as) == (22, "bob", "nas.example")
    server = server_of("alias", None, None)
    assert (server.user, server.known_as) == ("everybody", "box")
    assert server.known_hosts == (str(ssh / "one"), str(ssh / "two"), "/x")


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("ProxyJump hop", "ssh hop -W '[nas]:22'"),
        ("ProxyJump bob@hop:2022", "ssh -p 2022 bob@hop -W '[nas]:22'"),
        ("ProxyJump one,two:2022", "ssh -J one -p 2022 two -W '[nas]:22'"),
        ("ProxyJump one,two,three", "ssh -J one,two three -W '[nas]:22'"),
        ("ProxyJump none", ""),
        ("ProxyCommand nc -X 5 %h %p", "nc -X 5 nas 22"),
        ("ProxyCommand none", ""),
    ],
)
def test_ways_through_other_servers(ssh: Path, line: str, command: str) -> None:
    (ssh / "config").write_text(f"Host nas\n  {line}\n")
    assert server_of("nas", None, None).proxy == command


def test_match_exec_is_carried_out(ssh: Path) -> None:
    """In a process of its own: here the library may have been loaded whole already."""
    (ssh / "config").write_text("Match host nas exec true\n  Port 2200\nMatch host nas exec false\n  User nobody\n")
    program = (
        "import sys\n"
        "from metasync.backends.sftp.hosts import server_of\n"
        "assert 'invoke' not in sys.modules\n"
        "server = server_of('nas', None, None)\n"
        "assert (server.port, server.user) == (2200, 'localuser'), server\n"
        "assert 'invoke' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ)


def test_included_files(ssh: Path) -> None:
    """With those that they include, in the order in which they stand; those of other hosts' blocks are left out."""
    (ssh / "config").write_text(
        "Include conf.d/* ~/.ssh/absent\n"
        "User everybody\n"
        "Host other\n  Include others\n  Port 1\n"
        "Host nas\n  Include = 'of the nas'\n  IdentityFile ~/.ssh/last\n"
    )
    (ssh / "conf.d/folder").mkdir(parents=True)
    (ssh / "conf.d/a").write_text("Host nas\n  HostName one.example\n  Include more\n  IdentitiesOnly yes\n")
    (ssh / "conf.d/b").write_text("Host nas\n  HostName two.example\nHost other\n  User nobody\n")
    (ssh / "more").write_text("Host other\n  Port 3\nHost *\n  Port 2200\n")
    (ssh / "others").write_text("Port 2\nHost *\n  HostKeyAlias wrong\n")
    (ssh / "of the nas").write_text("IdentityFile ~/.ssh/first\n")
    server = server_of("nas", None, None)
    assert (server.host, server.port, server.user) == ("one.example", 2200, "everybody")
    assert (server.known_as, server.only_those) == ("[one.example]:2200", True)
    assert server.key_files == (str(ssh / "first"), str(ssh / "last"))
    other = server_of("other", None, None)
    assert (other.host, other.port, other.user, other.known_as) == ("other", 2, "nobody", "wrong")


def test_files_that_include_each_other(ssh: Path) -> None:
    (ssh / "config").write_text("Include config\nPort 2200\n")
    assert server_of("nas", None, None).port == 2200


def test_where_the_agent_is(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("OTHER", "/run/other")
    said = {
        "": "/run/agent",
        "IdentityAgent SSH_AUTH_SOCK": "/run/agent",
        "IdentityAgent none": "",
        "IdentityAgent $OTHER": "/run/other",
        "IdentityAgent ${OTHER}/s": "/run/other/s",
        'IdentityAgent "~/Group Containers/agent.sock"': str(ssh.parent / "Group Containers/agent.sock"),
    }
    for line, path in said.items():
        (ssh / "config").write_text(f"Host nas\n  Port 22\n  {line}\n")
        assert server_of("nas", None, None).agent == path, line
    (ssh / "config").write_text("IdentityFile ${OTHER}/key\n")
    assert server_of("nas", None, None).key_files == ("/run/other/key",)


@pytest.mark.parametrize(
    "content", [b"Host \xff\n", b"Host nas\n  Port many\n", b"Host nas\n  Port 0\n", b"nonsense\n"]
)
def test_a_configuration_that_cannot_be_read(ssh: Path, content: bytes) -> None:
    (ssh / "config").write_bytes(content)
    with pytest.raises(RefusedError, match=r"\.ssh/config") as caught:
        server_of("nas", None, None)
    assert caught.value.next_step


# URLs.


@pytest.mark.parametrize(
    "url",
    [
        "sftp://nas/store",
        "sftp://bob@nas:2222/store/deep",
        "sftp://bob@nas/~/store",
        "sftp://[::1]:22/store",
        "sftp://bob@[fe80::1%25eth0]/store",
        "sftp://bob%40corp@nas/store",
        "sftp://nas/st%C3%BCck",
    ],
)
def test_urls(url: str) -> None:
    parsed = parse_url(url)
    assert parse_url(parsed.location).location == parsed.location


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sftp:///store", "begins with a server"),
        ("sftp:/store", "begins with a server"),
        ("sftp://nas", "a folder of its own"),
        ("sftp://nas/", "a folder of its own"),
        ("sftp://nas/~", "a folder of its own"),
        ("sftp://nas/~/", "a folder of its own"),
        ("sftp://nas/~//.", "a folder of its own"),
        ("sftp://nas/.", "a folder of its own"),
        ("sftp://nas/a/../b", "a folder of its own"),
        ("sftp://nas/~bob/store", "a folder of its own"),
        ("sftp://nas:0/store", "begins with a server"),
        ("sftp://nas:99999/store", "begins with a server"),
        ("sftp://nas:port/store", "begins with a server"),
        ("sftp://-oProxyCommand=x/store", "begins with a server"),
        ("sftp://-lroot@nas/store", "not a user"),
        ("sftp://nas name/store", "begins with a server"),
        ("sftp://bob:hunter2@nas/store", "holds a password"),
        ("sftp://nas/store?password=hunter2", "holds a secret"),
        ("sftp://nas/store?key=hunter2", "holds a secret"),
        ("sftp://nas/store?color=red", "no parameter"),
    ],
)
def test_urls_that_are_none(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_url(url)
    assert "hunter2" not in f"{caught.value}{caught.value!r}"
    assert caught.value.next_step


def test_nothing_of_the_library_is_loaded_to_look_at_a_url() -> None:
    program = (
        "import sys, metasync\n"
        "from metasync.backends.registry import parse_url\n"
        "parse_url('sftp://bob@nas/store')\n"
        "assert not {'paramiko', 'nacl', 'asyncio', 'keyring'} & set(sys.modules), sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasync.backends.sftp", sys.modules["metasync.backends.sftp"])  # it comes back in the end
    for name in [m for m in sys.modules if m.startswith("metasync.backends.sftp") and not m.endswith(".packets")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "paramiko", None)
    with pytest.raises(UsageError) as caught:
        open_backend(parse_url("sftp://bob@nas/store"))
    assert "pip install 'metasync[sftp]'" in caught.value.next_step
