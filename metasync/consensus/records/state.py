"""The state: what pPaxos agrees on, one per version (consensus.md, rule 1.1).

402 bytes, always: hashes and small numbers only, so that an entry that carries two of them (its base and its value)
stays small, and every entry of version v is by itself a certificate of the whole state v-1.

`prev` and `skip` make the chain a skip list: from any state v, an older one is reached, and proven, in at most
b (b + 1) / 2 steps, where b is the number of v's binary digits (55 at version 1000; half of that on average).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, NamedTuple

from metasync.codec import UPGRADE, check_format
from metasync.errors import FormatError, UpgradeError
from metasync.keys.derive import sha256

FORMAT: Final = 1
STATE_BYTES: Final = 402
VERSION_MAX: Final = (1 << 63) - 1  # what the local state can hold; a version more fits its field everywhere
ZERO_HASH: Final = bytes(32)
ZERO_ID: Final = bytes(16)

_SKIP: Final = slice(78, 110)  # where the hash lies in a state's bytes
_LAYOUT: Final = struct.Struct(">BB32sIQ32s32s32s32sQ32sQ32s32s32sIQQ16s16s32s")


class Ref(NamedTuple):
    """A meta object: its generation and the SHA-256 of its sealed bytes. `NOTHING` names none."""

    generation: int
    hash: bytes


NOTHING: Final = Ref(0, ZERO_HASH)
HINT_EVERY: Final = 16  # versions between hints
_RIDES: Final = 1 << 63  # in a state's generation of its index


@dataclass(frozen=True, slots=True)
class State:
    """One agreed state. `config`, `devices`, `keyring`: SHA-256 of the sealed bytes they name; `extra`: the same for a
    record of later formats' agreed values, zero for none, and carried over by who does not know it.

    `index_rides`: the index root is carried by the log entries of this version, and need be no object.
    """

    ns_id: bytes
    era: int
    v: int
    prev: bytes
    skip: bytes
    master: bytes
    config: bytes
    index: Ref
    retained: Ref
    devices: bytes
    keyring: bytes
    epoch: int
    gen: int
    min_gen: int
    writer: bytes
    op_id: bytes
    extra: bytes = ZERO_HASH
    min_fmt: int = FORMAT
    fmt: int = FORMAT
    index_rides: bool = False

    def encode(self) -> bytes:
        before = self.fmt, self.min_fmt, self.ns_id, self.era, self.v, self.prev, self.skip, self.master, self.config
        after = self.devices, self.keyring, self.epoch, self.gen, self.min_gen, self.writer, self.op_id, self.extra
        generation = self.index.generation | (_RIDES if self.index_rides else 0)
        return _LAYOUT.pack(*before, generation, self.index.hash, *self.retained, *after)

    @property
    def hash(self) -> bytes:
        return sha256(self.encode())

    @property
    def fingerprint(self) -> str:
        """What two people compare by eye: version and the first 40 bits of the hash."""
        return f"{self.v}-{self.hash[:5].hex()}"


def decode_state(data: bytes, *, proposed: bool = False) -> State:
    """The state in these bytes. `UpgradeError` when it or its `min_fmt` is newer than this program.

    `proposed`: nobody has agreed it yet, and the policy tells whether that `min_fmt` may be.
    """
    if not data:
        raise FormatError("state: no bytes")
    check_format(data[0], "the state")
    if len(data) != STATE_BYTES:
        raise FormatError(f"state of {len(data)} bytes")
    fmt, min_fmt, *values = _LAYOUT.unpack(data)
    generation, rides = values[7] & ~_RIDES, values[7] >= _RIDES
    values[7:11] = Ref(generation, values[8]), Ref(*values[9:11])
    values += min_fmt, fmt, rides
    state = State(*values)
    if not proposed:
        check_min_fmt(state)
    if state.v > VERSION_MAX:
        raise FormatError(f"state of version {state.v}")
    return state


def newer(state: State) -> UpgradeError:
    """The error for a state that only newer programs understand."""
    return UpgradeError(
        f"version {state.v} of the workspace is for programs that know format {state.min_fmt}; this one knows {FORMAT}",
        next_step=UPGRADE,
    )


def check_min_fmt(state: State) -> State:
    """The same state, or `UpgradeError` where it asks for a newer program."""
    if state.min_fmt > FORMAT:
        raise newer(state)
    return state


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit changes of its base; None keeps the base's value. `op_id`: the push's own, kept over rebases.

    `index_rides`: see `State`. `riding`: then what the entries carry (`entry.ROOT_TAG`). `adding` is no part of the
    state: meta objects that its index names and the base's does not, for who learns of it.
    """

    op_id: bytes
    master: bytes | None = None
    config: bytes | None = None
    index: Ref | None = None
    retained: Ref | None = None
    devices: bytes | None = None
    keyring: bytes | None = None
    epoch: int | None = None
    gen: int | None = None
    min_gen: int | None = None
    min_fmt: int | None = None
    adding: tuple[Ref, ...] = ()
    index_rides: bool = False
    riding: bytes = b""


