"""One folder on a WebDAV server, in the server's own terms: what to ask, and what its answers mean.

A 404 may mean that an object is missing, or that the whole folder is. So the folder is looked for, unless something in
it was seen a moment ago, before an object is called absent. Folders below it are made as needed; the folder itself is
made by `make_root` alone, so that its loss shows.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from metasync.backends._shared.http import timeout_s
from metasync.backends.names import TEMP_PREFIX
from metasync.backends.webdav.http import Connection, no_folder, no_room, not_the_server, refusal
from metasync.backends.webdav.xml import Found, NotXmlError, below, read_multistatus
from metasync.errors import BackendError, NotFoundError, UnreachableError
from metasync.runtime.sizes import KNOWN_FOLDERS_MAX, LEFT_OVER_MAX, SMALL_BYTES_MAX

if TYPE_CHECKING:
    from metasync.backends._shared.wire import Reply

ROOT_SEEN_S: Final = 2.0  # so long is the folder taken to be there after something in it was seen
_ROOM_BYTES: Final = 1 << 16  # that a server takes beside an object: folders, blocks that are not full
_LIST_BYTES_MAX: Final = 1 << 28  # a million names with what servers tell of each

_XML: Final = {"Content-Type": "application/xml; charset=utf-8"}
_PROPFIND: Final = '<?xml version="1.0" encoding="utf-8"?><propfind xmlns="DAV:"><prop>%s</prop></propfind>'
KIND_AND_SIZE: Final = (_PROPFIND % "<resourcetype/><getcontentlength/>").encode()
QUOTA: Final = (_PROPFIND % "<resourcetype/><quota-available-bytes/><quota-used-bytes/>").encode()

_WHOLE: Final = (
    "<http://apache.org/dav/propset/fs/1>",  # mod_dav_fs: writes beside it and renames
    "nextcloud-checksum-update",  # Nextcloud: the same, and holds a lock (apps/dav/lib/Connector/Sabre/File.php)
)
"""What servers say of themselves (OPTIONS, header DAV) that let no reader of a PUT see a part."""


class _NoFolderError(UnreachableError):
    """The folder itself is not there."""


class RemoteFolder:
    """The folder `root`, an encoded path, on a server. For several threads.

    `attempt` begins every error: "cannot put a/b in webdav://...". `parts` are names, none of which needs encoding.
    """

    def __init__(self, server: str, root: str, http: Connection, login_hint: str) -> None:
        self._server = server
        self._root = root
        self._http = http
        self._login_hint = login_hint
        self._lock = threading.Lock()
        self._known: set[tuple[str, ...]] = set()
        self._seen_at = float("-inf")
        self._writes_whole: bool | None = None
        self._left_over: list[str] = []  # temporary objects whose write broke off

    def close(self) -> None:
        self._http.close()

    def url(self, parts: Sequence[str]) -> str:
        return "/".join((self._root, *parts))

    def saw(self) -> None:
        """Something in the folder is there: so is the folder."""
        self._seen_at = time.monotonic()

    def ask(
        self,
        attempt: str,
        method: str,
        target: str,
        headers: dict[str, str] | None = None,
        data: bytes | None = None,
        down_bytes_max: int = 0,
    ) -> contextlib.AbstractContextManager[Reply]:
        """One request. `down_bytes_max`: what is wanted of the answer."""
        within_s = timeout_s(max(len(data or b""), down_bytes_max))
        return self._http.ask(attempt, method, target, headers or {}, data, within_s=within_s)

    def refusal(self, answer: Reply, attempt: str) -> BackendError:
        return refusal(answer.status, answer.headers, attempt, self._server, self._login_hint)

    def absent(self, attempt: str) -> NotFoundError:
        """For a 404 that is an answer. Raises another error if it is not: the folder itself may be gone."""
        if time.monotonic() - self._seen_at > ROOT_SEEN_S:
            self.properties(attempt, (), "0", KIND_AND_SIZE)
        return NotFoundError(f"{attempt}: it is not there")

    def properties(
        self, attempt: str, folder: tuple[str, ...], depth: str, asked: bytes, *, end: str = "/"
    ) -> list[Found]:
        """Asks by PROPFIND for a folder. `NotFoundError` if it is absent, `UnreachableError` if it is the root.

        An answer for the root says at least that it is a folder. `end`: "" for an object; not all servers take a
        folder's name without a slash, or an object's with one.
        """
        url = self.url(folder) + end
        most = _LIST_BYTES_MAX if depth == "1" else 0
        with self.ask(attempt, "PROPFIND", url, {"Depth": depth, **_XML}, asked, most) as answer:
            if answer.status == 404 and not folder:
                raise _NoFolderError(
                    f"{attempt}: there is no such folder on the server",
                    next_step="Check the URL's path. Only init and `backend add` make a folder that is missing.",
                )
            if answer.status == 404:
                raise self.absent(attempt)
            if answer.status == 207:
                try:
                    found = read_multistatus(_bounded(answer), self._server + url)
                except NotXmlError:
                    raise not_the_server(attempt) from None
                if not folder and not any(item.is_folder for item in found):
                    raise no_folder(attempt) if found else not_the_server(attempt)
                self.saw()
                return found
            if answer.status < 300:
                raise not_the_server(attempt)
            refused = self.refusal(answer, attempt)
        if answer.status == 400 and depth == "1" and folder:  # an object? Apache takes no slash behind its name
            found = self.properties(attempt, folder, "0", KIND_AND_SIZE, end="")
            if not any(item.is_folder for item in found):
                return []
        raise refused

    def entries(self, attempt: str, folder: tuple[str, ...]) -> list[tuple[str, Found]]:
        """All names directly below a folder, also those that no object can have."""
        try:
            found = self.properties(attempt, folder, "1", KIND_AND_SIZE)
        except NotFoundError:
            return []
        return below(found, self._server + self.url(folder))

    def upload(
        self, attempt: str, parts: tuple[str, ...], url: str, data: bytes, headers: dict[str, str] | None = None
    ) -> int:
        """Puts an object and makes its folders; -> the status: a success, or 412 if `headers` hold a condition.

        200 may be a login page's. It counts only if a MOVE follows, which has to say 201 or 204.
        """
        folder = parts[:-1]
        fine = {201, 204, 412} if headers else {201, 204}
        if folder and len(data) > SMALL_BYTES_MAX and folder not in self._known:  # rather than send a pack twice
            self.make_folder(attempt, folder)
        sent = {"Content-Type": "application/octet-stream", **(headers or {})}
        for made in (False, True):
            with self.ask(attempt, "PUT", url, sent, data) as answer:
                if answer.status in fine or (answer.status == 200 and not answer.is_page and not self._writes_whole):
                    self.saw()
                    self._knows(folder)
                    return answer.status
                if answer.status == 200:
                    raise not_the_server(attempt)
                if answer.status == 500 and self._is_full(attempt, len(data)):
                    raise no_room(attempt)
                if answer.status not in {404, 409} or made:
                    raise self.refusal(answer, attempt) if answer.status != 404 else self.lost(attempt)
            self.make_folder(attempt, folder)
        raise AssertionError("not reached")

    def _is_full(self, attempt: str, size: int) -> bool:
        """Whether the server tells of too little room. wsgidav, for one, says no more than 500 to what has none."""
        try:
            told = [item.free_bytes for item in self.properties(attempt, (), "0", QUOTA)]
        except BackendError:
            return False
        return any(free is not None and free < size + _ROOM_BYTES for free in told)

    @contextlib.contextmanager
    def temporary(self, attempt: str, parts: tuple[str, ...], data: bytes) -> Iterator[str]:
        """Puts an object under a temporary name beside its own, and removes it if the block is refused.

        A server that does not answer is asked nothing more; the rest is removed after the next write.
        """
        temp = self.url((*parts[:-1], TEMP_PREFIX + os.urandom(8).hex()))
        try:
            self.upload(attempt, parts, temp, data)
            yield temp
        except UnreachableError:
            with self._lock:
                self._left_over = [*self._left_over, temp][-LEFT_OVER_MAX:]
            raise
        except BackendError:
            self.discard(temp)
            raise
        if self._left_over:
            with self._lock:
                left_over, self._left_over = self._left_over, []
            for old in left_over:
                self.discard(old)

    def move(self, attempt: str, temp: str, url: str, *, overwrite: bool) -> bool:
        """Gives an object its name. False: it is taken, and the temporary object is still there."""
        headers = {"Overwrite": "T" if overwrite else "F"}
        for destination in (self._server + url, url):
            with self.ask(attempt, "MOVE", temp, {"Destination": destination, **headers}) as answer:
                if answer.status in {201, 204}:
                    return True
                if answer.status == 412 and not overwrite:
                    return False
                failed = self.refusal(answer, attempt)
            if answer.status == 404:
                raise self.lost(attempt)
            if answer.status != 502:  # a server behind a proxy may not know itself by our name for it; it takes a path
                break
        raise failed

    def discard(self, temp: str) -> None:
        with contextlib.suppress(BackendError):  # what is left over is listed nowhere
            self.remove("", temp)

    def remove(self, attempt: str, url: str) -> None:
        # Depth 0: on a folder a server then refuses, in place of removing all that is in it.
        # Nextcloud would keep what is deleted, for weeks.
        with self.ask(attempt, "DELETE", url, {"Depth": "0", "X-NC-Skip-Trashbin": "true"}) as answer:
            if answer.status == 404:
                raise self.absent(attempt)
            if answer.status == 200 and answer.is_page:
                raise not_the_server(attempt)
            if answer.status not in {200, 202, 204}:
                raise self.refusal(answer, attempt)

    def is_whole(self, attempt: str) -> bool:
        """Whether the server is one of those that write a PUT whole; asked once."""
        if self._writes_whole is None:
            with self._lock:
                if self._writes_whole is None:
                    self._writes_whole = self._says_whole(attempt)
        return self._writes_whole

    def _says_whole(self, attempt: str) -> bool:
        with self.ask(attempt, "OPTIONS", self._root + "/") as answer:
            if answer.status < 300:
                return any(sign in line for sign in _WHOLE for line in answer.each("dav"))
            if answer.status in {405, 501}:
                return False
            raise self.lost(attempt) if answer.status == 404 else self.refusal(answer, attempt)

    def make_folder(self, attempt: str, folder: tuple[str, ...]) -> None:
        """Makes a folder below the root, and those above it; never the root: that it is gone must show."""
        if not folder:
            raise self.lost(attempt)
        status, refused = self._make(attempt, self.url(folder))
        if status in {404, 409}:
            self.make_folder(attempt, folder[:-1])
            status, refused = self._make(attempt, self.url(folder))
        if status in {403, 423, 500}:  # somebody may have made it at the same moment: Apache answers 403 then
            with contextlib.suppress(NotFoundError):
                self.properties(attempt, folder, "0", KIND_AND_SIZE)
                refused = None
        if refused is not None:
            raise refused
        self._knows(folder)

    def make_root(self, attempt: str) -> None:
        """Makes the folder itself, and those above it, if it is missing."""
        with contextlib.suppress(_NoFolderError):
            self.properties(attempt, (), "0", KIND_AND_SIZE)
            return
        parts = self._root.split("/")
        made = len(parts)
        while True:  # from the folder itself upwards, to the first that can be made
            status, refused = self._make(attempt, "/".join(parts[:made]))
            if refused is None:
                break
            if status not in {404, 409} or made <= 2:
                raise refused
            made -= 1
        for count in range(made + 1, len(parts) + 1):
            _, refused = self._make(attempt, "/".join(parts[:count]))
            if refused is not None:
                raise refused

    def _make(self, attempt: str, url: str) -> tuple[int, BackendError | None]:
        with self.ask(attempt, "MKCOL", url + "/") as answer:
            if answer.status in {201, 405} or (answer.status == 200 and not answer.is_page):
                return answer.status, None
            return answer.status, self.refusal(answer, attempt)

    def lost(self, attempt: str) -> BackendError:
        """For a write that was told 404 or 409 where there is a folder. Raises another error if the root is gone."""
        self.properties(attempt, (), "0", KIND_AND_SIZE)
        return BackendError(f"{attempt}: the folder it belongs into vanished", next_step="Try again.")

    def _knows(self, folder: tuple[str, ...]) -> None:
        if folder not in self._known:
            with self._lock:
                if len(self._known) >= KNOWN_FOLDERS_MAX:
                    self._known.clear()
                self._known.add(folder)


def _bounded(answer: Reply) -> Iterator[bytes]:
    left = _LIST_BYTES_MAX
    for piece in answer.pieces():
        left -= len(piece)
        if left < 0:
            raise NotXmlError("too long")
        yield piece
