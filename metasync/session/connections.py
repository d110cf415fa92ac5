"""This device's ways to the backends of an open workspace: connected once, given back on close."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metasync.backends.registry import parse_url
from metasync.backends.wrappers.ballast import WithBallast
from metasync.backends.wrappers.last_write import write_refused
from metasync.backends.wrappers.wrapper import AbsentBackend, Prefixed, dial
from metasync.consensus import ZERO_HASH, Group
from metasync.consensus.hints import OwnHead
from metasync.consensus.records.era import Tombstone
from metasync.errors import BackendError, NoQuorumError, UnreachableError, UsageError
from metasync.events import Notice, ignore
from metasync.local.state_keys import (
    CONFIG_KEY,
    EVIDENCE_KEY,
    FLOORLESS_KEY,
    GIVEN_UP_KEY,
    HUNG_KEY,
    PREVIOUS_KEY,
    RETIRED_KEY,
    UNLINKED_KEY,
    Floorless,
)
from metasync.runtime.tasks import Runtime
from metasync.session import open_backend
from metasync.session.folder import (
    BASE_KEY,
    DB_FILE,
    JOINING_KEY,
    LINKS_KEY,
    MEMORY_KEY,
    STATE_DIR,
    WIPE_KEY,
    IdentityGuard,
    Link,
    given_up,
    hung_lately,
    stored_devices,
    stored_newest,
)
from metasync.session.open_backend import INCARNATION_BYTES
from metasync.session.open_backend import Machine as Machine

if TYPE_CHECKING:
    from metasync.backends.api import Backend
    from metasync.config import Config
    from metasync.events import Listener
    from metasync.keys.keyring import WorkspaceKeys
    from metasync.local.state import LocalDb
    from metasync.runtime.threads import UnderWay
    from metasync.session.write_index import Decoded
    from metasync.transfer.copies import Begun, PackKey
    from metasync.transfer.late_copies import Finishing

REMOVED: Final = " (removed)"  # after the name of a backend that is not in the workspace any more, where it is told
COPYING_ENDS_S: Final = 5.0  # for calls on closed backends to end; the local state notes what is left


@dataclass
class Way:
    """This device's way to one backend, which the runtime knows by `name`.

    While it is open, `store` is the backend and `view` the workspace's folder in it; both are an `AbsentBackend` if it
    cannot be had now.
    """

    name: str
    link: Link
    store: Backend | None = None
    view: Backend | None = None

    @property
    def absent(self) -> AbsentBackend | None:
        return self.store if isinstance(self.store, AbsentBackend) else None


@dataclass(frozen=True)
class Opened:
    """What the first half of a clone leaves to the second one.

    backends  open backends by agreed name: whoever gets this closes them
    held      gives packs that were asked for already
    is_quiet  whether nothing newer than the newest known state was listed
    end       ends what is still being read ahead
    """

    backends: Mapping[str, Backend] = field(default_factory=dict)
    held: Callable[[PackKey], Begun | None] = lambda _: None
    is_quiet: bool = False
    end: Callable[[], None] = lambda: None


class Connections:
    """The agreed config, this device's keys, and its ways to the backends. `open` may be repeated; `close` it.

    Ways are kept by backend id: of the agreed config, of `previous`, and of a backend that is to be added.
    """

    def __init__(self, directory: Path, db: LocalDb, machine: Machine, opened: Opened | None = None) -> None:
        opened = opened or Opened()
        self.db = db
        self.directory = directory
        self.machine = machine
        self.on_event: Listener = ignore  # hears what the ways do by themselves
        self.requests: Callable[[str], float | None] = lambda _: None  # the user's limit of a backend, by its name
        self.without: Set[str] = frozenset()  # see `doing_without`
        self._opened = dict(opened.backends)  # backends that the caller had open, by name: closed with the others
        self.held, self.is_quiet, self._end_ahead = opened.held, opened.is_quiet, opened.end
        self.keys, self.device, self.certificate = machine.secret(directory, db)
        self.guard = IdentityGuard(
            directory,
            db,
            place=lambda: machine.place(directory),
            lock=lambda: machine.lock(directory, "metasync", lambda _: None, wait_s=0),
        )
        self._load()
        machine.on_slow = lambda name: self.on_event(Notice(f"waiting for {name} to open"))
        self._hung = hung_lately(db, self._now())
        self.given_up: set[str] = set()  # backends that had to give up their ballast since `take_given_up`
        self._runtime: Runtime | None = None
        self._group: Group | None = None
        self._mark: object = None
        self._floorless: Floorless | None = None  # as it is noted
        self.gate = threading.RLock()  # held while ways are opened or closed: several threads may use a workspace
        self._left: list[Backend] = []  # open stores that no way leads to any more
        self.copying: Finishing | None = None  # makes copies in the background: see `trailing.go_on`
        self.segments: Mapping[bytes, Decoded] = {}  # of the index that was loaded last: the next one has most of them
        self.head = OwnHead()  # what this device's head says, where it is not written yet

    def _now(self) -> float:
        return self.machine.wall_ns() / 1e9

    def _load(self) -> None:
        """Reads the config and the links from the local state, in one transaction as they are written."""
        with self.db.transaction():
            self.config, self.previous, links = self._stored()
            self.config_hash = stored_newest(self.db).config
        self.ways = {i: Way(n, links[n]) for i, n in _wanted(self.config, self.previous).items() if n in links}

    def _stored(self) -> tuple[Config, Config | None, dict[str, Link]]:
        return self.db.need(CONFIG_KEY), self.db.get(PREVIOUS_KEY), self.db.need(LINKS_KEY)

    @property
    def links(self) -> dict[str, Link]:
        """The links to the agreed backends, and to those that are still read, by name."""
        wanted = _wanted(self.config, self.previous)
        return {way.name: way.link for i, way in self.ways.items() if i in wanted}

    @property
    def names(self) -> dict[bytes, str]:
        """The agreed backends with an open way: id -> name."""
        return self._open_ways(self.config)

    @property
    def former(self) -> dict[bytes, str]:
        """Backends that were removed, and are read until their data is moved: id -> the name of the way."""
        return self._open_ways(self.previous, {e.backend_id for e in self.config.backends})

    def _open_ways(self, config: Config | None, but: Set[bytes] = frozenset()) -> dict[bytes, str]:
        entries = config.backends if config is not None else ()
        known = {e.backend_id: self.ways.get(e.backend_id) for e in entries if e.backend_id not in but}
        return {i: way.name for i, way in known.items() if way is not None and way.view is not None}

    def follow(self, config_hash: bytes, config: Config, previous: Config | None) -> None:
        """Takes over another agreed config. Writes to the local state, and connects nothing new.

        A backend may get another name. A removed one is forgotten once `previous` names it no more; the way to one that
        is to be emptied is noted until the config says so no more.
        """
        before, previous_before, links = self._stored()  # another process of this device may have linked one meanwhile
        names = _wanted(before, previous_before)
        stored = {i: links[n] for i, n in names.items() if n in links}
        joining = self.db.get(JOINING_KEY) or {}
        kept: dict[bytes, Way] = {}
        for backend_id, name in _wanted(config, previous).items():
            link = stored.get(backend_id) or joining.get(backend_id.hex())
            if link is not None:
                way = kept[backend_id] = self.ways.get(backend_id) or Way(name, link)
                way.link = link
                self._rename(way, name)
        with self.db.transaction():
            self.db.set(CONFIG_KEY, config)
            self.db.set(PREVIOUS_KEY, previous)
            self.db.set(LINKS_KEY, {way.name: way.link for way in kept.values()})
            self._note_emptying(config, names, stored)
        for backend_id, way in self.ways.items():
            if backend_id not in kept and backend_id.hex() in joining:
                kept[backend_id] = way
            elif backend_id not in kept and way.store is not None:
                self._left.append(way.store)
        self.config, self.previous, self.ways, self.config_hash = config, previous, kept, config_hash
        self._tell_group()

    def _note_emptying(self, config: Config, names: Mapping[bytes, str], links: Mapping[bytes, Link]) -> None:
        """Notes the ways to removed backends that are to be emptied, and forgets those to others: `moving.wipe`."""
        from metasync.store.moves import to_empty

        noted = {key.rpartition("~")[2]: (key, link) for key, link in (self.db.get(WIPE_KEY) or {}).items()}
        known = noted | {i.hex(): (f"{names[i].partition('~')[0]}~{i.hex()}", link) for i, link in links.items()}
        wanted = sorted(i.hex() for i in to_empty(config))
        self.db.update(WIPE_KEY, dict(known[i] for i in wanted if i in known) or None)

    def _rename(self, way: Way, name: str) -> None:
        """Gives a way another name. Calls under the old one go on."""
        if way.name != name and way.view is not None and self._runtime is not None:
            self._runtime.add_backend(name, way.view)
        way.name = name

    def _tell_group(self) -> None:
        """Tells the agreement of the config and the open ways."""
        if self._group is not None:
            self._group.follow(self.config, self.config_hash, self._acceptors())
            self._tell_ways(self._group)

    def _tell_ways(self, group: Group) -> None:
        group.participant.others = self._others()
        group.participant.ways = {i: way.name for i, way in self.ways.items() if way.view is not None}

    def _acceptors(self) -> dict[bytes, str]:
        """The names of open ways to acceptors of this config and the one before, by acceptor id."""
        out: dict[bytes, str] = {}
        for config in (self.config, self.previous):  # one that stays may have voted under another id, in another era
            for entry, acceptor in config.acceptors if config is not None else ():
                way = self.ways.get(entry.backend_id)
                if way is not None and way.view is not None:
                    out.setdefault(acceptor.acceptor_id, way.name)
        return out

    def _others(self) -> tuple[str, ...]:
        """Open ways to backends that do not vote."""
        names = self.names
        return tuple(e.name for e in self.config.backends if e.acceptor is None and e.backend_id in names)

    def join(self, name: str, backend_id: bytes, link: Link, backend: Backend) -> None:
        """Opens a way to a backend that is to be added; it becomes a link once that is agreed."""
        joining = self.db.get(JOINING_KEY) or {}
        self.db.set(JOINING_KEY, {**joining, backend_id.hex(): link})
        way = self.ways[backend_id] = Way(name, link)
        assert self._runtime is not None
        self._runtime.add_backend(name, self._opened_as(way, backend))

    def has_joined(self) -> None:
        """Nothing is waiting to be added any more."""
        self.db.set(JOINING_KEY, None)

    @property
    def agreed_names(self) -> set[str]:
        return {e.name for e in self.config.backends}

    @property
    def absent(self) -> dict[str, str]:
        """Why linked backends cannot be had now, by name; of removed ones those that may hold data to move."""
        out = {}
        for way in self.ways.values():
            if way.absent is not None and way.name in self.agreed_names:
                out[way.name] = way.absent.why.message
            elif way.absent is not None and self.config.prev_config is not None:
                out[way.name.partition("~")[0] + REMOVED] = way.absent.why.message.removeprefix(f"{way.name}: ")
        return out

    @property
    def is_read_only(self) -> bool:
        """This device has a way to fewer voting backends than a quorum: it cannot agree on anything."""
        return sum(e.backend_id in self.ways for e, _ in self.config.acceptors) < self.config.quorum

    def keep_keys(self, keys: WorkspaceKeys) -> None:
        """Saves keys of a newer epoch for the next process. A failure does not matter: they can be had again."""
        self.keys = keys
        with contextlib.suppress(OSError):
            self.machine.keep_secret(self.directory, keys, self.device, self.certificate)

    def link(self, name: str, text: str) -> None:
        """Links an agreed backend to a URL. `UsageError` if another store is there."""
        if name not in self.agreed_names:
            step = (
                f"They are: {', '.join(sorted(self.agreed_names))}. If none of these is left, since other devices"
                f" replaced them all: rename {STATE_DIR}/{DB_FILE} here, and run `metasync clone --merge` with the"
                " backends of today. No file is lost."
            )
            raise UsageError(f"no backend of this workspace is called {name!r}", next_step=step)
        url = parse_url(text)
        open_backend.refuse_inside(self.directory, {name: url})
        with contextlib.closing(self.machine.reached(name, url)) as backend:
            folder = open_backend.find_folder(self.config, name, backend)
            link = Link(url.location, folder, backend.identity().hex())
            self.db.set(LINKS_KEY, {**self.links, name: link})
        with self.db.transaction():
            self.db.update(UNLINKED_KEY, (self.db.get(UNLINKED_KEY) or frozenset()) - {name} or None)
            self.db.update(EVIDENCE_KEY, [e for e in self.db.get(EVIDENCE_KEY) or () if e[0] != name] or None)
        self.close()
        self._load()

    def unlink(self, name: str) -> None:
        """Forgets the way to a backend, also to a removed one that is still read. `UsageError`: there is none."""
        known = {n.partition("~")[0] if n not in self.agreed_names else n: n for n in self.links}
        if name not in known:
            raise UsageError(
                f"this device has no way to a backend called {name!r}",
                next_step=f"It has ways to: {', '.join(sorted(known))}.",
            )
        with self.db.transaction():
            self.db.set(LINKS_KEY, {n: link for n, link in self.links.items() if n != known[name]})
            noted = self.db.get(WIPE_KEY) or {}
            self.db.update(WIPE_KEY, {k: v for k, v in noted.items() if v != self.links[known[name]]} or None)
            if name in self.agreed_names:
                self.db.set(UNLINKED_KEY, (self.db.get(UNLINKED_KEY) or frozenset()) | {name})
        self.close()
        self._load()

    def forget_removed(self) -> None:
        """Forgets the ways to backends that were removed, from the next command on: nothing is read there any more."""
        former = {self.ways[i].name for i in self.former}
        with self.db.transaction():
            self.db.set(LINKS_KEY, {n: link for n, link in self.db.need(LINKS_KEY).items() if n not in former})

    def open(self) -> tuple[Runtime, Group]:
        """Opens the ways to the backends, once. One that could not be had is tried again."""
        with self.gate:
            return self._opened_ways()

    def _opened_ways(self) -> tuple[Runtime, Group]:
        mark = self.machine.mark(), self.machine.place(self.directory)
        if stored_newest(self.db).config != self.config_hash:  # another process followed a change
            self.close()
            self._load()
        elif self._mark not in (None, mark):  # a round that was used may be in an image of this process, too
            self.close()
        self._mark = mark
        self._follow_links()
        if self._runtime is not None and self._group is not None:
            for way in self.ways.values():
                if way.store is None or way.absent is not None:  # it may be back by now
                    self._runtime.add_backend(way.name, self._open(way))
                    self._tell_group()
                else:
                    open_backend.ask_anew(way.store)
            return self._runtime, self._group
        self._runtime = self.machine.runtime({way.name: self._open(way) for way in self.ways.values()}, self.db)
        if self._group is not None:  # it rested
            self._tell_group()
            return self._runtime, self._group
        base = self.db.need(BASE_KEY)
        self._group = Group(
            self.keys,
            self.device,
            self.config,
            self.config_hash,
            stored_devices(self.db, base, self.keys.ns_id),
            base.devices,
            incarnation=self.machine.entropy(INCARNATION_BYTES),
            links=self._acceptors(),
            certificate=self.certificate.encode(),
            memory=self.db.get(MEMORY_KEY) or b"",
            guard=self.guard,
        )
        self._tell_ways(self._group)
        self._recall_floorless(self._group, self._runtime.clock())
        noted = self.db.get(RETIRED_KEY)  # an earlier process saw that an acceptor was retired, for this era
        if noted is not None:
            self._group.participant.acceptors[b""].tombstone = Tombstone(noted, ZERO_HASH)
        return self._runtime, self._group

    def _follow_links(self) -> None:
        """Takes over what another process of this device has linked or unlinked. Connects nothing."""
        links, has_changed = self.db.need(LINKS_KEY), False
        for backend_id, name in _wanted(self.config, self.previous).items():
            way, link = self.ways.get(backend_id), links.get(name)
            if link == (None if way is None else way.link):
                continue
            if way is not None and way.store is not None:
                self._left.append(way.store)
            self.ways.pop(backend_id, None)
            if link is not None:
                self.ways[backend_id] = Way(name, link)
            has_changed = True
        if has_changed:
            self._tell_group()

    def _recall_floorless(self, group: Group, now_s: float) -> None:
        """Takes over which acceptors an earlier process saw to have no floor: that counts for a day (rule 1.11)."""
        noted = self.db.get(FLOORLESS_KEY)
        if noted is not None and noted.mark == repr(self._mark):
            for acceptor_id, (floor, at) in noted.seen.items():
                if at <= now_s:
                    group.participant.acceptors[bytes.fromhex(acceptor_id)].no_floor = floor, at
            self._floorless = noted

    def note_floorless(self) -> None:
        """Notes it for the next process, where it is news."""
        assert self._group is not None
        seen = {a.hex(): m.no_floor for a, m in self._group.participant.acceptors.items() if m.no_floor[0] >= 0}
        noted = Floorless(repr(self._mark), seen)
        if noted != self._floorless:
            self._floorless = noted
            self.db.set(FLOORLESS_KEY, noted)

    @contextlib.contextmanager
    def doing_without(self, names: Set[str]) -> Iterator[None]:
        """Opens no way to these backends meanwhile: every call on one fails at once, and nothing is noted of it."""
        self.close()
        self.without = names
        try:
            yield
        finally:
            self.close()
            self.without = frozenset()

    def _open(self, way: Way) -> Backend:
        """Opens a linked backend. -> the workspace's folder there, or an `AbsentBackend`."""
        try:
            if way.name in self.without:
                raise UnreachableError(f"{way.name}: not asked")
            opened = self._opened.pop(way.name, None)
            backend = opened or self.machine.way(way.name, way.link, suspected=way.name in self._hung)
        except BackendError as e:
            way.store = way.view = absent = AbsentBackend(e)
            return absent
        return self._opened_as(way, backend)

    def _opened_as(self, way: Way, backend: Backend) -> Backend:
        name = way.name
        open_backend.tell_holds(name, backend, lambda event: self.on_event(event), lambda: self.requests(name))
        way.store = backend
        way.view = WithBallast(Prefixed(backend, way.link.folder), lambda: self.given_up.add(way.name))
        return way.view

    def end_ahead(self) -> None:
        """Ends what the first half of a clone began to read, and forgets what came. May be repeated."""
        end, self.held, self._end_ahead = self._end_ahead, lambda _: None, lambda: None
        end()

    def dial(self) -> None:
        """Has the open stores begin to open connections, for an operation that will soon ask them."""
        for way in self.ways.values():
            if way.store is not None:
                dial(way.store)

    def store(self, name: str) -> Backend | None:
        """The open store of this name, an `AbsentBackend` where it cannot be had; None: there is no way to it."""
        return next((way.store for way in self.ways.values() if way.name == name), None)

    def writes(self) -> dict[str, str | None]:
        """How the last write to each store ended, by name: see `write_refused`."""
        return {way.name: write_refused(way.store) for way in self.ways.values() if way.store is not None}

    def take_given_up(self) -> list[str]:
        """Returns the backends that gave up their ballast since the last call, sorted, and notes them."""
        names = set()
        while self.given_up:  # threads may still add to it
            names.add(self.given_up.pop())
        if names:
            self.db.update(GIVEN_UP_KEY, given_up(self.db).union(names) or None)
        return sorted(names)

    def close(self) -> None:
        """Closes all ways and ends copies under way. `open` opens them anew, as another proposer."""
        self._close()
        self._group = None

    def rest(self, under_way: UnderWay) -> bool:
        """Closes all ways; the next operation goes on as the same proposer. False: something is under way."""
        with self.gate:
            if self.copying is not None or not under_way.ended(0):
                return False
            self._close()
            return True

    def _close(self) -> None:
        self.end_ahead()
        self.segments = {}
        runtime, self._runtime = self._runtime, None
        if runtime is not None and self._group is not None and self.head.waiting is not None:
            runtime.check, runtime.on_wait = (lambda: None), None
            with contextlib.suppress(BackendError, NoQuorumError, CancelledError):  # what was cut off needs no head
                runtime.run(self.head.written(self._group.participant, sorted(self.names.values())))
        copying, self.copying = self.copying, None
        hung = self._hung_now()
        if copying is not None:
            copying.stop(0)
        if runtime is not None:
            runtime.close()
        self._close_stores()
        if copying is not None:
            copying.stop(COPYING_ENDS_S)
        if hung != self._hung:
            self._hung = hung
            self.db.set(HUNG_KEY, hung or None)

    def _close_stores(self) -> None:
        stores = [way.store for way in self.ways.values() if way.store is not None]
        for backend in {id(b): b for b in (*stores, *self._left, *self._opened.values())}.values():
            backend.close()
        wanted = _wanted(self.config, self.previous)
        self.ways = {i: Way(way.name, way.link) for i, way in self.ways.items() if i in wanted}
        self._left, self._opened = [], {}

    def _hung_now(self) -> dict[str, float]:
        """The backends that hang, with the time: the next command waits less for them."""
        hung = dict(self._hung)
        for way in [way for way in self.ways.values() if way.name not in self.without]:
            if way.absent is not None:
                silent: bool | None = isinstance(way.absent.why, open_backend.OpeningHangsError)
            else:
                silent = open_backend.is_silent(way.store) if way.store is not None else None
            if silent:
                hung[way.name] = self._now()
            elif silent is not None:
                hung.pop(way.name, None)
        return hung


def _wanted(config: Config, previous: Config | None) -> dict[bytes, str]:
    """Names the ways to keep, by backend id: to the agreed backends, and to those of `previous` alone."""
    names = {e.backend_id: e.name for e in config.backends}
    for e in previous.backends if previous is not None else ():
        names.setdefault(e.backend_id, former_name(e.name, e.backend_id))
    return {i: name for i, name in names.items() if i not in config.dead}


def former_name(name: str, backend_id: bytes) -> str:
    """The name of a way to a removed backend: another backend may have its own name by now."""
    return f"{name}~{backend_id.hex()[:8]}"
