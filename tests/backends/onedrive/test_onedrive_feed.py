"""Inventories and changes by Graph's delta: which tells items by ids, late, in part, and not for ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from http_kit import Answer
from servers.onedrive_standin import OneDriveStandin

from metasync.backends._shared import native_ids
from metasync.backends._shared.logins import forget_open
from metasync.backends.api import Inventory, Item
from metasync.backends.digests import digest_of
from metasync.backends.onedrive import OneDriveBackend, feed
from metasync.backends.registry import open_backend, parse_url
from metasync.errors import BackendError, NotFoundError, UnreachableError

URL = "onedrive:/metasync/one"


def whole(backend: OneDriveBackend, cursor: str = "") -> tuple[dict[str, Item], str]:
    found: dict[str, Item] = {}
    while True:
        page = backend.inventory("p", cursor)
        found |= {item.name: item for item in page.items}
        cursor = page.cursor
        if not page.more:
            return found, cursor


def sizes(found: dict[str, Item]) -> dict[str, int | None]:
    return {name: item.size for name, item in found.items()}


def again() -> OneDriveBackend:
    """The same store in a process that has just begun."""
    found = open_backend(parse_url(URL))
    assert isinstance(found, OneDriveBackend)
    return found


@pytest.fixture
def filled(backend: OneDriveBackend, standin: OneDriveStandin) -> OneDriveBackend:
    for name in ("p/0/aa/1", "p/0/aa/2", "p/0/bb/1", "p/1/aa/3", "q/other"):
        backend.put(name, name.encode())
    standin.take_log()
    return backend


def test_pages_of_all_that_is_there(standin: OneDriveStandin, filled: OneDriveBackend) -> None:
    standin.page = 2
    found, cursor = whole(filled)
    assert sizes(found) == {"0/aa/1": 8, "0/aa/2": 8, "0/bb/1": 8, "1/aa/3": 8}
    assert found["0/aa/1"].digest == digest_of("quickxor", b"p/0/aa/1")
    assert found["0/aa/1"].changed
    asked = standin.take_log()
    assert len(asked) == 1 + 5, "one for the folder's id, and one for each page of 4 files and 6 folders"
    assert whole(filled, cursor)[0] == {}
    assert len(standin.take_log()) == 1, "nothing changed: one request"


@pytest.mark.parametrize("is_business", [False, True])
def test_changes_in_one_process(standin: OneDriveStandin, filled: OneDriveBackend, is_business: bool) -> None:
    standin.switches.is_business = is_business
    _, cursor = whole(filled)
    filled.put("p/0/cc/new", b"new")
    filled.put("p/0/aa/2", b"longer than before")
    filled.delete("p/0/bb/1")
    filled.put("q/beside", b"1")
    found, cursor = whole(filled, cursor)
    assert sizes(found) == {"0/cc/new": 3, "0/aa/2": 18, "0/bb/1": None}
    assert whole(filled, cursor)[0] == {}


@pytest.mark.parametrize(("are_lost", "requests"), [(False, 1), (True, 1 + 2 + 1)])
def test_changes_after_a_restart(
    standin: OneDriveStandin, filled: OneDriveBackend, tmp_path: Path, are_lost: bool, requests: int
) -> None:
    """Ids are kept. Where they are lost, folders are asked for, once each; a deletion that has a name is told."""
    _, cursor = whole(filled)
    filled.put("p/0/aa/new", b"new")
    filled.delete("p/0/aa/1")
    if are_lost:
        lose_ids(tmp_path)
    standin.take_log()
    found, _ = whole(again(), cursor)
    assert sizes(found) == {"0/aa/new": 3, "0/aa/1": None}
    assert len(standin.take_log()) == requests


def test_a_deletion_without_a_name_after_a_restart(
    standin: OneDriveStandin, filled: OneDriveBackend, tmp_path: Path
) -> None:
    standin.switches.is_business = True
    _, cursor = whole(filled)
    filled.put("p/0/aa/new", b"new")
    found, cursor = whole(again(), cursor)
    assert sizes(found) == {"0/aa/new": 3}
    filled.delete("p/0/aa/1")
    found, cursor = whole(again(), cursor)
    assert sizes(found) == {"0/aa/1": None}
    filled.delete("p/0/aa/2")
    lose_ids(tmp_path)
    with pytest.raises(NotFoundError):
        whole(again(), cursor)
    assert {*whole(again())[0]} == {"0/aa/new", "0/bb/1", "1/aa/3"}


@pytest.mark.parametrize("is_business", [False, True])
def test_a_deletion_that_is_told_after_the_file_that_has_its_name_now(
    standin: OneDriveStandin, filled: OneDriveBackend, is_business: bool
) -> None:
    """The feed goes by ids, and a page may end between the two."""
    standin.switches.is_business = is_business
    _, cursor = whole(filled)
    filled.put("q/later", b"1")
    filled.put("q/later", b"2")
    old = standin._at(("metasync", "one", "p", "0", "aa", "1")).item_id
    filled.delete("p/0/aa/1")
    filled.put("p/0/aa/1", b"anew")
    with standin.lock:
        standin.changes = [one for one in standin.changes if one != old] + [old]
    standin.page = 1
    assert sizes(whole(again(), cursor)[0]) == {"0/aa/1": 4}


def lose_ids(folder: Path) -> None:
    forget_open()
    found = [*folder.rglob("ids/*.db*")]
    assert found
    for path in found:
        path.unlink()


def test_a_name_that_was_deleted_and_made_again(standin: OneDriveStandin, filled: OneDriveBackend) -> None:
    _, cursor = whole(filled)
    filled.delete("p/0/aa/1")
    filled.put("p/0/aa/1", b"anew")
    for store in (filled, again()):
        assert sizes(whole(store, cursor)[0]) == {"0/aa/1": 4}


def test_a_whole_folder_that_is_gone(standin: OneDriveStandin, filled: OneDriveBackend) -> None:
    """What was in it may not be told one by one: all is listed anew."""
    _, cursor = whole(filled)
    standin.remove_all("metasync/one/p/0/aa")
    for store in (filled, again()):
        with pytest.raises(NotFoundError):
            whole(store, cursor)
    assert sizes(whole(filled)[0]) == {"0/bb/1": 8, "1/aa/3": 8}


def test_a_mark_that_is_too_old(standin: OneDriveStandin, filled: OneDriveBackend) -> None:
    _, cursor = whole(filled)
    standin.switches.resync = True
    with pytest.raises(NotFoundError):
        filled.inventory("p", cursor)
    assert sizes(whole(filled)[0])["0/aa/1"] == 8


@pytest.mark.parametrize(
    "cursor",
    [
        "no-such", "0 id /v1.0/me/drive/items/x", "0 id http://thief.example/v1.0/delta", "2 id /v1.0/delta",
        "0 i d /v1.0/delta", "0 id /v1.0/delta\r\nX: y",
        "0 id /v1.0/me/drive/special/approot:/metasync/one/p:/delta?token=x",
    ],
)  # fmt: skip
def test_marks_that_nobody_gave(standin: OneDriveStandin, filled: OneDriveBackend, cursor: str) -> None:
    with pytest.raises(NotFoundError):
        filled.inventory("p", cursor)
    assert all(e.request.host == "graph.microsoft.com" for e in standin.log)


def test_a_folder_that_is_not_there_is_empty(standin: OneDriveStandin, filled: OneDriveBackend) -> None:
    assert filled.inventory("nothing", "") == Inventory((), "", more=False)
    _, cursor = whole(filled)
    standin.remove_all("metasync/one/p")
    with pytest.raises(NotFoundError):
        filled.inventory("p", cursor)
    assert filled.inventory("p", "") == Inventory((), "", more=False)
    standin.remove_all("metasync/one")
    backend = again()
    with pytest.raises(UnreachableError):
        backend.inventory("p", "")


def test_lists_that_hide_and_repeat_and_are_late(standin: OneDriveStandin, filled: OneDriveBackend) -> None:
    standin.switches.reordered = standin.switches.doubled = True
    standin.page = 3
    assert {*whole(filled)[0]} == {"0/aa/1", "0/aa/2", "0/bb/1", "1/aa/3"}
    standin.switches.hidden = {"aa"}  # a folder that is not told; its files are, and it is asked for
    assert {*whole(again())[0]} == {"0/aa/1", "0/aa/2", "0/bb/1", "1/aa/3"}
    standin.switches.hidden = {"1"}
    assert {*whole(again())[0]} == {"0/aa/2", "1/aa/3"}
    standin.switches.hidden = set()
    standin.freeze()
    filled.put("p/0/aa/new", b"1")
    assert "0/aa/new" not in whole(filled)[0]


def test_names_that_are_not_ours(standin: OneDriveStandin, filled: OneDriveBackend) -> None:
    with standin.lock:
        top = standin._at(("metasync", "one", "p"))
        for name in ("Not Ours", "a=b", ".tmp-1"):
            standin._add(top.item_id, name, b"1")
        strange = standin._add(top.item_id, "Strange Folder", None)
        standin._add(strange.item_id, "name", b"1")
    filled.put("p/con", b"12")
    found, cursor = whole(filled)
    assert {*found} == {"0/aa/1", "0/aa/2", "0/bb/1", "1/aa/3", "con"}
    standin.damage("metasync/one/p/Not Ours", None)
    filled.delete("p/con")
    assert sizes(whole(again(), cursor)[0]) == {"con": None}


def test_a_drive_that_leads_in_circles(
    standin: OneDriveStandin, filled: OneDriveBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders within each other, and more unknown folders than there can be."""
    one = standin._at(("metasync", "one", "p", "0"))
    inner = standin._at(("metasync", "one", "p", "0", "aa"))
    standin.items[one.item_id] = replace(one, parent=inner.item_id)
    monkeypatch.setattr(standin, "_is_below", lambda *_: True)
    assert all("/" in name for name in whole(filled)[0])
    monkeypatch.setattr(feed, "_ASKED_MAX", 1)
    standin.switches.hidden = {"aa", "bb", "0"}
    with pytest.raises(BackendError, match="too many folders"):
        whole(again())


