"""Ignore rules: git is the oracle. What it says of random trees under random patterns, ours must say."""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from metasync.worktree.ignore import WARNINGS_MAX, Rules, Ruling, parse
from metasync.worktree.ignore_files import RULES_BYTES_MAX
from metasync.worktree.names import always_ignored

NAMES = [b"a", b"b", b"f", b"foo", b"foo.o", b"bar", b"a b", b"x]y", b"-", b"[", b"!a", b"#a", b"tmp ", b"A", b"foo\\"]
NAMES += [b"a*b", b"new\nline", b"\xff\xfe", "ä".encode(), b".DS_Store", b"~$x"]
PIECES = [
    b"a",
    b"b",
    b"f",
    b"o",
    b".",
    b"*",
    b"?",
    b" ",
    b"#",
    b"!",
    b"-",
    b"\\a",
    b"\\*",
    b"\\",
    b"\xff",
    b"\xc3",
    b"]",
]
PIECES += [b"[a-f]", b"[!a]", b"[^b]", b"[]a]", b"[a-]", b"[z-a]", b"[!-~]", b"[\\]]", b"[a\\-c]", b"[", b"[a/b]"]
PIECES += [b"[[:alpha:]]", b"[[:punct:]x]", b"[[:space:]]", b"[![:upper:]]", b"[[:foo:]]", b"[[:x]", b"[[::]]", b"[[:]"]
CASES = 250  # directories of one repository: git is asked once for all


def pattern(rng: random.Random) -> bytes:
    def segment() -> bytes:
        kind = rng.random()
        if kind < 0.25:
            return rng.choice(NAMES).replace(b"\n", b"")
        if kind < 0.5:
            return rng.choice([b"**", b"**", b"*", b"***"])
        return b"".join(rng.choice(PIECES) for _ in range(rng.randint(1, 4)))

    text = b"/".join(segment() for _ in range(rng.choice([1, 1, 1, 2, 2, 3])))
    text = rng.choice([b"", b"", b"", b"/"]) + text + rng.choice([b"", b"", b"", b"/"])
    text = rng.choice([b"", b"", b"!"]) + text
    return text + rng.choice([b"", b"", b"", b"", b"", b" ", b"\\ ", b"  ", b"\\  ", b"\t"])


def is_as_documented(text: bytes) -> bool:
    """False where git does something else than it says: stars in a row that stand right behind other characters count
    as ordinary stars, but git takes the literal beginning of a path off first, and `foo**` then is `**` to it."""
    body = text.lstrip(b"!").rstrip(b" ").removesuffix(b"/")
    return b"/" not in body or not re.search(rb"[^/*]\*\*|\\/", body)


def grow(rng: random.Random, top: Path) -> tuple[list[tuple[bytes, bool]], dict[bytes, bytes]]:
    """Makes a small tree with rule files; returns its paths (is it a directory?) and the rules by directory."""
    root = os.fsencode(top)
    dirs, paths = [b""], {}
    for _ in range(rng.randint(2, 14)):
        parent, name = rng.choice(dirs), rng.choice(NAMES)
        path = parent + b"/" + name if parent else name
        if path in paths:
            continue
        paths[path] = rng.random() < 0.5 and path.count(b"/") < 4
        if paths[path]:
            dirs.append(path)
            os.mkdir(os.path.join(root, path))
        else:
            Path(os.fsdecode(os.path.join(root, path))).touch()
    rules = {}
    for directory in dirs:
        if directory and rng.random() > 0.25:
            continue
        lines = [p for p in (pattern(rng) for _ in range(rng.randint(1, 6))) if is_as_documented(p)]
        end = rng.choice([b"\n", b"\r\n"])
        text = rng.choice([b"", b"", b"", b"\xef\xbb\xbf"]) + end.join(lines) + rng.choice([b"", end])
        rules[directory] = text
        Path(os.fsdecode(os.path.join(root, directory, b".gitignore"))).write_bytes(text)
    return list(paths.items()), rules


