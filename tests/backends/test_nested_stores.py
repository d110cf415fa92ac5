"""A store inside another store is no second one: what the addresses tell of it."""

from __future__ import annotations

import os
import pathlib

import pytest

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
    assert asked == [new]
