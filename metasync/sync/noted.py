"""What operations note in the local state for later ones to go on with, and whether there is anything of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from metasync.consensus import JOURNAL_KEY
from metasync.keys.keyring import FIRST_EPOCH

if TYPE_CHECKING:
    from metasync.local.state import State
    from metasync.sync.fsio import WorkTree

UNFINISHED_KEY: Final = "unfinished"  # set while a clone has not brought its first tree
PARTS_KEY: Final = "unfinished.parts"  # a clone that goes in parts: of which state, and up to which path it is here
EXACT_KEY: Final = "unfinished.exact"  # up to which path the rows of these parts are known to be as agreed
KEPT_KEY: Final = "kept"  # id of a staged snapshot (with others behind it) that the next push names as a parent
PLAN_KEY: Final = "checkout.plan"
INODES_KEY: Final = "checkout.inodes"  # there: the plan is being applied
TRAILING_KEY: Final = "trailing"  # packs that lack copies: `trailing.encode_trails`
GIVEN_UP_KEY: Final = "ballast"  # backends whose ballast this device gave up or saw missing: JSON, a list of names
RULES_KEY: Final = "ignore.rules"  # the rule files of the last scan that was stored; absent where there were none
KEY_COPIES_KEY: Final = "key copies"  # JSON: the epoch looked at last, and ids of backends that may lack something

_TO_GO_ON_WITH: Final = (JOURNAL_KEY, UNFINISHED_KEY, KEPT_KEY, PLAN_KEY, INODES_KEY, TRAILING_KEY, GIVEN_UP_KEY)


def nothing_left(db: State, tree: WorkTree, epoch: int) -> bool:
    """True when no earlier operation left anything that the next one begins with, or ends with.

    `epoch`: of the newest state that this device knows. When in doubt, there is something.
    """
    if any(db.get(key) is not None for key in _TO_GO_ON_WITH) or db.replaced():
        return False
    keys = db.get(KEY_COPIES_KEY)
    if keys is None and epoch != FIRST_EPOCH:
        return False
    if keys is not None and keys != json.dumps({"epoch": epoch, "pending": {}}).encode():
        return False
    return not tree.disk.names(tree.state_dir(b"tmp"))
