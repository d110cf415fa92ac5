"""Ignore rules: what `.metasyncignore` files say of a path, with gitignore's meaning. Pure: `ignore_files` reads them.

Of the patterns that match a path, the last one of a file decides, and a file in a deeper directory before one above it.
A pattern without a slash is about names, in its directory and all below; one with a slash is about paths from its own
directory. Nothing below an ignored directory can be taken back, because it is not looked at. (git's `dir.c` and
`wildmatch.c` are the model, and `git check-ignore` the oracle of the tests.)

The walk asks directory by directory. So a pattern is split into the directories that it speaks of, which are compared
once per directory, and an expression for one name. The expressions of a directory stand in one alternation, the last
pattern first: the first alternative that matches decides. Stars are matched in atomic groups, so that no pattern is
slow on any name. Names and patterns are bytes, as git has them: `?` and `[...]` stand for one byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from metasync.merge.copies import MARK, copied_from
from metasync.worktree.names import DEFAULT_NAMES, DEFAULT_PREFIX, OWN_PREFIX

WARNINGS_MAX: Final = 5  # bad lines told of one file: who sees these looks at the others as well
PARSED_MAX: Final = 256  # rule files kept parsed, by content
_BOM: Final = b"\xef\xbb\xbf"

_ONE = b"[^/]"
_STAR = b"*"
_CLASSES: Final[Mapping[bytes, bytes]] = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~",
    b"lower": rb"a-z",
    b"print": rb" -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb" \t\n\r",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}


class Pattern(NamedTuple):
    """One line that counts.

    keep    it starts with "!": what it matches is taken in
    where   matches the directories it speaks of, each name in them followed by a slash (b"": that of its file);
            None: that one and all below
    name    an expression for a name in them; a directory's name is followed by a slash
    """

    keep: bool
    where: re.Pattern[bytes] | None
    name: bytes


class Rules(NamedTuple):
    """The patterns of a rule file. `bad`: numbers of lines that match nothing, and why."""

    patterns: tuple[Pattern, ...]
    bad: tuple[tuple[int, str], ...] = ()

    def warnings(self, path: str) -> Iterator[str]:
        """Sentences on the bad lines of this file, which lies at `path`."""
        for number, why in self.bad[:WARNINGS_MAX]:
            yield f"{path}, line {number}: {why}; this line is left out, the others count"
        if len(self.bad) > WARNINGS_MAX:
            yield f"{path}: {len(self.bad) - WARNINGS_MAX:,} more lines like that"


class BadPattern(ValueError):  # noqa: N818  within this module
    """A pattern that can match nothing, and why."""


# ---- reading lines


@lru_cache(maxsize=PARSED_MAX)
def parse(data: bytes) -> Rules:
    """The rules in the bytes of a rule file."""
    patterns: list[Pattern] = []
    bad: list[tuple[int, str]] = []
    for number, line in enumerate(data.removeprefix(_BOM).split(b"\n"), 1):
        text = b"" if line.startswith(b"#") else _trimmed(line.removesuffix(b"\r"))
        if not text:
            continue
        try:
            patterns.append(_pattern(text))
        except BadPattern as e:
            bad.append((number, str(e)))
    return Rules(tuple(patterns), tuple(bad))


def _trimmed(line: bytes) -> bytes:
    """The line without the spaces at its end, unless a backslash stands before them."""
    end = len(line.rstrip(b" "))
    backslashes = end - len(line[:end].rstrip(b"\\"))
    return line[: end + 1] if backslashes % 2 else line[:end]


def _pattern(text: bytes) -> Pattern:
    keep = text.startswith(b"!")
    body = text[keep:]
    of_directories = body.endswith(b"/")
    if of_directories:
        body = body[:-1]
    if not body:
        raise BadPattern("it names nothing")
    if b"\0" in body:
        raise BadPattern("it holds a zero byte, which no name holds")
    end = b"/" if of_directories else b"/?"
    if b"/" not in body:
        return Pattern(keep, None, _name(_segments(body)[0]) + end)
    segments = _segments(body.removeprefix(b"/"))
    if not all(segments):
        raise BadPattern("it has two slashes in a row")
    *above, last = segments
    if _is_any_depth(last):
        above.append(last)
    return Pattern(keep, re.compile(_directories(above)), _name(last) + end)


def _segments(body: bytes) -> list[list[bytes]]:
    """A pattern as segments between its slashes; each a list of stars and of expressions for one byte."""
    out: list[list[bytes]] = [[]]
    at = 0
    while at < len(body):
        char = body[at : at + 1]
        at += 1
        if char == b"[":
            expression, at = _set(body, at)
            out[-1].append(expression)
            continue
        if char == b"\\":
            char = body[at : at + 1]
            at += 1
            if not char:
                raise BadPattern("it ends in a backslash")
        elif char in (b"*", b"?"):
            out[-1].append(_STAR if char == b"*" else _ONE)
            continue
        if char == b"/":
            out.append([])
        else:
            out[-1].append(re.escape(char))
    return out


def _set(body: bytes, at: int) -> tuple[bytes, int]:
    """The expression for `[...]`, whose first byte after the bracket is at `at`, and where it ends."""
    negated = body[at : at + 1] in (b"!", b"^")
    at += negated
    parts: list[bytes] = []
    low = -1  # what a range could start with
    first = True
    while True:
        char = body[at : at + 1]
        if not char:
            raise BadPattern("a bracket is not closed")
        if char == b"]" and not first:
            break
        first = False
        if char == b"[" and body[at + 1 : at + 2] == b":":
            end = body.find(b"]", at + 2)
            if end < 0:
                raise BadPattern("a bracket is not closed")
            if end > at + 2 and body[end - 1 : end] == b":":
                name = body[at + 2 : end - 1]
                if name not in _CLASSES:
                    raise BadPattern(f"there is no class [:{name.decode('utf-8', 'backslashreplace')}:]")
                parts.append(_CLASSES[name])
                at, low = end + 1, -1
                continue
        if char == b"-" and low >= 0 and body[at + 1 : at + 2] not in (b"", b"]"):
            at += 1
            high, at = _set_byte(body, at)
            if low <= high:
                parts.append(b"%s-%s" % (_escaped(low), _escaped(high)))
            low = -1
            continue
        low, at = _set_byte(body, at)
        parts.append(_escaped(low))
    if negated:
        return b"[^/%s]" % b"".join(parts), at + 1
    return b"(?:(?!/)[%s])" % b"".join(parts), at + 1


def _set_byte(body: bytes, at: int) -> tuple[int, int]:
    if body[at : at + 1] == b"\\":
        at += 1
    if at >= len(body):
        raise BadPattern("a bracket is not closed")
    return body[at], at + 1


def _escaped(byte: int) -> bytes:
    return b"\\x%02x" % byte


# ---- expressions


def _is_any_depth(segment: list[bytes]) -> bool:
    """`**` alone between slashes: directories, as many as there are, also none."""
    return len(segment) > 1 and all(item is _STAR for item in segment)


def _name(segment: list[bytes]) -> bytes:
    """The expression for one name. Text between two stars is taken where it comes first, so the group is atomic."""
    pieces: list[bytes] = [b""]
    for item in segment:
        if item is not _STAR:
            pieces[-1] += item
        elif pieces[-1] or len(pieces) == 1:
            pieces.append(b"")
    return _joined(pieces, b"[^/]*")


def _directories(segments: list[list[bytes]]) -> bytes:
    """The expression for a directory's path from that of the rule file, each name followed by a slash."""
    pieces: list[bytes] = [b""]
    for segment in segments:
        if not _is_any_depth(segment):
            pieces[-1] += _name(segment) + b"/"
        elif pieces[-1] or len(pieces) == 1:
            pieces.append(b"")
    return _joined(pieces, b"(?:[^/]+/)*")


