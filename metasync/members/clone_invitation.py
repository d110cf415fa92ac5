"""Makes a folder a new device of a workspace by an invitation: the first half of `clone --invite`."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from metasync.backends.api import Backend, BackendUrl
from metasync.backends.registry import parse_url, server_of
from metasync.backends.wrappers.wrapper import AbsentBackend
from metasync.config import BackendEntry, Config, decode_config
from metasync.consensus import birth_matches, birth_path, decode_state
from metasync.errors import FormatError, MetaSyncError, NoQuorumError, UsageError, WorkspaceError
from metasync.events import Listener, Notice
from metasync.keys.device_set import decode_certificate, decode_device_set, decode_identity
from metasync.keys.invitation import (
    INVITATION_BYTES_MAX,
    SECRET_BYTES,
    Code,
    Invite,
    decode_code,
    invitation_name,
    is_code,
    open_invite,
)
from metasync.keys.keyring import decode_keys
from metasync.local.state_keys import INVITED_KEY
from metasync.members.clone_passphrase import opened_all, tell_nested
from metasync.members.search import FOLDER, FOLDERS_MAX
from metasync.runtime.effects import Op, each
from metasync.runtime.tasks import Runtime
from metasync.session import lost_state, open_backend
from metasync.session.folder import MEMORY_KEY, Link, write_local
from metasync.session.open_backend import ASK_TIMEOUT_S

if TYPE_CHECKING:
    from metasync.consensus import State
    from metasync.keys.device_set import Certificate, DeviceIdentity, DeviceSet
    from metasync.keys.keyring import WorkspaceKeys

CODE_FILE_BYTES_MAX: Final = 1 << 20
GET_TIMEOUT_S: Final = 30.0

Trust: TypeAlias = bool | Callable[[tuple[str, ...]], bool]
"""Whether logins may be sent to the servers that an invitation names; or whom to ask, told which they are."""


def accept(
    folder: Path, invite: str, backends: Sequence[str], on_event: Listener, trust_hosts: Trust = False, *,
    merge: bool = False,
) -> None:  # fmt: skip
    """Makes `folder` the device that an invitation is for, unless that was begun before and interrupted.

    `invite`: the code, or a file that holds it. `backends`: URLs in place of those in the code, or beside them. Nothing
    is sent to a server that the invitation alone names before `trust_hosts` says so (`UsageError`): whoever wrote it
    may want the logins that this user has for servers of that kind. `merge`: as of `clone_passphrase.begin`.
    """
    if lost_state.is_begun(folder, None, merge=merge):
        return
    code = decode_code(_read(invite))
    lost_state.cleared(folder, "invited", merge=merge)
    urls = _urls(code, backends, on_event)
    _check_trusted(urls, backends, trust_hosts)
    with contextlib.ExitStack() as stack:
        opened = opened_all(stack, urls)
        runtime = stack.enter_context(open_backend.bare_runtime(opened))
        made = opened_by(code, runtime, opened, urls, os.urandom(SECRET_BYTES))
        _tell_absent(folder, opened, urls, on_event)
        tell_nested({n: parse_url(link.url) for n, link in made.links.items()}, on_event)
    write_local(folder, *made[:-1], unfinished=True, anew=merge, more=made.more)


class Invited(NamedTuple):
    """What an invitation makes of a new device: all that `write_local` takes."""

    name: str
    keys: WorkspaceKeys
    device: DeviceIdentity
    certificate: Certificate
    config: Config
    devices: DeviceSet
    links: dict[str, Link]
    state: State
    more: dict[str, bytes | None]


def opened_by(
    code: Code, runtime: Runtime, opened: Mapping[str, Backend], urls: Mapping[str, BackendUrl], secret: bytes
) -> Invited:
    """Opens an invitation by its code on these backends, which are known by the names of `urls`.

    `secret`: random, kept by this device alone: by it the device knows that the invitation was used here.
    `NoQuorumError`: too few of the backends can be reached. `WorkspaceError`: the invitation is not there, or unusable.
    """
    folders = _folders(runtime, opened, code)
    made = _fetched(runtime, folders, opened, code)
    config = decode_config(made.config)
    links = _links(runtime, urls, opened, folders, config)
    _require_quorum(config, links, code)
    state = decode_state(made.state)
    try:
        keys, device = decode_keys(made.keys), decode_identity(made.identity)
        certificate, devices = decode_certificate(made.certificate), decode_device_set(made.devices, made.ns_id)
        if keys.ns_id != made.ns_id or state.ns_id != made.ns_id or not devices.admits(certificate):
            raise FormatError("its parts do not belong together")
    except FormatError as e:
        raise WorkspaceError(f"the invitation cannot be used: {e.message}", next_step="Ask for a new one.") from e
    more = dict((INVITED_KEY.entry(secret + code.invitation_id), MEMORY_KEY.entry(made.memory)))
    return Invited(made.name, keys, device, certificate, config, devices, links, state, more)


def _read(invite: str) -> str:
    """The code itself: given, or from a file."""
    if is_code(invite):
        return invite
    try:
        with open(invite, "rb") as f:
            text = f.read(CODE_FILE_BYTES_MAX).decode("utf-8", "replace")
        words = text.split() if not is_code(text) else []  # a mail, or what `invite` printed
        return next((word for word in words if is_code(word)), text)
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else "no path"
        raise UsageError(
            f"{invite[:60]!r} is neither an invitation nor a file that holds one: {why}",
            next_step="Give all of the code, or the file that `metasync invite --out` wrote.",
        ) from e


def _urls(code: Code, backends: Sequence[str], on_event: Listener) -> dict[str, BackendUrl]:
    """URLs to try: the given ones, and those of the code with another name and place."""
    given = open_backend.parsed_urls(backends) if backends else {}
    out = dict(given)
    for way in code.ways:
        try:
            url = parse_url(way.url)
        except MetaSyncError as e:  # a kind of backend that is not installed here, say
            on_event(Notice(f"{way.name}: {e.message}", warning=True))
            continue
        if way.name not in out and url.location not in {u.location for u in given.values()}:
            out[way.name] = url
    return out


def _check_trusted(urls: Mapping[str, BackendUrl], backends: Sequence[str], trust_hosts: Trust) -> None:
    """`UsageError` unless the user named all servers, or agrees to them. A server in one of his own URLs is named."""
    named = {server_of(parse_url(text)) for text in backends}
    servers = tuple(sorted({server_of(url) for url in urls.values()} - named - {""}))
    if not servers or (trust_hosts(servers) if callable(trust_hosts) else trust_hosts):
        return
    raise UsageError(
        f"the invitation leads to servers that you did not name, and your logins would be sent to them (none was): "
        f"{', '.join(servers)}",
        next_step="If they are the right ones, run again with --trust-hosts, or name each with --backend URL.",
    )


def _folders(runtime: Runtime, opened: Mapping[str, Backend], code: Code) -> dict[str, list[str]]:
    """Folders on each backend that may be the workspace's, those of the code first."""
    known = {w.folder for w in code.ways}
    listed = runtime.run(each({n: Op(n, "list", "", timeout_s=ASK_TIMEOUT_S) for n in opened}))
    out = {}
    for n, reply in listed.items():
        if reply.error is None:
            names = [e.name for e in reply.value if e.size is None and FOLDER.fullmatch(e.name)][:FOLDERS_MAX]
            out[n] = sorted(names, key=lambda x: (x not in known, x))
    return out


