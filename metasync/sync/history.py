"""The agreed history, read from snapshots (D1)."""

from __future__ import annotations

from metasync.codec import Reader
from metasync.errors import FormatError
from metasync.objects.model import ObjectKind, Snapshot
from metasync.objects.snapshot import decode_snapshot
from metasync.sync.push import VERSION_TAG
from metasync.sync.reports import LogItem
from metasync.sync.session import Agreed, Session


def version_of(snapshot: Snapshot) -> int:
    """The version that a snapshot was agreed as; 0 if it does not say."""
    for tag, data in snapshot.tags:
        if tag == VERSION_TAG:
            try:
                return Reader(data, "version tag").u64()
            except FormatError:
                return 0
    return 0


def log(s: Session, agreed: Agreed, *, limit: int | None) -> list[LogItem]:
    """Agreed versions, newest first, along first parents. Parents that history no longer keeps are its end."""
    names = {c.device_id: c.name for c in agreed.devices.certificates}
    contents = s.contents(agreed)
    out: list[LogItem] = []
    current = agreed.state.master
    snapshot = agreed.snapshot
    while snapshot is not None and (limit is None or len(out) < limit):
        device = names.get(snapshot.device, snapshot.device.hex()[:8])
        out.append(LogItem(version_of(snapshot), current, device, snapshot.time_ns, snapshot.message))
        if not snapshot.parents or snapshot.parents[0] not in contents.index:
            break
        current = snapshot.parents[0]
        snapshot = decode_snapshot(contents.load(ObjectKind.SNAPSHOT, [current])[current])
    return out
