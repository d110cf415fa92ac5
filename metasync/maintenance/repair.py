"""Stores anew what the newest version needs and no pack holds any more, as far as this folder or its cache has it."""

from __future__ import annotations

from dataclasses import replace

from metasync.consensus import Ref
from metasync.errors import MetaSyncError
from metasync.events import Notice
from metasync.objects import walk
from metasync.objects.model import Entry, Kind, ObjectKind
from metasync.session.session import Agreed, Session
from metasync.transfer.contents import Contents
from metasync.transfer.upload import Upload, known_in
from metasync.worktree.ingest import reread


def give_back(s: Session, agreed: Agreed) -> tuple[tuple[Ref | None, int], list[bytes]]:
    """-> (the index with what was stored, bytes stored), and files that cannot be had."""
    if agreed.tree_root is None:
        return (None, 0), []
    upload = Upload(
        s.transfer,
        replace(s.form, epoch=agreed.state.epoch),
        agreed.state.gen,
        runner=s.runtime,
        listener=s.listener,
        entropy=s.entropy,
        begin=lambda: lambda: None,
    )
    known = known_in(agreed.index, upload)
    contents = s.contents(agreed)
    try:
        tree = s.flat(agreed, contents)
        snapshot = contents.load(ObjectKind.SNAPSHOT, [agreed.state.master])[agreed.state.master]
    except MetaSyncError as e:
        s.listener(Notice(f"the newest version cannot be read: {e.message}", warning=True))
        return (None, 0), []
    missing = _store_files(s, agreed, tree, upload)
    _, nodes = walk.build(tree, s.ids)
    for object_id, data in nodes.items():
        if not known(object_id):
            upload.add(ObjectKind.DIR, object_id, data)
    if not known(agreed.state.master):
        upload.add(ObjectKind.SNAPSHOT, agreed.state.master, snapshot)
    upload.finish()
    stored = s.indexes.store(agreed.state, agreed.root, agreed.segments, upload.index_segments())
    return (stored, upload.bytes_stored), missing


def _store_files(s: Session, agreed: Agreed, tree: dict[bytes, Entry], upload: Upload) -> list[bytes]:
    """-> the files whose bytes are in no pack, and that do not stand here as they were agreed."""
    known = known_in(agreed.index, upload)
    ingest = s.ingest(sink=upload.add, known=known)
    contents = s.contents(agreed)
    missing = []
    for path, entry in sorted(tree.items()):
        held = entry.kind is not Kind.FILE or not entry.size or _is_held(contents, entry)
        if not held and not reread(s.tree, path, entry, ingest):
            missing.append(path)
    return missing


def _is_held(contents: Contents, entry: Entry) -> bool:
    """Whether packs hold all that a file is made of."""
    if not entry.root:
        return entry.content in contents.index
    if entry.root not in contents.index:
        return False
    try:
        pieces = contents.walk(walk.chunks((entry.root,)))[entry.root]
    except MetaSyncError:
        return False
    return all(c.id in contents.index for c in pieces)