def test_a_page_that_is_its_own_next_one(
    standin: OneDriveStandin, filled: OneDriveBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.page = 2
    cursor = filled.inventory("p", "").cursor
    here = f"{standin.url}/graph.microsoft.com"
    monkeypatch.setattr(standin, "_link", lambda _name, request, *_: {"@odata.nextLink": f"{here}{request.target}"})
    with pytest.raises(UnreachableError, match="without an end"):
        filled.inventory("p", cursor)


@pytest.mark.parametrize(
    "link", ["http://thief.example/v1.0/delta", "/v1.0/delta", "", None, 7, "https://graph.microsoft.com/beta/delta"]
)
def test_a_next_page_elsewhere_is_not_asked_for(
    standin: OneDriveStandin, filled: OneDriveBackend, monkeypatch: pytest.MonkeyPatch, link: object
) -> None:
    """It would be shown the token."""
    monkeypatch.setattr(standin, "_link", lambda *_: {"@odata.nextLink": link})
    monkeypatch.setattr(standin.spec, "wrong_answer", lambda _: [])
    for call in (lambda: filled.inventory("p", ""), lambda: filled.list("p")):
        standin.page = 1
        with pytest.raises(UnreachableError, match="elsewhere"):
            call()


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"value": 7}', b'{"value": [1, null, {"id": 7}]}', b"[" * 99999])
def test_pages_that_are_none(
    standin: OneDriveStandin, filled: OneDriveBackend, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(standin, "respond", lambda _: Answer(200, body, {"Content-Type": "application/json"}))
    with pytest.raises(UnreachableError, match="not OneDrive"):
        filled.inventory("p", "")
    with pytest.raises(UnreachableError, match="not OneDrive"):
        filled.inventory("p", "0 id /v1.0/me/drive/x/delta?token=1")


def test_what_is_kept_of_ids_is_bounded(
    standin: OneDriveStandin, filled: OneDriveBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is forgotten costs requests, and hides nothing."""
    _, cursor = whole(filled)
    monkeypatch.setattr(native_ids, "ROWS_MAX", 2)
    filled.delete("p/0/aa/1")
    assert sizes(whole(again(), cursor)[0]) == {"0/aa/1": None}
    assert {*whole(again())[0]} == {"0/aa/2", "0/bb/1", "1/aa/3"}
