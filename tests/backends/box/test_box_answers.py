"""What the Box backend makes of answers: errors of the contract, names that are taken, a login that ends."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from servers.box_standin import BoxStandin

from metasync.backends.api import Digest
from metasync.backends.box import BoxBackend
from metasync.backends.box.client import Client
from metasync.backends.box.files import COMMITS_MAX
from metasync.backends.registry import open_backend, parse_url, server_of
from metasync.errors import (
    BackendError,
    MetaSyncError,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UsageError,
)

Opened = Callable[..., BoxBackend]

CALLS: dict[str, Callable[[BoxBackend], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/new", b"other"),
    "get": lambda b: b.get("d/a", max_bytes=9),
    "get part": lambda b: b.get("d/a", offset=1, length=1, max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "digest": lambda b: b.digest("d/a"),
    "list": lambda b: b.list("d"),
    "inventory": lambda b: b.inventory("d", ""),
    "watch": lambda b: b.watch("d", "", 30),
    "delete": lambda b: b.delete("d/a"),
    "sweep": lambda b: b.sweep("d"),
    "space": lambda b: b.space(),
}
each = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.fixture
def filled(backend: BoxBackend, standin: BoxStandin) -> BoxBackend:
    backend.put("d/a", b"0123")
    standin.take_log()
    return backend


# --- requests


def test_opening_asks_nobody(opened: Opened, backend: BoxBackend, standin: BoxStandin) -> None:
    """Nor is the folder looked for again within a day, by any process."""
    again = opened(create_root=False)
    assert again.identity() == backend.identity()
    assert not standin.take_log()


@pytest.mark.parametrize("data", [b"", b"\n", b"\r\n--==\r\n", b"From \n.\n", bytes(range(256)) * 3])
def test_any_bytes(backend: BoxBackend, standin: BoxStandin, data: bytes) -> None:
    backend.put("d/a", data)
    assert backend.get("d/a", max_bytes=9999) == data
    assert standin.objects() == {"/top/ws/d/a": data}


# --- the feed


@pytest.mark.parametrize("cursor", ["feed other 1", "list", "x y z", "feed"])
def test_a_cursor_of_another_life_of_the_ids_begins_anew(filled: BoxBackend, cursor: str) -> None:
    with pytest.raises(NotFoundError, match="too old"):
        filled.inventory("d", cursor)


def test_a_feed_that_box_has_ended_begins_anew(filled: BoxBackend, standin: BoxStandin) -> None:
    cursor = filled.inventory("d", "").cursor
    standin.faults.ends_feeds = True
    with pytest.raises(NotFoundError):
        filled.inventory("d", cursor)


# --- what is told of files


def test_a_range_that_is_not_heeded(filled: BoxBackend, standin: BoxStandin) -> None:
    standin.faults.range_whole = True
    with pytest.raises(MetaSyncError):
        filled.get("d/a", offset=1, length=2, max_bytes=9)


def test_a_list_that_has_no_end_is_told(filled: BoxBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of the folders: one that is missing in it would be made again."""
    monkeypatch.setattr("metasync.backends._shared.by_id.PAGES_MAX", 3)
    folder = filled._files.folder
    monkeypatch.setattr(type(folder), "entries", lambda *_: ([], "more"))
    for listed in (folder.all, lambda attempt: [*folder.items(attempt, "0")]):
        with pytest.raises(BackendError, match="no end"):
            listed("cannot list")


def test_more_than_was_expected(filled: BoxBackend) -> None:
    with pytest.raises(RefusedError):
        filled.get("d/a", max_bytes=3)


# --- URLs and ids


@pytest.mark.parametrize("text", ["box:", "box:/", "box:folder", "box://host/folder", "box:/a//b"])
def test_urls_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_url(text)


def test_its_server_is_box() -> None:
    url = parse_url("box:/a folder/b?account=work&capacity=15GiB")
    assert server_of(url) == "box api.box.com"
    assert parse_url(url.location).location == url.location == "box:/a%20folder/b?account=work"