def skip_version(v: int) -> int:
    """The version that state v's `skip` names: v without its lowest set bit."""
    return v & (v - 1)


def step_versions(v: int) -> tuple[int, ...]:
    """The versions of the states that lead from state v - 1 to the one that state v's `skip` names: v - 2, v - 4,
    v - 8, ... The first is the `prev` of state v - 1, and each next one the `skip` of the one before. None unless 4
    divides v."""
    return tuple(v - (1 << i) for i in range(1, (v & -v).bit_length() - 1))


def line_after(line: Sequence[State], states: Sequence[State]) -> list[State]:
    """Adds states to a line of known ones, the newest last, and drops what is not on the way back from that one.

    The newest may have a lower version than others: a restarted workspace goes on from an earlier one.
    """
    held = {state.v: state for state in [*line, *states]}
    wanted, v = [], states[-1].v
    while v:
        wanted.append(v)
        v = skip_version(v)
    return [held[v] for v in reversed(wanted) if v in held]


def skip_after(base: State, steps: Sequence[bytes] = ()) -> bytes:
    """The `skip` of every state after `base`. `steps`: the states `step_versions` of its version, encoded.

    Each is proven by the one before, and the first by `base`. `FormatError` where they are not these.
    """
    v = base.v + 1
    if [len(step) for step in steps] != [STATE_BYTES] * len(step_versions(v)):
        raise FormatError("its entry does not carry the states that its skip rests on")
    digest = base.prev if skip_version(v) != base.v else base.hash
    for step in steps:
        if sha256(step) != digest:
            raise FormatError("its entry carries a state that its base does not lead back to")
        digest = step[_SKIP]
    return digest


def hint_is_due(v: int) -> bool:
    """Whether hints name this version: a new device starts from it, so its index must not ride in a log."""
    return v % HINT_EVERY == 0 or v & (v - 1) == 0


def successor(base: State, change: Change, *, skip: bytes, writer: bytes) -> State:
    """The state after `base`. `skip`: hash of the state of version `skip_version(base.v + 1)`."""
    names = {f.name for f in fields(change)} - {"op_id", "adding", "riding"}
    given = {name: value for name in names if (value := getattr(change, name)) is not None}
    nxt = replace(base, v=base.v + 1, prev=base.hash, skip=skip, writer=writer, op_id=change.op_id, **given)
    if not follows(nxt, base):
        raise ValueError("a state must not fall behind its base")
    return nxt


def follows(state: State, base: State) -> bool:
    """True when `state` may be the value of the version after `base`, as far as the two can tell.

    Where 4 divides the version, `skip_after` tells of its `skip`.
    """
    v = base.v + 1
    return (
        state.v == v
        and state.prev == base.hash
        and state.ns_id == base.ns_id
        and state.era == base.era
        and (step_versions(v) or state.skip == skip_after(base))
        and (state.devices != base.devices or _governed(state) == _governed(base))
        and (not state.index_rides or _may_ride(state, base))
        and base.epoch <= state.epoch <= base.epoch + 1
        and base.gen <= state.gen <= base.gen + 1
        and state.min_gen >= base.min_gen
        and state.min_gen <= state.gen
        and state.min_fmt >= base.min_fmt
        and state.writer != ZERO_ID
    )


def _may_ride(state: State, base: State) -> bool:
    """Whether a version's log alone may hold its index root: whoever goes on from the version must read that log."""
    same = (state.config, state.devices) == (base.config, base.devices)
    return same and state.index != base.index and base.index != NOTHING and not hint_is_due(state.v)


def _governed(state: State) -> tuple[int, bytes, int]:
    """What the policy says, which the device set begins with."""
    return state.epoch, state.keyring, state.min_fmt


def genesis_state(*, ns_id: bytes, config: bytes, devices: bytes, keyring: bytes, epoch: int) -> State:
    """Version 0: nobody's, empty, decided because the admin key signs it."""
    return State(
        ns_id=ns_id,
        era=0,
        v=0,
        prev=ZERO_HASH,
        skip=ZERO_HASH,
        master=ZERO_HASH,
        config=config,
        index=NOTHING,
        retained=NOTHING,
        devices=devices,
        keyring=keyring,
        epoch=epoch,
        gen=0,
        min_gen=0,
        writer=ZERO_ID,
        op_id=ZERO_ID,
    )
