"""Checks of the conformance kit that one caller makes alone: each call of the contract, names, parts, sizes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from metasync.backends.api import Backend, Inventories, Inventory, Item, Listed, TellsDigests, TellsSpace, Watches
from metasync.backends.digests import KINDS, digest_of
from metasync.backends.names import is_name
from metasync.errors import NotFoundError, RefusedError
from metasync.testing.harness import (
    Bench,
    BrokenPromiseError,
    Check,
    Note,
    NotShownError,
    absent,
    expect,
    expect_bytes,
    expect_error,
    named,
    soon,
)
from metasync.testing.peer import content
from metasync.testing.race import WRITERS

_PART_CHARS = 200  # the longest name of one object or folder (`names`)
_MANY = 1 << 20
_PAGES_MAX = 100
_WATCH_S = 30.0  # what a store may take at least for a watch; a change that is there already ends it
_LATE_S = 1.0  # a list that is later than this is worth a word
NAMES = (
    *("a", "b", "0", "-", "_", "...", ".a", "a.", "a-b", "a.b", "a_b", "a..b", "-rf", "aa", "ab", "con", "nul.txt"),
    *("tmp-1", "desktop.ini", "thumbs.db", "index.html", "00000", "00001", "1e5", "0" * 64, "f" * _PART_CHARS),
)
HOSTILE = (
    *("", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "a/../../b", "./a", "a/.", "a/./b"),
    *("a\\b", "..\\a", "a\0", "a\0b", "a\n", "\na", "a\r", "a\tb", "a b", " a", "a ", "A", "aB", "é", "ａ", "\u202ea"),
    *("a:b", "a*", "a?b", "a#b", "a%2e", "%2e%2e", "a%2fb", "a+b", "a&b", "a=b", "~", "$a", "a'b", 'a"b', "a|b", "<a>"),
    *(".tmp-1", "a/.tmp-1", ".tmp-1/a", "x" * (_PART_CHARS + 1), "a/" + "x" * (_PART_CHARS + 1), "\ud800", "🙂"),
)


def check_create(bench: Bench, base: str) -> None:
    b = bench.open()
    for path, data in ((f"{base}/a", b"one"), (f"{base}/new/er/est/a", b"two"), (f"{base}/new/b", bytes(range(256)))):
        expect(b.create(path, data) is True, "a create of a free name answered False")
        expect_bytes(b.get(path, max_bytes=_MANY), data, "get after create")
        expect(b.stat(path) == len(data), f"stat gave {b.stat(path)} for {len(data)} bytes")


def check_create_taken(bench: Bench, base: str) -> None:
    b = bench.open()
    for number, first in enumerate((b"one", b"", b"one that is longer")):
        path = f"{base}/taken-{number}"
        if number == 1:
            b.put(path, first)
        else:
            b.create(path, first)
        for again in (b"two", first, b"", b"a later and longer one"):
            for who, store in (("its own", b), ("another", bench.open())):
                expect(store.create(path, again) is False, f"{who} connection's create of a taken name answered True")
                expect_bytes(b.get(path, max_bytes=_MANY), first, "get after a create of the taken name")


def check_put(bench: Bench, base: str) -> None:
    b = bench.open()
    for data in (b"short", b"a longer one", b"", b"\0\xff\r\n\x1a", b"end"):
        for path in (f"{base}/a", f"{base}/new/folder/a"):
            b.put(path, data)
            expect_bytes(b.get(path, max_bytes=_MANY), data, "get after put")
            expect(b.stat(path) == len(data), f"stat gave {b.stat(path)} for {len(data)} bytes")


def check_absent(bench: Bench, base: str) -> None:
    b = bench.open()
    b.put(f"{base}/there", b"1")
    for path in (f"{base}/nothing", f"{base}/no/folder/either", f"{base}/ther"):
        for what, call in (
            ("get", partial(b.get, path, max_bytes=9)),
            ("get of a part", partial(b.get, path, offset=1, length=2, max_bytes=9)),
            ("get of no bytes", partial(b.get, path, offset=1, length=0, max_bytes=9)),
            ("stat", partial(b.stat, path)),
        ):
            expect_error(NotFoundError, f"{what} of an absent object", call)
        expect(b.list(path) == (), "the list of a folder that is not there has names")


def check_delete(bench: Bench, base: str) -> None:
    b, path = bench.open(), f"{base}/d/a"
    b.put(f"{base}/d/other", b"1")
    for data in (b"first", b"again"):
        expect(b.create(path, data) is True, "a create of a name that was deleted answered False")
        expect_bytes(b.get(path, max_bytes=_MANY), data, "get of an object that was deleted and created again")
        b.delete(path)
        expect(absent(b, path), "a deleted object can still be read")
        expect_error(NotFoundError, "stat of a deleted object", lambda: b.stat(path))
        _nothing_happens("a second delete", lambda: b.delete(path))
    _nothing_happens("delete in a folder that is not there", lambda: b.delete(f"{base}/no/folder/a"))
    _nothing_happens("delete of a name never stored", lambda: b.delete(f"{base}/d/never"))
    expect_bytes(b.get(f"{base}/d/other", max_bytes=_MANY), b"1", "get of an object beside deleted ones")


def check_ranges(bench: Bench, base: str) -> None:
    b, path, data = bench.open(), f"{base}/a", bytes(range(100))
    b.put(path, data)
    parts: tuple[tuple[int, int | None], ...] = ((0, None), (0, 10), (10, 10), (90, 10), (90, 11), (99, 50), (100, 1))
    parts += ((5000, 7), (40, None), (99, None), (100, None), (0, 100), (0, 101), (1, 1), (100, 0), (5, 0), (0, 0))
    for offset, length in parts:
        what = f"get of {'all' if length is None else length} bytes from {offset} of 100"
        expect_bytes(b.get(path, offset=offset, length=length, max_bytes=100), data[offset:][:length], what)
    for part in ({"offset": -1}, {"length": -1}):
        expect_error(ValueError, f"get with {part}", partial(b.get, path, max_bytes=1, **part))


def check_bound(bench: Bench, base: str) -> None:
    b, path = bench.open(), f"{base}/a"
    b.put(path, bytes(1000))
    expect(len(b.get(path, max_bytes=1000)) == 1000, "an object of just max_bytes was cut")
    expect(len(b.get(path, offset=900, length=5000, max_bytes=100)) == 100, "a part of just max_bytes was cut")
    for part in ({"max_bytes": 999}, {"max_bytes": 0}, {"offset": 10, "max_bytes": 989}, {"length": 9, "max_bytes": 8}):
        expect_error(RefusedError, f"get with {part} of 1,000 bytes", partial(b.get, path, **part))


def check_empty(bench: Bench, base: str) -> None:
    b = bench.open()
    expect(b.create(f"{base}/created", b"") is True, "a create of an empty object answered False")
    b.put(f"{base}/put", b"")
    for path in (f"{base}/created", f"{base}/put"):
        expect_bytes(b.get(path, max_bytes=0), b"", "get of an empty object")
        expect_bytes(b.get(path, offset=0, length=5, max_bytes=5), b"", "get of a part of an empty object")
        expect(b.stat(path) == 0, "stat of an empty object is not 0")


def check_names(bench: Bench, base: str) -> None:
    """Every object keeps its own bytes, however much its name looks like another's."""
    b = bench.open()
    deep = f"{base}/{'0123456789abcdef' * 2}/{'fedcba9876543210' * 2}/px/1048576/{'a' * 64}"
    paths = [f"{base}/{name}" for name in NAMES] + [deep, f"{base}/one/same", f"{base}/other/same"]
    for path in paths:
        expect(b.create(path, content(path, 64)) is True, f"a create of the free name {path!r} answered False")
    for path in paths:
        expect_bytes(b.get(path, max_bytes=_MANY), content(path, 64), f"get of {path!r}")


