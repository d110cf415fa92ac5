"""WebDAV URLs, where a login is looked for, and how it is shown to a server."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from dav_kit import PASSWORD, Answer, Asked, Script, Store, serving

from metasync.backends.registry import open_backend, parse_url, schemes
from metasync.backends.webdav.login import Challenge, Login, Showing, digest_header, find_login, read_challenges
from metasync.errors import RefusedError, UsageError

NETRC = "machine cloud.example login anna password from-netrc\nmachine other.example login bob password b\n"
NETRC += "machine ::1 login six password 6\n"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", "/nonexistent")
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    for name in ("METASYNC_WEBDAV_USER", "METASYNC_WEBDAV_PASSWORD", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def script() -> Iterator[Script]:
    with serving() as script:
        yield script


# URLs.


def test_one_store_has_one_name() -> None:
    told = parse_url("WebDAV+HTTPS://anna@Cloud.example/dav/x?capacity=1GB&name=c")
    assert (told.scheme, told.location) == ("webdav", "webdav://anna@Cloud.example/dav/x")
    assert "webdav+https" not in schemes()
    assert parse_url("webdav+http://127.0.0.1:8080/dav").scheme == "webdav+http"
    assert parse_url("webdav://a@b.example@h.example/%C3%A4%20b").path == "/ä b"


def test_identity() -> None:
    def of(url: str) -> bytes:
        return open_backend(parse_url(url)).identity()

    assert of("webdav://h.example/a") == of("webdav://H.EXAMPLE:443/a/") == of("webdav+http://h.example:80/a")
    assert of("webdav://h.example/a") != of("webdav://h.example:8443/a")
    assert of("webdav://h.example/a")[:16] == of("webdav://h.example/b")[:16]


def test_two_accounts_cannot_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that anna shares with bob has another path in his account."""
    monkeypatch.setenv("METASYNC_WEBDAV_PASSWORD", PASSWORD)
    anna, bob = (
        open_backend(parse_url(f"webdav://{user}@h.example/files/{user}/x")).identity() for user in ("anna", "bob")
    )
    assert anna[:16] != bob[:16]


