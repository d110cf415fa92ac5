"""What the WebDAV backend reads in the answers to a PROPFIND: what is in a folder, and how much room there is."""

from __future__ import annotations

import threading

import pytest
from dav_kit import CALLS, PASSWORD, Answer, Asked, Script, entry, multistatus

from metasync.backends.api import Inventories, Listed, Space
from metasync.backends.webdav import folder
from metasync.errors import RefusedError, UnreachableError

pytestmark = pytest.mark.usefixtures("login")


# Lists.

NAMES = (Listed("a", 3), Listed("d", None))


@pytest.mark.parametrize(
    "shown",
    [
        "/dav/x/{}",
        "http://127.0.0.1/dav/x/{}",
        "https://elsewhere.example:8443/dav/x/{}",
        "/d%61v/%78/{}",
        "/proxied/under/another/{}",
    ],
)
def test_forms_of_addresses_in_a_list(script: Script, shown: str) -> None:
    names = [("", None), ("a", b"123"), ("d/", None), ("%62", None), ("A", b"1"), ("e%2Ff", b"1"), ("g/h", b"1")]
    names += [(".tmp-1", b"1"), ("", b""), ("%2e%2e", b"1")]
    script.answer = lambda _: multistatus(*(entry(shown.format(name), data) for name, data in names))
    assert script.open().list("") == (NAMES[0], Listed("b", None), NAMES[1])


def test_an_empty_list(script: Script) -> None:
    script.answer = lambda _: multistatus(entry("/dav/x/", None))
    assert script.open().list("") == ()
    script.answer = lambda _: multistatus()
    assert script.open().list("d") == ()


@pytest.mark.parametrize("above", ["/dav/x/d/", "/DAV/x/d/", "/d/", "/"])
def test_a_list_without_the_folder_itself(script: Script, above: str) -> None:
    script.answer = lambda _: multistatus(*(entry(above + name, b"1") for name in ("a", "bbb", "cc")))
    assert [found.name for found in script.open().list("d")] == ["a", "bbb", "cc"]


def test_a_list_with_other_prefixes_and_refused_properties(script: Script) -> None:
    body = """<?xml version="1.0"?><D:multistatus xmlns:D="DAV:" xmlns:x="other:">
    <D:response><D:href>/dav/x/</D:href><D:propstat><D:prop><D:resourcetype><D:collection/></D:resourcetype></D:prop>
    <D:status>HTTP/1.1 200 OK</D:status></D:propstat>
    <D:propstat><D:prop><D:getcontentlength/></D:prop><D:status>HTTP/1.1 404 Not Found</D:status></D:propstat>
    </D:response><D:response><D:href>
      /dav/x/a
    </D:href><D:propstat><D:prop><x:getcontentlength>9</x:getcontentlength>
    <D:getcontentlength>3</D:getcontentlength><D:resourcetype/></D:prop>
    <D:status>HTTP/1.1 200 OK</D:status></D:propstat>
    <D:propstat><D:prop><D:getcontentlength>7</D:getcontentlength></D:prop>
    <D:status>HTTP/1.1 403 No</D:status></D:propstat></D:response>
    <D:response><D:href>/dav/x/gone</D:href><D:status>HTTP/1.1 404 Not Found</D:status></D:response></D:multistatus>"""
    script.answer = lambda _: Answer(207, body.encode())
    assert script.open().list("") == (Listed("a", 3),)


