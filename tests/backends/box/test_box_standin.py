"""The stand-in for Box by Box's own library, over a session of ours: what the backend's tests rest on."""

from __future__ import annotations

import base64
import hashlib
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from box_sdk_gen import BoxAPIError, BoxClient, BoxDeveloperTokenAuth
from box_sdk_gen.managers.events import GetEventsStreamType
from box_sdk_gen.managers.folders import CreateFolderParent
from box_sdk_gen.managers.uploads import (
    PreflightFileUploadCheckParent,
    UploadFileAttributes,
    UploadFileAttributesParentField,
    UploadFileVersionAttributes,
)
from box_sdk_gen.networking.box_network_client import BoxNetworkClient
from box_sdk_gen.networking.network import NetworkSession
from box_sdk_gen.networking.retries import BoxRetryStrategy
from http_kit import Answer
from servers.box_description import Described
from servers.box_standin import API, ROOT, UPLOAD, BoxStandin
from servers.standin import Request, json_answer, running

from metasync.backends._shared.logins import open_login
from metasync.backends._shared.session_requests import BoundedSession
from metasync.errors import RefusedError

FIELDS = ["id", "name", "size", "sha1", "etag", "parent"]


@pytest.fixture
def standin() -> Iterator[BoxStandin]:
    with running(BoxStandin()) as made:
        assert isinstance(made, BoxStandin)
        yield made


@pytest.fixture
def session(standin: BoxStandin) -> Iterator[BoundedSession]:
    made = BoundedSession(None, provider="Box", stand_in=standin.url, steps={"network": "Look."})
    yield made
    made.close()


@pytest.fixture
def box(standin: BoxStandin, session: BoundedSession) -> BoxClient:
    return library(standin.token, session)


def library(token: str, session: BoundedSession) -> BoxClient:
    network = NetworkSession(network_client=BoxNetworkClient(session), retry_strategy=BoxRetryStrategy(max_attempts=1))
    return BoxClient(BoxDeveloperTokenAuth(token), network_session=network)


def upload(box: BoxClient, name: str, data: bytes, parent: str = ROOT, sha1: str | None = None) -> Any:
    attributes = UploadFileAttributes(name=name, parent=UploadFileAttributesParentField(id=parent))
    digest = hashlib.sha1(data).hexdigest() if sha1 is None else sha1
    told = box.uploads.upload_file(attributes, io.BytesIO(data), content_md_5=digest, fields=FIELDS)
    assert told.entries is not None
    return told.entries[0]


def look(box: BoxClient, name: str, size: int = 0) -> Any:
    parent = PreflightFileUploadCheckParent(id=ROOT)
    return box.uploads.preflight_file_upload_check(name=name, size=size, parent=parent)


def refused(call: Any, *args: Any, **named: Any) -> Any:
    with pytest.raises(BoxAPIError) as caught:
        call(*args, **named)
    return caught.value.response_info


def events(box: BoxClient, position: str, limit: int = 100) -> Any:
    return box.events.get_events(stream_type=GetEventsStreamType.CHANGES, stream_position=position, limit=limit)


def test_a_file_comes_and_goes(standin: BoxStandin, box: BoxClient, session: BoundedSession) -> None:
    file = upload(box, "a.bin", b"one\r\n--two\0")
    assert (file.size, file.sha_1, file.parent.id) == (11, hashlib.sha1(b"one\r\n--two\0").hexdigest(), ROOT)
    assert standin.objects() == {"/a.bin": b"one\r\n--two\0"}
    url = box.downloads.get_download_file_url(file.id)
    assert session.get(url).content == b"one\r\n--two\0"
    part = session.get(url, headers={"Range": "bytes=4-6"})
    assert (part.status_code, part.content) == (206, b"\n--")
    assert session.get(url, headers={"Range": "bytes=11-"}).status_code == 416
    new = box.uploads.upload_file_version(file.id, UploadFileVersionAttributes(name="a.bin"), io.BytesIO(b"new"))
    assert new.entries is not None and (new.entries[0].id, new.entries[0].etag) == (file.id, "1")
    assert box.files.get_file_by_id(file.id, fields=["size"]).size == 3
    info = refused(box.files.delete_file_by_id, file.id, if_match="0")
    assert info.status_code == 412
    box.files.delete_file_by_id(file.id)
    for call in (box.files.get_file_by_id, box.files.delete_file_by_id, box.downloads.get_download_file_url):
        info = refused(call, file.id)
        assert (info.status_code, info.code) == (404, "trashed")
    box.trashed_files.delete_trashed_file_by_id(file.id)
    assert refused(box.files.get_file_by_id, file.id).code == "not_found"
    info = refused(
        box.uploads.upload_file_version, file.id, UploadFileVersionAttributes(name="a.bin"), io.BytesIO(b"x")
    )
    assert info.status_code == 404
    assert refused(upload, box, "b", b"right", sha1="0" * 40).status_code == 400


