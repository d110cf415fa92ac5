"""What backends tell of the packs that they hold: their feeds of changes, or whole inventories (`maintenance.scrub`).

Whatever comes is bounded, and what is no pack of ours is left out. A backend that tells nonsense counts as away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from metasync.backends.api import Inventory, Item
from metasync.errors import BackendError, NotFoundError
from metasync.local.state_keys import Look
from metasync.runtime.effects import Op, Reply, Task, Urgency
from metasync.store import inventory
from metasync.store.index import PackId
from metasync.store.inventory import Listing, Told
from metasync.transfer.copies import Place

PACKS_MAX: Final = 1 << 24  # told by one backend at once: 300 MB; more than that is a listing without an end
PAGES_MAX: Final = 1 << 16
CURSOR_CHARS_MAX: Final = 4096
LIST_TIMEOUT_S: Final = 120.0
_PATH: Final = re.compile("(0|[1-9][0-9]{0,18})/([0-9a-f]{2})/([0-9a-f]{64})")

How = Literal["listed", "changes", "not due", "away"]


@dataclass(eq=False)
class Heard:
    """One backend in a scrub. `look`: what was known of it before, and then after; `told`: None until it is needed.

    changes  what its feed told: by pack, the entry, or None where it is gone
    wrong    by partition, the keys of packs that it has not as the index wants them
    """

    place: Place
    look: Look
    how: How = "not due"
    why: str = ""
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
        return (yield from task)
    except BackendError as e:
        h.how, h.why = "away", e.message
        return True


def changes(h: Heard) -> Task:
    """Reads the feed. Where its cursor is too old nothing is known, so that all is to be listed."""
    cursors = []
    for storage_id, since in zip(h.place.storage_ids, h.look.cursors.split("\n"), strict=True):
        cursor = since
        for _ in range(PAGES_MAX):
            reply: Reply = yield _page_op(h.place, storage_id, cursor)
            if isinstance(reply.error, NotFoundError):
                h.changes.clear()
                h.look = h.look._replace(at_ns=0)
                return
            if reply.error is not None or reply.value is None:
                h.how, h.why = "away", reply.error.message if reply.error is not None else "it tells no changes now"
                return
            page = _page(h.place, reply)
            h.changes.update((pack_id, one) for pack_id, one in _entries(page.items))
            check_end(h.place, len(h.changes))
            cursor = _checked(h.place, page.cursor)
            if not page.more:
                break
        cursors.append(cursor)
    h.how, h.look = "changes", h.look._replace(cursors="\n".join(cursors))


def listed(h: Heard, listing: Listing) -> Task:
    """Reads a whole inventory. -> False where the backend has no such power."""
    cursors = []
    for storage_id in h.place.storage_ids:
        cursor = ""
        for _ in range(PAGES_MAX):
            reply: Reply = yield _page_op(h.place, storage_id, cursor)
            if reply.error is not None:
                h.how, h.why = "away", reply.error.message
                return True
            if reply.value is None:
                return False
            page = _page(h.place, reply)
            for pack_id, one in _entries(page.items):
                if one is not None:
                    listing.add(pack_id, one)
            check_end(h.place, listing.packs)
            cursor = _checked(h.place, page.cursor)
            if not page.more:
                break
        cursors.append(cursor)
    h.how, h.look = "listed", h.look._replace(cursors="\n".join(cursors))
    return True


def _page_op(place: Place, storage_id: bytes, cursor: str) -> Op:
    path = f"{storage_id.hex()}/packs"
    return Op(place.name, "inventory", path, timeout_s=LIST_TIMEOUT_S, urgency=Urgency.LATER, cursor=cursor)


def _page(place: Place, reply: Reply) -> Inventory:
    page = reply.value[1]
    if not isinstance(page, Inventory):
        raise BackendError(f"{place.name}: its inventory is none", retryable=False)
    return page


def _entries(items: Iterable[Item]) -> Iterator[tuple[PackId, bytes | None]]:
    """The packs among the items of a page. What else lies there is somebody else's."""
    for name, size, digest, _ in items:
        if (match := _PATH.fullmatch(name)) is not None and match[3].startswith(match[2]):
            pack_id = int(match[1]), bytes.fromhex(match[3])
            yield pack_id, None if size is None else inventory.entry(pack_id, size, digest)


def _checked(place: Place, cursor: str) -> str:
    if len(cursor) > CURSOR_CHARS_MAX or "\n" in cursor:
        raise BackendError(f"{place.name}: its inventory has a cursor that is too long", retryable=False)
    return cursor


def check_end(place: Place, packs: int) -> None:
    if packs > PACKS_MAX:
        raise BackendError(f"{place.name}: its inventory has no end", retryable=False)
