"""A stand-in for Google Drive: files by id, names that several may have, searches that are late, a feed of changes.

    with running(GoogleDriveStandin()) as standin:
        standin.link(monkeypatch, home)
        backend = open_backend(parse_url("gdrive:/folder"), create_root=True)

Its oracle is the discovery document that Google's library carries: a path, a method, each parameter and its type, the
form of what is sent, and of every answer. `Described` holds exchanges against it.
"""

from __future__ import annotations

import email
import hashlib
import itertools
import json
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from googleapiclient.discovery_cache import get_static_doc
from http_kit import Answer
from servers.standin import Request, Standin, json_answer

HOST = "www.googleapis.com"
FOLDER = "application/vnd.google-apps.folder"
ROOT = "0AKdRootOfTheTests"
_PROPERTY_BYTES_MAX = 124
_TERM = re.compile(
    r"name = '(?P<name>[^']*)'|'(?P<parent>[\w-]+)' in parents|trashed = (?P<trashed>false|true)"
    r"|mimeType = '(?P<type>[^']*)'|appProperties has \{ key='(?P<key>[^']*)' and value='(?P<value>[^']*)' \}"
)


class Described:
    """What Google's own description says of requests and answers."""

    def __init__(self) -> None:
        self._doc = json.loads(get_static_doc("drive", "v3"))
        self.methods: list[tuple[str, re.Pattern[str], str, dict[str, Any]]] = []
        for resource in ("about", "changes", "files"):
            for name, method in self._doc["resources"][resource]["methods"].items():
                paths = [f"/{self._doc['servicePath']}{method['path']}"]
                paths += [one["path"] for one in method.get("mediaUpload", {}).get("protocols", {}).values()]
                for path in paths:
                    pattern = re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(path)))
                    self.methods.append((method["httpMethod"], pattern, f"{resource}.{name}", method))

    def find(self, request: Request) -> tuple[str, dict[str, Any], dict[str, str]] | None:
        for verb, pattern, name, method in self.methods:
            if verb == request.method and (match := pattern.fullmatch(request.path)):
                return name, method, match.groupdict()
        return None

    def wrong_query(self, method: dict[str, Any], query: dict[str, str]) -> list[str]:
        known = {**self._doc["parameters"], **method["parameters"]}
        out = [f"no parameter {name}" for name in query if name not in known and name != "upload_id"]
        for name, text in query.items():
            kind = known.get(name, {})
            if kind.get("type") == "integer":
                low, high = int(kind.get("minimum", 0)), int(kind.get("maximum", 1 << 31))
                out += [] if text.isdigit() and low <= int(text) <= high else [f"{name}={text}"]
            if kind.get("type") == "boolean" and text not in ("true", "false"):
                out.append(f"{name}={text}")
        missing = [name for name, one in method["parameters"].items() if one.get("required")]
        return out + [
            f"{name} is missing" for name in missing if name not in query and "{" + name + "}" not in method["path"]
        ]

    def wrong(self, schema: dict[str, Any], value: Any, at: str) -> list[str]:
        """What of a value is not as the schema has it."""
        if "$ref" in schema:
            schema = self._doc["schemas"][schema["$ref"]]
        kind = schema.get("type")
        if kind == "object":
            if not isinstance(value, dict):
                return [f"{at} is no object"]
            known, more = schema.get("properties", {}), schema.get("additionalProperties")
            out = [f"{at}.{name} is not described" for name in value if name not in known and more is None]
            for name, one in value.items():
                out += self.wrong(known.get(name, more or {}), one, f"{at}.{name}")
            return out
        if kind == "array":
            if not isinstance(value, list):
                return [f"{at} is no array"]
            return [text for n, one in enumerate(value) for text in self.wrong(schema["items"], one, f"{at}[{n}]")]
        types = {"string": str, "boolean": bool, "integer": int, "number": (int, float)}
        if kind in types and not isinstance(value, types[kind]):
            return [f"{at} is no {kind}"]
        if schema.get("format") == "int64" and not re.fullmatch(r"-?[0-9]+", str(value)):
            return [f"{at} is no number"]
        return []

    def schema(self, method: dict[str, Any], which: str) -> dict[str, Any]:
        return method.get(which) or {}


