"""Which folders may vote: what copies them elsewhere, and how they are mounted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from metasync.backends import _folder_checks
from metasync.backends._folder_checks import Mount, doubt, late
from metasync.backends.api import ExplainsForm
from metasync.backends.folder import StorageOnlyFolderBackend
from metasync.backends.registry import open_backend, parse_url
from metasync.testing.counting import CountingBackend
from metasync.testing.faults import FaultyBackend

MARKS = {
    ".stfolder/": "Syncthing",
    ".stignore": "Syncthing",
    ".dropbox.cache/": "Dropbox",
    ".dropbox": "Dropbox",
    ".sync_1a2b.db": "the Nextcloud or ownCloud client",
    "._sync_9f.db": "the Nextcloud or ownCloud client",
    ".owncloudsync.log.1": "the Nextcloud or ownCloud client",
    ".csync_journal.db": "ownCloud",
    ".tmp.drivedownload/": "Google Drive",
    ".849C9593-D756-4E56-8D6E-42412F2A707B": "OneDrive",
    ".letter.txt.icloud": "iCloud Drive",
    ".sync/ID": "Resilio Sync",
    ".sync/core.log": "Yandex.Disk",
    ".megaignore": "MEGA",
    ".debris/": "MEGA",
    ".insync-trash/": "Insync",
    ".maestral.cache/": "Maestral",
    ".sync.ffs_db": "FreeFileSync",
}


@pytest.mark.few
@pytest.mark.parametrize("marker", MARKS)
@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_folder_synced_by_others_never_votes(tmp_path: Path, marker: str, below: str) -> None:
    if marker.endswith("/"):
        (tmp_path / marker).mkdir()
    else:
        (tmp_path / marker).parent.mkdir(exist_ok=True)
        (tmp_path / marker).touch()
    backend = open_backend(parse_url(f"file://{tmp_path}/{below}"), create_root=True)
    assert isinstance(backend, StorageOnlyFolderBackend)
    assert isinstance(backend, ExplainsForm)
    assert backend.form_reason.startswith(f"{MARKS[marker]} keeps {tmp_path} in step with other places")
    assert backend.form == "none"
    assert FaultyBackend(backend).form == CountingBackend(backend).form == "none"
    assert CountingBackend(backend).form_reason == backend.form_reason


def test_a_link_into_a_synced_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "synced/.stfolder").mkdir(parents=True)
    (tmp_path / "synced/inside").mkdir()
    (tmp_path / "plain").symlink_to(tmp_path / "synced/inside")
    assert open_backend(parse_url(f"file://{tmp_path}/plain")).form == "none"


@pytest.mark.parametrize(
    ("folder", "program"),
    [
        ("Dropbox/x", "Dropbox"),
        ("Dropbox (Personal)", "Dropbox"),
        ("OneDrive - Work Ltd/x", "OneDrive"),
        ("Google Drive", "Google Drive"),
        ("pCloudDrive/a/b", "pCloudDrive"),
        ("Insync/anna@example.org/Drive", "Insync"),
        ("Library/CloudStorage/Box-Box/x", "a cloud storage app"),
        ("Library/Mobile Documents/x", "iCloud Drive"),
        ("Dropboxes", ""),
        ("work/Dropbox", ""),
        ("OneDriveOld", ""),
        ("Box", ""),
        ("Documents", ""),
    ],
)
def test_where_programs_put_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, program: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".dropbox").mkdir()  # settings: nothing of this folder's
    (tmp_path / ".dropbox/info.json").touch()
    (tmp_path / folder).mkdir(parents=True)
    why = doubt(str(tmp_path / folder))
    assert why.startswith(f"{program} keeps") if program else why == ""


@pytest.mark.parametrize(
    ("kind", "source", "options", "said"),
    [
        ("ext4", "/dev/sda1", "rw", ""),
        ("btrfs", "/dev/sda1", "rw", ""),
        ("cifs", "//nas/share", "rw,vers=3.1.1", ""),
        ("nfs4", "nas:/x", "rw,vers=4.2,hard", ""),
        ("nfs", "nas:/x", "rw,vers=3,hard", "NFS, as it is mounted"),
        ("nfs", "nas:/x", "rw,vers=3,hard,lookupcache=none", ""),
        ("nfs4", "nas:/x", "rw,vers=4.1,nocto", "NFS, as it is mounted"),
        ("fuseblk", "/dev/sdb1", "rw", ""),
        ("fuse.gocryptfs", "/home/a/c", "rw", ""),
        ("fuse.mergerfs", "a:b", "rw", ""),
        ("fuse.rclone", "drive:", "rw", "rclone stores"),
        ("fuse.sshfs", "anna@host:/x", "rw", "sftp://user@host/path"),
        ("fuse.s3fs", "bucket", "rw", "no atomic create"),
        ("fuse.gcsfuse", "bucket", "rw", "no atomic create"),
        ("fuse.google-drive-ocamlfuse", "x", "rw", "a cloud drive"),
        ("fuse.onedriver", "x", "rw", "a cloud drive"),
        ("fuse", "pCloud.fs", "rw", "a cloud drive"),
        ("fuse", "https://host/dav", "rw", "webdav://user@host/path"),
        ("fuse.quux", "x", "rw", "it is not known what the file system fuse.quux (x) promises"),
        ("fuse", "x", "rw", "it is not known"),
    ],
)
def test_what_may_vote_by_its_mount(kind: str, source: str, options: str, said: str) -> None:
    why = late(Mount("/mnt", kind, source, options))
    assert said in why
    assert bool(said) == bool(why)


def test_a_mount_is_looked_up_where_its_folder_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line as the kernel writes it, for the device this folder is on; a disk's is not even read."""
    monkeypatch.setattr(_folder_checks.os, "major", lambda _device: 0)
    device = f"0:{os.minor(tmp_path.stat().st_dev)}"
    line = rf"41 27 {device} / {tmp_path}/my\040drive rw,nosuid shared:9 - fuse.rclone my\040drive: rw,user_id=0"
    monkeypatch.setattr(_folder_checks, "_lines", lambda _path: ["22 27 0:21 / /proc rw - proc proc rw", line])
    (tmp_path / "my drive/below").mkdir(parents=True)
    backend = open_backend(parse_url(f"file://{tmp_path}/my%20drive/below"))
    assert (backend.form, backend.form_reason) == ("none", late(Mount("", "fuse.rclone", "")))
    (tmp_path / "beside").mkdir()
    assert open_backend(parse_url(f"file://{tmp_path}/beside")).form == "log"


def test_a_plain_folder_votes(tmp_path: Path) -> None:
    (tmp_path / ".sync").mkdir()  # anybody may call a folder that
    assert open_backend(parse_url(f"file://{tmp_path}")).form == "log"
