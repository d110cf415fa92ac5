"""A stand-in for Dropbox: a file system that knows no case, a feed of its changes, and one lock for a namespace.

    with running(DropboxStandin()) as standin:
        standin.link(monkeypatch)
        backend = open_backend(parse_url("dropbox:/folder"), create_root=True)

Its oracle is Dropbox's own description. Requests are decoded strictly by the validators that Dropbox generates from it,
and so is every answer encoded: a field that is missing, unknown or out of its bounds raises. `errors` and `routes` are
beside the description itself in `test_dropbox_standin.py`.
"""

from __future__ import annotations

import datetime
import itertools
import json
import threading
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dropbox import auth, files, users
from dropbox.content_hash import content_hash
from http_kit import Answer
from servers.standin import Request, Standin, json_answer
from stone.backends.python_rsrc import stone_serializers
from stone.backends.python_rsrc.stone_validators import ValidationError

HOSTS = {"api": "api.dropboxapi.com", "content": "content.dropboxapi.com", "notify": "notify.dropboxapi.com"}
ROUTES = {
    f"/2/{space}/{route.name}{'' if route.version == 1 else f'_v{route.version}'}": route
    for space, some in (
        ("files", (files.upload, files.download, files.get_metadata, files.list_folder, files.list_folder_continue,
                   files.list_folder_get_latest_cursor, files.list_folder_longpoll, files.create_folder_v2,
                   files.delete_v2)),
        ("users", (users.get_space_usage, users.get_current_account)),
    )
    for route in some
}  # fmt: skip
_EPOCH = datetime.datetime(2026, 11, 23, 18, 0, 0)


@dataclass(frozen=True)
class File:
    name: str  # as it was written; its key in the tree is in small letters
    data: bytes
    rev: str
    id: str
    hash: str


@dataclass(frozen=True)
class Folder:
    name: str
    id: str
    sharing: Any = None


@dataclass
class _Cursor:
    """Where a feed stands: what of a listing is still to be told, then the number of the last change told."""

    below: str
    recursive: bool
    limit: int
    left: list[str]
    at: int


class _RefusalError(Exception):
    """An error of a route, as its union."""

    def __init__(self, error: Any) -> None:
        self.error = error


@dataclass
class Faults:
    """What Dropbox alone does wrong.

    no_strict    `strict_conflict` is not heeded: the same bytes are no conflict
    renames      `autorename` is as if it were set
    ends_feeds   every cursor is too old
    poll_most_s  a long poll ends after so many seconds, whatever was asked
    reason       the tag of the next write's error
    range_whole  a Range is not heeded
    """

    no_strict: bool = False
    renames: bool = False
    ends_feeds: bool = False
    poll_most_s: float = 0.05
    reason: str = ""
    range_whole: bool = False
    lies_hash: set[str] = field(default_factory=set)


