"""What backends tell of the packs that they hold: whole inventories, a page at a time, or feeds of changes.

Whoever wants to know what lies on a backend asks here: scrubs, the collection of garbage, what frees surplus copies. A
backend without the power is listed folder by folder, by the same walk as those that list so themselves. Whatever comes
is bounded, and what is no pack of ours is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from metasync.backends import walk
from metasync.backends.api import Inventory, Item
from metasync.errors import BackendError, NotFoundError
from metasync.local.state_keys import Look
from metasync.runtime.effects import Op, Reply, Task, Urgency, each
from metasync.store import inventory
from metasync.store.index import PackId
from metasync.store.inventory import Listing, Told
from metasync.transfer.copies import Place, pack_path

if TYPE_CHECKING:
    from metasync.consensus.records.scrubbed import Scrubbed

PACKS_MAX: Final = 1 << 24  # told by one backend at once: 300 MB; more than that is a listing without an end
PAGES_MAX: Final = 1 << 16
CURSOR_CHARS_MAX: Final = 4096
LIST_TIMEOUT_S: Final = 120.0
_PATH: Final = re.compile("(0|[1-9][0-9]{0,18})/([0-9a-f]{2})/([0-9a-f]{64})")
_GENERATION: Final = re.compile("0|[1-9][0-9]{0,18}")
_FOLDER: Final = re.compile("(0|[1-9][0-9]{0,18})(/[0-9a-f]{2})?")  # above packs


class Copy(NamedTuple):
    """A pack as a backend lists it: on which, under which storage id, which, its bytes, and its digest where told."""

    backend: str
    storage_id: bytes
    id: PackId
    size: int
    digest: bytes | None = None

    @property
    def path(self) -> str:
        return pack_path(self.storage_id, *self.id)


class Pages:
    """The packs that a backend lists under all its storage ids, of generations `below` this one if one is given.

    cursors  from which its feed goes on, by storage id; "" where it has none
    """

    def __init__(self, place: Place, below: int | None = None) -> None:
        self.cursors: list[str] = []
        self._place = place
        self._below = below
        self._ids = list(place.storage_ids)
        self._folders: list[str] = []  # of the first of these ids that are to be listed, the next one last
        self._cursor = ""
        self._page = 0
        self._packs = 0
        self._has_power = True

    def following(self) -> Task:
        """Reads the next page. -> its copies; None behind the last one. Raises the backend's errors."""
        while not self._folders:
            if not self._ids:
                return None
            self._folders = yield from self._begun(f"{self._ids[0].hex()}/packs")
            if not self._folders:
                self._ended("")
        storage_id, folder = self._ids[0], self._folders[-1]
        page = yield from self._read(folder)
        generation = folder.partition("/packs")[2].removeprefix("/")
        above = f"{generation}/" if generation else ""
        copies = [
            Copy(self._place.name, storage_id, pack_id, item.size, item.digest)
            for item in page.items
            if item.size is not None and (pack_id := _pack_id(above + item.name)) is not None
        ]
        self._packs += len(copies)
        self._page += 1
        if self._packs > PACKS_MAX or self._page >= PAGES_MAX:
            raise _endless(self._place)
        self._cursor = _checked(self._place, page.cursor)
        if not page.more:
            self._folders.pop()
            if not self._folders:
                self._ended(self._cursor if self._below is None else "")
            self._cursor, self._page = "", 0
        return copies

    def _ended(self, cursor: str) -> None:
        self.cursors.append(cursor)
        self._ids.pop(0)

    def _begun(self, top: str) -> Task:
        """-> the folders to be listed under a storage id, the first one last."""
        if self._below is None:
            return [top]
        reply: Reply = yield _op(self._place, "list", top)
        if reply.error is not None:
            raise reply.error
        names = [int(e.name) for e in reply.value if e.size is None and _GENERATION.fullmatch(e.name)]
        return [f"{top}/{g}" for g in sorted(names, reverse=True) if g < self._below]

    def _read(self, folder: str) -> Task:
        if self._has_power:
            reply: Reply = yield _op(self._place, "inventory", folder, self._cursor)
            if reply.error is not None:
                raise reply.error
            if reply.value is not None:
                return _page(self._place, reply)
            self._has_power = False
        todo = walk.page(folder, self._cursor)
        try:
            folders = next(todo)
            while True:
                replies = yield from each({f: _op(self._place, "list", f) for f in folders})
                for reply in replies.values():
                    if reply.error is not None:
                        raise reply.error
                folders = todo.send({f: replies[f].value for f in folders})
        except StopIteration as end:
            return end.value


How = Literal["listed", "changes", "not due", "away"]


