"""A file whose content is the agreed one already gets the agreed mode and mtime, in its place."""

from __future__ import annotations

import os
import stat as stat_

from metasync.sync.fsio import WorkTree, split
from metasync.sync.plan import Change
from metasync.sync.rows import same_stat


def touch(tree: WorkTree, change: Change, *, again: bool) -> bool:
    """Sets mode and mtime of a file if it still is what was scanned; `again`: or what a run that ended made of it.

    False: it was deleted or changed here since, and the next scan finds that.
    """
    disk = tree.disk
    parent, name = split(change.path)
    above = tree.dir(parent)
    new, expected = change.new, change.expected
    st = disk.look(name, above)
    if new is None or expected is None or st is None:
        return False
    if not same_stat(expected, st) and not (again and _is_half_touched(change, st)):
        return False
    # Only what is to change: a disk without modes (FAT) shows others than were agreed, and can't take them.
    try:
        if tree.rules.modes and new.mode != expected.entry.mode and stat_.S_IMODE(st.st_mode) != new.mode:
            disk.chmod(name, above, new.mode)
        if new.mtime_ns != expected.entry.mtime_ns and st.st_mtime_ns != new.mtime_ns:
            disk.utime(name, above, new.mtime_ns)
    except FileNotFoundError:
        return False  # deleted here this very moment
    return True


def _is_half_touched(change: Change, st: os.stat_result) -> bool:
    """What a run that ended between two calls left: each value the old or the new one."""
    new, expected = change.new, change.expected
    if new is None or expected is None:
        return False
    return (
        (st.st_ino, st.st_dev, st.st_size) == (expected.ino, expected.dev, expected.size)
        and st.st_mtime_ns in (expected.mtime_ns, new.mtime_ns)
        and stat_.S_IFMT(st.st_mode) == stat_.S_IFMT(expected.mode)
        and stat_.S_IMODE(st.st_mode) in (stat_.S_IMODE(expected.mode), new.mode)
    )
