"""Unified diffs: what they print is what `git apply` and `patch` need, and odd input costs no more than its bound."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metasync.merge import lines as diff3
from metasync.merge.changes import counts, described, same_bytes
from metasync.merge.lines import BINARY, DIFF_BYTES_MAX, TOO_DIFFERENT, TOO_LARGE, unified
from metasync.objects.model import Entry, Kind
from metasync.reports.history import Counts

line = st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"--- x\n", b"+y\n", b"@@ -1 +1 @@\n"])
ends = st.sampled_from([b"", b"end"])
texts = st.builds(lambda lines, last: b"".join(lines) + last, st.lists(line, max_size=40), ends)


@given(texts, texts)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_patch_makes_one_of_the_other(tmp_path: Path, a: bytes, b: bytes) -> None:
    lines = unified(a, b, "a/f", "b/f")
    assert not isinstance(lines, str)
    if a == b:
        assert len(lines) == 2
        return
    (tmp_path / "f").write_bytes(a)
    patch = "\n".join(lines) + "\n"
    subprocess.run(["git", "apply", "--unsafe-paths", "-"], input=patch, text=True, cwd=tmp_path, check=True)
    assert (tmp_path / "f").read_bytes() == b


def test_hunks_and_their_context() -> None:
    old = [b"%d\n" % n for n in range(40)]
    new = [*old[:2], b"new\n", *old[2:8], *old[9:30], b"x\n", *old[31:]]
    lines = unified(b"".join(old), b"".join(new), "a/f", "b/f")
    assert [x for x in lines if x.startswith("@@")] == ["@@ -1,12 +1,12 @@", "@@ -28,7 +28,7 @@"]
    assert [x for x in lines if x[0] in "+-" and x[:3] not in ("---", "+++")] == ["+new", "-8", "-30", "+x"]
    assert unified(b"", b"x", "/dev/null", "b/f")[2:] == ("@@ -0,0 +1 @@", "+x", "\\ No newline at end of file")


def test_bounds() -> None:
    assert unified(b"a\0", b"b", "a", "b") == unified(b"a", b"b\0", "a", "b") == BINARY
    assert unified(b"a", b"x" * (DIFF_BYTES_MAX + 1), "a", "b") == TOO_LARGE
    assert unified(b"\n" * 100_000, b"b", "a", "b") == TOO_LARGE
    rng = random.Random(1)
    a, b = (b"".join(b"%d\n" % rng.randrange(50) for _ in range(20_000)) for _ in range(2))
    assert unified(a, b, "a", "b") == TOO_DIFFERENT


def test_bytes_that_are_no_text_of_ours() -> None:
    lines = unified(b"caf\xe9\n", b"caf\xc3\xa9\r\n", "a/f", "b/f")
    assert lines[3:] == ("-caf\\xe9", "+caf\u00e9\r")


@given(texts, texts)
def test_matches_are_a_common_subsequence(a: bytes, b: bytes) -> None:
    found = diff3.matches(a, b)
    assert found is not None
    old, new, matched = found
    assert (b"".join(old), b"".join(new)) == (a, b)
    pairs = [(i, j) for i, j in enumerate(matched) if j >= 0]
    assert all(old[i] == new[j] for i, j in pairs)
    assert [j for _, j in pairs] == sorted({j for _, j in pairs})


# --- what a difference is called


def file(content: bytes, size: int = 5, mode: int = 0o644, mtime_ns: int = 1, root: bytes = b"") -> Entry:
    return Entry(Kind.FILE, mode, mtime_ns, size, content, root)


DIR = Entry(Kind.DIR, 0o755, 0, 0, b"")
LINK = Entry(Kind.SYMLINK, 0, 1, 1, b"t")


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (None, file(b"x"), "added"),
        (file(b"x"), None, "deleted"),
        (file(b"x"), file(b"y", mode=0o600), "modified"),
        (file(b"x"), file(b"x", mode=0o600, mtime_ns=2), "mode"),
        (file(b"x"), file(b"x", mtime_ns=2), "time"),
        (file(b"t"), LINK, "type"),
        (DIR, file(b"x"), "type"),
        (LINK, LINK._replace(content=b"u"), "modified"),
        (DIR, DIR._replace(mode=0o700), "mode"),
    ],
)
def test_kinds_of_change(before: Entry | None, after: Entry | None, kind: str) -> None:
    (change,) = described([(b"p", before, after)])
    assert (change.kind, change.path, change.was) == (kind, b"p", None)
    assert (change.before is None, change.after is None) == (before is None, after is None)


def test_other_chunks_of_the_same_bytes_are_no_change() -> None:
    assert described([(b"p", file(b"x", root=b"1"), file(b"x", root=b"2"))]) == ()


def test_renames_are_paired_by_name_first() -> None:
    pairs = [
        (b"a/one", file(b"x"), None), (b"a/two", file(b"x"), None), (b"b/new", None, file(b"x")),
        (b"b/two", None, file(b"x")), (b"b/third", None, file(b"x")), (b"c", None, file(b"x", size=6)),
    ]  # fmt: skip
    found = {c.path: (c.kind, c.was) for c in described(pairs)}
    assert found == {
        b"b/two": ("renamed", b"a/two"), b"b/new": ("renamed", b"a/one"),
        b"b/third": ("added", None), b"c": ("added", None),
    }  # fmt: skip
    assert counts(described(pairs)) == Counts(added=2, renamed=2)


def test_what_stays_is_no_rename_and_what_was_there_is_none_either() -> None:
    x, y = file(b"x"), file(b"y")
    assert kinds([(b"a", x, y), (b"b", None, x)]) == {b"a": "modified", b"b": "added"}
    assert kinds([(b"a", x, None), (b"b", y, x)]) == {b"a": "deleted", b"b": "modified"}
    assert kinds([(b"a", LINK, None), (b"b", None, LINK)]) == {b"a": "deleted", b"b": "added"}
    empty = file(b"", size=0)
    assert kinds([(b"a", empty, None), (b"b", None, empty)]) == {b"a": "deleted", b"b": "added"}


def kinds(pairs: list[tuple[bytes, Entry | None, Entry | None]]) -> dict[bytes, str]:
    return {c.path: c.kind for c in described(pairs)}


def test_what_is_told_of_a_rename_and_of_a_link() -> None:
    renamed, link = described([(b"a", file(b"x", mode=0o600), None), (b"b", None, file(b"x")), (b"l", None, LINK)])
    assert renamed.before is not None and renamed.after is not None and link.after is not None
    assert (renamed.was, renamed.before.mode, renamed.after.mode) == (b"a", 0o600, 0o644)
    assert (renamed.after.target, link.after.target) == (None, b"t")


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (file(b"x"), file(b"x", mode=0o600, mtime_ns=2, root=b"r"), True),
        (file(b"x"), file(b"y"), False),
        (file(b"t"), LINK, False),
        (DIR, DIR._replace(content=b"another tree"), True),
        (DIR, None, False),
        (None, DIR, False),
        (None, None, False),
    ],
)
def test_the_same_bytes(a: Entry | None, b: Entry | None, same: bool) -> None:
    assert same_bytes(a, b) is same


def test_directories_are_named_where_nothing_in_them_is() -> None:
    pairs = [(b"d", None, DIR), (b"d/f", None, file(b"x")), (b"e", None, DIR), (b"g/h", file(b"y"), None)]
    pairs.append((b"g", DIR, DIR._replace(mode=0o700)))
    assert [(c.kind, c.path) for c in described(pairs)] == [
        ("added", b"d/f"), ("added", b"e"), ("mode", b"g"), ("deleted", b"g/h"),
    ]  # fmt: skip
