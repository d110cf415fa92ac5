"""What the Google Drive backend makes of answers: errors of the contract, late searches, twins, a login that ends."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from http_kit import Answer
from servers.gdrive_standin import FOLDER, GoogleDriveStandin
from servers.standin import Request

from metasync.backends._shared.native_ids import NativeIds
from metasync.backends.api import Digest, Item, Listed, Space
from metasync.backends.gdrive import REQUESTS, GoogleDriveBackend
from metasync.backends.gdrive.client import STALLS_MAX
from metasync.backends.registry import open_backend, parse_url, server_of
from metasync.errors import (
    BackendError,
    FullError,
    MetaSyncError,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UsageError,
)

Opened = Callable[..., GoogleDriveBackend]

CALLS: dict[str, Callable[[GoogleDriveBackend], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/new", b"other"),
    "get": lambda b: b.get("d/a", max_bytes=9),
    "get part": lambda b: b.get("d/a", offset=1, length=1, max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "digest": lambda b: b.digest("d/a"),
    "list": lambda b: b.list("d"),
    "inventory": lambda b: b.inventory("d", ""),
    "delete": lambda b: b.delete("d/a"),
    "space": lambda b: b.space(),
}
each = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.fixture
def filled(backend: GoogleDriveBackend, standin: GoogleDriveStandin) -> GoogleDriveBackend:
    backend.put("d/a", b"0123")
    standin.take_log()
    return backend


def root_of(standin: GoogleDriveStandin) -> str:
    return next(file.id for file in standin.files.values() if file.type == FOLDER and file.name == "ws")


# --- requests


def test_requests_of_each_call(filled: GoogleDriveBackend, standin: GoogleDriveStandin) -> None:
    """A put looks first, because a name is no key there; a create looks once more, for twins."""
    costs = {name: [call(filled), len(standin.take_log())][1] for name, call in CALLS.items()}
    assert costs == {
        "create": 3, "put": 2, "get": 1, "get part": 1, "stat": 1, "digest": 1, "list": 1, "inventory": 2,
        "delete": 3, "space": 1,
    }  # fmt: skip
    assert all(cost <= REQUESTS[kind.partition(" ")[0]] for kind, cost in costs.items()), (
        "counts for less than it takes"
    )


def test_opening_asks_nobody(opened: Opened, backend: GoogleDriveBackend, standin: GoogleDriveStandin) -> None:
    """Nor is the folder looked for again within a day, by any process."""
    again = opened(create_root=False)
    assert again.identity() == backend.identity()
    assert not standin.take_log()


def test_bytes_that_are_there_are_not_sent(filled: GoogleDriveBackend, standin: GoogleDriveStandin) -> None:
    filled.put("d/a", b"0123")
    assert [exchange.request.method for exchange in standin.take_log()] == ["GET"]


def test_a_large_object_goes_behind_its_metadata(
    backend: GoogleDriveBackend, standin: GoogleDriveStandin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasync.backends.gdrive.files.WHOLE_BYTES_MAX", 3)
    backend.put("d/a", b"0123")
    backend.put("d/a", b"4567")
    kinds = [exchange.request.query.get("uploadType") for exchange in standin.take_log()]
    assert kinds.count("resumable") >= 2
    assert backend.get("d/a", max_bytes=9) == b"4567"
    assert standin.objects() == {"d/a": b"4567"}


def test_a_large_object_is_taken_in_parts(
    backend: GoogleDriveBackend, standin: GoogleDriveStandin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Google takes less of than was sent goes on where it ends, also behind some answers that took nothing."""
    monkeypatch.setattr("metasync.backends.gdrive.files.WHOLE_BYTES_MAX", 3)
    monkeypatch.setattr("metasync.backends.gdrive.client.STEP_BYTES", 2)
    data = bytes(range(20))
    nothing = [0] * (STALLS_MAX - 1)
    standin.faults.takes = [*nothing, 5, *nothing, 2, *nothing, 7]
    backend.put("d/a", data)
    assert standin.objects() == {"d/a": data}
    assert not standin.faults.takes


