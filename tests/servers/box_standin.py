"""A stand-in for Box: files by id, one name for one thing in a folder, a trash, a feed of events and its long poll.

    with running(BoxStandin()) as standin:
        standin.link(monkeypatch, home)
        backend = open_backend(parse_url("box:/folder"), create_root=True)

Its oracle is Box's own description of its API (`box_description`): paths, hosts, parameters, fields, the form of what
is sent, and of every answer. What it does not say stands in Box's guides, or is a guess that a comment names.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import threading
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs

from http_kit import Answer
from servers.box_description import Described, Operation
from servers.standin import Request, Standin, json_answer

API, UPLOAD, CONTENT, REALTIME = "api.box.com", "upload.box.com", "dl.boxcloud.com", "2.realtime.services.box.net"
ROOT: Final = "0"
USER: Final = "17738362"
_BEGIN: Final = 1152922976252290886  # the first position of the feed: larger than a float holds
_NAME: Final = re.compile(r"(?! )[^/\\\x00-\x1f]+(?<! )")
_RANGE: Final = re.compile(r"bytes=([0-9]+)-([0-9]*)")
_PART: Final = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)")


@dataclass
class Item:
    """A file, or a folder where `data` is None."""

    id: str
    name: str
    parent: str
    data: bytes | None
    sha1: str = ""
    etag: int = 0
    is_trashed: bool = False


@dataclass(frozen=True)
class Event:
    id: str
    type: str
    item: Item


@dataclass
class Session:
    """An upload in parts. `file`: whose new version it is; "": a new file's."""

    id: str
    folder: str
    name: str
    size: int
    file: str
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)  # id and bytes, by where they begin


@dataclass
class Faults:
    """What Box alone does wrong.

    conflicts      "object" or "list": how a 409 tells what has the name; of a folder it is always a list
    no_conflicts   a 409 does not tell it at all
    code           the code of the next write's 409, which does nothing: `name_temporarily_reserved`
    reason         (status, code) of the next answer's error
    racy           a name is not looked at again after the switch `between`: two files get it
    late           lists do not show the newest so many items; by id they are there
    lies_sha1      ids or names of files whose SHA-1 is another one
    no_sha1        files have no SHA-1
    range_whole    a Range is not heeded
    unready        so many downloads are put off: 202, with Retry-After
    unprocessed    so many commits of sessions are put off likewise
    retry_after    what those two say, in seconds
    dead_links     addresses of downloads are not known any more: 404
    repeats        every page of events begins with those of the page before
    ends_feeds     every position of the feed is too old: 400
    forgotten      the oldest so many events are not told any more, without a word
    bare_trash     an event of what went to the trash does not tell its folder
    poll_most_s    a long poll ends after so many seconds
    keeps_trash    what is in the trash is not removed for good: 403
    unlimited      the account has no limit
    """

    conflicts: str = "object"
    no_conflicts: bool = False
    code: str = ""
    reason: tuple[int, str] | None = None
    racy: bool = False
    late: int = 0
    lies_sha1: set[str] = field(default_factory=set)
    no_sha1: bool = False
    range_whole: bool = False
    unready: int = 0
    unprocessed: int = 0
    retry_after: str = "1"
    dead_links: bool = False
    repeats: bool = False
    ends_feeds: bool = False
    forgotten: int = 0
    bare_trash: bool = False
    poll_most_s: float = 0.05
    keeps_trash: bool = False
    unlimited: bool = False


class _RefusalError(Exception):
    def __init__(self, status: int, code: str, **context: Any) -> None:
        self.status, self.code, self.context = status, code, context


