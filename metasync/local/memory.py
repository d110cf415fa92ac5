"""Memory: how much there is for the paths of a tree that others wrote; a process that lives long keeps little."""

from __future__ import annotations

import contextlib
import math
import os
from functools import cache
from pathlib import Path
from typing import Any, Final

TREE_SHARE: Final = 4  # of free memory, for the paths of one tree: what is made of them takes more
POOLS: Final = 2  # of glibc's, which makes up to eight for each core, and what lies free in one is of no use to others
_ARENA_MAX: Final = -8  # glibc's malloc.h: M_ARENA_MAX
_PROC: Final = Path("/proc")
_CGROUP: Final = Path("/sys/fs/cgroup")  # of version 2, as a container sees its own


def room_for_tree() -> int:
    """Bytes of memory that the paths of one tree may take now. Asks the system: for a tree that is large indeed."""
    return _free_memory() // TREE_SHARE


def keep_little() -> None:
    """Has the C library take memory for all threads from a few pools. Called first, and of no effect but with glibc."""
    if (set_option := getattr(_libc(), "mallopt", None)) is not None:
        set_option(_ARENA_MAX, POOLS)


def give_back() -> None:
    """Gives the system back what lies free in the C library's pools: some milliseconds. Does nothing but with glibc."""
    if (trim := getattr(_libc(), "malloc_trim", None)) is not None:
        trim(0)


@cache
def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None)


def _free_memory() -> int:
    """What is left to this process, by the system, its container and `ulimit -v`, whichever is least."""
    found = [math.inf]
    with contextlib.suppress(OSError, ValueError, AttributeError):  # not on Windows
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2)
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = (_PROC / "meminfo").read_text().splitlines()
        found[1:] = [int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024]
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        found.append(int((_CGROUP / "memory.max").read_text()) - int((_CGROUP / "memory.current").read_text()))
    with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
        import resource

        soft = resource.getrlimit(resource.RLIMIT_AS)[0]
        if soft != resource.RLIM_INFINITY:
            pages = int((_PROC / "self" / "statm").read_text().split()[0])
            found.append(soft - pages * os.sysconf("SC_PAGE_SIZE"))
    least = min(found)
    return 1 << 40 if least == math.inf else max(0, int(least))
