"""Whether each acceptor holds what a new device begins with: the genesis, and the records of eras.

Without them nobody joins there with the passphrase or the phrase. The genesis is sealed for each of them, so a copy for
one is made from that of another: the log key opens and seals it, and what the admin key signed stays as it is. Records
of eras are copied as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from metasync.consensus.eras import records
from metasync.consensus.records.birth import GENESIS_BYTES_MAX, genesis_path, open_genesis, seal_genesis_again
from metasync.consensus.records.era import era_path
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


def check(s: Session, ill: Collection[str], era: int, *, mend: bool) -> tuple[list[tuple[str, str]], list[str]]:
    """Looks for the genesis and the records of eras up to this one, and stores them where they are missing.

    -> (problems as (backend, why), notes). `mend`: an altered genesis is stored anew, too.
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
    return _check_eras(s, sorted(seen.links.values()), era, problems, notes) if era else (problems, notes)


def lacks_eras(s: Session, era: int, names: Collection[str]) -> list[int]:
    """The eras up to this one of which none of these backends shows the record."""
    have = s.runtime.run(records(s.group.participant, era, names)) if era else {}
    return [n for n in range(1, era + 1) if era_path(n) not in have]


def _check_eras(
    s: Session, names: Sequence[str], era: int, problems: list[tuple[str, str]], notes: list[str]
) -> tuple[list[tuple[str, str]], list[str]]:
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
    return problems, notes


def _stored(s: Session, seen: Seen, wanted: Collection[bytes]) -> set[bytes]:
    owner, data = next(iter(seen.intact.items()))
    keys, patience = s.group.participant.keys, patience_s(len(data))

    def put(a: bytes) -> Op:
        again = seal_genesis_again(keys, data, owner, a, s.entropy(32))
        return Op(seen.links[a], "put", genesis_path(a), again, timeout_s=patience)

    replies = s.runtime.run(each({a.hex(): put(a) for a in wanted}))
    return {a for a in wanted if replies[a.hex()].error is None}
