"""`metasync scrub`: looks at what the backends say that they hold, and mends what is missing or other than agreed.

Theory of operation (docs/design/scrub.md). A backend with a feed tells what has changed since the last scrub; another
one is listed once a day. What it tells is compared with the newest index by digests of partitions
(`store.inventory`), and what was found well is not compared again. Only of the packs that differ the backends are
asked, as by `check`, and what is wrong with them goes the way of `check --repair`. So a listing decides nothing: a
store that lies in it causes questions, and one that hides damage is found out by `check` alone.

Scrubs of several devices, or processes, do not hurt each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from metasync.backends.api import Inventory, Item
from metasync.consensus import State
from metasync.errors import BackendError, FormatError, NotFoundError
from metasync.events import Phase
from metasync.keys.derive import sha256
from metasync.local.state_keys import LOOKS, SHORT_KEY, TOLD, Look, ToldPacks
from metasync.maintenance import check, sweep
from metasync.maintenance.repair import repair
from metasync.reports.backends import Repaired, ScrubLook, ScrubReport
from metasync.runtime.effects import Op, Reply, Task, Urgency, together
from metasync.session import agreement
from metasync.session.session import Agreed, Operations, Session
from metasync.store import inventory
from metasync.store.index import PackId, PackRecord
from metasync.store.inventory import Listing, Told
from metasync.store.placement import partition_of
from metasync.sync.operations import changing
from metasync.transfer.copies import Place

if TYPE_CHECKING:
    from metasync.maintenance.repair import Finding

DAY_NS: Final = 86_400 * 10**9  # between two listings of a backend without a feed
LATER_NS: Final = 3600 * 10**9  # a look that is noted further in the future was noted by a wrong clock
PACKS_MAX: Final = 1 << 24  # told by one backend at once: 300 MB; more than that is a listing without an end
PAGES_MAX: Final = 1 << 16
CURSOR_CHARS_MAX: Final = 4096
LIST_TIMEOUT_S: Final = 120.0
_PATH: Final = re.compile("(0|[1-9][0-9]{0,18})/([0-9a-f]{2})/([0-9a-f]{64})")

How = Literal["listed", "changes", "not due", "away"]


@dataclass
class _Heard:
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


def scrub(work: Operations, *, full: bool = False) -> ScrubReport:
    """Looks at all backends, and mends what is found: see `Workspace.scrub`.

    The folder's lock is held for the mending alone, so pushes go on beside a long listing.
    """
    with work.session("scrub") as s:
        found = _Scrub(s, full=full)
        found.look()
        if not found.findings:
            return found.report(None)
    with changing(work, "scrub") as s:
        return found.mended(s)


class _Scrub:
    """One look at all backends."""

    def __init__(self, s: Session, *, full: bool) -> None:
        self.s = s
        self.full = full
        self.state: State | None = None
        self.heard: list[_Heard] = []
        self.records: dict[bytes, PackRecord] = {}  # by key, of the packs in partitions that differ
        self.wanted: Mapping[bytes, Mapping[int, bytes]] = {}
        self.index = b""  # the hash of the index that was compared with
        self.doubted: set[bytes] = set()  # packs of which a backend tells another digest: to be read
        self.compared = self.asked = 0
        self.findings: list[Finding] = []
        self.looked = check.Looked(read_data=False)

    # --- what the backends tell

    def look(self) -> None:
        """Asks every backend for what it holds, compares, and asks again for what differs."""
        s = self.s
        s.listener(Phase("scrub"))
        self.state = state = s.newest_state()
        known = {row.backend: row for row in s.db.records(LOOKS)}
        self.heard = self._begun(known)
        self._read_feeds([h for h in self.heard if h.how != "away" and not self.full and _has_feed(h.look)])
        due = [h for h in self.heard if h.how == "not due" and self._is_due(h.look)]
        quiet = not due and all(h.how == "not due" or self._is_quiet(h) for h in self.heard)
        if not quiet:
            config = s.connections.config_hash
            self.state = state = agreement.ask_newest(s)
            if s.connections.config_hash != config:  # other backends, or other places there
                self.heard = self._begun(known)
                due = [h for h in self.heard if h.how != "away"]
        self._list(due)
        fresh = [h for h in self.heard if h.how in ("listed", "changes")]
        todo = [h for h in fresh if h.is_new or h.changes or h.look.compared != state.index.hash]
        if todo:
            self._compare(todo, s.load(state))
        self._note(s)

    def _is_quiet(self, h: _Heard) -> bool:
        """Whether a backend has nothing that was not compared with the newest index known here.

        Where all are so, nobody has stored a pack since, and there is no newer version that needs one.
        """
        return h.how == "changes" and not h.changes and h.look.compared == self.s.newest_state().index.hash

    def _is_due(self, look: Look) -> bool:
        now = self.s.wall_ns()
        return self.full or not look.at_ns - LATER_NS <= now < look.at_ns + DAY_NS

    def _begun(self, known: Mapping[bytes, Look]) -> list[_Heard]:
        return [self._begun_at(place, known.get(place.backend_id)) for place in _places(self.s)]

    def _begun_at(self, place: Place, look: Look | None) -> _Heard:
        stores = sha256(b"".join(place.storage_ids) + str(self.s.transfer.placement.partitions).encode())
        if look is None or look.stores != stores:
            look = Look(place.backend_id, stores, "", 0, b"", 0)
        heard = _Heard(place, look)
        away = self.s.out.get(place.name) or self.s.transfer.down.get(place.name)
        if away is not None:
            heard.how, heard.why = "away", away.message
        return heard

    def _read_feeds(self, heard: Sequence[_Heard]) -> None:
        """Has the backends tell what has changed; all at once."""
        self.s.runtime.run(together({h.place.name: _heeding(h, _changes(h)) for h in heard}))
        for h in heard:
            if h.how == "changes":
                h.look = h.look._replace(at_ns=self.s.wall_ns())

    def _list(self, heard: Sequence[_Heard]) -> None:
        """Has the backends list all that they hold; all at once."""
        now, partitions = self.s.wall_ns(), self.s.transfer.placement.partitions
        lists = {h.place.name: Listing(partitions) for h in heard}
        tasks = {h.place.name: _heeding(h, _listed(h, lists[h.place.name])) for h in heard}
        has_power: Mapping[str, bool] = self.s.runtime.run(together(tasks))
        before = self._before(heard)
        for h in heard:
            if not has_power[h.place.name]:
                self._list_folders(h, lists[h.place.name])
            if h.how == "listed":
                h.told, h.is_new = lists[h.place.name].told(), True
                h.told.well = before[h.place.backend_id].well
                h.look = h.look._replace(at_ns=now, compared=b"", packs=len(h.told))

    def _list_folders(self, h: _Heard, listing: Listing) -> None:
        try:
            for copy in sweep.listed_on(self.s, h.place):
                listing.add(copy.id, inventory.entry(copy.id, copy.size))
                _check_end(h.place, listing.packs)
        except BackendError as e:
            h.how, h.why = "away", e.message
        else:
            h.how, h.look = "listed", h.look._replace(cursors="")

    # --- comparing

    def _compare(self, heard: Sequence[_Heard], agreed: Agreed) -> None:
        s, packs, self.index = self.s, agreed.index.packs(), agreed.state.index.hash
        self.wanted = inventory.wanted(packs.values(), s.transfer.placement)
        self._load([h for h in heard if h.told is None])
        differing = {}
        for h in heard:
            assert h.told is not None
            differing[h.place.name] = list(h.told.differing(self.wanted[h.place.backend_id]))
            self.compared += len(h.told.parts.keys() | self.wanted[h.place.backend_id].keys())
        self._find(packs.values(), {p for some in differing.values() for p in some})
        marks = {key: inventory.marks_of(record) for key, record in self.records.items()}
        for h in heard:
            assert h.told is not None
            right = self.wanted[h.place.backend_id]
            for p in differing[h.place.name]:
                if wrong := h.told.wrong_in(p, right.get(p, b""), marks):
                    h.wrong[p] = list(wrong)
                    self.doubted |= {key for key, is_doubted in wrong.items() if is_doubted}
                else:
                    h.told.note_well(p, right.get(p, b""))
            h.is_new |= bool(differing[h.place.name])
        suspects = {key: self.records[key] for h in heard for keys in h.wrong.values() for key in keys}
        self._look_at(s, agreed, list(suspects.values()))
        for h in heard:
            h.look = h.look._replace(compared=b"" if h.wrong else self.index, packs=len(h.told or ()))

    def _load(self, heard: Sequence[_Heard]) -> None:
        """Loads what these backends had told before, and adds what they told now."""
        before = self._before(heard)
        for h in heard:
            h.told = before[h.place.backend_id]
            for pack_id, one in h.changes.items():
                h.told.put(pack_id, one)
            h.is_new |= bool(h.changes)

    def _before(self, heard: Sequence[_Heard]) -> dict[bytes, Told]:
        """What these backends had told in earlier scrubs, by id."""
        rows = {row.backend: row.told for row in self.s.db.records(TOLD)} if heard else {}
        partitions = self.s.transfer.placement.partitions
        return {h.place.backend_id: _decoded(rows.get(h.place.backend_id, b""), partitions) for h in heard}

    def _find(self, packs: Iterable[PackRecord], partitions: set[int]) -> None:
        for record in packs if partitions else ():
            if partition_of(record.name, self.s.transfer.placement.partitions) in partitions:
                self.records[inventory.key_of(record.id)] = record

    def _look_at(self, s: Session, agreed: Agreed, suspects: Sequence[PackRecord]) -> None:
        """Looks at these packs as `check` does, and takes what is right for told."""
        self.asked = max(self.asked, len(suspects))
        doubted = [p for p in suspects if inventory.key_of(p.id) in self.doubted]
        others = [p for p in suspects if inventory.key_of(p.id) not in self.doubted]
        self.looked = check.Looked(read_data=False, sound=set()).at(s, agreed, others)
        self.looked.read_data = True
        self.looked.at(s, agreed, doubted)
        self.findings = [finding for _, finding in self.looked.found.values()]
        named = agreed.index.packs()
        for h in self.heard:
            for p, keys in list(h.wrong.items()):
                left = [k for k in keys if not self._is_settled(h, self.records[k], named)]
                if left:
                    h.wrong[p] = left
                else:
                    del h.wrong[p]
                    assert h.told is not None
                    h.told.note_well(p, self.wanted[h.place.backend_id].get(p, b""))

    def _is_settled(self, h: _Heard, record: PackRecord, named: Mapping[PackId, PackRecord]) -> bool:
        if record.id not in named:
            return True  # it went on purpose
        assert h.told is not None
        assert self.looked.sound is not None
        if (h.place.name, record.id) not in self.looked.sound:
            return False
        if not h.told.has(record.id):  # it came after it was listed; else the same is told the next time, and is known
            h.told.put(record.id, inventory.entry(record.id, record.size))
        return True

    # --- what comes of it

    def mended(self, s: Session) -> ScrubReport:
        """Makes whole what was found, and looks at that again."""
        agreed, found = agreement.newest(s), self.looked.problems
        left = [f for f in self.findings if f.record.id in agreed.index.packs()]
        repaired, agreed = repair(s, agreed, left, nowhere=False)
        packs = agreed.index.packs()
        self._look_at(s, agreed, [f.record for f in left if f.record.id in packs])
        for h in self.heard:
            if not h.wrong and h.look.compared == b"" and h.how in ("listed", "changes"):
                h.look = h.look._replace(compared=self.index)
        self.state = agreed.state
        self._note(s)
        return self.report(replace(repaired, found=found))

    def _note(self, s: Session) -> None:
        """Notes what was seen for the next scrub, and how many packs have too few copies if all were compared."""
        heard = [h for h in self.heard if h.how in ("listed", "changes")]
        with s.db.transaction():
            s.db.put_records(
                TOLD, [ToldPacks(h.place.backend_id, h.told.encode()) for h in heard if h.is_new and h.told is not None]
            )
            s.db.put_records(LOOKS, [h.look for h in heard])
            if len(heard) == len(self.heard) == sum(b.storage != () for b in s.config.backends):
                s.db.set(SHORT_KEY, self._short(s))

    def _short(self, s: Session) -> int:
        wanted = s.transfer.placement.copies
        return sum(verdict.good < wanted for verdict, _ in self.looked.found.values())

    def report(self, repaired: Repaired | None) -> ScrubReport:
        assert self.state is not None
        found = self.looked.found
        return ScrubReport(
            version=self.state.v,
            backends=tuple(
                ScrubLook(h.place.name, h.how, h.look.packs, len(h.changes), h.look.at_ns or None, h.why)
                for h in self.heard
            ),
            compared=self.compared,
            asked=self.asked,
            problems=self.looked.problems,
            lost=tuple(sorted(name for (_, name), (verdict, _) in found.items() if not verdict.good)),
            short=self._short(self.s),
            repaired=repaired,
        )


def _places(s: Session) -> list[Place]:
    """The backends of today that hold packs and that this device has a way to."""
    ids = [b.backend_id for b in s.config.backends if b.storage]
    return sorted(s.transfer.places[i] for i in ids if i in s.transfer.places)


def _has_feed(look: Look) -> bool:
    return look.at_ns > 0 and all(look.cursors.split("\n"))


def _decoded(data: bytes, partitions: int) -> Told:
    """What was stored; nothing where that is damaged, so that all is asked about anew."""
    try:
        told = Told.decode(data) if data else Told(partitions)
    except FormatError:
        return Told(partitions)
    return told if told.partitions == partitions else Told(partitions)


# --- what one backend tells


def _heeding(h: _Heard, task: Task) -> Task:
    """The same; a backend that tells what cannot be is away."""
    try:
        return (yield from task)
    except BackendError as e:
        h.how, h.why = "away", e.message
        return True


def _changes(h: _Heard) -> Task:
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
            _check_end(h.place, len(h.changes))
            cursor = _checked(h.place, page.cursor)
            if not page.more:
                break
        cursors.append(cursor)
    h.how, h.look = "changes", h.look._replace(cursors="\n".join(cursors))


def _listed(h: _Heard, listing: Listing) -> Task:
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
            _check_end(h.place, listing.packs)
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


def _check_end(place: Place, packs: int) -> None:
    if packs > PACKS_MAX:
        raise BackendError(f"{place.name}: its inventory has no end", retryable=False)
