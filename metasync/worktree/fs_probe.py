"""What the file system of a workspace makes of names, found by trying, once for each device.

It takes about fifteen system calls on a disk that takes all names, in a directory of their own below `.metasync`, which
is removed again. A directory that folds case by an attribute, or another file system mounted inside, is met at work
(see `worktree.names`).
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Any, Final

from metasync.local import state_keys
from metasync.local.state import State
from metasync.local.state_keys import json_codec
from metasync.worktree.disk import CREATE_FLAGS, DIR_FLAGS, Disk
from metasync.worktree.names import ANY, CONTROLS, ODD_ON_WINDOWS, Fold, Listing, Rules, Unit
from metasync.worktree.tree import WorkTree

PROBE_FORMAT = 1  # of what is kept: other tries are made anew
PROBE_NAME = b"probe-"
_REFUSED = frozenset(  # whatever a file system says of a name it does not take
    {errno.EINVAL, errno.EILSEQ, errno.ENAMETOOLONG, errno.ENOENT, errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EIO}
)

_CAPITAL = "X\u00c9".encode()
_SMALL = "x\u00c9".encode()
_SMALLER = "x\u00e9".encode()
_DECOMPOSED = "XE\u0301".encode()


def rules_of(tree: WorkTree, db: State) -> Rules:
    """The rules of the workspace's file system; `ANY` if they can't be found out (read-only)."""
    state = tree.disk.fstat(tree.state_dir())
    # A device's number may be another's after a restart; together with an inode it hardly ever is.
    place = [PROBE_FORMAT, state.st_dev, state.st_ino]
    known = db.get(NAME_RULES_KEY)
    if known is not None and known[0] == place:
        return known[1]
    try:
        rules = _probed(tree)
    except OSError:
        return ANY
    db.set(NAME_RULES_KEY, (place, rules))
    return rules


def _kept(told: Any) -> tuple[list[int], Rules]:
    """Makes a place and its rules of JSON's values."""
    enums = {"fold": Fold, "unit": Unit, "listing": Listing}
    values: dict[str, Any] = {k: enums[k](v) if k in enums else v for k, v in told["rules"].items()}
    rules = Rules(**values)
    if not all(type(getattr(rules, f.name)) is type(getattr(ANY, f.name)) for f in fields(Rules)):
        raise TypeError("not rules")
    return told["place"], rules


NAME_RULES_KEY: Final = state_keys.NAME_RULES_KEY.holding(
    lambda known: json.dumps({"place": known[0], "rules": asdict(known[1])}).encode(),
    json_codec("rules of the file system", _kept).decode,
)


def _probed(tree: WorkTree) -> Rules:
    disk, above = tree.disk, tree.state_dir()
    name = PROBE_NAME + os.urandom(8).hex().encode()  # `status` takes no lock: two may try at once
    disk.mkdir(name, above)
    try:
        with disk.opened(name, DIR_FLAGS, above) as fd:
            try:
                return probe(disk, fd)
            finally:
                for left in disk.names(fd):
                    disk.unlink(left, fd)
    finally:
        with suppress(OSError):
            disk.rmdir(name, above)


def probe(disk: Disk, fd: int) -> Rules:
    """Finds the rules of an empty directory, and leaves files in it. OSError: nothing can be made there."""
    fold, normalises, listing, modes = _comparing(disk, fd)
    odd = _takes(disk, fd, ("n" + ODD_ON_WINDOWS + CONTROLS + "n").encode())
    forbidden = "" if odd else "".join(c for c in ODD_ON_WINDOWS if not _takes(disk, fd, f"n{c}n".encode()))
    if not odd and not _takes(disk, fd, b"n\x01n"):
        forbidden += CONTROLS
    return Rules(
        fold=fold,
        normalises=normalises,
        utf8_only=not _takes(disk, fd, b"n\xff"),
        forbidden=forbidden,
        trailing="".join(c for c in ". " if forbidden and not _takes(disk, fd, f"n{c}".encode())),
        reserved=bool(forbidden) and not _takes(disk, fd, b"aux"),
        unit=Unit.UTF16 if _takes(disk, fd, "\u00e9".encode() * 200) else Unit.BYTES,
        listing=listing,
        modes=modes,
        symlinks=_links(disk, fd),
    )


def _comparing(disk: Disk, fd: int) -> tuple[Fold, bool, Listing, bool]:
    """Finds how names are compared and listed, and whether modes are kept, by one file of two letters."""
    made, small = _CAPITAL, _SMALLER
    try:
        _make(disk, fd, made)
    except OSError as e:
        if e.errno not in _REFUSED:
            raise
        made, small = b"X", b"x"  # no such letters here
        _make(disk, fd, made)
    here = next(iter(disk.names(fd)), made)
    listing = Listing.AS_GIVEN
    if here != made:
        listing = Listing.LOWER if here == small else Listing.NFD
    fold = Fold.NONE
    if made == b"X":
        fold = Fold.ASCII if _is_there(disk, fd, small) else Fold.NONE
    elif _is_there(disk, fd, _SMALL):
        fold = Fold.SIMPLE if _is_there(disk, fd, _SMALLER) else Fold.ASCII
    normalises = made == _CAPITAL and _is_there(disk, fd, _DECOMPOSED)
    if fold is Fold.SIMPLE:
        _make(disk, fd, "\u00df".encode())
        fold = Fold.FULL if _is_there(disk, fd, b"ss") else Fold.SIMPLE
    return fold, normalises, listing, _keeps_modes(disk, fd, made)


def _keeps_modes(disk: Disk, fd: int, name: bytes) -> bool:
    for mode in (0o640, 0o600):
        try:
            disk.chmod(name, fd, mode)
        except OSError:
            return False
        if disk.lstat(name, fd).st_mode & 0o777 != mode:
            return False
    return True


def _links(disk: Disk, fd: int) -> bool:
    try:
        disk.symlink(b"n", b"link", fd)
    except OSError:
        return False
    return True


def _make(disk: Disk, fd: int, name: bytes) -> None:
    disk.close(disk.open(name, CREATE_FLAGS, fd))


def _takes(disk: Disk, fd: int, name: bytes) -> bool:
    """Whether a name can be made, and is listed as given. Failures other than a refusal are raised."""
    try:
        _make(disk, fd, name)
        exactly = not name.isascii() or name in disk.names(fd)  # FAT drops a dot at the end without a word
        disk.unlink(name, fd)
    except OSError as e:
        if e.errno in _REFUSED:
            return False
        raise
    return exactly


def _is_there(disk: Disk, fd: int, name: bytes) -> bool:
    try:
        return disk.look(name, fd) is not None
    except OSError:
        return False