@pytest.mark.parametrize(
    "url",
    [
        "webdav:///path",
        "webdav://",
        "webdav://ho st/dav",
        "webdav://host:0/dav",
        "webdav://host:99999/dav",
        "webdav://host:x/dav",
        "webdav://h%C3%A4st/dav",
        "webdav://host",
        "webdav://host/../x",
        "webdav://host/a//b",
        "webdav://host/a/./b",
        "webdav:/path",
        "webdav://host/a%0Ab",
        "webdav://host/a%3Fb",
        "webdav://host/a;b=c/d",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(UsageError):
        parse_url(url)


@pytest.mark.parametrize(
    "url", ["webdav://anna:hunter2@host/dav", "webdav+http://a:hunter2@h/d", "webdav://h/d?password=hunter2"]
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(url)
    assert PASSWORD not in str(caught.value)


def test_a_plain_line_is_warned_of() -> None:
    def caution(url: str) -> str:
        return open_backend(parse_url(url)).caution  # type: ignore[attr-defined]

    assert "no TLS" in caution("webdav+http://nas.example/dav")
    for url in ("webdav://nas.example/dav", "webdav+http://127.0.0.1:1/d", "webdav+http://localhost/d"):
        assert caution(url) == ""
    assert caution("webdav+http://[::1]:80/d") == ""
    assert caution("webdav+http://127.0.0.1.example/d") != ""


# Where a login comes from.


def test_where_logins_come_from(tmp_path: Path) -> None:
    file = tmp_path / "netrc"
    file.write_text(NETRC)
    netrc = {"NETRC": str(file), "METASYNC_KEYRING": "off"}
    both = {**netrc, "METASYNC_WEBDAV_USER": "carl", "METASYNC_WEBDAV_PASSWORD": "c"}
    assert find_login("cloud.example", None, both) == Login("anna", "from-netrc")
    assert find_login("cloud.example:8443", None, netrc) == Login("anna", "from-netrc")
    assert find_login("cloud.example", "anna", netrc) == Login("anna", "from-netrc")
    assert find_login("cloud.example", "zoe", netrc) is None
    assert find_login("new.example", None, both) == Login("carl", "c")
    assert find_login("new.example", "carl", both) == Login("carl", "c")
    assert find_login("new.example", "zoe", both) is None, "another's password"
    assert find_login("new.example", "zoe", {**netrc, "METASYNC_WEBDAV_PASSWORD": "z"}) == Login("zoe", "z")
    assert find_login("new.example", None, netrc) is None
    assert find_login("[::1]", None, netrc) == find_login("[::1]:80", None, netrc) == Login("six", "6")
    file.write_text(f"{NETRC}default login dora password d\n")
    assert find_login("cloud.example:8443", None, netrc) == Login("anna", "from-netrc"), "not the one for any host"
    assert find_login("new.example:8443", None, netrc) == Login("dora", "d")
    assert find_login("new.example", "zoe", netrc) is None
    file.write_text(NETRC)
    with pytest.raises(RefusedError, match="without a user"):
        find_login("new.example", None, {**netrc, "METASYNC_WEBDAV_PASSWORD": "z"})


def test_a_login_is_not_shown() -> None:
    assert PASSWORD not in repr(Login("anna", PASSWORD))


def test_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    class LockedError(Exception):
        pass

    keyring, errors = ModuleType("keyring"), ModuleType("keyring.errors")
    errors.KeyringError = LockedError  # type: ignore[attr-defined]
    keyring.errors = errors  # type: ignore[attr-defined]
    held = {("metasync", "anna@cloud.example:8443"): PASSWORD}
    keyring.get_password = lambda *key: held.get(key)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    none = {"NETRC": "/nonexistent"}
    assert find_login("cloud.example:8443", "anna", none) == Login("anna", PASSWORD)
    assert find_login("cloud.example:8443", None, {**none, "METASYNC_WEBDAV_USER": "anna"}) == Login("anna", PASSWORD)
    assert find_login("cloud.example", "anna", none) is None
    assert find_login("cloud.example:8443", None, none) is None
    assert find_login("cloud.example:8443", "anna", {**none, "METASYNC_KEYRING": "off"}) is None

    def locked(*_: str) -> str:
        raise LockedError

    keyring.get_password = locked  # type: ignore[attr-defined]
    assert find_login("cloud.example:8443", "anna", none) is None
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert find_login("cloud.example:8443", "anna", none) is None


@pytest.mark.parametrize("text", [b"machine x login a password hunter2 nonsense", b"hunter2", b"\xff\xfe\x00"])
def test_a_netrc_that_cannot_be_read(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "netrc"
    file.write_bytes(text)
    with pytest.raises(RefusedError) as caught:
        find_login("h.example", None, {"NETRC": str(file)})
    assert str(file) in caught.value.message
    assert PASSWORD not in f"{caught.value}{caught.value.__cause__}"


def test_the_library_reads_no_netrc_of_its_own(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "netrc"
    file.write_text(f"machine 127.0.0.1 login bob password {PASSWORD}\n")
    monkeypatch.setenv("NETRC", str(file))
    script.answer = Store()
    open_backend(parse_url(f"webdav+http://anna@127.0.0.1:{script.port}/dav/x")).list("")
    assert "Authorization" not in script.asked[0].headers
    open_backend(parse_url(f"webdav+http://bob@127.0.0.1:{script.port}/dav/x")).list("")
    assert _basic(script.asked[1]) == f"bob:{PASSWORD}"


# How it is shown.


def _basic(asked: Asked) -> str:
    return base64.b64decode(asked.headers["Authorization"].removeprefix("Basic ")).decode()


def test_without_a_login_the_server_is_asked_all_the_same(script: Script) -> None:
    script.answer = Store()
    backend = open_backend(parse_url(f"webdav+http://127.0.0.1:{script.port}/dav/x"))
    assert backend.list("") == ()
    script.answer = lambda _: Answer(401, headers={"WWW-Authenticate": 'Basic realm="x"'})
    with pytest.raises(RefusedError, match="refused the login") as caught:
        backend.list("")
    for word in (".netrc", "METASYNC_WEBDAV_PASSWORD", "keyring set metasync", "app password", "127.0.0.1"):
        assert word in caught.value.next_step


def test_a_wrong_password_is_sent_once(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers lock accounts after a few."""
    monkeypatch.setenv("METASYNC_WEBDAV_PASSWORD", PASSWORD)
    challenges = 'Basic realm="x", Digest realm="x", nonce="n", qop="auth"'
    script.answer = lambda _: Answer(401, b"hunter2", {"WWW-Authenticate": challenges})
    backend = script.open()
    with pytest.raises(RefusedError, match="refused the login") as caught:
        backend.get("a", max_bytes=1)
    assert "'anna'" in caught.value.next_step
    assert PASSWORD not in f"{caught.value}{caught.value!r}{backend!r}"
    assert [asked.headers.get("Authorization", "")[:6] for asked in script.asked] == ["Basic "]


def test_digest_where_the_server_asks_for_it(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_WEBDAV_PASSWORD", PASSWORD)
    store = Store()
    nonces = ["first", "second"]

    def answer(asked: Asked) -> Answer:
        sent = asked.headers.get("Authorization", "")
        if not sent.startswith("Digest ") or f'nonce="{nonces[0]}"' not in sent:
            stale = ", stale=true" if sent.startswith("Digest") else ""
            challenge = f'Digest realm="a \\"b\\"", nonce="{nonces[0]}", qop="auth,auth-int", algorithm=SHA-256{stale}'
            return Answer(401, headers={"WWW-Authenticate": challenge})
        return store(asked)

    script.answer = answer
    backend = script.open()
    backend.put("a", b"1")
    assert backend.get("a", max_bytes=1) == b"1"
    sent = [asked.headers["Authorization"] for asked in script.asked]
    assert [text.partition(" ")[0] for text in sent] == ["Basic"] + ["Digest"] * 4
    counts = [text.partition("nc=")[2][:8] for text in sent[1:]]
    assert counts == ["00000001", "00000002", "00000003", "00000004"]
    assert all(PASSWORD not in text for text in sent)
    nonces.pop(0)
    script.asked.clear()
    assert backend.get("a", max_bytes=1) == b"1"
    assert len(script.asked) == 3  # one for the new nonce, and one to see that it has not just changed


def test_a_wrong_password_by_digest_ends(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_WEBDAV_PASSWORD", PASSWORD)
    script.answer = lambda _: Answer(
        401, headers={"WWW-Authenticate": f'Digest realm="x", nonce="{len(script.asked)}", stale=true'}
    )
    backend = script.open()
    with pytest.raises(RefusedError, match="refused the login"):
        backend.get("a", max_bytes=1)
    assert len(script.asked) == 2
    script.asked.clear()
    script.answer = lambda _: Answer(401, headers={"WWW-Authenticate": 'Digest realm="x", nonce="1"'})
    with pytest.raises(RefusedError, match="refused the login"):
        backend.get("a", max_bytes=1)
    assert len(script.asked) == 1, "the same answer to the same nonce"


def test_over_a_plain_line_nothing_is_shown_unasked() -> None:
    login = Login("anna", PASSWORD)
    both = ['Basic realm="x", Digest realm="y", nonce="n", qop="auth"']
    showing = Showing(login, unasked=False)
    assert showing.header("GET", "/") is None
    assert showing.asked(both, None) is True
    assert (showing.header("GET", "/") or "").startswith("Digest ")
    only = Showing(login, unasked=False)
    assert only.asked(['Basic realm="x"'], None) is True
    header = only.header("GET", "/")
    assert (header or "").startswith("Basic ")
    assert only.asked(['Basic realm="x"'], header) is False
    private = Showing(login, unasked=True)
    assert (private.header("GET", "/") or "").startswith("Basic ")
    assert private.asked(both, private.header("GET", "/")) is False
    nobody = Showing(None, unasked=True)
    assert nobody.header("GET", "/") is None
    assert nobody.asked(both, None) is False


def test_digest_as_rfc_7616_shows_it() -> None:
    """Section 3.9.1, both algorithms."""
    login = Login("Mufasa", "Circle of Life")
    cnonce = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"
    for algorithm, response in (
        ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
        ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
    ):
        challenge = Challenge(
            "http-auth@example.org",
            "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v",
            "FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS",
            algorithm,
            has_qop=True,
        )
        header = digest_header(login, challenge, "GET", "/dir/index.html", 1, cnonce)
        assert f'response="{response}"' in header
        assert 'uri="/dir/index.html"' in header
        assert f"algorithm={algorithm}, " in header
        assert 'opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS", qop=auth, nc=00000001' in header


def test_digest_as_rfc_2069_has_it() -> None:
    """Without qop; its example, with the erratum's response."""
    challenge = Challenge("testrealm@host.com", "dcd98b7102dd2f0e8b11d0f600bfb0c093", None, "MD5", has_qop=False)
    header = digest_header(Login("Mufasa", "CircleOfLife"), challenge, "GET", "/dir/index.html", 1, "x")
    assert 'response="1949323746fe6a43ef61f9606e7febea"' in header
    assert "qop" not in header


@pytest.mark.parametrize(
    ("values", "basic", "nonce"),
    [
        (['Basic realm="x"'], True, None),
        (["Basic"], True, None),
        (["Negotiate", 'Basic realm="a, Digest b"'], True, None),
        (['Digest realm="x", nonce="n", qop="auth"', 'Basic realm="x"'], True, "n"),
        (
            ['Digest realm="x", nonce="n", algorithm=SHA-512-256', 'Digest realm="x", nonce="m", algorithm=MD5'],
            False,
            "m",
        ),
        (['Digest realm="x", nonce="n", qop="auth-int"'], False, None),
        (['Digest realm="x"'], False, None),
        (["Bearer realm=x"], False, None),
        (["", "\0", "Digest " + "x" * 100_000], False, None),
        ([], False, None),
    ],
)
def test_challenges(values: list[str], basic: bool, nonce: str | None) -> None:
    found_basic, digest = read_challenges(values)
    assert found_basic is basic
    assert (digest.nonce if digest else None) == nonce


def test_names_that_are_not_ascii(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_WEBDAV_USER", "änna")
    monkeypatch.setenv("METASYNC_WEBDAV_PASSWORD", "pässwort")
    store = Store()
    script.answer = store
    open_backend(parse_url(f"webdav+http://127.0.0.1:{script.port}/dav/x")).list("")
    assert _basic(script.asked[0]) == "änna:pässwort"
    script.answer = lambda asked: (
        store(asked)
        if asked.headers["Authorization"].startswith("Digest")
        else Answer(401, headers={"WWW-Authenticate": 'Digest realm="x", nonce="n"'})
    )
    open_backend(parse_url(f"webdav+http://127.0.0.1:{script.port}/dav/x")).list("")


def test_a_session_is_kept(script: Script) -> None:
    store = Store()

    def answer(asked: Asked) -> Answer:
        found = store(asked)
        found.headers |= {"Set-Cookie": "session=1; path=/"}
        return found

    script.answer = answer
    backend = open_backend(parse_url(f"webdav+http://127.0.0.1:{script.port}/dav/x"))
    backend.list("")
    backend.list("")
    assert [asked.headers.get("Cookie") for asked in script.asked] == [None, "session=1"]


def test_importing_and_checking_load_no_library() -> None:
    import subprocess

    code = (
        "import sys; from metasync.backends.registry import parse_url; import metasync.backends.webdav;"
        "parse_url('webdav://h/x'); print(sorted({'requests', 'urllib3', 'keyring'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
