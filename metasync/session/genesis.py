"""Whether each acceptor holds what a new device begins with: the genesis, the records of eras, and a hint.

Without the first two nobody joins there with the passphrase or the phrase. The genesis is sealed for each of them, so a
copy for one is made from that of another: the log key opens and seals it, and what the admin key signed stays as it is.
Records of eras are copied as they are. The genesis and the records name the config of their time. Once the backends of
today are others, a new device learns of them by a hint alone. Hints are written anew, by this device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from metasync.consensus import Barred, Group, State
from metasync.consensus.eras import newest_record, records
from metasync.consensus.founding import bootstrap
from metasync.consensus.records.birth import GENESIS_BYTES_MAX, genesis_path, open_genesis, seal_genesis_again
from metasync.consensus.records.entry import ENTRY_BYTES_MAX, hint_path, open_hint, shown_epoch
from metasync.consensus.records.era import era_path
from metasync.consensus.records.state import follows
from metasync.errors import FormatError, MetaSyncError, NotFoundError, UpgradeError
from metasync.runtime.effects import Op, each, patience_s
from metasync.session.open_backend import INCARNATION_BYTES
from metasync.session.session import Session

LOOK_S: Final = 10.0  # for a new device's way to the newest version


class Seen(NamedTuple):
    """What was found. `links`: names of ways by acceptor id; `intact`: bytes; `problems`: others, as (backend, why)."""

    links: dict[bytes, str]
    intact: dict[bytes, bytes]
    lacking: list[bytes]
    altered: list[bytes]
    problems: list[tuple[str, str]]


def look(s: Session, ill: Collection[str]) -> Seen:
    """Reads the genesis on each acceptor that this device has a way to, but on `ill` backends. Brings nothing."""

    def is_fit(a: bytes, data: bytes) -> bool:
        open_genesis(s.group.participant.keys, data, a)
        return True

    return _looked(s, ill, "genesis", genesis_path, GENESIS_BYTES_MAX, is_fit)


def look_at_hints(s: Session, ill: Collection[str], state: State) -> Seen:
    """Reads the hint on each of these acceptors. One that names another config than `state`, the newest, is lacking."""

    def is_fit(a: bytes, data: bytes) -> bool:
        if shown_epoch(data) > s.group.participant.keys.epoch:
            return True  # of who changed the keys just now
        signed = open_hint(s.group.participant.keys, data, a)
        base, value = signed.entry.base, signed.entry.value
        if value is None or not follows(value, base):
            raise FormatError("no state that may follow")
        if (value.era, value.config) != (state.era, state.config):
            return False
        public = s.devices_of(base).key_of(signed.entry.device_id, signed.entry.certificate)
        if public is None or not signed.verifies(public):
            raise FormatError("no device of the workspace signed it")
        return True

    return _looked(s, ill, "hint", hint_path, ENTRY_BYTES_MAX, is_fit)


def _looked(
    s: Session, ill: Collection[str], what: str, path: Callable[[bytes], str], most: int,
    is_fit: Callable[[bytes, bytes], bool],
) -> Seen:  # fmt: skip
    """`is_fit`: of an acceptor's bytes; False counts as if there were none. `FormatError`, `UpgradeError`: altered."""
    links = {a.acceptor_id: e.name for e, a in s.config.acceptors if e.backend_id in s.names and e.name not in ill}
    patience = patience_s(most)
    asked = {a.hex(): Op(name, "get", path(a), max_bytes=most, timeout_s=patience) for a, name in links.items()}
    replies = s.runtime.run(each(asked))
    seen = Seen(links, {}, [], [], [])
    for a, name in links.items():
        reply = replies[a.hex()]
        if isinstance(reply.error, NotFoundError):
            seen.lacking.append(a)
        elif reply.error is not None:
            seen.problems.append((name, f"{what} cannot be read: {reply.error.message}"))
        else:
            try:
                if is_fit(a, reply.value):
                    seen.intact[a] = reply.value
                else:
                    seen.lacking.append(a)
            except (FormatError, UpgradeError):  # nobody vouches for the byte that says which version wrote it
                seen.altered.append(a)
            except MetaSyncError:  # what it names cannot be had now: nobody could begin there either
                seen.lacking.append(a)
    return seen


def check(s: Session, ill: Collection[str], state: State, *, mend: bool) -> tuple[list[tuple[str, str]], list[str]]:
    """Looks for what a new device begins with, and stores it where it is missing. `state`: the newest.

    -> (problems as (backend, why), notes). `mend`: what is altered of genesis and hints is stored anew, too.
    """
    seen = look(s, ill)
    problems, notes = [*seen.problems], list[str]()
    for some, why, told, is_wanted in (
        (seen.lacking, "genesis is missing", "brought what was missing there: genesis", True),
        (seen.altered, "genesis is altered", "stored anew what was altered there: genesis", mend),
    ):
        there = _stored(s, seen, some) if is_wanted and seen.intact else set()
        notes += [f"{seen.links[a]}: {told}" for a in some if a in there]
        problems += [(seen.links[a], why) for a in some if a not in there]
    if state.era:
        _check_eras(s, sorted(seen.links.values()), state.era, problems, notes)
    if state.v:
        _check_hints(s, ill, state, seen, problems, notes, mend=mend)
    return problems, notes


