"""What the OneDrive backend makes of refusals, of a login that ended, and of answers that are not Graph's."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from http_kit import Answer
from servers.onedrive_standin import CONTENTS, OneDriveStandin, error_of
from servers.standin import Request

from metasync.backends import onedrive as module
from metasync.backends.api import Digest, Space
from metasync.backends.digests import digest_of
from metasync.backends.onedrive import OneDriveBackend
from metasync.backends.registry import open_backend, parse_url, server_of
from metasync.backends.wrappers.retry import Retrying
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError, UsageError

PAGE = b"<!DOCTYPE html><html><body>Please sign in. hunter2 quota</body></html>"
HTML = {"Content-Type": "text/html"}

CALLS: dict[str, Callable[[OneDriveBackend], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/a", b"x"),
    "get": lambda b: b.get("d/a", max_bytes=9),
    "get part": lambda b: b.get("d/a", offset=1, length=1, max_bytes=9),
    "get nothing": lambda b: b.get("d/a", length=0, max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "digest": lambda b: b.digest("d/a"),
    "list": lambda b: b.list("d"),
    "inventory": lambda b: b.inventory("d", ""),
    "delete": lambda b: b.delete("d/b"),
    "space": lambda b: b.space(),
    "identity": lambda b: (b._root.gone(), b.identity()),  # as it is asked for once a day
}
ALL_CALLS = pytest.mark.parametrize("kind", CALLS)


def error(code: str) -> bytes:
    return json.dumps(error_of(code)).encode()


REFUSALS: list[tuple[int, bytes, type[BackendError], bool]] = [
    (301, PAGE, UnreachableError, True),
    (400, error("invalidRequest"), BackendError, False),
    (403, error("accessDenied"), RefusedError, False),
    (403, PAGE, UnreachableError, True),
    (403, error("quotaLimitReached"), FullError, False),
    (404, PAGE, UnreachableError, True),
    (404, b"", UnreachableError, True),
    (404, error("ResourceNotFound"), UnreachableError, True),
    (407, PAGE, UnreachableError, True),
    (408, b"", BackendError, True),
    (409, error("resourceModified"), BackendError, True),
    (412, error("resourceModified"), BackendError, True),
    (413, error("maxFileSizeExceeded"), RefusedError, False),
    (423, error("resourceLocked"), BackendError, True),
    (429, error("activityLimitReached"), BackendError, True),
    (500, error("generalException"), BackendError, True),
    (502, PAGE, BackendError, True),
    (503, error("serviceNotAvailable"), BackendError, True),
    (504, b"", BackendError, True),
    (507, error("quotaLimitReached"), FullError, False),
    (509, b"", BackendError, True),
]


def answering(standin: OneDriveStandin, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Request], Answer]) -> None:
    monkeypatch.setattr(standin, "respond", answer)


@pytest.mark.parametrize(("status", "body", "expected", "retryable"), REFUSALS)
def test_refusals(
    standin: OneDriveStandin, backend: OneDriveBackend, monkeypatch: pytest.MonkeyPatch,
    status: int, body: bytes, expected: type[BackendError], retryable: bool,
) -> None:  # fmt: skip
    is_graphs = body not in (PAGE, b"")
    headers = {"Content-Type": "application/json" if is_graphs else "text/html", "Location": "http://127.0.0.1:1/x"}
    answering(standin, monkeypatch, lambda _: Answer(status, body, headers))
    for kind, call in CALLS.items():
        if kind == "space" and is_graphs and expected is not FullError and status in (403, 404):
            assert backend.space() == Space(None, None)  # the right to the app's folder need not show it
            continue
        with pytest.raises(BackendError) as caught:
            call(backend)
        assert (kind, type(caught.value), caught.value.retryable) == (kind, expected, retryable)
        assert "onedrive:/metasync/one" in caught.value.message
        for secret in ("hunter2", "token-", "sign in"):
            assert secret not in str(caught.value)


@pytest.mark.parametrize(("status", "said", "after_s"), [(429, None, 1.0), (429, "7", 7.0), (503, "30", 30.0)])
def test_a_server_that_asks_for_fewer_requests(
    standin: OneDriveStandin, backend: OneDriveBackend, status: int, said: str | None, after_s: float
) -> None:
    for call in CALLS.values():
        standin.switches.refused = [(status, said)] * 4
        with pytest.raises(BackendError) as caught:
            call(backend)
        assert (caught.value.retryable, caught.value.retry_after_s) == (True, after_s)
        assert len(standin.take_log()) == 1, "the backend repeats nothing by itself"


@ALL_CALLS
def test_a_login_page_for_everything(
    standin: OneDriveStandin, backend: OneDriveBackend, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Nothing in it may pass for data, for a write, or for nothing."""
    for status in (200, 201, 204, 401):
        page = Answer(status, b"" if status == 204 else PAGE, HTML)
        answering(standin, monkeypatch, lambda _, page=page: replace(page))
        with pytest.raises(UnreachableError, match="not OneDrive"):
            CALLS[kind](backend)