def test_without_a_login(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", f"{tmp_path}")
    with pytest.raises(RefusedError, match="box"):
        open_backend(parse_url("box:/a"))


# --- what is Box's own


def test_requests_of_each_call(filled: BoxBackend, standin: BoxStandin) -> None:
    """A get has the address of the bytes first; a delete looks, empties the name, and empties the trash."""
    costs = {name: [call(filled), len(standin.take_log())][1] for name, call in CALLS.items()}
    assert costs == {
        "create": 1, "put": 2, "get": 2, "get part": 2, "stat": 1, "digest": 1, "list": 2, "inventory": 3, "watch": 1,
        "delete": 3, "sweep": 2, "space": 1,
    }  # fmt: skip
    for kind, cost in costs.items():
        assert cost <= BoxBackend.rates[0].costs[kind.partition(" ")[0]], f"{kind} counts for less than it takes"


def test_an_id_of_another_object_is_found_out_before_anything_is_written(
    filled: BoxBackend, standin: BoxStandin
) -> None:
    filled.put("d/b", b"other")
    ids = filled._files.folder.ids
    for call in (lambda: filled.put("d/a", b"anew"), lambda: filled.delete("d/a")):
        ids.note([("d/a", str(ids.get("d/b")))])
        call()
        ids.forget("d/b")
        assert filled.get("d/b", max_bytes=9) == b"other"
    assert standin.objects() == {"/top/ws/d/b": b"other"}


def test_a_lookup_is_one_request(
    filled: BoxBackend, opened: Opened, standin: BoxStandin, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """Another device, which knows no ids, learns the folders by one list, and then asks once for each name."""
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/elsewhere")
    other = opened(create_root=False)
    assert other.stat("d/a") == 4
    standin.take_log()
    with pytest.raises(NotFoundError):
        other.stat("d/none")
    assert len(standin.take_log()) == 1


@pytest.mark.parametrize("shape", ["object", "list"])
def test_a_name_that_is_taken_tells_whose_it_is(filled: BoxBackend, standin: BoxStandin, shape: str) -> None:
    standin.faults.conflicts = shape
    filled._files.folder.ids.forget("d/a")
    assert not filled.create("d/a", b"x")
    filled._files.folder.ids.forget("d/a")
    filled.put("d/a", b"anew")
    assert filled.get("d/a", max_bytes=9) == b"anew"


@pytest.mark.parametrize("code", ["name_temporarily_reserved", "operation_blocked_temporary"])
def test_a_refusal_for_a_moment_says_nothing_of_the_name(backend: BoxBackend, standin: BoxStandin, code: str) -> None:
    backend.put("d/b", b"")
    standin.faults.code = code
    with pytest.raises(BackendError) as caught:
        backend.create("d/a", b"x")
    assert caught.value.retry_after_s
    assert backend.create("d/a", b"x")


def test_a_download_that_is_not_ready(filled: BoxBackend, standin: BoxStandin) -> None:
    standin.faults.unready, standin.faults.retry_after = 1, "5"
    with pytest.raises(BackendError) as caught:
        filled.get("d/a", max_bytes=9)
    assert caught.value.retry_after_s == 5.0
    assert filled.get("d/a", max_bytes=9) == b"0123"


def test_a_large_object_goes_in_parts(
    backend: BoxBackend, standin: BoxStandin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasync.backends.box.files.WHOLE_BYTES_MAX", 3000)
    standin.session_bytes_min, standin.part_bytes = 1000, 1500
    data = bytes(range(256)) * 20
    assert backend.create("d/a", data)
    assert not backend.create("d/a", data + b"x")
    backend.put("d/a", data[::-1])
    assert backend.get("d/a", max_bytes=9999) == data[::-1]


def large(standin: BoxStandin, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """An object that goes in parts here."""
    monkeypatch.setattr("metasync.backends.box.files.WHOLE_BYTES_MAX", 3000)
    standin.session_bytes_min, standin.part_bytes = 1000, 1500
    return bytes(range(256)) * 20


def sent(standin: BoxStandin) -> Counter[str]:
    """What was asked of upload sessions since the last time."""
    asked = [one.request for one in standin.take_log() if "/upload_sessions" in one.request.path]
    return Counter("commit" if r.path.endswith("/commit") else r.method for r in asked)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_commit_that_is_put_off_is_made_again(
    backend: BoxBackend, standin: BoxStandin, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """Box puts parts together after it has answered, and says when to ask again: nothing is sent twice."""
    data = large(standin, monkeypatch)
    pauses: list[float] = []
    monkeypatch.setattr(backend._files, "_sleep", pauses.append)
    if not is_new:
        backend.put("d/a", b"old")
    standin.take_log()
    standin.faults.unprocessed, standin.faults.retry_after = 3, "2"
    backend.put("d/a", data)
    assert backend.get("d/a", max_bytes=9999) == data
    assert pauses == [2.0] * 3
    assert sent(standin) == {"POST": 1, "PUT": 4, "commit": 4}
    assert not standin._sessions


@pytest.mark.parametrize(("says", "commits"), [("1", COMMITS_MAX), ("0", COMMITS_MAX), ("20", 2), ("3600", 1)])
def test_a_commit_that_is_put_off_for_ever_is_given_up(
    backend: BoxBackend, standin: BoxStandin, monkeypatch: pytest.MonkeyPatch, says: str, commits: int
) -> None:
    """What was sent is dropped at Box, and the account is not asked for a pause."""
    data = large(standin, monkeypatch)
    pauses: list[float] = []
    monkeypatch.setattr(backend._files, "_sleep", pauses.append)
    backend.put("d/a", b"old")
    standin.take_log()
    standin.faults.unprocessed, standin.faults.retry_after = 99, says
    for call in (backend.put, backend.create):
        with pytest.raises(BackendError, match="not put its parts together") as caught:
            call("d/b", data)
        assert (caught.value.retry_after_s, caught.value.retryable) == (None, True)
        assert sent(standin) == {"POST": 1, "PUT": 4, "commit": commits, "DELETE": 1}
    with pytest.raises(BackendError, match="not put its parts together"):
        backend.put("d/a", data)
    assert not standin._sessions
    assert sum(pauses) <= 3 * 30
    assert backend.get("d/a", max_bytes=9) == b"old"


def test_a_commit_that_changes_nothing_may_never_be_done(
    backend: BoxBackend, standin: BoxStandin, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = large(standin, monkeypatch)
    monkeypatch.setattr(backend._files, "_sleep", lambda _: None)
    backend.put("d/a", data)
    standin.faults.unprocessed, standin.faults.retry_after = 99, "1"
    backend.put("d/a", data)
    assert backend.get("d/a", max_bytes=9999) == data


def test_what_lies_in_the_trash_is_not_there(filled: BoxBackend, standin: BoxStandin) -> None:
    standin.trash(next(i for i, item in standin.items.items() if item.name == "a"))
    with pytest.raises(NotFoundError):
        filled.stat("d/a")
    assert filled.create("d/a", b"x")


def test_a_trash_that_keeps_what_is_in_it(filled: BoxBackend, standin: BoxStandin) -> None:
    """A policy of the enterprise: the name is free all the same."""
    standin.faults.keeps_trash = True
    filled.delete("d/a")
    assert filled.create("d/a", b"x")


def test_a_folder_that_is_gone_is_no_empty_folder(
    filled: BoxBackend, standin: BoxStandin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasync.backends._shared.kept_root.SEEN_S", -1.0)
    standin.trash(next(i for i, item in standin.items.items() if item.name == "ws"))
    for name in ("stat", "list", "create"):
        with pytest.raises(UnreachableError):
            CALLS[name](filled)


def test_a_folder_of_objects_that_somebody_removed_is_made_again(filled: BoxBackend, standin: BoxStandin) -> None:
    standin.trash(next(i for i, item in standin.items.items() if item.name == "d"))
    filled.put("d/a", b"again")
    assert filled.get("d/a", max_bytes=9) == b"again"
    assert filled.create("d/b", b"")


def test_the_feed_tells_what_another_device_did(filled: BoxBackend, standin: BoxStandin) -> None:
    page = filled.inventory("d", "")
    assert [item.name for item in page.items] == ["a"]
    folder = next(i for i, item in standin.items.items() if item.name == "d")
    standin.add("b", b"by another", folder)
    standin.trash(next(i for i, item in standin.items.items() if item.name == "a"))
    news = filled.inventory("d", page.cursor)
    assert {(item.name, item.size) for item in news.items} == {("a", None), ("b", 10)}
    assert not filled.inventory("d", news.cursor).items


def test_a_cursor_ends_before_box_forgets(filled: BoxBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = filled.inventory("d", "").cursor
    monkeypatch.setattr("metasync.backends.box.feed._FEED_S", 0.0)
    with pytest.raises(NotFoundError, match="too old"):
        filled.inventory("d", cursor)


def test_a_watch_ends_with_what_changed(filled: BoxBackend, standin: BoxStandin) -> None:
    begun = filled.watch("d", "", 30)
    assert begun.changed
    quiet = filled.watch("d", begun.cursor, 30)
    assert not quiet.changed
    filled.put("d/b", b"x")
    assert filled.watch("d", quiet.cursor, 30).changed


def test_a_look_ends_an_id_of_another_object(filled: BoxBackend) -> None:
    """A get takes it, as it takes any bytes that a provider gives; whoever mends what it read looks first."""
    filled.put("d/b", b"other")
    ids = filled._files.folder.ids
    ids.note([("d/a", str(ids.get("d/b")))])
    assert filled.get("d/a", max_bytes=9) == b"other"
    assert filled.stat("d/a") == 4
    assert filled.get("d/a", max_bytes=9) == b"0123"


@pytest.mark.parametrize("timeout_s", [1, 60, 480, 3600])
def test_a_poll_waits_as_long_as_box_takes_for_it(
    filled: BoxBackend, monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    """Box ends a poll after 610 s and takes no wish for less: whoever gives up before hears nothing."""
    waits: list[int | None] = []
    fetch = Client.fetch

    def seen(self: Client, attempt: str, url: str, *, within_s: int | None = None) -> Any:
        waits.append(within_s)
        return fetch(self, attempt, url, within_s=within_s)

    monkeypatch.setattr(Client, "fetch", seen)
    filled.watch("d", filled.watch("d", "", timeout_s).cursor, timeout_s)
    assert [wait_s is not None and 610 < wait_s < 700 for wait_s in waits] == [True]


@pytest.mark.parametrize("told", ["", "-1", "x", "1e3", None, "9" * 400])
def test_a_server_whose_limits_are_none_is_asked_at_all(
    filled: BoxBackend, standin: BoxStandin, monkeypatch: pytest.MonkeyPatch, told: str | None
) -> None:
    server = SimpleNamespace(
        url="https://2.realtime.services.box.net/subscribe?channel=cc1", ttl=told, max_retries=told
    )
    monkeypatch.setattr(
        "box_sdk_gen.managers.events.EventsManager.get_events_with_long_polling",
        lambda _: SimpleNamespace(entries=[server]),
    )
    cursor = filled.watch("d", "", 30).cursor
    filled.put("d/b", b"x")
    assert filled.watch("d", cursor, 30).changed


def test_digests_and_space(filled: BoxBackend, standin: BoxStandin) -> None:
    assert filled.digest("d/a") == Digest(4, hashlib.sha1(b"0123", usedforsecurity=False).digest())
    standin.faults.no_sha1 = True
    assert filled.digest("d/a") == Digest(4, None)
    space = filled.space()
    assert space.total_bytes == standin.quota_bytes
