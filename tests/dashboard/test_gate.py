"""Attacks on the page: by other sites in the user's browser, other users of the machine, and hostile names."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from page_kit import HUNG_S, Served, served

from metasync.dashboard.gate import BODY_BYTES_MAX, HOST
from metasync.workspace import Workspace


@pytest.fixture
def fresh(folder: Workspace) -> Iterator[Served]:
    """A page whose token nobody has used."""
    with served([folder.directory]) as s:
        yield s


def paths(s: Served) -> list[str]:
    below = ("", "static/app.js", "api/events", f"api/{s.id}/overview", f"api/{s.id}/file?path=bm90ZXMudHh0")
    return [s.gate.path + path for path in below]


# ---- who asks


def test_without_the_cookie_nothing_is_told(fresh: Served) -> None:
    fresh.open()
    for path in paths(fresh):
        for cookie in (
            "",
            "metasync=",
            "metasync=x",
            f"metasync={fresh.cookie[9:-1]}",
            f"other={fresh.cookie[9:]}",
            "a=\x80",
        ):
            assert fresh.get(path, cookie=cookie).status in (400, 403), (path, cookie)
    assert fresh.get(paths(fresh)[0]).status == 200


def test_before_the_token_is_used_no_cookie_opens(fresh: Served) -> None:
    for cookie in ("", "metasync=", "metasync=None"):
        assert fresh.get(paths(fresh)[0], cookie=cookie).status == 403


def test_what_anybody_gets_holds_no_data(fresh: Served, folder: Workspace) -> None:
    for path in ("/", "/open.js", "/page.css", "/icon.svg"):
        answer = fresh.get(path)
        assert answer.status == 200
        for secret in (fresh.token, fresh.gate.path, "photos", str(folder.directory)):
            assert secret.encode() not in answer.body
    assert fresh.get("/index.html").status == 404


def test_the_token_opens_once(fresh: Served) -> None:
    token = fresh.token
    fresh.open()
    again = fresh.post("/open", {"token": token}, cookie="")
    assert (again.status, again.headers.get("set-cookie")) == (403, None)
    assert "used already" in again.message
    assert fresh.gate.url.endswith("#")  # not to be had from the program either


@pytest.mark.parametrize(
    "body",
    [{}, {"token": ""}, {"token": "x" * 43}, {"token": None}, {"token": ["a"]}, {"token": "\ud800"}, [], 7, None],
)
def test_a_wrong_token_opens_nothing_and_uses_nothing_up(fresh: Served, body: object) -> None:
    answer = fresh.post("/open", body, cookie="")
    assert (answer.status, answer.headers.get("set-cookie")) == (403, None)
    fresh.open()


def test_the_token_in_the_path_or_query_opens_nothing(fresh: Served) -> None:
    for path in (
        f"/?token={fresh.token}",
        f"/{fresh.token}",
        f"/open?token={fresh.token}",
        f"{fresh.gate.path}?token={fresh.token}",
    ):
        assert fresh.get(path).headers.get("set-cookie") is None
    fresh.open()


def test_the_cookie_is_for_the_server_alone_and_for_a_path_that_nobody_knows(fresh: Served) -> None:
    """Cookies know of no ports: another user's server on this host gets none for a path that it cannot name."""
    answer = fresh.post("/open", {"token": fresh.token}, cookie="")
    words = answer.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=strict", f"Path={fresh.gate.path}"} <= set(words)
    assert not any(word.startswith(("Domain", "Max-Age", "expires")) for word in words)
    assert len(fresh.gate.path) == len("/p//") + 32


def test_another_path_says_nothing_of_the_right_one(fresh: Served) -> None:
    fresh.open()
    for path in ("/p/", "/p/" + "0" * 32 + "/", fresh.gate.path[:-2] + "/", "/p/../" + fresh.gate.path):
        assert fresh.get(path).status == 404