@dataclass(eq=False)
class Heard:
    """One backend in a scrub. `look`: what was known of it before, and then after; `told`: None until it is needed.

    counts   whether a copy in a storage id counts: what a change of the backends has given up may go at any time
    seen     what another device said of it, or this one before
    changes  what its feed told: by pack, the entry, or None where it is gone
    wrong    by partition, the keys of packs that it has not as the index wants them
    """

    place: Place
    look: Look
    how: How = "not due"
    why: str = ""
    failed: BackendError | None = None
    counts: Callable[[bytes, bytes], bool] = lambda _storage_id, _name: True
    seen: Scrubbed | None = None
    told: Told | None = None
    changes: dict[PackId, bytes | None] = field(default_factory=dict)
    wrong: dict[int, list[bytes]] = field(default_factory=dict)
    is_new: bool = False  # `told` is to be stored
    is_to_tell: bool = False  # the others are to know of it
    is_begun: bool = False  # `look` is to be stored, though nothing was seen


def has_feed(look: Look) -> bool:
    return look.at_ns > 0 and all(look.cursors.split("\n"))


def heeding(h: Heard, task: Task) -> Task:
    """The same; a backend that tells what cannot be is away."""
    try:
        yield from task
    except BackendError as e:
        h.how, h.why, h.failed = "away", e.message, e


def changes(h: Heard) -> Task:
    """Reads the feed. Where its cursor is too old, or a folder is gone, nothing is known: all is to be listed."""
    cursors = []
    for storage_id, since in zip(h.place.storage_ids, h.look.cursors.split("\n"), strict=True):
        cursor = since
        for _ in range(PAGES_MAX):
            reply: Reply = yield _op(h.place, "inventory", f"{storage_id.hex()}/packs", cursor)
            is_too_old = isinstance(reply.error, NotFoundError)
            if reply.error is not None and not is_too_old:
                raise reply.error
            if reply.value is None and not is_too_old:
                raise BackendError(f"{h.place.name}: it tells no changes now", retryable=False)
            page = Inventory((), "", False) if is_too_old else _page(h.place, reply)
            if is_too_old or any(item.size is None and _FOLDER.fullmatch(item.name) for item in page.items):
                h.changes.clear()
                h.look = h.look._replace(at_ns=0)
                return
            h.changes.update((i, one) for i, one in _entries(page.items) if h.counts(storage_id, i[1]))
            cursor = _checked(h.place, page.cursor)
            if not page.more:
                break
            if len(h.changes) > PACKS_MAX:
                raise _endless(h.place)
        else:
            raise _endless(h.place)
        cursors.append(cursor)
    h.how, h.look = "changes", h.look._replace(cursors="\n".join(cursors))


def listed(h: Heard, listing: Listing) -> Task:
    """Lists all that a backend holds, as far as it counts."""
    pages = Pages(h.place)
    while (copies := (yield from pages.following())) is not None:
        for copy in copies:
            if h.counts(copy.storage_id, copy.id[1]):
                listing.add(copy.id, inventory.entry(copy.id, copy.size, copy.digest))
    h.how, h.look = "listed", h.look._replace(cursors="\n".join(pages.cursors))


def _op(place: Place, kind: Literal["inventory", "list"], path: str, cursor: str = "") -> Op:
    return Op(place.name, kind, path, timeout_s=LIST_TIMEOUT_S, urgency=Urgency.LATER, cursor=cursor)


def _page(place: Place, reply: Reply) -> Inventory:
    page = reply.value[1]
    if not isinstance(page, Inventory):
        raise BackendError(f"{place.name}: its inventory is none", retryable=False)
    return page


def _entries(items: Iterable[Item]) -> Iterator[tuple[PackId, bytes | None]]:
    """The packs among the items of a feed; None for those that are gone."""
    for name, size, digest, _ in items:
        if (pack_id := _pack_id(name)) is not None:
            yield pack_id, None if size is None else inventory.entry(pack_id, size, digest)


def _pack_id(path: str) -> PackId | None:
    """Which pack lies at a path below the folder of packs. What else lies there is somebody else's."""
    match = _PATH.fullmatch(path)
    return (int(match[1]), bytes.fromhex(match[3])) if match is not None and match[3].startswith(match[2]) else None


def _checked(place: Place, cursor: str) -> str:
    if len(cursor) > CURSOR_CHARS_MAX or "\n" in cursor:
        raise BackendError(f"{place.name}: its inventory has a cursor that is too long", retryable=False)
    return cursor


def _endless(place: Place) -> BackendError:
    return BackendError(f"{place.name}: its inventory has no end", retryable=False)
