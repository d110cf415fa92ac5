"""Makes a folder a new device of a workspace that lies on backends already: the first half of `clone`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from metasync.backends.api import Backend, BackendUrl
from metasync.backends.nested import nested, nested_text
from metasync.backends.wrappers.wrapper import AbsentBackend, Prefixed
from metasync.consensus import ZERO_HASH, Group, State, birth_matches, birth_path
from metasync.consensus.founding import Found, bootstrap
from metasync.errors import BackendError, DamagedError, ExcludedError, NoQuorumError, WorkspaceError
from metasync.events import Listener, Notice
from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, Certificate, DeviceIdentity, new_device
from metasync.keys.slots import fingerprint_words
from metasync.members import search
from metasync.members.ahead import Ahead, index_at_hand
from metasync.runtime.effects import Op, each
from metasync.runtime.tasks import Runtime
from metasync.session import lost_state, open_backend
from metasync.session.connections import Opened
from metasync.session.folder import Link, write_local
from metasync.session.open_backend import ASK_TIMEOUT_S, INCARNATION_BYTES
from metasync.session.session import LOOK_S


@dataclass(frozen=True)
class _Start:
    """A new device: its keys, and the newest state that it can start from."""

    out: search.Found
    opening: search.Opening
    device: DeviceIdentity
    certificate: Certificate
    found: Found
    places: dict[str, tuple[str, str]]
    runtime: Runtime
    ahead: Ahead

    def group(self) -> Group:
        found, state = self.found, self.found.state
        return Group(
            self.opening.keys, self.device, found.config, state.config, found.devices, state.devices,
            incarnation=os.urandom(INCARNATION_BYTES), links=found.links, certificate=self.certificate.encode(),
        )  # fmt: skip


_NEEDED = (
    "metasync.members.admission",
    "metasync.sync.first_checkout",
    "metasync.sync.pull",
    "metasync.session.write_index",
)


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
    merge: bool = False,
) -> Opened:
    """Finds the workspace `name`, makes keys for this device, and writes the local state of `folder`, without files.

    -> what is open and read by then, the caller's to use; nothing where an interrupted clone did this before.
    `again`: the keys that were found before are not in force, so nothing is taken on trust. `merge`: the folder has
    files, which stay, and perhaps a local state that is of no use.
    """
    if lost_state.is_begun(folder, name, merge=merge) and not again:
        return Opened()
    lost_state.cleared(folder, name, merge=merge, again=again)
    urls = open_backend.parsed_urls(backends)
    device = new_device(device_name or open_backend.default_device_name(), os.urandom(DEVICE_ENTROPY_BYTES))
    with contextlib.ExitStack() as opening:
        opened = opened_all(opening, urls)
        runtime = open_backend.bare_runtime(opened)
        opening.callback(runtime.close, 0)  # it writes nothing
        with contextlib.ExitStack() as stack:
            runtime.submit_work(_load)
            try:
                start = _start(stack, opened, runtime, name, passphrase, device, everywhere=again)
            except (DamagedError, ExcludedError):  # of the first that has it: others may be intact, or newer
                start = _start(stack, opened, runtime, name, passphrase, device, everywhere=True)
            names = _agreed_names(start)
            for n, why in sorted(_problems(start, names).items()):
                on_event(Notice(f"{n}: {why}", warning=True))
            _require_way(start)
            if expect is not None:
                _check_expected(start.runtime.run(start.group().get_recent(start.found.state)), expect)
            places = {agreed: start.places[key] for key, agreed in names.items()}
            links = _links(urls, opened, places, on_event)
            is_quiet = start.ahead.is_quiet(start.opening.keys, start.found, start.places)
            tell_nested({agreed: urls[places[agreed][0]] for agreed in links}, on_event)
        f = start.found
        write_local(
            folder, name, start.opening.keys, device, start.certificate, f.config, f.devices, links, f.state,
            unfinished=True, anew=merge, objects=index_at_hand(start.opening.keys, f.state, start.ahead.objects),
        )  # fmt: skip
        opening.pop_all()
    stay = {places[agreed][0]: agreed for agreed in links}
    for n in opened.keys() - stay.keys():
        opened[n].close()
    kept = {agreed: opened[n] for n, agreed in stay.items() if not isinstance(opened[n], AbsentBackend)}
    return Opened(kept, partial(start.ahead.pack, names=stay), is_quiet, partial(runtime.close, 0))


def opened_all(stack: contextlib.ExitStack, urls: Mapping[str, BackendUrl]) -> dict[str, Backend]:
    """Opens backends. One that cannot be opened is replaced by an `AbsentBackend` with the reason."""
    opened: dict[str, Backend] = {}
    for n, u in urls.items():
        try:
            opened[n] = stack.enter_context(contextlib.closing(open_backend.reached(n, u)))
        except BackendError as e:
            opened[n] = AbsentBackend(e)
    return opened


def tell_nested(urls: Mapping[str, BackendUrl], on_event: Listener) -> None:
    """Warns of agreed backends that lie inside each other: whoever added the second had no way to the first, say."""
    for inner, outer in nested(urls):
        on_event(Notice(nested_text(inner, outer), warning=True))


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
    """This device's links by agreed name, without backends that went away meanwhile. `BackendError` if all did."""
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
    ahead = Ahead(runtime, opened)
    out = search.search(
        given, name, passphrase, runtime.run, everywhere=everywhere, on_folders=ahead.begin, start=runtime.start
    )
    search.require(out, name, given, passphrase)
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
        found: Found = inner.run(bootstrap(opening.keys, list(places), seen, ahead.objects))
        start = _Start(out, opening, device, certificate, found, places, inner, ahead)
        if (not everywhere and found.state.keyring == opening.digest) or _in_force(start):
            return start
    raise ExcludedError(
        "the passphrase opens only keys that are not in force: it was changed with them, or belongs to a change of "
        "keys that never came into force",
        next_step="Give the passphrase of today, the one before it, or the newest recovery phrase.",
    )