@pytest.mark.parametrize("takes", [[0], [1], [100, 0]], ids=["nothing", "less than a step", "some, then nothing"])
def test_an_upload_that_goes_nowhere_ends(
    backend: GoogleDriveBackend, standin: GoogleDriveStandin, monkeypatch: pytest.MonkeyPatch, takes: list[int]
) -> None:
    """It was sent for ever, as long as Google asked for the rest. The error is one after which a call is made again."""
    monkeypatch.setattr("metasync.backends.gdrive.files.WHOLE_BYTES_MAX", 3)
    monkeypatch.setattr("metasync.backends.gdrive.client.STEP_BYTES", 64)
    standin.faults.takes = [*takes, *takes[-1:] * 1000]
    standin.take_log()
    with pytest.raises(BackendError, match="takes no more") as caught:
        backend.put("d/a", bytes(1000))
    assert caught.value.retryable
    assert caught.value.retry_after_s is None, "the account is not left alone for it"
    sent = [exchange for exchange in standin.take_log() if exchange.status == 308]
    assert len(sent) == len(takes) - 1 + STALLS_MAX
    assert standin.objects() == {}
    standin.faults.takes = []
    backend.put("d/a", b"0123")
    assert standin.objects() == {"d/a": b"0123"}


@pytest.mark.parametrize("told", ["0", "bytes=0-é", "bytes=0-" + "9" * 30, "bytes=0-", "bytes=0--9"])
def test_an_upload_that_was_taken_to_nowhere(
    backend: GoogleDriveBackend, standin: GoogleDriveStandin, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.setattr("metasync.backends.gdrive.files.WHOLE_BYTES_MAX", 3)
    standin.faults.takes = [3] * 1000
    honest = standin.respond

    def respond(request: Request) -> Answer:
        answer = honest(request)
        if answer.status == 308:
            answer.headers["Range"] = told.encode().decode("latin-1")
        return answer

    monkeypatch.setattr(standin, "respond", respond)
    with pytest.raises(BackendError):
        backend.put("d/a", bytes(1000))
    standin.wrong.clear()
    assert standin.objects() == {}


@pytest.mark.parametrize("data", [b"", b"\n", b"\r\n--==\r\n", b"From \n.\n", bytes(range(256)) * 3])
def test_any_bytes(backend: GoogleDriveBackend, standin: GoogleDriveStandin, data: bytes) -> None:
    backend.put("d/a", data)
    assert backend.get("d/a", max_bytes=9999) == data
    assert standin.objects() == {"d/a": data}


# --- searches that are late, and twins


def test_what_was_stored_here_is_read_before_a_search_shows_it(
    opened: Opened, backend: GoogleDriveBackend, standin: GoogleDriveStandin
) -> None:
    standin.faults.late = 1
    backend.put("d/a", b"0123")
    assert backend.get("d/a", max_bytes=9) == b"0123"
    assert opened(create_root=False).stat("d/a") == 4, "nor does a later process search for it"


def test_elsewhere_it_is_found_later(
    backend: GoogleDriveBackend, opened: Opened, standin: GoogleDriveStandin, monkeypatch: pytest.MonkeyPatch,
    tmp_path: object,
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/elsewhere")
    other = opened(create_root=False)
    backend.put("d/a", b"0123")
    standin.faults.late = 1
    with pytest.raises(NotFoundError):
        other.get("d/a", max_bytes=9)
    standin.faults.late = 0
    assert other.get("d/a", max_bytes=9) == b"0123"


def test_of_twins_all_read_the_oldest_and_a_delete_takes_both(
    backend: GoogleDriveBackend, standin: GoogleDriveStandin
) -> None:
    root, folders = root_of(standin), {"1": "d"}
    standin.add("d/a", b"old", root, folders)
    standin.add("d/a", b"new", root, folders)
    assert backend.get("d/a", max_bytes=9) == b"old"
    assert backend.list("d") == (Listed("a", 3),)
    backend.delete("d/a")
    assert not standin.objects()


def test_of_two_creates_at_once_one_gives_way(backend: GoogleDriveBackend, standin: GoogleDriveStandin) -> None:
    def another() -> None:
        standin.switches.between = None
        standin.add("d/a", b"theirs", root_of(standin), {"1": "d"})

    standin.switches.between = another
    assert not backend.create("d/a", b"ours")
    assert standin.objects() == {"d/a": b"theirs"}
    assert backend.get("d/a", max_bytes=9) == b"theirs"


def test_twins_of_the_folder_are_one_folder_for_all(
    opened: Opened, standin: GoogleDriveStandin, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    first = opened("/ws")
    standin.files["1idtwin"] = type(next(iter(standin.files.values())))(
        "1idtwin", "ws", FOLDER, [*next(f for f in standin.files.values() if f.name == "ws").parents], b"", 999, 0, {}
    )
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/elsewhere")
    assert opened("/ws").identity() == first.identity()


def test_what_lies_in_the_bin_is_not_there(filled: GoogleDriveBackend, standin: GoogleDriveStandin) -> None:
    next(file for file in standin.files.values() if file.name == "d/a").trashed = True
    with pytest.raises(NotFoundError):
        filled.stat("d/a")
    assert filled.list("d") == ()
    assert filled.create("d/a", b"x")


def test_a_folder_that_is_gone_is_no_empty_folder(
    filled: GoogleDriveBackend, standin: GoogleDriveStandin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasync.backends._shared.kept_root.SEEN_S", -1.0)
    standin.files[root_of(standin)].trashed = True
    for call in (CALLS["stat"], CALLS["list"], CALLS["inventory"]):
        with pytest.raises(UnreachableError, match="no folder"):
            call(filled)


# --- the feed


def test_the_feed_tells_what_another_device_did(filled: GoogleDriveBackend, standin: GoogleDriveStandin) -> None:
    page = filled.inventory("d", "")
    assert [item.name for item in page.items] == ["a"]
    standin.add("d/b", b"by another", root_of(standin), {"1": "d"})
    del standin.files[next(file.id for file in standin.files.values() if file.name == "d/a")]
    standin.changes.append((9999, next(i for n, i in standin.changes if standin.files.get(i) is None)))
    news = filled.inventory("d", page.cursor)
    assert {(item.name, item.size) for item in news.items} == {("a", None), ("b", 10)}
    assert not filled.inventory("d", news.cursor).items


def test_a_twin_that_goes_is_no_loss(filled: GoogleDriveBackend, standin: GoogleDriveStandin) -> None:
    twin = standin.add("d/a", b"0123", root_of(standin), {"1": "d"})
    page = filled.inventory("d", "")
    del standin.files[twin.id]
    standin.changes.append((9999, twin.id))
    assert Item("a", None) not in filled.inventory("d", page.cursor).items


def test_pages(filled: GoogleDriveBackend, standin: GoogleDriveStandin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standin, "page_most", 2)
    for n in range(5):
        filled.put(f"d/{n}", b"")
    page, names = filled.inventory("d", ""), set[str]()
    while True:
        names |= {item.name for item in page.items}
        if not page.more:
            break
        page = filled.inventory("d", page.cursor)
    assert names == {"a", *"01234"}
    assert len(filled.list("d")) == 6


@pytest.mark.parametrize("cursor", ["feed other 1", "list", "x y z", "feed"])
def test_a_cursor_of_another_life_of_the_ids_begins_anew(filled: GoogleDriveBackend, cursor: str) -> None:
    with pytest.raises(NotFoundError, match="too old"):
        filled.inventory("d", cursor)


def test_a_feed_that_google_has_ended_begins_anew(filled: GoogleDriveBackend, standin: GoogleDriveStandin) -> None:
    cursor = filled.inventory("d", "").cursor
    standin.faults.ends_feeds = True
    with pytest.raises(NotFoundError):
        filled.inventory("d", cursor)


# --- errors


@pytest.mark.few
@each
@pytest.mark.parametrize(("status", "said", "after_s"), [(403, None, 1.0), (429, "7", 7.0), (503, "9", 9.0)])
def test_google_asks_for_fewer_requests(
    filled: GoogleDriveBackend, standin: GoogleDriveStandin, call: Callable[[GoogleDriveBackend], object],
    status: int, said: str | None, after_s: float,
) -> None:  # fmt: skip
    standin.switches.refused = [(status, said)]
    with pytest.raises(BackendError) as caught:
        call(filled)
    assert caught.value.retry_after_s == after_s


@pytest.mark.parametrize("name", [name for name in CALLS if not name.startswith("get")])
def test_an_answer_that_cannot_be_read(filled: GoogleDriveBackend, standin: GoogleDriveStandin, name: str) -> None:
    standin.switches.torn = 1
    if name == "delete":
        standin.switches.only = "/files"
    with pytest.raises(UnreachableError, match="not Google Drive"):
        CALLS[name](filled)


@pytest.mark.parametrize(
    ("status", "reason", "kind", "words"),
    [
        (403, "storageQuotaExceeded", FullError, "no space left"),
        (403, "numChildrenInNonRootLimitExceeded", FullError, "500,000"),
        (403, "accessNotConfigured", RefusedError, "may not use"),
        (403, "insufficientPermissions", RefusedError, "permission"),
        (403, "domainPolicy", RefusedError, "administrator"),
        (403, "somethingNew", RefusedError, "somethingNew"),
        (400, "badRequest", RefusedError, "badRequest"),
        (404, "notFound", UnreachableError, "went away"),
    ],
)
def test_reasons(
    filled: GoogleDriveBackend, standin: GoogleDriveStandin, status: int, reason: str, kind: type, words: str
) -> None:
    def refuse() -> None:
        standin.faults.reason = status, reason

    filled.stat("d/a")
    look = filled._files.look
    filled._files.look = lambda attempt, path: (look(attempt, path), refuse())[0]  # type: ignore[method-assign]
    with pytest.raises(kind, match=words) as caught:
        filled.put("d/a", b"xyz")
    assert "ya29" not in str(caught.value)


def test_a_right_that_is_missing_is_told_with_the_command_for_this_account(
    standin: GoogleDriveStandin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    standin.link(monkeypatch, tmp_path / "config", "work")
    work = open_backend(parse_url("gdrive:/ws?account=work"), create_root=True)
    standin.faults.reason = 403, "insufficientPermissions"
    with pytest.raises(RefusedError) as caught:
        work.put("d/a", b"xyz")
    assert caught.value.next_step == "Run: metasync auth gdrive --account work, and leave all boxes ticked."


# --- what is told of files


def test_a_digest_that_is_not_that_of_what_was_sent(
    backend: GoogleDriveBackend, standin: GoogleDriveStandin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servers.gdrive_standin.hashlib.sha256", lambda data: hashlib.new("sha256", data + b"!"))
    monkeypatch.setattr("metasync.backends.gdrive.files.hashlib.sha256", lambda data: hashlib.new("sha256", data))
    monkeypatch.setattr("servers.gdrive_standin.GoogleDriveStandin._told", _lying(standin))
    with pytest.raises(BackendError, match="other bytes"):
        backend.put("d/a", b"0123")


def _lying(standin: GoogleDriveStandin) -> Callable[..., dict[str, object]]:
    told = type(standin)._told

    def lied(self: GoogleDriveStandin, file: object) -> dict[str, object]:
        out = told(self, file)  # type: ignore[arg-type]
        return {**out, "sha256Checksum": "0" * 64} if "size" in out else out

    return lied


def test_digests(filled: GoogleDriveBackend, standin: GoogleDriveStandin) -> None:
    assert filled.digest("d/a") == Digest(4, hashlib.sha256(b"0123").digest())
    standin.faults.no_hash = True
    assert filled.digest("d/a") == Digest(4, None)


def test_space(filled: GoogleDriveBackend, standin: GoogleDriveStandin) -> None:
    assert filled.space() == Space((15 << 30) - 4, 15 << 30)
    standin.faults.unlimited = True
    assert filled.space() == Space(None, None)


def test_a_range_that_is_not_heeded(filled: GoogleDriveBackend, standin: GoogleDriveStandin) -> None:
    standin.faults.range_whole = True
    with pytest.raises(MetaSyncError):
        filled.get("d/a", offset=1, length=2, max_bytes=9)


def test_a_list_that_has_no_end_is_told(filled: GoogleDriveBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasync.backends._shared.by_id.PAGES_MAX", 3)
    monkeypatch.setattr(type(filled._files), "_asked", lambda *_: ([], "more"))
    with pytest.raises(BackendError, match="no end"):
        filled._files._search("cannot look", "d/a")


def test_more_than_was_expected(filled: GoogleDriveBackend) -> None:
    with pytest.raises(RefusedError):
        filled.get("d/a", max_bytes=3)


# --- URLs and ids


@pytest.mark.parametrize(
    "text", ["gdrive:", "gdrive:/", "gdrive:folder", "gdrive://host/folder", "gdrive:/a//b", "gdrive:/a'b"]
)
def test_urls_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_url(text)


def test_its_server_is_google() -> None:
    url = parse_url("gdrive:/a folder/b?account=work&capacity=15GiB")
    assert server_of(url) == "gdrive www.googleapis.com"
    assert parse_url(url.location).location == url.location == "gdrive:/a%20folder/b?account=work"


def test_without_a_login(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", f"{tmp_path}")
    with pytest.raises(RefusedError, match="gdrive"):
        open_backend(parse_url("gdrive:/a"))


def test_ids_are_a_hint_that_may_be_lost_or_damaged(filled: GoogleDriveBackend, opened: Opened) -> None:
    path = filled._files.ids._path
    for damage in (b"", b"no database at all" * 99):
        filled.close()
        for one in path.parent.iterdir():
            one.write_bytes(damage)
        filled = opened(create_root=False)
        assert filled.get("d/a", max_bytes=9) == b"0123"
        assert filled.get("d/a", max_bytes=9) == b"0123"


def test_an_id_of_another_object_is_found_out(filled: GoogleDriveBackend) -> None:
    filled.put("d/b", b"other")
    files = filled._files
    files.ids.note([("d/a", str(files.ids.get("d/b")))])
    assert filled.stat("d/a") == 4
    assert filled.get("d/a", max_bytes=9) == b"0123", "and the id is not taken any more"


@pytest.mark.parametrize("twins", [("1", "2"), ("2", "1")])
def test_of_ids_of_one_path_the_last_counts(tmp_path: Path, twins: tuple[str, str]) -> None:
    ids = NativeIds(tmp_path / "ids.db")
    ids.note([("d/a", one) for one in twins])
    assert ids.get("d/a") == twins[1]
    assert [ids.path_of(one) for one in twins] == ["d/a", "d/a"], "feeds tell what is gone by its id"
    ids.close()


def test_a_younger_twin_is_read_until_a_list_shows_both(
    backend: GoogleDriveBackend, standin: GoogleDriveStandin
) -> None:
    root, folders = root_of(standin), {"1": "d"}
    standin.add("d/a", b"old", root, folders)
    younger = standin.add("d/a", b"new", root, folders)
    backend._files.ids.note([("d/a", younger.id)])  # as a search notes it that does not see the older one yet
    assert backend.get("d/a", max_bytes=9) == b"new"
    backend.list("d")
    assert backend.get("d/a", max_bytes=9) == b"old"


def test_a_delete_by_an_id_of_another_object_leaves_that_alone(
    filled: GoogleDriveBackend, standin: GoogleDriveStandin
) -> None:
    filled.put("d/b", b"other")
    files = filled._files
    files.ids.note([("d/a", str(files.ids.get("d/b")))])
    filled.delete("d/a")
    assert standin.objects() == {"d/b": b"other"}


def test_too_many_ids(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    ids = NativeIds(Path(f"{tmp_path}/ids.db"))
    ids.note((f"{n}", f"id{n}") for n in range(9))
    mark = ids.mark
    ids.close()
    monkeypatch.setattr("metasync.backends._shared.native_ids.ROWS_MAX", 8)
    assert ids.get("1") is None
    assert ids.mark != mark, "what was told by them cannot be gone on with"


def test_where_no_file_can_be_kept_the_process_remembers(tmp_path: object) -> None:
    from pathlib import Path

    Path(f"{tmp_path}/file").write_text("")
    ids = NativeIds(Path(f"{tmp_path}/file/ids.db"))
    ids.note([("a", "1")])
    assert (ids.get("a"), ids.path_of("1")) == ("1", "a")
    ids.forget("a")
    assert ids.get("a") is None