class DropboxStandin(Standin):
    """One account."""

    provider: ClassVar[str] = "dropbox"
    variable: ClassVar[str] = "METASYNC_DROPBOX_ENDPOINT"
    hosts: ClassVar[frozenset[str]] = frozenset(HOSTS.values())
    life_s: ClassVar[int] = 14400

    def __init__(self) -> None:
        super().__init__()
        self.faults = Faults()
        self.tree: dict[str, File | Folder] = {}  # by path in small letters
        self.changes: list[str] = []  # paths, in the order in which they changed
        self.quota_bytes = 2 << 30
        self.used_bytes = 0
        self.team: tuple[int, int] | None = None  # what a team has, and has used
        self._refresh = "refresh-of-the-tests"
        self._tokens = {"sl.token-0"}
        self._cursors: dict[str, _Cursor] = {}
        self._numbers = itertools.count(1)
        self._changed = threading.Condition(self.lock)
        self._frozen: dict[str, File | Folder] | None = None

    # Its login.

    @property
    def token(self) -> str:
        return f"sl.token-{self.renewals}"

    @property
    def refresh(self) -> str:
        return self._refresh

    def freeze(self) -> None:
        """Lists show from now on what there is now, while `switches.stale` is set."""
        self.switches.stale = True
        with self.lock:
            self._frozen = dict(self.tree)

    def objects(self) -> dict[str, bytes]:
        """All files, by path."""
        with self.lock:
            return {path: found.data for path, found in self.tree.items() if isinstance(found, File)}

    # Requests.

    def respond(self, request: Request) -> Answer:
        if request.path == "/oauth2/token":
            return self._renew(request)
        route = ROUTES.get(request.path)
        if route is None or request.method != "POST":
            self.wrong.append(f"no such route: {request.method} {request.path}")
            return Answer(404, b"", {"Content-Type": "text/plain"})
        if request.host != HOSTS[route.attrs["host"]]:
            self.wrong.append(f"{request.path} was asked of {request.host}")
        if (refused := self._unauthorized(request, route)) is not None:
            return refused
        is_rpc = route.attrs["style"] == "rpc"
        text = request.body.decode() if is_rpc else request.headers.get("dropbox-api-arg", "")
        if not text.isascii() or (is_rpc and request.headers.get("content-type") != "application/json"):
            self.wrong.append(f"{request.path}: not in the form that Dropbox takes")
        try:
            arg = stone_serializers.json_decode(route.arg_type, text or "null", strict=True)
        except (ValidationError, ValueError) as error:
            self.wrong.append(f"{request.path}: {error}")
            return Answer(400, str(error).encode(), {"Content-Type": "text/plain"})
        try:
            self._resolve(request.path, arg)
            return getattr(self, f"_{request.path.rpartition('/2/')[2].replace('/', '_')}")(request, arg)
        except _RefusalError as refusal:
            error = json.loads(stone_serializers.json_encode(route.error_type, refusal.error))
            return json_answer({"error_summary": "refused/...", "error": error}, 409)

    def _resolve(self, route: str, arg: Any) -> None:
        """A path that begins with a folder's id, as one from the top."""
        if not getattr(arg, "path", "").startswith("id:"):
            return
        folder, slash, rest = arg.path.partition("/")
        with self.lock:
            found = next((p for p, one in self.tree.items() if isinstance(one, Folder) and one.id == folder), None)
        if found is None and route == "/2/files/upload":
            failed = files.UploadWriteFailed(reason=files.WriteError.malformed_path(None), upload_session_id="u")
            raise _RefusalError(files.UploadError.path(failed))
        arg.path = f"{found or '/no folder of this id'}{slash}{rest}"

    def refusal(self, request: Request, status: int, retry_after: str | None) -> Answer:
        if status != 429:
            return super().refusal(request, status, retry_after)
        after = int(retry_after) if retry_after is not None else 1
        error = auth.RateLimitError(reason=auth.RateLimitReason.too_many_requests, retry_after=after)
        told = json.loads(stone_serializers.json_encode(auth.RateLimitError_validator, error))
        headers = {} if retry_after is None else {"Retry_After": retry_after}
        return json_answer({"error_summary": "too_many_requests/..", "error": told}, 429, **headers)

    def _unauthorized(self, request: Request, route: Any) -> Answer | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if route.attrs["auth"] == "noauth":
            if token:
                self.wrong.append(f"{request.path} was shown a token")
            return None
        if token in self._tokens - self.switches.ended - self.switches.revoked:
            return None
        tag = "expired_access_token" if token in self.switches.ended else "invalid_access_token"
        return json_answer({"error_summary": f"{tag}/..", "error": {".tag": tag}}, 401)

    def _renew(self, request: Request) -> Answer:
        form = dict(part.split("=", 1) for part in request.body.decode().split("&"))
        if form.get("refresh_token") != self._refresh or self._refresh in self.switches.revoked:
            return json_answer({"error": "invalid_grant", "error_description": "refresh token is revoked"}, 400)
        with self.lock:
            self.renewals += 1
            self._tokens.add(self.token)
        return json_answer({"access_token": self.token, "token_type": "bearer", "expires_in": self.life_s})

    # Files.

    def _files_upload(self, request: Request, arg: Any) -> Answer:
        data = request.body
        if arg.content_hash is not None and arg.content_hash != content_hash(data):
            raise _RefusalError(files.UploadError.content_hash_mismatch)
        if len(data) > 150 << 20:
            raise _RefusalError(files.UploadError.payload_too_large)
        with self.lock:
            self._check_write(arg, data)
        self.between()  # Dropbox holds the namespace meanwhile; what it would be if it did not
        with self.lock:
            if self.switches.between is None:
                self._check_write(arg, data)
            key, old = arg.path.lower(), self.tree.get(arg.path.lower())
            for above in _above(arg.path):
                self._make_folder(above)
            number = next(self._numbers)
            if isinstance(old, File) and old.data == data:
                return json_answer(_encoded(files.FileMetadata_validator, self._metadata(key, old)))
            file_id = old.id if isinstance(old, File) else f"id:{number:022d}"
            new = File(arg.path.rpartition("/")[2], data, f"{number:016x}", file_id, content_hash(data))
            self.used_bytes += len(data) - (len(old.data) if isinstance(old, File) else 0)
            self._set(key, new)
            return json_answer(_encoded(files.FileMetadata_validator, self._metadata(key, new)))

    def _check_write(self, arg: Any, data: bytes) -> None:
        def refused(error: Any) -> _RefusalError:
            return _RefusalError(files.UploadError.path(files.UploadWriteFailed(reason=error, upload_session_id="u")))

        if self.faults.reason:
            tag, self.faults.reason = self.faults.reason, ""
            raise refused(getattr(files.WriteError, tag))
        old = self.tree.get(arg.path.lower())
        for above in _above(arg.path):
            if isinstance(self.tree.get(above.lower()), File):
                raise refused(files.WriteError.conflict(files.WriteConflictError.file_ancestor))
        if isinstance(old, Folder):
            raise refused(files.WriteError.conflict(files.WriteConflictError.folder))
        if isinstance(old, File) and arg.mode.is_add() and not self.faults.renames:
            same = old.data == data and (not arg.strict_conflict or self.faults.no_strict)
            if not same and not arg.autorename:
                raise refused(files.WriteError.conflict(files.WriteConflictError.file))
        more = len(data) - (len(old.data) if isinstance(old, File) else 0)
        if self.switches.full or self.used_bytes + more > self.quota_bytes:
            raise refused(files.WriteError.insufficient_space)

    def _files_download(self, request: Request, arg: Any) -> Answer:
        with self.lock:
            found = self._found(arg.path, files.DownloadError.path)
            if isinstance(found, Folder):
                raise _RefusalError(files.DownloadError.path(files.LookupError.not_file))
            told = _encoded(files.FileMetadata_validator, self._metadata(arg.path.lower(), found))
        headers = {"Dropbox-API-Result": json.dumps(told), "Content-Type": "application/octet-stream"}
        asked, data = request.headers.get("range"), found.data
        if asked is None or self.faults.range_whole:
            return Answer(200, data, headers)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last) + 1 if last else len(data), len(data))
        if begin >= len(data):
            return Answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        return Answer(206, data[begin:end], headers)

    def _files_get_metadata(self, _: Request, arg: Any) -> Answer:
        with self.lock:
            found = self._found(arg.path, files.GetMetadataError.path)
            return json_answer(_encoded(files.Metadata_validator, self._metadata(arg.path.lower(), found)))

    def _files_create_folder_v2(self, _: Request, arg: Any) -> Answer:
        with self.lock:
            for at in (*_above(arg.path), arg.path):
                found = self.tree.get(at.lower())
                if found is not None and (at == arg.path or isinstance(found, File)):
                    kind = "folder" if isinstance(found, Folder) else "file" if at == arg.path else "file_ancestor"
                    conflict = files.WriteError.conflict(getattr(files.WriteConflictError, kind))
                    raise _RefusalError(files.CreateFolderError.path(conflict))
                self._make_folder(at)
            made = self.tree[arg.path.lower()]
            result = files.CreateFolderResult(metadata=self._metadata(arg.path.lower(), made))
            return json_answer(_encoded(files.create_folder_v2.result_type, result))

    def _files_delete_v2(self, _: Request, arg: Any) -> Answer:
        with self.lock:
            key = arg.path.lower()
            found = self.tree.get(key)
            if found is None:
                raise _RefusalError(files.DeleteError.path_lookup(files.LookupError.not_found))
            if arg.parent_rev is not None and (isinstance(found, Folder) or found.rev != arg.parent_rev):
                conflict = files.WriteError.conflict(files.WriteConflictError.file)
                raise _RefusalError(files.DeleteError.path_write(conflict))
            told = self._metadata(key, found)
            for below in [path for path in self.tree if path == key or path.startswith(f"{key}/")]:
                gone = self.tree.pop(below)
                self.used_bytes -= len(gone.data) if isinstance(gone, File) else 0
            self._note(key)
            return json_answer(_encoded(files.delete_v2.result_type, files.DeleteResult(metadata=told)))

    # The feed.

    def _files_list_folder(self, _: Request, arg: Any) -> Answer:
        with self.lock:
            tree = self.tree if self._frozen is None or not self.switches.stale else self._frozen
            found = tree.get(arg.path.lower())
            if arg.path and found is None:
                raise _RefusalError(files.ListFolderError.path(files.LookupError.not_found))
            if isinstance(found, File):
                raise _RefusalError(files.ListFolderError.path(files.LookupError.not_folder))
            below = arg.path.lower() + "/"
            names = [
                path for path in tree if path.startswith(below) and (arg.recursive or "/" not in path[len(below) :])
            ]
            names += [arg.path.lower()] if arg.recursive and arg.path else []  # a folder is in its own recursive list
            left = self._shown_paths(sorted(names))
            return self._page(_Cursor(below, arg.recursive, arg.limit or 2000, left, len(self.changes)), tree)

    def _files_list_folder_continue(self, _: Request, arg: Any) -> Answer:
        with self.lock:
            cursor = self._cursors.get(arg.cursor)
            if cursor is None or self.faults.ends_feeds:
                raise _RefusalError(files.ListFolderContinueError.reset)
            if cursor.below != "/" and not isinstance(self.tree.get(cursor.below[:-1]), Folder):
                raise _RefusalError(files.ListFolderContinueError.path(files.LookupError.not_found))
            cursor = _Cursor(cursor.below, cursor.recursive, cursor.limit, list(cursor.left), cursor.at)
            if not cursor.left:
                changed = [path for path in self.changes[cursor.at :] if self._is_in(path, cursor)]
                cursor.left = self._shown_paths(list(dict.fromkeys(changed)))
                cursor.at = len(self.changes)
            return self._page(cursor, self.tree)

    def _files_list_folder_get_latest_cursor(self, _: Request, arg: Any) -> Answer:
        with self.lock:
            if arg.path and not isinstance(self.tree.get(arg.path.lower()), Folder):
                raise _RefusalError(files.ListFolderError.path(files.LookupError.not_found))
            cursor = _Cursor(arg.path.lower() + "/", arg.recursive, 2000, [], len(self.changes))
            result = files.ListFolderGetLatestCursorResult(cursor=self._kept(cursor))
            return json_answer(_encoded(files.list_folder_get_latest_cursor.result_type, result))

    def _files_list_folder_longpoll(self, _: Request, arg: Any) -> Answer:
        with self._changed:
            cursor = self._cursors.get(arg.cursor)
            if cursor is None or self.faults.ends_feeds:
                raise _RefusalError(files.ListFolderLongpollError.reset)

            def is_told() -> bool:
                return bool(cursor.left) or any(self._is_in(path, cursor) for path in self.changes[cursor.at :])

            self._changed.wait_for(is_told, min(arg.timeout, self.faults.poll_most_s))
            result = files.ListFolderLongpollResult(changes=is_told(), backoff=None)
            return json_answer(_encoded(files.list_folder_longpoll.result_type, result))

    def _shown_paths(self, paths: list[str]) -> list[str]:
        hidden = [path for path in paths if path.rpartition("/")[2] in self.switches.hidden]
        return self.shown([path for path in paths if path not in hidden])

    def _is_in(self, path: str, cursor: _Cursor) -> bool:
        below = path.startswith(cursor.below)
        return below and (cursor.recursive or "/" not in path[len(cursor.below) :])

    def _page(self, cursor: _Cursor, tree: dict[str, File | Folder]) -> Answer:
        now, cursor.left = cursor.left[: cursor.limit], cursor.left[cursor.limit :]
        entries = [self._metadata(path, tree.get(path)) for path in now]
        more = bool(cursor.left)
        result = files.ListFolderResult(entries=entries, cursor=self._kept(cursor), has_more=more)
        return json_answer(_encoded(files.list_folder.result_type, result))

    def _kept(self, cursor: _Cursor) -> str:
        name = f"AAF{next(self._numbers):060d}"
        self._cursors[name] = cursor
        return name

    # The account.

    def _users_get_space_usage(self, _: Request, __: Any) -> Answer:
        allocation = users.SpaceAllocation.individual(users.IndividualSpaceAllocation(allocated=self.quota_bytes))
        if self.team is not None:
            team = users.TeamSpaceAllocation(
                used=self.team[1], allocated=self.team[0], user_within_team_space_allocated=0,
                user_within_team_space_limit_type=users.team_common.MemberSpaceLimitType.off,
                user_within_team_space_used_cached=0,
            )  # fmt: skip
            allocation = users.SpaceAllocation.team(team)
        usage = users.SpaceUsage(used=self.used_bytes, allocation=allocation)
        return json_answer(_encoded(users.get_space_usage.result_type, usage))

    # What they are made of.

    def _found(self, path: str, error: Any) -> Any:
        found = self.tree.get(path.lower())
        if found is None:
            raise _RefusalError(error(files.LookupError.not_found))
        return found

    def _make_folder(self, path: str) -> None:
        if path.lower() not in self.tree:
            self._set(path.lower(), Folder(path.rpartition("/")[2], f"id:{next(self._numbers):022d}"))

    def _set(self, key: str, value: File | Folder) -> None:
        self.tree[key] = value
        self._note(key)

    def _note(self, key: str) -> None:
        self.changes.append(key)
        self._changed.notify_all()

    def _metadata(self, key: str, found: File | Folder | None) -> Any:
        display = key  # Dropbox's has the letters of the folders above; ours are small
        if found is None:
            return files.DeletedMetadata(name=key.rpartition("/")[2], path_lower=key, path_display=display)
        where = {"name": found.name, "id": found.id, "path_lower": key, "path_display": display}
        if isinstance(found, Folder):
            return files.FolderMetadata(**where, sharing_info=found.sharing)
        lies = key in self.faults.lies_hash
        return files.FileMetadata(
            **where, client_modified=_EPOCH, server_modified=_EPOCH, rev=found.rev, size=len(found.data),
            content_hash="0" * 64 if lies else found.hash, is_downloadable=True,
        )  # fmt: skip


def _above(path: str) -> list[str]:
    """The folders above a path."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(2, len(parts))]


def _encoded(validator: Any, value: Any) -> Any:
    """As JSON, which the validator holds against Dropbox's description."""
    return json.loads(stone_serializers.json_encode(validator, value))
