"""What the SFTP backend makes of answers that OpenSSH does not give; a small server here gives them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

pytest.importorskip("paramiko")

import sftp_kit as kit
from sftp_kit import (
    CALLS,
    CLOSE,
    EXTENSIONS,
    FSTAT,
    FSYNC,
    LINK,
    LSTAT,
    OPEN,
    OPENDIR,
    POSIX_RENAME,
    READ,
    READDIR,
    REMOVE,
    RENAME,
    STAT,
    STATVFS,
    WRITE,
    Answer,
    Opened,
    Script,
    asked_for,
    attributes,
    attrs,
    data,
    names,
    room,
    sound,
    status,
    text,
)

from metasync.backends.api import Space, TellsSpace
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError

ASKED = {
    "create": LINK,
    "put": POSIX_RENAME,
    "get": OPEN,
    "get much": OPEN,
    "stat": STAT,
    "list": OPENDIR,
    "inventory": OPENDIR,
    "delete": REMOVE,
}


def says(what: int | str, answer: Answer) -> Callable[[int, bytes], Answer]:
    """A sound server but for one kind of request below the root."""

    def reply(kind: int, body: bytes) -> Answer:
        if (asked_for(kind, body) or kind) == what and (what != STAT or b"/d" in body):
            return answer
        return sound(kind, body)

    return reply


# The server's no.


@pytest.mark.few
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("code", "expected", "retryable", "said"),
    [
        (3, RefusedError, False, "permission denied"),
        (4, BackendError, True, "'failure' and no more"),
        (5, RefusedError, False, "bad message"),
        (6, UnreachableError, True, "no connection"),
        (7, UnreachableError, True, "connection lost"),
        (8, RefusedError, False, "not supported"),
        (12, RefusedError, False, "write-protected"),
        (14, FullError, False, "no space or quota is left"),
        (15, FullError, False, "no space or quota is left"),
        (99, BackendError, True, "'status 99'"),
    ],
)
def test_refusals(
    script: Script, opened: Opened, call: str, code: int, expected: type, retryable: bool, said: str
) -> None:
    backend = opened(script)
    script.answer = says(ASKED[call], status(code))
    if call == "create" and code in (3, 8):
        said = "has no hard links, or allows none"
    with pytest.raises(BackendError) as caught:
        CALLS[call](backend)
    assert type(caught.value) is expected or (call == "create" and isinstance(caught.value, expected))
    assert caught.value.retryable is retryable
    assert said in caught.value.message
    assert "d/" in caught.value.message or "in /store" in caught.value.message
    assert "hunter2" not in str(caught.value), "the server's own words are not repeated"
    script.answer = sound
    assert backend.list("") == (), "the session goes on"


@pytest.mark.parametrize("call", ["get", "get much", "stat"])
@pytest.mark.parametrize("code", [2, 10])
def test_what_is_not_there(script: Script, opened: Opened, call: str, code: int) -> None:
    backend = opened(script)
    script.answer = says(ASKED[call], status(code))
    with pytest.raises(NotFoundError, match="d/a is not in /store at 127"):
        CALLS[call](backend)


@pytest.mark.parametrize("call", CALLS)
def test_a_root_that_is_gone_is_no_empty_store(script: Script, opened: Opened, call: str) -> None:
    backend = opened(script)

    def gone(kind: int, body: bytes) -> Answer:
        return sound(kind, body) if kind == CLOSE else status(2)

    script.answer = gone
    with pytest.raises(UnreachableError, match=r"the folder /store at 127\.0\.0\.1 is not there"):
        CALLS[call](backend)


@pytest.mark.parametrize("call", [c for c in CALLS if c not in ("create", "put")])
def test_another_file_system_at_the_root(script: Script, opened: Opened, call: str) -> None:
    backend = opened(script)

    def unmounted(kind: int, body: bytes) -> Answer:
        return room(fsid=8) if asked_for(kind, body) == STATVFS else status(2)

    script.answer = unmounted
    with pytest.raises(UnreachableError, match="another file system than before"):
        CALLS[call](backend)


@pytest.mark.parametrize("call", ["create", "put"])
@pytest.mark.parametrize("where", [OPEN, WRITE, FSYNC])
@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (room(1 << 16), FullError),
        (room(files=0), FullError),
        (room(flags=1), RefusedError),
        (room(), BackendError),
    ],
)
def test_what_failure_means(
    script: Script, opened: Opened, call: str, where: int | str, told: bytes, expected: type
) -> None:
    backend = opened(script)

    def reply(kind: int, body: bytes) -> Answer:
        asked = asked_for(kind, body) or kind
        if asked == STATVFS:
            return told
        return status(4) if asked == where else sound(kind, body)

    script.answer = reply
    with pytest.raises(BackendError) as caught:
        CALLS[call](backend)
    assert type(caught.value) is expected
    if where != OPEN:
        backend.list("d")
        assert str(REMOVE) in script.asked, "the half-written file is removed"


def test_failure_of_a_link_is_a_name_that_is_taken_only_if_it_is_there(script: Script, opened: Opened) -> None:
    backend = opened(script)

    def reply(kind: int, body: bytes) -> Answer:
        if asked_for(kind, body) == LINK:
            return status(4)
        return attrs(1) if kind == LSTAT and b"new" in body else sound(kind, body)

    script.answer = reply
    assert backend.create("d/new", b"x") is False
    script.answer = says(LINK, status(11))
    with pytest.raises(BackendError):
        backend.create("d/new", b"x")


def test_nothing_is_linked_before_the_bytes_are_safe(script: Script, opened: Opened) -> None:
    backend = opened(script)
    script.asked.clear()
    assert backend.create("d/new", b"x" * 100) is True
    order = [a for a in script.asked if a not in (str(CLOSE), str(REMOVE))]
    assert order == [str(OPEN), str(WRITE), FSYNC, LINK, FSYNC]
    for what in (WRITE, FSYNC):
        script.answer = says(what, status(4))
        script.asked.clear()
        with pytest.raises(BackendError):
            backend.create("d/new", b"x")
        assert LINK not in script.asked
    script.answer = sound
    script.asked.clear()
    backend.put("d/new", b"x" * 100)
    assert [a for a in script.asked if a != str(CLOSE)] == [str(OPEN), str(WRITE), FSYNC, POSIX_RENAME, FSYNC]


# Replies that get lost, and answers that are none.


@pytest.mark.parametrize("call", CALLS)
def test_a_connection_that_breaks(script: Script, opened: Opened, call: str) -> None:
    backend = opened(script)
    script.answer = says(ASKED[call], None)
    with pytest.raises(UnreachableError, match="the connection broke") as caught:
        CALLS[call](backend)
    assert caught.value.retryable
    assert len([a for a in script.asked if a == str(ASKED[call])]) == 1 + (call == "stat"), "nothing is tried twice"
    script.answer = sound
    assert backend.list("") == (), "and the next call connects anew"


@pytest.mark.few
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x65",
        b"\x65%b",
        b"\x66%b" + struct.pack(">I", 1 << 30),
        b"\x66%b" + text(bytes(300)),
        b"\xff%b",
        b"\x67%b" + text(b"data that nobody asked for"),
        b"\x65\0\0\0\0\0\0\0\0",
        b"raw" + struct.pack(">I", 1 << 31) + bytes(64),
        b"raw<html><body>Please log in</body></html>",
    ],
)
def test_answers_that_are_none(script: Script, opened: Opened, call: str, answer: bytes) -> None:
    backend = opened(script)
    script.answer = says(ASKED[call], answer)
    with pytest.raises(BackendError, match="does not speak SFTP as it should"):
        CALLS[call](backend)
    script.answer = sound
    assert backend.list("") == ()


def file_of(content: bytes, *, size: int | None = None, at_most: int = 1 << 20) -> Callable[[int, bytes], Answer]:
    """A server with one file, of which it gives at most so many bytes at a time."""

    def reply(kind: int, body: bytes) -> Answer:
        if kind == FSTAT:
            return attrs(len(content) if size is None else size)
        if kind == READ:
            offset, length = struct.unpack(">QI", body[-12:])
            piece = content[offset : offset + min(length, at_most)]
            return data(piece) if piece else status(1)
        return sound(kind, body)

    return reply


CONTENT = bytes(i * 7 % 251 for i in range(700_000))


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("at_most", [1 << 20, 50_000, 32 << 10])
@pytest.mark.parametrize(("offset", "length"), [(0, None), (1, 400_000), (699_000, 9000), (700_000, 5), (300_000, 1)])
def test_reads_in_pieces(
    script: Script, opened: Opened, backwards: bool, at_most: int, offset: int, length: int | None
) -> None:
    backend = opened(script)
    script.backwards = backwards
    script.answer = file_of(CONTENT, at_most=at_most)
    expected = CONTENT[offset : None if length is None else offset + length]
    same = backend.get("d/a", offset=offset, length=length, max_bytes=1 << 20) == expected
    assert same  # without the comparison of half a million bytes that pytest would print


@pytest.mark.parametrize("max_bytes", [99, 1 << 20])
def test_a_file_that_is_larger_than_asked_for_is_not_read(script: Script, opened: Opened, max_bytes: int) -> None:
    backend = opened(script)
    script.answer = file_of(CONTENT, size=1 << 40)
    with pytest.raises(RefusedError, match="has 1099511627776 bytes"):
        backend.get("d/a", max_bytes=max_bytes)
    assert script.asked.count(str(READ)) <= 1
    script.answer = file_of(b"x" * 200, size=50)  # it says 50, and gives more
    assert backend.get("d/a", max_bytes=300) == b"x" * 50
    script.answer = lambda kind, body: attrs(1000) if kind == FSTAT else says(READ, data(bytes(1000)))(kind, body)
    with pytest.raises(BackendError, match="1000 bytes where 99 were asked for"):
        backend.get("d/a", length=99, max_bytes=99)


@pytest.mark.parametrize("size", [60, 500_000])
def test_a_file_that_is_shorter_than_it_says(script: Script, opened: Opened, size: int) -> None:
    backend = opened(script)
    script.answer = file_of(CONTENT[:50], size=size)
    with pytest.raises(BackendError, match="fewer bytes than the file has"):
        backend.get("d/a", max_bytes=1 << 20)


@pytest.mark.parametrize("root", [b"/a\x1b[2J", b"/a\nb", b"/" + b"x" * 5000])
def test_a_root_that_nobody_should_print(script: Script, opened: Opened, root: bytes) -> None:
    script.answer = says(kit.REALPATH, names((root, b"", attributes(0, 0o040755))))
    with pytest.raises(BackendError, match="does not speak SFTP as it should") as caught:
        opened(script)
    assert len(str(caught.value)) < 300
    assert "\x1b" not in str(caught.value)


def test_a_folder_without_an_end(script: Script, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasync.backends.sftp.session.FOLDER_ENTRIES_MAX", 1000)
    backend = opened(script)
    script.answer = says(READDIR, names(*[(b"a", b"", attributes(1))] * 50))
    with pytest.raises(BackendError, match="more than 1000 entries"):
        backend.list("d")


def test_entries_without_a_kind(script: Script, opened: Opened) -> None:
    backend = opened(script)
    entries = [
        (b"a", b"-rw-r--r-- 1 x x 5 a", struct.pack(">IQ", 1, 5)),
        (b"b", b"drwxr-xr-x 1 x x 5 b", struct.pack(">I", 0)),
        (b"c", b"-rw-r--r-- 1 x x 5 a", struct.pack(">I", 0)),  # no size: no object
        (b"..", b"", attributes(0, 0o040755)),
        (b"../../etc/passwd", b"", attributes(3)),
        (b"x\xff", b"", attributes(3)),
        (b"fifo", b"", attributes(0, 0o010644)),
        (b"more", b"", struct.pack(">IQII", 0x80000001, 9, 1, 0) + bytes(4)),
    ]
    given = iter([names(*entries)])
    script.answer = lambda kind, body: next(given, status(1)) if kind == READDIR else sound(kind, body)
    assert [tuple(e) for e in backend.list("d")] == [("a", 5), ("b", None), ("more", 9)]


# What a server offers.


@pytest.mark.parametrize(
    ("version", "extensions", "form"),
    [
        (kit.OPENSSH, EXTENSIONS, "log"),
        ("SSH-2.0-OpenSSH_10.2", EXTENSIONS, "log"),
        ("SSH-2.0-OpenSSH_for_Windows_9.5", EXTENSIONS, "block"),
        ("SSH-2.0-SFTPGo_2.6", EXTENSIONS, "block"),
        ("SSH-2.0-mod_sftp", EXTENSIONS[1:2], "block"),
        (kit.OPENSSH, EXTENSIONS[1:], "block"),
        (kit.OPENSSH, ((LINK, b"2"), *EXTENSIONS[1:]), "block"),
    ],
)
def test_only_openssh_votes_in_log_form(
    script: Script, opened: Opened, version: str, extensions: tuple, form: str
) -> None:
    script.version, script.extensions = version, extensions
    backend = opened(script)
    assert backend.form == form
    assert hasattr(backend, "form_reason") == (form == "block")
    script.asked.clear()
    assert backend.create("d/new", b"x") is True
    backend.put("d/new", b"x")
    assert (LINK in script.asked) == (form == "log")
    assert (str(RENAME) in script.asked) == (form == "block")
    assert (FSYNC in script.asked) == (FSYNC in dict(extensions))
    assert isinstance(backend, TellsSpace)
    assert (backend.space() == Space(None, None)) == (STATVFS not in dict(extensions))


def test_the_block_form_does_not_overwrite_what_it_sees(script: Script, opened: Opened) -> None:
    """Not even where the server's rename does."""
    script.version = "SSH-2.0-another"
    backend = opened(script)
    script.answer = says(LSTAT, attrs(1))
    assert backend.create("d/new", b"x") is False
    assert str(RENAME) not in script.asked
    script.answer = says(RENAME, status(4))
    with pytest.raises(BackendError):
        backend.create("d/new", b"x")


