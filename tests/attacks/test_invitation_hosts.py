"""An invitation from a stranger, whose backends are servers of his: they see no login before the user agrees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from http_kit import Answer, Handler, listening
from terminal_kit import on_terminal
from workspace_kit import Lab

from metasync.backends.registry import open_backend, parse_url, server_of
from metasync.backends.sftp.login import password_of
from metasync.backends.webdav.login import find_login
from metasync.errors import MetaSyncError, RefusedError, UsageError
from metasync.keys.invitation import Code, Way
from metasync.workspace import Workspace

LOGINS = {
    "METASYNC_KEYRING": "off",
    "NETRC": "/nonexistent",
    "METASYNC_WEBDAV_USER": "anna",
    "METASYNC_WEBDAV_PASSWORD": "hunter2",
    "ST_USER": "anna",
    "ST_KEY": "hunter2",
    "AWS_ACCESS_KEY_ID": "AKIA",
    "AWS_SECRET_ACCESS_KEY": "hunter2",
    "AWS_SESSION_TOKEN": "hunter2",
}
UNSET = ("ST_AUTH", "OS_AUTH_URL", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "METASYNC_WEBDAV_HOST")


class Trap(NamedTuple):
    """A server that says no to everything, and what reached it."""

    port: int
    heard: list[str]

    def url(self, kind: str) -> str:
        return {
            "webdav": f"webdav+http://anna@127.0.0.1:{self.port}/dav",
            "swift": f"swift://box/x?auth=http://127.0.0.1:{self.port}/auth/v1.0",
            "s3": f"s3://bucket/x?endpoint=http://127.0.0.1:{self.port}",
        }[kind]

    def code(self, *kinds: str) -> str:
        return Code(bytes(16), bytes(32), tuple(Way(k, self.url(k), "a" * 32) for k in kinds)).encode()


@pytest.fixture
def trap(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trap]:
    heard: list[str] = []

    class Listens(Handler):
        def respond(self, body: bytes) -> Answer:
            heard.append(f"{self.command} {self.path} {self.headers}")
            return Answer(401, b"", {"WWW-Authenticate": 'Basic realm="x"'})

    for name, value in LOGINS.items():
        monkeypatch.setenv(name, value)
    for name in (*UNSET, *(n + "_proxy" for n in ("http", "https", "all"))):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with listening(Listens) as port:
        yield Trap(port, heard)


KINDS = ("webdav", "swift", "s3")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_reaches_an_invitations_server_unasked(lab: Lab, trap: Trap, kind: str) -> None:
    """The stranger's own server stands in the invitation, the victim has a login for that kind in the environment."""
    for extra in ((), ("--dry-run",), ("--json",), ("--quiet",)):
        ran = lab.cli("clone", "tablet", "--invite", trap.code(kind), *extra, cwd=".")
        assert ran.code == 2
        assert f"127.0.0.1:{trap.port}" in ran.err + ran.out
        assert "--trust-hosts" in ran.err + ran.out
    with pytest.raises(UsageError, match=r"127\.0\.0\.1"):
        Workspace.clone(lab.root / "tablet", invite=trap.code(kind))
    assert trap.heard == []
    assert not (lab.root / "tablet").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_the_servers_are_shown_to_whoever_is_asked(lab: Lab, trap: Trap, kind: str) -> None:
    """The library asks whom it is told to ask, once, before anything is sent; yes is what sends it."""
    asked: list[tuple[str, ...]] = []

    def answer(servers: tuple[str, ...]) -> bool:
        assert trap.heard == []
        asked.append(servers)
        return len(asked) > 1

    for sent in (False, True):
        with pytest.raises(MetaSyncError):
            Workspace.clone(lab.root / "tablet", invite=trap.code(kind), trust_hosts=answer)
        assert bool(trap.heard) is sent
    assert [len(servers) for servers in asked] == [1, 1]
    assert f"127.0.0.1:{trap.port}" in asked[0][0]


def test_a_server_that_the_user_names_is_agreed_to_and_no_other(lab: Lab, trap: Trap) -> None:
    """A URL of the user's own is consent for its server; the invitation may not add one, nor take TLS away."""
    other = trap.url("webdav").replace("127.0.0.1", "localhost")
    with pytest.raises(UsageError, match="swift") as e:
        Workspace.clone(lab.root / "tablet", invite=trap.code("webdav", "swift"), backends=[trap.url("webdav")])
    assert "webdav" not in e.value.message
    for named in (other, trap.url("webdav").replace("+http", "")):
        with pytest.raises(UsageError, match="webdav"):
            Workspace.clone(lab.root / "tablet", invite=trap.code("webdav"), backends=[named])
    assert trap.heard == []
    with pytest.raises(MetaSyncError, match="reached"):
        Workspace.clone(lab.root / "tablet", invite=trap.code("webdav"), backends=[trap.url("webdav")])
    assert trap.heard