def needs_hint(s: Session, state: State, seen: Seen) -> bool:
    """Whether a new device begins with another config than that of `state`. `seen`: the genesis, as it was found."""
    first: State | None = None
    if state.era:
        with contextlib.suppress(MetaSyncError):  # two records of one era, say: told elsewhere
            record = s.runtime.run(newest_record(s.group.participant.keys, sorted(seen.links.values())))
            first = None if record is None else record.first
    elif seen.intact:
        a, data = next(iter(seen.intact.items()))
        first = open_genesis(s.group.participant.keys, data, a)
    return first is None or first.config != state.config


def leads_on(s: Session, names: Collection[str], state: State) -> bool:
    """Whether a new device that has a way to these backends alone gets to `state` as things are there.

    It is done as a clone does it, with nothing known: from a hint, or from the beginning by what the logs show. A clone
    has ways to the backends alone that its beginning names.
    """
    p = s.group.participant
    try:
        found = s.runtime.run(bootstrap(p.keys, sorted(names)))
        named = {b.backend_id for b in found.config.backends}
        if not named.issuperset(b.backend_id for b in s.config.backends if b.name in names):
            return False
        new = Group(
            p.keys, s.device, found.config, found.state.config, found.devices, found.state.devices,
            incarnation=s.entropy(INCARNATION_BYTES), links=found.links, certificate=p.certificate,
            guard=lambda: Barred("this only looks whether a new device could begin", ""),
        )  # fmt: skip
        reached = s.runtime.run(new.get_recent(found.state, deadline_s=LOOK_S))
    except MetaSyncError:
        return False
    return (reached.era, reached.v) >= (state.era, state.v)


def _check_hints(
    s: Session, ill: Collection[str], state: State, genesis: Seen, problems: list[tuple[str, str]], notes: list[str], *,
    mend: bool,
) -> None:  # fmt: skip
    """A push waits for the hints of most acceptors only: one that is missing elsewhere is brought without a word."""
    seen = look_at_hints(s, ill, state)
    problems += seen.problems
    after = seen
    if seen.lacking or (mend and seen.altered):
        _write_hints(s, state)
        after = look_at_hints(s, ill, state)
    if 2 * len(seen.intact) < len(seen.links) and needs_hint(s, state, genesis):
        told = "brought what was missing there: hint"
        notes += sorted(f"{seen.links[a]}: {told}" for a in seen.lacking if a in after.intact)
        problems += [(seen.links[a], "hint is missing") for a in seen.lacking if a in after.lacking]
    notes += [f"{seen.links[a]}: stored anew what was altered there: hint" for a in seen.altered if a in after.intact]
    problems += [(seen.links[a], "hint is altered") for a in after.altered]


def _write_hints(s: Session, state: State) -> None:
    """Writes this device's hints of `state` to all acceptors. What fails here is found by the next look."""
    with contextlib.suppress(MetaSyncError):
        base: State = s.runtime.run(s.group.state_at(state, state.v - 1))
        devices = s.devices_of(base)
        is_known = devices.get(s.device.device_id) is not None or devices.admits(s.certificate)
        if base.era == state.era and is_known:
            s.runtime.run(s.group.write_hint(base, state, now=True, everywhere=True))


def lacks_eras(s: Session, era: int, names: Collection[str]) -> list[int]:
    """The eras up to this one of which none of these backends shows the record."""
    have = s.runtime.run(records(s.group.participant, era, names)) if era else {}
    return [n for n in range(1, era + 1) if era_path(n) not in have]


def _check_eras(s: Session, names: Sequence[str], era: int, problems: list[tuple[str, str]], notes: list[str]) -> None:
    have = s.runtime.run(records(s.group.participant, era, names))
    wanted = {f"{name} {n}": (name, n) for name in names for n in range(1, era + 1)}
    asked = s.runtime.run(each({key: Op(name, "stat", era_path(n)) for key, (name, n) in wanted.items()}))
    lacking = {key: wanted[key] for key, reply in asked.items() if isinstance(reply.error, NotFoundError)}
    puts = {
        key: Op(name, "create", era_path(n), have[era_path(n)])
        for key, (name, n) in lacking.items()
        if era_path(n) in have
    }
    put = s.runtime.run(each(puts)) if puts else {}
    for key, (name, n) in lacking.items():
        if key in put and put[key].error is None:
            notes.append(f"{name}: brought what was missing there: record of era {n}")
        else:
            problems.append((name, f"record of era {n} is missing"))


def _stored(s: Session, seen: Seen, wanted: Collection[bytes]) -> set[bytes]:
    owner, data = next(iter(seen.intact.items()))
    keys, patience = s.group.participant.keys, patience_s(len(data))

    def put(a: bytes) -> Op:
        again = seal_genesis_again(keys, data, owner, a, s.entropy(32))
        return Op(seen.links[a], "put", genesis_path(a), again, timeout_s=patience)

    replies = s.runtime.run(each({a.hex(): put(a) for a in wanted}))
    return {a for a in wanted if replies[a.hex()].error is None}