def test_a_server_that_cannot_replace(script: Script, opened: Opened) -> None:
    script.extensions = ()
    with pytest.raises(RefusedError, match="cannot replace a file in one step"):
        opened(script)


def test_a_server_whose_software_was_exchanged(script: Script, opened: Opened) -> None:
    """In log form nothing else than a link will do."""
    backend = opened(script)
    script.drop()
    script.version, script.extensions = "SSH-2.0-another", EXTENSIONS[1:]
    for _ in range(2):
        try:
            backend.create("d/new", b"x")
        except UnreachableError as error:
            last = error
    assert "does not offer any more" in last.message
    assert str(RENAME) not in script.asked


def test_a_server_with_an_older_protocol(script: Script, opened: Opened) -> None:
    for hello in (text(struct.pack(">BI", 2, 2)), text(b"\x02"), text(b"Welcome!"), b"Welcome to this server\n"):
        script.hello = hello
        with pytest.raises(RefusedError, match="what answers there is not SFTP") as caught:
            opened(script)
        assert "login script" in caught.value.next_step


def folders_of(tree: dict[str, tuple[tuple[bytes, bytes], ...]]) -> Callable[[int, bytes], Answer]:
    """A server with folders. Each is read in one piece."""
    read: set[bytes] = set()

    def answer(kind: int, body: bytes) -> Answer:
        if kind == OPENDIR:
            path = body[4:].decode().removeprefix("/store/")
            read.discard(path.encode())
            return kit.handle(path.encode()) if path in tree else status(2)
        if kind == READDIR:
            path = body[4:]
            first = path not in read
            read.add(path)
            return names(*((name, b"", form) for name, form in tree[path.decode()])) if first else status(1)
        return sound(kind, body)

    return answer


