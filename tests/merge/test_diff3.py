"""Three-way merge of texts: examples of the rules, properties, bounds, and git as an oracle."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metasync.merge import lines as diff3
from metasync.merge.lines import LINES_MAX, TEXT_BYTES_MAX, merge3

tried = settings(max_examples=examples(200))

texts = st.text(alphabet="abc\n\r", max_size=24).map(str.encode)
lines_of_few = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"}\n"]), max_size=12).map(b"".join)
any_text = st.one_of(texts, lines_of_few)


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "merged"),
    [
        (b"a\nb\nc\n", b"A\nb\nc\n", b"a\nb\nC\n", b"A\nb\nC\n"),
        (b"a\nb\nc\n", b"b\nc\n", b"a\nb\nc\nd\n", b"b\nc\nd\n"),
        (b"a\nb\nc\n", b"0\na\nb\nc\n", b"a\nb\n", b"0\na\nb\n"),
        (b"a\nb\nc\n", b"a\nX\nc\n", b"a\nX\nc\n", b"a\nX\nc\n"),  # both alike
        (b"a\nb\nc\nd\n", b"X\nb\nc\nd\n", b"X\nb\nc\nY\n", b"X\nb\nc\nY\n"),  # one alike, one apart
        (b"a\nb\nc\n", b"", b"a\nb\nc\n", b""),
        (b"a\nd\nd\ne\ne\nm\nq\n", b"A\nd\nd\ne\ne\nm\nQ\n", b"a\nd\nd\ne\ne\nX\nm\nq\n", b"A\nd\nd\ne\ne\nX\nm\nQ\n"),
        (b"a\r\nb\r\nc\r\n", b"A\r\nb\r\nc\r\n", b"a\r\nb\r\nC\r\n", b"A\r\nb\r\nC\r\n"),
        (b"a\nb\nc", b"A\nb\nc", b"a\nb\nc", b"A\nb\nc"),  # no LF at the end
        (b"a\nb\nc", b"A\nb\nc", b"a\nb\nc\n", b"A\nb\nc\n"),  # one side adds it
        (b"a\nb\nc\n", b"A\nb\nc\n", b"a\nb\nc", b"A\nb\nc"),  # one side takes it away
        (b"\xff\n\xfe\nc\n", b"\xfd\n\xfe\nc\n", b"\xff\n\xfe\nd\n", b"\xfd\n\xfe\nd\n"),  # no UTF-8
        (b"a\rb\nc\nd\n", b"a\rX\nc\nd\n", b"a\rb\nc\nX\n", b"a\rX\nc\nX\n"),  # a lone CR ends no line
    ],
)
def test_merges(base: bytes, ours: bytes, theirs: bytes, merged: bytes) -> None:
    assert merge3(base, ours, theirs) == merged
    assert merge3(base, theirs, ours) == merged


@pytest.mark.parametrize(
    ("base", "ours", "theirs"),
    [
        (b"a\nb\nc\n", b"a\nX\nc\n", b"a\nY\nc\n"),  # the same line
        (b"a\nb\nc\n", b"a\nc\n", b"a\nY\nc\n"),  # deleted and changed
        (b"a\nb\n", b"A\nb\n", b"a\nB\n"),  # adjacent, with no line between
        (b"a\nb\n", b"a\nX\nb\n", b"a\nY\nb\n"),  # inserted at one point
        (b"a\nb\n", b"a\nX\nb\n", b"a\nB\n"),  # inserted before a changed line
        (b"", b"X\n", b"Y\n"),
        (b"a", b"a\nb", b"a\nc"),
        (b"a\nb\nc", b"a\nb\nC", b"a\nb\nc\n"),  # the last line, and its LF
        (b"a\na\na\n", b"a\na\n", b"a\nb\na\na\n"),  # which a went: before or after b?
        (b"a\nb\nc\n", b"A\nb\nc\n", b"a\nb\nC\0\n"),  # no text
        (b"a\nb\0\nc\n", b"A\nb\0\nc\n", b"a\nb\0\nC\n"),
    ],
)
def test_refuses(base: bytes, ours: bytes, theirs: bytes) -> None:
    assert merge3(base, ours, theirs) is None
    assert merge3(base, theirs, ours) is None


@tried
@given(any_text, any_text)
def test_one_side_changed(base: bytes, changed: bytes) -> None:
    assert merge3(base, base, changed) == changed
    assert merge3(base, changed, base) == changed
    assert merge3(base, changed, changed) == changed


@tried
@given(any_text, any_text, any_text)
@example(b"0\n2\n2\n0\n1\n", b"2\n2\n0\n1\n1\n", b"0\n2\n2\n0\n1\n1\n")
def test_sides_are_equal(base: bytes, ours: bytes, theirs: bytes) -> None:
    merged = merge3(base, ours, theirs)
    assert merged == merge3(base, theirs, ours)
    if merged is not None:
        assert set(merged.split(b"\n")) <= {*ours.split(b"\n"), *theirs.split(b"\n")}


def edited(random: Random, base: list[bytes], name: str, at_least: int = 0) -> list[bytes]:
    """`base` with some lines deleted and new ones, unlike any other, inserted."""
    lines = list(base)
    for n in range(random.randrange(at_least, at_least + 3)):
        at = random.randrange(len(lines) + 1)
        lines[at : at + random.randrange(3)] = [
            b"%s %d.%d\n" % (name.encode(), n, i) for i in range(random.randrange(3))
        ]
    return lines


@tried
@given(st.randoms(use_true_random=False))
def test_every_change_arrives(random: Random) -> None:
    """Lines are unique here, so each has one fate: in the merge if a side inserted it, or all left it alone."""
    base = [b"base %d\n" % n for n in range(random.randrange(14))]
    ours, theirs = edited(random, base, "ours"), edited(random, base, "theirs")
    merged = merge3(b"".join(base), b"".join(ours), b"".join(theirs))
    if merged is None:
        return
    counts = [Counter(lines) for lines in (base, ours, theirs)]
    expected = {
        line: b + (o - b) + (t - b) for line in {*base, *ours, *theirs} for b, o, t in [[c[line] for c in counts]]
    }
    found = merged.splitlines(keepends=True)
    assert Counter(found) == {line: n for line, n in expected.items() if n > 0}
    order = {line: i for i, line in enumerate(found)}
    for side in (ours, theirs):
        places = [order[line] for line in side if line in order]
        assert all(a < b for a, b in pairwise(places))


@tried
@given(st.randoms(use_true_random=False), st.integers(2, 6))
def test_a_unique_line_between_is_enough(random: Random, parts: int) -> None:
    """Each part is changed by one side at most; unchanged unique lines stand between the parts."""
    merged, sides = [], [[], [], []]  # type: ignore[var-annotated]
    for n in range(parts):
        part = [random.choice([b"{\n", b"}\n", b"\n", b"part %d.%d\n" % (n, i)]) for i in range(random.randrange(5))]
        changed, who = edited(random, part, f"new {n}"), random.randrange(3)
        for index, lines in enumerate([*sides, merged]):
            lines += changed if index == 3 or (index == who and index) else part
        if who == 0:
            merged[len(merged) - len(changed) :] = part
        for lines in [*sides, merged]:
            lines.append(b"unique %d\n" % n)
    base, ours, theirs = (b"".join(lines) for lines in sides)
    assert merge3(base, ours, theirs) == b"".join(merged)


@tried
@given(st.lists(st.integers(0, 3), max_size=14), st.lists(st.integers(0, 3), max_size=14))
def test_matches_as_many_lines_as_can_be(a: list[int], b: list[int]) -> None:
    pairs = diff3._shortest_edit(a, b, diff3._Effort())[::-1]
    assert all(a[x] == b[y] for x, y in pairs)
    assert all(p[0] < q[0] and p[1] < q[1] for p, q in pairwise(pairs))
    longest = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for x, left in enumerate(a):
        for y, right in enumerate(b):
            longest[x + 1][y + 1] = longest[x][y] + 1 if left == right else max(longest[x][y + 1], longest[x + 1][y])
    assert len(pairs) == longest[len(a)][len(b)]


@tried
@given(st.lists(st.integers(0, 6), max_size=20), st.lists(st.integers(0, 6), max_size=20))
def test_matching_is_ascending_and_true(a: list[int], b: list[int]) -> None:
    matched = [(i, j) for i, j in enumerate(diff3._match(a, b, diff3._Effort())) if j >= 0]
    assert all(a[i] == b[j] for i, j in matched)
    assert all(p[1] < q[1] for p, q in pairwise(matched))


def test_anchors_are_the_longest_ascending_series() -> None:
    a, b = list(range(9)), [3, 0, 4, 1, 5, 2, 9, 9, 8]
    assert diff3._anchors(a, b, 0, 9, 9) in ([(3, 0), (4, 2), (5, 4), (8, 8)], [(0, 1), (1, 3), (2, 5), (8, 8)])


def test_a_long_passage_may_move() -> None:
    """4,000 edits, too far for Myers' steps alone: lines that occur once anchor the match."""
    lines = [b"line %d\n" % (n // 2 if 2500 <= n < 2600 else n) for n in range(6000)]
    moved = [*lines[:1000], *lines[3000:5000], *lines[1000:3000], *lines[5000:]]
    merged = merge3(b"".join(lines), b"".join(moved), b"".join([*lines[:5], b"X\n", *lines[6:]]))
    assert merged == b"".join([*moved[:5], b"X\n", *moved[6:]])


def test_bounds_are_exact() -> None:
    base = b"a\nb\nc\n" + b"\n" * (LINES_MAX - 4)
    assert merge3(base, b"A" + base[1:], base[:-1] + b"z") == b"A" + base[1:-1] + b"z"
    base += b"\n"
    assert merge3(base, b"A" + base[1:], base[:-1] + b"z") is None
    base = b"a\nb\n" + b"c" * (TEXT_BYTES_MAX - 4)
    assert merge3(base, b"A" + base[1:], base[:-1] + b"z") is not None
    assert merge3(base, b"A" + base[1:], base + b"z") is None


def mebibyte(random: Random, shape: str) -> bytes:
    if shape == "newlines":
        return b"\n" * random.randrange((1 << 20) - 9, 1 << 20)
    if shape == "few lines, often":
        return b"".join(random.choice([b"aaaaaaaaaa\n", b"bbbbbbbbbb\n", b"cccccccccc\n"]) for _ in range(95_000))
    if shape == "period":
        lines = [b"line %05d\n" % (n % 7) for n in range(95_000)]
    elif shape == "shuffled pairs":
        lines = [b"line %05d\n" % (n % 47_500) for n in range(95_000)]
        random.shuffle(lines)
    else:
        lines = [b"line %05d\n" % n for n in range(95_000)]
    for _ in range(2000):
        lines[random.randrange(len(lines))] = b"%s\n" % random.randbytes(4).hex().encode()
    return b"".join(lines)


@pytest.mark.parametrize("shape", ["newlines", "few lines, often", "period", "shuffled pairs", "unique lines"])
@pytest.mark.long
def test_no_input_takes_long(shape: str) -> None:
    random = Random(shape)
    texts = [mebibyte(random, shape) for _ in range(3)]
    start = time.process_time()
    merge3(texts[0], texts[1], texts[2])
    assert time.process_time() - start < 60, "it hangs: without the bounds it is minutes, with them half a second"


def test_gives_up_beyond_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four doubled lines in a gap take five steps, and the texts are matched from both ends."""
    sides = (b"a\na\nb\nb\nm\nn\n", b"x\na\na\ny\nb\nb\nx\nm\nn\n", b"a\na\nb\nb\nm\nN\n")
    monkeypatch.setattr(diff3, "STEPS_MAX", 10)
    assert merge3(*sides) == b"x\na\na\ny\nb\nb\nx\nm\nN\n"
    monkeypatch.setattr(diff3, "STEPS_MAX", 9)
    assert merge3(*sides) is None


def test_where_one_side_changed_no_step_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much they differ: the other side's text is the merge."""
    monkeypatch.setattr(diff3, "STEPS_MAX", 0)
    base, changed = b"a\na\nb\nb\n", b"b\na\na\nb\na\n"
    assert merge3(base, base, changed) == changed
    assert merge3(base, changed, base) == changed
    assert merge3(base, changed, changed) == changed
    assert merge3(base, changed, changed + b"c\n") is None


def test_the_edits_are_the_fewest() -> None:
    """Of all pairs of short texts of two lines, against the plain recurrence."""
    texts = [[*map(int, f"{n:0{size}b}")] if size else [] for size in range(5) for n in range(1 << size)]
    for a in texts:
        for b in texts:
            longest = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
            for i, j in itertools.product(range(len(a)), range(len(b))):
                longest[i + 1][j + 1] = longest[i][j] + 1 if a[i] == b[j] else max(longest[i][j + 1], longest[i + 1][j])
            pairs = diff3._shortest_edit(a, b, diff3._Effort())
            assert len(pairs) == longest[-1][-1]
            assert pairs == sorted(pairs, reverse=True)
            assert all(a[i] == b[j] for i, j in pairs)


def git_merge(folder: Path, base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    for name, text in (("base", base), ("ours", ours), ("theirs", theirs)):
        (folder / name).write_bytes(text)
    done = subprocess.run(
        ["git", "merge-file", "-p", "ours", "base", "theirs"], cwd=folder, capture_output=True, check=False
    )
    assert done.returncode < 128, done.stderr
    return None if done.returncode else done.stdout


@pytest.mark.few(1)
@pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle")
@pytest.mark.parametrize(
    ("distinct", "missed_max", "bold_max", "other_max"),
    # Measured over 9,000 merges each: where git is clean we give up in 3.6, 0.2 and 0 % (equal lines leave a doubt);
    # where git gives up we are clean in 1.7, 0.1 and 0 %; where both are clean the bytes differ in 0.03, 0 and 0 %
    # (edits inside runs of equal lines). Without the pass from the bottom 0.13 % differ of the first.
    [(3, 0.12, 0.1, 0.01), (30, 0.03, 0.1, 0.0), (10**9, 0.0, 0.0, 0.0)],
)
def test_git_agrees(tmp_path: Path, distinct: int, missed_max: float, bold_max: float, other_max: float) -> None:
    random = Random(distinct)
    seen: Counter[str] = Counter()

    def line() -> bytes:
        return b"%d\n" % random.randrange(distinct)

    def changed(base: list[bytes]) -> list[bytes]:
        lines = list(base)
        for _ in range(random.randrange(3)):
            at = random.randrange(len(lines) + 1)
            lines[at : at + random.randrange(3)] = [line() for _ in range(random.randrange(3))]
        return lines

    for _ in range(150):
        base = [line() for _ in range(random.randrange(16))]
        texts = [b"".join(lines) for lines in (base, changed(base), changed(base))]
        mine, git = merge3(*texts), git_merge(tmp_path, *texts)
        seen["git is clean"] += git is not None
        seen["git gave up"] += git is None
        seen["missed"] += git is not None and mine is None
        seen["bold"] += git is None and mine is not None
        seen["other bytes"] += None not in (git, mine) and git != mine
    assert seen["git is clean"] > 50
    assert seen["git gave up"] > 15
    assert seen["missed"] <= missed_max * seen["git is clean"], seen
    assert seen["bold"] <= bold_max * seen["git gave up"], seen
    assert seen["other bytes"] <= other_max * seen["git is clean"], seen
