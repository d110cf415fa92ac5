"""`metasync scrub`: looks at what the backends say that they hold, and mends what is missing or other than agreed.

Theory of operation (docs/design/scrub.md). A backend with a feed tells what has changed since the last scrub; another
one is listed once a day. What it tells is compared with the newest index by digests of partitions
(`store.inventory`), and what was found well is not compared again. Only of the packs that differ the backends are
asked, as by `check`, and what is wrong with them goes the way of `check --repair`. So a listing decides nothing: a
store that lies in it causes questions, and one that hides damage is found out by `check` alone.

Scrubs of several devices, or processes, do not hurt each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

from metasync.consensus import State
from metasync.consensus.hints import certificate_for
from metasync.consensus.participant import OP_TIMEOUT_S, Participant
from metasync.consensus.records.scrubbed import (
    SCRUBBED_BYTES_MAX,
    Scrubbed,
    open_scrubbed,
    scrubbed_path,
    seal_scrubbed,
)
from metasync.errors import FormatError, NotFoundError, UpgradeError
from metasync.events import Phase
from metasync.keys.derive import sha256
from metasync.keys.device_set import DeviceSet
from metasync.local import settings
from metasync.local.state_keys import LOOKS, SHORT_KEY, TOLD, Look, ToldPacks
from metasync.maintenance import check
from metasync.maintenance.repair import repair
from metasync.reports.backends import Repaired, ScrubLook, ScrubReport
from metasync.runtime.effects import Op, Random, Reply, Task, together
from metasync.runtime.limits import SCRUB_DAYS
from metasync.session import agreement
from metasync.session.session import Agreed, Operations, Session
from metasync.store import inventory
from metasync.store.index import PackId, PackRecord
from metasync.store.inventory import Listing, Told
from metasync.store.moves import Places
from metasync.store.placement import PARTITION_BYTES, partition_of
from metasync.sync.operations import changing
from metasync.transfer import verify
from metasync.transfer.copies import Place
from metasync.transfer.inventories import Heard, changes, has_feed, heeding, listed

if TYPE_CHECKING:
    from metasync.maintenance.repair import Finding

DAY_NS: Final = 86_400 * 10**9  # between two listings of a backend without a feed
OWN_NS: Final = 30 * DAY_NS  # for so long what other devices say of a backend does for a look of one's own
READ_DAYS: Final = 90  # within which every copy is read where a store tells no digests, if nothing else is set
READ_AT_ONCE: Final = 4  # copies, each held in memory
KEEPERS: Final = 2  # backends next to one on the ring that are tried with its record
LATER_NS: Final = 3600 * 10**9  # a look that is noted further in the future was noted by a wrong clock


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
            self._hear_of_others([h for h in self.heard if h in due or self._is_to_read(h)])
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
            self._tell_others(s, state)

    def _is_quiet(self, h: Heard) -> bool:
        """Whether a backend has nothing that was not compared with the newest index known here.

        Where all are so, nobody has stored a pack since, and there is no newer version that needs one.
        """
        return h.how == "changes" and not h.changes and h.look.compared == self.s.newest_state().index.hash

    def _is_due(self, look: Look) -> bool:
        now = self.s.wall_ns()
        own, others = _is_within(look.at_ns, now, DAY_NS), _is_within(look.others_ns, now, DAY_NS)
        alone = look.since_ns != 0 and not _is_within(look.since_ns, now, OWN_NS)
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

    # --- what other devices saw

    def _keepers(self, h: Heard) -> list[str]:
        """The backends that keep the record of one: those next to it on a ring by id; itself where it is alone."""
        ring = sorted(self.heard, key=lambda o: o.place.backend_id)
        at = ring.index(h)
        others = [o.place.name for o in ring[at + 1 :] + ring[:at] if o.how != "away"]
        return others[:KEEPERS] or [h.place.name]

    def _hear_of_others(self, heard: Sequence[Heard]) -> None:
        """Takes over what other devices say of these: when all was listed, and up to where copies were read."""
        s, now = self.s, self.s.wall_ns()
        assert self.state is not None
        if not heard:
            return
        m, devices = s.group.participant, s.devices_of(self.state)
        tasks = {h.place.name: _read_record(m, devices, h.place.backend_id, self._keepers(h)) for h in heard}
        found: Mapping[str, Scrubbed | None] = s.runtime.run(together(tasks))
        for h in heard:
            seen = found[h.place.name]
            if seen is None or seen.stores != h.look.stores:
                continue
            if not seen.wrong and seen.device_id != s.device.device_id and _is_within(seen.at_ns, now, DAY_NS):
                h.look = h.look._replace(others_ns=seen.at_ns, since_ns=h.look.since_ns or now)
            if h.look.read_ns < seen.read_ns <= now + LATER_NS:
                h.look = h.look._replace(read_to=seen.read_to, read_ns=seen.read_ns)
            h.is_begun = True

    def _tell_others(self, s: Session, state: State) -> None:
        """Tells the other devices of the listings, and of the copies that were read. A refusal fails nothing."""
        tasks = {}
        for h in (h for h in self.heard if h.is_to_tell):
            look, wrong = h.look, sum(map(len, h.wrong.values()))
            seen = Scrubbed(b"", look.backend, look.stores, look.at_ns, wrong, look.read_to, look.read_ns)
            tasks[h.place.name] = _write_record(s.group.participant, state, seen, self._keepers(h))
        if tasks:
            s.runtime.run(together(tasks))

    def _begun(self, known: Mapping[bytes, Look]) -> list[Heard]:
        heard = [self._begun_at(place, known.get(place.backend_id)) for place in _places(self.s)]
        return sorted(heard, key=lambda h: h.look.at_ns)  # what was away for longest is mended first

    def _begun_at(self, place: Place, look: Look | None) -> Heard:
        stores = sha256(b"".join(place.storage_ids) + str(self.s.transfer.placement.partitions).encode())
        if look is None or look.stores != stores:
            look = Look(place.backend_id, stores)
        heard = Heard(place, look)
        away = self.s.out.get(place.name) or self.s.transfer.down.get(place.name)
        if away is not None:
            heard.how, heard.why = "away", away.message
        return heard

    def _read_feeds(self, heard: Sequence[Heard]) -> None:
        """Has the backends tell what has changed; all at once."""
        self.s.runtime.run(together({h.place.name: heeding(h, changes(h)) for h in heard}))
        for h in heard:
            if h.how == "changes":
                h.look = h.look._replace(at_ns=self.s.wall_ns())

    def _list(self, heard: Sequence[Heard]) -> None:
        """Has the backends list all that they hold; all at once."""
        now, partitions = self.s.wall_ns(), self.s.transfer.placement.partitions
        lists = {h.place.name: Listing(partitions) for h in heard}
        tasks = {h.place.name: heeding(h, listed(h, lists[h.place.name])) for h in heard}
        self.s.runtime.run(together(tasks))
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
            differing[h.place.name] = list(h.told.differing(self.wanted[h.place.backend_id]))
            self.compared += len(h.told.parts.keys() | self.wanted[h.place.backend_id].keys())
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
        self._look_at(s, agreed, list(suspects.values()))
        for h in heard:
            h.look = h.look._replace(compared=b"" if h.wrong else self.index, packs=len(h.told or ()))

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

    def _read_due(self, h: Heard, packs: Iterable[PackRecord]) -> None:
        assert h.told is not None
        s, t, now = self.s, self.s.transfer, self.s.wall_ns()
        elapsed = min(now - h.look.read_ns, self.read_ns)
        span = elapsed * inventory.CIRCLE // self.read_ns
        due = []
        for p in packs:
            away = inventory.place_on_circle(p.name, h.place.backend_id, h.look.read_to)
            if away < span and h.place.backend_id in t.placement.primary(p.name) and not h.told.has_digest(p.id):
                due.append((away, p))
        due.sort(key=lambda one: one[0])
        for some in (due[n : n + READ_AT_ONCE] for n in range(0, len(due), READ_AT_ONCE)):
            tasks = {p.name.hex(): verify.check_copy(t, h.place, p, True, None) for _, p in some}
            states: Mapping[str, verify.CopyState] = s.runtime.run(together(tasks))
            for _, p in some:
                state = states[p.name.hex()]
                if state.unknown:  # it is away now: what is left is read the next time
                    return
                self.read += 1
                self.bytes_read += state.bytes_read
                if state.problem is not None:
                    key = inventory.key_of(p.id)
                    self.records[key] = p
                    self.doubted.add(key)
                    h.wrong.setdefault(partition_of(p.name, t.placement.partitions), []).append(key)
            if self.read_bytes_max is not None and self.bytes_read >= self.read_bytes_max:
                done = min(span, some[-1][0] + 1)
                now, span = h.look.read_ns + elapsed * done // span, done
                break
        h.look = h.look._replace(read_to=(h.look.read_to + span) % inventory.CIRCLE, read_ns=now)
        h.is_begun = h.is_to_tell = True

    def _settled(self, packs: Iterable[PackRecord]) -> Iterable[PackRecord]:
        """The packs that no change of the backends displaces: the others are brought and verified by `rebalance`."""
        if self.s.previous is None:
            return packs
        places = Places(self.s.config, self.s.previous)
        displaced = cache(lambda partition: places.is_displaced(partition.to_bytes(PARTITION_BYTES, "big")))
        return (p for p in packs if not displaced(places.partition(p.name)))

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
        agreed, found = agreement.newest(s), self.looked.problems
        packs = agreed.index.packs()  # made anew at each call
        left = [f for f in self.findings if f.record.id in packs]
        repaired, agreed = repair(s, agreed, left, nowhere=False)
        packs = agreed.index.packs()
        self._look_at(s, agreed, [f.record for f in left if f.record.id in packs])
        for h in self.heard:
            if not h.wrong and h.look.compared == b"" and h.how in ("listed", "changes"):
                h.look = h.look._replace(compared=self.index)
        self.state = agreed.state
        self._note(s)
        self._tell_others(s, agreed.state)
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


def _is_within(at_ns: int, now_ns: int, age_ns: int) -> bool:
    return at_ns > 0 and at_ns - LATER_NS <= now_ns < at_ns + age_ns


def _decoded(data: bytes, partitions: int) -> Told:
    """What was stored; nothing where that is damaged, so that all is asked about anew."""
    try:
        told = Told.decode(data) if data else Told(partitions)
    except FormatError:
        return Told(partitions)
    return told if told.partitions == partitions else Told(partitions)


# --- the record that serves other devices


def _write_record(m: Participant, state: State, told: Scrubbed, keepers: Sequence[str]) -> Task:
    """Overwrites the record of one backend on the first of these that takes it. -> whether one did."""
    random = yield Random(32)
    mine = replace(told, device_id=m.identity.device_id, certificate=certificate_for(m, state))
    data = seal_scrubbed(m.keys, mine, m.identity, era=state.era, epoch=state.epoch, random=random)
    for keeper in keepers:
        reply: Reply = yield Op(keeper, "put", scrubbed_path(told.backend_id), data, timeout_s=OP_TIMEOUT_S)
        if reply.error is None:
            return True
    return False


def _read_record(m: Participant, devices: DeviceSet, backend_id: bytes, keepers: Sequence[str]) -> Task:
    """-> the record of a backend that the first of these has which answers; None: it has none that counts."""
    for keeper in keepers:
        path = scrubbed_path(backend_id)
        reply: Reply = yield Op(keeper, "get", path, max_bytes=SCRUBBED_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
        if isinstance(reply.error, NotFoundError):
            return None
        if reply.error is None:
            try:
                return open_scrubbed(m.keys, devices, reply.value, backend_id)
            except (FormatError, UpgradeError):
                return None
    return None
