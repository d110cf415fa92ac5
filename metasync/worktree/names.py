"""Rules of file systems for names: which a disk can hold, and which it takes for one (architecture.md, D8). Pure.

Two names of one directory that a disk takes for one are *twins* there: `a` and `A` where case is folded, the two
spellings of `é` where Unicode is normalised. A disk holds one of them, chosen alike everywhere: the one that is there
stays, for its owner may be working on it; of several that come at once the bytewise smallest is placed. The others
wait, unplaced, until that one goes.

`worktree.fs_probe` finds a directory's rules by trying. Rules that say less than the disk does lose nothing: a checkout
meets the other name at work and leaves its own out. They give the reason in words before anything is downloaded, and
tell which listed name stands for which agreed one.

Also here: names with a meaning, which a walk ignores or looks at more closely.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Final, NamedTuple


class Fold(IntEnum):
    """Which case is folded when names are compared."""

    NONE = 0
    ASCII = 1  # a to z alone (XFS with ascii-ci, FAT of some drivers)
    SIMPLE = 2  # letter by letter (NTFS, FAT, exFAT): `ß` is itself
    FULL = 3  # Unicode's case folding (APFS, ext4 with casefold): `ß` is `ss`


class Unit(IntEnum):
    """The unit of a name's length."""

    BYTES = 0
    UTF16 = 1


class Listing(IntEnum):
    """How a new name is listed: as given on nearly all systems."""

    AS_GIVEN = 0
    LOWER = 1  # ntfs-3g with ignore_case
    NFD = 2  # HFS+


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one file system. `forbidden`: characters of no name; `trailing`: of no name's end.

    `reserved`: the names of Windows' devices can't be had. `path_max`: bytes (or units) of a whole path, 0: any.
    `modes`, `symlinks`: whether it keeps permission bits, and has links.
    """

    fold: Fold = Fold.NONE
    normalises: bool = False
    utf8_only: bool = False
    forbidden: str = ""
    trailing: str = ""
    reserved: bool = False
    unit: Unit = Unit.BYTES
    name_max: int = 255
    path_max: int = 0
    listing: Listing = Listing.AS_GIVEN
    modes: bool = True
    symlinks: bool = True

    @property
    def has_twins(self) -> bool:
        """Whether two different names may be one here."""
        return self.fold is not Fold.NONE or self.normalises


CONTROLS: Final = "".join(map(chr, range(1, 32)))
ODD_ON_WINDOWS: Final = '"*:<>?\\|'

LINUX: Final = Rules(path_max=4096)
MACOS: Final = Rules(fold=Fold.FULL, normalises=True, utf8_only=True, unit=Unit.UTF16, path_max=1024)
WINDOWS: Final = Rules(
    fold=Fold.SIMPLE,
    utf8_only=True,
    forbidden=ODD_ON_WINDOWS + CONTROLS,
    trailing=". ",
    reserved=True,
    unit=Unit.UTF16,
    path_max=32_767,
    modes=False,
)
FAT: Final = Rules(
    fold=Fold.SIMPLE,
    utf8_only=True,
    forbidden=ODD_ON_WINDOWS + CONTROLS,
    trailing=". ",
    unit=Unit.UTF16,
    modes=False,
    symlinks=False,
)
CASEFOLD: Final = Rules(fold=Fold.FULL, normalises=True, utf8_only=True)
ANY: Final = Rules()  # of an unknown disk: it may hold whatever ext4 holds

_LOOKED_AT_TOGETHER = 10_000  # names; a megabyte
_PLAIN_BYTES_MAX = 255  # a path so short has no name that is too long, whatever is counted
_RESERVED = re.compile(r"(?:CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[0-9¹²³])(?: *[.:].*| *)", re.I | re.S)
# What any system may refuse, in paths that are each led by "/" and ended by NUL: many are looked at in one go.
_PLAIN_CHARACTERS = bytes(c for c in range(32, 127) if chr(c) not in ODD_ON_WINDOWS) + b"\0"
_ODD_ENDS = (b".\0", b" \0")
_ODD_NAME = re.compile(rb"/(?:con(?:in\$|out\$)?|prn|aux|nul|com[0-9]|lpt[0-9])[/. \0]")


def problem(path: bytes, rules: Rules) -> str:
    """Why a path can't be held under these rules, as a clause ("its name ..."); "" if it can."""
    if len(path) <= _PLAIN_BYTES_MAX and (_is_lax(rules) or _is_plain(b"/" + path + b"\0")):
        return ""
    names = path.split(b"/")
    for name in names:
        if why := _problem_of(name, rules):
            return why if name is names[-1] else f"the directory {shown(name)}: {why}"
    length = _length(path, rules.unit)
    if rules.path_max and length > rules.path_max:
        return f"its path has {length:,} {_UNITS[rules.unit]}, and {rules.path_max:,} are the most"
    return ""


def _is_lax(rules: Rules) -> bool:
    return not (rules.utf8_only or rules.forbidden or rules.trailing or rules.reserved)


