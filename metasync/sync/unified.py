"""Unified diffs of two texts; pure, and bounded in time on any input (`diff3` matches the lines)."""

from __future__ import annotations

from collections.abc import Iterator

from metasync.sync.diff3 import LINES_MAX, matches

CONTEXT_LINES = 3
DIFF_BYTES_MAX = 1 << 20  # of one side: 0.2 s to match; nobody reads the diff of a longer text
BINARY = "binary files differ"
TOO_LARGE = f"texts of more than {DIFF_BYTES_MAX >> 20} MiB are not compared line by line"
TOO_DIFFERENT = "differs too much to be compared line by line"

Change = tuple[int, int, int, int]  # lines a_from..a_to of a became lines b_from..b_to of b


def unified(a: bytes, b: bytes, a_name: str, b_name: str) -> tuple[str, ...] | str:
    """The lines of a unified diff without their ends, or a sentence that says why there is none."""
    if b"\0" in a or b"\0" in b:
        return BINARY
    if max(len(a), len(b)) > DIFF_BYTES_MAX or max(a.count(b"\n"), b.count(b"\n")) >= LINES_MAX:
        return TOO_LARGE
    found = matches(a, b)
    if found is None:
        return TOO_DIFFERENT
    old, new, matched = found
    out = [f"--- {a_name}", f"+++ {b_name}"]
    for hunk in _hunks(list(_changes(matched, len(new)))):
        out += _shown(hunk, old, new)
    return tuple(out)


def _changes(matched: list[int], new: int) -> Iterator[Change]:
    """The stretches that differ, between lines that are matched."""
    i = j = 0
    for at, to in [*((at, to) for at, to in enumerate(matched) if to >= 0), (len(matched), new)]:
        if at > i or to > j:
            yield i, at, j, to
        i, j = at + 1, to + 1


def _hunks(changes: list[Change]) -> Iterator[list[Change]]:
    """Changes that stand near enough to share their context."""
    hunk: list[Change] = []
    for change in changes:
        if hunk and change[0] - hunk[-1][1] > 2 * CONTEXT_LINES:
            yield hunk
            hunk = []
        hunk.append(change)
    if hunk:
        yield hunk


def _shown(hunk: list[Change], old: list[bytes], new: list[bytes]) -> list[str]:
    before = min(CONTEXT_LINES, hunk[0][0])
    after = min(CONTEXT_LINES, len(old) - hunk[-1][1])
    a_from, a_to = hunk[0][0] - before, hunk[-1][1] + after
    b_from, b_to = hunk[0][2] - before, hunk[-1][3] + after
    out = [f"@@ -{_range(a_from, a_to)} +{_range(b_from, b_to)} @@"]
    at = a_from
    for i, i_to, j, j_to in hunk:
        for sign, lines in ((" ", old[at:i]), ("-", old[i:i_to]), ("+", new[j:j_to])):
            for line in lines:
                out += _line(sign, line)
        at = i_to
    for line in old[at:a_to]:
        out += _line(" ", line)
    return out


def _range(start: int, end: int) -> str:
    """Lines as the format counts them: from 1; of an empty range the line before it."""
    length = end - start
    return f"{start + 1 if length else start}" + ("" if length == 1 else f",{length}")


def _line(sign: str, line: bytes) -> list[str]:
    text = sign + line.removesuffix(b"\n").decode("utf-8", "backslashreplace")
    return [text] if line.endswith(b"\n") else [text, "\\ No newline at end of file"]
