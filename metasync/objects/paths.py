"""Paths in a tree: bytes, `/`-separated, relative to its root."""

from __future__ import annotations


def split(path: bytes) -> tuple[bytes, bytes]:
    """The directory a path lies in (b"" for the root) and its name there."""
    parent, _, name = path.rpartition(b"/")
    return parent, name