def test_a_name_is_one_things(standin: BoxStandin, box: BoxClient) -> None:
    assert look(box, "a").upload_url.startswith(f"https://{UPLOAD}/api/")
    file = upload(box, "a", b"first")
    told = refused(upload, box, "A", b"second")
    assert (told.status_code, told.code) == (409, "item_name_in_use")
    assert told.context_info["conflicts"]["id"] == file.id
    standin.faults.conflicts = "list"
    for told in (refused(upload, box, "a", b"second"), refused(look, box, "a")):
        (conflict,) = told.context_info["conflicts"]
        assert (conflict["type"], conflict["id"], conflict["sha1"]) == ("file", file.id, file.sha_1)
    folder = box.folders.create_folder("f", CreateFolderParent(id=ROOT), fields=["id"])
    standin.faults.conflicts = "object"
    told = refused(box.folders.create_folder, "F", CreateFolderParent(id=ROOT))
    assert [one["id"] for one in told.context_info["conflicts"]] == [folder.id]
    standin.faults.code = "name_temporarily_reserved"
    assert refused(upload, box, "b", b"b").code == "name_temporarily_reserved"
    upload(box, "b", b"b")
    assert refused(upload, box, "c", b"c", parent="123").status_code == 404
    assert refused(box.folders.create_folder, "a/b", CreateFolderParent(id=ROOT)).code == "item_name_invalid"


@pytest.mark.parametrize("racy", [False, True])
def test_of_many_at_once_one_gets_the_name(standin: BoxStandin, session: BoundedSession, racy: bool) -> None:
    together = threading.Barrier(4)
    standin.faults.racy = racy
    standin.switches.between = lambda: together.wait(5) and None

    def create(n: int) -> bool:
        try:
            upload(library(standin.token, session), "vote", b"%d" % n)
        except BoxAPIError as error:
            assert error.response_info.code == "item_name_in_use"
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(create, range(4))) == (4 if racy else 1)


def test_lists(standin: BoxStandin, box: BoxClient) -> None:
    folder = box.folders.create_folder("f", CreateFolderParent(id=ROOT)).id
    names = [f"n{n}" for n in range(7)]
    for name in names:
        standin.add(name, b"x", folder)

    def listed() -> list[str]:
        out: list[str] = []
        marker = None
        while True:
            page = box.folders.get_folder_items(folder, fields=FIELDS, usemarker=True, marker=marker, limit=3)
            out += [str(one.name) for one in page.entries or ()]
            marker = page.next_marker
            if not marker:
                return out

    assert listed() == names
    assert [one.name for one in box.folders.get_folder_items(folder).entries or ()] == names
    (above,) = box.folders.get_folder_items(ROOT, fields=FIELDS).entries or ()
    assert (above.id, above.name) == (folder, "f")
    assert box.folders.get_folder_by_id(folder, fields=["name"]).name == "f"
    standin.switches.hidden.add("n1")
    standin.faults.late = 2
    assert listed() == ["n0", "n2", "n3", "n4"]
    standin.switches.doubled, standin.faults.late = True, 0
    assert sorted(listed()) == sorted(2 * [name for name in names if name != "n1"])
    standin.switches.doubled = False
    standin.switches.hidden.clear()
    standin.freeze()
    standin.add("later", b"x", folder)
    assert listed() == names
    standin.switches.stale = False
    assert listed() == [*names, "later"]
    assert refused(box.folders.delete_folder_by_id, folder).code == "folder_not_empty"
    box.folders.delete_folder_by_id(folder, recursive=True)
    assert refused(box.folders.get_folder_items, folder).code == "trashed"
    assert standin.objects() == {}


