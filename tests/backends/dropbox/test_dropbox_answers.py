"""What the Dropbox backend makes of answers: errors of the contract, a login that ends, throttling, half answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from dropbox import files
from servers.dropbox_standin import DropboxStandin, File
from servers.standin import json_answer

from metasync.backends.api import Change, Digest, Item, Listed, Space
from metasync.backends.digests import digest_of
from metasync.backends.dropbox import DropboxBackend
from metasync.backends.registry import open_backend, parse_url, server_of
from metasync.backends.wrappers.retry import Retrying
from metasync.errors import (
    BackendError,
    FullError,
    MetaSyncError,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UsageError,
)

Opened = Callable[..., DropboxBackend]

CALLS: dict[str, Callable[[DropboxBackend], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/new", b"x"),
    "get": lambda b: b.get("d/a", max_bytes=9),
    "get part": lambda b: b.get("d/a", offset=1, length=1, max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "digest": lambda b: b.digest("d/a"),
    "list": lambda b: b.list("d"),
    "inventory": lambda b: b.inventory("d", ""),
    "watch": lambda b: b.watch("d", "", 30),
    "delete": lambda b: b.delete("d/a"),
    "space": lambda b: b.space(),
    "sweep": lambda b: b.sweep("d"),
}
each = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.fixture
def filled(backend: DropboxBackend, standin: DropboxStandin) -> DropboxBackend:
    backend.put("d/a", b"0123")
    standin.take_log()
    return backend


def paths(standin: DropboxStandin) -> list[str]:
    return [exchange.request.path.removeprefix("/2/") for exchange in standin.take_log()]


# --- requests


def test_requests_of_each_call(filled: DropboxBackend, standin: DropboxStandin) -> None:
    """A delete asks for the revision first, so that it never takes a folder of that name with all that is in it."""
    costs = {name: [call(filled), len(paths(standin))][1] for name, call in CALLS.items()}
    assert costs == {
        "create": 1, "put": 1, "get": 1, "get part": 1, "stat": 1, "digest": 1, "list": 1, "inventory": 1, "watch": 1,
        "delete": 2, "space": 1, "sweep": 1,
    }  # fmt: skip


def test_opening_asks_nobody(opened: Opened, standin: DropboxStandin) -> None:
    opened(create_root=False)
    assert not paths(standin)


def test_a_folder_of_an_objects_name_is_not_deleted(filled: DropboxBackend, standin: DropboxStandin) -> None:
    filled.delete("d")
    assert filled.get("d/a", max_bytes=9) == b"0123"
    assert "files/delete_v2" not in paths(standin)


def test_an_object_that_was_replaced_meanwhile_is_not_deleted(filled: DropboxBackend, standin: DropboxStandin) -> None:
    filled._file = lambda _verb, _path: File("a", b"", "0123456789abcdef", "id:1", "")  # type: ignore[method-assign]
    with pytest.raises(RefusedError, match="in the way"):
        filled.delete("d/a")
    assert standin.objects() == {"/top/ws/d/a": b"0123"}


def test_the_largest_upload(filled: DropboxBackend, monkeypatch: pytest.MonkeyPatch, standin: DropboxStandin) -> None:
    monkeypatch.setattr("metasync.backends.dropbox.UPLOAD_BYTES_MAX", 3)
    with pytest.raises(RefusedError, match="4 bytes"):
        filled.put("d/b", b"0123")
    assert not paths(standin)


# --- errors


@each
def test_an_answer_that_says_less_than_it_should(
    filled: DropboxBackend, standin: DropboxStandin, call: Callable[[DropboxBackend], object]
) -> None:
    standin.switches.torn = 1
    with pytest.raises(UnreachableError):
        call(filled)


@each
def test_a_folder_that_is_gone_is_not_an_empty_store(
    opened: Opened, standin: DropboxStandin, call: Callable[[DropboxBackend], object]
) -> None:
    """Nor do writes make it anew."""
    opened("/top/ws")
    standin.tree.pop("/top/ws")
    for backend in (opened(create_root=False), opened(create_root=False)):  # with an id that is kept, and without
        if call is CALLS["space"]:
            call(backend)
            continue
        with pytest.raises(UnreachableError, match="there is no folder /top/ws"):
            call(backend)
    assert "/top/ws" not in standin.tree


def test_a_file_in_the_place_of_the_folder(opened: Opened, standin: DropboxStandin) -> None:
    opened("/top").put("ws", b"1")
    with pytest.raises(UnreachableError):
        opened(create_root=False).stat("a")
    with pytest.raises(RefusedError, match="a file is in the way"):
        opened(create_root=True)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("insufficient_space", FullError),
        ("no_write_permission", RefusedError),
        ("disallowed_name", RefusedError),
        ("team_folder", RefusedError),
        ("operation_suppressed", RefusedError),
        ("access_restricted", RefusedError),
        ("too_many_write_operations", BackendError),
    ],
)
def test_what_is_in_the_way_of_a_write(
    filled: DropboxBackend, standin: DropboxStandin, reason: str, kind: type[BackendError]
) -> None:
    for verb in ("create", "put"):
        standin.faults.reason = reason
        with pytest.raises(BackendError) as caught:
            CALLS[verb](filled)
        assert type(caught.value) is kind
    if reason == "too_many_write_operations":
        assert caught.value.retry_after_s == 1.0
    else:
        assert caught.value.next_step


def test_a_full_account(filled: DropboxBackend, standin: DropboxStandin) -> None:
    standin.switches.full = True
    with pytest.raises(FullError):
        filled.create("d/new", b"x")
    assert filled.create("d/a", b"x") is False, "a taken name is taken"


def test_what_is_above_is_a_file(filled: DropboxBackend) -> None:
    for verb in ("create", "put"):
        with pytest.raises(RefusedError, match="in the way"):
            getattr(filled, verb)("d/a/b", b"x")


def test_a_folder_has_the_name(filled: DropboxBackend) -> None:
    assert filled.create("d", b"x") is False
    with pytest.raises(RefusedError, match="a folder is in the way"):
        filled.put("d", b"x")
    for call in (filled.stat, filled.digest):
        with pytest.raises(NotFoundError):
            call("d")


def test_a_library_that_cannot_read_an_answer(filled: DropboxBackend, standin: DropboxStandin) -> None:
    standin.switches.refused = [(404, None)]
    with pytest.raises(UnreachableError, match="what answered is not Dropbox"):
        filled.stat("d/a")
    standin.switches.refused = [(302, None)]
    with pytest.raises(UnreachableError):
        filled.stat("d/a")
    standin.switches.refused = [(400, None)]
    with pytest.raises(RefusedError):
        filled.stat("d/a")


# --- create


def test_the_same_bytes_are_a_conflict(filled: DropboxBackend, standin: DropboxStandin) -> None:
    """Without `strict_conflict` two devices whose entries are equal would both be told that they were first."""
    assert filled.create("d/a", b"0123") is False
    (asked,) = [exchange.request for exchange in standin.take_log()]
    assert all(word in asked.headers["dropbox-api-arg"] for word in ('"strict_conflict": true', '"autorename": false'))
    standin.faults.no_strict = True
    assert filled.create("d/a", b"0123") is True, "what the stand-in would do without it"


def test_a_lost_answer_to_a_create_is_found_out(filled: DropboxBackend, standin: DropboxStandin) -> None:
    standin.switches.lost = 1
    with pytest.raises(UnreachableError):
        filled.create("d/lost", b"mine")
    assert filled.create("d/lost", b"mine") is False, "a backend repeats nothing, and keeps nothing in mind"
    standin.switches.lost = 1
    assert Retrying(filled).create("d/again", b"mine") is True


def test_a_dropbox_that_lets_two_win_is_found_out(filled: DropboxBackend, standin: DropboxStandin) -> None:
    assert filled.probe() == "log"
    standin.faults.renames = True
    assert filled.probe() == "none"


def test_upload_that_arrived_damaged(filled: DropboxBackend, standin: DropboxStandin) -> None:
    """The library sends the hash of what it sends; Dropbox refuses other bytes."""
    filled.put("d/b", b"1")
    (asked,) = [exchange.request for exchange in standin.take_log()]
    assert digest_of("content_hash", b"1").hex() in asked.headers["dropbox-api-arg"]


# --- reading


@pytest.mark.parametrize(
    ("offset", "length", "data"),
    [(0, None, b"0123"), (1, None, b"123"), (0, 2, b"01"), (1, 2, b"12"), (3, 9, b"3"), (4, 1, b""), (9, None, b"")],
)  # fmt: skip
def test_a_part(filled: DropboxBackend, standin: DropboxStandin, offset: int, length: int | None, data: bytes) -> None:
    assert filled.get("d/a", offset=offset, length=length, max_bytes=9) == data
    assert len(paths(standin)) == 1
    standin.faults.range_whole = True
    if length is None or length > 3:
        assert filled.get("d/a", offset=offset, length=length, max_bytes=9) == data, "a part of the whole"


def test_more_than_was_asked_for(filled: DropboxBackend) -> None:
    with pytest.raises(RefusedError):
        filled.get("d/a", max_bytes=3)
    assert filled.get("d/a", max_bytes=4) == b"0123"


def test_digests_and_sizes(filled: DropboxBackend) -> None:
    assert filled.digest("d/a") == Digest(4, digest_of("content_hash", b"0123"))
    assert filled.stat("d/a") == 4


def test_lists_of_several_pages(
    filled: DropboxBackend, standin: DropboxStandin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasync.backends.dropbox.PAGE_NAMES", 2)
    for name in "bcde":
        filled.put(f"d/{name}", b"1")
    standin.switches.doubled = standin.switches.reordered = True
    assert filled.list("d") == tuple(Listed(name, 4 if name == "a" else 1) for name in "abcde")
    assert filled.list("") == (Listed("d", None),)
    assert filled.list("none") == ()


def test_a_list_without_an_end(filled: DropboxBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasync.backends.dropbox.PAGE_NAMES", 1)
    monkeypatch.setattr("metasync.backends.dropbox.PAGES_MAX", 3)
    for name in "bcde":
        filled.put(f"d/{name}", b"1")
    with pytest.raises(BackendError, match="no end"):
        filled.list("d")


def test_names_that_are_not_ours(filled: DropboxBackend, standin: DropboxStandin) -> None:
    for name in ("Großes.txt", ".tmp-1"):
        standin.tree[f"/top/ws/d/{name.lower()}"] = File(name, b"", "0" * 16, "id:9", "0" * 64)
    assert [entry.name for entry in filled.list("d")] == ["a"]
    assert [item.name for item in filled.inventory("d", "").items] == ["a"]


# --- the feed


def test_a_feed_of_changes(filled: DropboxBackend, standin: DropboxStandin) -> None:
    page = filled.inventory("d", "")
    (item,) = page.items
    assert item == Item("a", 4, digest_of("content_hash", b"0123"), item.changed)
    assert not page.more
    filled.put("d/e/f", b"12")
    filled.put("beside", b"1")
    filled.delete("d/a")
    page = filled.inventory("d", page.cursor)
    assert {(one.name, one.size) for one in page.items} == {("a", None), ("e/f", 2)}
    assert filled.inventory("d", page.cursor).items == ()


def test_a_folder_that_is_gone_is_told_by_its_name(filled: DropboxBackend, standin: DropboxStandin) -> None:
    """Dropbox says of a deleted folder nothing but that."""
    filled.put("d/e/f", b"12")
    cursor = filled.inventory("d", "").cursor
    filled._client.ask("delete", lambda sdk: sdk.files_delete_v2("/top/ws/d/e"))
    assert filled.inventory("d", cursor).items == (Item("e", None),)


def test_the_folder_of_a_feed_that_is_gone(filled: DropboxBackend, standin: DropboxStandin) -> None:
    cursor = filled.inventory("d", "").cursor
    filled._client.ask("delete", lambda sdk: sdk.files_delete_v2("/top/ws/d"))
    with pytest.raises(NotFoundError):
        filled.inventory("d", cursor)


@pytest.mark.parametrize("cursor", ["unknown", "\n", "x" * 9999])
def test_a_cursor_that_is_too_old(filled: DropboxBackend, cursor: str) -> None:
    for call in (lambda: filled.inventory("d", cursor), lambda: filled.watch("d", cursor, 30)):
        with pytest.raises(NotFoundError):
            call()


def test_a_watch_ends_with_a_change(filled: DropboxBackend, standin: DropboxStandin) -> None:
    begun = filled.watch("d", "", 30)
    assert begun.changed
    quiet = filled.watch("d", begun.cursor, 30)
    assert quiet == Change(begun.cursor, False)
    filled.put("beside", b"1")
    assert not filled.watch("d", begun.cursor, 30).changed
    filled.put("d/b", b"1")
    told = filled.watch("d", begun.cursor, 30)
    assert told.changed
    assert told.cursor != begun.cursor
    assert not filled.watch("d", told.cursor, 30).changed
    polls = [e.request for e in standin.take_log() if e.request.path.endswith("longpoll")]
    assert all("authorization" not in poll.headers for poll in polls)


# --- the login


def test_a_new_token_that_is_not_taken_either(
    filled: DropboxBackend, standin: DropboxStandin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    standin.link(monkeypatch, tmp_path / "config", "work")
    work = open_backend(parse_url("dropbox:/top/ws?account=work"))
    standin.switches.revoked |= {"sl.token-0", "sl.token-1", "sl.token-2"}
    for backend, account in ((filled, "default"), (work, "work")):
        with pytest.raises(RefusedError) as caught:
            backend.stat("d/a")
        assert caught.value.next_step == f"Run: metasync auth dropbox --account {account}"
    work.close()


@pytest.mark.parametrize(
    ("tag", "said"),
    [("missing_scope", "lacks a permission"), ("user_suspended", "suspended"), ("route_access_denied", "the login")],
)
def test_a_login_that_a_new_token_does_not_mend(
    filled: DropboxBackend, standin: DropboxStandin, monkeypatch: pytest.MonkeyPatch, tag: str, said: str
) -> None:
    more = {"required_scope": "files.content.read"} if tag == "missing_scope" else {}
    answer = json_answer({"error_summary": "x", "error": {".tag": tag, **more}}, 401)
    monkeypatch.setattr(standin, "respond", lambda _request: answer)
    with pytest.raises(RefusedError, match=said) as caught:
        filled.stat("d/a")
    assert caught.value.next_step
    assert standin.renewals == 0


def test_no_account_is_linked(standin: DropboxStandin) -> None:
    with pytest.raises(RefusedError) as caught:
        open_backend(parse_url("dropbox:/top?account=other"))
    assert "metasync auth dropbox" in (caught.value.next_step or "")


def test_no_error_holds_a_token(filled: DropboxBackend, standin: DropboxStandin) -> None:
    secrets = ("sl.token", standin.refresh)
    for call in CALLS.values():
        for status in (400, 401, 404, 429, 500):
            standin.switches.refused = [(status, None)]
            with pytest.raises(BackendError) as caught:
                call(filled)
            error: BaseException | None = caught.value
            while error is not None:
                words = f"{error!r} {error} {getattr(error, 'next_step', '')}"
                assert not any(secret in words for secret in secrets)
                error = error.__cause__
    assert not any(secret in repr(filled) + repr(vars(filled)) for secret in secrets)


# --- space and identity


def test_space(filled: DropboxBackend, standin: DropboxStandin) -> None:
    assert filled.space() == Space((2 << 30) - 4, 2 << 30)
    standin.team = 100, 130
    assert filled.space() == Space(0, 100)


def test_identity_is_that_of_the_folder(opened: Opened, standin: DropboxStandin) -> None:
    one, other = opened("/top/ws"), opened("/top/other")
    assert one.identity() == opened("/Top/WS", create_root=False).identity()
    assert one.identity()[:16] == other.identity()[:16]
    assert one.identity() != other.identity()
    standin.take_log()
    one.identity()
    assert not paths(standin), "it is asked for once"


def test_a_shared_folder_is_the_same_for_all_who_share_it(
    opened: Opened, standin: DropboxStandin, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened("/mine")
    opened("/theirs")
    sharing = files.FolderSharingInfo(read_only=False, shared_folder_id="84528192421")
    before = opened("/mine", create_root=False).identity()
    for path in ("/mine", "/theirs"):
        object.__setattr__(standin.tree[path], "sharing", sharing)
    assert opened("/mine", create_root=False).identity() == before, "it is asked for once a day"
    monkeypatch.setattr("metasync.backends._shared.kept_root.KEPT_S", 0.0)
    mine, theirs = (opened(path, create_root=False).identity() for path in ("/mine", "/theirs"))
    assert mine == theirs
    assert mine[:16] != before[:16], "a folder that is shared later is not taken for another store"


def test_sweep_takes_empty_folders_alone(filled: DropboxBackend, standin: DropboxStandin) -> None:
    for name in ("e/f/g", "e/h", "i/j"):
        filled.put(f"d/{name}", b"1")
        filled.delete(f"d/{name}")
    filled.sweep("d")
    assert set(standin.tree) == {"/top", "/top/ws", "/top/ws/d", "/top/ws/d/a"}
    filled.delete("d/a")
    filled.sweep("d")
    assert set(standin.tree) == {"/top", "/top/ws"}
    filled.sweep("d")


# --- URLs


@pytest.mark.parametrize(
    "text", ["dropbox:/a", "dropbox:/a/b c", "dropbox:/Ä?account=work", "dropbox:/a/?role=storage"]
)
def test_urls(text: str) -> None:
    url = parse_url(text)
    assert parse_url(url.location).location == url.location
    assert server_of(url) == "dropbox api.dropboxapi.com"


@pytest.mark.parametrize(
    "text",
    ["dropbox:", "dropbox:/", "dropbox://host/a", "dropbox:a", "dropbox:/a//b", "dropbox:/a/../b", "dropbox:/a%2fb/.",
     "dropbox:/a:b", "dropbox:/a%5cb", "dropbox:/a%00b", "dropbox:/a ", "dropbox:/a?account=A", "dropbox:/a?endpoint=x",
     f"dropbox:/{'x' * 201}"],
)  # fmt: skip
def test_urls_that_are_none(text: str) -> None:
    if text != "dropbox:/a ":  # the end of what was typed is not part of it
        with pytest.raises(MetaSyncError) as caught:
            parse_url(text)
        assert isinstance(caught.value, UsageError)
