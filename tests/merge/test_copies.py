"""Names of conflict copies, and the tag that tells the two sides of a conflict."""

from __future__ import annotations

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from metasync.codec import TAGS_MAX
from metasync.merge.copies import (
    CONFLICT_TAG,
    NOBODY,
    Side,
    Sides,
    conflict_name,
    copied_from,
    label_of,
    marked,
    original_of,
    record_of,
    sides_in,
    sides_of,
    unmarked,
)
from metasync.objects.model import Entry, Kind

L = b"laptop-20261122"
ENTRY = Entry(Kind.FILE, 0o644, 1, 2, b"content")
SIDES = Sides(b"notes.txt", "edited on both sides", Side(b"a" * 16, 3, 4), Side(b"b" * 16, 2, -5))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"notes.txt", b"notes.conflict-laptop-20261122.txt"),
        (b"Makefile", b"Makefile.conflict-laptop-20261122"),
        (b".bashrc", b".bashrc.conflict-laptop-20261122"),
        (b"..x", b"..x.conflict-laptop-20261122"),
        (b".vimrc.old", b".vimrc.conflict-laptop-20261122.old"),
        (b"backup.tar.gz", b"backup.conflict-laptop-20261122.tar.gz"),
        (b"a.tar", b"a.conflict-laptop-20261122.tar"),
        (b".tar.gz", b".tar.conflict-laptop-20261122.gz"),
        (b"a.b.gz", b"a.b.conflict-laptop-20261122.gz"),
        (b"dot.", b"dot..conflict-laptop-20261122"),
        (b"x.y/no", b"x.y/no.conflict-laptop-20261122"),
        (b"a/b/c.d", b"a/b/c.conflict-laptop-20261122.d"),
        (b"Mr. " + b"x" * 70, b"Mr. " + b"x" * 70 + b".conflict-laptop-20261122"),
        (b"notes.conflict-desk-20261121-7.txt", b"notes.conflict-laptop-20261122.txt"),
        (b"Makefile.conflict-desk-20261121", b"Makefile.conflict-laptop-20261122"),
        (b"a.conflict-d-20261121.tar.gz", b"a.conflict-laptop-20261122.tar.gz"),
        (b"a.conflict-d-2026.b", b"a.conflict-d-2026.conflict-laptop-20261122.b"),
        (b"d/" + b"x" * 251 + b".txt", b"d/" + b"x" * 226 + b".conflict-laptop-20261122.txt"),
        (b"x" * 400, b"x" * 230 + b".conflict-laptop-20261122"),
        ("ä".encode() * 127, "ä".encode() * 115 + b".conflict-laptop-20261122"),
        (b"x" + "ä".encode() * 127, b"x" + "ä".encode() * 114 + b".conflict-laptop-20261122"),
        ("😀".encode() * 63 + b".a", "😀".encode() * 57 + b".conflict-laptop-20261122.a"),
        (b"\xbf" * 255, b"\xbf" * 230 + b".conflict-laptop-20261122"),
    ],
)
def test_conflict_names(path: bytes, name: bytes) -> None:
    assert conflict_name(path, L, 1) == name
    assert conflict_name(path, L, 123) == conflict_name(name, L, 123)
    assert len(conflict_name(path, L, 10_000).rpartition(b"/")[2]) <= 255


@pytest.mark.parametrize(
    "path", [b"notes.txt", b"Makefile", b"a/b/c.tar.gz", b".profile", b"a.b/c", b"n\xc3\xa4.txt", b"\xff.x", b"no.ext."]
)
def test_the_name_of_a_copy_tells_its_original(path: bytes) -> None:
    for n in (1, 7, 10_000):
        assert copied_from(conflict_name(path, L, n)) == path
    assert copied_from(path) is None


