"""Reads the rule files of a working tree while it is walked, and remembers what they said (see `ignore`).

A rule file that can't be read must not pass for an empty one: what it ignored would be pushed, secrets among it. So its
rules of the last scan still count; without them, nothing new in its directory is taken in. Nothing below it is taken
for deleted until it can be read again: the new rules may say that it stays.

The rules of the last scan also tell what went missing while it was ignored: that was not deleted, stays agreed when the
rule goes, and is brought back (`deletions`).
"""

from __future__ import annotations

import os
import stat as stat_
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from metasync.local.state import State
from metasync.local.state_keys import RULES_KEY
from metasync.worktree.disk import READ_FLAGS
from metasync.worktree.index import is_unchanged
from metasync.worktree.names import IGNORE_NAME
from metasync.worktree.tree import WorkTree

if TYPE_CHECKING:
    from metasync.worktree.ignore import Names, Ruling

RULES_BYTES_MAX: Final = 1 << 16  # some 3,000 patterns; each costs every name of the folder a comparison
READS_MAX: Final = 3  # of a file that changes while it is read
_NOTHING_NEW: Final = b"*"


class _Unread(Exception):  # noqa: N818  a signal, not an error
    """Why a rule file can't be used."""


class RuleFiles:
    """The rules of one scan. `remembered`: the bytes of the rule files at the last scan, by directory.

    texts     the bytes at this one, to be stored with its rows
    warnings  sentences on lines and files that could not be used
    """

    def __init__(self, tree: WorkTree, remembered: Mapping[bytes, bytes]) -> None:
        self._tree = tree
        self.remembered = remembered
        self._found = False
        self._unknown: list[bytes] = []  # directories whose rule file can't be read, each with a slash behind it
        self.texts: dict[bytes, bytes] = {}
        self.warnings: list[str] = []

    def names(self, directory: bytes, *, has_file: bool) -> Names | None:
        """Reads a directory's rule file; -> the rules for its names, None if no rule file counts."""
        if has_file:
            shown = os.fsdecode(directory + b"/" + IGNORE_NAME if directory else IGNORE_NAME)
            try:
                text = self._read(directory)
            except _Unread as e:
                text = self._last(directory, f"{shown} can't be used: {e}")
            else:
                self.texts[directory] = text
            from metasync.worktree.ignore import parse  # loaded where there is a rule file: most folders have none

            rules = parse(text)
            self.warnings += rules.warnings(shown)
            self._now.add(directory, rules)
            self._found = True
        return self._now.names(directory) if self._found else None

    @cached_property
    def _now(self) -> Ruling:
        from metasync.worktree.ignore import Ruling

        return Ruling()

    @cached_property
    def _before(self) -> Ruling:
        from metasync.worktree.ignore import Ruling, parse

        return Ruling({directory: parse(text) for directory, text in self.remembered.items()})

    def has_changed(self, directory: bytes) -> bool:
        """Whether a directory's rule file, which has been read, says something else than it did."""
        return self.texts.get(directory) != self.remembered.get(directory)

    def ignores(self, path: bytes, is_dir: bool) -> bool:
        """Whether a path is ignored now. All rule files on the way to it must have been read."""
        return self._now.ignores(path, is_dir)

    def may_ignore(self, path: bytes, is_dir: bool) -> bool:
        """Whether a path is ignored now, or lies below a rule file that can't be read."""
        return any(path.startswith(directory) for directory in self._unknown) or self.ignores(path, is_dir)

    def ignored_before(self, path: bytes, is_dir: bool) -> bool:
        """Whether the last scan ignored a path."""
        return self._before.ignores(path, is_dir)

    def _last(self, directory: bytes, problem: str) -> bytes:
        """The text that counts in place of a rule file that can't be read."""
        self._unknown.append(directory + b"/" if directory else b"")
        where = os.fsdecode(directory) if directory else "this folder"
        text = self.remembered.get(directory)
        if text is None:
            says = f"what it ignores is not known, so nothing new in {where} is pushed"
        else:
            says = "the rules that it had last still count"
            self.texts[directory] = text
        self.warnings.append(f"{problem}; {says}, and nothing there is taken for deleted")
        return _NOTHING_NEW if text is None else text

    def _read(self, directory: bytes) -> bytes:
        disk = self._tree.disk
        for _ in range(READS_MAX):
            try:
                with disk.opened(IGNORE_NAME, READ_FLAGS, self._tree.dir(directory)) as fd:
                    st = disk.fstat(fd)
                    if not stat_.S_ISREG(st.st_mode):
                        raise _Unread("it is not a file")
                    if st.st_size > RULES_BYTES_MAX:
                        raise _Unread(f"it has {st.st_size:,} bytes, and at most {RULES_BYTES_MAX:,} are read")
                    data = disk.read(fd, RULES_BYTES_MAX + 1, 0)
                    after = disk.fstat(fd)
            except OSError as e:
                link = _is_link(self._tree, directory)
                raise _Unread("it is a symlink, and those are not followed" if link else e.strerror or str(e)) from e
            if len(data) == st.st_size and is_unchanged(st, after, ctime=True):
                return data
        raise _Unread("it changes all the time")


def _is_link(tree: WorkTree, directory: bytes) -> bool:
    try:
        return stat_.S_ISLNK(tree.disk.lstat(IGNORE_NAME, tree.dir(directory)).st_mode)
    except OSError:
        return False


def load_texts(db: State) -> dict[bytes, bytes]:
    """The rule files of the last scan that was stored, by directory. `WorkspaceError`: the local state is damaged."""
    return db.get(RULES_KEY) or {}


def store_texts(db: State, texts: Mapping[bytes, bytes]) -> None:
    """Remembers rule files for the next scan."""
    db.update(RULES_KEY, dict(texts) or None)
