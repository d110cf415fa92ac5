"""Acceptors, whatever their form: the three requests that proposers and learners make of one.

    look(...)    reads what it holds, to its end          append(...)   has it take a PREPARE or an ACCEPT

Which form a backend has is agreed in the config (`config.Acceptor.form`).
"""

from __future__ import annotations

from metasync.consensus.acceptors import block, log
from metasync.consensus.instance import Instance
from metasync.consensus.participant import Member
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.entry import Kind, Round
from metasync.consensus.records.state import State
from metasync.runtime.effects import Task


def look(m: Member, instance: Instance, acceptor_id: bytes, *, beyond: bool = False) -> Task:
    """Reads all that one acceptor holds of this instance, with its birth beside every step. -> Outcome.

    `beyond`: where it holds something, whether it holds something of the next version too (`Instance.is_last`).
    """
    if isinstance(instance.logs[acceptor_id], Blocks):
        return block.look(m, instance, acceptor_id)
    return log.look(m, instance, acceptor_id, beyond=beyond)


def append(
    m: Member, instance: Instance, acceptor_id: bytes, kind: Kind, rnd: Round, value: State | None, stale: Round
) -> Task:
    """Has one acceptor take a message. -> Outcome. PREPARE does not climb over foreign rounds above `stale`."""
    if isinstance(instance.logs[acceptor_id], Blocks):
        return block.append(m, instance, acceptor_id, kind, rnd, value, stale)
    return log.append(m, instance, acceptor_id, kind, rnd, value, stale)
