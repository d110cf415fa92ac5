"""Makes a folder a new device of a workspace that lies on backends already: the first half of `clone`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from metasync.backends.api import Backend, BackendUrl
from metasync.backends.wrappers.absent import AbsentBackend
from metasync.backends.wrappers.wrapper import Prefixed
from metasync.consensus import Group, State, birth_matches, birth_path
from metasync.consensus.founding import Found, bootstrap, look
from metasync.errors import BackendError, DamagedError, ExcludedError, NoQuorumError, WorkspaceError
from metasync.events import Listener, Notice
from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, Certificate, DeviceIdentity, new_device
from metasync.members import search
from metasync.runtime.effects import Op, Reply, each
from metasync.runtime.tasks import Runtime
from metasync.session import open_backend
from metasync.session.folder import STATE_DIR, Link, is_unfinished, new_folder, write_local
from metasync.session.open_backend import ASK_TIMEOUT_S, INCARNATION_BYTES


@dataclass(frozen=True)
class _Start:
    """A new device as it begins: its keys, and the newest state that it could start from."""

    out: search.Found
    opening: search.Opening
    device: DeviceIdentity
    certificate: Certificate
    found: Found
    places: dict[str, tuple[str, str]]
    runtime: Runtime


_NEEDED = (
    "metasync.members.admission",
    "metasync.sync.first_checkout",
    "metasync.sync.pull",
    "metasync.session.write_index",
)


class _Ahead:
    """What needs no key, read while the passphrase is stretched: of backends that hold one workspace's folder."""

    def __init__(self, runtime: Runtime, opened: Mapping[str, Backend]) -> None:
        self._runtime = runtime
        self._opened = opened
        self._begun: dict[tuple[str, str], Future[dict[tuple[str, str], Reply]]] = {}

    def begin(self, folders: Mapping[str, Sequence[str]]) -> None:
        """Begins to read; `folders` by backend."""
        for n, inside in folders.items():
            if len(inside) == 1:
                key = f"{n} {inside[0]}"
                self._runtime.add_backend(key, Prefixed(self._opened[n], inside[0]))
                self._begun[n, inside[0]] = self._runtime.start(look([key]))

    def seen(self, places: Mapping[str, tuple[str, str]]) -> dict[tuple[str, str], Reply]:
        """What was read, by the names of `places` (backend and folder); waits for it."""
        out = {}
        for key, place in places.items():
            if place in self._begun:
                out.update({(key, path): reply for (_, path), reply in self._begun[place].result().items()})
        return out


def begin(
    folder: Path,
    name: str,
    backends: Sequence[str],
    passphrase: str,
    device_name: str | None,
    expect: str | None,
    on_event: Listener,
    *,
    again: bool = False,
) -> dict[str, Backend]:
    """Makes `folder` a device of the workspace `name`, unless that was begun before and interrupted.

    -> backends that are open by now, by agreed name: the caller's to use and to close. `again`: the keys that were
    found before turned out not to be in force, so that nothing is taken on trust.
    """
    if is_unfinished(folder, name):
        return {}
    check_empty(new_folder(folder, name))
    return enrol(folder, name, backends, passphrase, device_name, expect, on_event, again=again)


def check_empty(folder: Path) -> None:
    """`WorkspaceError` when files are there."""
    if folder.is_dir() and any(not e.name.startswith(STATE_DIR) for e in folder.iterdir()):
        raise WorkspaceError(f"{folder} is not empty", next_step="Clone into a new folder, then move your files there.")


def opened_all(stack: contextlib.ExitStack, urls: Mapping[str, BackendUrl]) -> dict[str, Backend]:
    """Opens backends; in the place of one that cannot be had stands one that says why."""
    opened: dict[str, Backend] = {}
    for n, u in urls.items():
        try:
            opened[n] = stack.enter_context(contextlib.closing(open_backend.reached(n, u)))
        except BackendError as e:
            opened[n] = AbsentBackend(e)
    return opened


def enrol(
    folder: Path,
    name: str,
    backends: Sequence[str],
    passphrase: str,
    device_name: str | None,
    expect: str | None,
    on_event: Listener,
    *,
    again: bool = False,
) -> dict[str, Backend]:
    """Finds the workspace, makes keys for this device, and writes the local state, still without files: see `begin`."""
    urls = open_backend.parsed_urls(backends)
    device = new_device(device_name or open_backend.default_device_name(), os.urandom(DEVICE_ENTROPY_BYTES))
    with contextlib.ExitStack() as opening:
        opened = opened_all(opening, urls)
        with contextlib.ExitStack() as stack:
            runtime = stack.enter_context(open_backend.bare_runtime(opened))
            runtime.submit_work(_load)
            try:
                start = _start(stack, opened, runtime, name, passphrase, device, everywhere=again)
            except (DamagedError, ExcludedError):  # of the first that has it: others may be intact, or newer
                start = _start(stack, opened, runtime, name, passphrase, device, everywhere=True)
            names = _agreed_names(start.found, start.runtime, list(start.places))
            for n, why in sorted(_problems(start.out, start.found, start.places, names).items()):
                on_event(Notice(f"{n}: {why}", warning=True))
            if expect is not None:
                group = _group(start.opening, device, start.certificate, start.found)
                _check_expected(start.runtime.run(group.get_recent(start.found.state)), expect)
            places = {agreed: start.places[key] for key, agreed in names.items()}
            links = _links(urls, opened, places, on_event)
        f = start.found
        write_local(
            folder, name, start.opening.keys, device, start.certificate, f.config, f.devices, links, f.state,
            unfinished=True,
        )  # fmt: skip
        opening.pop_all()
    stay = {places[agreed][0]: agreed for agreed in links}
    for n in opened.keys() - stay.keys():
        opened[n].close()
    return {agreed: opened[n] for n, agreed in stay.items() if not isinstance(opened[n], AbsentBackend)}


