"""A look at one backend, for one request: whether its log shows anything after what is known of it.

And where a backend would tell of an entry by itself: what a watch of it waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from metasync.backends.registry import is_watchable, parse_url
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.participant import OP_TIMEOUT_S
from metasync.errors import NotFoundError
from metasync.runtime.effects import Op, Reply, Task
from metasync.session.session import Session

if TYPE_CHECKING:
    from metasync.session.connections import Connections
    from metasync.session.folder import Link


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
    found = []
    for entry, acceptor in connections.config.acceptors:
        way = connections.ways.get(entry.backend_id)
        if way is not None and is_watchable(parse_url(way.link.url).scheme):
            found.append(Watchable(way.name, way.link, f"{way.link.folder}/{acceptor.acceptor_id.hex()}"))
    return tuple(sorted(found))


def voters(s: Session) -> list[str]:
    """Names of the backends that can be asked so: they vote, in log form, and this device has a way to them."""
    acceptors = {acceptor.acceptor_id for entry, acceptor in s.config.acceptors if acceptor.form == "log"}
    return sorted(name for acceptor_id, name in s.group.participant.links.items() if acceptor_id in acceptors)


def shows_news(s: Session, name: str) -> bool | None:
    """Whether a backend shows an entry after the last one that is known of its log. None: it cannot be asked so.

    It decides nothing: the entry may be no more than a round that somebody began. `BackendError`: no answer.
    """
    reply: Reply | None = s.runtime.run(_peek(s, name))
    if reply is None:
        return None
    if isinstance(reply.error, NotFoundError):
        return False
    if reply.error is not None:
        raise reply.error
    return True


def _peek(s: Session, name: str) -> Task:
    instance = yield from s.group.enter(s.newest_state())
    for acceptor in instance.acceptors.values():
        if acceptor.name == name and isinstance(acceptor, LogAcceptor):
            backend = acceptor.reach()
            if backend is None:
                return None
            path = acceptor.place(acceptor.log.next_idx)
            reply: Reply = yield Op(backend, "stat", path, timeout_s=OP_TIMEOUT_S)
            return reply
    return None