def _is_plain(joined: bytes) -> bool:
    """Whether all systems take these paths, but for their length: "/" before and NUL behind each."""
    if joined.translate(None, _PLAIN_CHARACTERS):
        return False
    ended = joined.replace(b"/", b"\0")
    if any(end in ended for end in _ODD_ENDS):
        return False
    return not _ODD_NAME.search(joined.lower())


def _problem_of(name: bytes, rules: Rules) -> str:
    length = _length(name, rules.unit)
    if length > rules.name_max:
        return f"its name has {length:,} {_UNITS[rules.unit]}, and {rules.name_max:,} are the most"
    if _is_lax(rules):
        return ""
    text = name.decode("utf-8", "surrogateescape")
    if rules.utf8_only and not _is_utf8(name):
        return "its name is not UTF-8"
    if bad := [c for c in dict.fromkeys(text) if c in rules.forbidden]:
        return "its name has " + " and ".join(c if c.isprintable() else "a control character" for c in bad[:2])
    if text[-1:] in rules.trailing and text:
        return "its name ends in a " + ("dot" if text[-1] == "." else "space")
    if rules.reserved and _RESERVED.fullmatch(text):
        return "its name is that of a device"
    return ""


_UNITS = {Unit.BYTES: "bytes", Unit.UTF16: "UTF-16 units"}


def _length(name: bytes, unit: Unit) -> int:
    if unit is Unit.BYTES or len(name) <= _PLAIN_BYTES_MAX:
        return len(name)
    return len(name.decode("utf-8", "replace").encode("utf-16-le")) // 2


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def key(name: bytes, rules: Rules) -> bytes:
    """The key by which names are compared: names with equal keys are one in a directory. Also for whole paths.

    Folds less rather than more than real systems do, whose tables of Unicode are of all ages.
    """
    if not rules.has_twins:
        return name
    if rules.fold is Fold.ASCII or name.isascii():
        return name.lower() if rules.fold is not Fold.NONE else name
    text = name.decode("utf-8", "surrogateescape")
    if rules.normalises:
        text = unicodedata.normalize("NFD", text)
    if rules.fold is Fold.FULL:
        text = text.casefold()
        text = unicodedata.normalize("NFD", text) if rules.normalises else text
    elif rules.fold is Fold.SIMPLE:
        text = "".join(map(_simple, text))
    return text.encode("utf-8", "surrogateescape")


def _simple(char: str) -> str:
    """The small letter of a capital, where each is the other's alone."""
    small = char.lower()
    return small if len(small) == 1 and small.upper() == char else char


def listed(name: bytes, rules: Rules) -> bytes:
    """The listed form of a new name."""
    if rules.listing is Listing.AS_GIVEN:
        return name
    text = name.decode("utf-8", "surrogateescape")
    text = text.lower() if rules.listing is Listing.LOWER else unicodedata.normalize("NFD", text)
    return text.encode("utf-8", "surrogateescape")


def is_spelling(name: bytes, here: bytes, rules: Rules) -> bool:
    """Whether a disk may list what was made as `name` as `here`: by its own spelling, or in another normal form."""
    if name == here or listed(name, rules) == here:
        return True
    return rules.normalises and _composed(name) == _composed(here)


def _composed(name: bytes) -> str:
    return unicodedata.normalize("NFC", name.decode("utf-8", "surrogateescape"))


def clashes(names: Iterable[bytes], rules: Rules, held: Collection[bytes] = ()) -> dict[bytes, bytes]:
    """The names of a directory that must wait: `{name left out: name that has the place}`.

    `held`: names whose place is taken already; one of `names` among them has it. Else the bytewise smallest wins.
    """
    if not rules.has_twins:
        return {}
    winners: dict[bytes, bytes] = {}
    for name in sorted(held):
        winners.setdefault(key(name, rules), name)
    out: dict[bytes, bytes] = {}
    for name in sorted(names):
        winner = winners.setdefault(key(name, rules), name)
        if winner != name:
            out[name] = winner
    return out


# ---- hints for who makes names that other systems can't hold


class Odd(NamedTuple):
    """A path that some other system can't hold, and why."""

    path: bytes
    reason: str


_ELSEWHERE = (("Windows", WINDOWS), ("macOS", MACOS), ("Linux", LINUX))
_TWINS = Rules(fold=Fold.FULL, normalises=True)


def unportable(new: Iterable[bytes], tree: Collection[bytes], *, ascending: bool = False) -> list[Odd]:
    """The new names that other systems can't hold, ascending. Below a new directory its own name counts no more.

    `new`: new paths in `tree`, where their twins are looked for; it may lack other directories than theirs.
    `ascending`: the tree comes by paths as bytes, which takes less memory.
    """
    fresh = new if isinstance(new, Collection) else list(new)
    if not fresh:
        return []
    found: dict[bytes, str] = {}
    paths = iter(fresh)
    while some := list(islice(paths, _LOOKED_AT_TOGETHER)):
        short = max(map(len, some)) <= _PLAIN_BYTES_MAX
        if not (short and _is_plain(b"/" + b"\0/".join(some) + b"\0")):
            found.update((path, why) for path in some if (why := _why_odd(path)))
    for path, twin in _twins(fresh, tree, ascending).items():
        found.setdefault(path, f"macOS and Windows take it for {shown(twin.rpartition(b'/')[2])}")
    return [Odd(path, found[path]) for path in sorted(found)]


