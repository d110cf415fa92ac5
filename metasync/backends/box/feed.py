"""What changed at Box: a list of what is there, the account's feed of events after it, and the long poll."""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from metasync.backends.api import Change, Inventory, Item
from metasync.backends.box.folders import File, Folders, file_of, is_under, other, rows_of, text_of, type_of
from metasync.errors import BackendError, NotFoundError, RefusedError, UnreachableError

EVENTS: Final = 500
_GONE: Final = frozenset({"ITEM_TRASH"})
_THERE: Final = frozenset(
    {"ITEM_CREATE", "ITEM_UPLOAD", "ITEM_MOVE", "ITEM_RENAME", "ITEM_COPY", "ITEM_UNDELETE_VIA_TRASH"}
)
_BESIDE: Final = frozenset({"folder", "web_link"})  # an event may be about, and no object is
_POLL_S: Final = 610  # as Box says; it takes no wish for less
_POLL_LATE_S: Final = 20
_SERVER_MOST: Final = 60  # polls at one server, or minutes, whatever Box says
_AT_ONCE_S: Final = 5.0  # a poll that ends within it was told of something that had happened before
_HELD_S: Final = 60.0  # a poll that nothing ends is held open for longer, where a server still serves
_FEED_S: Final = 20 * 86_400.0  # Box keeps events for three weeks, and says nothing of those that it dropped


class _Server(NamedTuple):
    """Where a long poll goes: an address that Box gave out, for so many more polls, until a time.

    quiet  its polls that ended without news, in a row
    ended  when the last of them did
    """

    url: str
    polls: int
    until: float
    quiet: int = 0
    ended: float = 0.0


_NONE: Final = _Server("", 0, 0.0)


class _News(NamedTuple):
    """A page of the feed: the kind of each event and what it is about, as Box tells it; where the feed goes on."""

    events: list[tuple[str, Any]]
    following: str


