"""Which files were renamed, told by their bytes: a path is gone, and another one came with the same content. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from metasync.objects.model import Entry, Kind, split


def may_be_renamed(entry: Entry | None) -> bool:
    """Whether an entry can be known again by its content: empty files are all alike."""
    return entry is not None and entry.kind is Kind.FILE and entry.size > 0


def renames(
    gone: Iterable[tuple[bytes, Entry]], new: Iterable[tuple[bytes, Entry]], *, sure: bool
) -> dict[bytes, bytes]:
    """New path -> old path, of files that `may_be_renamed`.

    Where several files of one content are gone or new, those of equal names are a pair. `sure`: no others are, and no
    names either that are there twice; else the rest is paired in the order of paths.
    """
    left: dict[tuple[int, bytes], list[bytes]] = defaultdict(list)
    for path, entry in gone:
        left[entry.size, entry.content].append(path)
    came: dict[tuple[int, bytes], list[bytes]] = defaultdict(list)
    for path, entry in new:
        if (entry.size, entry.content) in left:
            came[entry.size, entry.content].append(path)
    out: dict[bytes, bytes] = {}
    for key, paths in came.items():
        out.update(_sure(left[key], paths) if sure else _likely(left[key], paths))
    return out


def _sure(gone: list[bytes], new: list[bytes]) -> dict[bytes, bytes]:
    if len(gone) == len(new) == 1:
        return {new[0]: gone[0]}
    by_name = [defaultdict[bytes, list[bytes]](list), defaultdict[bytes, list[bytes]](list)]
    for names, paths in zip(by_name, (gone, new), strict=True):
        for path in paths:
            names[split(path)[1]].append(path)
    old = by_name[0]
    return {p[0]: old[name][0] for name, p in by_name[1].items() if len(p) == 1 and len(old.get(name, ())) == 1}


def _likely(gone: list[bytes], new: list[bytes]) -> dict[bytes, bytes]:
    out: dict[bytes, bytes] = {}
    left = dict.fromkeys(sorted(gone))
    by_name = {split(old)[1]: old for old in reversed(left)}
    rest = []
    for path in sorted(new):
        old = by_name.pop(split(path)[1], None)
        if old is None:
            rest.append(path)
        else:
            out[path] = old
            del left[old]
    out.update(zip(rest, left, strict=False))
    return out
