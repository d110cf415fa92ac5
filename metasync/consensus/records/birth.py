"""Birth and genesis: how an acceptor begins, and what proves version 0 (consensus.md, rules 1.1 and 1.9).

The *birth* object makes a root the one that the config means: its nonce is drawn for every initialisation, and the
config holds the nonce's hash. A root that was emptied, or replaced, has none or another, and no longer votes.

The *genesis* object is state 0, signed by the admin key whose hash is the workspace's id. It counts as decided.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from metasync.codec import Reader, check_format, encode_tags, u8
from metasync.consensus.records.state import STATE_BYTES, ZERO_ID, State, decode_state
from metasync.errors import FormatError
from metasync.keys.derive import FORMAT, Header, RecordKind, seal, sha256, sign, signed_part, verify
from metasync.keys.keyring import WorkspaceKeys
from metasync.keys.policy import AdminChain, decode_chain

BIRTH_BYTES: Final = 50
BIRTH_NONCE_BYTES: Final = 32
GENESIS_BYTES_MAX: Final = 1 << 18
_SIGNED: Final = "genesis 1"


def birth_path(place_id: bytes) -> str:
    """`place_id`: an acceptor id or a storage id."""
    return f"{place_id.hex()}/birth"


def encode_birth(place_id: bytes, nonce: bytes) -> bytes:
    """The birth object of a new root, in the clear: 50 bytes."""
    if len(place_id) != 16 or len(nonce) != BIRTH_NONCE_BYTES:
        raise ValueError("a birth takes an id of 16 and a nonce of 32 bytes")
    return u8(FORMAT) + u8(RecordKind.BIRTH) + place_id + nonce


def birth_digest(nonce: bytes) -> bytes:
    """What the config holds of a birth nonce."""
    return sha256(nonce)


def birth_matches(data: bytes, place_id: bytes, digest: bytes) -> bool:
    """True when `data` is the birth object that the config means."""
    return (
        len(data) == BIRTH_BYTES
        and data[:2] == u8(FORMAT) + u8(RecordKind.BIRTH)
        and data[2:18] == place_id
        and sha256(data[18:]) == digest
    )


def genesis_path(acceptor_id: bytes) -> str:
    return f"{acceptor_id.hex()}/genesis"


def seal_genesis(
    keys: WorkspaceKeys, state: State, chain: AdminChain, admin_private: bytes, acceptor_id: bytes, random: bytes
) -> bytes:
    """State 0 for one acceptor, signed by the admin key that `chain` ends with."""
    body = u8(FORMAT) + state.encode() + chain.encode() + encode_tags(())
    body += sign(admin_private, _SIGNED, body)
    header = Header(RecordKind.GENESIS, state.era, state.epoch, random)
    return seal(keys.log_key(state.epoch), header, body, binding=state.ns_id + acceptor_id)


def seal_genesis_again(keys: WorkspaceKeys, data: bytes, acceptor_id: bytes, new_id: bytes, random: bytes) -> bytes:
    """The genesis of one acceptor for another one that joins: the admin's signature names neither. `FormatError`."""
    state = open_genesis(keys, data, acceptor_id)
    header, body = _unsealed(keys, data, acceptor_id)
    again = replace(header, random=random)
    return seal(keys.log_key(state.epoch), again, body, binding=keys.ns_id + new_id)


def _unsealed(keys: WorkspaceKeys, data: bytes, acceptor_id: bytes) -> tuple[Header, bytes]:
    binding = keys.ns_id + acceptor_id
    return keys.opened(data, RecordKind.GENESIS, "the genesis", binding=binding, bytes_max=GENESIS_BYTES_MAX)


def open_genesis(keys: WorkspaceKeys, data: bytes, acceptor_id: bytes) -> State:
    """State 0, verified back to `keys.ns_id`. `FormatError` or `UpgradeError` otherwise."""
    header, body = _unsealed(keys, data, acceptor_id)
    r = Reader(body, "genesis")
    check_format(r.u8(), "the genesis")
    state = decode_state(r.take(STATE_BYTES))
    chain = decode_chain(r)
    r.tags()
    signed, signature = signed_part(r)
    if chain.ns_id != keys.ns_id or state.ns_id != keys.ns_id:
        raise FormatError("genesis: of another workspace")
    if not verify(chain.admin, _SIGNED, signed, signature):
        raise FormatError("genesis: the admin's signature is wrong")
    if (state.v, state.writer) != (0, ZERO_ID) or (state.era, state.epoch) != (header.era, header.epoch):
        raise FormatError("genesis: not a first state")
    return state