@pytest.mark.few(1)
@pytest.mark.parametrize(("typed", "code", "sent"), [("", 2, False), ("y", 5, True)])
def test_a_terminal_asks(lab: Lab, trap: Trap, typed: str, code: int, sent: bool) -> None:
    words = ("clone", "tablet", "--invite", trap.code("webdav"))
    with on_terminal(*words, cwd=lab.root, env=LOGINS, columns=200) as t:
        t.until(f"webdav+http 127.0.0.1:{trap.port}")
        t.until("[y/N]")
        assert trap.heard == []
        t.type(f"{typed}\r")
        assert t.end() == code
    assert bool(trap.heard) is sent


def test_a_flag_agrees_where_nobody_can_be_asked(lab: Lab, trap: Trap) -> None:
    assert lab.cli("clone", "tablet", "--invite", trap.code("webdav"), "--trust-hosts", cwd=".").code == 5
    assert trap.heard


def test_folders_are_no_servers(lab: Lab) -> None:
    """Invitations to folders, and a Swift of the user's own environment, ask nothing."""
    w = lab.init(lab.urls("a", "b", "c"))
    w.push("first")
    code = w.invite("tablet", "correct horse battery staple").code
    lab.keep(Workspace.clone(lab.root / "tablet", invite=code).workspace)
    assert server_of(parse_url("swift://box/x")) == ""


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("webdav://anna@Dav.Example:8443/x", "webdav dav.example:8443"),
        ("webdav+http://dav.example/x", "webdav+http dav.example"),
        ("sftp://b@nas:22/x", "sftp nas:22"),
        ("s3://bucket/x", "s3 amazonaws.com"),
        ("s3://bucket/x?endpoint=http://minio:9000", "s3 http://minio:9000"),
        ("gcs://bucket/x", "gcs storage.googleapis.com"),
        ("azure://box/x?account=acc", "azure acc.blob.core.windows.net"),
        ("azure://box/x?account=acc&endpoint=https://evil.example", "azure https://evil.example"),
        ("swift://box/x?auth=https://Evil.example/v3", "swift https://evil.example/v3"),
    ],
)
def test_a_server_is_told_as_it_is(url: str, server: str) -> None:
    assert server_of(parse_url(url)) == server


def test_logins_of_the_environment_are_kept_to_the_server_that_they_are_for() -> None:
    """A second server, agreed to or not, gets no login that is said to be for another one."""
    environ = {**LOGINS, "METASYNC_WEBDAV_HOST": "dav.example"}
    for host, ours in (("dav.example", True), ("dav.example:8443", True), ("evil.example", False),
                       ("dav.example.evil", False), ("evil.example:443", False)):  # fmt: skip
        assert (find_login(host, "anna", environ) is not None) is ours
        assert (find_login(host, None, environ) is not None) is ours
    environ["METASYNC_WEBDAV_HOST"] = "dav.example:8443"
    assert find_login("dav.example", None, environ) is None
    assert find_login("dav.example:8443", None, environ) is not None


def test_an_ssh_password_is_kept_to_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("paramiko")
    from metasync.backends.sftp.hosts import Server

    def to(host: str, alias: str) -> str | None:
        return password_of(Server(host, 22, "bob", host, (), False, "", (), alias=alias))

    monkeypatch.setenv("METASYNC_KEYRING", "off")
    monkeypatch.setenv("METASYNC_SFTP_PASSWORD", "hunter2")
    assert to("10.0.0.1", "nas") == "hunter2"
    monkeypatch.setenv("METASYNC_SFTP_HOST", "nas")
    assert to("10.0.0.1", "nas") == "hunter2"
    assert to("nas", "x") == "hunter2"
    assert to("evil.example", "evil") is None


def test_an_s3_key_is_kept_to_its_endpoint(trap: Trap, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://minio.example:9000")
    with pytest.raises(RefusedError, match="AWS_ENDPOINT_URL_S3"):
        open_backend(parse_url(trap.url("s3")))
    assert trap.heard == []
    open_backend(parse_url("s3://bucket/x?endpoint=https://minio.example:9000")).close()
