"""Keys of the local state under which operations note what later ones go on with."""

from __future__ import annotations

from typing import Final

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
