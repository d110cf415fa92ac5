"""What goes on around the operations of a workspace that a program keeps in step, as its operations need to know it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from metasync.worktree.hints import Hinting, anywhere

if TYPE_CHECKING:
    from metasync.local.lock import Turns
    from metasync.session.session import Session


def _nobody() -> bool:
    return False


def _nothing() -> None:
    pass


def _none() -> Set[bytes]:
    return frozenset()


def _no_files() -> int:
    return 0


def _not_counted(net: int, *, forced: bool) -> None:
    pass


class Counts(Protocol):
    def __call__(self, net: int, *, forced: bool) -> None: ...


@dataclass(slots=True)
class Around:
    """Of one open workspace. What is not set holds for a command that runs alone.

    hints    where the folder may have changed; asked before each walk
    growing  files that a push leaves to a later one, though they changed
    waits    whether this program has another operation to do first: a push gives way to it
    let_in   does it, between two turns of a push
    looks    whether this program asks for news by itself: then a push that finds nothing changed asks nobody
    pulling  whether what runs now was let in by a pull, which goes on after it
    applying whether that pull is changing the folder: what needs the folder's lock is `PutOff`
    gone     how many files fewer there are than there were lately: `merge.guard` counts them too
    counts   is told by each push and pull how many files more there are after it, and whether it was forced
    """

    hints: Hinting = anywhere
    growing: Callable[[], Set[bytes]] = _none
    waits: Callable[[], bool] = _nobody
    let_in: Callable[[], None] = _nothing
    looks: bool = False
    pulling: bool = False
    applying: bool = False
    gone: Callable[[], int] = _no_files
    counts: Counts = _not_counted


@contextlib.contextmanager
def heeding(s: Session, turns: Turns | None, *, anew: bool = False) -> Iterator[None]:
    """Looks now and then meanwhile, in this thread, whether others are to go first: `GiveWay`.

    `anew`: the turn has its time for itself first, since what came before took up what earlier turns have done.
    """
    if turns is None:
        yield
        return
    if anew:
        turns.renew()
    check, looked, thread = s.runtime.check, s.tree.looked, threading.get_ident()

    def look_too() -> None:
        check()
        if threading.get_ident() == thread:
            turns.look()

    def tell_and_look(names: int) -> None:
        looked(names)
        look_too()

    s.runtime.check, s.tree.looked = look_too, tell_and_look
    try:
        yield
    finally:
        s.runtime.check, s.tree.looked = check, looked
