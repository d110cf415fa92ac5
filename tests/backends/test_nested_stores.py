"""A store inside another store is no second one: what the addresses tell of it."""

from __future__ import annotations

import os
import pathlib

import pytest

from metasync.backends import nested as nested_stores
from metasync.backends.nested import nested, refuse_nested
from metasync.backends.registry import parse_url
from metasync.errors import UsageError

S3 = "s3://bucket/backup?endpoint=https://s3.example"
AZURE = "azure://container/backup?account=anna"
SWIFT = "swift://Photos/backup?auth=https://keystone.example:5000/v3"


def pairs(*texts: str, absent: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return nested({str(n): parse_url(text) for n, text in enumerate(texts)}, absent)


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("file:///srv/a", "file:///srv/a/workspaces"),
        ("file:///srv/a/", "file:///srv//a/b/c"),
        ("s3://bucket", "s3://bucket/backup"),
        ("s3://bucket/backup", "s3://bucket/backup/deeper?region=eu-central-1&profile=work"),
        (S3, "s3://bucket/backup/x?endpoint=https://S3.example/&region=auto"),
        ("gs://bucket/backup", "gcs://bucket/backup/x"),
        (AZURE, "azure://container/backup/x?account=anna"),
        (SWIFT, "swift://Photos/backup/x?auth=https://keystone.example:5000/v3"),
        ("sftp://anna@nas/srv/a", "sftp://anna@NAS/srv/a/x"),
        ("sftp://nas/~/a", "sftp://nas/~/a/x"),
        ("webdav://anna@dav.example/dav/a", "webdav+https://anna@dav.example/dav/a/x"),
        ("dropbox:/a", "dropbox:/A/x"),
        ("box:/a?account=work", "box:/a/x?account=work"),
        ("onedrive:/a", "onedrive:/A/x"),
        ("gdrive:/a", "gdrive:/a/x"),
    ],
)
def test_one_below_the_other(outer: str, inner: str) -> None:
    assert pairs(outer, inner) == [("1", "0")]
    assert pairs(inner, outer) == [("0", "1")]
    for new in ({"new"}, {"old"}):  # whichever is the new one
        with pytest.raises(UsageError, match=r"the backend new \(.*\) lies inside the backend old \(.*\)"):
            refuse_nested({"old": parse_url(outer), "new": parse_url(inner)}, new)
    refuse_nested({"old": parse_url(outer), "older": parse_url(inner), "new": parse_url("file:///other")}, {"new"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file:///srv/a", "file:///srv/ab"),
        ("file:///srv/a", "file:///srv/b"),
        ("file:///srv/a", "file:///srv/a"),  # the same store, which is told as that
        ("file:///srv/a", "file:///srv/A/x"),
        ("file:///srv/a", "sftp://nas/srv/a/x"),
        ("s3://bucket/a", "s3://bucket/ab"),
        ("s3://bucket/a", "s3://other/a/x"),
        ("s3://bucket/a", "gcs://bucket/a/x"),
        (S3, "s3://bucket/backup/x"),
        (S3, "s3://bucket/backup/x?endpoint=https://other.example"),
        (AZURE, "azure://container/backup/x?account=berta"),
        (SWIFT, "swift://photos/backup/x?auth=https://keystone.example:5000/v3"),
        (SWIFT, SWIFT.replace("/backup", "/backup/x") + "&project=other"),
        ("sftp://nas/srv/a", "sftp://other/srv/a/x"),
        ("sftp://nas/~/a", "sftp://nas/a/x"),
        ("webdav://anna@dav.example/a", "webdav://berta@dav.example/a/x"),
        ("webdav://dav.example/a", "webdav://dav.example:8443/a/x"),
        ("dropbox:/a?account=work", "dropbox:/a/x?account=home"),
        ("gdrive:/a", "gdrive:/A/x"),
        ("memory://a", "memory://a-x"),
    ],
)
def test_beside_each_other(one: str, other: str) -> None:
    assert pairs(one, other) == []
    refuse_nested({"one": parse_url(one), "other": parse_url(other)}, {"one", "other"})


def test_links_in_a_path_are_followed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk/a").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    (tmp_path / "out").symlink_to(tmp_path)
    outer, inner = f"file://{tmp_path}/disk/a", f"file://{tmp_path}/link/a/not-yet/there"
    assert pairs(outer, inner) == [("1", "0")]
    assert pairs(f"file://{tmp_path}/link", outer) == [("1", "0")]
    assert pairs(f"file://{tmp_path}/disk/out/a", f"file://{tmp_path}/out/disk/a/x") == []
    assert pairs(outer, f"file://{tmp_path}/./out/disk//a/x") == [("1", "0")]


def test_the_disk_of_an_absent_store_is_not_touched(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount whose server is gone would hang."""
    asked, real = [], os.path.realpath

    def realpath(path: str) -> str:
        asked.append(path)
        return real(path)

    monkeypatch.setattr(os.path, "realpath", realpath)
    mount, new = f"{tmp_path}/mount", f"{tmp_path}/mount/x"
    assert pairs(f"file://{mount}", f"file://{new}", absent=("0",)) == [("1", "0")]
    assert {*asked} == {new}


@pytest.fixture
def same(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Paths that a disk which ignores case, or a bind mount, has for another one: what is below is the same, too."""
    alike: dict[str, str] = {}
    inode = nested_stores._inode

    def resolved(path: str) -> str:
        for name, other in alike.items():
            if path == name or path.startswith(name + "/"):
                return other + path[len(name) :]
        return path

    monkeypatch.setattr(nested_stores, "_inode", lambda path: inode(resolved(path)))
    return alike


def test_folders_that_have_two_names_are_the_same(tmp_path: pathlib.Path, same: dict[str, str]) -> None:
    for there in ("disk/a/deep", "disk/b", "mount", "A"):
        (tmp_path / there).mkdir(parents=True)
    outer, bound, other_case = (f"file://{tmp_path}/{name}" for name in ("disk/a", "mount", "DISK/A"))
    assert pairs(outer, f"{bound}/x") == pairs(outer, f"{other_case}/x") == []
    same.update({f"{tmp_path}/mount": f"{tmp_path}/disk/a", f"{tmp_path}/DISK/A": f"{tmp_path}/disk/a"})
    for name in (bound, other_case):
        assert pairs(outer, f"{name}/not-yet") == pairs(outer, f"{name}/deep") == [("1", "0")]
        assert pairs(f"{name}/deep", outer) == [("0", "1")]
        assert pairs(outer, name) == [], "the same store, which is told as that"
        assert pairs(f"file://{tmp_path}/disk/b", f"{name}/x") == []
        with pytest.raises(UsageError, match="lies inside the backend old"):
            refuse_nested({"old": parse_url(outer), "new": parse_url(f"{name}/x")}, {"new"})
    assert pairs(outer, f"{bound}/x", absent=("0",)) == [], "its disk is not touched"


def test_a_file_system_that_numbers_no_files_tells_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda *a, **k: os.stat_result((*stat(*a, **k)[:1], 0, *stat(*a, **k)[2:])))
    assert pairs(f"file://{tmp_path}/a", f"file://{tmp_path.parent}/b/x") == []
