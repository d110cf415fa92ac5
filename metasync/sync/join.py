"""Finds a workspace on backends by its passphrase, as a new device does (`metasync clone`, D11).

Nothing on a backend says which workspaces it holds: a key slot that opens does. "Wrong passphrase" is said only after
every reachable slot was tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from metasync.effects import Op, Reply, Task
from metasync.errors import (
    BackendError,
    DamagedError,
    FormatError,
    PassphraseError,
    UnreachableError,
    UpgradeError,
    WorkspaceError,
)
from metasync.keys.derive import sha256
from metasync.keys.ring import RING_BYTES_MAX, WorkspaceKeys, open_admin, open_ring, read_ring
from metasync.keys.slots import RECOVERY, SLOT_BYTES_MAX, SlotSecret, normalise_phrase, open_slot, read_slot
from metasync.sync.found import each

FOLDERS_MAX: Final = 256  # workspaces on one backend whose slots are tried
SLOTS_MAX: Final = 16  # per workspace
TRIES_MAX: Final = 512  # slots opened in all: each costs a fifth of a second and 64 MiB
_FOLDER = re.compile(r"[0-9a-f]{32}")
_SLOT = re.compile(r"slot-[0-9a-f]{64}")
_RING = re.compile(r"ring-([0-9]{1,9})-([0-9a-f]{64})")

Run = Callable[[Task], Mapping[str, Reply]]


@dataclass
class Found:
    """What a passphrase opened. `folders`: the workspace's random folder by backend; `names`: all that it opened."""

    secret: SlotSecret | None = None
    folders: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    tried: int = 0
    failed: dict[str, BackendError] = field(default_factory=dict)
    newer: UpgradeError | None = None


def search(backends: list[str], name: str, passphrase: str, run: Run) -> Found:
    """Tries the passphrase on every key slot of every backend. `run` runs one `Op` per backend at a time."""
    out = Found()
    folders: dict[str, list[str]] = {}
    for n, reply in run(each({n: Op(n, "list", "") for n in backends})).items():
        if reply.error is not None:
            out.failed[n] = reply.error
        else:
            folders[n] = [e.name for e in reply.value if e.size is None and _FOLDER.fullmatch(e.name)][:FOLDERS_MAX]
    opened: dict[bytes, SlotSecret | None] = {}
    for n in sorted(folders):
        for folder in folders[n]:
            secret = _try_folder(n, folder, passphrase, run, opened, out)
            if secret is None:
                continue
            out.names.add(secret.name)
            if secret.name == name and (out.secret is None or out.secret.ns_id == secret.ns_id):
                out.secret = secret
                out.folders[n] = folder
    return out


def _try_folder(
    n: str, folder: str, passphrase: str, run: Run, opened: dict[bytes, SlotSecret | None], out: Found
) -> SlotSecret | None:
    """The secret of the first slot in a folder that opens."""
    reply = run(each({n: Op(n, "list", f"{folder}/keys")}))[n]
    if reply.error is not None:
        out.failed[n] = reply.error
        return None
    slots = [e.name for e in reply.value if _SLOT.fullmatch(e.name)][:SLOTS_MAX]
    paths = [f"{folder}/keys/{slot}" for slot in slots]
    replies = run(each({path: Op(n, "get", path, max_bytes=SLOT_BYTES_MAX) for path in paths}))
    found: SlotSecret | None = None
    for path in paths:
        data = replies[path].value
        if replies[path].error is not None or sha256(data).hex() != path.rpartition("-")[2]:
            continue
        if data not in opened and len(opened) < TRIES_MAX:
            opened[data] = _open(data, passphrase, out)
        found = found or opened.get(data)
    return found


def _open(data: bytes, passphrase: str, out: Found) -> SlotSecret | None:
    out.tried += 1
    try:
        recovery = read_slot(data).kind == RECOVERY
        return open_slot(data, normalise_phrase(passphrase) if recovery else passphrase)
    except UpgradeError as e:
        out.newer = e
        return None
    except (PassphraseError, FormatError):
        return None


def require(out: Found, name: str, backends: list[str]) -> SlotSecret:
    """The secret that was searched for, or the error that says why there is none."""
    if out.secret is not None:
        return out.secret
    if len(out.failed) == len(backends):
        reasons = "; ".join(f"{n}: {e.message}" for n, e in sorted(out.failed.items()))
        raise UnreachableError(f"none of the backends answers ({reasons})", next_step="Check the URLs, then run again.")
    if out.names:
        raise WorkspaceError(
            f"the passphrase opens no workspace named {name!r} there, only {', '.join(sorted(map(repr, out.names)))}",
            next_step="Give one of these names.",
        )
    if out.newer is not None:
        raise out.newer
    if out.tried:
        raise PassphraseError(
            f"wrong passphrase: it opens none of the {out.tried} key slots on {', '.join(sorted(backends))}",
            next_step="Try again, or use the recovery phrase in its place.",
        )
    raise WorkspaceError(
        f"there is no workspace on {', '.join(sorted(backends))}",
        next_step="Check the URLs; `metasync init` makes a new workspace.",
    )


def open_rings(out: Found, secret: SlotSecret, run: Run) -> tuple[WorkspaceKeys, bytes]:
    """The newest keys, and the admin's private key, from the keyrings on the backends found. `DamagedError` if none."""
    rings: dict[bytes, int] = {}
    newer: UpgradeError | None = None
    for n, folder in sorted(out.folders.items()):
        reply = run(each({n: Op(n, "list", f"{folder}/keys")}))[n]
        names = [e.name for e in reply.value or () if _RING.fullmatch(e.name)]
        paths = [f"{folder}/keys/{ring}" for ring in names]
        replies = run(each({path: Op(n, "get", path, max_bytes=RING_BYTES_MAX) for path in paths}))
        for path in paths:
            data = replies[path].value
            if replies[path].error is None and sha256(data).hex() == path.rpartition("-")[2]:
                try:
                    rings[data] = read_ring(data, secret.ns_id).epoch
                except UpgradeError as e:
                    newer = e
                except FormatError:
                    continue
    for data in sorted(rings, key=lambda d: -rings[d]):
        try:
            return open_ring(data, secret.private, secret.ns_id), open_admin(data, secret.private, secret.ns_id)
        except UpgradeError as e:
            newer = e
        except (FormatError, PassphraseError):
            continue
    if newer is not None:
        raise newer
    raise DamagedError(
        "no keyring of this workspace is intact on the backends given", next_step="Give more of its backends."
    )
