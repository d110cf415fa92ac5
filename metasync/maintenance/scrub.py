"""`metasync scrub`: looks at what the backends say that they hold, and mends what is missing or other than agreed.

Theory of operation (docs/design/scrub.md). A backend with a feed tells what has changed since the last scrub; another
one is listed once a day. What it tells is compared with the newest index by digests of partitions
(`store.inventory`), and what was found well is not compared again. Only of the packs that differ the backends are
asked, as by `check`, and what is wrong with them goes the way of `check --repair`. So a listing decides nothing: a
store that lies in it causes questions, and one that hides damage is found out by `check` alone.

Scrubs of several devices, or processes, do not hurt each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

from metasync.consensus import State
from metasync.errors import FormatError
from metasync.events import Phase
from metasync.keys.derive import sha256
from metasync.local import settings
from metasync.local.state_keys import HUNG_KEY, LOOKS, SHORT_KEY, TOLD, Look, ToldPacks
from metasync.maintenance import check, scrub_record
from metasync.maintenance.repair.mend import repair
from metasync.maintenance.scrub_failures import Failing
from metasync.maintenance.scrub_reading import Reader
from metasync.maintenance.scrub_record import DAY_NS, LATER_NS, is_within
from metasync.reports.checks import Repaired, ScrubLook, ScrubReport
from metasync.runtime.effects import together
from metasync.runtime.limits import SCRUB_DAYS
from metasync.session import agreement
from metasync.session.session import Agreed, Operations, Session
from metasync.store import inventory, moves
from metasync.store.index import PackId, PackRecord
from metasync.store.inventory import Listing, Told
from metasync.store.moves import Places
from metasync.store.placement import PARTITION_BYTES, partition_of
from metasync.sync.operations import changing
from metasync.transfer import wrong_copies
from metasync.transfer.copies import Place
from metasync.transfer.inventories import Heard, changes, has_feed, heeding, listed

if TYPE_CHECKING:
    from metasync.maintenance.repair.mend import Finding

OWN_NS: Final = 30 * DAY_NS  # for so long what other devices say of a backend does for a look of one's own
READ_DAYS: Final = 90  # within which every copy is read where a store tells no digests, if nothing else is set
READ_AT_ONCE: Final = 4  # copies, each held in memory


def scrub(work: Operations, *, full: bool = False, read_bytes_max: int | None = None) -> ScrubReport:
    """Looks at all backends, and mends what is found: see `Workspace.scrub`.

    `read_bytes_max`: about so much is read of copies whose turn it is, the rest in later scrubs. The folder's lock
    is held for the mending alone, so pushes go on beside a long listing.
    """
    with work.session("scrub") as s:
        days = int(settings.read(work.settings_path).values.get(SCRUB_DAYS, READ_DAYS))
        found = _Scrub(s, full=full, read_ns=days * DAY_NS)
        found.read_bytes_max = read_bytes_max
        found.look()
        if not found.findings:
            return found.report(None)
    with changing(work, "scrub") as s:
        return found.mended(s)


def read_in_turn(work: Operations, left_s: Callable[[], float]) -> bool:
    """Reads copies whose turn it is, while time is left. -> whether none is due any more.

    What is wrong is noted, and made good by a later push. Nothing is listed, and no lock is held.
    """
    days = int(settings.read(work.settings_path).values.get(SCRUB_DAYS, READ_DAYS))
    with work.session("scrub") as s:
        found = _Scrub(s, full=False, read_ns=days * DAY_NS)
        found.reader.left_s = left_s
        return found.read_in_turn()


class _Scrub:
    """One look at all backends."""

    def __init__(self, s: Session, *, full: bool, read_ns: int) -> None:
        """`read_ns`: within this time every copy is to be read, where no digest is told; 0: none is."""
        self.s = s
        self.full = full
        self.read_ns = read_ns
        self.read_bytes_max: int | None = None
        self.read = self.bytes_read = 0
        self.state: State | None = None
        self.heard: list[Heard] = []
        self.places = Places(s.config, s.previous)
        self.reader = Reader(s, self.places)
        self.failing = Failing(s)
        self.displaced: Callable[[int], bool]  # whether a change of the backends has a partition's packs moved
        self.moving: set[PackId] = set()  # packs on their way from one mapping to another that have too few copies
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
        self._read_feeds([h for h in self.heard if h.how != "away" and not self.full and has_feed(h.look)])
        due = [h for h in self.heard if h.how == "not due" and self._is_due(h.look)]
        quiet = (
            not due
            and not any(map(self._is_to_read, self.heard))
            and all(h.how == "not due" or self._is_quiet(h) for h in self.heard)
        )
        if not quiet:
            config = s.connections.config_hash
            self.state = state = agreement.ask_newest(s)
            if s.connections.config_hash != config:  # other backends, or other places there
                self.heard = self._begun(known)
                due = [h for h in self.heard if h.how != "away"]
            scrub_record.hear(s, state, self.heard, [h for h in self.heard if h in due or self._is_to_read(h)])
            due = [h for h in due if self._is_due(h.look)]
        self._list(due)
        fresh = [h for h in self.heard if h.how in ("listed", "changes")]
        todo = [h for h in fresh if h.is_new or h.changes or h.look.compared != state.index.hash]
        if todo:
            self._compare(todo, s.load(state))
        if to_read := [h for h in self.heard if self._is_to_read(h)]:
            self._read_copies(to_read, s.load(state))
        self._note(s)
        if not self.findings:
            scrub_record.tell(s, state, self.heard)

    def _is_quiet(self, h: Heard) -> bool:
        """Whether a backend has nothing that was not compared with the newest index known here.

        Where all are so, nobody has stored a pack since, and there is no newer version that needs one.
        """
        return h.how == "changes" and not h.changes and h.look.compared == self.s.newest_state().index.hash

    def _is_due(self, look: Look) -> bool:
        now = self.s.wall_ns()
        own, others = is_within(look.at_ns, now, DAY_NS), is_within(look.others_ns, now, DAY_NS)
        alone = look.since_ns != 0 and not is_within(look.since_ns, now, OWN_NS)
        return self.full or not (own or (others and not alone))

    def _is_to_read(self, h: Heard) -> bool:
        """Whether copies are due to be read: once a day, so that many days share the work evenly."""
        if not self.read_ns or h.how == "away":
            return False
        now = self.s.wall_ns()
        if not h.look.read_ns or now < h.look.read_ns - LATER_NS:  # what was stored before is read within the period
            h.look = h.look._replace(read_ns=now)
            h.is_begun = True
        return now >= h.look.read_ns + min(DAY_NS, self.read_ns)

    def _begun(self, known: Mapping[bytes, Look]) -> list[Heard]:
        self.places = places = Places(self.s.config, self.s.previous)
        self.displaced = cache(lambda partition: places.is_displaced(partition.to_bytes(PARTITION_BYTES, "big")))
        heard = [self._begun_at(place, known.get(place.backend_id)) for place in _places(self.s)]
        self.failing.pass_over(self.s, heard)
        # What comes back is mended first, then what was away for longest.
        return sorted(heard, key=lambda h: (not self.failing.is_noted(h.place), h.look.at_ns))

    def _begun_at(self, place: Place, look: Look | None) -> Heard:
        partitions = str(self.s.transfer.placement.partitions).encode()
        stores = sha256(b"".join(place.storage_ids) + partitions + moves.trims(self.s.config))
        if look is None or look.stores != stores:
            was = look or Look(place.backend_id)
            look = Look(place.backend_id, stores, read_to=was.read_to, read_ns=was.read_ns)
        heard = Heard(place, look)
        heard.counts = lambda storage_id, name: storage_id in self.places.ids(place.backend_id, name)
        away = self.s.out.get(place.name) or self.s.transfer.down.get(place.name) or self.failing.passed_over(place)
        if away is not None:
            heard.how, heard.why = "away", away.message
        return heard

    def _read_feeds(self, heard: Sequence[Heard]) -> None:
        """Has the backends tell what has changed; all at once."""
        self.s.runtime.run(together({h.place.name: heeding(h, changes(h)) for h in heard}))
        self.failing.heed(heard)
        for h in heard:
            if h.how == "changes":
                h.look = h.look._replace(at_ns=self.s.wall_ns())

    def _list(self, heard: Sequence[Heard]) -> None:
        """Has the backends list all that they hold; all at once."""
        now, partitions = self.s.wall_ns(), self.s.transfer.placement.partitions
        lists = {h.place.name: Listing(partitions) for h in heard}
        tasks = {h.place.name: heeding(h, listed(h, lists[h.place.name])) for h in heard}
        self.s.runtime.run(together(tasks))
        self.failing.heed(heard)
        before = self._before(heard)
        for h in heard:
            if h.how == "listed":
                h.told, h.is_new = lists[h.place.name].told(), True
                h.told.well = before[h.place.backend_id].well
                h.look = h.look._replace(at_ns=now, compared=b"", packs=len(h.told), since_ns=0)
                h.is_to_tell = not has_feed(h.look)

    # --- comparing

    def _compare(self, heard: Sequence[Heard], agreed: Agreed) -> None:
        s, packs, self.index = self.s, agreed.index.packs(), agreed.state.index.hash
        self.wanted = inventory.wanted(self._settled(packs.values()), s.transfer.placement)
        self._load([h for h in heard if h.told is None])
        differing = {}
        for h in heard:
            assert h.told is not None
            right = self.wanted[h.place.backend_id]
            differing[h.place.name] = [p for p in h.told.differing(right) if not self.displaced(p)]
            self.compared += sum(not self.displaced(p) for p in h.told.parts.keys() | right.keys())
        self._find(packs.values(), {p for some in differing.values() for p in some})
        marks = {key: inventory.marks_of(record, s.form.digests) for key, record in self.records.items()}
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
        short = self._short_while_moving(packs.values())
        self.moving = {p.id for p in short}
        self._look_at(s, agreed, [*suspects.values(), *short])
        for h in heard:
            compared = b"" if h.wrong or self.moving & self.looked.found.keys() else self.index
            h.look = h.look._replace(compared=compared, packs=len(h.told or ()))

    def _short_while_moving(self, packs: Iterable[PackRecord]) -> list[PackRecord]:
        """The packs under way between mappings of which the backends of these do not tell enough copies.

        A backend that is away, or no longer one of the workspace's, may have a copy. `rebalance` finds out.
        """
        moving = [p for p in packs if self.displaced(self.places.partition(p.name))]
        if not moving:
            return []
        self._load([h for h in self.heard if h.told is None and h.how != "away" and h.look.at_ns])
        told = {h.place.backend_id: h.told for h in self.heard}
        records = {inventory.key_of(p.id): p for p in moving}
        marks = {key: inventory.marks_of(record, self.s.form.digests) for key, record in records.items()}
        out = []
        for p, right in inventory.by_partition(moving, self.places.now.partitions).items():
            name = p.to_bytes(PARTITION_BYTES, "big")
            holders = [told.get(i) for i in {*self.places.primary(name), *self.places.had(name)}]
            short = inventory.short_of(p, right, holders, self.places.copies_least, marks)
            self.doubted |= {key for key, is_doubted in short.items() if is_doubted}
            self.compared += len(holders)
            out += [records[key] for key in short]
        return out

    # --- reading copies

    def _read_copies(self, heard: Sequence[Heard], agreed: Agreed) -> None:
        """Reads the copies that are due on these backends, and looks closer at packs of which one is wrong."""
        packs = agreed.index.packs()
        if not self.wanted:
            self.wanted = inventory.wanted(self._settled(packs.values()), self.s.transfer.placement)
        self._load([h for h in heard if h.told is None])
        for h in heard:
            self._read_due(h, self._settled(packs.values()))
        if any(h.wrong for h in heard):
            suspects = {key: self.records[key] for h in self.heard for keys in h.wrong.values() for key in keys}
            self._look_at(self.s, agreed, list(suspects.values()))

    def read_in_turn(self) -> bool:
        """See `read_in_turn`."""
        s = self.s
        self.state = state = s.newest_state()
        known = {row.backend: row for row in s.db.records(LOOKS)}
        self.heard = self._begun(known)
        hung = s.db.get(HUNG_KEY) or {}
        due = [h for h in self.heard if self._is_to_read(h) and h.place.name not in hung]
        scrub_record.hear(s, state, self.heard, due)
        due = [h for h in due if self._is_to_read(h)]
        if due:
            self._read_copies(due, s.load(state))
            wrong_copies.note(s.db, [f.record.name for f in self.findings if f.good])
            check.note_bad(s, self.findings, missing=True)
        if not self.findings:
            scrub_record.tell(s, state, self.heard)
        is_done = not any(map(self._is_to_read, due))
        for h in self.heard:
            h.look = known.get(h.look.backend, h.look)._replace(read_to=h.look.read_to, read_ns=h.look.read_ns)
        self._note(s)
        return is_done

    def _read_due(self, h: Heard, packs: Iterable[PackRecord]) -> None:
        """Reads the copies on a backend that are due, and notes up to where. It stops where a copy cannot be had."""
        assert h.told is not None
        t, now = self.s.transfer, self.s.wall_ns()
        is_only = t.placement.copies == 1  # then a digest is the word of the one store there is
        elapsed = min(now - h.look.read_ns, self.read_ns)
        span = elapsed * inventory.CIRCLE // self.read_ns
        due = []
        for p in packs:
            away = inventory.place_on_circle(p.name, h.place.backend_id, h.look.read_to)
            if away < span and h.place.backend_id in t.placement.primary(p.name):
                due += [(away, p)] if is_only or not h.told.has_digest(p.id) else []
        due.sort(key=lambda one: one[0])
        at = 0
        while at < len(due) and (self.read_bytes_max is None or self.bytes_read < self.read_bytes_max):
            some = self.reader.in_time(h, [p for _, p in due[at : at + READ_AT_ONCE]])
            states = self.reader.copies(h, some)
            if not states:  # the time is over
                break
            if silent := sum(state.unknown for state in states):  # it is away: the next time
                self.failing.silent({h.place.name: silent})
                break
            at += len(some)
            self.read += len(some)
            self.bytes_read += sum(state.bytes_read for state in states)
            for p in (p for p, state in zip(some, states, strict=True) if state.problem is not None):
                key = inventory.key_of(p.id)
                self.records[key] = p
                self.doubted.add(key)
                h.wrong.setdefault(partition_of(p.name, t.placement.partitions), []).append(key)
        if at < len(due):
            now, span = h.look.read_ns + elapsed * due[at][0] // span, due[at][0]
        h.look = h.look._replace(read_to=(h.look.read_to + span) % inventory.CIRCLE, read_ns=now)
        h.is_begun = h.is_to_tell = True

    def _settled(self, packs: Iterable[PackRecord]) -> Iterable[PackRecord]:
        """The packs that no change of the backends displaces."""
        return (p for p in packs if not self.displaced(self.places.partition(p.name)))

    def _load(self, heard: Sequence[Heard]) -> None:
        """Loads what these backends had told before, and adds what they told now."""
        before = self._before(heard)
        for h in heard:
            h.told = before[h.place.backend_id]
            for pack_id, one in h.changes.items():
                h.told.put(pack_id, one)
            h.is_new |= bool(h.changes)

    def _before(self, heard: Sequence[Heard]) -> dict[bytes, Told]:
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
        self.failing.silent(self.looked.silent)
        self.looked.read_data, self.looked.silent = True, Counter()
        self.looked.at(s, agreed, doubted)
        self.failing.silent(self.looked.silent)
        turn = {p.id: n for n, p in enumerate(suspects)}  # those of the backend that was away for longest come first
        found = sorted(self.looked.found.items(), key=lambda item: turn[item[0]])
        self.findings = [finding for _, (_, finding) in found]
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

    def _is_settled(self, h: Heard, record: PackRecord, named: Mapping[PackId, PackRecord]) -> bool:
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
        self.failing.pass_over(s, self.heard)
        agreed, found = agreement.newest(s), self.looked.problems
        packs = agreed.index.packs()  # made anew at each call
        left = [f for f in self.findings if f.record.id in packs]
        repaired, agreed = repair(s, agreed, left, nowhere=False)
        packs = agreed.index.packs()
        self._look_at(s, agreed, [f.record for f in left if f.record.id in packs])
        wrong_copies.mended(s.db, {f.record.name for f in left if f.by_bytes})
        check.note_bad(s, self.findings)
        for h in self.heard:
            is_left = h.wrong or self.moving & self.looked.found.keys()
            if not is_left and h.look.compared == b"" and h.how in ("listed", "changes"):
                h.look = h.look._replace(compared=self.index)
        self.state = agreed.state
        self._note(s)
        scrub_record.tell(s, agreed.state, self.heard)
        return self.report(replace(repaired, found=found))

    def _note(self, s: Session) -> None:
        """Notes what was seen for the next scrub, and how many packs have too few copies if all were compared."""
        heard = [h for h in self.heard if h.how in ("listed", "changes")]
        noted = [h.look for h in self.heard if h in heard or h.is_begun]
        with s.db.transaction():
            s.db.put_records(
                TOLD, [ToldPacks(h.place.backend_id, h.told.encode()) for h in heard if h.is_new and h.told is not None]
            )
            s.db.put_records(LOOKS, noted)
            if s.previous is None and len(heard) == len(self.heard) == sum(b.storage != () for b in s.config.backends):
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
                ScrubLook(h.place.name, h.how, h.look.packs, len(h.changes), _seen_ns(h.look), h.why)
                for h in self.heard
            ),
            compared=self.compared,
            asked=self.asked,
            read=self.read,
            bytes_read=self.bytes_read,
            problems=self.looked.problems,
            lost=tuple(sorted(f.record.name for _, f in found.values() if not f.good)),
            short=self._short(self.s),
            repaired=repaired,
        )


def _places(s: Session) -> list[Place]:
    """The backends of today that hold packs and that this device has a way to."""
    ids = [b.backend_id for b in s.config.backends if b.storage]
    return sorted(s.transfer.places[i] for i in ids if i in s.transfer.places)


def _seen_ns(look: Look) -> int | None:
    """When all was last seen, by this device or another one."""
    return max(look.at_ns, look.others_ns) or None


def _decoded(data: bytes, partitions: int) -> Told:
    """What was stored; nothing where that is damaged, so that all is asked about anew."""
    try:
        told = Told.decode(data) if data else Told(partitions)
    except FormatError:
        return Told(partitions)
    return told if told.partitions == partitions else Told(partitions)
