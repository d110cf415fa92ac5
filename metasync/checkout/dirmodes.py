"""Modes of directories during a checkout: opened where they deny writing to their owner, and set when all is done."""

from __future__ import annotations

import errno
import stat as stat_

from metasync.checkout.plan import LEFT
from metasync.local.state import State
from metasync.local.state_keys import MODES_KEY
from metasync.objects.model import split
from metasync.worktree.merge_walk import Noted
from metasync.worktree.tree import WorkTree, failed


class DirModes:
    """`wanted`: the final modes of directories; those of directories that were opened are in the journal."""

    def __init__(self, db: State, tree: WorkTree) -> None:
        self.db = db
        self.tree = tree
        self.disk = tree.disk
        self.wanted = db.get(MODES_KEY) or {}

    def unlock(self, directory: bytes) -> bool:
        """Makes directories writable for their owner until the checkout ends; False: all were."""
        changed = False
        for path in down_to(directory):
            parent, name = split(path)
            try:
                st = self.disk.lstat(name, self.tree.dir(parent)) if path else self.disk.fstat(self.tree.root_fd)
                mode = stat_.S_IMODE(st.st_mode)
                if mode & 0o700 == 0o700 or not stat_.S_ISDIR(st.st_mode):
                    continue
                if path not in self.wanted:
                    self.wanted[path] = mode
                    self.db.set(MODES_KEY, self.wanted)  # before: a killed process can't tell it
                if path:
                    self.disk.chmod(name, self.tree.dir(parent), mode | 0o700)
                else:
                    self.disk.fchmod(self.tree.root_fd, mode | 0o700)
            except OSError as e:
                if e.errno in LEFT:
                    return False
                raise failed(self.tree, path, e) from e
            changed = True
        return changed

    def set_all(self) -> list[Noted]:
        """Gives directories their modes, the inner ones first: a mode may close the way to what is below.

        -> those whose mode could not be set, with the reason. None on a file system without modes.
        """
        self.tree.forget()
        out: list[Noted] = []
        for path in sorted(self.wanted, reverse=True) if self.tree.rules.modes else ():
            mode = self.wanted[path]
            parent, name = split(path)
            try:
                if not path:
                    self.disk.fchmod(self.tree.root_fd, mode)
                    continue
                above = self.tree.dir(parent)
                st = self.disk.lstat(name, above)
                if stat_.S_ISDIR(st.st_mode) and stat_.S_IMODE(st.st_mode) != mode:
                    self.disk.chmod(name, above, mode)
            except OSError as e:
                if e.errno not in LEFT:
                    raise failed(self.tree, path, e) from e
                if e.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    out.append(Noted(path, f"its mode could not be set: {e.strerror}"))
        return out


def down_to(directory: bytes) -> list[bytes]:
    """The root and all directories down to this one."""
    out = [directory]
    while out[-1]:
        out.append(split(out[-1])[0])
    return out[::-1]