def git_ignores(top: Path, paths: list[bytes]) -> set[bytes]:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", "init", "-q", "."], cwd=top, env=env, check=True)
    (top / ".git/info/exclude").write_bytes(b".DS_Store\nThumbs.db\n~$*\n")
    words = ["git", "-c", "core.ignorecase=false", "check-ignore", "--no-index", "-z", "--stdin"]
    done = subprocess.run(words, cwd=top, env=env, input=b"\0".join(paths), capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return set(done.stdout.split(b"\0"))


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(4))
def test_git_says_the_same(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    grown = {}
    for i in range(CASES):
        (tmp_path / f"{i}").mkdir()
        grown[i] = grow(rng, tmp_path / f"{i}")
    by_git = git_ignores(tmp_path, [b"%d/%s" % (i, path) for i, (paths, _) in grown.items() for path, _ in paths])
    asked = ignored = 0
    for i, (paths, files) in grown.items():
        ruling = Ruling({directory: parse(text) for directory, text in files.items()})
        for path, is_dir in paths:
            says = ruling.ignores(path, is_dir)
            assert says == (b"%d/%s" % (i, path) in by_git), (path, is_dir, files)
            asked, ignored = asked + 1, ignored + says
    assert asked > 1500
    assert 0.2 < ignored / asked < 0.8  # else the patterns decide nothing


@pytest.mark.parametrize("seed", range(3))
def test_a_walk_from_directory_to_directory_says_the_same_as_a_path(tmp_path: Path, seed: int) -> None:
    """`names`, which the scan asks, against `ignores`; with rule files added on the way, as they are found."""
    rng = random.Random(100 + seed)
    for i in range(60):
        (tmp_path / f"{i}").mkdir()
        paths, files = grow(rng, tmp_path / f"{i}")
        whole = Ruling({d: parse(text) for d, text in files.items()})
        walk = Ruling()
        out = set()
        for directory in sorted({b""} | {p for p, is_dir in paths if is_dir}):  # a directory before what is in it
            if any(directory == p or directory.startswith(p + b"/") for p in out):
                continue
            walk.names(directory)  # as the scan does, before it meets the rule file
            if directory in files:
                walk.add(directory, parse(files[directory]))
            names = walk.names(directory)
            for path, is_dir in paths:
                if path.rpartition(b"/")[0] == directory:
                    name = path.rpartition(b"/")[2]
                    says = always_ignored(os.fsdecode(name)) if names is None else names.ignores(name, is_dir)
                    assert says == whole.ignores(path, is_dir), (path, files)
                    out |= {path} if says else set()


def ignores(text: bytes, path: bytes, is_dir: bool = False) -> bool:
    return Ruling({b"": parse(text)}).ignores(path, is_dir)


@pytest.mark.parametrize("name", [b".DS_Store", b"d/Thumbs.db", b"~$letter.doc", b"d/~$/x"])
def test_defaults_stand_below_all_rules(name: bytes) -> None:
    assert Ruling().ignores(name, False)
    assert ignores(b"nothing", name)
    assert not ignores(b"!" + (b"~$*" if b"~" in name else name.split(b"/")[-1]), name)
    assert Ruling().names(b"") is None


def test_our_own_temporaries_are_never_taken_in() -> None:
    assert ignores(b"!~$*\n!~$metasync.*", b"d/~$metasync.12")


@pytest.mark.parametrize(
    "copy",
    [
        "key.conflict-desktop-20261122.pem",
        "key.conflict-desktop-20261122-2.pem",
        "secret.conflict-desktop-20261122",
        "secret.conflict-desktop-20261122.conflict-phone-20261122-2",
        "k.1.pem",
    ],
)
def test_copies_of_what_stays_at_home_stay_at_home(copy: str) -> None:
    rules = b"/key.pem\nsecret\n"
    assert ignores(rules, copy.encode()) == (copy != "k.1.pem")
    assert not ignores(rules + b"!*.conflict-*\n", copy.encode())
    assert not ignores(b"other.pem", copy.encode())


def test_bytes_are_bytes() -> None:
    assert ignores(b"?", b"a")
    assert not ignores(b"?", "ä".encode())
    assert ignores(b"??", "ä".encode())
    assert ignores(b"caf\xe9*", b"caf\xe9.txt")
    assert ignores("straße".encode(), "straße".encode())
    assert not ignores(b"Readme", b"README")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"foo\\", "it ends in a backslash"),
        (b"a[bc", "a bracket is not closed"),
        (b"a[", "a bracket is not closed"),
        (b"[a-\\", "a bracket is not closed"),
        (b"[[:alpha:", "a bracket is not closed"),
        (b"[[:letters:]]", "there is no class [:letters:]"),
        (b"[[:\xff:]]", "there is no class [:\\xff:]"),
        (b"a//b", "it has two slashes in a row"),
        (b"//", "it has two slashes in a row"),
        (b"/", "it names nothing"),
        (b"!", "it names nothing"),
        (b"a\0b", "it holds a zero byte, which no name holds"),
    ],
)
def test_bad_lines_are_told_and_the_others_count(line: bytes, why: str) -> None:
    rules = parse(b"# first\nbefore\n\n" + line + b"\nafter\n")
    assert rules.bad == ((4, why),)
    assert list(rules.warnings("x/.metasyncignore")) == [
        f"x/.metasyncignore, line 4: {why}; this line is left out, the others count"
    ]
    ruling = Ruling({b"": rules})
    assert [ruling.ignores(p, False) for p in (b"before", b"after", b"a", b"b", b"foo")] == [True, True] + [False] * 3


def test_many_bad_lines_are_counted() -> None:
    told = list(parse(b"[\n" * 40).warnings("f"))
    assert len(told) == WARNINGS_MAX + 1
    assert told[-1] == f"f: {40 - WARNINGS_MAX} more lines like that"


def test_nothing_and_comments_are_no_rules() -> None:
    for text in (b"", b"\n\r\n", b"# a\n#b", b"   \n", b"\xef\xbb\xbf"):
        assert parse(text) == Rules(())
        assert Ruling({b"": parse(text)}).names(b"") is None


def test_no_pattern_is_slow_on_any_name() -> None:
    """Each would take ages if it were tried at every place of every star."""
    assert not ignores(b"*a*a*a*a*a*a*a*a*a*a*b", b"a" * 255)
    assert not ignores(b"*[ab]*[ab]*[ab]*[ab]*[ab]*[ab]*[ab]*c", b"a" * 255)
    assert not ignores(b"**/a/**/a/**/a/**/a/**/a/**/b/c", b"a/" * 300 + b"x/c")
    assert ignores(b"**/a/**/a/**/a/**/b/c", b"a/" * 300 + b"b/c")


def test_deep_paths_and_long_files() -> None:
    deep = b"/".join([b"d"] * 1500)
    assert ignores(b"x", deep + b"/x")
    assert ignores(b"**/d/x", deep + b"/x")
    many = b"".join(b"name-%d\n/dir-%d/*.o\n" % (i, i) for i in range(1200))
    assert len(many) < RULES_BYTES_MAX
    ruling = Ruling({b"": parse(many)})
    assert ruling.ignores(b"z/name-1199", False)
    assert ruling.ignores(b"dir-7/x.o", False)
    assert not ruling.ignores(b"dir-7/x.c", False)
