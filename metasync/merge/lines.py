"""Three-way merge of texts, line by line; pure, and bounded in time on any input.

Each side's lines are matched with the base's: common ends first, then lines that occur once on both sides (in the
longest run of them that keeps its order: patience matching), and between those by Myers, "An O(ND) difference
algorithm" (1986), over the lines that both have. A base line matched on both sides is *stable*. Between two stable
lines lies a chunk of base, ours and theirs; a chunk that only one side changed, or both alike, is settled, any other is
an overlap (Khanna, Kunal, Pierce, "A formal investigation of diff3", 2007). So changes that touch, with no stable line
between them, overlap.

Which of several equal lines was deleted or added is anyone's guess, and a wrong guess puts a change where nobody made
it. So the texts are merged twice, matched from the top and from the bottom, and the merge counts only if both agree.

Unified diffs of two texts; pure, and bounded in time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

TEXT_BYTES_MAX = 4 << 20
"""A larger side is not merged: what people edit on two devices at once is smaller, and memory stays bounded."""

LINES_MAX = 100_000  # lines of one side: 0.1 s to split, number and match, each of twice
STEPS_MAX = 1_000_000  # comparisons of Myers' algorithm in one merge, all passes together: 0.3 s


def merge3(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """The text with the changes of both sides, or None where putting them together would be a guess.

    Lines end in LF alone; a CR before it belongs to the line, and so does its absence at the very end. None if changes
    overlap or touch, if equal lines leave open where a change belongs, if a side holds a NUL byte (not a text), or if
    a side or the work passes a bound (`TEXT_BYTES_MAX`, `LINES_MAX`, `STEPS_MAX`). Bytes need be no valid UTF-8.
    Swapping ours and theirs changes nothing.
    """
    if not all(map(_is_text, (base, ours, theirs))):
        return None
    if ours in (base, theirs):
        return theirs
    if theirs == base:
        return ours
    numbers: dict[bytes, int] = {}  # equal lines get equal numbers: comparing them is then cheap
    b, o, t = (_numbered(text, numbers) for text in (base, ours, theirs))
    effort = _Effort()
    try:
        merged = _merge_lines(b, o, t, effort)
        if merged is None or _merge_lines(b[::-1], o[::-1], t[::-1], effort) != merged[::-1]:
            return None
    except _GaveUpError:
        return None
    lines = list(numbers)
    return b"".join(lines[number] for number in merged)


def matches(a: bytes, b: bytes) -> tuple[list[bytes], list[bytes], list[int]] | None:
    """The lines of two texts, and for each line of `a` the index in `b` of the line it is matched with, or -1.

    Matched indices ascend. None if the work passes `STEPS_MAX`.
    """
    numbers: dict[bytes, int] = {}
    x, y = _numbered(a, numbers), _numbered(b, numbers)
    try:
        matched = _match(x, y, _Effort())
    except _GaveUpError:
        return None
    lines = list(numbers)
    return [lines[i] for i in x], [lines[j] for j in y], matched


class _GaveUpError(Exception):
    """`STEPS_MAX` is used up."""


class _Effort:
    """Counts the steps of one merge."""

    def __init__(self) -> None:
        self.left = STEPS_MAX

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _GaveUpError


def _is_text(data: bytes) -> bool:
    return len(data) <= TEXT_BYTES_MAX and b"\0" not in data and data.count(b"\n") < LINES_MAX


def _numbered(text: bytes, numbers: dict[bytes, int]) -> list[int]:
    """The text's lines as numbers, new ones entered in `numbers`."""
    *lines, last = text.split(b"\n")  # splitlines would split at a lone CR too
    result = [numbers.setdefault(line + b"\n", len(numbers)) for line in lines]
    if last:
        # An unterminated line differs from the same line with LF. It is the last of its side, so it can only end up
        # last in the merge: whatever chunk or stable line holds it is the last one.
        result.append(numbers.setdefault(last, len(numbers)))
    return result


def _merge_lines(base: list[int], ours: list[int], theirs: list[int], effort: _Effort) -> list[int] | None:
    """The chunks between stable lines, settled one by one; None at the first overlap."""
    in_ours = _match(base, ours, effort)
    in_theirs = _match(base, theirs, effort)
    merged: list[int] = []
    b = o = t = 0  # where the current chunk starts
    for i in range(len(base) + 1):
        if i == len(base):
            j, k = len(ours), len(theirs)
        else:
            j, k = in_ours[i], in_theirs[i]
            if j < 0 or k < 0:
                continue
        if i > b or j > o or k > t:
            chunk, our_chunk, their_chunk = base[b:i], ours[o:j], theirs[t:k]
            if our_chunk in (chunk, their_chunk):
                merged += their_chunk
            elif their_chunk == chunk:
                merged += our_chunk
            else:
                return None
        if i < len(base):
            merged.append(base[i])
        b, o, t = i + 1, j + 1, k + 1
    return merged


