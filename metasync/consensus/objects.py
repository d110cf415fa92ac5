"""Immutable sealed objects beside the logs: configs, device sets, states (`const/`), index and retained (`meta/`).

A name holds the SHA-256 of the sealed bytes, so that any acceptor's copy is as good as another's: a reader takes the
first that matches. Every meta object that a state names is confirmed on n - q + 1 + f acceptors before that state is
proposed, so that every quorum holds an honest copy (consensus.md, rule 1.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from metasync.codec import check_format
from metasync.consensus.records.state import STATE_BYTES, Ref, State, decode_state
from metasync.errors import (
    BackendError,
    DamagedError,
    FormatError,
    FullError,
    NoQuorumError,
    NotFoundError,
    UpgradeError,
)
from metasync.keys.derive import Header, RecordKind, seal, sealed_bytes, sha256
from metasync.keys.keyring import WorkspaceKeys
from metasync.runtime.effects import Gather, Now, Op, Random, Reply, Sleep, Task, Work, patience_s

META_BYTES_MAX: Final = 1 << 26  # 64 MiB sealed: an index segment of a workspace with millions of blobs
CONST_BYTES_MAX: Final = 1 << 23
META_TRIES: Final = 4
CREATE_TRIES: Final = 3  # of each object of a new root
GET_TRIES: Final = 3  # a reply that got lost is no reason to give a copy up
HEDGE_S: Final = 1.5  # after so long without an answer the next acceptor is asked too
HEDGE_STEP_S: Final = 0.02
RETRY_FIRST_S: Final = 0.1


def meta_path(acceptor_id: bytes, ref: Ref) -> str:
    return f"{acceptor_id.hex()}/meta/{ref.generation}/{ref.hash.hex()}"


def const_path(acceptor_id: bytes, name: str) -> str:
    """`name`: the hash in hex, or `WorkspaceKeys.state_name` for a state."""
    return f"{acceptor_id.hex()}/const/{name}"


def seal_object(
    keys: WorkspaceKeys, kind: RecordKind, plaintext: bytes, *, era: int, epoch: int, random: bytes
) -> tuple[bytes, bytes]:
    """(the SHA-256 that names it, the sealed bytes) of a const, meta or state object."""
    if sealed_bytes(kind, len(plaintext)) > _bound(kind):
        raise ValueError(f"a meta object of {len(plaintext)} bytes")
    header = Header(kind, era, epoch, random)
    sealed = seal(keys.log_key(epoch), header, plaintext, binding=keys.ns_id)
    return sha256(sealed), sealed


def sealed(keys: WorkspaceKeys, kind: RecordKind, plaintext: Callable[[], bytes], *, era: int, epoch: int) -> Task:
    """-> (hash, bytes) of a new object, as `seal_object`. `plaintext` is called once, in a worker."""
    random = yield Random(32)
    return (yield Work(lambda: seal_object(keys, kind, plaintext(), era=era, epoch=epoch, random=random)))


def open_object(keys: WorkspaceKeys, kind: RecordKind, data: bytes) -> bytes:
    """The plaintext of what `seal_object` made. `FormatError`.

    `UpgradeError` for a newer format where the hash of the bytes is agreed and was checked before. Nobody vouches for
    the clear header of the others.
    """
    if data and kind in (RecordKind.META, RecordKind.CONST):
        check_format(data[0], "a meta object")
    return keys.opened(data, kind, "a meta object", binding=keys.ns_id, bytes_max=_bound(kind))[1]


def _bound(kind: RecordKind) -> int:
    return META_BYTES_MAX if kind is RecordKind.META else CONST_BYTES_MAX


def put_everywhere(paths: Mapping[str, str], data: bytes, enough: int, what: str) -> Task:
    """Puts `data` at {backend: path}; ends when `enough` backends confirmed. -> the backends that did.

    The others' requests are under way by then and may still land. `NoQuorumError` when too few confirm.
    """
    failures: dict[str, str] = {}
    full: set[str] = set()

    def one(backend: str, path: str) -> Task:
        for attempt in range(META_TRIES):
            reply: Reply = yield Op(backend, "put", path, data, timeout_s=patience_s(len(data)))
            if reply.error is None:
                return True
            failures[backend] = reply.error.message
            full.update({backend} if isinstance(reply.error, FullError) else ())
            if not reply.error.retryable:
                break
            yield Sleep(RETRY_FIRST_S * (1 << attempt))
        return False

    def until(results: Mapping[str, Any]) -> bool:
        good = sum(result is True for result in results.values())
        return good >= enough or len(paths) - len(results) + good < enough

    results = yield Gather({b: one(b, path) for b, path in paths.items()}, until)
    confirmed = frozenset(b for b, good in results.items() if good)
    if len(confirmed) < enough:
        reasons = "; ".join(f"{b}: {why}" for b, why in sorted(failures.items()))
        raise NoQuorumError(
            f"{what}: {len(confirmed)} of {enough} backends confirmed it ({reasons or 'too few are linked'})",
            next_step=f"free space on {', '.join(sorted(full))}, then run again"
            if full
            else "run again when the backends are reachable",
        )
    return confirmed


def created(link: str, path: str, data: bytes, is_it: Callable[[bytes], bool] | None = None) -> Task:
    """Creates an object of a new root. What is there already must be ours, from an earlier try. `BackendError`."""
    why = BackendError("no try")
    for attempt in range(CREATE_TRIES):
        reply: Reply = yield Op(link, "create", path, data, timeout_s=patience_s(len(data)))
        if reply.error is None and reply.value:
            return
        if reply.error is None:
            reply = yield Op(link, "get", path, max_bytes=CONST_BYTES_MAX, timeout_s=patience_s(len(data)))
            if reply.error is None and (reply.value == data or (is_it is not None and is_it(reply.value))):
                return
        why = reply.error or BackendError(f"{link}: {path} is taken by something else", retryable=False)
        if not why.retryable:
            break
        yield Sleep(RETRY_FIRST_S * (1 << attempt))
    raise BackendError(f"{link}: cannot write {path}: {why.message}", next_step=why.next_step)


class Copy(NamedTuple):
    """Where an object may be had. `opened` turns its bytes into the result, or refuses them with `FormatError`."""

    backend: str
    path: str
    opened: Callable[[bytes], Any]


def get_anywhere(copies: Sequence[Copy], bytes_max: int, what: str) -> Task:
    """Asks for copies in order until one is good. -> what its `opened` makes of the bytes.

    One that is slow does not hold up the rest: after HEDGE_S, or a failure, the next is asked too. `DamagedError` when
    all answered and none holds it intact, `NoQuorumError` when some could not be asked.
    """
    failures: list[str] = []
    newer: list[UpgradeError] = []
    answered = 0

    def one(turn: int, copy: Copy) -> Task:
        nonlocal answered
        waited = 0.0
        while len(failures) < turn and waited < turn * HEDGE_S:
            yield Sleep(HEDGE_STEP_S)
            waited += HEDGE_STEP_S
        get = Op(copy.backend, "get", copy.path, max_bytes=bytes_max, timeout_s=patience_s(bytes_max))
        for attempt in range(GET_TRIES):
            asked = yield Now()
            reply: Reply = yield get
            if reply.error is None or not reply.error.retryable or (yield Now()) - asked > HEDGE_S:
                break
            if attempt < GET_TRIES - 1:
                yield Sleep(RETRY_FIRST_S * (1 << attempt))
        if reply.error is not None:
            failures.append(f"{copy.backend}: {reply.error.message}")
            answered += isinstance(reply.error, NotFoundError)
            return None
        answered += 1
        try:
            return (yield Work(lambda: copy.opened(reply.value)))
        except (FormatError, UpgradeError) as e:  # a wrong byte may look like a newer format: another copy may be good
            newer.extend([e] if isinstance(e, UpgradeError) else ())
            failures.append(f"{copy.backend}: {e.message}")
            return None

    branches = {str(i): one(i, copy) for i, copy in enumerate(copies)}
    results = yield Gather(branches, lambda r: any(x is not None for x in r.values()))
    found = next((x for x in results.values() if x is not None), None)
    if found is not None:
        return found
    if newer:
        raise newer[0]
    reasons = "; ".join(sorted(failures)) or "no backend is linked"
    if copies and answered == len(copies):
        raise DamagedError(f"{what} is on no backend ({reasons})", next_step="metasync check")
    raise NoQuorumError(f"{what}: no backend gave it ({reasons})", next_step="run again when they are reachable")


def get_const(keys: WorkspaceKeys, digest: bytes, links: Iterable[tuple[bytes, str]], what: str) -> Task:
    """-> the plaintext of a const object, from any of the acceptors `links`: (its id, the way to it)."""
    opened = partial(open_named, keys, RecordKind.CONST, digest)
    return get_anywhere([Copy(link, const_path(a, digest.hex()), opened) for a, link in links], CONST_BYTES_MAX, what)


def named(digest: bytes, data: bytes) -> bytes:
    """The same bytes. `FormatError` unless they hash to `digest`."""
    if sha256(data) != digest:
        raise FormatError("its copy is altered")
    return data


def open_named(keys: WorkspaceKeys, kind: RecordKind, digest: bytes, data: bytes) -> bytes:
    """The plaintext of the object that `digest` names. `FormatError` for another one."""
    return open_object(keys, kind, named(digest, data))


def open_state(keys: WorkspaceKeys, state_hash: bytes, data: bytes) -> State:
    """The state of this hash, from an object of its own. `FormatError` when another one is in it."""
    state = decode_state(open_object(keys, RecordKind.STATE, data))
    if state.hash != state_hash:
        raise FormatError("its copy is another state")
    return state


def open_state_in_block(keys: WorkspaceKeys, state_hash: bytes, data: bytes) -> State:
    """The state of this hash, from a block of 1024 states (`truncation`). `FormatError` when it is not in it."""
    plain = open_object(keys, RecordKind.STATES, data)
    for at in range(0, len(plain), STATE_BYTES):
        if sha256(plain[at : at + STATE_BYTES]) == state_hash:
            return decode_state(plain[at : at + STATE_BYTES])
    raise FormatError("its copy of the block lacks the state")
