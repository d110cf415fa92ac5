"""Inventories of stores that list folder by folder: which folders a page needs, and what it tells of them (pure).

A page tells the objects of some whole folders, in the order of their paths, a folder before those below it. Its cursor
names the last of them, so the next page lists the folders above that one again, and no other twice. No more than the
listings of one page are in memory.

How many folders a page has follows from how many objects the folders before had: `FOLDERS` of them, or about `NAMES`
objects. What a page lists together does not depend on each other, so a backend asks for all of it at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from metasync.backends.api import Inventory, Item, Listed
from metasync.backends.names import is_name, split_folder, split_path
from metasync.errors import NotFoundError

FOLDERS: Final = 32  # listed at once, which is one call: those above it have a time-out for that
NAMES: Final = 1 << 12
DEPTH_MAX: Final = 16  # below the folder that was asked for; a store may have folders in folders without an end
_FOLDERS_FIRST: Final = 4
_CURSOR: Final = re.compile("([1-9][0-9]?):(.*)", re.DOTALL)

Listings: TypeAlias = Mapping[str, Iterable[Listed]]
"""By folder, what lies directly in it; nothing where there is no such folder."""


def inventory(path: str, cursor: str, listings: Callable[[Sequence[str]], Listings]) -> Inventory:
    """A page, for `backends.Inventories`. `listings` lists folders, at most `FOLDERS` of them at once."""
    todo = page(path, cursor)
    try:
        folders = next(todo)
        while True:
            folders = todo.send(listings(folders))
    except StopIteration as end:
        found: Inventory = end.value
        return found


def page(path: str, cursor: str) -> Generator[list[str], Listings, Inventory]:
    """Yields folders that are to be listed, and takes their listings. -> the page behind `cursor`.

    `NotFoundError` for a cursor that no page has.
    """
    split_path(path)
    at_once, last = _FOLDERS_FIRST, None
    waiting = [""]  # folders that are not told yet, the next one last
    if cursor:
        at_once, last = _taken_apart(cursor)
        waiting = yield from _behind(path, last)
    items: list[Item] = []
    listed: dict[str, list[Listed]] = {}
    told = 0
    while waiting and told < at_once:
        some = waiting[: told - at_once - 1 : -1]
        if unknown := [folder for folder in some if folder not in listed]:
            found = yield [_below(path, folder) for folder in unknown]
            listed.update((folder, _sorted(found.get(_below(path, folder), ()))) for folder in unknown)
        for folder in some:
            entries = listed.pop(folder)
            items += [Item(_below(folder, e.name), e.size) for e in entries if e.size is not None]
            last, told = waiting.pop(), told + 1
            if inner := _inner(folder, entries):
                waiting += inner
                break
    at_once = max(1, min(FOLDERS, 4 * at_once, NAMES * told // max(1, len(items))))
    return Inventory(tuple(items), f"{at_once}:{last}" if waiting else "", bool(waiting))


def _behind(path: str, last: str) -> Generator[list[str], Listings, list[str]]:
    """The folders next to those on the way to `last`, and below it, that come behind it; the next one last."""
    parts = split_folder(last)
    way = ["/".join(parts[:n]) for n in range(len(parts) + 1)]
    found = yield [_below(path, folder) for folder in way]
    out: list[str] = []
    for n, folder in enumerate(way):
        inner = _inner(folder, _sorted(found.get(_below(path, folder), ())))
        out += [name for name in inner if n == len(parts) or name > way[n + 1]]
    return out


def _sorted(entries: Iterable[Listed]) -> list[Listed]:
    return sorted((e for e in entries if is_name(e.name)), key=lambda e: e.name)


def _inner(folder: str, entries: Sequence[Listed]) -> list[str]:
    """The folders in a folder, the first one last."""
    if folder.count("/") + bool(folder) >= DEPTH_MAX:
        return []
    return [_below(folder, e.name) for e in reversed(entries) if e.size is None]


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder and name else folder or name


def _taken_apart(cursor: str) -> tuple[int, str]:
    match = _CURSOR.fullmatch(cursor)
    try:
        if match is None or int(match[1]) > FOLDERS:
            raise ValueError
        split_folder(match[2])
    except ValueError:
        raise NotFoundError(f"{cursor[:40]!r} is no cursor of an inventory") from None
    return int(match[1]), match[2]