def _require_way(start: _Start) -> None:
    """`NoQuorumError` where only a beginning without a file was found, and too few who vote to tell what follows.

    An empty folder would look like an empty workspace. Nothing was written yet that would stand in the way of a retry.
    """
    found, voters = start.found, {a.acceptor_id: e.name for e, a in start.found.config.acceptors}
    have = voters.keys() & found.links.keys()
    if len(have) >= found.config.quorum:
        return
    if have or found.links:
        with contextlib.suppress(NoQuorumError):
            seen: State = start.runtime.run(start.group().newest_seen(found.state, deadline_s=LOOK_S))
            if seen.master != ZERO_HASH:
                return
    lacking = ", ".join(sorted(voters[a] for a in voters.keys() - have))
    raise NoQuorumError(
        f"version {found.state.v + 1}: no quorum of {found.config.quorum} of {len(voters)} backends "
        f"(not among those given, or not reached: {lacking})",
        next_step="Give `clone` more of the workspace's backends. If these are all, run `metasync check` on another "
        "device, which stores what a new device begins with, then clone again.",
    )


def _in_force(start: _Start) -> bool:
    """True when the newest state that can be learned of names the keyring that was opened."""
    state, opening = start.found.state, start.opening
    if state.epoch >= opening.keys.epoch and state.keyring != opening.digest:
        return False
    try:
        newest: State = start.runtime.run(start.group().get_recent(state))
    except NoQuorumError:
        return True  # it cannot be known now; a keyring of another's is found out when this device is to be agreed
    except ExcludedError:
        return False
    return newest.keyring == opening.digest


def _problems(start: _Start, names: Mapping[str, str]) -> dict[str, str]:
    """Why backends that were given to `clone` are not used."""
    used = {start.places[key][0] for key in names}
    problems = {n: e.message for n, e in start.out.failed.items()}
    for key, why in start.found.problems.items():
        problems.setdefault(start.places[key][0], why)
    for n in start.out.unread:
        problems.setdefault(n, "holds nothing of this workspace")
    return {n: why for n, why in problems.items() if n not in used}


def _agreed_names(start: _Start) -> dict[str, str]:
    """What the backends given to `clone` are called in the agreed config: voters by `bootstrap`, others by birth."""
    config, links = start.found.config, start.found.links
    names = {links[a.acceptor_id]: e.name for e, a in config.acceptors if a.acceptor_id in links}
    for entry in config.backends:
        if entry.acceptor is not None:
            continue
        place, birth = entry.storage[-1].storage_id, entry.storage[-1].birth
        ops = {
            n: Op(n, "get", birth_path(place), max_bytes=1024, timeout_s=ASK_TIMEOUT_S)
            for n in start.places
            if n not in names
        }
        for n, reply in start.runtime.run(each(ops)).items():
            if reply.error is None and birth_matches(reply.value, place, birth):
                names[n] = entry.name
    return names


def _check_expected(state: State, expect: str) -> None:
    """`WorkspaceError` unless the newest state has the fingerprint the user expects, in digits or in words."""
    given = re.findall("[a-z0-9]+", expect.lower())
    words = fingerprint_words(state.hash)
    digits = "".join(given) in (state.fingerprint.replace("-", ""), state.hash[:5].hex())
    if not digits and given not in (words.split(), [str(state.v), *words.split()]):
        raise WorkspaceError(
            f"the newest version is {state.v} with fingerprint {state.fingerprint} ({words}), not {expect}",
            next_step="Compare with `metasync status -v` on another device; a provider may be hiding versions.",
        )