def test_the_feed(standin: BoxStandin, box: BoxClient, session: BoundedSession) -> None:
    begin = str(events(box, "now").next_stream_position)
    assert events(box, begin).entries == []
    file = upload(box, "a", b"abc")
    box.files.delete_file_by_id(file.id)
    told = events(box, begin)
    kinds = [(one.event_type.value, one.source.id, one.source.name, one.source.parent.id) for one in told.entries]
    assert kinds == [("ITEM_UPLOAD", file.id, "a", ROOT), ("ITEM_TRASH", file.id, "a", ROOT)]
    assert (told.entries[0].source.size, told.entries[0].source.sha_1) == (3, hashlib.sha1(b"abc").hexdigest())
    assert int(str(told.next_stream_position)) == int(begin) + 2
    standin.faults.repeats = True
    again = events(box, str(told.next_stream_position))
    assert [one.event_id for one in again.entries] == [one.event_id for one in told.entries]
    standin.faults.ends_feeds = True
    assert refused(events, box, begin).status_code == 400
    (server,) = box.events.get_events_with_long_polling().entries or ()
    newest = str(told.next_stream_position)
    assert server.type == "realtime_server"
    assert session.get(f"{server.url}&stream_position={newest}").json()["message"] == "reconnect"
    assert session.get(f"{server.url}&stream_position={begin}").json()["message"] == "new_change"
    standin.faults.poll_most_s = 30
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(session.get, f"{server.url}&stream_position={newest}")
        upload(box, "b", b"b")
        assert waiting.result(20).json()["message"] == "new_change"


def test_an_upload_in_parts(standin: BoxStandin, box: BoxClient) -> None:
    standin.session_bytes_min, standin.part_bytes = 20, 8
    data = bytes(range(21))
    file = box.chunked_uploads.upload_big_file(io.BytesIO(data), "big", len(data), ROOT)
    assert file.sha_1 == hashlib.sha1(data).hexdigest()
    assert standin.objects() == {"/big": data}
    told = refused(box.chunked_uploads.create_file_upload_session, ROOT, 21, "BIG")
    assert (told.status_code, told.code) == (409, "item_name_in_use")
    assert refused(box.chunked_uploads.create_file_upload_session, ROOT, 19, "small").code == "file_size_too_small"
    session = box.chunked_uploads.create_file_upload_session_for_existing_file(file.id, 20)
    put = box.chunked_uploads.upload_file_part
    assert refused(put, session.id, io.BytesIO(b"x" * 8), digest(b"y" * 8), "bytes 0-7/20").status_code == 412
    assert refused(put, session.id, io.BytesIO(b"x" * 7), digest(b"x" * 7), "bytes 0-6/20").status_code == 416
    pieces = [b"x" * 8, b"x" * 8, b"x" * 4]
    parts = [
        put(session.id, io.BytesIO(piece), digest(piece), f"bytes {8 * n}-{8 * n + len(piece) - 1}/20").part
        for n, piece in enumerate(pieces)
    ]
    commit = box.chunked_uploads.create_file_upload_session_commit
    assert refused(commit, session.id, parts, digest(b"other")).status_code == 412
    assert refused(commit, session.id, parts[:2], digest(b"x" * 20)).status_code == 400
    standin.faults.unprocessed = 1
    assert commit(session.id, parts, digest(b"x" * 20)) is None, "202"
    assert commit(session.id, parts, digest(b"x" * 20)).entries[0].id == file.id
    assert standin.objects() == {"/big": b"x" * 20}


def digest(data: bytes) -> str:
    return "sha=" + base64.b64encode(hashlib.sha1(data).digest()).decode()


def test_space_and_its_end(standin: BoxStandin, box: BoxClient) -> None:
    upload(box, "a", b"abc")
    me = box.users.get_user_me(fields=["space_amount", "space_used", "max_upload_size"])
    assert (me.space_amount, me.space_used, me.max_upload_size) == (10 << 30, 3, 5 << 30)
    standin.switches.full = True
    for told in (refused(upload, box, "b", b"b"), refused(look, box, "b", size=1)):
        assert (told.status_code, told.code) == (403, "storage_limit_exceeded")