def check_hostile_names(bench: Bench, base: str) -> None:
    b = bench.open()
    for path in HOSTILE:
        for verb, call in (
            ("create", partial(b.create, path, b"")),
            ("put", partial(b.put, path, b"")),
            ("get", partial(b.get, path, max_bytes=1)),
            ("stat", partial(b.stat, path)),
            ("delete", partial(b.delete, path)),
            ("list", partial(b.list, path)),
        ):
            if path or verb != "list":  # "" is the root there
                expect_error(ValueError, f"{verb} of the name {path[:40]!r}", call)


def check_list(bench: Bench, base: str) -> Note | None:
    b = bench.open()
    for name in ("b", "a", "dir/x", "dir/deeper/y", "b2", "-", "_.z", "gone"):
        b.put(f"{base}/l/{name}", name.encode())
    b.delete(f"{base}/l/gone")
    wanted = (Listed("-", 1), Listed("_.z", 3), Listed("a", 1), Listed("b", 1), Listed("b2", 2), Listed("dir", None))
    late = _listed(bench, b, f"{base}/l", wanted, may_show={"gone"})
    late = max(late, _listed(bench, b, f"{base}/l/dir", (Listed("deeper", None), Listed("x", 5))))
    expect(b.list(f"{base}/l/a") == (), "the list of an object has names")
    top = base.partition("/")[0]
    expect(soon(bench, lambda: top in [name for name, _ in b.list("")]) is not None, f"the root does not list {top!r}")
    return Note(f"names were listed up to {late:.1f} s late") if late > _LATE_S else None