def test_names_that_are_no_copies() -> None:
    for name in (b"x.conflict-0", b"x.conflict-a", b"conflict-a-20261122", b".conflict-a-20261122", b"x.conflict.1"):
        assert copied_from(name) is None
    for tail in (b"-20261122-0", b"-2026112", b"-20261122.a.b", b"/x-20261122"):
        assert copied_from(b"x.conflict-a" + tail) is None


@pytest.mark.parametrize(
    ("device", "label"),
    [
        ("laptop", b"laptop"),
        ("Ann's MacBook Pro", b"Ann-s-MacBook-Pro"),
        ("../../etc", b"etc"),
        ("a.b/c\\d:e*?<>|", b"a-b-c-d-e"),
        ("Büro", "Büro".encode()),
        ("Bu\u0308ro", "Büro".encode()),
        ("\n\x1b[31m", b"31m"),
        ("...", b"device"),
        ("", b"device"),
        ("x" * 300, b"x" * 32),
        ("ä" * 300, "ä".encode() * 16),
        ("\udcff", b"device"),
    ],
)
def test_the_name_of_a_device_is_made_safe(device: str, label: bytes) -> None:
    assert label_of(device, "20261122") == label + b"-20261122"


@settings(max_examples=examples(200))
@given(st.text(), st.binary(min_size=1, max_size=300))
def test_whatever_a_device_is_called_its_copies_can_be_told(device: str, name: bytes) -> None:
    name = name.replace(b"/", b"").replace(b"\0", b"") or b"x"
    label = label_of(device, "20261122")
    copy = conflict_name(b"d/" + name, label, 2)
    assert len(copy) <= 257
    assert copy.startswith(b"d/")
    assert b"/" not in copy[2:]
    assert copied_from(copy) is not None
    assert copy != b"d/" + name


def test_the_tag_tells_both_sides() -> None:
    tagged = marked(ENTRY._replace(tags=((7, b"kept"),)), SIDES)
    assert sides_of(tagged) == SIDES
    assert [tag for tag, _ in tagged.tags] == [CONFLICT_TAG, 7]
    assert unmarked(tagged).tags == ((7, b"kept"),)
    assert sides_of(unmarked(tagged)) is None
    assert sides_of(ENTRY) is sides_of(None) is None
    assert original_of(b"d/notes.conflict-x-20261122.txt", SIDES) == b"d/notes.txt"
    assert sides_in(record_of(b"d/copy", SIDES)) == SIDES
    assert sides_of(marked(marked(ENTRY, SIDES), SIDES._replace(agreed=Side()))) == SIDES._replace(agreed=Side(NOBODY))


def test_the_bytes_of_the_tag() -> None:
    """docs/design/format.md, 3.2."""
    name = b"\0\x09notes.txt"
    agreed = b"a" * 16 + bytes([0, 0, 0, 0, 0, 0, 0, 3]) + bytes([0, 0, 0, 0, 0, 0, 0, 4])
    other = b"b" * 16 + bytes([0, 0, 0, 0, 0, 0, 0, 2]) + b"\xff" * 7 + b"\xfb"
    reason = len(SIDES.reason).to_bytes(2, "big") + SIDES.reason.encode()
    assert marked(ENTRY, SIDES).tags == ((1, b"\x01" + name + reason + agreed + other),)


def test_a_tag_that_says_nothing_of_use_is_no_conflict() -> None:
    value = dict(marked(ENTRY, SIDES).tags)[CONFLICT_TAG]
    cut = [value[:n] for n in range(len(value))]
    for bad in (*cut, value + b"x", b"\2" + value[1:]):
        assert sides_of(ENTRY._replace(tags=((CONFLICT_TAG, bad),))) is None
    for name in (b"", b".", b"..", b"a/b", b"a\0b"):
        assert sides_of(marked(ENTRY, SIDES._replace(name=name))) is None


def test_an_entry_with_as_many_tags_as_there_may_be_stays_as_it_is() -> None:
    full = ENTRY._replace(tags=tuple((n, b"") for n in range(2, TAGS_MAX + 2)))
    assert marked(full, SIDES) == full