def test_what_goes_wrong(standin: BoxStandin, box: BoxClient, session: BoundedSession) -> None:
    file = upload(box, "a", b"abc")
    standin.switches.refused = [(429, "7")]
    assert refused(box.files.get_file_by_id, file.id).headers["retry-after"] == "7"
    standin.faults.reason = (403, "insufficient_scope")
    assert refused(box.files.get_file_by_id, file.id).code == "insufficient_scope"
    standin.faults.lies_sha1.add("a")
    assert box.files.get_file_by_id(file.id).sha_1 == "0" * 40
    standin.faults.unready = 1
    with session.bounds("x") as bounds, pytest.raises(Exception, match="No location"):
        box.downloads.get_download_file_url(file.id)
    assert (bounds.status, bounds.retry_after_s) == (202, 1)
    url = box.downloads.get_download_file_url(file.id)
    standin.faults.range_whole = True
    assert session.get(url, headers={"Range": "bytes=1-1"}).content == b"abc"
    standin.faults.dead_links = True
    assert session.get(url).status_code == 404
    standin.switches.lost = 1
    with pytest.raises(Exception, match="Box"):
        upload(box, "b", b"b")
    assert "/b" in standin.objects()
    standin.switches.ended.add(standin.token)
    assert refused(box.files.get_file_by_id, file.id).status_code == 401


def test_a_login_is_renewed_once_by_each_refresh_token(
    standin: BoxStandin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    standin.link(monkeypatch, tmp_path / "config")
    login, first = open_login("box", None), standin.token
    standin.switches.ended.add(first)
    assert login.renewed(first) == standin.token != first
    second = standin.token
    assert login.renewed(second) == standin.token != second
    body = b"client_id=app&client_secret=secret&grant_type=refresh_token&refresh_token=refresh-of-the-tests-0"
    assert standin.respond(Request("POST", "", "/oauth2/token", "/oauth2/token", {}, {}, body)).status == 400
    standin.switches.revoked.add("refresh-of-the-tests-2")
    with pytest.raises(RefusedError):
        login.renewed(standin.token)


def asked(standin: BoxStandin, method: str, path: str, query: dict[str, str], **headers: str) -> list[str]:
    """What the stand-in finds wrong with a request."""
    told = {"authorization": f"Bearer {standin.token}", **headers}
    standin.respond(Request(method, API, path, path, query, told, b""))
    found, standin.wrong = standin.wrong, []
    return found


def test_what_is_not_described_is_wrong() -> None:
    standin = BoxStandin()
    at = f"/2.0/folders/{ROOT}/items"
    assert asked(standin, "GET", at, {"usemarker": "true", "limit": "1000", "fields": "id,sha1,size"}) == []
    for query in ({"limit": "1001"}, {"usemarker": "yes"}, {"page": "1"}, {"fields": "sha256"}, {"sort": "age"}):
        assert asked(standin, "GET", at, query)
    assert asked(standin, "PATCH", at, {})
    assert asked(standin, "POST", "/2.0/files/content", {}), "is asked of another host"
    assert asked(standin, "POST", "/2.0/folders", {}, **{"content-type": "text/plain"})
    shown = Request("GET", "dl.boxcloud.com", "/d/1/x/download", "", {}, {"authorization": "Bearer x"}, b"")
    assert standin.respond(shown).status == 404
    assert standin.wrong == ["dl.boxcloud.com was shown a token"]


@pytest.mark.parametrize(
    "answer",
    [
        json_answer({"id": "1"}),
        json_answer({"id": 1, "type": "file"}),
        json_answer({"id": "1", "type": "folder"}),
        json_answer({"id": "1", "type": "file", "sha256": ""}),
        json_answer({"id": "1", "type": "file", "parent": {"type": "folder"}}),
        json_answer({"id": "1", "type": "file", "size": None}),
        json_answer({"type": "error", "status": 404, "code": "no_such_code"}, 404),
        json_answer({"id": "1", "type": "file"}, 201),
        Answer(200),
    ],
)
def test_an_answer_that_is_not_described_is_wrong(answer: Answer) -> None:
    described = Described()
    operation = next(one for one in described.operations if one.name == "get_files_id")
    assert described.wrong_answer(operation, answer)
    sound = json_answer({"id": "1", "type": "file", "parent": None})
    assert described.wrong_answer(operation, sound) == []