def check_long_list(bench: Bench, base: str) -> Note | None:
    """Takes the names of a race that went before as the beginning."""
    b = bench.open()
    folder, names = bench.kept.get("raced", (f"{base}/long", ()))
    more = [f"{number:05d}" for number in range(len(names), bench.scale.listed_names)]
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda name: b.put(f"{folder}/{name}", b"x"), more))
    wanted = [*names, *more]
    seen: list[str] = []

    def complete() -> bool:
        seen[:] = [name for name, _ in b.list(folder)]
        expect(seen == sorted(set(seen)), "a long list is not sorted, or has a name twice")
        expect(set(seen) <= set(wanted), "a long list shows names that nobody stored")
        return seen == wanted

    late = soon(bench, complete)
    expect(late is not None, f"a list shows {len(seen):,} of {len(wanted):,} names")
    return Note(f"the last name was listed {late:.1f} s late") if late is not None and late > _LATE_S else None


def check_big(bench: Bench, base: str) -> None:
    b, path, size = bench.open(), f"{base}/big", bench.scale.big_bytes
    data = content("big", size)
    expect(b.create(path, data) is True, "a create of a free name answered False")
    _expect_big(b, path, data)
    bench.kept["big"] = path
    half = data[: size // 2]
    b.put(f"{base}/big-put", b"small")
    b.put(f"{base}/big-put", half)
    expect(b.stat(f"{base}/big-put") == len(half), "stat of a big object gave another size than was put")
    end = b.get(f"{base}/big-put", offset=len(half) - 1000, length=2000, max_bytes=2000)
    expect_bytes(end, half[-1000:], "get of the end of a big object that was put")


def _expect_big(b: Backend, path: str, data: bytes) -> None:
    size = len(data)
    expect(b.stat(path) == size, f"stat of {size:,} bytes gave {b.stat(path):,}")
    expect_bytes(b.get(path, max_bytes=size), data, "get of a big object")
    for offset, length in ((size - 7, 100), (size // 4, 1 << 17), (size // 2 - 1, 2)):
        got = b.get(path, offset=offset, length=length, max_bytes=length)
        expect_bytes(got, data[offset:][:length], f"get of {length:,} bytes from {offset:,} of a big object")
    expect_error(RefusedError, "get of a big object with a smaller max_bytes", lambda: b.get(path, max_bytes=size - 1))


def check_big_taken(bench: Bench, base: str) -> None:
    """A server that refuses before it has read all must not look like one that is gone."""
    b, data = bench.open(), content("big", bench.scale.big_bytes)
    path = bench.kept.get("big")
    if path is None:
        path = f"{base}/big"
        b.create(path, data)
    for _ in range(bench.scale.big_again):
        expect(b.create(path, data[::-1]) is False, "a create of a big object's taken name answered True")
    for offset in (0, len(data) // 2, len(data) - 1000):
        got = b.get(path, offset=offset, length=1000, max_bytes=1000)
        expect_bytes(got, data[offset:][:1000], "get of a big object whose name was tried again")


def check_identity(bench: Bench, base: str) -> None:
    first = bench.open().identity()
    expect(isinstance(first, bytes) and len(first) == 32, "the identity is not 32 bytes")
    bench.open().put(f"{base}/a", b"1")
    expect(bench.open().identity() == first, "two connections see two identities of one store")


def check_space(bench: Bench, base: str) -> None:
    b = bench.open()
    if not isinstance(b, TellsSpace):
        raise NotShownError("this store does not tell how much room is left")
    space = b.space()
    for number in (space.free_bytes, space.total_bytes):
        expect(number is None or (type(number) is int and number >= 0), f"{number!r} is not a number of bytes")
    if space.free_bytes is not None and space.total_bytes is not None:
        expect(space.free_bytes <= space.total_bytes, "more is free than there is")


def check_digest(bench: Bench, base: str) -> None:
    b = bench.open()
    if not isinstance(b, TellsDigests):
        raise NotShownError("this store does not tell digests")
    expect(b.digest_kind in {"sha256", *KINDS}, f"{b.digest_kind!r} is no kind of digest")
    told = 0
    for size in (0, 1, 70, _MANY):
        path, data = f"{base}/{size}", content(f"{base}{size}", size)
        b.put(path, data)
        for again in (b.digest(path), b.digest(path)):
            expect(again.size == size, f"digest gave a size of {again.size} for {size} bytes")
            told += again.value is not None
            right = digest_of(b.digest_kind, data)
            expect(again.value in (None, right), f"the {b.digest_kind} of {size} bytes is another")
    b.put(f"{base}/1", b"\0\0")
    other = digest_of(b.digest_kind, b"\0\0")
    expect(b.digest(f"{base}/1").value in (None, other), "after a put, the digest is that of what was there before")
    expect_error(NotFoundError, "digest of what was never stored", lambda: b.digest(f"{base}/none"))
    if not told:
        raise NotShownError("this store tells digests, but of none of these objects")


def check_inventory(bench: Bench, base: str) -> None:
    b = bench.open()
    if not isinstance(b, Inventories):
        raise NotShownError("this store tells no inventory")
    kind = getattr(b, "digest_kind", "")
    objects = {name: content(name, size) for name, size in (("a", 1), ("f/b", 0), ("f/c", 70), ("f/d/e", 300))}
    for name, data in objects.items():
        b.put(f"{base}/in/{name}", data)
    b.put(f"{base}/in-beside", b"1")

    def read(cursor: str) -> tuple[dict[str, Item], str]:
        found: dict[str, Item] = {}
        for _ in range(_PAGES_MAX):
            page = b.inventory(f"{base}/in", cursor)
            expect(isinstance(page, Inventory), "inventory gave something else than a page")
            found.update((item.name, item) for item in page.items)
            cursor = page.cursor
            if not page.more:
                return found, cursor
            expect(cursor != "", "inventory says that there is more, and gives no cursor")
        raise BrokenPromiseError(f"an inventory of {len(objects)} objects has more than {_PAGES_MAX} pages")

    def check_items(found: dict[str, Item]) -> None:
        for name, size, told, _ in found.values():
            expect(name in objects, f"inventory shows {name!r}, which nobody stored there")
            expect(size == len(objects[name]), f"inventory gave a size of {size} for {len(objects[name])} bytes")
            if told is not None:
                right = digest_of(kind, objects[name]) if kind else None
                expect(told == right, f"the {kind or 'digest'} of {name} in the inventory is another")

    cursor = ""

    def complete() -> bool:
        nonlocal cursor
        found, cursor = read("")
        check_items(found)
        return found.keys() == objects.keys()

    expect(soon(bench, complete) is not None, "an inventory lacks what was put")
    b.put(f"{base}/in/f/d/new", objects.setdefault("f/d/new", b"new"))
    b.delete(f"{base}/in/a")
    del objects["a"]
    if not cursor:
        expect(soon(bench, complete) is not None, "an inventory does not follow a put and a delete")
        return
    seen: dict[str, Item] = {}

    def told_all() -> bool:
        nonlocal cursor
        changes, cursor = read(cursor)
        seen.update(changes)
        check_items({name: item for name, item in seen.items() if item.size is not None})
        return seen.keys() >= {"a", "f/d/new"} and seen["a"].size is None

    expect(soon(bench, told_all) is not None, "a feed does not tell what was put and deleted since its cursor")
    expect_error(NotFoundError, "inventory by a cursor that nobody gave", lambda: b.inventory(f"{base}/in", "no-such"))


def check_watch(bench: Bench, base: str) -> None:
    b = bench.open()
    if not isinstance(b, Watches):
        raise NotShownError("this store cannot be watched")
    b.put(f"{base}/in/a", b"1")
    begun = b.watch(f"{base}/in", "", _WATCH_S)
    expect(begun.changed and begun.cursor != "", "a watch that begins gives no cursor, or says that nothing changed")
    cursor = begun.cursor

    def told() -> bool:
        nonlocal cursor
        ended = b.watch(f"{base}/in", cursor, _WATCH_S)
        cursor = ended.cursor
        return ended.changed

    b.put(f"{base}/in/f/b", b"2")
    expect(soon(bench, told) is not None, "a watch does not end with a put since its cursor")
    b.delete(f"{base}/in/a")
    expect(soon(bench, told) is not None, "a watch does not end with a delete since its cursor")
    expect_error(
        NotFoundError, "watch by a cursor that nobody gave", lambda: b.watch(f"{base}/in", "no-such", _WATCH_S)
    )


def check_closed(bench: Bench, base: str) -> None:
    """A closed backend may work or raise; what it must not do is look like an empty store."""
    b, other, path = bench.open(), bench.open(), f"{base}/a"
    b.put(path, b"1")
    other.put(f"{base}/b", b"2")
    expect(soon(bench, lambda: "a" in [name for name, _ in b.list(base)]) is not None, "a list lacks what was put")
    b.close()
    b.close()
    looks: tuple[tuple[str, Callable[[], None]], ...] = (
        ("get", lambda: expect_bytes(b.get(path, max_bytes=1), b"1", "get on a closed backend")),
        ("stat", lambda: expect(b.stat(path) == 1, "stat on a closed backend gave another size")),
        ("list", lambda: expect("a" in [name for name, _ in b.list(base)], "list on a closed backend is empty")),
    )
    for what, call in looks:
        try:
            call()
        except (BrokenPromiseError, NotFoundError) as error:
            raise BrokenPromiseError(f"after close, {what} acts as if the store were empty: {named(error)}") from error
        except Exception:  # noqa: BLE001, S112 - an error of whatever class: the caller's mistake
            continue
    expect_bytes(other.get(f"{base}/b", max_bytes=1), b"2", "get by another connection than the closed one")


def _nothing_happens(what: str, call: Callable[[], None]) -> None:
    try:
        call()
    except NotFoundError as error:
        raise BrokenPromiseError(f"{what} raised NotFoundError where nothing shall happen") from error


def _listed(
    bench: Bench, b: Backend, folder: str, wanted: tuple[Listed, ...], may_show: frozenset[str] | set[str] = frozenset()
) -> float:
    """Waits until a list is as it is to be. What is wrong in it, and not only late, is said at once."""
    names = {entry.name for entry in wanted}
    seen: tuple[Listed, ...] = ()

    def complete() -> bool:
        nonlocal seen
        seen = b.list(folder)
        found = [entry.name for entry in seen]
        expect(found == sorted(set(found)), f"a list is not sorted, or has a name twice: {found}")
        expect(all(is_name(name) for name in found), f"a list shows what no object can be called: {found}")
        expect(set(found) <= names | may_show, f"a list shows names that nobody stored: {found}")
        return seen == wanted

    late = soon(bench, complete)
    if late is None:
        told = ", ".join(f"{entry.name} ({'folder' if entry.size is None else entry.size})" for entry in seen)
        raise BrokenPromiseError(f"after {bench.scale.patience_s:.0f} s a list shows: {told or 'nothing'}")
    return late


CHECKS = (
    Check("create", "create stores under free names, also in new folders, and get returns the same bytes",
          "Stores `data` under a name that is free: True.", "data", check_create),
    Check("put", "put replaces: with longer, shorter and empty bytes, also in new folders",
          "Stores `data` under `path`, replacing what was there", "data", check_put, ("create",)),
    Check("absent", "what was never stored is said to be absent by get and stat, and not listed",
          "`NotFoundError` if absent.", "data", check_absent),
    Check("delete", "delete removes, can be repeated, and frees the name",
          "Removes the object; nothing happens when it is absent.", "data", check_delete, ("create", "absent")),
    Check("ranges", "get gives every part of an object to the byte, at and behind its end too",
          "or `length` bytes from `offset` (fewer at its end)", "data", check_ranges, ("put",)),
    Check("bound", "get refuses what is larger than max_bytes",
          "Never returns and never buffers more than `max_bytes`: a larger object is a `RefusedError`.",
          "data", check_bound, ("put",)),
    Check("empty", "empty objects are objects", "The object's size in bytes.", "data", check_empty, ("create",)),
    Check("names", "names of every form and length are names of their own",
          "made of `[a-z0-9._-]` only", "data", check_names, ("create",)),
    Check("hostile-names", "names that are not allowed are refused as our mistake by every call",
          "never absolute and never with `..`", "data", check_hostile_names),
    Check("list", "list shows names and sizes directly below a folder, sorted; late at worst",
          'Names directly below `path` ("" is the root), sorted. Empty when there are none. A hint only.',
          "data", check_list, ("put",)),
    Check("big", "big objects come back whole and in parts", "The object's bytes", "data", check_big, ("create",)),
    Check("identity", "all connections see one identity of 32 bytes",
          "What makes two people's views of this store the same store", "data", check_identity),
    Check("space", "free and total space are numbers that fit each other",
          "Bytes on the account as the provider tells them", "data", check_space),
    Check("digest", "a digest that the store tells is that of the bytes",
          "says without a download what an object's bytes hash to", "data", check_digest, ("put",)),
    Check("inventory", "an inventory shows what lies below a folder, and a feed what has changed since",
          "lists all that is below a folder, however deep", "data", check_inventory, ("put", "delete")),
    Check("watch", "a watch ends with what changed below a folder since its cursor",
          "Waits until something below a folder, which is not the root, changes", "data", check_watch,
          ("put", "delete")),
    Check("closed", "a closed backend does not look empty, and disturbs no other",
          "Gives connections back. Further calls are an error of ours.", "data", check_closed, ("put",)),
    Check("create-taken", "create of a taken name answers False and changes nothing",
          "False: the name is taken (whoever took it).", "voting", check_create_taken, ("create",)),
    Check("big-taken", "create of a big object under a taken name answers False and changes nothing",
          "False: the name is taken (whoever took it).", "voting", check_big_taken, ("big", "create-taken")),
)  # fmt: skip

LONG_LIST = Check(
    "long-list",
    "list shows more names than one page of an answer can hold",
    'Names directly below `path` ("" is the root), sorted.',
    "data",
    check_long_list,
    ("list",),
)
