"""Inventories of stores that list folder by folder: every object once, whatever lies where, in pages that end."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from metasync.backends import walk
from metasync.backends.api import Backend, Inventories, Listed
from metasync.backends.memory import MemoryBackend
from metasync.backends.registry import open_backend, parse_url
from metasync.errors import NotFoundError, UnreachableError

PART = st.sampled_from(["0", "00", "1", "a", "a-b", "ab", "b"])
PATHS = st.sets(st.lists(PART, min_size=1, max_size=4).map("/".join))


class Lists:
    """Lists folders of a store, and notes which."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.calls: list[list[str]] = []

    def __call__(self, folders: Sequence[str]) -> dict[str, tuple[Listed, ...]]:
        self.calls.append(list(folders))
        return {folder: self.backend.list(folder) for folder in folders}


def stored(paths: set[str] | list[str]) -> MemoryBackend:
    store = MemoryBackend()
    for path in paths:
        with contextlib.suppress(ValueError):
            store.put(path, path.encode())
    return store


def read(listings: Lists, path: str = "p") -> dict[str, int | None]:
    """All pages; each object is told once."""
    found: dict[str, int | None] = {}
    cursor, more = "", True
    while more:
        page = walk.inventory(path, cursor, listings)
        assert not {item.name for item in page.items} & found.keys()
        found.update((item.name, item.size) for item in page.items)
        assert page.more == bool(page.cursor)
        assert page.cursor != cursor or not page.more
        cursor, more = page.cursor, page.more
    return found


def files(paths: set[str]) -> set[str]:
    """Without those that another one needs as a folder."""
    return {p for p in paths if not any(other.startswith(f"{p}/") for other in paths)}


@settings(max_examples=examples(150), deadline=None)
@given(PATHS, st.integers(1, 3), st.integers(1, 4), st.data())
def test_every_object_is_told_once(paths: set[str], folders: int, names: int, data: st.DataObject) -> None:
    paths = files(paths)
    listings = Lists(stored([f"p/{path}" for path in paths] + ["p-beside", "q/p/x"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "_FOLDERS_FIRST", folders)
        patch.setattr(walk, "NAMES", names)
        assert read(listings) == {path: len(f"p/{path}") for path in paths}
    assert all(len(call) <= walk.FOLDERS for call in listings.calls)


@settings(max_examples=examples(60), deadline=None)
@given(PATHS, PATHS, st.sets(st.integers(0, 40)))
def test_what_stays_is_told_however_much_changes_between_pages(
    paths: set[str], others: set[str], gone: set[int]
) -> None:
    """Folders may be gone that a cursor names, and others be where they were not."""
    paths, others = files(paths), files(paths | others) - files(paths)
    store = stored([f"p/{path}" for path in paths])
    going = {path for n, path in enumerate(sorted(paths)) if n in gone}
    found: set[str] = set()
    cursor, more, page_number = "", True, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "_FOLDERS_FIRST", 1)
        patch.setattr(walk, "NAMES", 1)
        while more:
            page = walk.inventory("p", cursor, Lists(store))
            found |= {item.name for item in page.items}
            cursor, more, page_number = page.cursor, page.more, page_number + 1
            if page_number == 1:
                for path in going:
                    store.delete(f"p/{path}")
                for path in others:
                    with contextlib.suppress(ValueError):
                        store.put(f"p/{path}", b"")
    assert paths - going <= found <= paths | others


def test_folders_of_packs_cost_few_calls_and_pages_stay_small() -> None:
    """256 folders are listed 32 at a time; with many objects in each a page has fewer."""
    store = stored([f"p/{g}/{n:02x}/{n:02x}{i}" for g in (0, 7) for n in range(256) for i in range(3)])
    listings = Lists(store)
    assert len(read(listings)) == 2 * 256 * 3
    assert sum(map(len, listings.calls)) < 1.2 * 2 * 256
    assert len(listings.calls) < 2 * (256 / walk.FOLDERS) * 2 + 20
    crowded = stored([f"p/{n:02x}/{i}" for n in range(16) for i in range(walk.NAMES // 4)])
    cursor, more, most = "", True, 0
    while more:
        page = walk.inventory("p", cursor, Lists(crowded))
        most, cursor, more = max(most, len(page.items)), page.cursor, page.more
    assert most <= 1.25 * walk.NAMES


def test_folders_in_folders_without_an_end() -> None:
    class Endless(Lists):
        def __call__(self, folders: Sequence[str]) -> dict[str, tuple[Listed, ...]]:
            self.calls.append(list(folders))
            return {folder: (Listed("x", None), Listed("y", 1)) for folder in folders}

    assert len(read(Endless(MemoryBackend()))) == walk.DEPTH_MAX + 1


def test_names_that_nobody_here_gave_are_left_out_and_one_told_twice_does_not_matter() -> None:
    odd = (Listed("..", None), Listed("Up", 1), Listed(".tmp-1", 1), Listed("a", 1), Listed("a", None))
    assert read(Lists(MemoryBackend()), "nothing") == {}
    page = walk.inventory("p", "", lambda folders: dict.fromkeys(folders[:1], odd))
    assert [(i.name, i.size) for i in page.items][:1] == [("a", 1)]
    assert not any(".." in i.name or "Up" in i.name for i in page.items)


@pytest.mark.parametrize("cursor", ["x", "0:a", "99:a", "4:../a", "4:a//b", "4", ":", "12", "4:A", "\n"])
def test_a_cursor_that_no_page_has(cursor: str) -> None:
    with pytest.raises(NotFoundError):
        walk.inventory("p", cursor, Lists(MemoryBackend()))


def test_an_inventory_of_a_folder_that_is_away_is_not_empty(tmp_path: Path) -> None:
    """Whoever compares it would take all packs for lost."""
    root = tmp_path / "stick"
    root.mkdir()
    backend = open_backend(parse_url(f"file://{root}"))
    assert isinstance(backend, Inventories)
    backend.put("p/a/b", b"1")
    assert [(i.name, i.size) for i in backend.inventory("p", "").items] == [("a/b", 1)]
    root.rename(tmp_path / "unplugged")
    with pytest.raises(UnreachableError):
        backend.inventory("p", "")


def test_links_in_a_folder_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "stick/p/a").mkdir(parents=True)
    (tmp_path / "stick/p/a/up").symlink_to(tmp_path / "stick/p")
    (tmp_path / "stick/p/b").symlink_to("/etc")
    (tmp_path / "stick/p/a/x").write_bytes(b"12")
    backend = open_backend(parse_url(f"file://{tmp_path}/stick"))
    assert isinstance(backend, Inventories)
    page = backend.inventory("p", "")
    assert [(i.name, i.size) for i in page.items] == [("a/x", 2)]
    assert not page.more
