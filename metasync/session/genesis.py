"""Whether each acceptor holds the genesis, without which no device begins there, with the passphrase or the phrase.

It is sealed for each of them, so a copy for one is made from that of another: the log key opens and seals it, and what
the admin key signed stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from metasync.consensus.records.birth import GENESIS_BYTES_MAX, genesis_path, open_genesis, seal_genesis_again
from metasync.errors import FormatError, NotFoundError, UpgradeError
from metasync.runtime.effects import Op, each, patience_s
from metasync.session.session import Session


class Seen(NamedTuple):
    """What was found. `links`: names of ways by acceptor id; `intact`: bytes; `problems`: others, as (backend, why)."""

    links: dict[bytes, str]
    intact: dict[bytes, bytes]
    lacking: list[bytes]
    altered: list[bytes]
    problems: list[tuple[str, str]]


def look(s: Session, ill: Collection[str]) -> Seen:
    """Reads the genesis on each acceptor that this device has a way to, but on `ill` backends. Brings nothing."""
    links = {a.acceptor_id: e.name for e, a in s.config.acceptors if e.backend_id in s.names and e.name not in ill}
    patience = patience_s(GENESIS_BYTES_MAX)
    replies = s.runtime.run(
        each(
            {
                a.hex(): Op(name, "get", genesis_path(a), max_bytes=GENESIS_BYTES_MAX, timeout_s=patience)
                for a, name in links.items()
            }
        )
    )
    seen = Seen(links, {}, [], [], [])
    for a, name in links.items():
        reply = replies[a.hex()]
        if isinstance(reply.error, NotFoundError):
            seen.lacking.append(a)
        elif reply.error is not None:
            seen.problems.append((name, f"genesis cannot be read: {reply.error.message}"))
        else:
            try:
                open_genesis(s.group.participant.keys, reply.value, a)
                seen.intact[a] = reply.value
            except (FormatError, UpgradeError):  # nobody vouches for the byte that says which version wrote it
                seen.altered.append(a)
    return seen


def check(s: Session, ill: Collection[str], *, mend: bool) -> tuple[list[tuple[str, str]], list[str]]:
    """Looks for the genesis, and stores it where it is missing. -> (problems as (backend, why), notes).

    `mend`: an altered one is stored anew, too.
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
    return problems, notes


def _stored(s: Session, seen: Seen, wanted: Collection[bytes]) -> set[bytes]:
    owner, data = next(iter(seen.intact.items()))
    keys, patience = s.group.participant.keys, patience_s(len(data))

    def put(a: bytes) -> Op:
        again = seal_genesis_again(keys, data, owner, a, s.entropy(32))
        return Op(seen.links[a], "put", genesis_path(a), again, timeout_s=patience)

    replies = s.runtime.run(each({a.hex(): put(a) for a in wanted}))
    return {a for a in wanted if replies[a.hex()].error is None}