class BoxStandin(Standin):
    """One account."""

    provider: ClassVar[str] = "box"
    variable: ClassVar[str] = "METASYNC_BOX_ENDPOINT"
    hosts: ClassVar[frozenset[str]] = frozenset({API, UPLOAD, CONTENT, REALTIME})
    has_secret: ClassVar[bool] = True
    described: ClassVar[Described] = Described()

    def __init__(self) -> None:
        super().__init__()
        self.faults = Faults()
        self.items = {ROOT: Item(ROOT, "All Files", "", None)}
        self.events: list[Event] = []
        self.quota_bytes = 10 << 30
        self.file_bytes_max = 5 << 30
        self.page_most = 1000
        self.session_bytes_min = 20_000_000
        self.part_bytes = 8 << 20
        self._children: dict[str, list[str]] = {ROOT: []}
        self._names: dict[tuple[str, str], str] = {}  # ids by folder and name in small letters
        self._used = 0
        self._refresh = "refresh-of-the-tests-0"
        self._tokens = {"box-token-0"}
        self._numbers = itertools.count(1)
        self._links: dict[str, bytes] = {}
        self._sessions: dict[str, Session] = {}
        self._changed = threading.Condition(self.lock)
        self._frozen: dict[str, list[Item]] | None = None

    # Its login.

    @property
    def token(self) -> str:
        return f"box-token-{self.renewals}"

    @property
    def refresh(self) -> str:
        return self._refresh

    # What a test looks at, and what others do to the account.

    def freeze(self) -> None:
        """Lists show from now on what there is now, while `switches.stale` is set."""
        with self.lock:
            self.switches.stale = True
            self._frozen = {at: [replace(self.items[one]) for one in ids] for at, ids in self._children.items()}

    def objects(self) -> dict[str, bytes]:
        """All files that are not in the trash, by path; of twins the oldest."""
        with self.lock:
            found = [item for item in self.items.values() if item.data is not None and not self._in_trash(item)]
            return {self.path(item.id): item.data or b"" for item in reversed(found)}

    def find(self, path: str) -> Item:
        """What lies at a path, by its names in any case; KeyError."""
        with self.lock:
            at = ROOT
            for name in path.strip("/").split("/"):
                at = self._names[at, name.lower()] if name else at
            return self.items[at]

    def path(self, item_id: str) -> str:
        item = self.items[item_id]
        return "" if item_id == ROOT else f"{self.path(item.parent)}/{item.name}"

    def add(self, name: str, data: bytes | None, parent: str = ROOT) -> Item:
        """A file that somebody else's request made; a folder where `data` is None. A name may become a twin's."""
        with self.lock:
            return self._made(name, parent, data)

    def trash(self, item_id: str) -> None:
        """What somebody else's request put into the trash."""
        with self.lock:
            self._to_trash(self.items[item_id])

    # Requests.

    def respond(self, request: Request) -> Answer:
        if request.path == "/oauth2/token" and request.method == "POST":
            return self._renew(request)
        if request.host in (CONTENT, REALTIME) and request.method == "GET":
            if "authorization" in request.headers:
                self.wrong.append(f"{request.host} was shown a token")
            return self._content(request) if request.host == CONTENT else self._subscribe(request)
        found = self.described.find(request)
        if found is None:
            self.wrong.append(f"no such operation: {request.method} {request.host}{request.path}")
            return _error(404, "not_found")
        operation, named = found
        answer = self._answered(operation, request, named)
        self._say(operation, self.described.wrong_answer(operation, answer))
        return answer

    def refusal(self, request: Request, status: int, retry_after: str | None) -> Answer:
        codes = {429: "too_many_requests", 503: "unavailable"}
        headers = {} if retry_after is None else {"Retry_After": retry_after}
        return _error(status, codes.get(status, "internal_server_error"), None, **headers)

    def _answered(self, operation: Operation, request: Request, named: dict[str, str]) -> Answer:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self._tokens - self.switches.ended - self.switches.revoked:
            told = 'Bearer realm="Service", error="invalid_token"'
            return Answer(401, b"", {"WWW-Authenticate": told})
        if "access_token" in request.query:
            self.wrong.append(f"{operation.name} has a token in its address")
        try:
            form, data = _form(request)
            self._say(operation, self.described.wrong_request(operation, request, form))
            if self.faults.reason is not None:
                (status, code), self.faults.reason = self.faults.reason, None
                raise _RefusalError(status, code)
            do = getattr(self, f"_{operation.name}")
            answer: Answer = do(request, *named.values(), *(() if form is None else (form["attributes"], data)))
        except _RefusalError as refused:
            return _error(refused.status, refused.code, refused.context)
        except (KeyError, TypeError, ValueError) as error:
            self.wrong.append(f"{operation.name}: not in the form that Box takes: {error!r}")
            return _error(400, "bad_request")
        return answer

    def _say(self, operation: Operation, wrong: list[str]) -> None:
        self.wrong += [f"{operation.name}: {text}" for text in wrong]

    def _renew(self, request: Request) -> Answer:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if (form.get("client_id"), form.get("client_secret")) != ("app", "secret"):
            return json_answer({"error": "invalid_client", "error_description": "The client credentials are bad"}, 400)
        with self.lock:
            if form.get("refresh_token") != self._refresh or self._refresh in self.switches.revoked:
                told = {"error": "invalid_grant", "error_description": "Refresh token has expired"}
                return json_answer(told, 400)
            self.renewals += 1
            self._tokens.add(self.token)
            self._refresh = f"refresh-of-the-tests-{self.renewals}"
            return json_answer(
                {
                    "access_token": self.token, "expires_in": self.life_s, "restricted_to": [],
                    "refresh_token": self._refresh, "token_type": "bearer",
                }
            )  # fmt: skip

    # Uploads.

    def _options_files_content(self, request: Request) -> Answer:
        body = request.json()
        with self.lock:
            self._check_write(body["name"], body["parent"]["id"], body.get("size", 0))
        return json_answer({"upload_url": f"https://{UPLOAD}/api/2.0/files/content", "upload_token": "told"})

    def _post_files_content(self, request: Request, attributes: Any, data: bytes) -> Answer:
        self._check_digest(request, data)
        made = self._store(attributes["name"], attributes["parent"]["id"], data)
        return json_answer(self._files_of(made, request), 201)

    def _post_files_id_content(self, request: Request, file_id: str, attributes: Any, data: bytes) -> Answer:
        self._check_digest(request, data)
        changed = self._change(file_id, attributes["name"], data, request.headers.get("if-match"))
        return json_answer(self._files_of(changed, request))

    def _store(self, name: str, parent: str, data: bytes | None) -> Item:
        """A new item, under a name that is free: looked at and taken under one lock."""
        with self.lock:
            self._check_write(name, parent, len(data or b""))
        self.between()
        with self.lock:
            if not self.faults.racy:
                self._check_write(name, parent, len(data or b""))
            if self.faults.code:
                code, self.faults.code = self.faults.code, ""
                raise _RefusalError(409, code)
            return self._made(name, parent, data)

    def _change(self, file_id: str, name: str, data: bytes, if_match: str | None) -> Item:
        with self.lock:
            self._found(file_id, "file")
        self.between()
        with self.lock:
            file = self._found(file_id, "file")
            if self.faults.code:
                code, self.faults.code = self.faults.code, ""
                raise _RefusalError(409, code)
            if if_match is not None and if_match != f"{file.etag}":
                raise _RefusalError(412, "precondition_failed")
            if name.lower() != file.name.lower():
                self._check_write(name, file.parent, len(data))
                self._unname(file)
                self._names[file.parent, name.lower()] = file.id
            else:
                self._check_space(len(data))
            file.name, file.data, file.sha1, file.etag = name, data, _sha1(data).hex(), file.etag + 1
            self._used += len(data)  # versions stay
            self._note("ITEM_UPLOAD", file)
            return file

    def _check_write(self, name: str, parent: str, size: int) -> None:
        if len(name) > 255:
            raise _RefusalError(400, "item_name_too_long")
        if _NAME.fullmatch(name) is None or name in (".", ".."):
            raise _RefusalError(400, "item_name_invalid")
        self._found(parent, "folder")
        old = self._names.get((parent, name.lower()))
        if old is not None:
            raise _RefusalError(409, "item_name_in_use", **self._conflict(self.items[old]))
        self._check_space(size)

    def _check_space(self, size: int) -> None:
        if size > self.file_bytes_max:
            raise _RefusalError(403, "file_size_limit_exceeded")
        is_over = self._used + size > self.quota_bytes and not self.faults.unlimited
        if size and (self.switches.full or is_over):  # a look at a name is one for 0 bytes
            raise _RefusalError(403, "storage_limit_exceeded")

    def _conflict(self, item: Item) -> dict[str, Any]:
        if self.faults.no_conflicts:
            return {}
        told = _picked(self._told(item), "file_version,id,name,sequence_id,sha1")
        return {"conflicts": told if item.data is not None and self.faults.conflicts == "object" else [told]}

    def _check_digest(self, request: Request, data: bytes) -> None:
        told = request.headers.get("content-md5")  # it has the SHA-1; what Box answers to another one is a guess
        if told is not None and told.lower() != _sha1(data).hex():
            raise _RefusalError(400, "bad_digest")

    # Uploads in parts.

    def _post_files_upload_sessions(self, request: Request) -> Answer:
        body = request.json()
        with self.lock:
            self._check_write(body["file_name"], body["folder_id"], body["file_size"])
            return self._begun(Session("", body["folder_id"], body["file_name"], body["file_size"], ""))

    def _post_files_id_upload_sessions(self, request: Request, file_id: str) -> Answer:
        body = request.json()
        with self.lock:
            file = self._found(file_id, "file")
            self._check_space(body["file_size"])
            return self._begun(Session("", file.parent, body.get("file_name", file.name), body["file_size"], file_id))

    def _begun(self, session: Session) -> Answer:
        if session.size < self.session_bytes_min:
            raise _RefusalError(400, "file_size_too_small")
        session.id = f"F971964745A5CD0C001BBE4E{next(self._numbers):08X}"
        self._sessions[session.id] = session
        return json_answer(self._session_told(session), 201)

    def _session_told(self, session: Session) -> dict[str, Any]:
        at = f"https://{UPLOAD}/api/2.0/files/upload_sessions/{session.id}"
        return {
            "id": session.id, "type": "upload_session", "session_expires_at": "2026-11-30T18:00:00Z",
            "part_size": self.part_bytes, "total_parts": -(-session.size // self.part_bytes),
            "num_parts_processed": len(session.parts),
            "session_endpoints": {
                "upload_part": at, "commit": f"{at}/commit", "abort": at, "list_parts": f"{at}/parts", "status": at,
                "log_event": f"{at}/log",
            },
        }  # fmt: skip

    def _get_files_upload_sessions_id(self, _: Request, session_id: str) -> Answer:
        with self.lock:
            return json_answer(self._session_told(self._session(session_id)))

    def _put_files_upload_sessions_id(self, request: Request, session_id: str) -> Answer:
        where = _PART.fullmatch(request.headers["content-range"])
        if where is None:
            raise ValueError(request.headers["content-range"])
        begin, last, size = map(int, where.groups())
        with self.lock:
            session = self._session(session_id)
            is_last = last + 1 == session.size
            fits = size == session.size and begin % self.part_bytes == 0 and len(request.body) == last + 1 - begin
            if not fits or (len(request.body) != self.part_bytes and not (is_last and request.body)):
                raise _RefusalError(416, "bad_request")
            if request.headers["digest"] != f"sha={base64.b64encode(_sha1(request.body)).decode()}":
                raise _RefusalError(412, "precondition_failed")
            if begin in session.parts and session.parts[begin][1] != request.body:
                raise _RefusalError(409, "conflict")
            session.parts.setdefault(begin, (f"{next(self._numbers):08X}", request.body))
            return json_answer({"part": _part_told(begin, session)})

    def _get_files_upload_sessions_id_parts(self, request: Request, session_id: str) -> Answer:
        at, most = int(request.query.get("offset", "0")), int(request.query.get("limit", "1000"))
        with self.lock:
            session = self._session(session_id)
            told = [_part_told(begin, session) for begin in sorted(session.parts)]
        return json_answer({"total_count": len(told), "offset": at, "limit": most, "entries": told[at : at + most]})

    def _post_files_upload_sessions_id_commit(self, request: Request, session_id: str) -> Answer:
        with self.lock:
            session = self._session(session_id)
            if self.faults.unprocessed:
                self.faults.unprocessed -= 1
                return Answer(202, b"", {"Retry-After": self.faults.retry_after})
            data = b"".join(session.parts[begin][1] for begin in sorted(session.parts))
            listed = sorted((part["part_id"], part["offset"], part["size"]) for part in request.json()["parts"])
            there = sorted((part_id, begin, len(part)) for begin, (part_id, part) in session.parts.items())
            if listed != there or len(data) != session.size:
                raise _RefusalError(400, "bad_request")
            if request.headers["digest"] != f"sha={base64.b64encode(_sha1(data)).decode()}":
                raise _RefusalError(412, "precondition_failed")
        if session.file:
            item = self._change(session.file, session.name, data, request.headers.get("if-match"))
        else:
            item = self._store(session.name, session.folder, data)
        with self.lock:
            self._sessions.pop(session_id, None)
            return json_answer(self._files_of(item, request), 201)

    def _delete_files_upload_sessions_id(self, _: Request, session_id: str) -> Answer:
        with self.lock:
            del self._sessions[self._session(session_id).id]
        return Answer(204, b"")

    def _session(self, session_id: str) -> Session:
        if session_id not in self._sessions:
            raise _RefusalError(404, "not_found")
        return self._sessions[session_id]

    # Files.

    def _get_files_id(self, request: Request, file_id: str) -> Answer:
        with self.lock:
            return json_answer(self._shown_item(self._found(file_id, "file"), request))

    def _get_files_id_content(self, _: Request, file_id: str) -> Answer:
        with self.lock:
            file = self._found(file_id, "file")
            if self.faults.unready:
                self.faults.unready -= 1
                return Answer(202, b"", {"Retry-After": self.faults.retry_after})
            link = f"b1!{next(self._numbers):032x}"
            self._links[link] = file.data or b""
        return Answer(302, b"", {"Location": f"https://{CONTENT}/d/1/{link}/download"})

    def _content(self, request: Request) -> Answer:
        link = request.path.removeprefix("/d/1/").removesuffix("/download")
        with self.lock:
            data = None if self.faults.dead_links else self._links.get(link)
        if data is None:
            return Answer(404, b"", {"Content-Type": "text/plain"})
        headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
        asked = request.headers.get("range")
        if asked is None or self.faults.range_whole:
            return Answer(200, data, headers)
        match = _RANGE.fullmatch(asked)
        if match is None:
            self.wrong.append(f"Range: {asked}")
            return Answer(200, data, headers)
        begin, end = int(match[1]), min(int(match[2]) + 1 if match[2] else len(data), len(data))
        if begin >= len(data):
            return Answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        return Answer(206, data[begin:end], {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})

    def _delete_files_id(self, request: Request, file_id: str) -> Answer:
        with self.lock:
            file = self._found(file_id, "file")
            if request.headers.get("if-match", f"{file.etag}") != f"{file.etag}":
                raise _RefusalError(412, "precondition_failed")
            self._to_trash(file)
        return Answer(204, b"")

    def _delete_files_id_trash(self, _: Request, file_id: str) -> Answer:
        with self.lock:
            file = self.items.get(file_id)
            if file is None or file.data is None or not file.is_trashed:
                raise _RefusalError(404, "not_found")
            if self.faults.keeps_trash:
                raise _RefusalError(403, "access_denied_insufficient_permissions")
            del self.items[file_id]
            self._used -= len(file.data)
        return Answer(204, b"")

    # Folders.

    def _post_folders(self, request: Request) -> Answer:
        body = request.json()
        made = self._store(body["name"], body["parent"]["id"], None)
        with self.lock:
            return json_answer(self._shown_item(made, request), 201)

    def _get_folders_id(self, request: Request, folder_id: str) -> Answer:
        with self.lock:
            return json_answer(self._shown_item(self._found(folder_id, "folder"), request))

    def _delete_folders_id(self, request: Request, folder_id: str) -> Answer:
        with self.lock:
            folder = self._found(folder_id, "folder")
            if folder_id == ROOT:
                raise _RefusalError(403, "access_denied_insufficient_permissions")
            if self._children[folder_id] and not _is_true(request.query.get("recursive")):
                raise _RefusalError(400, "folder_not_empty")
            self._to_trash(folder)
        return Answer(204, b"")

    def _get_folders_id_items(self, request: Request, folder_id: str) -> Answer:
        query = request.query
        is_marked = _is_true(query.get("usemarker"))
        if is_marked and {"offset", "sort"} & set(query):
            self.wrong.append("a list by markers has no offset and no order")
        limit = min(int(query.get("limit", "100")), self.page_most)
        with self.lock:
            self._found(folder_id, "folder")
            if self.switches.stale and self._frozen is not None:
                found = self._frozen.get(folder_id, [])
            else:
                found = [self.items[one] for one in self._children[folder_id]]
            found = found[: len(found) - self.faults.late] if self.faults.late else found
            found = sorted(found, key=_order)
            if is_marked:
                after = _marked(query["marker"]) if query.get("marker") else ""
                left = [item for item in found if f"{_order(item)}" > after]
                page = left[:limit]
                marker = _marker(f"{_order(page[-1])}") if len(left) > limit else ""
                told: dict[str, Any] = {"limit": limit, "next_marker": marker}
            else:
                at = int(query.get("offset", "0"))
                page = found[at : at + limit]
                told = {"total_count": len(found), "limit": limit, "offset": at}
            by_id = {item.id: item for item in page if item.name not in self.switches.hidden}
            entries = [self._shown_item(by_id[one], request, is_mini=True) for one in self.shown(list(by_id))]
            return json_answer({**told, "entries": entries})

    # The feed.

    def _get_events(self, request: Request) -> Answer:
        position, limit = request.query.get("stream_position", "0"), int(request.query.get("limit", "100"))
        if request.query.get("stream_type") != "changes":
            self.wrong.append(f"a feed of {request.query.get('stream_type')}")
        with self.lock:
            if position == "now":
                return json_answer({"chunk_size": 0, "next_stream_position": self._newest(), "entries": []})
            at = 0 if position == "0" else int(position) - _BEGIN
            if not 0 <= at <= len(self.events) or self.faults.ends_feeds:
                raise _RefusalError(400, "bad_request")  # what Box answers to a position that is too old is a guess
            at = max(at, self.faults.forgotten)
            until = min(at + limit, len(self.events))
            page = self.events[max(at - limit, 0) if self.faults.repeats else at : until]
            seen = {event.id: event for event in page if event.item.name not in self.switches.hidden}
            entries = [self._event_told(seen[one]) for one in self.shown(list(seen))]
            told = {"chunk_size": len(entries), "next_stream_position": _BEGIN + until, "entries": entries}
            return json_answer(told)

    def _options_events(self, _: Request) -> Answer:
        channel = f"https://{REALTIME}/subscribe?channel=cc{next(self._numbers):018x}&stream_type=changes"
        server = {"type": "realtime_server", "url": channel, "ttl": "10", "max_retries": "10", "retry_timeout": 610}
        return json_answer({"chunk_size": 1, "entries": [server]})

    def _subscribe(self, request: Request) -> Answer:
        """The long poll. Without `stream_position` it tells of what changes from now on."""
        if request.path != "/subscribe" or not request.query.get("channel", "").startswith("cc"):
            self.wrong.append(f"no such channel: {request.target}")
            return _error(404, "not_found")
        with self._changed:
            after = int(request.query.get("stream_position", self._newest()))
            self._changed.wait_for(lambda: self._newest() > after, self.faults.poll_most_s)
            is_new = self._newest() > after
        return json_answer({"message": "new_change" if is_new else "reconnect", "version": 1})

    def _newest(self) -> int:
        return _BEGIN + len(self.events)

    def _event_told(self, event: Event) -> dict[str, Any]:
        source = self._told(event.item)
        if event.item.is_trashed and self.faults.bare_trash:
            source["parent"] = None
        return {
            "type": "event", "event_id": event.id, "event_type": event.type, "created_at": _at(event.item),
            "created_by": _user(), "session_id": "70090280850", "source": source,
        }  # fmt: skip

    # The account.

    def _get_users_me(self, request: Request) -> Answer:
        amount = 999999999999999 if self.faults.unlimited else self.quota_bytes
        told = {
            **_user(), "space_amount": amount, "space_used": self._used, "max_upload_size": self.file_bytes_max,
            "status": "active", "language": "en", "timezone": "Europe/Berlin", "created_at": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        return json_answer(_picked(told, request.query.get("fields", "")))

    # What they are made of.

    def _found(self, item_id: str, kind: str) -> Item:
        item = self.items.get(item_id)
        if item is None or (kind == "file") != (item.data is not None):
            raise _RefusalError(404, "not_found")
        if self._in_trash(item):
            raise _RefusalError(404, "trashed")
        return item

    def _in_trash(self, item: Item) -> bool:
        return item.is_trashed or (bool(item.parent) and self._in_trash(self.items[item.parent]))

    def _made(self, name: str, parent: str, data: bytes | None) -> Item:
        item = Item(f"{20_000_000_000 + next(self._numbers)}", name, parent, data)
        if data is None:
            self._children[item.id] = []
        else:
            item.sha1 = _sha1(data).hex()
            self._used += len(data)
        self.items[item.id] = item
        self._children[parent].append(item.id)
        self._names.setdefault((parent, name.lower()), item.id)
        self._note("ITEM_CREATE" if data is None else "ITEM_UPLOAD", item)
        return item

    def _to_trash(self, item: Item) -> None:
        item.is_trashed = True
        self._children[item.parent].remove(item.id)
        self._unname(item)
        self._note("ITEM_TRASH", item)

    def _unname(self, item: Item) -> None:
        if self._names.get((item.parent, item.name.lower())) == item.id:
            del self._names[item.parent, item.name.lower()]
            for one in self._children[item.parent]:  # a twin
                if one != item.id and self.items[one].name.lower() == item.name.lower():
                    self._names[item.parent, item.name.lower()] = one
                    break

    def _note(self, kind: str, item: Item) -> None:
        self.events.append(Event(f"{next(self._numbers):032x}", kind, replace(item)))
        self._changed.notify_all()

    def _files_of(self, item: Item, request: Request) -> dict[str, Any]:
        with self.lock:
            return {"total_count": 1, "entries": [self._shown_item(item, request)]}

    def _shown_item(self, item: Item, request: Request, *, is_mini: bool = False) -> dict[str, Any]:
        """With `fields` those alone, besides its id, type and etag. Box adds more; nobody should count on it."""
        mini = "file_version,name,sequence_id,sha1" if is_mini else ""
        told = self._told(item)
        if is_mini and item.data is None:  # of folders in a list nothing else is described
            told = _mini(item)
        return _picked(told, request.query.get("fields", mini))

    def _told(self, item: Item) -> dict[str, Any]:
        parent = self.items.get(item.parent)
        above: list[dict[str, Any]] = []
        at = parent
        while at is not None:
            above.insert(0, _mini(at))
            at = self.items.get(at.parent)
        out: dict[str, Any] = {
            **_mini(item), "created_at": _at(item), "modified_at": _at(item), "created_by": _user(),
            "modified_by": _user(), "owned_by": _user(), "parent": None if parent is None else _mini(parent),
            "item_status": "trashed" if item.is_trashed else "active",
            "path_collection": {"total_count": len(above), "entries": above},
        }  # fmt: skip
        if item.data is None:
            return out
        out["size"] = len(item.data)
        out["file_version"] = {"type": "file_version", "id": f"{int(item.id) * 100 + item.etag}"}
        if not self.faults.no_sha1:
            lies = {item.id, item.name} & self.faults.lies_sha1
            out["sha1"] = out["file_version"]["sha1"] = "0" * 40 if lies else item.sha1
        return out


def _form(request: Request) -> tuple[dict[str, Any] | None, bytes]:
    """The parts of a multipart body, and the file's bytes. None: it is of another kind."""
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    if kind != "multipart/form-data":
        return None, b""
    boundary = rest.strip().removeprefix("boundary=").strip('"').encode()
    first, *parts, last = (b"\r\n" + request.body).split(b"\r\n--" + boundary)
    if first or last.strip(b"\r\n") != b"--":
        raise ValueError("a body of parts without a beginning or an end")
    found: dict[str, bytes] = {}
    for part in parts:
        head, _, body = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        match = re.search(rb'; name="([^"]*)"', head)
        found[match[1].decode() if match else ""] = body
    if list(found) != ["attributes", "file"]:
        raise ValueError(f"parts {list(found)}: the attributes come first")
    return {"attributes": json.loads(found["attributes"]), "file": ""}, found["file"]


def _picked(told: dict[str, Any], fields: str) -> dict[str, Any]:
    """Of an item what is asked for, and what is always told; all without `fields`."""
    wanted = {"type", "id", "etag", *fields.split(",")}
    return {name: value for name, value in told.items() if not fields or name in wanted}


def _mini(item: Item) -> dict[str, Any]:
    kind = "folder" if item.data is None else "file"
    is_root = item.id == ROOT
    etag = None if is_root else f"{item.etag}"
    return {"type": kind, "id": item.id, "sequence_id": etag, "etag": etag, "name": item.name}


def _user() -> dict[str, str]:
    return {"type": "user", "id": USER, "name": "Tess Tester", "login": "tess@example.org"}


def _order(item: Item) -> tuple[str, int]:
    """Of lists: folders come first. Box does not say which order follows."""
    return ("file" if item.data is not None else "a folder", int(item.id))


def _at(item: Item) -> str:
    number = int(item.id) % 3600
    return f"2026-11-23T10:{number // 60:02d}:{number % 60:02d}-08:00"


def _is_true(text: str | None) -> bool:
    """Box's own library says True, where its description has true."""
    return (text or "").lower() == "true"


def _marker(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def _marked(marker: str) -> str:
    return base64.urlsafe_b64decode(marker).decode()


def _part_told(begin: int, session: Session) -> dict[str, Any]:
    part_id, data = session.parts[begin]
    return {"part_id": part_id, "offset": begin, "size": len(data), "sha1": _sha1(data).hex()}


def _sha1(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()


def _error(status: int, code: str, context: dict[str, Any] | None = None, **headers: str) -> Answer:
    told: dict[str, Any] = {
        "type": "error", "status": status, "code": code, "message": code.replace("_", " ").capitalize(),
        "help_url": "https://developer.box.com/guides/api-calls/permissions-and-errors/common-errors/",
        "request_id": "vi7krmh1d3rzu9bq",
    }  # fmt: skip
    return json_answer({**told, **({"context_info": context} if context else {})}, status, **headers)
