"""Merges of texts for the tree merge: reads the three sides, merges by lines, keeps what was (architecture.md, D8).

What a clean merge replaces on this device must still be in a decided version some day, because the merged text is a
third one. So the bytes that were here are staged, and the next push carries them as the snapshot's second parent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from metasync.errors import DamagedError
from metasync.merge.lines import merge3
from metasync.merge.trees import TextMerge
from metasync.objects import walk
from metasync.objects.model import Entry, Ids, Kind, ObjectKind, Snapshot, encode_snapshot
from metasync.worktree.ingest import Ingest


class MergedText(NamedTuple):
    """A clean merge: its entry and bytes, and what stood here."""

    entry: Entry
    data: bytes
    was: Entry
    was_data: bytes


def merge_texts(
    requests: tuple[TextMerge, ...],
    read_here: Callable[[bytes, Entry], bytes | None],
    load: Callable[[list[Entry]], Mapping[bytes, bytes]],
    ingest: Ingest,
) -> dict[bytes, MergedText]:
    """Those requests that merge cleanly, by path. Not one whose base is lost (after `recover` it may be).

    `read_here(path, entry)`: the bytes in the working tree, None if they are not that entry's any more.
    `load(entries)`: bytes of agreed files by content hash. `ingest` names the merged bytes.
    """
    agreed = _agreed(requests, load)
    out: dict[bytes, MergedText] = {}
    for request in requests:
        ours = read_here(request.path, request.ours)
        if ours is None or request.base.content not in agreed:
            continue
        merged = merge3(agreed[request.base.content], ours, agreed[request.theirs.content])
        if merged is None:
            continue
        size, content, root = ingest.of_bytes(merged)
        entry = Entry(Kind.FILE, request.theirs.mode, request.theirs.mtime_ns, size, content, root)
        out[request.path] = MergedText(entry, merged, request.ours, ours)
    return out


def _agreed(
    requests: tuple[TextMerge, ...], load: Callable[[list[Entry]], Mapping[bytes, bytes]]
) -> Mapping[bytes, bytes]:
    """The other side's texts, and those of the bases that can be had, by content hash."""
    try:
        return load([e for r in requests for e in (r.base, r.theirs)])
    except DamagedError:
        out = dict(load([r.theirs for r in requests]))
        for request in requests:
            with contextlib.suppress(DamagedError):
                out |= load([request.base])
        return out


def kept_snapshot(
    merged: Mapping[bytes, MergedText],
    parents: tuple[bytes, ...],
    device: bytes,
    time_ns: int,
    ids: Ids,
    ingest: Ingest,
    stage: Callable[[ObjectKind, bytes, bytes], None],
) -> bytes:
    """Stages a snapshot of the files as they were before they were merged; returns its id.

    `parents`: the snapshot they were based on, and the one kept by an earlier merge that no push has carried yet.

    `ingest` has `stage` as its sink and knows no object yet, so that every blob of those files is staged too.
    """
    tree: dict[bytes, Entry] = {}
    for path, text in merged.items():
        parts = path.split(b"/")
        for depth in range(1, len(parts)):
            tree.setdefault(b"/".join(parts[:depth]), Entry(Kind.DIR, 0o755, 0, 0, b""))
        size, content, root = ingest.of_bytes(text.was_data)
        tree[path] = text.was._replace(size=size, content=content, root=root)
    root_id, nodes = walk.build(tree, ids)
    for node_id, data in nodes.items():
        stage(ObjectKind.DIR, node_id, data)
    snapshot = encode_snapshot(Snapshot(root_id, parents, device, time_ns, "before a merge by lines"))
    snapshot_id = ids.of(ObjectKind.SNAPSHOT, snapshot)
    stage(ObjectKind.SNAPSHOT, snapshot_id, snapshot)
    return snapshot_id
