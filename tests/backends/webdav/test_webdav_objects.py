"""What the WebDAV backend asks of a server to write and read objects, and what it makes of odd answers."""

from __future__ import annotations

import email.utils
import time

import pytest
from dav_kit import CALLS, HTML, PAGE, WHOLE, Answer, Asked, Script, Store, multistatus

from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError

pytestmark = pytest.mark.usefixtures("login")


# Writing.


def test_requests_of_each_call(script: Script, store: Store) -> None:
    backend = script.open()
    backend.put("d/first", b"1")
    wanted = {
        "create": (["PUT", "MOVE"], lambda: backend.create("d/c", b"1")),
        "create taken": (["PUT", "MOVE", "DELETE"], lambda: backend.create("d/c", b"2")),
        "put": (["PUT", "MOVE"], lambda: backend.put("d/p", b"1")),
        "put same": (["PUT", "MOVE", "GET", "DELETE"], lambda: backend.put("d/p", b"1")),
        "put other": (["PUT", "MOVE", "GET", "MOVE"], lambda: backend.put("d/q", b"2")),
        "get": (["GET"], lambda: backend.get("d/c", max_bytes=9)),
        "stat": (["HEAD"], lambda: backend.stat("d/c")),
        "list": (["PROPFIND"], lambda: backend.list("d")),
        "delete": (["DELETE"], lambda: backend.delete("d/c")),
        "space": (["PROPFIND"], lambda: backend.space()),
    }
    backend.put("d/q", b"1")
    for name, (methods, call) in wanted.items():
        script.asked.clear()
        call()
        assert script.methods == methods, name
    assert not [path for path in store.files if ".tmp" in path]


def test_requests_on_a_server_that_writes_whole(script: Script) -> None:
    script.answer = store = Store(dav=WHOLE)
    backend = script.open()
    assert backend.create("d/a", b"1") is True
    assert script.methods == ["OPTIONS", "PUT", "MKCOL", "PUT"]
    script.asked.clear()
    assert backend.create("d/a", b"2") is False
    backend.put("d/b", b"2")
    backend.put("d/b", b"3")
    assert script.methods == ["PUT", "PUT", "PUT"]
    assert store.files == {"/dav/x/d/a": b"1", "/dav/x/d/b": b"3"}


def test_a_large_object_is_not_sent_to_a_folder_that_is_not_there(script: Script, store: Store) -> None:
    backend = script.open()
    backend.put("new/folder/a", bytes(1 << 20))
    assert script.methods == ["OPTIONS", "MKCOL", "MKCOL", "MKCOL", "PUT", "MOVE"]
    script.asked.clear()
    backend.put("new/folder/b", bytes(1 << 20))
    backend.put("at-the-top", bytes(1 << 20))
    assert script.methods == ["PUT", "MOVE"] * 2


def test_a_folder_that_somebody_removed_is_made_again(script: Script, store: Store) -> None:
    backend = script.open()
    backend.put("d/a", b"1")
    store.files.clear()
    store.folders.discard("/dav/x/d")
    backend.put("d/b", b"2")
    assert store.files == {"/dav/x/d/b": b"2"}


@pytest.mark.parametrize("status", [403, 423, 500])
def test_a_folder_that_another_makes_at_the_same_moment(script: Script, store: Store, status: int) -> None:
    def overlay(asked: Asked) -> Answer | None:
        if asked.method != "MKCOL":
            return None
        store.folders.add("/dav/x/d")
        return Answer(status)

    store.overlay = overlay
    script.open().put("d/a", b"1")
    assert store.files == {"/dav/x/d/a": b"1"}


def test_a_refused_write_leaves_no_temporary_object(script: Script, store: Store) -> None:
    store.overlay = lambda asked: Answer(507) if asked.method == "MOVE" else None
    with pytest.raises(FullError):
        script.open().put("a", b"1")
    assert store.files == {}


