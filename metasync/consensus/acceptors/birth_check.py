"""Births: whether a root is still the one that the config means (consensus.md, rule 1.9).

A root that was wiped has forgotten what it promised and accepted. So its birth object is read beside every step that
counts: beside every create, beside every look at a log, and nothing of an acceptor is taken in without it. One that is
not the right root is forgotten altogether: a store that was emptied and then restored from a backup does not hold what
it took in between.
"""

from __future__ import annotations

from metasync.consensus.instance import Instance
from metasync.consensus.participant import OP_TIMEOUT_S, Member
from metasync.consensus.records.birth import BIRTH_BYTES, birth_matches, birth_path
from metasync.consensus.records.entry import ENTRY_BYTES_MAX
from metasync.consensus.records.era import read_tombstone
from metasync.errors import NotFoundError
from metasync.runtime.effects import Op, Reply, Task


def read_birth(m: Member, instance: Instance, acceptor_id: bytes) -> Task:
    """-> bool: the root is the one the config means. Notes it in `instance.born`, or why not in the standings."""
    instance.born.discard(acceptor_id)
    backend = m.backend_of(instance, acceptor_id)
    if backend is None:
        return False
    reply: Reply = yield Op(backend, "get", birth_path(acceptor_id), max_bytes=ENTRY_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
    instance.heard.discard(acceptor_id)
    if isinstance(reply.error, NotFoundError):
        why = "its birth object is missing: it was emptied"
    elif reply.error is not None:
        m.fault(instance, acceptor_id, reply.error)
        return False
    elif birth_matches(reply.value, acceptor_id, instance.births[acceptor_id]):
        m.replaced.pop(acceptor_id, None)
        instance.born.add(acceptor_id)
        instance.heard.add(acceptor_id)
        return True
    elif (stone := read_tombstone(reply.value, acceptor_id, instance.births[acceptor_id])) is not None:
        m.tombstones[acceptor_id] = stone
        if stone.era == m.recovering:
            instance.born.add(acceptor_id)
            return True
        why = f"it was retired: the workspace was restarted as era {stone.era}"
    else:
        why = f"its birth object is another ({len(reply.value)} bytes, {BIRTH_BYTES} expected): it was replaced"
    m.replaced[acceptor_id] = why
    instance.forget(acceptor_id)
    m.judge(instance, acceptor_id)
    return False
