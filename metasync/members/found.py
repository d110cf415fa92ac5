"""Founds a workspace on its backends, for `init`: keys, config, device set and state 0 (consensus.md, rule 1.1).

Everything lies under a random folder per backend. Key slots are written last: without one, a founding that was cut
short is not a workspace to anybody, only some unreadable bytes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Final, TypeAlias

from metasync.backends.nested import refuse_nested
from metasync.backends.wrappers.ballast import BALLAST_BYTES, BALLAST_PATH
from metasync.backends.wrappers.wrapper import Prefixed
from metasync.config import (
    NO_LIMIT,
    TRUSTING_TAG,
    Acceptor,
    BackendEntry,
    ChunkingClass,
    Config,
    Form,
    RedundancyClass,
    Replicate,
    Storage,
    byzantine_f,
)
from metasync.consensus import BIRTH_NONCE_BYTES, State, birth_digest, birth_path, encode_birth, founding
from metasync.errors import UnreachableError, UsageError, WorkspaceError
from metasync.events import Listener, Notice
from metasync.keys.derive import sha256, sign_public
from metasync.keys.device_set import (
    DEVICE_ENTROPY_BYTES,
    Certificate,
    DeviceIdentity,
    DeviceSet,
    make_device_set,
    new_device,
)
from metasync.keys.keyring import (
    FIRST_EPOCH,
    RING_ENTROPY_BYTES,
    WorkspaceKeys,
    make_ring,
    new_keys,
    open_keys,
    ring_path,
)
from metasync.keys.policy import AdminChain, make_policy
from metasync.keys.slots import COST, Cost, new_slots
from metasync.members import search
from metasync.reports.start import InitReport, W
from metasync.runtime.effects import Op, Reply, Task, each, together
from metasync.session import open_backend, space
from metasync.session.folder import Link, new_folder, write_local
from metasync.session.open_backend import NewBackend
from metasync.store.placement import Placement, Target, survives

ID_BYTES: Final = 16
NS_BYTES: Final = 16
DEFAULT_COPIES: Final = 2
SEGMENT_BYTES: Final = 1 << 20  # text compresses by a tenth better than in 256 KiB, and a range is still one request

CHUNKING: Final = (
    ChunkingClass(64 << 20, "cdc", 64 << 10, 256 << 10, 1 << 20),
    ChunkingClass(NO_LIMIT, "cdc", 256 << 10, 1 << 20, 4 << 20),  # larger chunks cost memory and gain little
)


@dataclass(frozen=True)
class Founded:
    """A new workspace, as its first device needs it."""

    keys: WorkspaceKeys
    config: Config
    devices: DeviceSet
    device: DeviceIdentity
    certificate: Certificate
    state: State
    recovery_phrase: str = field(repr=False)


@dataclass(frozen=True)
class NewWorkspace:
    """What `init` was asked for: see `Workspace.init`."""

    name: str
    backends: Sequence[str]
    passphrase: str = field(repr=False)
    replicas: int | None = None
    encryption: bool = True
    byzantine: Lying = None
    by_space: bool | None = None
    device_name: str | None = None
    kdf: Cost = COST


Lying: TypeAlias = bool | Callable[[int], bool | None] | None
"""Whether voting backends that lie are allowed for (None: where it costs nothing), or whom to ask, told how many."""


def begin(
    directory: str | os.PathLike[str], wanted: NewWorkspace, on_event: Listener, open_at: Callable[[Path], W]
) -> InitReport[W]:
    """Makes `directory` the first device of a new workspace, and has it opened.

    `UsageError`, `WorkspaceError`, `BackendError`: see `Workspace.init`.
    """
    folder = new_folder(directory, wanted.name)
    if not wanted.passphrase.strip():
        raise UsageError("the passphrase is empty", next_step="Choose one that nobody guesses.")
    urls = open_backend.parsed_urls(wanted.backends)
    open_backend.refuse_inside(folder, urls)
    refuse_nested(urls, urls)
    copies = wanted.replicas if wanted.replicas is not None else min(DEFAULT_COPIES, len(urls))
    if copies > len(urls):
        raise UsageError(
            f"{copies} copies need {copies} backends, and there {'is' if len(urls) == 1 else 'are'} {len(urls)}",
            next_step="Add backends, or lower --replicas.",
        )
    with contextlib.ExitStack() as stack:
        opened = {
            n: stack.enter_context(contextlib.closing(open_backend.opened_first(n, url, create=True)))
            for n, url in urls.items()
        }
        new = open_backend.new_backends(opened, urls, on_event)
        open_backend.refuse_twins(new)
        runtime = stack.enter_context(open_backend.bare_runtime(opened))
        new, why = space.weighed(new, space.ask(runtime.run, opened), wanted.by_space)
        if search.search(sorted(opened), wanted.name, wanted.passphrase, runtime.run).secret is not None:
            raise WorkspaceError(
                f"a workspace named {wanted.name!r} is there already, and this passphrase opens it",
                next_step="`metasync clone` brings it here; or choose another name.",
            )
        folders = {n: os.urandom(NS_BYTES).hex() for n in opened}
        inner = stack.enter_context(open_backend.bare_runtime({n: Prefixed(b, folders[n]) for n, b in opened.items()}))
        weights = [Target(n.to_bytes(ID_BYTES, "big"), b.weight or b.capacity_bytes) for n, b in enumerate(new)]
        parts = space.rounded_shares(Placement(weights, copies=copies))
        on_event(
            Notice(space.shares_text({b.name: parts.get(t.backend_id) for b, t in zip(new, weights, strict=True)}, why))
        )
        voters = [b.form for b in new if b.role_both and b.form != "none"]
        lying = wanted.byzantine
        if callable(lying):  # who is to be asked is asked where the answer may be yes
            lying = lying(len(voters)) if "block" not in voters else None
        made = found(
            new,
            name=wanted.name,
            passphrase=wanted.passphrase,
            copies=copies,
            encrypted=wanted.encryption,
            device_name=wanted.device_name or open_backend.default_device_name(),
            entropy=os.urandom,
            run=inner.run,
            cost=wanted.kdf,
            byzantine=lying,
        )
        refuse_shared(runtime.run, inner.run, folders)
        links = {n: Link(urls[n].location, folders[n], b.identity().hex()) for n, b in opened.items()}
        for n, told in sorted(space.ask(inner.run, opened).items()):
            if warning := space.warning(n, None, None, told):
                on_event(Notice(warning, warning=True))
    write_local(
        folder, wanted.name, made.keys, made.device, made.certificate, made.config, made.devices, links, made.state
    )
    return InitReport(
        str(folder),
        wanted.name,
        tuple(sorted(links)),
        survives(made.config),
        made.recovery_phrase,
        open_at(folder),
        made.config.n,
        made.config.f,
    )


def make_config(
    backends: Sequence[NewBackend],
    births: Mapping[str, tuple[bytes, bytes]],
    copies: int,
    *,
    encrypted: bool,
    entropy: Callable[[int], bytes],
    byzantine: bool | None = None,
) -> Config:
    """The first config. `births`: (for the acceptor, for the storage) nonces by name. `byzantine`: see `lying_allowed`.

    `UsageError` if none may vote.
    """
    entries = []
    for b in backends:
        voter, holder = births[b.name]
        form: Form | None = b.form if b.role_both and b.form != "none" else None
        entries.append(
            BackendEntry(
                backend_id=entropy(ID_BYTES),
                name=b.name,
                scheme=b.scheme,
                capacity_bytes=b.capacity_bytes,
                identity=b.identity,
                storage=(Storage(entropy(ID_BYTES), birth_digest(holder)),),
                acceptor=Acceptor(entropy(ID_BYTES), form, birth_digest(voter)) if form is not None else None,
            ).weighing(b.weight or b.capacity_bytes, b.limit_bytes)
        )
    if not any(e.acceptor for e in entries):
        raise UsageError(
            "none of the backends may vote: each holds data only",
            next_step="Give at least one that may: a plain folder, S3.",
        )
    blocks = sorted(e.name for e in entries if e.acceptor is not None and e.acceptor.form == "block")
    if blocks and byzantine:
        raise UsageError(
            f"{', '.join(blocks)}: a backend without an atomic create cannot vote where some may lie",
            next_step="Give it with role=storage in its URL, or choose crash mode.",
        )
    voters = sum(e.acceptor is not None for e in entries)
    f = lying_allowed(voters, copies, False if blocks else byzantine)
    return Config(
        mode="bft" if f else "crash",
        f=f,
        backends=tuple(sorted(entries, key=lambda e: e.backend_id)),
        redundancy=(RedundancyClass(NO_LIMIT, Replicate(copies)),),
        encrypted=encrypted,
        segment_bytes=SEGMENT_BYTES,
        chunking=CHUNKING,
        tags=((TRUSTING_TAG, b""),) if byzantine is False else (),
    ).check()


def lying_allowed(voters: int, copies: int, byzantine: bool | None) -> int:
    """How many voting backends may lie. `byzantine`: None where it costs nothing, True at the cost of an outage.

    `UsageError` when it is asked for and cannot be. A liar may hold a copy, so there must be one more of each.
    """
    if byzantine is None:
        free = byzantine_f(voters)
        return free if copies > free else 0
    f = byzantine_f(voters, at_cost=True) if byzantine else 0
    if byzantine and not f:
        raise UsageError(
            f"{voters} voting backends cannot outvote one that lies; that takes 4", next_step="Add backends."
        )
    if copies <= f:
        raise UsageError(
            f"{copies} copies are too few where {f} of the backends may lie", next_step=f"Give --replicas {f + 1}."
        )
    return f


def found(
    backends: Sequence[NewBackend],
    *,
    name: str,
    passphrase: str,
    copies: int,
    encrypted: bool,
    device_name: str,
    entropy: Callable[[int], bytes],
    run: Callable[[Task], Any],
    cost: Cost = COST,
    byzantine: bool | None = None,
) -> Founded:
    """Writes a new workspace; every backend must confirm. If one fails, what was written is deleted where possible.

    `run` runs a task. Paths are relative to the workspace's folder on each backend.
    """
    admin_private = entropy(32)
    chain = AdminChain((sign_public(admin_private),))
    keys = new_keys(chain.ns_id, entropy(96)) if encrypted else open_keys(chain.ns_id, FIRST_EPOCH)
    device = new_device(device_name, entropy(DEVICE_ENTROPY_BYTES))
    certificate = device.certified(admin_private, keys.ns_id)
    slots = new_slots(passphrase, ns_id=keys.ns_id, name=name, entropy=entropy, cost=cost)
    births = {b.name: (entropy(BIRTH_NONCE_BYTES), entropy(BIRTH_NONCE_BYTES)) for b in backends}
    config = make_config(backends, births, copies, encrypted=encrypted, entropy=entropy, byzantine=byzantine)
    ring = make_ring(
        keys,
        chain,
        admin_private=admin_private,
        signer_private=admin_private,
        devices=[certificate.sealing],
        slots=[secret.key for secret in slots.secrets],
        entropy=entropy(RING_ENTROPY_BYTES),
    )
    keyring = sha256(ring)
    policy = make_policy(chain, config, admin_private=admin_private, keyring=keyring, slots=slots.publics)
    devices = make_device_set(policy, [certificate])
    voters = {e.name: e.acceptor for e in config.backends if e.acceptor is not None}
    stores = {e.name: (birth_path(e.storage[0].storage_id), e.storage[0].storage_id) for e in config.backends}
    try:
        _confirmed(run, {n: Op(n, "create", path, encode_birth(i, births[n][1])) for n, (path, i) in stores.items()})
        _confirmed(run, {n: Op(n, "put", ring_path(ring), ring) for n in stores})
        _confirmed(run, {n: Op(n, "create", BALLAST_PATH, entropy(BALLAST_BYTES)) for n in stores})
        state: State = run(
            founding.found(
                keys,
                config,
                devices,
                chain,
                admin_private=admin_private,
                keyring=keyring,
                births={v.acceptor_id: births[n][0] for n, v in voters.items()},
                links={v.acceptor_id: n for n, v in voters.items()},
            )
        )
        for path, data in slots.files.items():
            _confirmed(run, {n: Op(n, "put", path, data) for n in stores})
    except BaseException:
        take_away(run, [*stores])
        raise
    return Founded(keys, config, devices, device, certificate, state, slots.phrase)


def _confirmed(run: Callable[[Task], Any], ops: Mapping[str, Op]) -> None:
    """Runs an op per backend; raises when one fails, or when a new random name is taken."""
    for name, reply in sorted(run(each(ops)).items()):
        if reply.error is not None:
            raise reply.error.on(name)
        if ops[name].kind == "create" and reply.value is not True:
            raise UnreachableError(f"{name}: a new random name was taken; this store does not do as it says")


def refuse_shared(run: Callable[[Task], Any], within: Callable[[Task], Any], folders: Mapping[str, str]) -> None:
    """`UsageError` when two of these backends are one store by two addresses, which identities need not show.

    A file that was just written through one is looked for through the other. `run` has the stores, `within` the
    workspace's folders in them, which are emptied again.
    """
    pairs = list(combinations(sorted(folders), 2))
    asked = {f"{one} {other}": Op(other, "stat", f"{folders[one]}/{BALLAST_PATH}") for one, other in pairs}
    replies = run(each(asked))
    for one, other in pairs:
        if replies[f"{one} {other}"].error is None:
            take_away(within, sorted(folders))
            raise UsageError(f"{one} and {other} are the same store", next_step="Give each store once.")


def take_away(run: Callable[[Task], Any], names: Sequence[str]) -> None:
    """Deletes what a founding that failed has written, as far as backends let it."""

    def below(name: str, path: str, depth: int) -> Task:
        listed: Reply = yield Op(name, "list", path, timeout_s=5.0)
        for item in listed.value or ():
            full = f"{path}/{item.name}" if path else item.name
            if item.size is None and depth:
                yield from below(name, full, depth - 1)
            elif item.size is not None:
                yield Op(name, "delete", full, timeout_s=5.0)

    run(together({name: below(name, "", 3) for name in names}))