def _fetched(
    runtime: Runtime, folders: Mapping[str, Sequence[str]], opened: Mapping[str, Backend], code: Code
) -> Invite:
    """Fetches and opens the invitation, from the first backend that has it intact."""
    name = invitation_name(code.invitation_id)
    asked = 0
    for n, inside in folders.items():
        for folder in inside:
            get = Op(n, "get", f"{folder}/keys/{name}", max_bytes=INVITATION_BYTES_MAX, timeout_s=GET_TIMEOUT_S)
            reply = runtime.run(each({n: get}))[n]
            asked += 1
            if reply.error is None:
                with contextlib.suppress(FormatError):
                    return open_invite(reply.value, code.invitation_id, code.secret)
    if not folders:
        reasons = "; ".join(f"{n}: {b.why.message}" for n, b in sorted(opened.items()) if isinstance(b, AbsentBackend))
        raise NoQuorumError(
            f"none of the workspace's backends can be reached from here ({reasons or 'no answer'})",
            next_step="Give the way from this device: --backend URL, once for each.",
        )
    raise WorkspaceError(
        f"the invitation is not on {', '.join(sorted(folders))} (any more): it was used, taken back, or ended",
        next_step="Ask for a new one: `metasync invite` on a device of the workspace.",
    )


def _links(
    runtime: Runtime,
    urls: Mapping[str, BackendUrl],
    opened: Mapping[str, Backend],
    folders: Mapping[str, Sequence[str]],
    config: Config,
) -> dict[str, Link]:
    """Matches the opened backends to the agreed ones by their births."""
    links: dict[str, Link] = {}
    for n, inside in folders.items():
        found = next(
            ((e, f) for f in inside for e in config.backends if e.name not in links and _is(runtime, n, f, e)), None
        )
        if found is not None:
            entry, folder = found
            links[entry.name] = Link(urls[n].location, folder, opened[n].identity().hex())
    return links


def _is(runtime: Runtime, n: str, folder: str, entry: BackendEntry) -> bool:
    """True when a folder of a backend holds the births that the config knows for an agreed backend."""
    places = [(s.storage_id, s.birth) for s in entry.storage[-1:]]
    if entry.acceptor is not None:
        places.append((entry.acceptor.acceptor_id, entry.acceptor.birth))
    for i, birth in places:
        get = Op(n, "get", f"{folder}/{birth_path(i)}", max_bytes=1024, timeout_s=ASK_TIMEOUT_S)
        reply = runtime.run(each({n: get}))[n]
        if reply.error is not None or not birth_matches(reply.value, i, birth):
            return False
    return True


def _tell_absent(
    folder: Path, opened: Mapping[str, Backend], urls: Mapping[str, BackendUrl], on_event: Listener
) -> None:
    """Says of each store that could not be reached why, and how it is linked later: of a login that is missing, say."""
    for name, backend in opened.items():
        if isinstance(backend, AbsentBackend):
            step = backend.why.next_step.rstrip(".")
            link = shlex.join(("metasync", "-C", str(folder), "backend", "link", name, urls[name].location))
            on_event(Notice(f"{backend.why.message}. {f'{step}; then: ' if step else 'Later: '}{link}", warning=True))


def _require_quorum(config: Config, links: Mapping[str, Link], code: Code) -> None:
    """`NoQuorumError` unless a quorum is linked: an agreement uses the invitation up."""
    voters = [e.name for e, _ in config.acceptors]
    reached = [n for n in voters if n in links]
    if len(reached) >= config.quorum:
        return
    urls = {w.name: w.url for w in code.ways}
    missing = "; ".join(f"{n} ({urls.get(n, 'of unknown place')})" for n in voters if n not in links)
    raise NoQuorumError(
        f"an invitation is used up by an agreement, which takes {config.quorum} voting backends, and {len(reached)} "
        f"can be reached from here. Missing: {missing}",
        next_step="Give the way from this device: --backend URL, once for each; check your logins there.",
    )
