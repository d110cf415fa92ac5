"""The states that lead to the `skip` of the next version, kept here so that no backend need be asked for them.

A state names the one before it and, by `skip`, one further back (`consensus.records.state`). The next version's is
found by going back along `skip` from the newest: `ancestry` fetches what it lacks, one answer after the other, before a
push can be agreed. These states, one for each bit that is set in the version, have 400 bytes each. Nothing is believed
because it stands here: a state is looked up by its hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from metasync.consensus import STATE_BYTES, State, decode_state, skip_version
from metasync.errors import MetaSyncError

LINE_KEY: Final = "line"


def extended(line: bytes | None, states: Sequence[State]) -> bytes:
    """The line with these states, the newest last: what is not on the way back from that one is dropped.

    The newest may have a lower version than others: a workspace that was restarted goes on from an earlier one.
    """
    held = {state.v: state for state in [*read(line), *states]}
    wanted, v = [], states[-1].v
    while v:
        wanted.append(v)
        v = skip_version(v)
    return b"".join(held[v].encode() for v in reversed(wanted) if v in held)


def read(line: bytes | None) -> list[State]:
    """The states of a line. None of one that is damaged: then they are fetched."""
    data = line or b""
    try:
        return [decode_state(data[at : at + STATE_BYTES]) for at in range(0, len(data), STATE_BYTES)]
    except MetaSyncError:
        return []