ODD = {
    "nested too deep": (200, b"[" * 200_000),
    "an error nested too deep": (409, b'{"error":' * 3000),
    "no object": (200, b'["a"]'),
    "a number": (200, b"1e999"),
    "no text": (201, b"\xff\xfe"),
    "an item without anything": (200, b"{}"),
    "an item of other types": (
        200,
        b'{"id": 7, "name": [], "size": true, "file": 1, "parentReference": "x", "eTag": {}}',
    ),
    "a size below nothing": (201, b'{"id": "i", "name": "n", "size": -1, "file": {}}'),
    "a size beyond all": (200, b'{"id": "i", "name": "n", "size": 18446744073709551616, "file": {}}'),
    "a digest that is none": (200, b'{"id": "i", "size": 1, "file": {"hashes": {"quickXorHash": "\\u00e4=="}}}'),
    "a quota of words": (200, b'{"quota": {"remaining": "much", "total": []}}'),
    "an error that is none": (409, b'{"error": [7]}'),
    "an error with an end of a line": (400, b'{"error": {"code": "a\\r\\nb hunter2", "innerError": [1]}}'),
    "a session that leads nowhere": (200, b'{"uploadUrl": "file:///etc/passwd"}'),
}


@pytest.mark.parametrize("odd", ODD)
def test_answers_of_another_kind(
    standin: OneDriveStandin, backend: OneDriveBackend, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    """Each call ends with an error of the contract, or says that nothing is told."""
    monkeypatch.setattr(module, "PUT_BYTES_MAX", 10)
    status, body = ODD[odd]
    answering(standin, monkeypatch, lambda _: Answer(status, body, {"Content-Type": "application/json"}))
    calls = {**CALLS, "large": lambda b: b.put("d/large", bytes(20)), "probe": lambda b: b.probe()}
    for kind, call in calls.items():
        if (kind, odd) in {("space", name) for name in ODD} | {("digest", "a digest that is none")}:
            with contextlib.suppress(BackendError):
                assert call(backend) in (Space(None, None), Digest(1, None))
        elif odd == "a digest that is none" and kind in ("stat", "get nothing", "put"):
            assert call(backend) in (1, b"", None)  # the rest of that answer is sound
        elif odd == "an item of other types" and kind == "list":
            continue
        else:
            with pytest.raises(BackendError) as caught:
                call(backend)
            assert "hunter2" not in str(caught.value), kind
            assert "passwd" not in str(caught.value), kind


# The login.


def test_a_token_that_is_refused_although_it_is_new(
    standin: OneDriveStandin, backend: OneDriveBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standin, "_check_token", lambda _: Answer(401, error("InvalidAuthenticationToken")))
    with pytest.raises(RefusedError, match="does not take the login") as caught:
        backend.stat("a")
    assert caught.value.next_step == "Run: metasync auth onedrive"
    assert [e.status for e in standin.log if "/oauth2" not in e.request.path] == [401, 401]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_told_with_the_command_for_this_account(
    standin: OneDriveStandin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int
) -> None:
    standin.link(monkeypatch, tmp_path / "config", "work")
    work = open_backend(parse_url("onedrive:/metasync/one?account=work"), create_root=True)
    said = Answer(status, error("accessDenied"), {"Content-Type": "application/json"})
    monkeypatch.setattr(standin, "respond", lambda _: said)
    for call in (lambda: work.stat("a"), lambda: work.put("a", b"x"), lambda: work.list("")):
        with pytest.raises(RefusedError) as caught:
            call()
        assert caught.value.next_step.endswith("Run: metasync auth onedrive --account work")


def test_no_account_is_linked(standin: OneDriveStandin) -> None:
    with pytest.raises(RefusedError, match="no account of OneDrive is linked as work"):
        open_backend(parse_url("onedrive:/x?account=work"))
    assert not standin.log


# Addresses that Graph gives out.


@pytest.mark.parametrize(
    "location", ["http://thief.example/x", "ftp://127.0.0.1/x", "/relative", "", "https://u:p@h/x"]
)
def test_contents_are_read_over_tls_only(
    standin: OneDriveStandin, backend: OneDriveBackend, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    answering(standin, monkeypatch, lambda _: Answer(302, b"", {"Location": location}))
    with pytest.raises(UnreachableError, match="without TLS") as caught:
        backend.get("a", max_bytes=9)
    assert "thief" not in str(caught.value)
    assert len(standin.log) == 1


def test_a_stand_in_is_the_only_one_without_tls(standin: OneDriveStandin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graph itself cannot send a client to a server of this machine."""
    from metasync.backends.onedrive.graph import Graph

    graph = Graph(None, {})  # type: ignore[arg-type]
    with pytest.raises(UnreachableError, match="without TLS"), graph.at("GET", f"{standin.url}/x", "a", {}, within_s=9):
        pass
    assert graph._server == "https://graph.microsoft.com"
    assert not standin.log


def test_an_address_that_is_over_is_asked_for_anew(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    backend.put("a", b"0123456789")
    standin.switches.only = "y4m"
    standin.switches.refused = [(403, None), (404, None)]
    assert backend.get("a", offset=3, length=4, max_bytes=9) == b"3456"
    standin.switches.refused = [(404, None)] * 9
    with pytest.raises(BackendError) as caught:
        backend.get("a", max_bytes=10)
    assert type(caught.value) is BackendError, "what an address does not hold is no word on the object"
    assert caught.value.retryable


@pytest.mark.parametrize("fault", ["truncated", "torn"])
def test_contents_that_are_cut(standin: OneDriveStandin, backend: OneDriveBackend, fault: str) -> None:
    backend.put("a", b"0123456789")
    standin.switches.only = "y4m"
    setattr(standin.switches, fault, 1)
    if fault == "torn":  # the head tells half: a whole object, of another length, which its hash will show
        assert backend.get("a", max_bytes=10) == b"01234"
    else:
        with pytest.raises(UnreachableError):
            backend.get("a", max_bytes=10)
    setattr(standin.switches, fault, 1)
    with pytest.raises(BackendError):
        backend.get("a", offset=2, length=6, max_bytes=10)
    assert backend.get("a", max_bytes=10) == b"0123456789"


def test_what_is_too_large_is_not_read(
    standin: OneDriveStandin, backend: OneDriveBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = standin.respond
    endless = Answer(200, b"x" * 65536, {}, length=1 << 40)
    answering(standin, monkeypatch, lambda r: replace(endless) if r.host == CONTENTS else sound(r))
    backend.put("a", b"1")
    with pytest.raises(RefusedError, match="at most 9"):
        backend.get("a", max_bytes=9)


# Writes.


def test_a_large_object_goes_by_a_session(
    standin: OneDriveStandin, backend: OneDriveBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUT_BYTES_MAX", 1 << 10)
    monkeypatch.setattr(module, "_FRAGMENT_BYTES", 320 << 10)
    data = bytes(range(256)) * 3000  # 2.3 fragments
    backend.put("d/large", b"before")
    standin.take_log()
    backend.put("d/large", data)
    assert [(e.request.method, e.status) for e in standin.take_log()] == [
        ("POST", 200), ("PUT", 202), ("PUT", 202), ("PUT", 200)
    ]  # fmt: skip
    assert standin.files()["metasync/one/d/large"] == data
    assert backend.get("d/large", max_bytes=len(data)) == data
    assert backend.create("d/made", data) is True, "a create is one request, which is atomic"
    assert standin.sessions == {}


def test_a_session_that_breaks_off_leaves_what_was_there(
    standin: OneDriveStandin, backend: OneDriveBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUT_BYTES_MAX", 1 << 10)
    backend.put("a", b"before")
    standin.switches.only = "/up-"
    for refused, expected in (((500, None), BackendError), ((404, None), BackendError), ((507, None), FullError)):
        standin.switches.refused = [refused]
        with pytest.raises(BackendError) as caught:
            backend.put("a", bytes(5000))
        assert type(caught.value) is expected
        assert backend.get("a", max_bytes=9) == b"before"
    standin.switches.refused, standin.switches.dropped = [], 1
    with pytest.raises(UnreachableError):
        backend.put("a", bytes(5000))
    assert backend.get("a", max_bytes=9) == b"before"


@pytest.mark.parametrize("large", [False, True])
def test_folders_above_are_made_where_graph_does_not(
    standin: OneDriveStandin, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setattr(module, "PUT_BYTES_MAX", 4 if large else 1 << 20)
    standin.switches.makes_parents = False
    backend = open_backend(parse_url("onedrive:/some/where/deep"), create_root=True)
    backend.put("a/b/c", b"12345")
    backend.put("a/b/d", b"12345")
    assert backend.create("a/e/c", b"1") is True
    assert {*standin.files()} == {f"some/where/deep/a/{name}" for name in ("b/c", "b/d", "e/c")}


def test_a_conflict_that_is_none_of_names_is_tried_again(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    """`resourceModified` says that somebody else wrote meanwhile, and not that the name is taken."""
    standin.switches.conflicts = 1
    with pytest.raises(BackendError) as caught:
        backend.create("a", b"1")
    assert type(caught.value) is BackendError
    assert caught.value.retryable
    assert backend.create("a", b"1") is True
    assert backend.create("a", b"2") is False


def test_a_create_whose_answer_was_lost(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    standin.switches.lost, standin.switches.only = 1, "/content"
    assert Retrying(backend, sleep=lambda _: None).create("a", b"mine") is True
    assert backend.create("a", b"mine") is False


def test_a_write_that_another_race_won(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    """Between look and write somebody else was faster: where OneDrive notices it, one of them is told so."""
    other = open_backend(parse_url("onedrive:/metasync/one"))

    def faster() -> None:
        standin.switches.between = None
        assert other.create("a", b"theirs") is True

    standin.switches.between = faster
    assert backend.create("a", b"mine") is False
    assert backend.get("a", max_bytes=9) == b"theirs"


def test_a_store_that_lets_both_win_does_not_vote_by_creates(
    standin: OneDriveStandin, backend: OneDriveBackend
) -> None:
    """What block form is for: it does not stand on creates."""
    other = open_backend(parse_url("onedrive:/metasync/one"))

    def faster() -> None:
        standin.switches.between = None
        assert other.create("a", b"theirs") is True

    standin.switches.both_win, standin.switches.between = True, faster
    assert backend.create("a", b"mine") is True
    assert backend.form == "block"


def test_a_store_that_is_late_does_not_vote(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    assert backend.probe() == "block"
    standin.switches.late = 1
    assert backend.probe() == "none"
    assert backend.list("") == (), "it leaves nothing behind"


def test_fewer_bytes_arrived(
    standin: OneDriveStandin, backend: OneDriveBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = standin.respond
    answering(standin, monkeypatch, lambda r: sound(replace(r, body=r.body[:-1])))
    for call in (lambda: backend.put("a", b"123"), lambda: backend.create("b", b"123")):
        with pytest.raises(BackendError, match="2 bytes arrived of 3"):
            call()


# What is there.


def test_a_folder_that_is_gone(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    """It is away, as a whole; its objects are not "not there"."""
    backend.put("d/a", b"12")
    before = backend.identity()
    standin.remove_all("metasync/one")
    backend._root._seen_at = float("-inf")
    for kind in ("get", "get part", "get nothing", "stat", "digest", "list", "inventory", "delete"):
        with pytest.raises(UnreachableError, match="no such folder"):
            CALLS[kind](backend)
    other = open_backend(parse_url("onedrive:/metasync/one"), create_root=True)
    with pytest.raises(UnreachableError, match="another folder than before"):
        backend.stat("d/a")
    assert other.identity() != before


def test_absence_costs_one_request_more_at_first(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    backend._root._seen_at = float("-inf")
    for _ in range(3):
        with pytest.raises(NotFoundError):
            backend.get("d/a", max_bytes=9)
    assert len(standin.log) == 4


def test_a_root_that_is_not_there(standin: OneDriveStandin) -> None:
    with pytest.raises(UnreachableError, match="no such folder"):
        open_backend(parse_url("onedrive:/nothing")).identity()
    assert standin.files() == {}


def test_a_folder_is_not_deleted_for_an_object(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    """By its path it would go with all that is in it."""
    backend.put("d/a/inner", b"12")
    backend.delete("d/a")
    assert backend.get("d/a/inner", max_bytes=9) == b"12"
    with pytest.raises(NotFoundError):
        backend.stat("d/a")
    assert not [e for e in standin.log if e.request.method == "DELETE"]


def test_sweep_takes_empty_folders_alone(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    for name in ("d/a", "d/e/f/g", "d/e/h", "d/i/j", "beside/k"):
        backend.put(name, b"1")
    for name in ("d/e/f/g", "d/e/h", "d/i/j", "beside/k"):
        backend.delete(name)
    backend.sweep("d")
    assert folders(standin) == {"metasync", "metasync/one", "metasync/one/d", "metasync/one/beside"}
    assert backend.get("d/a", max_bytes=9) == b"1"
    backend.delete("d/a")
    backend.sweep("d")
    backend.sweep("d")
    assert folders(standin) == {"metasync", "metasync/one", "metasync/one/beside"}


def test_sweep_leaves_what_a_late_feed_does_not_tell(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    """A deletion of a folder takes all that is in it: what is there counts, not what the feed says."""
    backend.put("d/e/a", b"1")
    backend.put("d/f/b", b"1")
    backend.delete("d/f/b")
    sound = standin._delta

    def late(request: Request, path: tuple[str, ...]) -> Answer:
        standin.switches.hidden = {"a"}
        try:
            return sound(request, path)
        finally:
            standin.switches.hidden = set()

    standin._delta = late  # type: ignore[method-assign]
    backend.sweep("d")
    assert backend.get("d/e/a", max_bytes=9) == b"1"
    assert folders(standin) == {"metasync", "metasync/one", "metasync/one/d", "metasync/one/d/e"}


def folders(standin: OneDriveStandin) -> set[str]:
    with standin.lock:
        return {standin._path(one) for one in standin._live() if one.data is None}


def test_names_that_onedrive_does_not_take(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    names = ("con", "com1", ".lock", "desktop.ini", "a.", "...", "a_vti_b", "forms", "nul/nul")
    for name in names:
        assert backend.create(name, name.encode()) is True
    assert {item.name for item in backend.list("")} == {name.partition("/")[0] for name in names}
    assert [backend.get(name, max_bytes=99).decode() for name in names] == [*names]
    with standin.lock:
        standin._add(standin._at(("metasync", "one")).item_id, "not=ours", b"1")
    assert "notours" not in {item.name for item in backend.list("")}


def test_the_room_of_the_whole_drive(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    backend.put("a", bytes(100))
    assert backend.space() == Space((5 << 30) - 100, 5 << 30)
    standin.switches.shows_quota = False
    assert backend.space() == Space(None, None)


def test_digests(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    backend.put("a", b"data")
    assert backend.digest("a").value == digest_of("quickxor", b"data")
    standin.damage("metasync/one/a", b"dat!")
    assert backend.digest("a").value == digest_of("quickxor", b"dat!")
    standin.switches.has_digests = False
    assert backend.digest("a").value is None


def test_identity_is_of_drive_and_folder(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    same = open_backend(parse_url("onedrive:/MetaSync/One"))  # capitals do not count there
    assert same.identity() == backend.identity()
    beside = open_backend(parse_url("onedrive:/metasync/two"), create_root=True)
    assert beside.identity()[:16] == backend.identity()[:16]
    assert beside.identity() != backend.identity()
    standin.drive_id = f"0{standin.drive_id.lower()}"
    again = open_backend(parse_url("onedrive:/metasync/one"))
    assert again.identity() == backend.identity()


# URLs.


@pytest.mark.parametrize(
    "url",
    [
        "onedrive://host/x", "onedrive:", "onedrive:/", "onedrive:x", "onedrive:/a//b", "onedrive:/a/../b",
        "onedrive:/a|b", "onedrive:/con", "onedrive:/a./b", "onedrive:/~$a", "onedrive:/a%0Ab", "onedrive:/%20a",
        "onedrive:/a:b",
        "onedrive:/x?account=Two words", "onedrive:/x?endpoint=http://127.0.0.1", f"onedrive:/{'a' * 201}",
    ],
)  # fmt: skip
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(UsageError):
        parse_url(url)


def test_urls() -> None:
    for text in ("onedrive:/folder", "onedrive:/Fotos%20%C3%BC/a?account=work", "onedrive:/a/b&role=storage"):
        url = parse_url(text)
        assert parse_url(url.location).location == url.location
        assert server_of(url) == "onedrive graph.microsoft.com"


def test_it_says_what_it_is(backend: OneDriveBackend) -> None:
    assert repr(backend) == "OneDriveBackend(onedrive:/metasync/one)"
    assert "Microsoft does not say" in backend.form_reason


def test_calls_count_for_what_they_take_of_the_rates(standin: OneDriveStandin, backend: OneDriveBackend) -> None:
    backend.put("d/a", b"1")
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: backend.create("d/b", b"1"),
        "put": lambda: backend.put("d/a", b"1"),
        "get": lambda: backend.get("d/a", max_bytes=9),
        "stat": lambda: backend.stat("d/a"),
        "digest": lambda: backend.digest("d/a"),
        "list": lambda: backend.list("d"),
        "inventory": lambda: backend.inventory("d", ""),
        "delete": lambda: backend.delete("d/b"),
        "space": lambda: backend.space(),
        "identity": lambda: backend.identity(),
    }
    requests, units = (rate.costs for rate in backend.rates)
    for kind, call in calls.items():
        standin.take_log()
        call()
        log = [exchange.request for exchange in standin.take_log()]
        assert len(log) <= requests[kind], kind
        # Reading costs 1, writing, listing and deleting 2; the bytes of a get come from another server.
        spent = sum(2 if r.method != "GET" or "/children" in r.path or "/delta" in r.path else 1 for r in log)
        assert spent <= units[kind], kind