def _match(a: list[int], b: list[int], effort: _Effort) -> list[int]:
    """For each index of `a` the index in `b` of the line it is matched with, or -1; matched indices ascend."""
    matched = [-1] * len(a)
    start, a_end, b_end = _trim(a, 0, len(a), b, 0, len(b))
    matched[:start] = range(start)
    matched[a_end:] = range(b_end, len(b))
    i, j = start, start
    for anchor_i, anchor_j in [*_anchors(a, b, start, a_end, b_end), (a_end, b_end)]:
        _match_gap(a, i, anchor_i, b, j, anchor_j, matched, effort)
        if anchor_i < a_end:
            matched[anchor_i] = anchor_j
        i, j = anchor_i + 1, anchor_j + 1
    return matched


def _trim(a: list[int], a_from: int, a_to: int, b: list[int], b_from: int, b_to: int) -> tuple[int, int, int]:
    """The gap without its common ends: how many lines match at its start, and where it ends now in `a` and `b`."""
    short = min(a_to - a_from, b_to - b_from)
    same = 0
    while same < short and a[a_from + same] == b[b_from + same]:
        same += 1
    short -= same
    while short and a[a_to - 1] == b[b_to - 1]:
        a_to, b_to, short = a_to - 1, b_to - 1, short - 1
    return same, a_to, b_to


def _anchors(a: list[int], b: list[int], start: int, a_end: int, b_end: int) -> list[tuple[int, int]]:
    """Pairs of indices of lines that occur once on both sides: the longest series of them ascending in both."""
    in_a, in_b = _once(a, start, a_end), _once(b, start, b_end)
    pairs = [(i, in_b[line]) for line, i in in_a.items() if line in in_b]  # ascending in i
    # Patience sorting: `tops[n]` is the lowest j on which a series of n + 1 pairs can end, `ends[n]` the pair it is.
    tops: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for index, (_, j) in enumerate(pairs):
        pile = bisect_left(tops, j)
        before.append(ends[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(j)
            ends.append(index)
        else:
            tops[pile], ends[pile] = j, index
    series = []
    index = ends[-1] if ends else -1
    while index >= 0:
        series.append(pairs[index])
        index = before[index]
    return series[::-1]


def _once(lines: list[int], start: int, end: int) -> dict[int, int]:
    """The lines that occur once in the range, in order, with their indices."""
    first: dict[int, int] = {}
    again: set[int] = set()
    for i in range(start, end):
        line = lines[i]
        if line in first:
            again.add(line)
        else:
            first[line] = i
    return {line: i for line, i in first.items() if line not in again}


def _match_gap(
    a: list[int], a_from: int, a_to: int, b: list[int], b_from: int, b_to: int, matched: list[int], effort: _Effort
) -> None:
    """Matches the lines between two anchors, into `matched`."""
    if a_from >= a_to or b_from >= b_to:
        return
    same, a_end, b_end = _trim(a, a_from, a_to, b, b_from, b_to)
    matched[a_from : a_from + same] = range(b_from, b_from + same)
    matched[a_end:a_to] = range(b_end, b_to)
    # A line that the other side lacks has no partner; without those the edit distance is small, and with it the cost.
    common = set(a[a_from + same : a_end]).intersection(b[b_from + same : b_end])
    if not common:
        return
    left = [i for i in range(a_from + same, a_end) if a[i] in common]
    right = [j for j in range(b_from + same, b_end) if b[j] in common]
    for x, y in _shortest_edit([a[i] for i in left], [b[j] for j in right], effort):
        matched[left[x]] = right[y]


def _shortest_edit(a: Sequence[int], b: Sequence[int], effort: _Effort) -> list[tuple[int, int]]:
    """Pairs of indices of a longest common subsequence, from the end (Myers' greedy algorithm).

    `rows[d][i]` is the furthest x that d edits reach on diagonal x - y = 2 * i - d. From row d - 1 a step down (a line
    of b inserted) comes from its i, a step right (a line of a deleted) from its i - 1.
    """
    n, m = len(a), len(b)
    rows: list[list[int]] = []
    previous: list[int] = [0]
    for d in range(n + m + 1):
        row: list[int] = []
        for i in range(d + 1):
            x = previous[i] if _steps_down(previous, i, d) else previous[i - 1] + 1
            y = start = x - 2 * i + d
            while x < n and y < m and a[x] == b[y]:
                x, y = x + 1, y + 1
            effort.spend(y - start + 1)
            row.append(x)
            if x == n and y == m:
                return _way_back(rows, i, x, d)
        rows.append(row)
        previous = row
    raise AssertionError("n + m edits turn any text into any other")


def _steps_down(previous: list[int], i: int, d: int) -> bool:
    return i == 0 or (i < d and previous[i - 1] < previous[i])


def _way_back(rows: list[list[int]], i: int, x: int, d: int) -> list[tuple[int, int]]:
    """The matched pairs on the way that reached `x` in row `d` at `i`, last first."""
    pairs: list[tuple[int, int]] = []
    while True:
        diagonal = 2 * i - d
        if d == 0:
            start = before = 0
        elif _steps_down(rows[d - 1], i, d):
            start = before = rows[d - 1][i]
        else:
            before = rows[d - 1][i - 1]
            start, i = before + 1, i - 1
        pairs += ((at, at - diagonal) for at in range(x - 1, start - 1, -1))
        if d == 0:
            return pairs
        x, d = before, d - 1


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
