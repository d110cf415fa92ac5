"""What a keeper does for the data while nothing else is to do: moves them, makes good what was noticed, reads copies.

`moving.upkeep` has the steps, which a push takes too when its own work is done. Each time is bounded, gives way to
whatever else is to do, within a second while packs are on their way, and is followed by a rest as long as it took. What
goes wrong with it is no problem that the user is told of: the next push, `status` and `check` name it. Copies that were
found altered or gone are one, until they are made good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from metasync.errors import MetaSyncError
from metasync.local.state_keys import BAD_COPIES_KEY
from metasync.moving.upkeep import mends_at_s
from metasync.reports.service import Problem
from metasync.service.problems import of_copies
from metasync.sync.operations import has_upkeep, is_turn_to_read
from metasync.transfer import wrong_copies

if TYPE_CHECKING:
    from metasync.workspace import Workspace

EACH_S: Final = 300.0  # between looks whether there is anything to do; they ask nobody
REST_S: Final = 5.0  # at least, between two times
log = logging.getLogger(__name__)


class Quiet:
    """Says when to look for such work (`at`), and does it. `is_wanted`: whether there is something else to do."""

    def __init__(self, clock: Callable[[], float], is_wanted: Callable[[], bool]) -> None:
        self._clock, self._is_wanted = clock, is_wanted
        self.at = clock() + EACH_S

    def keep_up(self, workspace: Workspace) -> None:
        """Does what there is to do, for a while. Raises nothing that is of this work alone."""
        began, goes_on = self._clock(), False
        try:
            if has_upkeep(workspace._connections) or is_turn_to_read(workspace._connections):
                goes_on = workspace._work.upkeep_in_quiet(self._is_wanted)
        except Exception as e:  # crash-only
            if not isinstance(e, MetaSyncError):
                log.exception("%s: an error of MetaSync's own, while data were kept up", workspace.directory)
        now = self._clock()
        self.at = now + (max(now - began, REST_S) if goes_on else EACH_S)


def bad_copies(workspace: Workspace, now_s: float) -> Iterator[Problem]:
    """The copies that are known to be bad, and when they are made good. `now_s`: seconds since 1970."""
    c = workspace._connections
    if not c.db.has(BAD_COPIES_KEY):
        return
    bad, noted, at_s = wrong_copies.bad(c.db), wrong_copies.load(c.db), mends_at_s(workspace._work)
    left = {i for pack, by in bad.items() if pack not in noted for i in by}  # no other copy is known
    ids = {b.name: b.backend_id for b in c.config.backends}
    for one in wrong_copies.summary(c.db, {i: name for name, i in ids.items()}):
        yield of_copies(one, None if ids[one.backend] in left else at_s, now_s)