def _joined(pieces: list[bytes], gap: bytes) -> bytes:
    """Pieces with gaps of any length between them."""
    if len(pieces) == 1:
        return pieces[0]
    first, *middle, last = pieces
    return first + b"".join(b"(?>%s?%s)" % (gap, piece) for piece in middle) + gap + last


class _Choice:
    """Patterns in the order of their files, as one expression."""

    def __init__(self, ranked: Sequence[tuple[int, Pattern]]) -> None:
        self._last_first = tuple(reversed(ranked))
        self._match = re.compile(b"|".join(b"(%s)" % pattern.name for _, pattern in self._last_first)).fullmatch

    def decide(self, name: bytes) -> tuple[int, bool] | None:
        """The rank of the pattern that counts for a name, and whether it ignores it."""
        found = self._match(name)
        if found is None or found.lastindex is None:
            return None
        rank, pattern = self._last_first[found.lastindex - 1]
        return rank, not pattern.keep


class Names:
    """The rules for the names in one directory."""

    def __init__(self, everywhere: _Choice, here: _Choice | None) -> None:
        self._everywhere = everywhere
        self._here = here

    def ignores(self, name: bytes, is_dir: bool) -> bool:
        """Whether an entry of the directory is left out. A conflict copy is if its original is, which stays at home."""
        if name.startswith(OWN_PREFIX):
            return True
        decided = self._decide(name, is_dir)
        while decided is None and MARK in name and (original := copied_from(name)) is not None:
            name = original
            decided = self._decide(name, is_dir)
        return bool(decided)

    def _decide(self, name: bytes, is_dir: bool) -> bool | None:
        text = name + b"/" if is_dir else name
        decided = self._everywhere.decide(text)
        if self._here is not None and (other := self._here.decide(text)) is not None:
            decided = other if decided is None else max(decided, other)
        return None if decided is None else decided[1]