@pytest.mark.parametrize("method", ["PUT", "MOVE"])
def test_what_broke_off_is_removed_after_the_next_write(script: Script, store: Store, method: str) -> None:
    def overlay(asked: Asked) -> Answer | None:
        if asked.method != method:
            return None
        if method == "PUT":
            store.sound(asked)
        return Answer(103)  # taken for no answer at all

    backend = script.open()
    store.overlay = overlay
    for _ in range(2):
        with pytest.raises(UnreachableError):
            backend.put("a", b"1")
    assert len(store.files) == 2
    store.overlay = lambda _: None
    backend.put("a", b"1")
    assert store.files == {"/dav/x/a": b"1"}
    assert script.methods[-4:] == ["PUT", "MOVE", "DELETE", "DELETE"]
    backend.put("b", b"1")
    assert script.methods[-2:] == ["PUT", "MOVE"]


@pytest.mark.parametrize(("free", "expected"), [("0", FullError), ("70000", FullError), ("9000000", BackendError)])
@pytest.mark.parametrize("dav", ["1", WHOLE])
def test_a_500_where_there_is_no_room(script: Script, free: str, expected: type[BackendError], dav: str) -> None:
    """wsgidav says no more when the disk is full."""
    kind = "<resourcetype><collection/></resourcetype>"
    told = f"<prop>{kind}<quota-available-bytes>{free}</quota-available-bytes></prop>"
    script.answer = Store(
        lambda asked: {
            "PUT": Answer(500),
            "PROPFIND": multistatus(f"<response><href>/dav/x/</href><propstat>{told}</propstat></response>"),
        }.get(asked.method),
        dav=dav,
    )
    with pytest.raises(BackendError) as caught:
        script.open().put("a", bytes(20_000))
    assert type(caught.value) is expected


def test_a_condition_that_nobody_set_is_no_success(script: Script) -> None:
    """412 is an answer to a create; a put that is told so has stored nothing."""
    for dav in ("1", WHOLE):
        script.answer = Store(lambda asked: Answer(412) if asked.method == "PUT" else None, dav=dav)
        with pytest.raises(BackendError):
            script.open().put("a", b"1")


@pytest.mark.parametrize("status", [400, 403, 404, 409, 500])
def test_a_move_that_fails_is_no_success(script: Script, store: Store, status: int) -> None:
    store.overlay = lambda asked: Answer(status) if asked.method == "MOVE" else None
    for call in (CALLS["create"], CALLS["put"]):
        with pytest.raises(BackendError):
            call(script.open())


def test_a_server_that_does_not_know_its_own_name(script: Script, store: Store) -> None:
    """As behind a proxy that ends TLS: it wants a path to move to."""
    store.overlay = lambda asked: (
        Answer(502) if asked.method == "MOVE" and "://" in asked.headers["Destination"] else None
    )
    moved: list[str] = []

    def sound(asked: Asked) -> Answer:
        if asked.method == "MOVE":
            moved.append(asked.headers["Destination"])
            return Answer(201)
        return Store.sound(store, asked)

    store.sound = sound  # type: ignore[method-assign]
    script.open().put("a", b"1")
    assert moved == ["/dav/x/a"]


def test_a_create_whose_answer_was_lost_finds_its_name_taken(script: Script, store: Store) -> None:
    def overlay(asked: Asked) -> Answer | None:
        if asked.method != "MOVE":
            return None
        store.overlay = lambda _: None
        store.sound(asked)
        return Answer(201, b"", length=-1, unsized=True)  # never ends as promised; the status was heard

    store.overlay = overlay
    backend = script.open()
    assert backend.create("a", b"1") is True
    assert backend.create("a", b"1") is False


def test_delete_never_removes_a_folder(script: Script, store: Store) -> None:
    script.open().delete("d/a")
    assert script.asked[0].headers["Depth"] == "0"
    assert script.asked[0].headers["X-NC-Skip-Trashbin"] == "true"


