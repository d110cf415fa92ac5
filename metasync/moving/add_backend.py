"""Changes of the agreed backends: opens what is to be added, and says what each change means.

One backend per change: each step keeps a quorum of the voting backends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from metasync.backends.api import Probes
from metasync.backends.nested import nested, nested_text, refuse_nested
from metasync.backends.registry import parse_url
from metasync.config import DEFAULT_CAPACITY, NO_LIMIT, Acceptor, BackendEntry, RedundancyClass, Replicate, Storage
from metasync.consensus import BIRTH_NONCE_BYTES, birth_digest, birth_matches, birth_path
from metasync.errors import BackendError, UsageError
from metasync.events import Notice
from metasync.members.found import ID_BYTES, NS_BYTES
from metasync.moving.reconfigure import Wanted, change
from metasync.runtime.sizes import BIRTH_ANSWER_BYTES_MAX
from metasync.session import agreement, open_backend, space
from metasync.session.folder import Link
from metasync.session.open_backend import NewBackend
from metasync.store import moves

COPIES_MAX = 255  # as the config has them in a byte

if TYPE_CHECKING:
    from metasync.backends.api import Backend, BackendUrl, LogForm
    from metasync.config import Config, Form
    from metasync.reports.backends import BackendChange
    from metasync.session.session import Session


def add(
    s: Session, url: str, *, replaces: str | None = None, passphrase: str | None = None, dry_run: bool = False
) -> BackendChange:
    """Adds a store to the agreed backends: see `Workspace.backend_add`. Its way is open from now on, and a link."""
    c = s.connections
    newest = agreement.newest(s).config
    name, parsed = _named(url, [e.name for e in newest.backends])
    open_backend.refuse_inside(s.directory, {name: parsed})
    leaving = _entry(newest, replaces) if replaces is not None else None
    _refuse_nested(s, name, parsed, leaving)
    if dry_run and parsed.scheme == "file" and not Path(parsed.path).exists():  # it would be made
        new = _yet_to_be(name, parsed, s.entropy)
        return change(s, _in_place_of(_adding(new, s.entropy), leaving), dry_run=True)
    with contextlib.closing(c.machine.opened(name, parsed, create=not dry_run)) as backend:
        new = open_backend.new_backend(name, parsed, backend, s.listener)
        _refuse_known(s, name, backend, leaving)
        wanted = _in_place_of(_adding(new, s.entropy, _free(backend)), leaving)
        if dry_run:
            return change(s, wanted, dry_run=True)
        backend_id = _id_of(wanted, s.config)
        link = Link(parsed.location, s.entropy(NS_BYTES).hex(), backend.identity().hex())
    c.join(name, backend_id, link, c.machine.reached(name, parsed, link))
    report = change(s, replace(wanted, joins=name), passphrase=passphrase)
    c.has_joined()
    return report


def remove(
    s: Session,
    name: str,
    *,
    passphrase: str | None = None,
    dry_run: bool = False,
    dead: bool = False,
    lose: bool = False,
    emptied: bool = False,
) -> BackendChange:
    """Takes a backend out of the agreed ones: see `Workspace.backend_remove`. One that is dead has no open way.

    `emptied`: the config says that whoever has a way to it is to empty it.
    """
    newest = agreement.newest(s).config
    before = {b.name: b for b in s.previous.backends} if dead and s.previous is not None else {}
    entry = before[name] if newest.named(name) is None and name in before else _entry(newest, name)
    backend_id = entry.backend_id

    def make(config: Config) -> Config:
        if dead and backend_id not in config.dead:
            return moves.without(config, backend_id)
        return moves.removing(config, backend_id, emptied=emptied)

    wanted = Wanted(name, make, leaves=backend_id, is_dead=dead, may_lose=lose)
    return change(s, wanted, passphrase=passphrase, dry_run=dry_run)


def drain(s: Session, name: str, *, dry_run: bool = False) -> BackendChange:
    """Gives a backend as good as no share of the data: a move takes from it what is there."""
    entry = _entry(agreement.newest(s).config, name)

    def make(config: Config) -> Config:
        now = config.backend(entry.backend_id)
        if now is None:
            return config
        others = [b for b in config.backends if b.backend_id != entry.backend_id]
        return config.with_backends([*others, now.weighing(1, now.limit_bytes)])

    return change(s, Wanted(name, make), dry_run=dry_run)


def alter(
    s: Session,
    name: str,
    capacity_bytes: int | None,
    new_name: str | None,
    role: Literal["both", "storage"] | None,
    *,
    passphrase: str | None = None,
    dry_run: bool = False,
) -> BackendChange:
    """Changes what is agreed of a backend: see `Workspace.backend_set`."""
    entry = _entry(agreement.newest(s).config, name)
    wanted = Wanted(new_name or name, lambda config: config)
    acceptor = entry.acceptor if role != "storage" else None
    if role == "both" and acceptor is None:
        acceptor = _new_acceptor(s, entry, wanted)

    def make(config: Config) -> Config:
        now = config.backend(entry.backend_id)
        if now is None:
            raise UsageError(f"{name} was removed by another device meanwhile")
        then = replace(now, name=new_name or now.name, acceptor=acceptor if role is not None else now.acceptor)
        if capacity_bytes is not None:
            then = then.weighing(DEFAULT_CAPACITY if _are_equal(config) else capacity_bytes, capacity_bytes)
        others = [b for b in config.backends if b.backend_id != entry.backend_id]
        if then.name in {b.name for b in others}:
            raise UsageError(f"another backend is called {then.name!r}", next_step="Choose another name.")
        return config.with_backends([*others, then]).weighed()

    wanted.make = make
    return change(s, wanted, passphrase=passphrase, dry_run=dry_run)


def set_copies(s: Session, copies: int, *, passphrase: str | None = None, dry_run: bool = False) -> BackendChange:
    """Changes how many copies of everything are promised: see `Workspace.set_copies`."""
    if not 1 <= copies <= COPIES_MAX:
        raise UsageError(f"{copies} copies: there is at least one of everything, and there are {COPIES_MAX} at most")

    def make(config: Config) -> Config:
        return replace(config, redundancy=(RedundancyClass(NO_LIMIT, Replicate(copies)),))

    return change(s, Wanted("the number of copies", make), passphrase=passphrase, dry_run=dry_run)


def _refuse_nested(s: Session, name: str, url: BackendUrl, leaving: BackendEntry | None) -> None:
    """`UsageError` for a store inside one that takes part and stays, or around it, by the ways that this device has.

    Warns of those that stay and lie inside each other already.
    """
    agreed = s.connections.agreed_names - {leaving.name if leaving is not None else ""}
    urls = {name: url}
    for other in agreed & s.connections.links.keys():
        with contextlib.suppress(UsageError):  # its provider's package is not here
            urls[other] = parse_url(s.connections.links[other].url)
    refuse_nested(urls, {name}, absent=s.connections.absent)
    for inner, outer in nested(urls, s.connections.absent):
        s.listener(Notice(nested_text(inner, outer), warning=True))


def _refuse_known(s: Session, name: str, backend: Backend, leaving: BackendEntry | None) -> None:
    """`UsageError` for a store that takes part already; one that leaves may be made anew where it was."""
    identity, links, entries = backend.identity(), s.connections.links, s.config.backends
    for e in entries:
        if leaving is not None and e.backend_id == leaving.backend_id:
            continue
        linked = e.name in links and bytes.fromhex(links[e.name].identity) == identity
        if linked or e.identity == identity:
            raise UsageError(
                f"that is the store of the backend {e.name} of this workspace already",
                next_step="Name another store: the loss of one must not be the loss of two copies.",
            )
    for listed in backend.list(""):
        for e in entries if listed.size is None else ():
            goes = leaving is not None and e.backend_id == leaving.backend_id
            if _is_root_of(backend, listed.name, e, whole=goes):
                raise UsageError(
                    f"what is at {name} holds the backend {e.name} of this workspace already",
                    next_step="Empty that store before another takes its place in it, or name another store."
                    if goes
                    else f"To link this device to it: metasync backend link {e.name} URL",
                )


def _new_acceptor(s: Session, entry: BackendEntry, wanted: Wanted) -> Acceptor:
    backend = s.connections.store(entry.name)
    if backend is None:
        raise UsageError(f"this device has no way to {entry.name}", next_step=f"metasync backend link {entry.name} URL")
    form = backend.form
    if form != "none" and isinstance(backend, Probes):
        form = backend.probe()
    if form == "none":
        why = getattr(backend, "form_reason", "") if backend.form == "none" else ""
        raise UsageError(
            f"{entry.name} may not vote: {why or 'it has no atomic create'}", next_step="It goes on holding data."
        )
    _refuse_form(s.config, entry.name, form)
    return _drawn_acceptor(wanted, s.entropy, form)


def _named(url: str, names: list[str]) -> tuple[str, BackendUrl]:
    """The name of a new backend and its URL."""
    ((base, parsed),) = open_backend.parsed_urls([url]).items()
    name, n = base, 2
    while name in names:
        if parsed.name:
            raise UsageError(
                f"a backend of this workspace is called {name!r}", next_step="Give it another: name= in its URL."
            )
        name, n = f"{base}-{n}", n + 1
    return name, parsed


def _yet_to_be(name: str, url: BackendUrl, entropy: Callable[[int], bytes]) -> NewBackend:
    """A folder that is not there."""
    capacity = url.capacity_bytes or DEFAULT_CAPACITY
    return NewBackend(name, url.scheme, capacity, "log", entropy(2 * ID_BYTES), url.role == "both")


def _entry(config: Config, name: str) -> BackendEntry:
    entry = config.named(name)
    if entry is None:
        names = ", ".join(b.name for b in sorted(config.backends, key=lambda b: b.name))
        raise UsageError(f"no backend of this workspace is called {name!r}", next_step=f"They are: {names}.")
    return entry


def _in_place_of(wanted: Wanted, leaving: BackendEntry | None) -> Wanted:
    """The same, with one backend gone in the same step."""
    if leaving is None:
        return wanted

    def make(config: Config) -> Config:
        rest = moves.removing(config, leaving.backend_id)
        return wanted.make(rest if rest.backends else config)

    return replace(wanted, make=make, leaves=leaving.backend_id)


def _are_equal(config: Config) -> bool:
    """Whether all backends have equal shares because not all were given a capacity."""
    return all(b.capacity_bytes == DEFAULT_CAPACITY for b in config.backends if b.storage)


def _weight(config: Config, new: NewBackend, free_bytes: int | None) -> int:
    """The weight of a new backend: equal among equal ones, else its capacity, its free space, or the others' mean."""
    if _are_equal(config):
        return DEFAULT_CAPACITY
    if new.limit_bytes is not None:
        return new.limit_bytes
    if free_bytes is not None:
        return space.offer(free_bytes)
    weights = [b.capacity_bytes for b in config.backends if b.storage]
    return sum(weights) // len(weights)


