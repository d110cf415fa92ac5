"""This device's ways to the backends of an open workspace: connected once, given back on close."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from metasync.backends.registry import parse_url
from metasync.backends.wrappers.absent import AbsentBackend
from metasync.backends.wrappers.ballast import WithBallast
from metasync.backends.wrappers.wrapper import Prefixed
from metasync.config import DEFAULT_CAPACITY
from metasync.consensus import Group, birth_path, is_root
from metasync.errors import BackendError, UsageError
from metasync.events import ignore
from metasync.local.lock import WAIT_S, WorkspaceLock
from metasync.local.state_keys import CONFIG_KEY, HUNG_KEY, PREVIOUS_KEY
from metasync.runtime.tasks import Runtime
from metasync.session import open_backend
from metasync.session.agreement import MEMORY_KEY, Seat
from metasync.session.eras import noted_tombstones
from metasync.session.folder import (
    JOINING_KEY,
    LINKS_KEY,
    STATE_DIR,
    Link,
    load_secret,
    save_secret,
)
from metasync.session.identity import IdentityGuard, place_now
from metasync.session.open_backend import ASK_TIMEOUT_S, INCARNATION_BYTES
from metasync.worktree.disk import Disk

if TYPE_CHECKING:
    from metasync.backends.api import Backend, BackendUrl
    from metasync.config import BackendEntry, Config
    from metasync.events import Event, Listener
    from metasync.keys.device_set import Certificate, DeviceIdentity
    from metasync.keys.keyring import WorkspaceKeys
    from metasync.local.state import LocalDb
    from metasync.reports.backends import BackendState
    from metasync.session.session import Session

HUNG_LATELY_S: Final = 120.0  # so long the next commands wait less for them


class Machine:
    """What an open workspace takes from the machine it runs on; a simulator puts its own in the place of each."""

    def disk(self) -> Disk:
        return Disk()

    def wall_ns(self) -> int:
        """Nanoseconds since 1970, by the clock on the wall."""
        return time.time_ns()

    def entropy(self, n: int) -> bytes:
        return os.urandom(n)

    def runtime(self, backends: Mapping[str, Backend], db: LocalDb) -> Runtime:
        return Runtime(backends, persist=db.set_value, recall=db.value)

    def way(self, name: str, link: Link, *, suspected: bool) -> Backend:
        """The backend that was linked as `link`. `BackendError` when it cannot be had now."""
        return open_backend.reached(name, parse_url(link.url), link, suspected=suspected)

    def opened(self, name: str, url: BackendUrl, *, create: bool) -> Backend:
        """A store that takes no part yet: see `ways.opened_first`."""
        return open_backend.opened_first(name, url, create=create)

    def reached(self, name: str, url: BackendUrl, link: Link | None = None) -> Backend:
        """A store that is to be linked: see `ways.reached`."""
        return open_backend.reached(name, url, link)

    def secret(self, directory: Path, db: LocalDb) -> tuple[WorkspaceKeys, DeviceIdentity, Certificate]:
        """The keys of the device that `directory` is."""
        return load_secret(directory, db)

    def place(self, directory: Path) -> bytes:
        """Where the workspace's `.metasync` lies: see `identity`."""
        return place_now(directory / STATE_DIR)

    def keep_secret(
        self, directory: Path, keys: WorkspaceKeys, device: DeviceIdentity, certificate: Certificate
    ) -> None:
        """Keeps new keys in the place of those that `secret` gave."""
        save_secret(directory, keys, device, certificate)

    def lock(
        self,
        directory: Path,
        command: str,
        waiting: Callable[[str], None],
        wait_s: float = WAIT_S,
        *,
        presses: bool = True,
    ) -> contextlib.AbstractContextManager[WorkspaceLock]:
        """The workspace's lock, taken: see `WorkspaceLock.acquire`."""
        lock = WorkspaceLock(directory / STATE_DIR)
        return lock.acquire(command, waiting=waiting, wait_s=wait_s, presses=presses)