@dataclass
class File:
    id: str
    name: str
    type: str
    parents: list[str]
    data: bytes
    made: int
    version: int
    properties: dict[str, str]
    trashed: bool = False


@dataclass
class Faults:
    """What Google Drive alone does wrong.

    late         searches do not show the newest so many files; by id they are there
    lies_hash    ids whose checksum is another one
    no_hash      files have no checksum
    ends_feeds   every page token is too old
    reason       (status, reason) of the next answer's error
    unlimited    the account has no limit
    range_whole  a Range is not heeded
    takes        how many bytes the next parts of uploads are taken of, 308 each; then all
    """

    late: int = 0
    lies_hash: set[str] = field(default_factory=set)
    no_hash: bool = False
    ends_feeds: bool = False
    reason: tuple[int, str] | None = None
    unlimited: bool = False
    range_whole: bool = False
    takes: list[int] = field(default_factory=list)


class _RefusalError(Exception):
    def __init__(self, status: int, reason: str) -> None:
        self.status, self.reason = status, reason


class GoogleDriveStandin(Standin):
    """One account."""

    provider: ClassVar[str] = "gdrive"
    variable: ClassVar[str] = "METASYNC_GDRIVE_ENDPOINT"
    hosts: ClassVar[frozenset[str]] = frozenset({HOST})
    has_secret: ClassVar[bool] = True
    life_s: ClassVar[int] = 3599
    page_most = 1000

    def __init__(self) -> None:
        super().__init__()
        self.described = Described()
        self.faults = Faults()
        self.files: dict[str, File] = {}
        self.changes: list[tuple[int, str]] = []
        self.quota_bytes = 15 << 30
        self._refresh = "1//refresh-of-the-tests"
        self._tokens = {"ya29.token-0"}
        self._numbers = itertools.count(1)
        self._uploads: dict[str, tuple[dict[str, Any], str]] = {}
        self._taken: dict[str, bytes] = {}  # of what is being uploaded
        self._frozen: set[str] | None = None

    @property
    def token(self) -> str:
        return f"ya29.token-{self.renewals}"

    @property
    def refresh(self) -> str:
        return self._refresh

    def freeze(self) -> None:
        """Searches show from now on what there is now, while `switches.stale` is set."""
        with self.lock:
            self.switches.stale, self._frozen = True, set(self.files)

    def objects(self) -> dict[str, bytes]:
        """All files that are not in the bin, by name; of twins the oldest."""
        with self.lock:
            found = sorted(self.files.values(), key=lambda file: -file.made)
            return {file.name: file.data for file in found if file.type != FOLDER and not file.trashed}

    def add(self, name: str, data: bytes, parent: str, properties: dict[str, str] | None = None) -> File:
        """A file that somebody else's request made."""
        with self.lock:
            return self._made({"name": name, "parents": [parent], "appProperties": properties or {}}, data)

    # Requests.

    def respond(self, request: Request) -> Answer:
        if request.path == "/token":
            return self._renew(request)
        if request.query.get("upload_id"):
            return self._answered(request, "files.create", {}, lambda: self._second(request))
        found = self.described.find(request)
        if found is None or request.host != HOST:
            self.wrong.append(f"no such method: {request.method} {request.host} {request.path}")
            return Answer(404, b"", {"Content-Type": "text/plain"})
        name, method, named = found
        self.wrong += [f"{name}: {text}" for text in self.described.wrong_query(method, dict(request.query))]
        return self._answered(
            request, name, method, lambda: getattr(self, f"_{name.replace('.', '_')}")(request, **named)
        )

    def refusal(self, request: Request, status: int, retry_after: str | None) -> Answer:
        headers = {} if retry_after is None else {"Retry_After": retry_after}
        return _error(status, "rateLimitExceeded" if status in (403, 429) else "backendError", **headers)

    def _answered(self, request: Request, name: str, method: dict[str, Any], do: Any) -> Answer:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self._tokens - self.switches.ended - self.switches.revoked:
            return _error(401, "authError")
        if self.faults.reason is not None:
            (status, reason), self.faults.reason = self.faults.reason, None
            return _error(status, reason)
        try:
            answer: Answer = do()
        except _RefusalError as refused:
            return _error(refused.status, refused.reason)
        if answer.headers.get("Content-Type") == "application/json" and "response" in method and answer.status == 200:
            self.wrong += self.described.wrong(method["response"], json.loads(answer.body), name)
        return answer

    def _renew(self, request: Request) -> Answer:
        form = dict(part.split("=", 1) for part in request.body.decode().split("&"))
        if form.get("refresh_token", "").replace("%2F", "/") != self._refresh or self._refresh in self.switches.revoked:
            return json_answer(
                {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}, 400
            )
        with self.lock:
            self.renewals += 1
            self._tokens.add(self.token)
        return json_answer({"access_token": self.token, "token_type": "Bearer", "expires_in": self.life_s})

    # Files.

    def _files_create(self, request: Request) -> Answer:
        return self._upload(request, "")

    def _files_update(self, request: Request, fileId: str) -> Answer:  # noqa: N803  (Google's name)
        self._found(fileId)
        return self._upload(request, fileId)

    def _upload(self, request: Request, file_id: str) -> Answer:
        kind = request.query.get("uploadType")
        if kind == "resumable":
            body = json.loads(request.body or b"{}")
            self.wrong += self.described.wrong({"$ref": "File"}, body, "File")
            with self.lock:
                upload = f"up{next(self._numbers)}"
                self._uploads[upload] = body, file_id
            if "x-upload-content-length" not in request.headers:
                self.wrong.append("an upload without its length")
            fields = request.query.get("fields", "")
            where = f"https://{HOST}/upload/drive/v3/files?upload_id={upload}&fields={fields}"
            return Answer(200, b"", {"Location": where})
        if kind == "multipart":
            head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
            first = email.message_from_bytes(head + request.body).get_payload(0)
            return self._stored(request, json.loads(first.get_payload()), _second_part(request), file_id)
        if kind == "media":
            return self._stored(request, {}, request.body, file_id)
        if request.headers.get("content-type", "").startswith("application/json"):
            return self._stored(request, json.loads(request.body), b"", file_id)
        self.wrong.append(f"an upload of no kind: {kind}")
        return _error(400, "badRequest")

    def _second(self, request: Request) -> Answer:
        """A part of an upload, which goes on where the last one was taken to."""
        upload = request.query["upload_id"]
        body, file_id = self._uploads[upload]
        before = self._taken.get(upload, b"")
        size = len(before) + len(request.body)
        said = request.headers.get("content-range", "")
        if request.method != "PUT" or said != f"bytes {len(before)}-{size - 1}/{size}":
            self.wrong.append(f"an upload went on by {request.method} {said}")
        if self.faults.takes:
            taken = self._taken[upload] = before + request.body[: self.faults.takes.pop(0)]
            return Answer(308, b"", {"Range": f"bytes=0-{len(taken) - 1}"} if taken else {})
        del self._uploads[upload]
        return self._stored(request, body, before + request.body, file_id)

    def _stored(self, request: Request, body: dict[str, Any], data: bytes, file_id: str) -> Answer:
        self.wrong += self.described.wrong({"$ref": "File"}, body, "File")
        for name, value in body.get("appProperties", {}).items():
            if len((name + value).encode()) > _PROPERTY_BYTES_MAX:
                raise _RefusalError(403, "propertyTooLong")
        if len(body.get("appProperties", {})) > 30:
            raise _RefusalError(403, "tooManyProperties")
        with self.lock:
            if self.switches.full or sum(len(f.data) for f in self.files.values()) + len(data) > self.quota_bytes:
                raise _RefusalError(403, "storageQuotaExceeded")
            for parent in body.get("parents", ()):
                if parent not in ("root", ROOT):
                    self._found(parent)
        self.between()
        with self.lock:
            if file_id:
                file = self._found(file_id)
                file.data = data
                self._changed(file)
            else:
                file = self._made(body, data)
            return json_answer(_picked(self._told(file), request.query.get("fields", "id,name")))

    def _made(self, body: dict[str, Any], data: bytes) -> File:
        number = next(self._numbers)
        parents = [ROOT if one == "root" else one for one in body.get("parents", [ROOT])]
        kind = body.get("mimeType", "application/octet-stream")
        file = File(
            f"1id{number:06d}", body["name"], kind, parents, data, number, 0, dict(body.get("appProperties", {}))
        )
        self.files[file.id] = file
        self._changed(file)
        return file

    def _changed(self, file: File) -> None:
        file.version = next(self._numbers)
        self.changes.append((file.version, file.id))

    def _files_get(self, request: Request, fileId: str) -> Answer:  # noqa: N803
        with self.lock:
            file = self._found(fileId)
            if request.query.get("alt") != "media":
                return json_answer(_picked(self._told(file), request.query.get("fields", "id,name")))
            data, headers = file.data, {"Content-Type": "application/octet-stream"}
        asked = request.headers.get("range")
        if asked is None or self.faults.range_whole:
            return Answer(200, data, headers)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last) + 1 if last else len(data), len(data))
        if begin >= len(data):
            return _error(416, "requestedRangeNotSatisfiable")
        return Answer(206, data[begin:end], {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})

    def _files_delete(self, request: Request, fileId: str) -> Answer:  # noqa: N803
        with self.lock:
            self._found(fileId)
            gone = [fileId]
            while any(set(f.parents) & set(gone) and f.id not in gone for f in self.files.values()):
                gone += [f.id for f in self.files.values() if set(f.parents) & set(gone) and f.id not in gone]
            for one in gone:
                del self.files[one]
                self.changes.append((next(self._numbers), one))
        return Answer(204, b"")

    def _files_list(self, request: Request) -> Answer:
        query = request.query.get("q", "")
        terms = [_TERM.fullmatch(term) for term in query.split(" and ") if "value=" not in term and "key=" not in term]
        terms += [_TERM.fullmatch(m[0]) for m in re.finditer(r"appProperties has \{[^}]*\}", query)]
        if not terms or None in terms:
            self.wrong.append(f"not a search: {query}")
            return _error(400, "invalid")
        with self.lock:
            seen = sorted(self.files.values(), key=lambda file: file.made)
            if self.switches.stale and self._frozen is not None:
                seen = [file for file in seen if file.id in self._frozen]
            seen = seen[: len(seen) - self.faults.late] if self.faults.late else seen
            found = [file for file in seen if all(self._holds(file, term) for term in terms if term is not None)]
            names = self.shown([file.id for file in found if file.name.rpartition("/")[2] not in self.switches.hidden])
            return self._paged(request, "files", names, lambda one: self._told(self.files[one]))

    def _paged(self, request: Request, what: str, names: list[str], told: Any, **last: str) -> Answer:
        at = int(request.query.get("pageToken", "p0")[1:]) if what == "files" else 0
        size = min(int(request.query.get("pageSize", "100")), self.page_most)
        page = names[at : at + size]
        out: dict[str, Any] = {"kind": "drive#fileList", what: [told(one) for one in page], **last}
        if at + size < len(names):
            out["nextPageToken"] = f"p{at + size}"
        return json_answer(_picked(out, request.query.get("fields", what)))

    # The feed.

    def _changes_getStartPageToken(self, request: Request) -> Answer:
        return json_answer({"kind": "drive#startPageToken", "startPageToken": f"{len(self.changes)}"})

    def _changes_list(self, request: Request) -> Answer:
        at = request.query["pageToken"]
        if self.faults.ends_feeds or not at.isdigit() or int(at) > len(self.changes):
            raise _RefusalError(410, "updatedMinTooLongAgo")
        with self.lock:
            size = min(int(request.query.get("pageSize", "100")), self.page_most)
            part = self.changes[int(at) : int(at) + size]
            newest = {file_id: number for number, file_id in self.changes}
            rows = []
            for number, file_id in part:
                if newest[file_id] != number:
                    continue  # a file is told once, as it is now
                file = self.files.get(file_id)
                row: dict[str, Any] = {"fileId": file_id, "removed": file is None}
                rows.append(row if file is None else {**row, "file": self._told(file)})
            more = int(at) + size < len(self.changes)
            mark = {"nextPageToken" if more else "newStartPageToken": f"{min(int(at) + size, len(self.changes))}"}
            told = {"kind": "drive#changeList", "changes": rows, **mark}
            return json_answer(_picked(told, request.query.get("fields", "changes")))

    def _about_get(self, request: Request) -> Answer:
        if "fields" not in request.query:
            raise _RefusalError(400, "required")
        used = sum(len(file.data) for file in self.files.values())
        quota = {"usage": f"{used}"} if self.faults.unlimited else {"limit": f"{self.quota_bytes}", "usage": f"{used}"}
        return json_answer({"storageQuota": quota})

    # What they are made of.

    def _found(self, file_id: str) -> File:
        file = self.files.get(file_id)
        if file is None:
            raise _RefusalError(404, "notFound")
        return file

    def _told(self, file: File) -> dict[str, Any]:
        out = {
            "id": file.id, "name": file.name, "mimeType": file.type, "parents": file.parents,
            "trashed": self._is_trashed(file),
            "createdTime": f"2026-11-23T18:00:{file.made // 1000:02d}.{file.made % 1000:03d}Z",
            "version": f"{file.version}", "appProperties": file.properties,
        }  # fmt: skip
        if file.type != FOLDER:
            lies = file.id in self.faults.lies_hash
            out["size"] = f"{len(file.data)}"
            if not self.faults.no_hash:
                out["sha256Checksum"] = "0" * 64 if lies else hashlib.sha256(file.data).hexdigest()
        return out

    def _holds(self, file: File, term: re.Match[str]) -> bool:
        found = {name: value for name, value in term.groupdict().items() if value is not None}
        parent = ROOT if found.get("parent") == "root" else found.get("parent", file.parents[0])
        return (
            found.get("name", file.name) == file.name
            and parent in file.parents
            and found.get("type", file.type) == file.type
            and ("trashed" not in found or (found["trashed"] == "true") == self._is_trashed(file))
            and ("key" not in found or file.properties.get(found["key"]) == found["value"])
        )

    def _is_trashed(self, file: File) -> bool:
        return file.trashed or any(self._is_trashed(self.files[p]) for p in file.parents if p in self.files)


def _second_part(request: Request) -> bytes:
    """The bytes of a file in a body of two parts."""
    boundary = re.search(r'boundary="?([^";]+)"?', request.headers["content-type"])
    assert boundary is not None
    part = request.body.split(b"--" + boundary[1].encode())[2]
    return part.split(b"\n\n", 1)[1].removesuffix(b"\n")


def _picked(value: dict[str, Any], fields: str) -> dict[str, Any]:
    """Of an answer what `fields` asks for: a,b(c,d)."""
    wanted: dict[str, str] = {}
    depth, name, inner = 0, "", ""
    for char in f"{fields},":
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            wanted[name], name, inner = inner[1:], "", ""
        elif depth:
            inner += char
        elif char != ")":
            name += char
    out: dict[str, Any] = {}
    for name, inner in wanted.items():
        if name in value:
            one = value[name]
            if inner:
                one = [_picked(row, inner) for row in one] if isinstance(one, list) else _picked(one, inner)
            out[name] = one
    return out


def _error(status: int, reason: str, **headers: str) -> Answer:
    told = {"code": status, "message": reason, "errors": [{"domain": "global", "reason": reason, "message": reason}]}
    return json_answer({"error": told}, status, **headers)