class Feed:
    """What lies below a folder of ours, and what changes there. `attempt` begins the messages of errors."""

    def __init__(self, at: Folders) -> None:
        self._at = at
        self._server: _Server | None = None  # where the last long poll went, if it ended well
        self._again = 1  # polls that a server gets after one that ended without news

    def inventory(self, attempt: str, path: str, cursor: str) -> Inventory:
        """A list of what is below, folder by folder, then the account's feed of events."""
        fields = (cursor or f"list {self._at.ids.mark}").split(" ", 3)
        kind, mark, begun, rest = (fields + [""] * 3)[:4]
        if kind not in ("list", "feed") or mark != self._at.ids.mark or (cursor and not begun):
            raise NotFoundError(f"{attempt}: this cursor is too old")
        if kind == "feed":
            if not rest.isdigit() or not 0 <= time.time() - int(rest) < _FEED_S:
                raise NotFoundError(f"{attempt}: this cursor is too old")
            return self._events(attempt, path, begun)
        if not cursor:
            begun = self.position(attempt)
        after, _, marker = rest.partition(" ")
        folders = sorted(one for one in self._at.all(attempt) if is_under(one[0], path))
        at = next((one for one in folders if one[0] >= after), None)
        if at is None:
            return Inventory((), _feed(mark, begun), False)
        name, folder_id = at
        files, following = self._at.page(attempt, folder_id, marker if name == after else "")
        items = []
        for file in files:
            whole = self._at.path_of(file)
            if whole is not None and whole.startswith(f"{path}/"):
                items.append(_item(file, whole, path))
        if following:
            return Inventory(tuple(items), f"list {mark} {begun} {name} {following}", True)
        more = next((one[0] for one in folders if one[0] > name), None)
        if more is None:
            return Inventory(tuple(items), _feed(mark, begun), False)
        return Inventory(tuple(items), f"list {mark} {begun} {more}", True)

    def position(self, attempt: str) -> str:
        """Where the feed of events stands now."""
        return text_of(attempt, self._at.client.ask(attempt, lambda box: _now(box).next_stream_position))

    def watch(self, attempt: str, cursor: str) -> Change:
        """A long poll, which tells of all that changes in the account. What came since the cursor ends it at once.

        Box gives out a server for some polls and some minutes, and wants to be asked anew after a poll that ended with
        "reconnect". Its library of old polled the same server again. So does this, once, and in doubt never more: a
        server that refuses, ends the poll at once or was deaf to what the next one tells. Once such a poll told of
        news, servers are polled as often as Box said.
        """
        if not cursor:
            return Change(self.position(attempt), True)
        if not cursor.isdigit():
            raise NotFoundError(f"{attempt}: this cursor is too old")
        now, before = time.monotonic(), self._server or _NONE
        follows = before.quiet > 0 and now - before.ended < _AT_ONCE_S
        is_again = follows and before.polls > 0 and before.quiet <= self._again
        is_good = not before.quiet and before.polls > 0 and now < before.until
        self._server = None  # unless all goes well
        server = before if is_again or is_good else self._server_for(attempt)
        try:
            told = self._poll(attempt, server, cursor)
        except BackendError:
            if not is_again:
                raise
            self._again = 0
            return Change(cursor, False)
        ended = time.monotonic()
        if told == "new_change":
            following = self._news(attempt, cursor).following
            if is_again:
                self._again = _SERVER_MOST
            elif follows and before.quiet > 1 and ended - now < _AT_ONCE_S:
                self._again = 0
            self._server = server._replace(polls=server.polls - 1, quiet=0)
            return Change(following, True)
        if is_again and ended - now < _HELD_S:
            self._again = 0
        if told == "reconnect":
            self._server = server._replace(polls=server.polls - 1, quiet=server.quiet + 1, ended=ended)
        return Change(cursor, False)

    def _poll(self, attempt: str, server: _Server, cursor: str) -> str:
        """-> "new_change", "reconnect", or "" for any other answer."""
        url = f"{server.url}{'&' if '?' in server.url else '?'}stream_position={cursor}"
        _, _, body = self._at.client.fetch(attempt, url, within_s=_POLL_S + _POLL_LATE_S)
        return next((word for word in ("new_change", "reconnect") if b'"%b"' % word.encode() in body), "")

    def _server_for(self, attempt: str) -> _Server:
        servers = self._at.client.ask(
            attempt,
            lambda box: [one for one in box.events.get_events_with_long_polling().entries or () if _has_url(one)],
        )
        if not servers:
            raise other(attempt)
        url = str(servers[0].url).replace("http://", "https://", 1)  # Box's description has both
        minutes, polls = (_count(getattr(servers[0], name, None)) for name in ("ttl", "max_retries"))
        return _Server(url, polls, time.monotonic() + 60.0 * minutes)

    def _events(self, attempt: str, path: str, position: str) -> Inventory:
        told = self._news(attempt, position)
        items: dict[str, Item] = {}
        for kind, source in told.events:
            if kind not in _GONE | _THERE or type_of(source) in _BESIDE:
                continue
            file = self._file_of(attempt, source)
            whole = self._at.path_of(file) or self._at.path_in_new(attempt, file)
            if whole is None or not whole.startswith(f"{path}/"):
                continue
            if kind in _GONE:
                if self._at.ids.get(whole) in (file.id, None):  # not where a new file has the name
                    items[whole] = Item(whole[len(path) + 1 :], None)
            else:
                self._at.ids.note([(whole, file.id)])
                items[whole] = _item(file, whole, path)
        return Inventory(tuple(items.values()), _feed(self._at.ids.mark, told.following), bool(told.events))

    def _file_of(self, attempt: str, source: Any) -> File:
        """The file that an event is about. `NotFoundError` if it does not say: a list shows what the feed does not."""
        try:
            if type_of(source) == "file":
                return file_of(attempt, source)
        except UnreachableError:
            pass
        raise NotFoundError(f"{attempt}: an event does not say what changed")

    def _news(self, attempt: str, position: str) -> _News:
        from box_sdk_gen import GetEventsStreamType

        if not position.isdigit():
            raise NotFoundError(f"{attempt}: this cursor is too old")
        try:
            events, following = self._at.client.ask(
                attempt,
                lambda box: _read(
                    box.events.get_events(
                        stream_type=GetEventsStreamType.CHANGES, stream_position=position, limit=EVENTS
                    )
                ),
            )
        except RefusedError as error:
            raise NotFoundError(f"{attempt}: this cursor is too old") from error
        return _News(events, text_of(attempt, following))


def _item(file: File, whole: str, path: str) -> Item:
    return Item(whole[len(path) + 1 :], file.size, file.digest, file.mark)


def _now(box: Any) -> Any:
    from box_sdk_gen import GetEventsStreamType

    return box.events.get_events(stream_type=GetEventsStreamType.CHANGES, stream_position="now")


def _read(told: Any) -> tuple[list[tuple[str, Any]], Any]:
    events = [(getattr(one.event_type, "value", one.event_type), one.source) for one in rows_of(told)]
    if not all(isinstance(kind, str) for kind, _ in events):
        raise TypeError
    return events, told.next_stream_position


def _has_url(told: Any) -> bool:
    return bool(getattr(told, "url", None))


def _feed(mark: str, position: str) -> str:
    """A cursor of the feed, with its time."""
    return f"feed {mark} {position} {int(time.time())}"


def _count(told: object) -> int:
    """A number as Box tells it, within reason; 1 where it is none."""
    text = str(told)
    return min(int(text), _SERVER_MOST) if text.isdecimal() and len(text) < 9 else 1
