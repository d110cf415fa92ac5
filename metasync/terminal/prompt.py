"""Questions to whoever sits at the terminal: the only module that asks. Progress is off the screen meanwhile."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import click

from metasync.codec import printable
from metasync.terminal.bar import question


def somebody() -> bool:
    """Whether there is a terminal to ask on."""
    return sys.stdin.isatty()


@contextlib.contextmanager
def _asked() -> Iterator[None]:
    """While a question stands on the screen. What is told of one that is broken off has a line of its own."""
    with question():
        try:
            yield
        except click.Abort:
            click.echo(err=True)
            raise


def confirmed(text: str) -> bool:
    """Asks for yes or no; no is what Enter means."""
    with _asked():
        return click.confirm(printable(text), default=False, err=True)


def line(text: str, *, empty: bool = False) -> str:
    """Asks for a line. `empty`: Enter alone is an answer, too."""
    with _asked():
        return str(click.prompt(printable(text), "" if empty else None, show_default=False, err=True))


def secret(text: str, *, empty: bool = False) -> str:
    """Asks for a line that is not shown. `empty`: Enter alone is an answer, too."""
    with question():
        return str(click.prompt(printable(text), "" if empty else None, hide_input=True, show_default=False, err=True))


def tell(*lines: str) -> None:
    """Says something that belongs to a question."""
    with question():
        for text in lines:
            click.echo(printable(text), err=True)
