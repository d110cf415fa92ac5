"""Paths in the folder as callers name them, and as trees do: bytes, relative to the root, joined by b"/"."""

from __future__ import annotations

import os
from typing import TypeAlias

from metasync.errors import UsageError

TreePath: TypeAlias = str | bytes | os.PathLike[str]
"""A path relative to the workspace's folder; "" or "." is the folder itself."""


def tree_path(path: TreePath) -> bytes:
    """The path as trees have it. `UsageError` if it is absolute or leads out of the folder."""
    raw = os.fsencode(path)
    parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
    if raw.startswith(b"/") or b".." in parts or b"\0" in raw:
        raise UsageError(
            f"{os.fsdecode(raw)} is no path inside the workspace",
            next_step="Give it relative to the workspace's folder.",
        )
    return b"/".join(parts)


def path_from(root: str | os.PathLike[str], here: str | os.PathLike[str], given: str) -> bytes:
    """What `given` names in the workspace at `root` for somebody who stands in `here`. `UsageError`: it is outside.

    Names may be of things that are not there; `..` is taken as it is written.
    """
    top = os.path.abspath(root)
    wanted = os.path.normpath(os.path.join(os.path.abspath(here), given))
    for base, path in ((top, wanted), (os.path.realpath(top), _real_above(wanted))):
        if path == base or path.startswith(base.rstrip("/") + "/"):
            return tree_path(os.path.relpath(path, base))
    raise UsageError(f"{given} is outside of the workspace {top}", next_step="Name a path inside it.")


def _real_above(path: str) -> str:
    """The path with links resolved on the way to it, and not at its end."""
    above, name = os.path.split(path)
    return os.path.join(os.path.realpath(above), name)
