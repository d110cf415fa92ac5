"""The failure table of scrubs: a backend that failed ten times is passed over for a minute.

LightSync (Ruan et al., section 5.4) keeps such a table for each node: how many exceptions each other node had, and when
the last one was. At LIMIT the node counts as failed, and nobody syncs with it; INTERVAL_NS after its last exception the
number is 0 again. Here an answer takes the row away, too. An exception is a feed, a listing, or a copy that was asked
for and not told of, whether there was no answer or one that says nothing (a server's own error).

`FailureTable` decides, from times that it is told; `Failing` keeps it for a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from metasync.errors import UnreachableError
from metasync.local.state_keys import FAILURES_KEY, Failures

if TYPE_CHECKING:
    from metasync.session.session import Session
    from metasync.transfer.copies import Place
    from metasync.transfer.inventories import Heard

LIMIT: Final = 10  # error_suppression_limit of OpenStack Swift, which LightSync took over
INTERVAL_NS: Final = 60 * 10**9  # error_suppression_interval


class FailureTable:
    """The rows of all backends with exceptions, by name. Pure."""

    def __init__(self, rows: dict[str, Failures]) -> None:
        self.rows = rows

    def failed(self, backend: str, now_ns: int, exceptions: int = 1) -> None:
        """A backend had so many exceptions."""
        self.rows[backend] = Failures(min(self._count(backend, now_ns) + exceptions, LIMIT), now_ns)

    def answered(self, backend: str) -> None:
        self.rows.pop(backend, None)

    def passed_over_ns(self, backend: str, now_ns: int) -> int:
        """For how long a backend is still passed over; 0: it is asked."""
        if self._count(backend, now_ns) < LIMIT:
            return 0
        return self.rows[backend].at_ns + INTERVAL_NS - now_ns

    def _count(self, backend: str, now_ns: int) -> int:
        """0 also where the time of the row is over, or its clock was wrong."""
        row = self.rows.get(backend, Failures(0, 0))
        is_over = row.exceptions >= LIMIT and now_ns >= row.at_ns + INTERVAL_NS
        return 0 if is_over or row.at_ns > now_ns else row.exceptions


class Failing:
    """Has one session ask those nothing more that failed, and keeps the table for the next scrub."""

    def __init__(self, s: Session) -> None:
        self._s = s
        self._table = FailureTable(s.db.get(FAILURES_KEY) or {})

    def is_noted(self, place: Place) -> bool:
        """Whether a backend failed when it was last asked. Its partitions come first when it answers."""
        return place.name in self._table.rows

    def passed_over(self, place: Place) -> UnreachableError | None:
        """Why a backend is asked nothing in this scrub, by the table. None: it is asked."""
        left_ns = self._table.passed_over_ns(place.name, self._s.wall_ns())
        if not left_ns:
            return None
        why = f"{place.name}: it failed again and again; scrubs leave it alone for {-(-left_ns // 10**9)} s more"
        return UnreachableError(why, retryable=False)

    def heed(self, heard: Iterable[Heard]) -> None:
        """Takes down which of these told what they hold, and which failed."""
        heard = list(heard)
        for h in heard:
            if h.failed is None:
                self._table.answered(h.place.name)
            else:
                self._table.failed(h.place.name, self._s.wall_ns())
        self._keep()
        self.pass_over(self._s, heard)

    def silent(self, copies: Mapping[str, int]) -> None:
        """Takes down of how many copies each backend told nothing. Who cannot be reached was asked once."""
        down = self._s.transfer.down
        for name, n in copies.items():
            self._table.failed(name, self._s.wall_ns(), 1 if isinstance(down.get(name), UnreachableError) else n)
        self._keep()

    def pass_over(self, s: Session, heard: Iterable[Heard]) -> None:
        """Has those of these that could not be reached, and those that the table has as failed, asked nothing more."""
        for h in heard:
            why = h.failed if isinstance(h.failed, UnreachableError) else self.passed_over(h.place)
            if why is not None:
                s.transfer.down.setdefault(h.place.name, why)

    def _keep(self) -> None:
        self._s.db.update(FAILURES_KEY, self._table.rows or None)
