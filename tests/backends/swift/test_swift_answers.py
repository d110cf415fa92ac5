"""What the Swift backend makes of the answers that a sound cluster does not give; a small server here gives them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from http_kit import Answer
from swift_fake import CALLS, CONTAINER, META, NOT_FOUND, PAGE, TRANS, Fake, Request, opened, serving, stored

from metasync.backends import swift as swift_module
from metasync.backends.api import Space
from metasync.backends.registry import parse_url
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError, UsageError

pytestmark = pytest.mark.usefixtures("environment")


ON_OBJECTS = {name: call for name, call in CALLS.items() if name not in ("list", "space")}

ANSWERS: list[tuple[int, bytes, type[BackendError], bool]] = [
    (301, PAGE, UnreachableError, True),
    (307, b"", UnreachableError, True),
    (400, PAGE, BackendError, False),
    (403, PAGE, RefusedError, False),
    (404, NOT_FOUND, UnreachableError, True),  # without the head of a Swift
    (407, PAGE, UnreachableError, True),
    (408, b"", BackendError, True),
    (409, b"", BackendError, True),
    (413, b"<html><h1>Request Entity Too Large</h1><p>Upload exceeds quota.</p></html>", FullError, False),
    (413, b"<html>Your request is too large.</html>", RefusedError, False),
    (422, b"", BackendError, True),
    (429, b"", BackendError, True),
    (498, b"Slow down", BackendError, True),
    (500, PAGE, BackendError, True),
    (502, PAGE, BackendError, True),
    (503, PAGE, BackendError, True),
    (504, PAGE, BackendError, True),
    (507, b"", FullError, False),
]


@pytest.mark.few
@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize(("status", "body", "expected", "retryable"), ANSWERS)
def test_refusals(
    fake: Fake, kind: str, status: int, body: bytes, expected: type[BackendError], retryable: bool
) -> None:
    if expected is FullError and status == 413 and kind in ("get nothing", "stat", "digest", "space"):
        expected = RefusedError  # the answer to a HEAD has no body to read the word in
    fake.answer = lambda request: Answer(status, body, {"Content-Type": "text/html", "Location": "/elsewhere"})
    with pytest.raises(BackendError) as caught:
        CALLS[kind](opened(fake))
    assert type(caught.value) is expected
    assert caught.value.retryable is retryable
    assert "bucket/x" in caught.value.message
    assert "hunter2" not in str(caught.value)
    assert "sign in" not in str(caught.value)
    # Of a large create that broke off it is asked whether it is there; of space, container and account.
    assert len(fake.asked) <= 2
    assert len(fake.logins) == 1


@pytest.mark.few
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize(
    ("status", "said", "after_s"),
    [
        (429, None, 1.0),
        (498, None, 1.0),
        (429, "7", 7.0),
        (498, "0", 0.0),
        (503, "30", 30.0),
        (503, None, None),
        (503, "soon", None),
        (500, None, None),
    ],
)
def test_a_server_that_asks_for_fewer_requests(
    fake: Fake, call: Callable, status: int, said: str | None, after_s: float | None
) -> None:
    fake.answer = lambda _: Answer(status, b"", {**TRANS, **({"Retry-After": said} if said else {})})
    with pytest.raises(BackendError) as caught:
        call(opened(fake))
    assert (caught.value.retryable, caught.value.retry_after_s) == (True, after_s)


# What is not there.


def test_not_found(fake: Fake) -> None:
    """Said when the container is there; that is looked for once, and not again for a while."""
    fake.answer = lambda request: Answer(204, b"", CONTAINER) if request.path == "/bucket" else stored(request)
    backend = opened(fake)
    for kind in ("get", "get part", "get nothing", "stat", "digest"):
        with pytest.raises(NotFoundError):
            CALLS[kind](backend)
    CALLS["delete"](backend)
    assert [r.path for r in fake.asked].count("/bucket") == 1


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_container_that_is_not_there(fake: Fake, call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Answer:
        if request.path == "":  # the account
            return Answer(204, b"", TRANS)
        return Answer(204, b"", TRANS) if request.method == "DELETE" and gone == [] else Answer(404, NOT_FOUND, TRANS)

    gone = [True]
    fake.answer = answer
    with pytest.raises(UnreachableError, match="no container 'bucket'"):
        call(opened(fake))
    backend = opened(fake)
    backend._seen_at = time.monotonic() - 10
    with pytest.raises(UnreachableError, match="no container 'bucket'"):
        call(backend)


@pytest.mark.parametrize("call", ON_OBJECTS.values(), ids=ON_OBJECTS.keys())
def test_a_container_that_cannot_be_looked_for(fake: Fake, call: Callable) -> None:
    fake.answer = lambda request: Answer(503, b"", TRANS) if request.path == "/bucket" else Answer(404, b"", TRANS)
    with pytest.raises(BackendError) as caught:
        call(opened(fake))
    assert not isinstance(caught.value, NotFoundError)
    assert caught.value.retryable


@pytest.mark.parametrize("kind", ["get", "get part", "get nothing", "stat", "digest", "delete"])
@pytest.mark.parametrize(
    "container", [Answer(200, PAGE, {"Content-Type": "text/html"}), Answer(200), Answer(404, PAGE)]
)
def test_a_404_that_is_not_swifts(fake: Fake, kind: str, container: Answer) -> None:
    fake.answer = lambda request: container if request.path == "/bucket" else Answer(404, PAGE)
    with pytest.raises(UnreachableError, match="not the Swift server"):
        CALLS[kind](opened(fake))
    fake.answer = lambda request: container if request.path == "/bucket" else Answer(404, PAGE, TRANS)
    with pytest.raises(UnreachableError):
        CALLS[kind](opened(fake))


# Answers that are none.


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_login_page_for_everything(fake: Fake, call: Callable) -> None:
    """Nothing in it may pass for data, for a write, or for nothing."""
    fake.answer = lambda _: Answer(200, PAGE, {"Content-Type": "text/html"})
    with pytest.raises(UnreachableError) as caught:
        call(opened(fake))
    assert "not the Swift server" in caught.value.message


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, b"", META),
        Answer(201, b"", TRANS),
        Answer(201, b"", {**TRANS, "ETag": "0" * 32}),
        Answer(202, b"", {**TRANS, "ETag": hashlib.md5(b"x").hexdigest()}),
        Answer(204, b"", TRANS),
    ],
)
@pytest.mark.parametrize("kind", ["put", "create"])
def test_a_success_that_may_be_none(fake: Fake, kind: str, answer: Answer) -> None:
    fake.answer = lambda _: answer
    with pytest.raises(BackendError) as caught:
        CALLS[kind](opened(fake))
    assert caught.value.retryable
    assert ("newer" in caught.value.message) is (answer.status == 202)


def test_no_redirect_is_followed(fake: Fake) -> None:
    """It would get the token."""
    with serving() as thief:
        thief.answer = thief.log_in = lambda _: Answer(200, b"", META)
        fake.answer = lambda _: Answer(302, PAGE, {"Location": f"{thief.root}/v1/AUTH_test/bucket/x"})
        for call in CALLS.values():
            with pytest.raises(UnreachableError, match="leads elsewhere"):
                call(opened(fake))
        fake.log_in = lambda _: Answer(302, PAGE, {"Location": f"{thief.root}/auth/v1.0"})
        with pytest.raises(UnreachableError, match="cannot log in"):
            opened(fake).stat("a")
        assert thief.asked == thief.logins == []
        assert thief.connections == 0


def test_an_answer_cut_short(fake: Fake) -> None:
    fake.answer = lambda _: Answer(200, b"half", META, length=8)
    with pytest.raises(UnreachableError):
        opened(fake).get("d/a", max_bytes=9)


def test_an_object_too_large_is_refused_by_its_head(fake: Fake) -> None:
    fake.answer = lambda _: Answer(200, b"", META, length=1 << 40)
    with pytest.raises(RefusedError, match="at most 9"):
        opened(fake).get("d/a", max_bytes=9)


@pytest.mark.parametrize("claim", ["bytes 0-8/9", "bytes 0-9/1000", "bytes 5-14/1000", "bytes */9", "", "bytes 9-0/9"])
def test_a_part_that_is_another(fake: Fake, claim: str) -> None:
    fake.answer = lambda _: Answer(206, b"z" * (1 << 20), {**META, "Content-Range": claim})
    with pytest.raises(BackendError, match="another part"):
        opened(fake).get("d/a", offset=1, length=9, max_bytes=9)


def test_a_server_that_ignores_the_range(fake: Fake) -> None:
    fake.answer = lambda _: Answer(200, b"0123456789", META)
    with pytest.raises(BackendError, match="another part"):
        opened(fake).get("d/a", offset=1, length=3, max_bytes=9)


@pytest.mark.few
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("status", [200, 201, 206, 302, 401, 403, 404, 412, 500])
def test_bodies_without_an_end_are_not_read(fake: Fake, call: Callable, status: int) -> None:
    """Whatever the status: some megabytes at the most are taken, and the call ends."""
    fake.answer = lambda _: Answer(status, b"[" * (1 << 16), {**META, "Location": "/elsewhere"}, endless=True)
    try:
        call(opened(fake))
    except BackendError as error:
        assert not isinstance(error, NotFoundError)
    assert fake.sent_bytes < 64 << 20


def test_a_login_without_an_end_is_not_read(fake: Fake) -> None:
    fake.log_in = lambda _: Answer(401, b"[" * (1 << 16), endless=True)
    with pytest.raises(RefusedError):
        opened(fake).stat("a")
    assert fake.sent_bytes < 64 << 20


@pytest.mark.parametrize(
    "body",
    [b"{}", b"[1]", b'[{"name": "x/d/a"}]', b"null", b"[" * 100_000, b"\xff\xfe", b'[{"name":"x/d/a","bytes":"many"}]'],
)
def test_a_listing_that_is_none(fake: Fake, body: bytes) -> None:
    fake.answer = lambda _: Answer(200, body, {**TRANS, "Content-Type": "application/json"})
    with pytest.raises(UnreachableError, match="no listing"):
        opened(fake).list("d")


def test_a_listing_that_goes_in_a_circle(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift_module, "_PAGE_NAMES", 2)
    rows = json.dumps([{"name": "x/d/a", "bytes": 1}, {"name": "x/d/b", "bytes": 2}]).encode()
    fake.answer = lambda _: Answer(200, rows, TRANS)
    assert [e.name for e in opened(fake).list("d")] == ["a", "b"]
    assert len(fake.asked) == 2


def test_names_that_are_not_ours_are_left_out(fake: Fake) -> None:
    rows = [{"name": n, "bytes": 1} for n in ("x/d/a", "x/d/B", "x/d/..", "x/d/", "y/d/c", "x/d/.tmp-1", "x/da")]
    fake.answer = lambda _: Answer(200, json.dumps([*rows, {"subdir": "x/d/e/"}]).encode(), TRANS)
    assert opened(fake).list("d") == (("a", 1), ("e", None))


# What is asked, and what is made of it.


def test_what_is_asked(fake: Fake) -> None:
    fake.answer = lambda r: Answer(200, b"" if r.method == "HEAD" else b"[]", {**META, **CONTAINER}, length=2)
    for kind in ("get", "stat", "digest", "list", "space"):
        CALLS[kind](opened(fake))
    assert {r.method for r in fake.asked} == {"GET", "HEAD"}
    assert all(r.headers["X-Newest"] == "true" for r in fake.asked)
    fake.answer = stored
    opened(fake).put("a", b"x")
    assert fake.asked[-1].headers["ETag"] == hashlib.md5(b"x").hexdigest()
    assert "If-None-Match" not in fake.asked[-1].headers
    assert opened(fake).create("a", b"x") is True
    assert fake.asked[-1].headers["If-None-Match"] == "*"
    assert fake.asked[-1].path == "/bucket/x/a"
    opened(fake, "my%20bucket%3F/with space").put("a", b"x")
    assert fake.asked[-1].path == "/my%20bucket%3F/with%20space/a"


def test_taken(fake: Fake) -> None:
    fake.answer = lambda _: Answer(412, b"", TRANS)
    assert opened(fake).create("a", b"x") is False
    with pytest.raises(BackendError):
        opened(fake).put("a", b"x")


def test_a_large_create_that_breaks_off(fake: Fake) -> None:
    """The server said "taken" and closed before it had read all, and nobody heard it."""
    fake.answer = lambda r: Answer(200, b"", META, length=5) if r.method == "HEAD" else Answer(302)
    assert opened(fake).create("a", bytes(1 << 20)) is False
    with pytest.raises(UnreachableError):
        opened(fake).create("a", b"small")


@pytest.mark.parametrize(
    ("headers", "value"),
    [
        ({"ETag": "9a0364b9e99bb480dd25e1f0284c8555"}, "9a0364b9e99bb480dd25e1f0284c8555"),
        ({"ETag": '"9a0364b9e99bb480dd25e1f0284c8555"', "X-Static-Large-Object": "True"}, None),
        ({"ETag": "9a0364b9e99bb480dd25e1f0284c8555", "X-Object-Manifest": "c/p"}, None),
        ({"ETag": "9a0364b9e99bb480dd25e1f0284c8555-2"}, None),
        ({"ETag": "9A0364B9E99BB480DD25E1F0284C8555"}, None),
        ({}, None),
    ],
)
def test_digests(fake: Fake, headers: dict[str, str], value: str | None) -> None:
    fake.answer = lambda _: Answer(200, b"", {**TRANS, "X-Timestamp": "1.0", **headers}, length=7)
    found = opened(fake).digest("a")
    assert (found.size, found.value) == (7, bytes.fromhex(value) if value else None)


@pytest.mark.parametrize(
    ("account", "container", "space"),
    [
        ({}, {}, Space(None, None)),
        ({"X-Account-Meta-Quota-Bytes": "10", "X-Account-Bytes-Used": "4"}, {}, Space(6, 10)),
        ({"X-Account-Meta-Quota-Bytes": "10", "X-Account-Bytes-Used": "14"}, {}, Space(0, 10)),
        (
            {"X-Account-Meta-Quota-Bytes": "10", "X-Account-Bytes-Used": "4"},
            {"X-Container-Meta-Quota-Bytes": "5", "X-Container-Bytes-Used": "0"},
            Space(5, 5),
        ),
        ({"X-Account-Meta-Quota-Bytes": "-1", "X-Account-Bytes-Used": "4"}, {}, Space(None, None)),
        ({"X-Account-Meta-Quota-Bytes": "many", "X-Account-Bytes-Used": "4"}, {}, Space(None, None)),
    ],
)
def test_space(fake: Fake, account: dict[str, str], container: dict[str, str], space: Space) -> None:
    fake.answer = lambda r: Answer(204, b"", {**TRANS, **(container if r.path == "/bucket" else account)})
    assert opened(fake).space() == space
    refused = Answer(403, b"", TRANS)
    fake.answer = lambda r: Answer(204, b"", {**TRANS, **container}) if r.path == "/bucket" else refused
    assert opened(fake).space() == (Space(5, 5) if container else Space(None, None))


class Store:
    """A Swift with a flaw."""

    def __init__(self, *, stale: int = 0, conditions: bool = True) -> None:
        self.objects: dict[str, bytes] = {}
        self.stale = stale  # so many reads of what was written do not see it
        self.conditions = conditions
        self.lock = threading.Lock()

    def answer(self, request: Request) -> Answer:
        with self.lock:
            path = request.path
            if path == "/bucket":
                return Answer(204, b"", CONTAINER)
            if request.method == "PUT":
                if self.conditions and request.headers.get("If-None-Match") and path in self.objects:
                    return Answer(412, b"", TRANS)
                self.objects[path] = request.body
            elif request.method == "DELETE":
                self.objects.pop(path, None)
            elif path in self.objects:
                self.stale -= 1
                if self.stale < 0:
                    return Answer(200, self.objects[path], META)
            return stored(request)


def test_probe(fake: Fake) -> None:
    for store, form in (
        (Store(), "block"),
        (Store(stale=1), "none"),
        (Store(conditions=False), "none"),
    ):
        fake.answer = store.answer
        assert opened(fake).probe() == form
        assert store.objects == {}
    fake.answer = lambda _: Answer(503)
    with pytest.raises(BackendError):
        opened(fake).probe()


def test_form(fake: Fake) -> None:
    backend = opened(fake)
    assert backend.form == "block"
    assert "first" in backend.form_reason


def test_identity(fake: Fake) -> None:
    """Which account it is, only the server knows: the same container of another account is another store."""

    def of(place: str, account: str = "AUTH_test", host: str = "Store.example.org") -> bytes:
        head = {"X-Storage-Url": f"https://{host}/v1/{account}/", "X-Auth-Token": "t"}
        fake.log_in = lambda _: Answer(200, b"", head)
        return opened(fake, place).identity()

    assert of("bucket/a") == of("bucket/a/", host="store.example.org")
    others = {
        of("bucket/a"),
        of("bucket/b"),
        of("bucket"),
        of("b/a"),
        of("bucket/a", "AUTH_2"),
        of("bucket/a", host="h"),
    }
    assert len(others) == 6
    assert of("bucket/a")[:16] == of("bucket/a", "AUTH_2")[:16] != of("bucket/a", host="h")[:16]
    assert fake.asked == []


@pytest.mark.parametrize(
    "text",
    [
        "swift:///prefix",
        "swift://c/a/../b",
        "swift://c/%00",
        "swift://c/a//b",
        f"swift://{'c' * 257}/a",
        f"swift://c/{'p' * 257}",
        "swift://../a",
        "swift://c%0aX-Evil:1/a",
        "swift://a%2Fb/c",
        "swift://c?auth=ftp://host/v3",
        "swift://c?auth=https://user:hunter2@host/v3",
        "swift://c?auth=https://host/v3%0d%0aX:1",
        "swift://c?auth=https://host/v3%3Fkey=1",
        "swift://c?auth=nonsense",
        "swift://c?region=%0a",
        "swift://c?password=hunter2",
        "swift://user:hunter2@c/p",
        "swift://c?reigon=x",
    ],
)
def test_urls_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(text)
    assert "hunter2" not in str(caught.value)


def test_urls() -> None:
    url = parse_url("swift://My.Container 1/pre/fix?region=GRA&auth=https://auth.example.org/v3&user=me&capacity=5GB")
    assert parse_url(url.location) == parse_url(url.location)
    assert (url.host, url.path) == ("My.Container 1", "/pre/fix")
    assert url.capacity_bytes == 5 * 10**9


def test_nothing_is_imported_before_it_is_opened() -> None:
    code = "import sys; from metasync.backends.registry import parse_url; parse_url('swift://c/p');"
    code += "print([m for m in ('http.client', 'requests', 'urllib3', 'swiftclient', 'keyring') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
