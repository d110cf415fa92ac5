"""Names with a meaning: which a walk takes in at first sight, which it looks at more closely. Pure."""

from __future__ import annotations

import re
import sys
import unicodedata
from typing import Final

STATE_NAME: Final = b".metasync"
IGNORE_NAME: Final = b".metasyncignore"
OWN_PREFIX: Final = b"~$metasync."  # our temporaries on other file systems: no rule takes them in
DEFAULT_NAMES: Final = frozenset({".DS_Store", "Thumbs.db"})  # what systems drop into every folder
DEFAULT_PREFIX: Final = "~$"  # lock files of office programs
ENCODING: Final = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()  # os.fsencode, at a third of its cost

NESTED: Final = "its own state"
HAS_RULES: Final = "the rules for the names beside it"
IGNORED: Final = "ignored"

_ODD_FIRST: Final = ".T"
ODD_FIRST: Final = _ODD_FIRST.encode()
_STATE: Final = STATE_NAME.decode()
_RULES: Final = IGNORE_NAME.decode()

# What file systems ignore when they compare names: HFS+ some of these, ext4 and f2fs with casefold all that Unicode
# calls default ignorable.
_IGNORED = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_SHORT_NAME = re.compile(r"metasy~[0-9]+")  # NTFS makes METASY~1 of `.metasync`


def is_odd(name: str) -> bool:
    """Whether a name is to be looked at by `why_not_taken`, which takes most others."""
    return name[0] in _ODD_FIRST or "~" in name or not name.isascii()


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


def folds_to_state(name: str) -> bool:
    """True for a name that some file system takes for `.metasync`: by case, by what NTFS, HFS+ or casefold ignores."""
    if name.isascii():
        if "metasy" not in name.lower():
            return False
        folded = name.lower()
    else:
        bare = _IGNORED.sub("", name)
        folded = unicodedata.normalize("NFD", unicodedata.normalize("NFD", bare).casefold())
    folded = folded.split(":", 1)[0].rstrip(". ")  # NTFS: streams behind a colon, trailing dots and spaces dropped
    return folded == ".metasync" or _SHORT_NAME.fullmatch(folded) is not None
