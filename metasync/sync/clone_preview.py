"""What a clone would bring, and whether the disk has room for it: `clone --dry-run`.

Everything up to the first change of the workspace is done in a temporary folder, which is removed again with the keys
that were made there: no device is admitted, no invitation is used up, and the folder that was named is not touched.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from metasync.events import Listener
from metasync.keys.slots import fingerprint_words
from metasync.local.state import LocalDb
from metasync.members import clone_invitation, clone_passphrase
from metasync.reports.start import ClonePreview
from metasync.runtime.sizes import SMALL_FILE_BYTES
from metasync.session import agreement, lost_state
from metasync.session.connections import Connections, Machine
from metasync.session.folder import DB_FILE, STATE_DIR, drop_secret
from metasync.session.session import Operations, Session
from metasync.sync.first_checkout import walked


def preview(
    folder: Path,
    name: str,
    backends: Sequence[str],
    passphrase: str,
    invite: str | None,
    on_event: Listener,
    trust_hosts: clone_invitation.Trust = False,
    *,
    merge: bool = False,
) -> ClonePreview:
    """Finds the newest version, and counts its files. Changes nothing; raises what `Workspace.clone` raises."""
    lost_state.cleared(folder, name or "invited", merge=merge)
    with tempfile.TemporaryDirectory(prefix="metasync-clone-", ignore_cleanup_errors=True) as top:
        place = Path(top) / "folder"
        opened = None
        if invite is not None:
            clone_invitation.accept(place, invite, backends, on_event, trust_hosts)
        else:
            opened = clone_passphrase.begin(place, name, backends, passphrase, None, None, on_event)
        with contextlib.closing(LocalDb.open(place / STATE_DIR / DB_FILE)) as db:
            try:
                work = Operations(Connections(place, db, Machine(), opened), lambda: on_event)
                with contextlib.closing(work), work.session("clone") as s:
                    return _counted(s, folder)
            finally:
                drop_secret(place / STATE_DIR, db)


def _counted(s: Session, folder: Path) -> ClonePreview:
    agreed = agreement.newest(s)
    files = size_bytes = 0
    if agreed.tree_root is not None:
        tree = walked(s.contents(agreed), agreed)
        files, size_bytes = tree.files, tree.size_bytes
    there = next(p for p in (folder, *folder.parents) if p.is_dir())
    needed, free = size_bytes + files * SMALL_FILE_BYTES, shutil.disk_usage(there).free
    return ClonePreview(
        str(folder), s.name, agreed.state.v, agreed.state.fingerprint, files, size_bytes, needed, free, needed <= free,
        dict(s.down), fingerprint_words(agreed.state.hash),
    )  # fmt: skip