class Connections:
    """The agreed config, this device's keys, and its ways to the backends. `open` as often as wanted; `close` it.

    `links` is what this device knows of how to reach the backends, by their agreed names.
    """

    def __init__(
        self, directory: Path, db: LocalDb, machine: Machine, opened: Mapping[str, Backend] = MappingProxyType({})
    ) -> None:
        self.db = db
        self.directory = directory
        self.machine = machine
        self.on_event: Listener = ignore  # of whoever is to hear what the ways do by themselves
        self._opened = dict(opened)  # linked backends that whoever made this had open, by name: closed with the others
        self.keys, self.device, self.certificate = machine.secret(directory, db)
        self.guard = IdentityGuard(
            directory,
            db,
            place=lambda: machine.place(directory),
            lock=lambda: machine.lock(directory, "metasync", lambda _: None, wait_s=0),
        )
        self._load()
        self.views: dict[str, Backend] = {}
        self.backends: dict[str, Backend] = {}
        self._hung = _hung_lately(db, self._now())
        self.given_up: set[str] = set()  # backends that had to give up their ballast since `take_given_up`
        self._runtime: Runtime | None = None
        self._group: Group | None = None

    def _now(self) -> float:
        return self.machine.wall_ns() / 1e9

    def _load(self) -> None:
        """Reads what the local state says of the backends: a follower writes it in one go."""
        with self.db.transaction():
            self.config, self.previous, self.links = self._stored()
            self.config_hash = Seat.stored_newest(self.db).config

    def _stored(self) -> tuple[Config, Config | None, dict[str, Link]]:
        return self.db.need(CONFIG_KEY), self.db.get(PREVIOUS_KEY), self.db.need(LINKS_KEY)

    @property
    def names(self) -> dict[bytes, str]:
        """The linked backends: id -> name."""
        return _names(self.config, self.links)

    @property
    def former(self) -> dict[bytes, str]:
        """Linked backends that were removed, and are read until their data is moved: id -> the name of the way."""
        return _former(self.config, self.previous, self.links)

    def follow(
        self, config_hash: bytes, config: Config, previous: Config | None
    ) -> tuple[dict[bytes, str], dict[bytes, str]]:
        """Takes another agreed config over. -> `names`, `former`. Writes to the local state, and connects nothing new.

        Ways are kept by backend id: a backend may get another name, and one that was removed is forgotten once
        `previous`, whose mapping is still read, names it no more.
        """
        mine = {**self.former, **self.names}
        stored = self._stored()  # another process of this device may have been faster, or linked one meanwhile
        ways_by_id = {i: stored[2][n] for i, n in {**_former(*stored), **_names(stored[0], stored[2])}.items()}
        joining = self.db.get(JOINING_KEY) or {}
        views, backends, links = dict(self.views), dict(self.backends), {}
        wanted = {e.backend_id: e.name for e in config.backends}
        for e in previous.backends if previous is not None else ():
            wanted.setdefault(e.backend_id, former_name(e.name, e.backend_id))
        for backend_id, name in wanted.items():
            way = ways_by_id.get(backend_id) or joining.get(backend_id.hex())
            if way is not None:
                links[name] = way
            if backend_id in mine:
                self._rename(mine[backend_id], name, views, backends)
        with self.db.transaction():
            self.db.set(CONFIG_KEY, config)
            self.db.set(PREVIOUS_KEY, previous)
            self.db.set(LINKS_KEY, links)
        self.config, self.previous, self.links, self.config_hash = config, previous, links, config_hash
        for name in [n for n, b in self.backends.items() if n not in links and isinstance(b, AbsentBackend)]:
            del self.backends[name]  # it could not be had under a name that is agreed no more
        if self._group is not None:
            self._group.follow(config, config_hash, {a: n for a, n in self._acceptors().items() if n in self.views})
            self._group.participant.others = self._others()
        # A way that another process of this device has linked meanwhile is opened with the next operation.
        now, before = ({i: n for i, n in known.items() if n in self.views} for known in (self.names, self.former))
        return now, before

    def _rename(self, old: str, new: str, views: dict[str, Backend], backends: dict[str, Backend]) -> None:
        """Makes an open way known under another name."""
        if old == new or old not in views or self._runtime is None:
            return
        self.views[new], self.backends[new] = views[old], backends[old]
        self._runtime.add_backend(new, views[old])

    def _acceptors(self) -> dict[bytes, str]:
        """Ways to acceptors, those of the config before too."""
        out = {a.acceptor_id: e.name for e, a in self.config.acceptors if e.name in self.links}
        known = {**self.names, **self.former}  # one that stays may have voted under another id, in another era
        for e in self.previous.backends if self.previous is not None else ():
            if e.acceptor is not None and e.backend_id in known:
                out.setdefault(e.acceptor.acceptor_id, known[e.backend_id])
        return out

    def _others(self) -> tuple[str, ...]:
        """Open ways to backends that do not vote."""
        return tuple(e.name for e in self.config.backends if e.acceptor is None and e.name in self.views)

    def join(self, name: str, backend_id: bytes, link: Link, backend: Backend) -> Backend:
        """A way to a backend that is to be added: open from now on, and a link once it is agreed."""
        joining = self.db.get(JOINING_KEY) or {}
        self.db.set(JOINING_KEY, {**joining, backend_id.hex(): link})
        assert self._runtime is not None
        open_backend.tell_holds(name, backend, self._tell)
        self.backends[name] = backend
        self.views[name] = view = WithBallast(Prefixed(backend, link.folder), lambda: self.given_up.add(name))
        self._runtime.add_backend(name, view)
        return view

    def has_joined(self) -> None:
        """Nothing is waiting to be added any more."""
        self.db.set(JOINING_KEY, None)

    @property
    def agreed_names(self) -> set[str]:
        return {e.name for e in self.config.backends}

    @property
    def absent(self) -> dict[str, str]:
        """Linked backends that cannot be had now, and why; of removed ones those that may hold what is to be moved."""
        out = {}
        for name, backend in self.backends.items():
            if isinstance(backend, AbsentBackend) and name in self.agreed_names:
                out[name] = backend.why.message
            elif isinstance(backend, AbsentBackend) and self.config.prev_config is not None:
                out[f"{name.partition('~')[0]} (removed)"] = backend.why.message.removeprefix(f"{name}: ")
        return out

    @property
    def is_read_only(self) -> bool:
        """This device has a way to fewer voting backends than a quorum: it cannot agree on anything."""
        return sum(e.name in self.links for e, _ in self.config.acceptors) < self.config.quorum

    def keep_keys(self, keys: WorkspaceKeys) -> None:
        """Saves keys of a newer epoch for the next process, as far as the disk lets it: they can be had again."""
        self.keys = keys
        with contextlib.suppress(OSError):
            self.machine.keep_secret(self.directory, keys, self.device, self.certificate)

    def link(self, name: str, url: BackendUrl) -> None:
        """Remembers a new way to an agreed backend. `UsageError` if that is not the backend."""
        with contextlib.closing(self.machine.reached(name, url)) as backend:
            folder = self.find_folder(name, backend)
            self.links[name] = Link(url.location, folder, backend.identity().hex())
            self.db.set(LINKS_KEY, self.links)
        self.close()

    def open(self) -> tuple[Runtime, Group]:
        """Opens this device's ways to the backends, once."""
        if Seat.stored_newest(self.db).config != self.config_hash:  # another process followed a change
            self.close()
            self._load()
        if self._runtime is not None and self._group is not None:
            for backend in self.backends.values():
                open_backend.ask_anew(backend)
            for name in [n for n, b in self.backends.items() if isinstance(b, AbsentBackend) and n in self.links]:
                view = self.way(name)  # it may be back by now
                if not isinstance(view, AbsentBackend):
                    self.views[name] = view
                    self._runtime.add_backend(name, view)
            return self._runtime, self._group
        views = {name: self.way(name) for name in self.links}
        self.views = dict(views)
        base = Seat.stored_state(self.db)
        self._runtime = self.machine.runtime(views, self.db)
        self._group = Group(
            self.keys,
            self.device,
            self.config,
            self.config_hash,
            Seat.stored_devices(self.db, base, self.keys.ns_id),
            base.devices,
            incarnation=self.machine.entropy(INCARNATION_BYTES),
            links=self._acceptors(),
            certificate=self.certificate.encode(),
            memory=self.db.get(MEMORY_KEY) or b"",
            guard=self.guard,
        )
        self._group.participant.others = self._others()
        for acceptor_id, stone in noted_tombstones(self.db).items():
            self._group.participant.acceptors[acceptor_id].tombstone = stone
        return self._runtime, self._group

    def way(self, name: str) -> Backend:
        """The workspace's folder on a linked backend; one that says why where it cannot be had now."""
        link = self.links[name]
        try:
            backend = self._opened.pop(name, None) or self.machine.way(name, link, suspected=name in self._hung)
        except BackendError as e:
            self.backends[name] = absent = AbsentBackend(e)
            return absent
        open_backend.tell_holds(name, backend, self._tell)
        self.backends[name] = backend
        return WithBallast(Prefixed(backend, link.folder), lambda: self.given_up.add(name))

    def _tell(self, event: Event) -> None:
        self.on_event(event)

    def take_given_up(self) -> list[str]:
        """Backends that had to give up their ballast since this was last asked, sorted."""
        names = set()
        while self.given_up:  # threads may still add to it
            names.add(self.given_up.pop())
        return sorted(names)

    def close(self) -> None:
        runtime, self._runtime = self._runtime, None
        hung = self._hung_now()
        if runtime is not None:
            runtime.close()
        for backend in {id(b): b for b in (*self.backends.values(), *self._opened.values())}.values():
            backend.close()
        self.backends, self.views, self._opened = {}, {}, {}
        if hung != self._hung:
            self._hung = hung
            self.db.set(HUNG_KEY, hung or None)

    def _hung_now(self) -> dict[str, float]:
        """For the next command: which backends it must not wait for as long as this one did, and since when."""
        hung = dict(self._hung)
        for name, backend in self.backends.items():
            if isinstance(backend, AbsentBackend):
                silent: bool | None = isinstance(backend.why, open_backend.OpeningHangsError)
            else:
                silent = open_backend.is_silent(backend)
            if silent:
                hung[name] = self._now()
            elif silent is not None:
                hung.pop(name, None)
        return hung

    def find_folder(self, name: str, backend: Backend) -> str:
        """The workspace's folder on a backend, by the births that the config knows."""
        entry = self.config.named(name)
        assert entry is not None
        places = [(s.storage_id, s.birth) for s in entry.storage[-1:]]
        if entry.acceptor is not None:
            places.append((entry.acceptor.acceptor_id, entry.acceptor.birth))
        doubt: BackendError | None = None
        for listed in backend.list(""):
            if listed.size is not None:
                continue
            try:
                if all(
                    is_root(backend.get(f"{listed.name}/{birth_path(i)}", max_bytes=1024), i, birth)
                    for i, birth in places
                ):
                    return listed.name
            except BackendError as e:  # a folder of others that may not be read is passed over; silence says nothing
                doubt = doubt or (e if e.retryable else None)
        if doubt is not None:
            raise doubt
        raise UsageError(
            f"what is there is not the backend {name!r} of this workspace",
            next_step="Check the URL. A backend that was emptied or replaced cannot be linked again.",
        )

    def _vote_doubt(self, name: str, entry: BackendEntry) -> str:
        """A sentence on a backend that votes and should not any more: its folder is copied by another program, say."""
        backend = self.backends.get(name)
        if entry.acceptor is None or backend is None or isinstance(backend, AbsentBackend) or backend.form != "none":
            return ""
        why = getattr(backend, "form_reason", "") or "it has no atomic create"
        return f"{name} votes and should not: {why}. Take its vote: metasync backend set {name} --role storage"

    def states(self, s: Session, names: Sequence[str]) -> list[BackendState]:
        """How backends fare; all are asked at once."""
        from metasync.reports.backends import BackendState
        from metasync.session import health, space

        states = health.check_places(s, [n for n in names if n in self.links], timeout_s=ASK_TIMEOUT_S)
        told = space.ask(s.runtime.run, [n for n in names if n in self.links and n not in states])
        index = s.index_at_hand()
        used = space.used(s, index) if index is not None else {}
        given_up = space.given_up(s.db) | self.given_up
        out = []
        for name in names:
            entry = self.config.named(name)
            assert entry is not None
            link = self.links.get(name)
            roles = (("data",) if entry.storage else ()) + (("vote",) if entry.acceptor is not None else ())
            roles += ("blocks",) if entry.acceptor is not None and entry.acceptor.form == "block" else ()
            state = "not linked" if link is None else states.get(name, "ok")
            capacity = entry.capacity_bytes if entry.capacity_bytes != DEFAULT_CAPACITY else None
            out.append(
                BackendState(
                    name=name,
                    url=link.url if link is not None else "",
                    roles=roles,
                    capacity_bytes=entry.capacity_bytes,
                    linked=link is not None,
                    state="full: its reserve was used" if state == "ok" and name in given_up else state,
                    free_bytes=told[name].free_bytes if name in told else None,
                    used_bytes=used.get(name),
                    total_bytes=told[name].total_bytes if name in told else None,
                    reserve_used=name in given_up,
                    warning=self._vote_doubt(name, entry)
                    or space.warning(name, capacity, used.get(name), told.get(name)),
                )
            )
        return out


def _names(config: Config, links: Mapping[str, Link]) -> dict[bytes, str]:
    return {e.backend_id: e.name for e in config.backends if e.name in links}


def _former(config: Config, previous: Config | None, links: Mapping[str, Link]) -> dict[bytes, str]:
    ids = {e.backend_id for e in config.backends}
    entries = [e for e in previous.backends if e.backend_id not in ids] if previous is not None else []
    named = {e.backend_id: former_name(e.name, e.backend_id) for e in entries}
    return {i: name for i, name in named.items() if name in links}


def former_name(name: str, backend_id: bytes) -> str:
    """Under which name the way to a backend is kept that is agreed no more: another one may be called so by now."""
    return f"{name}~{backend_id.hex()[:8]}"


def _hung_lately(db: LocalDb, now: float) -> dict[str, float]:
    """Backends that gave no answer a moment ago, by name, with the time."""
    noted = db.get(HUNG_KEY) or {}
    return {n: at for n, at in noted.items() if 0 <= now - at < HUNG_LATELY_S}
