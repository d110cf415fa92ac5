"""Following a new era, which an admin began after a majority of acceptors was lost (consensus.md, rule 5.3).

Only a record signed by the admin key takes a device off the chain that it knows. A device looks for it on all reachable
backends when an acceptor shows a tombstone, or when no quorum answers. Versions that this device knows and the record
does not continue are merged by `sync` as this device's own change. Two records for one era are two restarts; none is
followed then.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from metasync.consensus.chain import AGAIN, ancestor, exclusion, rings_on
from metasync.consensus.instance import Instance
from metasync.consensus.objects import get_const
from metasync.consensus.participant import OP_TIMEOUT_S, Participant
from metasync.consensus.records.era import ERAS, RECORD_BYTES_MAX, EraRecord, epoch_of, era_path, open_record
from metasync.consensus.records.log_replay import check_config
from metasync.consensus.records.state import ZERO_HASH, State
from metasync.errors import (
    DamagedError,
    ExcludedError,
    ForkError,
    FormatError,
    NoQuorumError,
    NotFoundError,
    PassphraseError,
    UpgradeError,
)
from metasync.keys.derive import sha256
from metasync.keys.device_set import decode_device_set
from metasync.keys.keyring import WorkspaceKeys, open_ring
from metasync.runtime.effects import Gather, Op, Reply, Task

LOOK_S: Final = 5.0  # for records on backends that do not answer
ERAS_READ_MAX: Final = 32  # the lowest that backends list: anybody may put up what is no record, and eras are few
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")
RINGS_MAX: Final = 64  # of one epoch, on one backend: one is in force, the others were left by changes that lost

Learner = Callable[[Participant, Callable[[State], Task], State, float], Task]


def over_eras(look: Learner, m: Participant, enter: Callable[[State], Task], known: State, deadline_s: float) -> Task:
    """Runs `learner.get_recent` or `newest_seen`. -> what it finds in the newest era that this device can learn of."""
    while True:
        state, error = None, None
        try:
            state = yield from look(m, enter, known, deadline_s)
        except (NoQuorumError, DamagedError) as e:
            error = e
        retired = any(stone.era > known.era for stone in m.tombstones.values())
        if error is None and not retired:
            return state
        record = yield from find_record(m, known.era + 1, m.links.values(), known)
        if record is not None and error is None and is_withdrawn(m, known, record):
            return state  # its admin has no say any more, and a quorum goes on
        if record is not None:
            known = yield from follow(m, enter, known, record)
        elif error is None:
            return state  # retired in vain so far: the others still make a quorum
        elif retired:
            raise NoQuorumError(
                f"{error.message}; a restart of the workspace was begun, and did not end",
                next_step="Run `metasync recover` again where it was begun, or here.",
            ) from error
        else:
            raise error


def find_record(m: Participant, number: int, links: Iterable[str], known: State | None = None) -> Task:
    """-> the EraRecord of an era on these backends, signed by the admin, or None. Takes over the keys that open it.

    Whatever else lies in its place is none, and one record may be sealed in several ways. One of an admin whom the
    device set of `known` has no more counts only where there is no other. `ForkError` when there are two.
    `ExcludedError`, `UpgradeError` where there is none that can be read, and one that may be.
    """
    asked = {link: _shown(link, number) for link in dict.fromkeys(links)}
    got: Mapping[str, bytes | None] = yield Gather(asked, deadline_s=LOOK_S)
    found: dict[bytes, EraRecord] = {}
    holders: dict[bytes, list[str]] = {}
    unread: ExcludedError | UpgradeError | None = None
    for link, data in sorted(got.items()):
        if data is None:
            continue
        try:
            record = yield from opened_record(m, data, number, [link, *(x for x in asked if x != link)])
        except (ExcludedError, UpgradeError) as e:
            unread = e
        except FormatError:
            continue  # anybody who may write there can have put it
        else:
            found[record.digest] = record
            holders.setdefault(record.digest, []).append(link)
    if known is not None:
        found = {d: record for d, record in found.items() if not is_withdrawn(m, known, record)} or found
        holders = {digest: holders[digest] for digest in found}
    if len(found) > 1:
        raise two_records(number, holders.values())
    if not found and unread is not None:
        raise unread
    record = next(iter(found.values()), None)
    if record is not None:
        other = [s for s in m.tombstones.values() if s.era == number and s.digest not in (ZERO_HASH, record.digest)]
        if other:
            raise two_records(number, holders.values())
    return record


def records(m: Participant, era: int, links: Iterable[str]) -> Task:
    """-> {path: bytes} of the records of all eras up to this one that these backends show, for a backend that joins."""
    out = {}
    for number in range(1, era + 1):
        with contextlib.suppress(ForkError, ExcludedError, UpgradeError):  # not for a change of backends to settle
            record: EraRecord | None = yield from find_record(m, number, links)
            if record is not None:
                out[era_path(number)] = record.data
    return out


def newest_record(keys: WorkspaceKeys, backends: Iterable[str]) -> Task:
    """-> the EraRecord of the newest era that these backends show, for a new device; None if there is none.

    `ForkError` when there are two.
    """
    listed: Mapping[str, Reply] = yield Gather({b: _listed(b) for b in sorted(backends)})
    shown = {b: [int(i.name) for i in reply.value if _NUMBER.fullmatch(i.name)]
             for b, reply in listed.items() if reply.error is None}  # fmt: skip
    numbers = sorted({n for numbers in shown.values() for n in numbers})[:ERAS_READ_MAX]
    for number in reversed(numbers):
        got: Mapping[str, bytes | None] = yield Gather({b: _shown(b, number) for b in shown if number in shown[b]})
        found: dict[bytes, EraRecord] = {}
        for data in got.values():
            if data is not None:
                with contextlib.suppress(FormatError):  # anybody who may write there can have put it
                    record = open_record(keys, data, number)
                    found[record.digest] = record
        if len(found) > 1:
            raise two_records(number, [[b] for b in got])
        if found:
            return found.popitem()[1]
    return None


def _listed(link: str) -> Task:
    return (yield Op(link, "list", ERAS, timeout_s=OP_TIMEOUT_S))


def two_records(number: int, holders: Iterable[Iterable[str]]) -> ForkError:
    """The error for a workspace that was restarted twice."""
    where = " and ".join(", ".join(sorted(h)) for h in holders)
    return ForkError(
        f"the workspace was restarted twice as era {number}, on different backends ({where}); nothing was changed here",
        next_step="Agree with the others which of the two goes on. There, clone it into a new folder and copy over "
        "what is missing; unlink the backends of the other one.",
    )


def _shown(link: str, number: int) -> Task:
    """-> the bytes at a record's place on one backend, None if there is nothing or no answer."""
    reply: Reply = yield Op(link, "get", era_path(number), max_bytes=RECORD_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
    return reply.value if reply.error is None else None


def opened_record(m: Participant, data: bytes, number: int, links: Sequence[str]) -> Task:
    """-> the EraRecord in these bytes. Takes over the keys that open it, from a ring on one of `links` if need be.

    `FormatError`, `UpgradeError`; `ExcludedError`: its keys are not for us.
    """
    epoch = epoch_of(data)
    admins = {key for devices in m.device_sets.values() for key in devices.chain.keys}
    if epoch in dict(m.keys.epoch_keys):
        try:
            return open_record(m.keys, data, number, admins)
        except FormatError:
            if epoch <= max((devices.chain.epoch for devices in m.device_sets.values()), default=0):
                raise  # else the keys that are held may be of a change that was never agreed
    shut = False
    for link in links:
        for ring in (yield from rings_on(link, lambda e: e == epoch)):
            try:
                keys: WorkspaceKeys = open_ring(ring, m.identity.seal_private, m.keys.ns_id)
                record = open_record(keys, data, number, admins)
            except PassphraseError:
                shut = True
            except FormatError:
                continue
            else:
                if record.first.keyring == sha256(ring):
                    m.keys = keys
                    return record
    if shut:
        raise ExcludedError(
            f"the workspace was restarted as era {number} with keys that are not for this device ({m.identity.name}): "
            "it was revoked, or was never taken in as one of its devices",
            next_step=AGAIN,
        )
    raise FormatError("era record: of an epoch whose keyring cannot be had")


def at_place(m: Participant, data: bytes, number: int, links: Sequence[str]) -> Task:
    """-> the EraRecord in the bytes found at its place; None for what is certainly none.

    `ExcludedError`, `UpgradeError` where it may be one that this device cannot read; `BackendError` where a backend
    does not tell which keyrings it has.
    """
    with contextlib.suppress(FormatError):
        return (yield from opened_record(m, data, number, links))
    for link in links:  # anybody who may write there can have put it, unless there are keys that were not read
        listed: Reply = yield Op(link, "list", "keys", timeout_s=OP_TIMEOUT_S)
        if listed.error is not None and not isinstance(listed.error, NotFoundError):
            raise listed.error
    return None


def is_withdrawn(m: Participant, known: State, record: EraRecord) -> bool:
    """Whether an admin key signed a record that is none of today's, as the device set of a known state has them."""
    devices = m.device_sets.get(known.devices)
    return devices is not None and record.chain.keys[: len(devices.chain.keys)] != devices.chain.keys


def follow(m: Participant, enter: Callable[[State], Task], known: State, record: EraRecord) -> Task:
    """Passes to the era of a record. -> its first state. `ForkError` when it does not go on from what is `known`.

    The record is followed though this device knows versions after its last one: only the lost backends held them.
    """
    if record.number <= known.era:
        raise ForkError(f"a record of era {record.number}, and this device is in era {known.era}")
    if is_withdrawn(m, known, record):
        raise ForkError(
            f"the workspace was restarted as era {record.number} with an admin key that is not today's",
            next_step="It was withdrawn by a change of keys: ask who did this. Nothing was changed here.",
        )
    yield from _check_descent(m, enter, known, record)
    take_over(m, record)
    yield from _load_devices(m, record)
    devices = m.device_sets.get(record.first.devices)
    if devices is not None and devices.bars(m.identity.device_id):  # without encryption anybody can open the record
        raise exclusion(m, devices, record.first.v)
    return record.first


def _load_devices(m: Participant, record: EraRecord) -> Task:
    """Loads the device set of a record's first state, from that record's acceptors alone."""
    digest = record.first.devices
    ids = [a.acceptor_id for _, a in record.config.acceptors]
    with contextlib.suppress(DamagedError, NoQuorumError):  # whoever needs it says so
        data = yield from get_const(m.keys, digest, [(a, m.links[a]) for a in ids if a in m.links], "the device set")
        m.device_sets[digest] = decode_device_set(data, m.keys.ns_id)


def take_over(m: Participant, record: EraRecord) -> None:
    """Takes over the config of a record's first state; its acceptors lie on backends that are linked."""
    ways = {link_of.backend_id: m.links[a.acceptor_id] for config in m.configs.values()
            for link_of, a in config.acceptors if a.acceptor_id in m.links}  # fmt: skip
    m.configs[record.first.config] = check_config(record.config)
    m.links.update({a.acceptor_id: ways[b.backend_id] for b, a in record.config.acceptors if b.backend_id in ways})
    m.remember_state(record.ended)
    m.remember_state(record.first)
    m.followed[record.number] = record


def _check_descent(m: Participant, enter: Callable[[State], Task], known: State, record: EraRecord) -> Task:
    """`ForkError` when `known` and the last state of the record's era are certainly not on one chain.

    What only lost backends held cannot be walked; by agreement there is one chain.
    """
    ended = record.ended
    if known.era != ended.era:
        return
    low, high = (known, ended) if known.v <= ended.v else (ended, known)
    try:
        instance: Instance = yield from enter(known)
        m.remember_state(ended)
        digest: Any = yield from ancestor(m, instance, high, low.v)
    except (DamagedError, NoQuorumError):
        return
    if digest != low.hash:
        raise ForkError(
            f"the workspace was restarted as era {record.number} from version {ended.v} ({ended.fingerprint}), which "
            f"contradicts version {known.v} as this device knows it ({known.fingerprint})",
            next_step="Compare the fingerprints with another device. Nothing was changed here.",
        )