# ---- from where


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "localhost:{port}",
        f"{HOST}",
        f"{HOST}:1",
        "[::1]:{port}",
        "0.0.0.0:{port}",
        f"{HOST}.:{{port}}",
        None,
    ],
)
def test_another_host_is_refused(kept: Served, host: str | None) -> None:
    """A name that leads to loopback (DNS rebinding) shows what it is called."""
    named = None if host is None else host.format(port=kept.server.port)
    for path in ("/", kept.gate.path, f"{kept.gate.path}api/{kept.id}/overview"):
        assert kept.get(path, host=named).status in (400, 421)
    # A request without any host is cut off by the HTTP library: a body still on its way would have the line reset.
    body = None if named is None else b'{"token": "x"}'
    assert kept.ask("POST", "/open", body, host=named).status in (400, 421)


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://localhost:{port}",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1:1",
        "http://127.0.0.1",
    ],
)
def test_another_origin_is_refused(kept: Served, origin: str) -> None:
    named = origin.format(port=kept.server.port)
    assert kept.get(f"api/{kept.id}/overview", origin=named).status == 403
    assert kept.post(f"api/{kept.id}/do/pause", {"seconds": None}, origin=named).status == 403
    assert kept.look("settings")["paused"] == ""


def test_a_change_without_an_origin_is_refused(kept: Served) -> None:
    assert kept.post(f"api/{kept.id}/do/pause", {"seconds": None}, origin=None).status == 403
    assert kept.look("settings")["paused"] == ""


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_request_of_another_site_is_refused_even_with_the_cookie(kept: Served, site: str) -> None:
    for path in (*paths(kept), "/open.js", "/page.css"):
        assert kept.get(path, sec_fetch_site=site).status == 403
    assert kept.post("/open", {"token": "x"}, sec_fetch_site=site).message == "Another site asks."
    assert kept.get("/", sec_fetch_site=site).status == 200  # where the file that opens the browser leads


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None]
)
def test_a_form_of_another_site_cannot_change_anything(kept: Served, kind: str | None) -> None:
    """Forms send these kinds without asking first."""
    assert kept.post(f"api/{kept.id}/do/pause", {"seconds": None}, content_type=kind).status == 415
    assert kept.look("settings")["paused"] == ""


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"])
def test_no_other_method_is_known(kept: Served, method: str) -> None:
    answer = kept.ask(method, kept.gate.path)
    assert answer.status in (400, 404, 405)
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_get_changes_nothing(kept: Served) -> None:
    assert kept.get(f"api/{kept.id}/do/pause").status == 405
    assert kept.look("settings")["paused"] == ""


# ---- what comes


def test_headers_forbid_all_but_the_page_itself(kept: Served) -> None:
    for path in (
        "/",
        kept.gate.path,
        f"{kept.gate.path}api/{kept.id}/overview",
        f"{kept.gate.path}nothing",
        "/elsewhere",
    ):
        headers = kept.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers


@pytest.mark.parametrize("length", [str(BODY_BYTES_MAX + 1), "9" * 30, "-1", "1e3", "٣"])
def test_a_body_that_says_it_is_huge_is_refused_before_it_is_read(kept: Served, length: str) -> None:
    with socket.create_connection((HOST, kept.server.port), timeout=HUNG_S) as line:
        line.sendall(
            f"POST {kept.gate.path}api/{kept.id}/do/push HTTP/1.1\r\nhost: {HOST}:{kept.server.port}\r\n"
            f"origin: {kept.gate.origin}\r\ncookie: {kept.cookie}\r\ncontent-type: application/json\r\n"
            f"content-length: {length}\r\n\r\n".encode()
        )
        assert line.recv(1 << 12).split(b" ")[1] in (b"400", b"413")
    assert kept.look("overview")["version"] == 1


