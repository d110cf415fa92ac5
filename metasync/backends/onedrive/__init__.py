"""A folder in a OneDrive, personal or of work or school: `onedrive:/folder?account=NAME`, by Microsoft Graph.

The folder lies in the app's own folder (Apps/NAME-OF-THE-APP), so that the login needs the right to that folder alone
(`Files.ReadWrite.AppFolder`), and a stolen one reaches nothing else of the account. Objects are addressed by the
folder's id and their path below it; the id is looked up by the folder's path once a day (`_shared.kept_root`). Graph
makes missing folders above what is uploaded; where it does not, they are made.

`create` is one PUT with `conflictBehavior=fail`. Whether of several racing writers exactly one is told "created" is
documented nowhere, and upload sessions are known not to heed it on some accounts (providers.md, section 2). So this
store votes in block form, where devices write names of their own.

**Reading** takes two requests: Graph answers with an address at another server that gives the bytes without a login.
**Large objects** are put by an upload session, which is two requests, from `PUT_BYTES_MAX` on.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import quote

from metasync.backends._shared.http import timeout_s
from metasync.backends._shared.kept_root import KeptRoot
from metasync.backends._shared.native_ids import NativeIds, ids_of
from metasync.backends._shared.race_probe import create_by, keeps_creates
from metasync.backends._shared.urls import byte_range, part_of
from metasync.backends.api import BackendUrl, Digest, DigestKind, Inventory, Listed, LogForm, Rate, Space
from metasync.backends.names import check_part, native_identity, split_folder, split_path
from metasync.backends.onedrive.feed import Feed
from metasync.backends.onedrive.graph import (
    ANSWER_BYTES_MAX,
    Graph,
    codes,
    found_in,
    is_absent,
    is_taken,
    not_graph,
    object_of,
    refused,
    rows_in,
)
from metasync.backends.onedrive.names import is_for_people, own, stored
from metasync.errors import BackendError, FullError, NotFoundError, UnreachableError, UsageError

if TYPE_CHECKING:
    from metasync.backends._shared.wire import Answer

PUT_BYTES_MAX: Final = 10 << 20  # Graph takes 250 MB in one request, and asks for sessions above 10 MiB
_FRAGMENT_BYTES: Final = 50 << 20  # a multiple of 320 KiB, below 60 MiB (docs of createUploadSession)
_ADDRESSES_MAX: Final = 4  # asked for in one get, where somebody replaces the object all the time
_PAGES_MAX: Final = 2000
_PROBE_NAMES: Final = 3  # a store that is late is so now and then
_PAGE_ITEMS: Final = 1000
_PATH_CHARS_MAX: Final = 200  # OneDrive takes 400 for a whole path, and ours have some 130 below the folder
_NEXT: Final = "@odata.nextLink"
_APPROOT: Final = "/v1.0/me/drive/special/approot"
_ITEMS: Final = "/v1.0/me/drive/items"
_ROOT: Final = re.compile(r"([!-~]{1,200}) ([!-~]{1,200})")  # as it is kept: the ids of the folder and of its drive
_SELECT: Final = "?$select=id,name,size,file,folder,parentReference,eTag"

_ACCOUNT: Final = re.compile(r"[a-z0-9._-]{1,40}")


class _NoFolderError(UnreachableError):
    """The store's own folder is not there."""


