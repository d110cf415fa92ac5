"""What commands report that look at what the backends hold: `check`, `scrub`, `drill`, and what was made whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metasync.reports.backends import Gone
from metasync.reports.sync import Trailing, path_str


@dataclass(frozen=True, slots=True)
class CheckProblem:
    """`backend` and what is wrong there; `pack` is its name, or b"" for a problem of the backend as a whole."""

    backend: str
    pack: bytes
    problem: str


@dataclass(frozen=True, slots=True)
class Untrue:
    """A pack that holds not all that the index lists in it, though its bytes are those of its name.

    objects  how many objects are something else there, or nothing; `ids`: those of the first ones
    paths    the first files and directories of the newest version that need one of them, which others may still give
    version  as which it was agreed that they lie there; None: nobody can tell any more. `device`: who proposed that
    """

    pack: bytes
    objects: int
    ids: tuple[bytes, ...] = ()
    paths: tuple[bytes, ...] = ()
    version: int | None = None
    device: str = ""

    @property
    def paths_str(self) -> tuple[str, ...]:
        return tuple(map(path_str, self.paths))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A version whose index left out packs that older versions need, who wrote it, and how many are in it again."""

    version: int
    device: str
    packs: int


@dataclass(frozen=True, slots=True)
class Unmade:
    """A backend that did not take copies that were to be made there again, how many, and why; `is_full`: for lack of
    room."""

    backend: str
    copies: int
    why: str
    is_full: bool


@dataclass(frozen=True, slots=True)
class Repaired:
    """What `check` made whole.

    found   what was wrong with packs before; `untrue`: packs that did not hold what was listed in them
    copies  copies of packs that were made again; `copied_bytes` in them
    stored_bytes  stored anew, from this folder and what it keeps of its own
    version  the version that names what was stored anew, and no longer what is lost; None: there was no need
    gone    files and directories that nobody has any more, oldest version first; `gone_objects`: objects that nobody
            has and that no such path needs
    waits   packs that a backend which is away may still have: nothing is given up before it was asked
    left_out  whose packs are in the index again, as older versions need them
    unmade  where copies could not be made, by the name of the backend
    """

    found: tuple[CheckProblem, ...] = ()
    copies: int = 0
    copied_bytes: int = 0
    stored_bytes: int = 0
    version: int | None = None
    gone: tuple[Gone, ...] = ()
    gone_objects: int = 0
    waits: int = 0
    untrue: tuple[Untrue, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    unmade: tuple[Unmade, ...] = ()


@dataclass(frozen=True, slots=True)
class DrillReport:
    """What would be left without some backends. `version`: the newest one that the others show.

    voting, quorum  how many backends that vote are left and answer, and how many of all must agree
    agrees          a quorum of them told the newest version: so pushes and pulls would go on
    joins           a new device would find keys and key slots
    copies          how many of each pack are promised; `by_copies`: how many packs would have 0, 1, ... copies
    problems        what else is missing, by backend ("" where it is of all of them): of what lies beside the logs, of
                    the keys, and backends that are left and do not answer
    lost            packs of which no intact copy was found, and `lost_bytes` in them
    gone            files that would be lost with them, oldest version first; `gone_objects`: directories and versions
                    that could not be listed any more
    """

    version: int
    fingerprint: str
    without: tuple[str, ...]
    voting: int
    quorum: int
    agrees: bool
    joins: bool
    copies: int
    by_copies: tuple[int, ...]
    copies_checked: int
    bytes_read: int
    by_digest: int
    problems: tuple[CheckProblem, ...] = ()
    lost: tuple[bytes, ...] = ()
    lost_bytes: int = 0
    gone: tuple[Gone, ...] = ()
    gone_objects: int = 0

    @property
    def is_passed(self) -> bool:
        """Whether nothing would be lost, and all would go on."""
        return self.agrees and self.joins and not (self.lost or self.problems)


@dataclass(frozen=True, slots=True)
class ScrubLook:
    """How one backend was looked at. `how`: `listed`, `changes` (its feed was read), `not due`, `away`.

    packs    how many it told in all
    changes  how many its feed told since the last scrub
    at_ns    when all of it was last seen, by this device or another; None: never
    why      it could not be asked
    """

    backend: str
    how: str
    packs: int
    changes: int = 0
    at_ns: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """The outcome of a scrub.

    compared  digests of partitions that were compared, over all backends; 0 where nothing had changed
    asked     packs whose copies were asked for, because a backend did not tell of them what it should
    read      copies that were read because it was their turn (`scrub.days`), and the bytes of them
    problems, lost, short, repaired: as in `CheckReport`, of these packs
    """

    version: int
    backends: tuple[ScrubLook, ...]
    compared: int
    asked: int
    problems: tuple[CheckProblem, ...] = ()
    lost: tuple[bytes, ...] = ()
    short: int = 0
    repaired: Repaired | None = None
    read: int = 0
    bytes_read: int = 0


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The outcome of a check. `lost`: packs of which no intact copy was found; `short`: those with too few.

    `trailing`: copies that are missing because this device is still to make them; these are no problems.

    `notes`: what was seen, and put right, that is no problem. `by_digest`: copies whose digest, as their store tells
    it, is that of the pack; `pieces_read`: copies of which one segment was read. `nowhere`: files of the newest version
    whose contents were lost, and no pack is to have any more; and such directories, with a slash at the end.
    `repaired`: what a repair made whole, where one was asked for and there was something to mend; all else is as it is
    after that. `untrue`: packs that do not hold all that the index lists in them, where every copy was read.
    """

    version: int
    packs: int
    copies_checked: int
    bytes_read: int
    problems: tuple[CheckProblem, ...]
    lost: tuple[bytes, ...] = ()
    short: int = 0
    meta_problems: tuple[CheckProblem, ...] = ()
    notes: tuple[str, ...] = ()
    trailing: tuple[Trailing, ...] = ()
    by_digest: int = 0
    pieces_read: int = 0
    nowhere: Sequence[bytes] = ()
    repaired: Repaired | None = None
    untrue: tuple[Untrue, ...] = ()

    @property
    def nowhere_str(self) -> tuple[str, ...]:
        return tuple(map(path_str, self.nowhere))
