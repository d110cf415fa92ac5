"""What a keeper does for the data while nothing else is to do: moves them, makes good what was noticed, reads copies.

`moving.upkeep` has the steps, which a push takes too when its own work is done. Each time is bounded, gives way to
whatever else is to do, within a second while packs are on their way, and is followed by a rest as long as it took. What
is wrong is no problem that the user is told of here: the next push, `status` and `check` name it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from metasync.errors import MetaSyncError
from metasync.sync.operations import has_upkeep, is_turn_to_read

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
