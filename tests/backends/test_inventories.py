"""Inventories as providers word them: pages, digests, cursors, and names that nobody here gave."""

from __future__ import annotations

import contextlib
import hashlib
import json
from urllib.parse import parse_qs, urlsplit

import pytest
from answers_kit import Script, serving
from http_kit import Answer
from swift_fake import KEY, TRANS, opened
from swift_fake import serving as serving_swift

from metasync.backends.api import Inventories, Inventory, Item
from metasync.backends.memory import CHANGES_MAX, MemoryBackend
from metasync.backends.wrappers.retry import Retrying
from metasync.backends.wrappers.wrapper import Prefixed
from metasync.errors import BackendError, NotFoundError

MD5 = hashlib.md5(b"1", usedforsecurity=False).hexdigest()
TIME = "2026-11-20T10:00:00.000Z"
FOUND = ("x/p/0/ab/one", "x/p/two", "x/p/Not Ours", "x/p/../up", "y/elsewhere")


@pytest.fixture(autouse=True)
def _logins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "AZURE_STORAGE_ACCOUNT_KEY": "aHVudGVyMg==",
        "ST_USER": "test:tester",
        "ST_KEY": KEY,
    }.items():
        monkeypatch.setenv(name, value)


def amazon(names: tuple[str, ...], following: str) -> bytes:
    objects = "".join(
        f"<Contents><Key>{n}</Key><LastModified>{TIME}</LastModified><ETag>&quot;{MD5}&quot;</ETag><Size>1</Size>"
        "</Contents>"
        for n in names
    )
    mark = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
    return f"<ListBucketResult>{objects}{mark}</ListBucketResult>".encode()


def azure(names: tuple[str, ...], following: str) -> bytes:
    objects = "".join(
        f"<Blob><Name>{n}</Name><Properties><Last-Modified>{TIME}</Last-Modified><Etag>0x1</Etag>"
        "<Content-Length>1</Content-Length></Properties></Blob>"
        for n in names
    )
    mark = f"<NextMarker>{following}</NextMarker>"
    return f"<EnumerationResults><Blobs>{objects}</Blobs>{mark}</EnumerationResults>".encode()


URLS = {
    "s3": ("s3://bucket/{prefix}?endpoint={endpoint}", amazon),
    "gcs": ("gcs://bucket/{prefix}?endpoint={endpoint}", amazon),
    "azure": ("azure://container/{prefix}?account=name&endpoint={endpoint}/name", azure),
}


@pytest.mark.parametrize("kind", URLS)
def test_pages_of_an_object_store(kind: str) -> None:
    """A request a page, however deep the names lie, and only names of ours."""
    url, page_of = URLS[kind]
    queries: list[dict[str, list[str]]] = []

    def answer(method: str, path: str) -> Answer:
        if method == "PUT":
            return Answer(200, b"", {"ETag": f'"{MD5}"'})
        queries.append(parse_qs(urlsplit(path).query))
        return Answer(200, page_of(FOUND, "mark") if len(queries) == 1 else page_of((), ""))

    script = Script(url=url, answer=answer)
    with serving(script), contextlib.closing(script.open()) as backend:
        assert isinstance(backend, Inventories)
        if kind != "azure":
            backend.put("seen", b"1")  # shows that tags are MD5s
        first = backend.inventory("p", "")
        last = backend.inventory("p", first.cursor)
    told = None if kind == "azure" else bytes.fromhex(MD5)
    assert first == Inventory((Item("0/ab/one", 1, told, TIME), Item("two", 1, told, TIME)), "mark", True)
    assert last == Inventory((), "", False)
    assert all("delimiter" not in query for query in queries)
    assert [query["prefix"] for query in queries] == [["x/p/"]] * 2
    assert ["mark"] in queries[1].values()


def test_a_tag_is_no_digest_before_one_was_seen_to_be() -> None:
    script = Script(url=URLS["s3"][0], answer=lambda *_: Answer(200, amazon(FOUND[:1], "")))
    with serving(script), contextlib.closing(script.open()) as backend:
        assert isinstance(backend, Inventories)
        assert backend.inventory("p", "").items[0].digest is None


@pytest.mark.parametrize("kind", URLS)
def test_an_inventory_that_goes_in_a_circle_is_ended(kind: str) -> None:
    url, page_of = URLS[kind]
    script = Script(url=url, answer=lambda *_: Answer(200, page_of(FOUND, "mark")))
    with serving(script), contextlib.closing(script.open()) as backend:
        assert isinstance(backend, Inventories)
        with pytest.raises(BackendError, match="no end"):
            backend.inventory("p", "mark")


def test_rows_of_swift() -> None:
    rows = [
        {"name": "x/p/0/one", "bytes": 1, "hash": MD5, "last_modified": TIME},
        {"name": "x/p/in-parts", "bytes": 0, "hash": MD5},
        {"name": "x/p/odd", "bytes": 2, "hash": "not one"},
        {"name": "x/p/Not Ours", "bytes": 2},
        {"subdir": "x/p/sub/"},
    ]
    with serving_swift() as fake:
        fake.answer = lambda _: Answer(200, json.dumps(rows).encode(), TRANS)
        page = opened(fake).inventory("p", "")
    assert page.items == (
        Item("0/one", 1, bytes.fromhex(MD5), TIME), Item("in-parts", 0), Item("odd", 2)
    )  # fmt: skip
    assert (page.cursor, page.more) == ("", False)
    assert "delimiter" not in fake.asked[-1].path


def test_a_feed_tells_the_last_change_of_a_name_once() -> None:
    store = MemoryBackend()
    wrapped = Retrying(Prefixed(store, "w"))
    assert isinstance(wrapped, Inventories)
    wrapped.put("p/a", b"1")
    cursor = wrapped.inventory("p", "").cursor
    for data in (b"12", b"123"):
        wrapped.put("p/b", data)
    wrapped.put("beside/b", b"1")
    wrapped.delete("p/a")
    page = wrapped.inventory("p", cursor)
    assert sorted(page.items) == [Item("a", None), Item("b", 3)]
    assert wrapped.inventory("p", page.cursor) == Inventory((), page.cursor, False)


def test_a_cursor_from_too_long_ago_is_to_begin_anew() -> None:
    store = MemoryBackend()
    cursor = store.inventory("p", "").cursor
    for _ in range(2 * CHANGES_MAX + 1):
        store.put("p/a", b"")
    with pytest.raises(NotFoundError):
        store.inventory("p", cursor)
    assert len(store._store.changes) <= 2 * CHANGES_MAX