def test_the_folders_of_an_inventory_are_read_side_by_side(script: Script, opened: Opened) -> None:
    """What is asked before anything was answered: all folders of a page, then what they hold."""
    folder, file = attributes(0, 0o040755), attributes(7)
    shards = [f"{n:02x}" for n in range(16)]
    tree = {f"p/{n}": ((b"one", file), (b"link", attributes(1, 0o120777))) for n in shards}
    script.answer = folders_of({"p": tuple((n.encode(), folder) for n in shards), **tree})
    backend = opened(script)
    cursor, found, asked = "", [], []
    for _ in range(9):
        script.asked.clear()
        page = backend.inventory("p", cursor)  # type: ignore[attr-defined]
        found += [(item.name, item.size) for item in page.items]
        asked.append([a for a in script.asked if a in (str(OPENDIR), str(READDIR))])
        cursor = page.cursor
        if not page.more:
            break
    assert found == [(f"{n}/one", 7) for n in shards]
    assert len(asked) == 2
    last = "".join("o" if a == str(OPENDIR) else "r" for a in asked[-1])
    assert last == "oo" + "rrrr" + "o" * 13 + "r" * 26, "those above the cursor at once, then the rest at once"


def test_a_folder_of_an_inventory_that_may_not_be_read(script: Script, opened: Opened) -> None:
    """The packs in it are not lost, so none of the others count either."""
    folder = attributes(0, 0o040755)
    tree = folders_of({"p": ((b"a", folder), (b"b", folder)), "p/a": ((b"one", attributes(7)),)})
    script.answer = lambda kind, body: status(3) if kind == OPENDIR and body.endswith(b"/b") else tree(kind, body)
    backend = opened(script)
    with pytest.raises(RefusedError, match="permission denied"):
        backend.inventory("p", "")  # type: ignore[attr-defined]
    script.answer = sound
    assert backend.list("") == ()