def test_sweep(script: Script, store: Store) -> None:
    backend = script.open()
    for path in ("s/keep/a", "s/temps/b", "other/c"):
        backend.put(path, b"1")
    for path in ("s/keep/.tmp-0a", "s/temps/.tmp-1b", "s/.tmp-2c", "other/.tmp-3d"):
        store.files[f"/dav/x/{path}"] = b"half"
    backend.delete("s/temps/b")
    removed: list[str] = []

    def overlay(asked: Asked) -> Answer | None:
        if asked.method == "DELETE" and asked.path.endswith("/"):
            removed.append(asked.path)
            store.folders.discard(asked.path.rstrip("/"))
            return Answer(204)
        return None

    store.overlay = overlay
    backend.sweep("s")
    assert removed == ["/dav/x/s/temps/"]
    assert set(store.files) == {"/dav/x/s/keep/a", "/dav/x/other/c", "/dav/x/other/.tmp-3d"}
    backend.delete("s/keep/a")
    backend.sweep("s")
    assert removed[1:] == ["/dav/x/s/keep/", "/dav/x/s/"]
    backend.sweep("nothing/here")


def test_init_makes_the_folder(script: Script) -> None:
    from metasync.backends.registry import open_backend, parse_url

    script.answer = store = Store()
    store.folders = {"/dav"}
    open_backend(parse_url(script.url("/dav/x/y z/w")), create_root=True).close()
    assert {"/dav/x", "/dav/x/y%20z", "/dav/x/y%20z/w"} <= store.folders
    script.asked.clear()
    open_backend(parse_url(script.url("/dav/x/y z/w")), create_root=True).close()
    assert script.methods == ["PROPFIND"]
    script.answer = lambda _: Answer(405)
    with pytest.raises(RefusedError, match="no WebDAV folder"):
        open_backend(parse_url(script.url("/elsewhere")), create_root=True)
    script.answer = lambda _: Answer(404)
    with pytest.raises(BackendError):
        open_backend(parse_url(script.url("/elsewhere/deeper")), create_root=True)


# Reading.


def test_a_server_that_ignores_ranges(script: Script) -> None:
    data = bytes(range(200))
    for extra in ({}, {"chunked": True}):
        script.answer = lambda _, extra=extra: Answer(200, data, **extra)
        backend = script.open()
        for offset, length in ((0, None), (0, 10), (10, 20), (190, 50), (199, 1), (200, 4), (900, 9), (7, None)):
            assert backend.get("a", offset=offset, length=length, max_bytes=200) == data[offset:][:length]
        for part in ({"max_bytes": 199}, {"offset": 10, "max_bytes": 189}, {"length": 9, "max_bytes": 8}):
            with pytest.raises(RefusedError):
                backend.get("a", **part)


def test_an_endless_answer_is_cut(script: Script) -> None:
    script.answer = lambda _: Answer(200, bytes(8 << 20), chunked=True)
    backend = script.open()
    with pytest.raises(RefusedError, match="at most 9"):
        backend.get("a", max_bytes=9)
    assert backend.get("a", offset=3, length=4, max_bytes=9) == bytes(4)


def test_an_object_too_large_is_refused_by_its_head(script: Script) -> None:
    script.answer = lambda _: Answer(200, b"", length=1 << 40)
    with pytest.raises(RefusedError, match="at most 9"):  # and no word of the body, which is cut short
        script.open().get("a", max_bytes=9)


def test_an_answer_cut_short(script: Script) -> None:
    script.answer = lambda _: Answer(200, b"half", length=8)
    with pytest.raises(UnreachableError):
        script.open().get("a", max_bytes=9)


def test_an_answer_that_does_not_say_where_it_ends(script: Script) -> None:
    script.answer = lambda _: Answer(200, b"half", unsized=True)
    with pytest.raises(BackendError, match="where it ends"):
        script.open().get("a", max_bytes=9)


