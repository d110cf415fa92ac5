"""How backends fare: whether they answer, are the stores they were, and hold what lies beside the logs."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from metasync.consensus import Ref, Standing, State, birth_matches, birth_path
from metasync.consensus.objects import META_BYTES_MAX, const_path, meta_path
from metasync.consensus.records.entry import Head
from metasync.errors import HeldBackError, NoQuorumError, NotFoundError, UnreachableError
from metasync.keys.device_set import names_of
from metasync.runtime.effects import Now, Op, OpKind, Reply, Task, each, patience_s, together
from metasync.runtime.sizes import BIRTH_ANSWER_BYTES_MAX
from metasync.session import agreement
from metasync.session.session import LOOK_S, Session

UNHEARD_TIMEOUT_S: Final = 3.0  # before a push goes elsewhere with what a silent store would hold
PLACES_TIMEOUT_S: Final = 10.0  # for one small object of each backend
HEARD_S: Final = 60.0  # who was heard so lately is not asked before the first pack, but beside it
AGAIN_S: Final = 2.0  # an answer that failed as quickly as this is asked for once more
Heads: TypeAlias = tuple[tuple[Head, ...], tuple[Head, ...]]
"""Those of versions after a state, and those that are not in its chain."""


def check_places(
    s: Session, names: Sequence[str], *, votes: bool = True, timeout_s: float = PLACES_TIMEOUT_S
) -> dict[str, str]:
    """Which of these backends are not, or not reachably, the stores that the config means: name -> why.

    `votes=False` looks at their storage alone: one request each.
    """
    births = _births(s, names, votes)
    return _ailing_places(births, s.runtime.run(together(_asking(births, timeout_s))))


def _births(s: Session, names: Sequence[str], votes: bool) -> dict[str, tuple[bytes, bytes]]:
    """Which birth objects prove these backends: "name place" -> (place, birth)."""
    births: dict[str, tuple[bytes, bytes]] = {}
    for entry in s.config.backends:
        if entry.name in names:
            places = [(store.storage_id, store.birth) for store in entry.storage[-1:]]
            if entry.acceptor is not None and (votes or not places):
                places.append((entry.acceptor.acceptor_id, entry.acceptor.birth))
            births.update({f"{entry.name} {place.hex()}": (place, birth) for place, birth in places})
    return births


def _asking(births: Mapping[str, tuple[bytes, bytes]], timeout_s: float) -> dict[str, Task]:
    return {
        key: _asked(Op(key.split()[0], "get", birth_path(place), max_bytes=BIRTH_ANSWER_BYTES_MAX, timeout_s=timeout_s))
        for key, (place, _) in births.items()
    }


def _ailing_places(births: Mapping[str, tuple[bytes, bytes]], replies: Mapping[str, Reply]) -> dict[str, str]:
    out: dict[str, str] = {}
    for key, (place, birth) in births.items():
        reply, name = replies[key], key.split()[0]
        why = "" if reply.error is None else reply.error.message.removeprefix(f"{name}: ")
        if isinstance(reply.error, HeldBackError):
            out.setdefault(name, f"held back: {why}")
        elif isinstance(reply.error, UnreachableError):
            out.setdefault(name, f"unreachable: {why}")
        elif isinstance(reply.error, NotFoundError):
            out[name] = f"emptied or replaced: {why}"
        elif reply.error is not None:
            out.setdefault(name, why)
        elif not birth_matches(reply.value, place, birth):
            out[name] = "replaced: not the store it was"
    return out


def begin_checking_unheard(s: Session) -> Callable[[], bool]:
    """Leaves out stores that were emptied or replaced: they would take packs as if new.

    Those that vote were asked for their births with the newest state. Those that this process heard a moment ago, in
    an earlier operation, are asked beside each pack; this asks the others. What is returned waits for the answers; True
    when there are any such stores.
    """
    known, now_s = s.group.participant.acceptors, s.runtime.clock()
    lately = {a for a, m in known.items() if m.born_at is not None and 0 <= now_s - m.born_at < HEARD_S}
    unheard = set(s.names.values()) - s.group.heard - s.transfer.down.keys()
    beside = {entry.name for entry, a in s.config.acceptors if a.acceptor_id in lately} & unheard
    s.transfer.doubted.update((name, partial(_why_not, _births(s, [name], votes=False))) for name in beside)
    births = _births(s, sorted(unheard - beside), votes=False)
    answers = s.runtime.start(together(_asking(births, UNHEARD_TIMEOUT_S)))

    def finish() -> bool:
        ailing = _ailing_places(births, answers.result())
        leave_out(s, ailing)
        return bool(ailing)

    return finish


def _why_not(births: dict[str, tuple[bytes, bytes]]) -> Task:
    """-> what speaks against the store of these births, asked now; "" for nothing."""
    ailing = _ailing_places(births, (yield from together(_asking(births, UNHEARD_TIMEOUT_S))))
    return next(iter(ailing.values()), "")


def leave_out(s: Session, places: Mapping[str, str]) -> None:
    """From here on this session neither writes packs to these backends nor reads any there: name -> why."""
    for name, why in places.items():
        s.down.setdefault(name, why)
        s.transfer.down.setdefault(name, UnreachableError(why))


def standings(s: Session) -> dict[str, str]:
    """Backends that vote and are not well, with the reason; asks all of them for their births and logs."""
    newest = s.newest_state()
    with contextlib.suppress(NoQuorumError):  # a look for news ends with a quorum: this one hears the others too
        s.runtime.run(s.group.newest_seen(newest, deadline_s=LOOK_S))
    births = s.runtime.run(s.group.read_births(newest))
    agreement.note_retired(s)
    return _ailing(births)


def check_heads(s: Session, newest: State, heads: Heads | None = None) -> tuple[str, ...]:
    """What other devices say they have synchronised and the backends do not show, as sentences. Empty: all agree.

    A push that went through since `newest` was asked for is found by asking again. `heads`: what `Group.check_heads`
    found of `newest`, if that was asked.
    """
    ahead, apart = heads or s.runtime.run(s.group.check_heads(newest, sorted(s.names.values())))
    if ahead:
        with contextlib.suppress(NoQuorumError):
            newest = agreement.ask_newest(s, deadline_s=LOOK_S)
        ahead = [head for head in ahead if head.v > newest.v]
    names = names_of(s.devices_of(newest))
    wrong, step = "either that device is wrong, or backends", "compare the fingerprint there"
    told = [f"version {h.v}, and no quorum of backends shows it: {wrong} hide it; {step}" for h in ahead]
    told += [f"another version {h.v} than the one here: {wrong} show different histories; {step}" for h in apart]
    return tuple(
        f"device {names.get(h.device_id, h.device_id.hex()[:8])} says that it has synchronised {text}"
        for h, text in zip((*ahead, *apart), told, strict=True)
    )


def noted_standings(s: Session) -> dict[str, str]:
    """The same without asking: as they were when they were last heard."""
    return _ailing(s.group.standings)


class Beside(NamedTuple):
    """One copy of an object beside the logs."""

    what: str
    digest: bytes
    backend: str
    path: str


def check_meta(
    s: Session, named: Sequence[tuple[str, Ref | bytes]], ill: Collection[str], *, read_data: bool, mend: bool = False
) -> tuple[list[tuple[str, str]], list[str]]:
    """Looks for the objects beside the logs, but on `ill` backends. -> (problems as (backend, why), notes).

    A copy that is missing is brought from another backend. Whoever agreed a version waited for as many as every quorum
    needs (`Config.meta_copies`); the others' copies were under way then, and may have got lost. `mend`: an altered one
    is stored anew in the same way.
    """
    seen = look_beside(s, named, ill, read_data=read_data)
    problems = [*seen.problems]
    notes: list[str] = []
    for found, why, told in (
        (seen.lacking, "is missing", "brought what was missing there"),
        (seen.altered, "is altered", "stored anew what was altered there"),
    ):
        brought: dict[str, set[str]] = {}
        for digest, lack in found.items():
            there = _bring(s, lack, seen.holders.get(digest, ())) if mend or found is seen.lacking else set()
            for copy in lack:
                if copy.backend in there:
                    brought.setdefault(copy.backend, set()).add(copy.what)
                else:
                    problems.append((copy.backend, f"{copy.what} {why}"))
        notes += [f"{b}: {told}: {', '.join(sorted(w))}" for b, w in sorted(brought.items())]
    return problems, notes


class Seen(NamedTuple):
    """What `look_beside` found. `problems`: of other kinds, as (backend, why); the copies by the object's hash."""

    problems: list[tuple[str, str]]
    lacking: dict[bytes, list[Beside]]
    altered: dict[bytes, list[Beside]]
    holders: dict[bytes, list[Beside]]