def _load() -> None:
    """Loads what a clone will need, while it waits for its first answers."""
    for name in _NEEDED:
        import_module(name)


def _links(
    urls: Mapping[str, BackendUrl],
    opened: Mapping[str, Backend],
    places: Mapping[str, tuple[str, str]],
    on_event: Listener,
) -> dict[str, Link]:
    """This device's ways, by agreed names; without those to backends that went away meanwhile, which is told.

    `BackendError` when all of them did.
    """
    links: dict[str, Link] = {}
    error: BackendError | None = None
    for agreed, (n, inside) in places.items():
        try:
            links[agreed] = Link(urls[n].location, inside, opened[n].identity().hex())
        except BackendError as e:
            error = e
            on_event(Notice(f"{n}: {e.message}", warning=True))
    if error is not None and not links:
        raise error
    return links


def _start(
    stack: contextlib.ExitStack,
    opened: Mapping[str, Backend],
    runtime: Runtime,
    name: str,
    passphrase: str,
    device: DeviceIdentity,
    *,
    everywhere: bool,
) -> _Start:
    """Opens the keyring that is in force. `ExcludedError` when the passphrase opens only others."""
    given = sorted(opened)
    ahead = _Ahead(runtime, opened)
    out = search.search(
        given, name, passphrase, runtime.run, everywhere=everywhere, on_folders=ahead.begin, start=runtime.start
    )
    search.require(out, name, given)
    places = {n: (n, folder) for n, folder in sorted(out.folders.items())}
    places |= {f"{n} {f}": (n, f) for n, folders in sorted(out.unread.items()) for f in folders}
    others = {f"{n} {f}": (n, f) for n, f in sorted(out.keys) if n not in out.folders}  # with other slots: newer ones?
    places |= others
    inner = stack.enter_context(
        open_backend.bare_runtime({key: Prefixed(opened[n], folder) for key, (n, folder) in places.items()})
    )
    seen = ahead.seen(places)
    for opening in search.open_rings(out, runtime.run):
        certificate = device.certified(opening.admin_private, opening.keys.ns_id)
        found: Found = inner.run(bootstrap(opening.keys, list(places), seen))
        if (not everywhere and found.state.keyring == opening.digest) or _in_force(
            opening, device, certificate, found, inner
        ):
            return _Start(out, opening, device, certificate, found, places, inner)
    raise ExcludedError(
        "the passphrase opens only keys that are not in force: it was changed with them, or belongs to a change of "
        "keys that never was agreed",
        next_step="Give the passphrase of today, the one before it, or the newest recovery phrase.",
    )


def _in_force(
    opening: search.Opening,
    device: DeviceIdentity,
    certificate: Certificate,
    found: Found,
    runtime: Runtime,
) -> bool:
    """True when the newest state that can be learned of names the keyring that was opened."""
    if found.state.epoch >= opening.keys.epoch and found.state.keyring != opening.digest:
        return False
    group = _group(opening, device, certificate, found)
    try:
        newest: State = runtime.run(group.get_recent(found.state))
    except NoQuorumError:
        return True  # it cannot be known now; a keyring of another's is found out when this device is to be agreed
    except ExcludedError:
        return False
    return newest.keyring == opening.digest


def _group(opening: search.Opening, device: DeviceIdentity, certificate: Certificate, found: Found) -> Group:
    return Group(
        opening.keys, device, found.config, found.state.config, found.devices, found.state.devices,
        incarnation=os.urandom(INCARNATION_BYTES), links=found.links, certificate=certificate.encode(),
    )  # fmt: skip


def _problems(
    out: search.Found, start: Found, places: Mapping[str, tuple[str, str]], names: Mapping[str, str]
) -> dict[str, str]:
    """Why backends that were given to `clone` are not used."""
    used = {places[key][0] for key in names}
    problems = {n: e.message for n, e in out.failed.items()}
    for key, why in start.problems.items():
        problems.setdefault(places[key][0], why)
    for n in out.unread:
        problems.setdefault(n, "holds nothing of this workspace")
    return {n: why for n, why in problems.items() if n not in used}


def _agreed_names(start: Found, runtime: Runtime, given: Sequence[str]) -> dict[str, str]:
    """What the backends given to `clone` are called in the agreed config: voters by `bootstrap`, others by birth."""
    names = {start.links[a.acceptor_id]: e.name for e, a in start.config.acceptors if a.acceptor_id in start.links}
    for entry in start.config.backends:
        if entry.acceptor is not None:
            continue
        place, birth = entry.storage[-1].storage_id, entry.storage[-1].birth
        rest = [n for n in given if n not in names]
        replies: Mapping[str, Reply] = runtime.run(
            each({n: Op(n, "get", birth_path(place), max_bytes=1024, timeout_s=ASK_TIMEOUT_S) for n in rest})
        )
        for n, reply in replies.items():
            if reply.error is None and birth_matches(reply.value, place, birth):
                names[n] = entry.name
    return names


def _check_expected(state: State, expect: str) -> None:
    """`WorkspaceError` unless the newest state has the fingerprint the user expects."""
    if expect.replace("-", "").replace(" ", "").lower() != state.fingerprint.replace("-", "").lower():
        raise WorkspaceError(
            f"the newest version is {state.v} with fingerprint {state.fingerprint}, not {expect}",
            next_step="Compare with `metasync status` on another device; a provider may be hiding versions.",
        )