def _free(backend: Backend) -> int | None:
    """What a new store tells of its free space."""
    with open_backend.bare_runtime({"": backend}) as runtime:
        told = space.ask(runtime.run, [""]).get("")
    return told.free_bytes if told is not None else None


def _adding(new: NewBackend, entropy: Callable[[int], bytes], free_bytes: int | None = None) -> Wanted:
    wanted = Wanted(new.name, lambda config: config)
    storage_id, nonce = entropy(ID_BYTES), entropy(BIRTH_NONCE_BYTES)
    wanted.births[storage_id] = nonce
    form = new.form if new.role_both else "none"
    entry = BackendEntry(
        backend_id=entropy(ID_BYTES),
        name=new.name,
        scheme=new.scheme,
        capacity_bytes=new.capacity_bytes,
        identity=new.identity,
        storage=(Storage(storage_id, birth_digest(nonce)),),
        acceptor=_drawn_acceptor(wanted, entropy, form) if form != "none" else None,
    )

    def make(config: Config) -> Config:
        if config.named(entry.name) is not None:
            raise UsageError(f"another device has added a backend {entry.name!r} meanwhile")
        _refuse_form(config, entry.name, form)
        if any(b.identity == entry.identity for b in config.backends):
            raise UsageError(f"another device has added the store of {entry.name} meanwhile")
        weighing = entry.weighing(_weight(config, new, free_bytes), new.limit_bytes)
        return config.with_backends([*config.backends, weighing]).weighed()

    wanted.make = make
    return wanted