class _Stack:
    """The rule files that count in some directories, from the root down."""

    def __init__(self, levels: Sequence[tuple[bytes, Rules]]) -> None:
        self.levels = tuple(levels)
        ranked = [(base, pattern) for base, rules in self.levels for pattern in rules.patterns]
        self._of_paths = [(i, base, p, p.where) for i, (base, p) in enumerate(ranked) if p.where is not None]
        self._everywhere = _Choice([(i, p) for i, (_, p) in enumerate(ranked) if p.where is None])
        self._names: dict[tuple[int, ...], Names] = {}

    def names(self, directory: bytes) -> Names:
        path = directory + b"/" if directory else b""
        active = [(i, p) for i, base, p, where in self._of_paths if where.fullmatch(path, len(base))]
        key = tuple(i for i, _ in active)
        found = self._names.get(key)
        if found is None:
            found = self._names[key] = Names(self._everywhere, _Choice(active) if active else None)
        return found


_DEFAULTS: Final = parse(b"".join(b"%s\n" % n.encode() for n in (*sorted(DEFAULT_NAMES), DEFAULT_PREFIX + "*")))


class Ruling:
    """The rule files of a whole tree, for any path. A walk may add files as it finds them."""

    def __init__(self, files: Mapping[bytes, Rules] | None = None) -> None:
        self._files = dict(files or {})
        self._stacks: dict[bytes, _Stack] = {}
        self._ignored: dict[bytes, bool] = {b"": False}  # directories
        self._plain = _Stack([(b"", _DEFAULTS)])

    def add(self, directory: bytes, rules: Rules) -> None:
        """Adds the rules in a directory, before anything inside it is asked about."""
        self._files[directory] = rules
        self._stacks.pop(directory, None)

    def names(self, directory: bytes) -> Names | None:
        """The rules for the names in a directory that is not ignored; None: only the built-in ones."""
        stack = self._stack(directory) if self._files else self._plain
        return stack.names(directory) if stack is not self._plain else None

    def ignores(self, path: bytes, is_dir: bool) -> bool:
        """Whether a path is left out, because it is ignored or lies in a directory that is."""
        below: list[bytes] = []
        directory = path.rpartition(b"/")[0]
        while directory not in self._ignored:  # no recursion: a path may have 2,048 components
            below.append(directory)
            directory = directory.rpartition(b"/")[0]
        for inner in reversed(below):
            self._ignored[inner] = self._ignored[directory] or self._is_ignored_in(directory, inner, True)
            directory = inner
        return self._ignored[directory] or self._is_ignored_in(directory, path, is_dir)

    def _is_ignored_in(self, directory: bytes, path: bytes, is_dir: bool) -> bool:
        return self._stack(directory).names(directory).ignores(path.rpartition(b"/")[2], is_dir)

    def _stack(self, directory: bytes) -> _Stack:
        below: list[bytes] = []
        while directory and directory not in self._stacks:
            below.append(directory)
            directory = directory.rpartition(b"/")[0]
        if not directory and b"" not in self._stacks:
            below.append(b"")
        stack = self._stacks.get(directory, self._plain)
        for inner in reversed(below):
            rules = self._files.get(inner)
            if rules is not None and rules.patterns:
                base = inner + b"/" if inner else b""
                stack = _Stack([*stack.levels, (base, rules)])
            self._stacks[inner] = stack
        return stack