def test_a_body_that_goes_on_and_on_is_ended(kept: Served) -> None:
    with socket.create_connection((HOST, kept.server.port), timeout=HUNG_S) as line:
        line.sendall(
            f"POST {kept.gate.path}api/{kept.id}/do/push HTTP/1.1\r\nhost: {HOST}:{kept.server.port}\r\n"
            f"origin: {kept.gate.origin}\r\ncookie: {kept.cookie}\r\ncontent-type: application/json\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        piece = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
        for _ in range(BODY_BYTES_MAX // 0x1000 + 1):
            line.sendall(piece)
        assert line.recv(1 << 12).split(b" ")[1] == b"413"


def test_huge_headers_and_addresses_are_refused(kept: Served) -> None:
    with pytest.raises((ConnectionError, AssertionError)):
        assert kept.get("api/" + "x" * (1 << 20)).status == 200
    assert kept.look("overview")["version"] == 1


def test_a_header_that_stands_twice_is_refused(kept: Served) -> None:
    with socket.create_connection((HOST, kept.server.port), timeout=HUNG_S) as line:
        line.sendall(
            f"GET {kept.gate.path} HTTP/1.1\r\nhost: {HOST}:{kept.server.port}\r\ncookie: {kept.cookie}\r\n"
            f"cookie: metasync=x\r\n\r\n".encode()
        )
        assert line.recv(1 << 12).split(b" ")[1] == b"400"


@pytest.mark.parametrize(
    "name",
    [
        "../gate.py",
        "..%2fgate.py",
        "%2e%2e/gate.py",
        "....//gate.py",
        "/etc/passwd",
        "%00",
        "__init__.py",
        "gate.py",
        "static/app.js",
    ],
)
def test_only_the_pages_own_files_are_given_out(kept: Served, name: str) -> None:
    assert kept.get(f"static/{name}").status == 404


@pytest.mark.parametrize(
    "path",
    [b"../laptop/notes.txt", b"/etc/passwd", b"a\0b", b"letters/../../x", b".metasync/metasync.db", b".metasync"],
)
@pytest.mark.parametrize("view", ["files", "file", "log"])
def test_no_path_leads_out_of_a_version(kept: Served, path: bytes, view: str) -> None:
    from metasync.dashboard.views import path_id

    answer = kept.get(f"api/{kept.id}/{view}?path={path_id(path)}")
    assert answer.status == 409
    assert b"root:" not in answer.body and b"SQLite" not in answer.body


@pytest.mark.parametrize("given", ["%", "!!!", "a" * 10_000, "é", "=", "a===="])
def test_an_id_that_is_none_is_told_in_words(kept: Served, given: str) -> None:
    from urllib.parse import quote

    answer = kept.get(f"api/{kept.id}/files?path={quote(given)}")
    assert answer.status == 409
    assert answer.message


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("nothing", {}),
        ("__class__", {}),
        ("push", {"message": 7}),
        ("push", {"message": "x" * 5_000}),
        ("push", {"message": "\ud800"}),
        ("push", {"force": "yes"}),
        ("push", {"other": 1}),
        ("pause", {"seconds": True}),
        ("pause", {"seconds": 10**400}),
        ("pause", {"seconds": -1}),
        ("restore", {"version": "latest"}),
        ("restore", {"version": "latest", "path": "Li4vLi4"}),
        ("resolve", {"copy": "bm90ZXMudHh0", "keep": None}),
        ("set", {"key": "limit.up", "value": "fast"}),
        ("set", {"key": "no.such", "value": "1"}),
        ("set", {"key": "notify.command", "value": "touch x"}),
        ("set", {"key": "notify.webhook", "value": "https://evil.example"}),
        ("set", {"key": "daemon.broker", "value": "amqps://evil.example"}),
        ("set", {"key": "daemon.metrics", "value": "127.0.0.1:9464"}),
        ("set", {"key": "special-modes", "value": "on"}),
        ("set", {"key": "limit.up\nnotify.command", "value": "1M"}),
        ("set", {"key": "copies", "value": "²"}),
        ("invite", {"name": "", "passphrase": "wrong"}),
        ("answer", {"key": "x", "allow": True}),
    ],
)  # fmt: skip
def test_an_action_that_is_not_what_it_should_be_changes_nothing(
    kept: Served, action: str, fields: dict[str, object]
) -> None:
    answer = kept.do(action, **fields)
    assert answer.status == 409, answer.body
    assert answer.message
    assert kept.look("settings") == {"settings": {}, "paused": "", "keep": None, "copies": 2}
    assert kept.look("overview")["version"] == 1


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"7", b"{", b"[" * 30_000, b"\xff", b"null", b'{"seconds": NaN}', b'{"seconds": Infinity}']
)
def test_what_is_no_object_of_json_changes_nothing(kept: Served, body: bytes) -> None:
    answer = kept.ask("POST", f"{kept.gate.path}api/{kept.id}/do/pause", body)
    assert answer.status == 409
    assert kept.look("settings")["paused"] == ""


def test_events_are_for_the_cookie_alone(kept: Served) -> None:
    """A page of another site could listen to them without asking first."""
    for cookie in ("", "metasync=x"):
        assert kept.get("api/events", cookie=cookie).status == 403


def test_errors_tell_no_secret(kept: Served) -> None:
    secret = "my secret passphrase"
    answer = kept.do("invite", name="tablet", passphrase=secret)
    assert answer.status == 409
    assert answer.json["error"]["kind"] == "PassphraseError"
    assert secret.encode() not in answer.body and json.dumps(secret).encode() not in answer.body
