"""Agreement among clients: per-version pPaxos over passive backends (`docs/design/consensus.md`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    skip_version,
)

if TYPE_CHECKING:
    from metasync.consensus.founding import Found, Founded, bootstrap, found, look
    from metasync.consensus.reconfigure import check_step

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
    "Found",
    "Founded",
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
    "bootstrap",
    "check_step",
    "checked_memory",
    "decode_journal",
    "decode_state",
    "encode_birth",
    "found",
    "is_root",
    "look",
    "skip_version",
]


def __getattr__(name: str) -> Any:
    """Loads what only `init`, `clone` and changes of the backends need when it is asked for."""
    if name in ("Found", "Founded", "bootstrap", "found", "look"):
        from metasync.consensus import founding

        return getattr(founding, name)
    if name == "check_step":
        from metasync.consensus.reconfigure import check_step

        return check_step
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
