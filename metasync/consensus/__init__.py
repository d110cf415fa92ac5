"""Agreement among clients: per-version pPaxos over passive backends (`docs/design/consensus.md`)."""

from __future__ import annotations

from metasync.consensus.group import DEADLINE_S, Group
from metasync.consensus.participant import Barred, Standing, checked_memory
from metasync.consensus.proposer import JOURNAL_KEY, Decided, Journal, MakeValue, decode_journal
from metasync.consensus.records.birth import BIRTH_NONCE_BYTES, birth_digest, birth_matches, birth_path, encode_birth
from metasync.consensus.records.entry import Head
from metasync.consensus.records.era import EraRecord, is_root
from metasync.consensus.records.state import (
    NOTHING,
    STATE_BYTES,
    ZERO_HASH,
    Change,
    Ref,
    State,
    decode_state,
    line_after,
    skip_version,
)

__all__ = [
    "BIRTH_NONCE_BYTES",
    "DEADLINE_S",
    "JOURNAL_KEY",
    "NOTHING",
    "STATE_BYTES",
    "ZERO_HASH",
    "Barred",
    "Change",
    "Decided",
    "EraRecord",
    "Group",
    "Head",
    "Journal",
    "MakeValue",
    "Ref",
    "Standing",
    "State",
    "birth_digest",
    "birth_matches",
    "birth_path",
    "checked_memory",
    "decode_journal",
    "decode_state",
    "encode_birth",
    "is_root",
    "line_after",
    "skip_version",
]
