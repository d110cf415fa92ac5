"""Which names a walk takes in at first sight, and which it looks at more closely: what every name is asked."""

from __future__ import annotations

import os
import sys
from typing import Final

from metasync.sync.fsio import STATE_NAME, folds_to_state

IGNORE_NAME: Final = b".metasyncignore"
OWN_PREFIX: Final = b"~$metasync."  # our temporaries on other file systems: no rule takes them in
DEFAULT_NAMES: Final = frozenset({".DS_Store", "Thumbs.db"})  # what systems drop into every folder
DEFAULT_PREFIX: Final = "~$"  # lock files of office programs
ENCODING: Final = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()  # os.fsencode, at a third of its cost

NESTED: Final = "its own state"
HAS_RULES: Final = "the rules for the names beside it"
IGNORED: Final = "ignored"

_STATE: Final = os.fsdecode(STATE_NAME)
_RULES: Final = os.fsdecode(IGNORE_NAME)


def is_odd(name: str) -> bool:
    """Whether a name is to be looked at by `why_not_taken`, which takes most others."""
    return name[0] in ".T" or "~" in name or not name.isascii()


def is_odd_name(name: bytes) -> bool:
    """The same, of a name in bytes."""
    return name[0] in b".T" or b"~" in name or not name.isascii()


def why_not_taken(name: str, plain: bool) -> str:
    """Why a name is not taken in, or needs a look; "" if it is. `plain`: no rule file is to be asked."""
    if name == _STATE:
        return NESTED
    if name == _RULES:
        return HAS_RULES
    if plain and always_ignored(name):
        return IGNORED
    return "some file systems take its name for .metasync" if folds_to_state(name) else ""


def always_ignored(name: str) -> bool:
    """Whether a name is left out where there are no rule files: what `ignore.Ruling` says, at a tenth of the cost."""
    return name in DEFAULT_NAMES or name.startswith(DEFAULT_PREFIX)
