"""Makes a folder a new device of a workspace that lies on backends already: the first half of `clone`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from metasync import ways
from metasync.backends._absent import AbsentBackend
from metasync.backends._base import Backend
from metasync.backends._wrap import Prefixed
from metasync.consensus import Found, Group, State, birth_matches, birth_path, bootstrap
from metasync.effects import Op, Reply
from metasync.errors import BackendError, DamagedError, WorkspaceError
from metasync.events import Listener, Notice
from metasync.keys.devices import DEVICE_ENTROPY_BYTES, new_device
from metasync.runtime import Runtime
from metasync.sync import join
from metasync.sync.enrolment import Link, write_local
from metasync.sync.found import each

ASK_TIMEOUT_S: Final = 10.0
INCARNATION_BYTES: Final = 16


def enrol(
    folder: Path,
    name: str,
    backends: Sequence[str],
    passphrase: str,
    device_name: str | None,
    expect: str | None,
    on_event: Listener,
) -> None:
    """Finds the workspace, makes keys for this device, and writes the local state, still without files."""
    urls = ways.parsed_urls(backends)
    with contextlib.ExitStack() as stack:
        opened: dict[str, Backend] = {}
        for n, u in urls.items():
            try:
                opened[n] = stack.enter_context(contextlib.closing(ways.reached(n, u)))
            except BackendError as e:
                opened[n] = AbsentBackend(e)
        runtime = stack.enter_context(ways.bare_runtime(opened))
        given = sorted(opened)
        out = join.search(given, name, passphrase, runtime.run, everywhere=False)
        secret = join.require(out, name, given)
        try:
            keys, admin_private = join.open_rings(out, secret, runtime.run)
        except DamagedError:  # of the first backend that has the workspace: the others may hold it intact
            out = join.search(given, name, passphrase, runtime.run)
            secret = join.require(out, name, given)
            keys, admin_private = join.open_rings(out, secret, runtime.run)
        device = new_device(device_name or ways.default_device_name(), os.urandom(DEVICE_ENTROPY_BYTES))
        certificate = device.certified(admin_private, keys.ns_id)
        places = {n: (n, folder) for n, folder in sorted(out.folders.items())}
        places |= {f"{n} {f}": (n, f) for n, folders in sorted(out.unread.items()) for f in folders}
        inner = stack.enter_context(
            ways.bare_runtime({key: Prefixed(opened[n], folder) for key, (n, folder) in places.items()})
        )
        start: Found = inner.run(bootstrap(keys, list(places)))
        names = _agreed_names(start, inner, list(places))
        for n, why in sorted(_problems(out, start, places, names).items()):
            on_event(Notice(f"{n}: {why}", warning=True))
        if expect is not None:
            group = Group(
                keys, device, start.config, start.state.config, start.devices, start.state.devices,
                incarnation=os.urandom(INCARNATION_BYTES), links=start.links, certificate=certificate.encode(),
            )  # fmt: skip
            _check_expected(inner.run(group.get_recent(start.state)), expect)
        links = {}
        for key, agreed in names.items():
            n, inside = places[key]
            links[agreed] = Link(urls[n].location, inside, opened[n].identity().hex())
    write_local(
        folder, name, keys, device, certificate, start.config, start.devices, links, start.state, unfinished=True
    )


def _problems(
    out: join.Found, start: Found, places: Mapping[str, tuple[str, str]], names: Mapping[str, str]
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
