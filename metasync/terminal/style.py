"""Lines whose words have a role, such as `added` or `warning`; a terminal shows roles as colours. Pure.

A `Styled` line is a string of plain text: its length, comparisons and JSON know nothing of colours. `+` keeps roles;
f-strings and `join` give plain text. Only the console turns roles into escape codes, and escapes all others.

    "  " + styled("added", f"+ {text(path)}")
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from metasync.codec import printable

Role: TypeAlias = Literal["added", "changed", "deleted", "renamed", "hunk", "head", "good", "warning", "alarm", "faint"]

CODES: Final[dict[Role, str]] = {  # of ECMA-48, section 8.3.117; as git has them where git has the role
    "added": "32",
    "changed": "33",
    "deleted": "31",
    "renamed": "36",
    "hunk": "36",
    "head": "33",
    "good": "32",
    "warning": "33",
    "alarm": "1;31",
    "faint": "2",
}
SIGNS: Final[dict[str, Role]] = {
    "+": "added", "~": "changed", "*": "changed", "-": "deleted", ">": "renamed", "!": "alarm",
    "m": "changed", "t": "changed", "T": "changed",
}  # fmt: skip
WARNING: Final = "warning: "


class Styled(str):
    """A line with roles: `spans` are (begin, end, role), in order, none over another."""

    __slots__ = ("spans",)
    spans: tuple[tuple[int, int, Role], ...]

    def __new__(cls, text: str, spans: Iterable[tuple[int, int, Role]] = ()) -> Styled:
        line = super().__new__(cls, text)
        line.spans = tuple(spans)
        return line

    def __add__(self, other: str) -> Styled:
        return Styled(str(self) + str(other), (*self.spans, *_moved(other, len(self))))

    def __radd__(self, other: str) -> Styled:
        return Styled(str(other) + str(self), (*_moved(other, 0), *_moved(self, len(other))))

    def ljust(self, width: int, fillchar: str = " ", /) -> Styled:  # type: ignore[override]
        return Styled(super().ljust(width, fillchar), self.spans)

    def rjust(self, width: int, fillchar: str = " ", /) -> Styled:  # type: ignore[override]
        return Styled(super().rjust(width, fillchar), _moved(self, max(0, width - len(self))))


def styled(role: Role, text: str) -> Styled:
    """All of a text in one role."""
    return Styled(text, [(0, len(text), role)] if text else [])


def joined(between: str, parts: Iterable[str]) -> Styled:
    """As `between.join(parts)`, and keeps roles."""
    line = Styled("")
    for n, part in enumerate(parts):
        line = line + between + part if n else line + part
    return line


def signed(sign: str, words: str) -> Styled:
    """One changed path, such as `+ notes.txt`, in the role of its sign."""
    return styled(SIGNS[sign], f"{sign} {words}")


def alarm(text: str) -> Styled:
    """A line that must not be overlooked."""
    return styled("alarm", text)


class Safe(Styled):
    """A line that is safe to print as it is: `printable`, but for tabs, which a text is full of."""

    __slots__ = ()

    @classmethod
    def of(cls, line: str, role: Role | None = None) -> Styled:
        safe = "\t".join(printable(part) for part in line.split("\t"))
        return cls(safe, [(0, len(safe), role)] if role is not None and safe else [])


def rendered(line: str, *, colour: bool) -> str:
    """A line as it is printed: what is not printable escaped, and roles as codes where `colour` is wanted."""
    as_it_is = isinstance(line, Safe)
    if not colour:
        return str(line) if as_it_is else printable(line)
    spans = line.spans if isinstance(line, Styled) else ()
    if not spans and line.startswith(WARNING):
        spans = ((0, len(WARNING) - 1, "warning"),)
    out, at = [], 0
    for begin, end, role in (*spans, (len(line), len(line), "faint")):
        for piece, code in ((line[at:begin], ""), (line[begin:end], CODES[role])):
            shown = piece if as_it_is else printable(piece)
            out.append(f"\x1b[{code}m{shown}\x1b[0m" if code and shown else shown)
        at = end
    return "".join(out)


def _moved(line: str, by: int) -> tuple[tuple[int, int, Role], ...]:
    return tuple((b + by, e + by, role) for b, e, role in line.spans) if isinstance(line, Styled) else ()