def _suspects(tree: Collection[bytes], ascending: bool) -> list[bytes]:
    """Paths that may have a twin in this tree, and few others: no two of the rest are twins."""
    out: dict[bytes, None] = {}
    if not ascending:
        met: dict[bytes, bytes] = {}
        for path in tree:
            first = met.setdefault(_folded(path), path)
            if first is not path:
                out[first] = out[path] = None
        return list(out)
    open_: list[tuple[bytes, dict[bytes, bytes]]] = []  # directories with the names met: below the last no more come
    for path in tree:
        parent, slash, name = path.rpartition(b"/")
        prefix = parent + slash
        while open_ and not prefix.startswith(open_[-1][0]):
            open_.pop()
        if not open_ or open_[-1][0] != prefix:
            open_.append((prefix, {}))
        first = open_[-1][1].setdefault(_folded(name), path)
        if first is not path:
            out[first] = out[path] = None
    return list(out)


def _folded(path: bytes) -> bytes:
    return path.lower() if path.isascii() else key(path, _TWINS)


def _why_odd(path: bytes) -> str:
    """What is odd about the last name of a path: new names above it are told by themselves."""
    name = path.rpartition(b"/")[2]
    for system, rules in _ELSEWHERE:
        if why := problem(name, rules):
            return f"{system}: {why}"
    if len(path) > MACOS.path_max:
        return "macOS: " + problem(path, MACOS)
    return ""


def _twins(fresh: Iterable[bytes], tree: Collection[bytes], ascending: bool) -> dict[bytes, bytes]:
    """New paths that have a twin in the tree, with that twin."""
    groups: dict[tuple[bytes, bytes], list[bytes]] = {}
    for path in _suspects(tree, ascending):
        parent, _, name = path.rpartition(b"/")
        groups.setdefault((parent, _folded(name)), []).append(path)
    crowded = {path: group for group in groups.values() if len(group) > 1 for path in group}
    return {path: min(p for p in crowded[path] if p != path) for path in fresh if path in crowded}


STATE_NAME: Final = b".metasync"
STATE_DB: Final = b"state.db"  # in it: by this a folder is known as a workspace
IGNORE_NAME: Final = b".metasyncignore"
OWN_PREFIX: Final = b"~$metasync."  # our temporaries on other file systems: no rule takes them in
DEFAULT_NAMES: Final = frozenset({".DS_Store", "Thumbs.db"})  # what systems drop into every folder
DEFAULT_PREFIX: Final = "~$"  # lock files of office programs
ENCODING: Final = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()  # os.fsencode, at a third of its cost

NESTED: Final = "its name is kept for the state of a workspace"
HAS_RULES: Final = "the rules for the names beside it"
IGNORED: Final = "ignored"

ODD_FIRST: Final = b".T"  # a name that begins so, or holds a "~", or is not ASCII, is asked about: `why_not_taken`
_STATE: Final = STATE_NAME.decode()
_RULES: Final = IGNORE_NAME.decode()

# Ignored when names are compared: by HFS+ some of these, by ext4 and f2fs with casefold all.
_IGNORED = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_SHORT_NAME = re.compile(r"metasy~[0-9]+")  # NTFS makes METASY~1 of `.metasync`


def why_not_taken(name: str, plain: bool) -> str:
    """Why a name is not taken in, or needs a look; "" if it is taken in. `plain`: there is no rule file to ask."""
    if name == _STATE:
        return NESTED
    if name == _RULES:
        return HAS_RULES
    if plain and always_ignored(name):
        return IGNORED
    return "some file systems take its name for .metasync" if folds_to_state(name) else ""


def always_ignored(name: str) -> bool:
    """Whether a name is left out without rule files: as `ignore.Ruling` says, at a tenth of the cost."""
    return name in DEFAULT_NAMES or name.startswith(DEFAULT_PREFIX)


def folds_to_state(name: str) -> bool:
    """Whether some file system takes a name for `.metasync`: by case, or by what NTFS, HFS+ or casefold ignores."""
    if name.isascii():
        if "metasy" not in name.lower():
            return False
        folded = name.lower()
    else:
        bare = _IGNORED.sub("", name)
        folded = unicodedata.normalize("NFD", unicodedata.normalize("NFD", bare).casefold())
    folded = folded.split(":", 1)[0].rstrip(". ")  # NTFS: streams behind a colon, trailing dots and spaces dropped
    return folded == ".metasync" or _SHORT_NAME.fullmatch(folded) is not None