class OneDriveBackend:
    """A folder in the app's folder. It makes no request before the first call, and keeps its lines until `close`."""

    scheme: ClassVar[str] = "onedrive"
    form: ClassVar[LogForm] = "block"
    form_reason: ClassVar[str] = (
        "Microsoft does not say whether of two devices that create one name in OneDrive at once only one succeeds"
    )
    digest_kind: ClassVar[DigestKind] = "quickxor"
    url_params: ClassVar[frozenset[str]] = frozenset({"account"})
    rates: ClassVar[tuple[Rate, ...]] = (
        Rate("requests", 600, {"create": 1, "put": 1, "get": 2, "stat": 1, "digest": 1, "list": 1, "inventory": 2,
                               "delete": 2, "sweep": 3, "space": 1, "identity": 1}),
        Rate("units", 1250, {"create": 2, "put": 2, "get": 2, "stat": 1, "digest": 1, "list": 2, "inventory": 3,
                             "delete": 3, "sweep": 5, "space": 1, "identity": 1}),
    )  # fmt: skip
    # At work or school: of a user, and of an app in an organisation. Of personal accounts Microsoft names no number.

    def __init__(self, path: str, graph: Graph, ids: NativeIds) -> None:
        """`path`: of the folder, without slashes around it. `ids`: those of this account and folder."""
        self._path = path
        self._where = f"onedrive:/{path}"
        self._graph = graph
        self._feed = Feed(graph, ids)
        self._ids = ids
        self._root = KeptRoot(ids, _ROOT)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where})"

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        parts = url.path.strip("/").split("/")
        sound = all(map(is_for_people, parts))
        if url.host or not url.path.startswith("/") or not sound or len(url.path) > _PATH_CHARS_MAX:
            raise UsageError(
                f"not a folder in a OneDrive: {(url.host + url.path)[:80]!r}",
                next_step="Write onedrive:/folder with a name that OneDrive takes. The folder is in that of the app.",
            )
        for name, value in url.params:
            if _ACCOUNT.fullmatch(value) is None:
                raise UsageError(
                    f"not a value for {name} in a OneDrive URL: {value[:40]!r}",
                    next_step="Write the name that the account was linked by: `metasync auth --list` shows it.",
                )

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> OneDriveBackend:
        """`RefusedError` where no account is linked. With `create_root` the folder is made, if it is missing."""
        from metasync.backends._shared.logins import open_login
        from metasync.backends._shared.logins.oauth import endpoint_of

        login, path = open_login("onedrive", dict(url.params).get("account")), url.path.strip("/")
        backend = cls(path, Graph(login), ids_of(login, endpoint_of("onedrive"), path))
        if create_root:
            backend._make_root()
        return backend

    # The calls of the contract.

    def create(self, path: str, data: bytes) -> bool:
        split_path(path)
        return create_by(lambda: self._upload("create", path, data, "fail"), self, path, data)

    def put(self, path: str, data: bytes) -> None:
        split_path(path)
        if len(data) > PUT_BYTES_MAX:
            self._put_large(path, data)
        else:
            self._upload("put", path, data, "replace")

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        split_path(path)
        check_part(offset, length, max_bytes)
        if length == 0:
            self.stat(path)
            return b""
        attempt = self._attempt("get", path)
        for left in reversed(range(_ADDRESSES_MAX)):
            data = self._get(path, offset, length, max_bytes, attempt, again=left > 0)
            if data is not None:
                break
        assert data is not None
        return data

    def stat(self, path: str) -> int:
        split_path(path)
        return self._size_and_digest("stat", path).size

    def digest(self, path: str) -> Digest:
        """The quickXorHash, which shows what broke by accident. None where OneDrive has not made one yet."""
        split_path(path)
        return self._size_and_digest("digest", path)

    def list(self, path: str) -> tuple[Listed, ...]:
        split_folder(path)
        attempt = self._attempt("list", path or ".")
        address = f"{self._item(attempt, path)}:" if path else self._folder(attempt)
        target = f"{address}/children?$select=name,size,folder&$top={_PAGE_ITEMS}"
        names: dict[str, int | None] = {}
        began = time.monotonic()
        for _ in range(_PAGES_MAX):
            answer = self._graph.ask("GET", target, attempt)
            if is_absent(answer):
                self._check_root(attempt, began)
                break
            if answer.status == 400 and self._is_file(path, attempt):
                break
            page = object_of(answer, attempt, 200)
            for found in rows_in(page, attempt):
                if name := own(found.name):
                    if found.size is None and not found.is_folder:
                        raise not_graph(attempt, "a file without a size")
                    names[name] = found.size
            if _NEXT not in page:
                self._root.seen()
                break
            target = self._graph.next_target(page[_NEXT], attempt)
        return tuple(Listed(name, names[name]) for name in sorted(names))

    def delete(self, path: str) -> None:
        """By the file's id, which is asked for first: by its path a folder of that name would go with all in it."""
        split_path(path)
        attempt = self._attempt("delete", path)
        for _ in range(2):  # somebody else may delete it meanwhile; then it is not there the second time
            try:
                found = found_in(object_of(self._object("GET", path, _SELECT, attempt), attempt, 200))
            except NotFoundError:
                return
            if found is None or not found.item_id:
                raise not_graph(attempt, "a file without an id")
            self._root.seen()
            if found.is_folder:
                return
            answer = self._graph.ask("DELETE", f"{_ITEMS}/{quote(found.item_id, safe='!')}", attempt)
            if answer.status == 204:
                return
            if not is_absent(answer):
                raise refused(answer, attempt)
        raise not_graph(attempt, "a file that is there, and that its id does not name")

    def identity(self) -> bytes:
        """By the ids of the drive and the folder: one that was moved or renamed keeps them, a copy has others."""
        folder, drive = self._found(f"cannot look at {self._where}").split(" ")
        self._root.pin()
        # Personal accounts show the ids of drives in capitals or not, with zeros before them or not.
        return native_identity("onedrive", "\0".join(text.lower().lstrip("0") for text in (drive, folder)))

    def close(self) -> None:
        self._graph.close()
        self._ids.close()

    # Optional powers.

    def inventory(self, path: str, cursor: str) -> Inventory:
        """By Graph's delta, with the quickXorHash of each object; its feed of changes needs no account's consent.

        A folder that is not there is an empty one: nothing was put there yet.
        """
        split_path(path)
        attempt = self._attempt("list", path)
        began = time.monotonic()
        page = self._feed.page(self._item(attempt, path), path, cursor, attempt)
        if page is None:
            self._check_root(attempt, began)
            return Inventory((), "", more=False)
        self._root.seen()
        return page

    def space(self) -> Space:
        """What is free in the whole OneDrive; nothing where the right to the app's folder does not show it."""
        attempt = f"cannot measure {self._where}"
        answer = self._graph.ask("GET", "/v1.0/me/drive?$select=quota", attempt, passes_403=True)
        if answer.status in (403, 404) and codes(answer) & {"accessDenied", "itemNotFound", "ResourceNotFound"}:
            return Space(None, None)
        quota = object_of(answer, attempt, 200).get("quota")
        told = [quota.get(name) if isinstance(quota, dict) else None for name in ("remaining", "total")]
        free, total = (n if type(n) is int and 0 <= n < 1 << 63 else None for n in told)
        if free is None or not total:  # a business account may say 0 for "no limit"
            return Space(None, None)
        return Space(min(free, total), total)

    def sweep(self, path: str) -> None:
        """Removes folders that hold no file, each after a look into it: a deletion takes all that is in it."""
        split_path(path)
        attempt = self._attempt("sweep", path)
        for item_id in self._feed.empty_folders(self._item(attempt, path), attempt):
            address = f"{_ITEMS}/{quote(item_id, safe='!')}"
            answer = self._graph.ask("GET", f"{address}/children?$select=id&$top=1", attempt)
            if is_absent(answer) or object_of(answer, attempt, 200).get("value") != []:
                continue
            answer = self._graph.ask("DELETE", address, attempt)
            if answer.status != 204 and not is_absent(answer):
                raise refused(answer, attempt)

    def probe(self) -> LogForm:
        """The form, or "none" if what was put is not seen at once, or a taken name is given away. It disproves only."""
        try:
            kept = all(keeps_creates(self, races=False) for _ in range(_PROBE_NAMES))
        except NotFoundError:
            kept = False
        return self.form if kept else "none"

    # Requests.

    def _get(
        self, path: str, offset: int, length: int | None, max_bytes: int, attempt: str, *, again: bool
    ) -> bytes | None:
        """The part that was asked for. None if `again`, and the address that Graph gave holds no more."""
        answer = self._object("GET", path, ":/content", attempt)
        if answer.status != 302:
            raise refused(answer, attempt)
        self._root.seen()
        headers = {"Range": byte_range(offset, length)} if offset or length is not None else {}
        most = max_bytes if length is None else min(length, max_bytes)
        url = answer.headers.get("location", "")
        with self._graph.at("GET", url, attempt, headers, within_s=timeout_s(most)) as reply:
            if reply.status == 416 and headers:  # begins at or behind the end
                return b""
            if reply.status in (200, 206) and not reply.is_page:
                return part_of(reply, offset, length, max_bytes, attempt)
            if again and reply.status in (401, 403, 404, 410):  # it was replaced just now, or the address is over
                return None
            raise _not_given(refused(reply.answer(), attempt))

    def _upload(self, verb: str, path: str, data: bytes, behavior: str) -> bool:
        """Stores an object by one request. False: the name is taken."""
        attempt = self._attempt(verb, path)
        target = f"{self._item(attempt, path)}:/content?@microsoft.graph.conflictBehavior={behavior}"
        answer = self._graph.ask("PUT", target, attempt, data, "application/octet-stream")
        if is_absent(answer) and self._make_above(path, attempt):
            answer = self._graph.ask("PUT", target, attempt, data, "application/octet-stream")
        if behavior == "fail" and is_taken(answer):
            return False
        self._check_stored(answer, attempt, data, *((201,) if behavior == "fail" else (200, 201)))
        return True

    def _put_large(self, path: str, data: bytes) -> None:
        """By an upload session: what was sent becomes an object with its last fragment, and is forgotten otherwise."""
        attempt = self._attempt("put", path)
        target = f"{self._item(attempt, path)}:/createUploadSession"
        body = json.dumps({"item": {"@microsoft.graph.conflictBehavior": "replace"}}).encode()
        answer = self._graph.ask("POST", target, attempt, body)
        if is_absent(answer) and self._make_above(path, attempt):
            answer = self._graph.ask("POST", target, attempt, body)
        url = object_of(answer, attempt, 200).get("uploadUrl")
        if not isinstance(url, str):
            raise not_graph(attempt, "a session without an address")
        view = memoryview(data)
        for start in range(0, len(data), _FRAGMENT_BYTES):
            piece = bytes(view[start : start + _FRAGMENT_BYTES]) if len(data) > _FRAGMENT_BYTES else data
            end = start + len(piece)
            headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
            with self._graph.at("PUT", url, attempt, headers, piece, within_s=timeout_s(len(piece))) as reply:
                answer = reply.answer(ANSWER_BYTES_MAX)
            if end < len(data) and answer.status != 202:
                raise _not_given(refused(answer, attempt))
        if answer.status not in (200, 201):
            raise _not_given(refused(answer, attempt))
        self._check_stored(answer, attempt, data, 200, 201)

    def _check_stored(self, answer: Answer, attempt: str, data: bytes, *statuses: int) -> None:
        """That an answer says: this very object was stored."""
        found = found_in(object_of(answer, attempt, *statuses))
        if found is None or found.size is None:
            raise not_graph(attempt, "a success without the file's size")
        if found.size != len(data):
            raise BackendError(f"{attempt}: {found.size} bytes arrived of {len(data)}", next_step="Try again later.")
        self._root.seen()

    def _is_file(self, path: str, attempt: str) -> bool:
        answer = self._graph.ask("GET", f"{self._item(attempt, path)}{_SELECT}", attempt) if path else None
        found = found_in(object_of(answer, attempt, 200)) if answer is not None else None
        return found is not None and not found.is_folder

    def _size_and_digest(self, verb: str, path: str) -> Digest:
        attempt = self._attempt(verb, path)
        found = found_in(object_of(self._object("GET", path, _SELECT, attempt), attempt, 200))
        if found is None or (found.size is None and not found.is_folder):
            raise not_graph(attempt, "a file without a size")
        self._root.seen()
        if found.size is None:
            raise NotFoundError(f"{attempt}: it is a folder")
        return Digest(found.size, found.digest)

    def _object(self, method: str, path: str, what: str, attempt: str) -> Answer:
        """A request on an object. `NotFoundError` if it is not there, and only if the store's own folder is."""
        began = time.monotonic()
        answer = self._graph.ask(method, f"{self._item(attempt, path)}{what}", attempt)
        if is_absent(answer):
            self._check_root(attempt, began)
            raise refused(answer, attempt)
        return answer

    # The store's own folder.

    def _found(self, attempt: str) -> str:
        """What is kept of it (`_ROOT`). `UnreachableError` if there is none."""
        return self._root.get(attempt, lambda: self._told_of(attempt, _below(_APPROOT, self._path)))

    def _folder(self, attempt: str) -> str:
        """Its address."""
        return f"{_ITEMS}/{quote(self._found(attempt).partition(' ')[0], safe='!')}"

    def _check_root(self, attempt: str, began: float) -> None:
        """`UnreachableError` where the folder is not there; looked for unless it was seen just before `began`."""
        self._root.check(attempt, lambda: self._told_of(attempt, self._folder(attempt)), at=began)

    def _told_of(self, attempt: str, address: str) -> str:
        """What is kept of the folder that is there. `_NoFolderError` if there is none."""
        attempt = attempt if attempt.endswith(self._where) else f"{attempt} {self._where}"
        answer = self._graph.ask("GET", f"{address}{_SELECT}", attempt)
        if is_absent(answer):
            self._root.gone()
            raise _NoFolderError(
                f"{attempt}: there is no such folder in the app's folder of this OneDrive",
                next_step="Check the path and the account, or look into OneDrive's recycle bin.",
            )
        found = found_in(object_of(answer, attempt, 200))
        line = f"{found.item_id} {found.drive_id}" if found is not None and found.is_folder else ""
        if _ROOT.fullmatch(line) is None:
            raise not_graph(attempt, "what is there is no folder")
        return line

    def _make_root(self) -> None:
        attempt, address = f"cannot make {self._where}", _below(_APPROOT, self._path)
        try:
            self._root.keep(attempt, self._told_of(attempt, address))
        except _NoFolderError:
            self._make_folders(_APPROOT, self._path, attempt)
            self._root.keep(attempt, self._told_of(attempt, address))

    def _make_above(self, path: str, attempt: str) -> bool:
        """Makes the folders above an object, where Graph did not. -> True. `UnreachableError` without the store's."""
        self._check_root(attempt, float("inf"))
        self._make_folders(self._folder(attempt), stored(path).rpartition("/")[0], attempt)
        return True

    def _make_folders(self, at: str, path: str, attempt: str) -> None:
        """All folders of a path, below an address."""
        parts = path.split("/") if path else []
        for number, name in enumerate(parts):
            above = f"{_below(at, '/'.join(parts[:number]))}:" if number else at
            body = {"name": name, "folder": {}, "@microsoft.graph.conflictBehavior": "fail"}
            answer = self._graph.ask("POST", f"{above}/children", attempt, json.dumps(body).encode())
            if not is_taken(answer):
                object_of(answer, attempt, 201)

    def _item(self, attempt: str, path: str) -> str:
        """The address of an object, or of a folder of ours."""
        return f"{self._folder(attempt)}:/{stored(path)}"

    def _attempt(self, verb: str, path: str) -> str:
        return f"cannot {verb} {path} in {self._where}"


def _below(address: str, path: str) -> str:
    """The address of what has a path below that of a folder."""
    return f"{address}:/{'/'.join(quote(part, safe='') for part in path.split('/'))}"


def _not_given(error: BackendError) -> BackendError:
    """The error of an address that Graph gave out: what it does not have, or refuses, is no word on the object."""
    if isinstance(error, FullError) or error.retry_after_s is not None:
        return error
    return BackendError(error.message, next_step="Try again later.")