def look_beside(s: Session, named: Sequence[tuple[str, Ref | bytes]], ill: Collection[str], *, read_data: bool) -> Seen:
    """Looks for the objects beside the logs, but on `ill` backends, and brings nothing."""
    copies = _beside(s, named, ill)
    replies = _replies(s, copies, "get" if read_data else "stat")
    if not read_data:  # nobody noted how many bytes there should be: copies that differ are read
        sizes: dict[bytes, set[int]] = {}
        for copy, reply in replies.items():
            if reply.error is None:
                sizes.setdefault(copy.digest, set()).add(reply.value)
        replies |= _replies(s, [c for c in copies if len(sizes.get(c.digest, ())) > 1], "get")
    seen = Seen([], {}, {}, {})
    for copy, reply in replies.items():
        if isinstance(reply.error, NotFoundError):
            seen.lacking.setdefault(copy.digest, []).append(copy)
        elif reply.error is not None:
            seen.problems.append((copy.backend, f"{copy.what} cannot be read: {reply.error.message}"))
        elif isinstance(reply.value, bytes) and hashlib.sha256(reply.value).digest() != copy.digest:
            seen.altered.setdefault(copy.digest, []).append(copy)
        else:
            seen.holders.setdefault(copy.digest, []).append(copy)
    return seen


