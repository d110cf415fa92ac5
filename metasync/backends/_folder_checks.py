"""Where a folder is, and why it may not vote: another program copies it elsewhere, or its mount stores or shows late.

A program that keeps a folder in step with another place makes renamed copies of concurrent writes, so that both writers
believe they were first (providers.md, section 2). It is known by the files that it alone makes, in the folder or above,
and by its usual place. A mount is known by its kind. Neither list can be complete: what is not on it counts as a plain
disk.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import Final

from metasync.backends.names import native_identity

_MARKS: Final = {
    ".dropbox.cache": "Dropbox",
    ".maestral.cache": "Maestral",
    ".mignore": "Maestral",
    ".stfolder": "Syncthing",
    ".stignore": "Syncthing",
    ".stversions": "Syncthing",
    ".849C9593-D756-4E56-8D6E-42412F2A707B": "OneDrive",
    ".tmp.drivedownload": "Google Drive",
    ".tmp.driveupload": "Google Drive",
    ".csync_journal.db": "ownCloud",
    ".megaignore": "MEGA",
    ".debris": "MEGA",
    ".insync-trash": "Insync",
    ".SynologyWorkingDirectory": "Synology Drive",
    ".tresorit": "Tresorit",
    ".sync.ffs_db": "FreeFileSync",
}
_CLIENT_LOGS: Final = (".owncloudsync.log", ".nextcloudsync.log")
_FILES: Final = {  # whose names alone say nothing: others have a `.sync`, every home may have a folder `.dropbox`
    ".sync/ID": "Resilio Sync",
    ".sync/IgnoreList": "Resilio Sync",
    ".sync/core.log": "Yandex.Disk",
    ".dropbox": "Dropbox",
}
_DEFAULTS: Final = frozenset(
    {"Dropbox", "OneDrive", "Google Drive", "GoogleDrive", "Nextcloud", "ownCloud", "MEGA", "MEGAsync", "pCloud Sync"}
    | {"pCloudDrive", "pCloud Drive", "Box Sync", "Yandex.Disk", "iCloud Drive", "iCloudDrive", "ProtonDrive"}
    | {"Proton Drive", "SynologyDrive", "Insync", "Resilio Sync"}
)
"""What folders directly below a home are called, perhaps with an account behind it: `OneDrive - Work`."""
_HOMES: Final = ("/home", "/Users")
_MACOS: Final = (("/Library/CloudStorage/", "a cloud storage app"), ("/Library/Mobile Documents/", "iCloud Drive"))

# In user space, and nothing but another form of a disk that is here.
_LOCAL_FUSE: Final = (
    r"fuseblk|fuse\.(ntfs(-3g)?|lowntfs-3g|exfat(-fuse)?|gocryptfs|encfs|cryfs|securefs|bindfs|mergerfs|unionfs(-fuse)?"
    r"|fuse-overlayfs|ext2|fuse2fs|apfs(-fuse)?|zfs(-fuse)?|squashfuse|vmhgfs-fuse)"
)
_LATE_FUSE: Final = {
    r"fuse\.rclone": "rclone stores what is written to its mounts later, and shows late what others wrote",
    r"fuse\.sshfs": "sshfs answers from a memory of its own; reached as sftp://user@host/path the same folder may vote",
    r"fuse\.(s3fs|goofys|mount-s3|gcsfuse|blobfuse2?|geesefs)": (
        "a bucket that is mounted as a folder has no atomic create; give the bucket's own URL"
    ),
    r"fuse\.(onedriver|google-drive-ocamlfuse|gdfs|pcloud|insync|gvfsd-fuse|boxfs|dropbox.*)": (
        "a cloud drive stores what is written to it later, and shows late what others wrote"
    ),
}
_DAVFS: Final = "davfs2 stores what is written to it later; reached as webdav://user@host/path the same folder may vote"


def doubt(root: str) -> str:
    """Why the folder at `root` may hold data and not vote, as a clause; "" where nothing speaks against it."""
    real = os.path.realpath(root)
    return _copied(real) or _mounted(real)


def _copied(real: str) -> str:
    found = _program(real)
    if found is None:
        return ""
    program, folder = found
    return f"{program} keeps {folder} in step with other places, and makes renamed copies where two have written"


def _program(real: str) -> tuple[str, str] | None:
    """Who copies this folder elsewhere, and which folder that holds it."""
    for part, program in _MACOS:
        if part in f"{real}/":
            return program, real
    home = os.path.realpath(os.path.expanduser("~"))
    folder = real
    while True:
        program = _by_marks(folder)
        if program:
            return program, folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        if above == home or os.path.dirname(above) in _HOMES:
            name = os.path.basename(folder)
            for default in (name, *(name.partition(end)[0] for end in (" - ", " (", "-"))):
                if default in _DEFAULTS:
                    return default, folder
        folder = above


def _by_marks(folder: str) -> str:
    try:
        names = {name for name in os.listdir(folder) if name.startswith(".")}
    except OSError:  # not readable, or not there: the open that follows says so
        return ""
    for name in sorted(names & _MARKS.keys()):
        return _MARKS[name]
    for path, program in _FILES.items():
        if path.partition("/")[0] in names and os.path.isfile(os.path.join(folder, path)):
            return program
    for name in names:
        if (name.startswith((".sync_", "._sync_")) and name.endswith(".db")) or name.startswith(_CLIENT_LOGS):
            return "the Nextcloud or ownCloud client"
        if name.endswith(".icloud") and name != ".icloud":
            return "iCloud Drive"
    return ""


def _mounted(real: str) -> str:
    try:
        found = os.stat(real)
    except OSError:
        return ""
    if os.major(found.st_dev) != 0 or not stat.S_ISDIR(found.st_mode):  # a disk: nothing is mounted from elsewhere
        return ""
    mount = mount_of(real, found.st_dev)
    return "" if mount is None else late(mount)


def late(mount: Mount) -> str:
    """Why what is stored on this mount is stored, or shown to others, too late to agree by; "" if it is not."""
    if mount.kind in ("nfs", "nfs4"):
        return _late_nfs({*mount.options.split(",")})
    if not mount.kind.startswith("fuse") or re.fullmatch(_LOCAL_FUSE, mount.kind):
        return ""
    if mount.kind == "fuse" and mount.source.startswith(("http://", "https://")):
        return _DAVFS
    kind = "fuse.pcloud" if mount.source.lower().startswith("pcloud") else mount.kind
    for pattern, why in _LATE_FUSE.items():
        if re.fullmatch(pattern, kind):
            return why
    return f"it is not known what the file system {mount.kind} ({mount.source}) promises where two write at once"


def _late_nfs(options: set[str]) -> str:
    """Version 3 tells a folder's change by its time alone, in ticks of milliseconds: an object that was created in the
    tick of a look stays unseen for up to a minute. Later versions ask the server whenever a folder is opened."""
    if options & {"lookupcache=none", "lookupcache=pos", "lookupcache=positive", "noac"}:
        return ""
    if "nocto" in options or any(o.startswith(("vers=2", "vers=3")) for o in options):
        return "NFS, as it is mounted, may show late what others wrote; mount it with vers=4.2 or lookupcache=none"
    return ""


# FAT keeps no inode numbers: the kernel makes them up at every mount.
_NO_INODES = {"vfat", "msdos", "exfat", "fat"}
# Their device number is made up at every mount; the server and its export say which file system it is.
_REMOTE = re.compile(r"nfs|cifs|smb|9p|virtiofs|afs|ceph|gluster|fuse\.")


def place_of(folder: int, root: str) -> bytes:
    """The native identity of the open `folder` at `root`: machine, file system and inode (consensus.md, rule 1.1)."""
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
