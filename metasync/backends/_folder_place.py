"""Where a folder is: on which file system, and under which identity."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from metasync.backends._names import native_identity

# FAT keeps no inode numbers: the kernel makes them up at every mount.
_NO_INODES = {"vfat", "msdos", "exfat", "fat"}
# Their device number is made up at every mount; the server and its export say which file system it is.
_REMOTE = re.compile(r"nfs|cifs|smb|9p|virtiofs|afs|ceph|gluster|fuse\.")


def place_of(folder: int, root: str) -> bytes:
    """The native identity of the open `folder` at `root`: machine, file system and inode (CONSENSUS 1.1)."""
    found = os.fstat(folder)
    mount = mount_of(os.path.realpath(root), found.st_dev)
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
class Mount:
    """As the kernel lists it. `options`: those of the file system, with commas."""

    point: str
    kind: str
    source: str
    options: str = ""


def mount_of(real: str, device: int) -> Mount | None:
    """The mount on which `real` lies; None where the system has no list of them."""
    number = f"{os.major(device)}:{os.minor(device)}"
    best: Mount | None = None
    for line in _lines("/proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 5 or len(kinds) < 2 or fields[2] != number:
            continue
        point = _unescape(fields[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best.point)):
            best = Mount(point, kinds[0], _unescape(kinds[1]), kinds[2] if len(kinds) > 2 else "")
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
