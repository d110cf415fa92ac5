"""Where a folder is: on which file system, under which identity, and whether another program copies it elsewhere."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from metasync.backends._names import native_identity

# Only what those programs alone put there. `.dropbox` is left out: it is also the settings folder in every home.
_MARKERS = (
    ".dropbox.cache",  # Dropbox
    ".stfolder",  # Syncthing
    ".849C9593-D756-4E56-8D6E-42412F2A707B",  # OneDrive
    ".tmp.drivedownload",  # Google Drive
    ".tmp.driveupload",
    ".owncloudsync.log",  # ownCloud, Nextcloud
    ".nextcloudsync.log",
    ".sync_*.db",
    "._sync_*.db",
)
_RESILIO = (".sync/ID", ".sync/IgnoreList")
_MACOS = ("/Library/CloudStorage/", "/Library/Mobile Documents/")

# FAT keeps no inode numbers: the kernel makes them up at every mount.
_NO_INODES = {"vfat", "msdos", "exfat", "fat"}
# Their device number is made up at every mount; the server and its export say which file system it is.
_REMOTE = re.compile(r"nfs|cifs|smb|9p|virtiofs|afs|ceph|gluster|fuse\.")


def is_synced_by_others(root: str) -> bool:
    """Whether `root` or a folder above it bears the mark of a program that keeps it in step with another place."""
    real = os.path.realpath(root)
    if any(part in f"{real}/" for part in _MACOS):
        return True
    folder = real
    while True:
        try:
            names = os.listdir(folder)
        except OSError:  # not readable, or not there: the open that follows says so
            names = []
        if any(fnmatchcase(name, marker) for name in names if name.startswith(".") for marker in _MARKERS):
            return True
        if ".sync" in names and any(os.path.exists(os.path.join(folder, marker)) for marker in _RESILIO):
            return True
        above = os.path.dirname(folder)
        if above == folder:
            return False
        folder = above


def place_of(folder: int, root: str) -> bytes:
    """The native identity of the open `folder` at `root`: machine, file system and inode (CONSENSUS 1.1)."""
    found = os.fstat(folder)
    mount = _mount_of(os.path.realpath(root), found.st_dev)
    if mount is not None and _REMOTE.match(mount.kind):
        file_system = mount.source
    else:
        file_system = _volume_id(found.st_dev) or _file_system_number(folder) or f"device {found.st_dev}"
    if mount is not None and mount.kind in _NO_INODES:
        inside = os.path.relpath(os.path.realpath(root), mount.point)
    else:
        inside = str(found.st_ino)
    return native_identity(f"machine\0{_machine()}", f"{file_system}\0{inside}")


@dataclass(frozen=True, slots=True)
class _Mount:
    point: str
    kind: str
    source: str


def _mount_of(real: str, device: int) -> _Mount | None:
    """The mount `real` lies on; None where the system has no list of them."""
    number = f"{os.major(device)}:{os.minor(device)}"
    best: _Mount | None = None
    for line in _lines("/proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 5 or len(kinds) < 2 or fields[2] != number:
            continue
        point = _unescape(fields[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best.point)):
            best = _Mount(point=point, kind=kinds[0], source=kinds[1])
    return best


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _volume_id(device: int) -> str:
    """The id written on the volume itself: it stays when the drive gets another device number."""
    folder = "/dev/disk/by-uuid"
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ""
    for name in names:
        try:
            if os.stat(os.path.join(folder, name)).st_rdev == device:
                return f"volume {name}"
        except OSError:  # a link to a drive that has just gone
            continue
    return ""


def _file_system_number(folder: int) -> str:
    number = os.fstatvfs(folder).f_fsid
    return f"number {number}" if number else ""


def _machine() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        for line in _lines(path):
            if line.strip():
                return line.strip()
    import socket

    return socket.gethostname()


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(1 << 20).splitlines()
    except OSError:
        return []
