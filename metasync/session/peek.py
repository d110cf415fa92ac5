"""A look at one backend, for a request or a few: whether its log shows anything after what is known of it.

And where a backend would tell of an entry by itself: what a watch of it waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from metasync.backends.registry import is_watchable
from metasync.consensus.participant import OP_TIMEOUT_S
from metasync.errors import NotFoundError
from metasync.runtime.effects import Gather, Op, Reply, Task
from metasync.session.session import Session

if TYPE_CHECKING:
    from metasync.session.connections import Connections
    from metasync.session.folder import Link


PLACES_MAX: Final = 8  # that are asked for: more devices, and a look of a quorum costs little more


class Watchable(NamedTuple):
    """A backend that votes and can be watched. `path`: the folder of its votes, from the root of the store."""

    name: str
    link: Link
    path: str

    @property
    def scheme(self) -> str:
        return self.link.url.partition(":")[0]


def watchable(connections: Connections) -> tuple[Watchable, ...]:
    """The linked voting backends that tell of changes by themselves, sorted by name. Asks nobody."""
    found: list[Watchable] = []
    for entry, acceptor in connections.config.acceptors:
        way = connections.ways.get(entry.backend_id)
        if way is not None:
            one = Watchable(way.name, way.link, f"{way.link.folder}/{acceptor.acceptor_id.hex()}")
            found += [one] if is_watchable(one.scheme) else []
    return tuple(sorted(found, key=lambda one: one.name))


def voters(s: Session) -> list[str]:
    """Names of the backends that can be asked so: they vote, and this device has a way to them.

    Where some vote in log form, only these: one in block form takes a request for each other device.
    """
    forms = {acceptor.acceptor_id: acceptor.form for entry, acceptor in s.config.acceptors}
    linked = [(name, forms.get(acceptor_id)) for acceptor_id, name in s.group.participant.links.items()]
    in_logs = sorted(name for name, form in linked if form == "log")
    return in_logs or sorted(name for name, form in linked if form == "block")


def shows_news(s: Session, name: str) -> bool | None:
    """Whether a backend shows an entry after the last one that is known of its log. None: it cannot be asked so.

    It decides nothing: the entry may be no more than a round that somebody began. `BackendError`: no answer.
    """
    replies: dict[str, Reply] | None = s.runtime.run(_peek(s, name))
    if replies is None:
        return None
    failed = None
    for reply in replies.values():
        if reply.error is None:
            return True
        if not isinstance(reply.error, NotFoundError):
            failed = reply.error
    if failed is not None:
        raise failed
    return False


def _peek(s: Session, name: str) -> Task:
    """-> dict[str, Reply] of `stat`, for each place where an entry that is not known may lie; None: too many."""
    instance = yield from s.group.enter(s.newest_state())
    for acceptor in instance.acceptors.values():
        backend = acceptor.reach() if acceptor.name == name else None
        if backend is not None:
            places = acceptor.next_places()
            if len(places) > PLACES_MAX:
                return None
            ops = {place: Op(backend, "stat", place, timeout_s=OP_TIMEOUT_S) for place in places}
            return (yield Gather({place: _one(op) for place, op in ops.items()}))
    return None


def _one(op: Op) -> Task:
    reply: Reply = yield op
    return reply