def test_an_answer_that_came_compressed(script: Script) -> None:
    script.answer = lambda _: Answer(200, b"half", {"Content-Encoding": "gzip"})
    with pytest.raises(BackendError, match="compressed"):
        script.open().get("a", max_bytes=9)


@pytest.mark.parametrize("claim", ["bytes 0-8/9", "bytes 5-14/1000", "bytes 3-12/*", "", "bytes 3-5/5"])
def test_another_part_than_was_asked_for(script: Script, claim: str) -> None:
    script.answer = lambda _: Answer(206, b"123456789", {"Content-Range": claim})
    with pytest.raises(BackendError):
        script.open().get("a", offset=3, length=9, max_bytes=9)


def test_a_size_that_a_head_does_not_tell(script: Script, store: Store) -> None:
    """Apache leaves the length of an empty object out."""
    backend = script.open()
    backend.put("a", b"")
    store.overlay = lambda asked: Answer(200, chunked=True) if asked.method == "HEAD" else None
    assert backend.stat("a") == 0


def test_a_folder_is_no_object(script: Script, store: Store) -> None:
    store.overlay = lambda asked: Answer(200, PAGE, HTML) if asked.method in {"GET", "HEAD"} else None
    for call in (CALLS["get"], CALLS["stat"]):
        with pytest.raises(RefusedError, match="no file"):
            call(script.open())


def test_who_saw_an_object_waits_while_it_is_replaced(script: Script, store: Store) -> None:
    backend = script.open()
    backend.put("a", b"1")
    assert backend.get("a", max_bytes=1) == b"1"
    odd = [Answer(404), Answer(403), Answer(500)]
    store.overlay = lambda asked: odd.pop() if odd and asked.method in {"GET", "HEAD"} else None
    with pytest.raises(BackendError):
        script.open().get("a", max_bytes=1)  # who never saw it does not wait
    assert len(odd) == 2
    assert backend.get("a", max_bytes=1) == b"1"
    odd[:] = [Answer(404), Answer(403), Answer(500)]
    assert backend.get("a", max_bytes=1) == b"1"
    odd[:] = [Answer(404)]
    assert backend.stat("a") == 1
    del store.files["/dav/x/a"]
    with pytest.raises(NotFoundError):
        backend.get("a", max_bytes=1)
    script.asked.clear()
    with pytest.raises(NotFoundError):
        backend.get("a", max_bytes=1)
    assert script.methods == ["GET"]


def test_who_reads_again_what_has_just_changed_looks_twice(script: Script, store: Store) -> None:
    """A server that looked at the old file and opened the new one: the head of one, the beginning of the other."""
    backend = script.open()
    store.files["/dav/x/a"] = b"old"
    assert backend.get("a", max_bytes=9) == b"old"
    mixed = [Answer(200, b"new", {"ETag": '"of the old one"'})]
    store.files["/dav/x/a"] = b"newer"
    store.overlay = lambda asked: mixed.pop() if mixed and asked.method == "GET" else None
    assert backend.get("a", max_bytes=9) == b"newer"


@pytest.mark.parametrize("of_head", ['"1"', 'W/"1"', "1"])
def test_a_version_is_the_same_however_it_is_quoted(script: Script, store: Store, of_head: str) -> None:
    tags = {"GET": 'W/"1"', "HEAD": of_head}
    store.overlay = lambda asked: Answer(200, b"1", {"ETag": tags[asked.method]}) if asked.method in tags else None
    backend = script.open()
    for _ in range(2):
        assert backend.get("a", max_bytes=9) == b"1"


def test_what_has_not_changed_lately_is_read_by_one_request(script: Script, store: Store) -> None:
    old = {"Last-Modified": email.utils.formatdate(time.time() - 60, usegmt=True)}
    script.answer = lambda _: Answer(200, b"1", old)
    backend = script.open()
    for _ in range(3):
        assert backend.get("a", max_bytes=9) == b"1"
    assert script.methods == ["GET"] * 3
