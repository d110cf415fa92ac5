"""The rules of file systems for names: what can be held, what is one name, who keeps it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasync.worktree.names import (
    ANY,
    CASEFOLD,
    FAT,
    LINUX,
    MACOS,
    WINDOWS,
    Fold,
    Listing,
    Rules,
    clashes,
    is_spelling,
    key,
    listed,
    problem,
    unportable,
)

PRESETS = {"Linux": LINUX, "macOS": MACOS, "Windows": WINDOWS, "FAT": FAT, "casefold": CASEFOLD, "any": ANY}
EVERYONE = set(PRESETS)
NTFS = {"Windows", "FAT"}
UNICODE = NTFS | {"macOS", "casefold"}


@pytest.mark.parametrize(
    ("path", "refusing", "why"),
    [
        (b"plain/and simple/.hidden/x.y-z_(1)+=,;@[a]{b}~'`!#$%^&", set(), ""),
        (b"a:b", NTFS, "its name has :"),
        (b'all"*<>?\\|', NTFS, 'its name has " and *'),
        (b"tab\there", NTFS, "its name has a control character"),
        (b"new\nline\x01", NTFS, "its name has a control character and a control character"),
        (b"dot.", NTFS, "its name ends in a dot"),
        (b"space ", NTFS, "its name ends in a space"),
        (b"..dots", set(), ""),
        (b"a./b", NTFS, "the directory a.: its name ends in a dot"),
        (b"a:/b:", NTFS, "the directory a:: its name has :"),
        (b"\xff", UNICODE, "its name is not UTF-8"),
        (b"ok/\xed\xa0\x80", UNICODE, "its name is not UTF-8"),
        (b"aux", {"Windows"}, "its name is that of a device"),
        (b"Com7.tar.gz", {"Windows"}, "its name is that of a device"),
        (b"a/nul/b", {"Windows"}, "the directory nul: its name is that of a device"),
        (b"con .txt", {"Windows"}, "its name is that of a device"),
        ("LPT\u00b2".encode(), {"Windows"}, "its name is that of a device"),
        (b"CONIN$", {"Windows"}, "its name is that of a device"),
        (b"auxiliary/console/com10/comma/prnt/nulls", set(), ""),
        (b"n" * 255, set(), ""),
        (b"n" * 256, EVERYONE, ""),
        ("\u00e9".encode() * 128, {"Linux", "casefold", "any"}, "its name has 256 bytes, and 255 are the most"),
        ("\U0001f600".encode() * 127, {"Linux", "casefold", "any"}, "its name has 508 bytes, and 255 are the most"),
        ("\U0001f600".encode() * 128, EVERYONE, ""),
        (b"d/" * 600 + b"x", {"macOS"}, "its path has 1,201 bytes"),
    ],
)
def test_what_can_be_held_where(path: bytes, refusing: set[str], why: str) -> None:
    found = {name: problem(path, rules) for name, rules in PRESETS.items()}
    if b"d/d/" in path:
        refusing = refusing | {name for name, rules in PRESETS.items() if 0 < rules.path_max < len(path)}
        why = ""
    assert {name for name, reason in found.items() if reason} == refusing
    if why:
        assert {reason for reason in found.values() if reason} == {why}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a", "A", {"macOS", "casefold", "Windows", "FAT"}),
        ("\u00e9", "\u00c9", {"macOS", "casefold", "Windows", "FAT"}),
        ("\u00e9", "e\u0301", {"macOS", "casefold"}),
        ("\u00c9", "e\u0301", {"macOS", "casefold"}),
        ("stra\u00dfe", "STRASSE", {"macOS", "casefold"}),
        ("\u03c3", "\u03c2", {"macOS", "casefold"}),
        ("i", "\u0131", set()),
        ("a", "b", set()),
        ("a", "\u0430", set()),
        ("docs/A", "DOCS/a", {"macOS", "casefold", "Windows", "FAT"}),
    ],
)
def test_what_is_one_name_where(one: str, other: str, same: set[str]) -> None:
    found = {name for name, rules in PRESETS.items() if key(one.encode(), rules) == key(other.encode(), rules)}
    assert found == same


def test_ascii_alone_is_folded_where_only_that_is() -> None:
    rules = Rules(fold=Fold.ASCII)
    assert key(b"A\xc3\x89", rules) == key(b"a\xc3\x89", rules) != key("a\u00e9".encode(), rules)
    assert key(b"A\xff", rules) == b"a\xff"


texts = st.text(min_size=1, max_size=6).map(lambda s: s.encode("utf-8", "surrogatepass"))
names = texts | st.binary(min_size=1, max_size=6)


@given(names, st.sampled_from(sorted(PRESETS)))
def test_a_key_is_its_own_key(name: bytes, preset: str) -> None:
    rules = PRESETS[preset]
    assert key(key(name, rules), rules) == key(name, rules)
    assert is_spelling(name, name, rules)
    problem(name, rules)  # says something of whatever bytes


@given(st.text(min_size=1, max_size=8))
def test_keys_fold_what_python_folds(text: str) -> None:
    wanted = unicodedata.normalize("NFD", unicodedata.normalize("NFD", text).casefold())
    try:
        name = text.encode()
    except UnicodeEncodeError:
        return
    assert key(name, MACOS).decode() == wanted


def test_the_smallest_is_placed_unless_another_is_here() -> None:
    assert clashes([b"readme", b"README", b"Readme", b"x"], MACOS) == {b"readme": b"README", b"Readme": b"README"}
    assert clashes([b"README", b"x"], MACOS, {b"readme"}) == {b"README": b"readme"}
    assert clashes([b"README", b"readme"], LINUX) == {}
    assert clashes(["\u00e9".encode(), "e\u0301".encode()], WINDOWS) == {}
    assert clashes(["\u00e9".encode(), "e\u0301".encode()], CASEFOLD) == {"\u00e9".encode(): "e\u0301".encode()}


@given(st.lists(st.sampled_from([b"a", b"A", b"b", b"B", b"ss", b"SS", "\u00df".encode()]), unique=True))
def test_of_each_set_of_twins_exactly_one_is_placed(found: list[bytes]) -> None:
    lost = clashes(found, MACOS)
    placed = [name for name in found if name not in lost]
    assert len({key(n, MACOS) for n in placed}) == len(placed)
    assert {key(n, MACOS) for n in placed} == {key(n, MACOS) for n in found}
    assert clashes(reversed(found), MACOS) == lost


def test_how_a_name_is_listed() -> None:
    lower, hfs = Rules(listing=Listing.LOWER), Rules(listing=Listing.NFD, normalises=True)
    assert listed(b"README\xff", lower) == b"readme\xff"
    assert listed("\u00c9".encode(), hfs) == "E\u0301".encode()
    assert listed(b"README", LINUX) == b"README"
    assert is_spelling(b"README", b"readme", lower)
    assert not is_spelling(b"README", b"readme", MACOS)
    assert is_spelling("\u00e9".encode(), "e\u0301".encode(), MACOS)
    assert not is_spelling("\u00e9".encode(), "e\u0301".encode(), WINDOWS)


def tree(*paths: str) -> dict[bytes, None]:
    return dict.fromkeys(p.encode() for p in paths)


def test_hints_name_what_is_new_and_only_that() -> None:
    found = tree("a:", "a:/x", "a:/y?", "old:", "plain", "Plain", "d/e", "D/e", "D", "d", "\u00e9", "e\u0301")
    assert unportable([], found) == []
    assert unportable([b"plain"], tree("plain", "other", "d/plain")) == []
    told = dict(unportable(found.keys() - {b"old:"}, found))
    assert told == {
        b"a:": "Windows: its name has :",
        b"a:/y?": "Windows: its name has ?",
        b"plain": "macOS and Windows take it for Plain",
        b"Plain": "macOS and Windows take it for plain",
        b"d": "macOS and Windows take it for D",
        b"D": "macOS and Windows take it for d",
        "\u00e9".encode(): "macOS and Windows take it for e\u0301",
        "e\u0301".encode(): "macOS and Windows take it for \u00e9",
    }
    assert [path for path, _ in unportable([b"Plain"], found)] == [b"Plain"]
    assert [why for _, why in unportable([b"d/" * 600 + b"x"], {})] == [
        "macOS: its path has 1,201 UTF-16 units, and 1,024 are the most"
    ]
    assert [why for _, why in unportable(["\u00e9".encode() * 128], {})] == [
        "Linux: its name has 256 bytes, and 255 are the most"
    ]
    assert [path for path, _ in unportable([b"b", b"x\xff"], {})] == [b"x\xff"]