def _refuse_form(config: Config, name: str, form: LogForm) -> None:
    if form == "block" and config.mode == "bft":
        raise UsageError(
            f"{name}: a backend without an atomic create cannot vote where some may lie",
            next_step="Add it with role=storage in its URL.",
        )


def _drawn_acceptor(wanted: Wanted, entropy: Callable[[int], bytes], form: Form) -> Acceptor:
    """A new vote: whatever lay on the same store before is another acceptor's."""
    acceptor_id, nonce = entropy(ID_BYTES), entropy(BIRTH_NONCE_BYTES)
    wanted.births[acceptor_id] = nonce
    return Acceptor(acceptor_id, form, birth_digest(nonce))


def _id_of(wanted: Wanted, config: Config) -> bytes:
    """The id of the backend that a change adds."""
    before = {b.backend_id for b in config.backends}
    return next(b.backend_id for b in wanted.make(config).backends if b.backend_id not in before)


def _is_root_of(backend: Backend, folder: str, entry: BackendEntry, *, whole: bool) -> bool:
    """Whether a folder of a store is where an agreed backend's data or votes lie; `whole`: all of its places.

    One that was emptied may have got a new place for data since: replacing another backend gives it more of them.
    """
    where = [(s.storage_id, s.birth) for s in (entry.storage if whole else entry.storage[-1:])]
    if entry.acceptor is not None:
        where.append((entry.acceptor.acceptor_id, entry.acceptor.birth))
    found = (_is_born(backend, folder, place, birth) for place, birth in where)
    return all(found) if whole else any(found)


def _is_born(backend: Backend, folder: str, place: bytes, birth: bytes) -> bool:
    try:
        data = backend.get(f"{folder}/{birth_path(place)}", max_bytes=BIRTH_ANSWER_BYTES_MAX)
    except BackendError as e:
        if e.retryable:
            raise  # else one store would be taken for two because an answer got lost
        return False
    return birth_matches(data, place, birth)