def _beside(s: Session, named: Sequence[tuple[str, Ref | bytes]], ill: Collection[str]) -> list[Beside]:
    out = []
    for entry, acceptor in s.config.acceptors:
        if entry.backend_id in s.names and entry.name not in ill:
            for what, ref in named:
                digest = ref if isinstance(ref, bytes) else ref.hash
                place = acceptor.acceptor_id
                path = const_path(place, digest.hex()) if isinstance(ref, bytes) else meta_path(place, ref)
                out.append(Beside(what, digest, entry.name, path))
    return out


def _replies(s: Session, copies: Sequence[Beside], kind: OpKind) -> dict[Beside, Reply]:
    replies = s.runtime.run(each({str(n): Op(c.backend, kind, c.path) for n, c in enumerate(copies)}))
    return {c: replies[str(n)] for n, c in enumerate(copies)}


def _bring(s: Session, lack: Sequence[Beside], holders: Sequence[Beside]) -> set[str]:
    """Copies an object from the first backend that has it intact. -> which of those that lacked it have it now."""
    for copy in holders:
        get = Op(copy.backend, "get", copy.path, max_bytes=META_BYTES_MAX, timeout_s=patience_s(META_BYTES_MAX))
        got: Reply = s.runtime.run(each({"": get}))[""]
        if got.error is None and hashlib.sha256(got.value).digest() == copy.digest:
            patience = patience_s(len(got.value))
            puts = {c.backend: Op(c.backend, "put", c.path, got.value, timeout_s=patience) for c in lack}
            return {name for name, reply in s.runtime.run(each(puts)).items() if reply.error is None}
    return set()


def _ailing(standings: Mapping[str, Standing]) -> dict[str, str]:
    ill = {n: s for n, s in standings.items() if s.kind not in ("ok", "unknown")}
    return {n: f"{s.kind}: {s.reason}" if s.reason else s.kind for n, s in ill.items()}


def _asked(op: Op) -> Task:
    """One call, and once more if it failed quickly in a way that may pass."""
    before = yield Now()
    reply: Reply = yield op
    if reply.error is not None and reply.error.retryable and (yield Now()) - before < AGAIN_S:
        reply = yield op
    return reply