HOSTILE = {
    "not XML": Answer(207, b"\0\1\2 hunter2"),
    "cut off": Answer(207, b'<multistatus xmlns="DAV:"><response>'),
    "another document": Answer(207, b"<html><body>hunter2</body></html>"),
    "no namespace": Answer(207, b"<multistatus></multistatus>"),
    "entities": multistatus(
        entry("/dav/x/&b;", b""), head='<!DOCTYPE m [<!ENTITY a "hahaha"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>'
    ),
    "a file of this machine": multistatus(
        entry("/dav/x/&b;", b""), head='<!DOCTYPE m [<!ENTITY b SYSTEM "file:///etc/passwd">]>'
    ),
    "a document type": multistatus(head="<!DOCTYPE m>"),
    "an endless name": multistatus(entry("/dav/x/" + "a" * (1 << 20), b"")),
    "too deep": Answer(207, b'<multistatus xmlns="DAV:">' + b"<a>" * 10_000),
    "an encoding nobody knows": Answer(207, b'<?xml version="1.0" encoding="klingon"?><multistatus xmlns="DAV:"/>'),
    "nothing": Answer(207, b""),
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_lists(script: Script, answer: Answer) -> None:
    script.answer = lambda _: answer
    for call in (CALLS["list"], CALLS["space"]):
        with pytest.raises(UnreachableError, match="not the WebDAV server") as caught:
            call(script.open())
        assert PASSWORD not in str(caught.value)


def test_an_endless_list_is_cut(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_LIST_BYTES_MAX", 1 << 16)
    script.answer = lambda _: multistatus(*(entry(f"/dav/x/{n}", b"") for n in range(2000)))
    with pytest.raises(UnreachableError):
        script.open().list("")


# Space.


@pytest.mark.parametrize(
    ("free", "used", "expected"),
    [
        ("1000", "500", Space(1000, 1500)),
        ("0", "500", Space(0, 500)),
        ("1000", None, Space(1000, None)),
        ("-3", "500", Space(None, None)),  # Nextcloud: no limit
        ("-2", "500", Space(None, None)),
        ("-1", "-1", Space(None, None)),
        (None, "500", Space(None, None)),
        ("", "", Space(None, None)),
        ("1e9", "x", Space(None, None)),
        ("9" * 40, "1", Space(None, None)),
    ],
)
def test_space(script: Script, free: str | None, used: str | None, expected: Space) -> None:
    props = "".join(
        f"<{name}>{value}</{name}>"
        for name, value in (("quota-available-bytes", free), ("quota-used-bytes", used))
        if value is not None
    )
    script.answer = lambda _: multistatus(
        f"<response><href>/dav/x/</href><propstat><prop><resourcetype><collection/></resourcetype>{props}</prop>"
        "<status>HTTP/1.1 200 OK</status></propstat></response>"
    )
    assert script.open().space() == expected


# Inventories.


def test_an_inventory_asks_once_for_each_folder_and_eight_at_a_time(script: Script) -> None:
    shards = [f"{n:02x}" for n in range(40)]
    under_way, most, lock, eight = 0, 0, threading.Lock(), threading.Event()

    def answer(asked: Asked) -> Answer:
        nonlocal under_way, most
        path = asked.path.rstrip("/")
        with lock:
            under_way += 1
            most = max(most, under_way)
            if under_way == 8:
                eight.set()
        if path.endswith("/p"):
            told = multistatus(entry(f"{path}/", None), *(entry(f"{path}/{n}/", None) for n in shards))
        else:
            assert path[-2:] < "03" or eight.wait(60), "the first page has few folders, the second one many"
            told = multistatus(entry(f"{path}/", None), entry(f"{path}/one", b"123"))
        with lock:
            under_way -= 1
        return told

    script.answer = answer
    cursor, found = "", []
    backend = script.open()
    assert isinstance(backend, Inventories)
    for _ in range(9):
        page = backend.inventory("p", cursor)
        found += [(item.name, item.size) for item in page.items]
        cursor = page.cursor
        if not page.more:
            break
    assert found == [(f"{n}/one", 3) for n in shards]
    assert most == 8
    assert len(script.asked) <= len(shards) + 10
    assert {a.headers["Depth"] for a in script.asked} == {"1"}


def test_a_folder_of_an_inventory_that_is_refused_fails_all_of_it(script: Script) -> None:
    """The packs in it are not lost."""

    def answer(asked: Asked) -> Answer:
        path = asked.path.rstrip("/")
        if path.endswith("/b"):
            return Answer(403)
        inner = [entry(f"{path}/{n}/", None) for n in "abc"] if path.endswith("/p") else [entry(f"{path}/one", b"1")]
        return multistatus(entry(f"{path}/", None), *inner)

    script.answer = answer
    backend = script.open()
    assert isinstance(backend, Inventories)
    with pytest.raises(RefusedError):
        backend.inventory("p", "")
