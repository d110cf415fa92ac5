"""OneDrive as Microsoft Graph shows it to an app with the right to its own folder: one drive, in this process.

Every request and answer is held to Graph's own description of drives (`specs/graph`): names and types of properties,
and what may be sent where. What it does not say, conflictBehavior and delta above all, follows the docs of driveItem.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from http_kit import Answer
from servers.standin import Request, Standin, Switches, json_answer

from metasync.backends.digests import digest_of

GRAPH = "graph.microsoft.com"
CONTENTS = "my.microsoftpersonalcontent.com"  # where contents are read and, by sessions, written
LOGINS = "common"  # of login.microsoftonline.com: the path of what gives tokens begins so
TOTAL = 5 << 30
_SPEC = Path(__file__).with_name("specs") / "graph" / "drive.csdl.xml"
_BEHAVIORS = {"fail", "replace", "rename"}
_BAD_NAME = re.compile(
    r'["*:<>?/\\|\x00-\x1f]|^ |[ .]$|^~\$|_vti_|^(con|prn|aux|nul|com\d|lpt\d|desktop\.ini|\.lock)$', re.IGNORECASE
)
_FRAGMENT_UNIT = 320 << 10


@dataclass
class OneDriveSwitches(Switches):
    """What goes wrong with OneDrive, besides what `Switches` has.

    is_business    of work or school: delta tells of a file that was deleted no name
    makes_parents  whether folders above an upload are made
    conflicts      so many writes meet another one: 409 `resourceModified`
    late           so many requests for an item by path do not see it yet
    resync         marks of changes are too old: 410
    has_digests    whether items have a quickXorHash yet
    shows_quota    whether the app may look at the drive itself
    both_win       a race for a name is not noticed: whoever looked first may write (with `between`)
    """

    is_business: bool = False
    makes_parents: bool = True
    conflicts: int = 0
    late: int = 0
    resync: bool = False
    has_digests: bool = True
    shows_quota: bool = True
    both_win: bool = False


@dataclass(frozen=True)
class Kept:
    """A file, or a folder (of no data)."""

    item_id: str
    parent: str
    name: str
    data: bytes | None
    version: int = 1
    is_gone: bool = False


@dataclass
class _Session:
    path: tuple[str, ...]
    behavior: str
    data: bytearray = field(default_factory=bytearray)


class Refused(Exception):  # noqa: N818
    """An answer that is no success."""

    def __init__(self, status: int, code: str, inner: str = "", **headers: str) -> None:
        super().__init__(code)
        self.answer = json_answer(error_of(code, inner), status, **headers)


def error_of(code: str, inner: str = "") -> dict[str, Any]:
    inside = {"date": "2026-11-23T10:00:00", "request-id": "r", "client-request-id": "r"}
    if inner:
        inside["code"] = inner
    return {"error": {"code": code, "message": f"{code}: a word for developers.", "innerError": inside}}


class OneDriveStandin(Standin):
    provider: ClassVar[str] = "onedrive"
    variable: ClassVar[str] = "METASYNC_ONEDRIVE_ENDPOINT"
    hosts: ClassVar[frozenset[str]] = frozenset({GRAPH, CONTENTS, LOGINS})

    def __init__(self, *, page: int = 1000) -> None:
        super().__init__()
        self.switches: OneDriveSwitches = OneDriveSwitches()
        self.spec = Spec.read()
        self.page = page  # no page has more items than this
        self.drive_id = secrets.token_hex(8).upper()
        self.items: dict[str, Kept] = {}
        self.changes: list[str] = []  # ids, in the order of what was done
        self.opened: dict[str, tuple[str, int]] = {}  # addresses of contents, by their secret
        self.sessions: dict[str, _Session] = {}
        self._numbers = itertools.count(101)
        self._snapshot: dict[str, Kept] | None = None
        self.root = self._add("", "root", None)
        self.apps = self._add(self.root.item_id, "Apps", None)
        self.app = self._add(self.apps.item_id, "MetaSync", None)

    # Its login.

    @property
    def token(self) -> str:
        return f"token-{self.renewals}"

    @property
    def refresh(self) -> str:
        return "refresh-1"

    # What tests do behind the client's back.

    def freeze(self) -> None:
        """Lists show from now on what there is now."""
        self._snapshot = dict(self.items)
        self.switches.stale = True

    def files(self) -> dict[str, bytes]:
        """All files in the app's folder, by path."""
        with self.lock:
            return {self._path(one): one.data for one in self._live() if one.data is not None}

    def damage(self, path: str, data: bytes | None) -> None:
        """Replaces a file as its owner can; None: deletes it."""
        with self.lock:
            one = self._at(tuple(path.split("/")))
            if data is None:
                self._remove(one)
            else:
                self._store(replace(one, data=data, version=one.version + 1))

    def remove_all(self, path: str) -> None:
        with self.lock:
            self._remove(self._at(tuple(path.split("/"))))

    # Requests.

    def respond(self, request: Request) -> Answer:
        try:
            if request.host == LOGINS:
                return self._token(request)
            if request.host == CONTENTS:
                if "authorization" in request.headers:
                    self.wrong.append("a token was shown to the server of contents")
                return self._content(request)
            refused = self._check_token(request)
            if refused is not None:
                return refused
            answer = self._graph(request)
        except Refused as error:
            answer = error.answer
        self.wrong += self.spec.wrong_answer(answer)
        return answer

    def refusal(self, request: Request, status: int, retry_after: str | None) -> Answer:
        codes = {429: "activityLimitReached", 503: "serviceNotAvailable", 507: "quotaLimitReached", 403: "accessDenied"}
        headers = {} if retry_after is None else {"Retry_After": retry_after}
        return json_answer(error_of(codes.get(status, "generalException")), status, **headers)

    def _check_token(self, request: Request) -> Answer | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token.startswith("token-") and token not in self.switches.ended | self.switches.revoked:
            return None
        return json_answer(error_of("InvalidAuthenticationToken"), 401, WWW_Authenticate="Bearer")

    def _token(self, request: Request) -> Answer:
        """A renewal of the login, which a revoked one does not get."""
        if self.refresh in self.switches.revoked:
            return json_answer({"error": "invalid_grant", "error_description": "AADSTS70000"}, 400)
        with self.lock:
            self.renewals += 1
        return json_answer(
            {"token_type": "Bearer", "expires_in": self.life_s, "access_token": self.token,
             "refresh_token": self.refresh, "scope": "Files.ReadWrite.AppFolder"}
        )  # fmt: skip

    def _graph(self, request: Request) -> Answer:
        self.wrong += self.spec.wrong_query(request)
        below = request.path.removeprefix("/v1.0/me/drive")
        if below == request.path:
            raise Refused(400, "BadRequest")
        if below == "":
            return self._drive(request)
        if below.startswith("/items/"):
            item_id, mark, rest = below.removeprefix("/items/").partition("!")
            number, slash, rest = rest.partition("/" if ":" not in rest else ":")
            with self.lock:
                one = self._by_id(f"{item_id}{mark}{number}")
                if not slash:
                    if request.method == "DELETE":
                        self._remove(one)
                        return Answer(204, b"")
                    return json_answer(self._shown(one))
                if one.item_id != self.app.item_id and not self._is_below(one, self.app.item_id):
                    raise Refused(403, "accessDenied")
                path = tuple(name for name in self._path(one).split("/") if name)
            more, verb = _split(slash + rest)
            path += more
        elif below.startswith("/special/approot"):
            path, verb = _split(below.removeprefix("/special/approot"))
        else:
            raise Refused(403, "accessDenied")
        self._check_names(path)
        what = (request.method, verb)
        if what == ("GET", ""):
            return json_answer(self._shown(self._seen(path)))
        if what == ("GET", "/children"):
            return self._children(request, path)
        if what == ("POST", "/children"):
            return self._make_folder(request, path)
        if what == ("PUT", "/content"):
            self._check_kind(request, "application/octet-stream")
            return self._put(path, request.body, request.query.get("@microsoft.graph.conflictBehavior", "replace"))
        if what == ("GET", "/content"):
            return self._open(path)
        if what == ("POST", "/createUploadSession"):
            return self._begin_session(request, path)
        if what == ("DELETE", ""):
            with self.lock:
                self._remove(self._seen(path))
            return Answer(204, b"")
        if what == ("GET", "/delta"):
            return self._delta(request, path)
        raise Refused(405, "notAllowed")

    def _drive(self, request: Request) -> Answer:
        if request.method != "GET" or not self.switches.shows_quota:
            raise Refused(403, "accessDenied")
        used = sum(len(data) for data in self.files().values())
        quota = {"total": TOTAL, "used": used, "remaining": TOTAL - used, "deleted": 0, "state": "normal"}
        return json_answer({"id": self.drive_id, "driveType": "personal", "quota": quota, "@odata.context": "c"})

    def _children(self, request: Request, path: tuple[str, ...]) -> Answer:
        with self.lock:
            folder = self._seen(path)
            if folder.data is not None:
                raise Refused(400, "invalidRequest")
            shown = self._snapshot if self.switches.stale and self._snapshot is not None else self.items
            found = {one.name: one for one in shown.values() if one.parent == folder.item_id and not one.is_gone}
        names = self.shown(sorted(found))
        start = int(request.query.get("$skiptoken", "0"))
        most = min(int(request.query.get("$top", "200")), self.page)
        value = [self._shown(found[name]) for name in names[start : start + most]]
        end = start + most
        more = {} if end >= len(names) else self._link("@odata.nextLink", request, "$skiptoken", str(end))
        return json_answer({"@odata.context": "c", "value": value, **more})

    def _make_folder(self, request: Request, path: tuple[str, ...]) -> Answer:
        self._check_kind(request, "application/json")
        body = request.json()
        self.wrong += self.spec.wrong_value("driveItem", body)
        if body.get("folder") != {}:
            raise Refused(400, "invalidRequest")
        self._check_names((body["name"],))
        with self.lock:
            parent = self._seen(path)
            if self._child(parent.item_id, body["name"]) is not None:
                if body.get("@microsoft.graph.conflictBehavior", "fail") != "fail":
                    self.wrong.append("a folder is to be made in the place of one, which is not what this client wants")
                raise Refused(409, "nameAlreadyExists")
            return json_answer(self._shown(self._add(parent.item_id, body["name"], None)), 201)

    def _put(self, path: tuple[str, ...], data: bytes, behavior: str) -> Answer:
        if self.switches.full:
            raise Refused(507, "quotaLimitReached")
        with self.lock:
            if self.switches.conflicts:
                self.switches.conflicts -= 1
                raise Refused(409, "resourceModified", "entityTagDoesNotMatch")
            parent = self._parent_of(path)
            found = self._child(parent.item_id, path[-1])
        if self.switches.between is not None:  # a store that looks first and writes afterwards
            self.between()
        with self.lock:
            if not self.switches.both_win or behavior != "fail":
                found = self._child(parent.item_id, path[-1])
            if found is None:
                return json_answer(self._shown(self._add(parent.item_id, path[-1], data)), 201)
            if behavior == "fail" or found.data is None:
                raise Refused(409, "nameAlreadyExists")
            self._store(replace(found, data=data, version=found.version + 1))
            return json_answer(self._shown(self.items[found.item_id]), 200)

    def _open(self, path: tuple[str, ...]) -> Answer:
        with self.lock:
            one = self._seen(path)
            if one.data is None:
                raise Refused(400, "invalidRequest")
            secret = f"y4m{secrets.token_urlsafe(24)}"
            self.opened[secret] = one.item_id, one.version
        return Answer(302, b"", {"Location": f"{self.url}/{CONTENTS}/{secret}/bytes?tempauth=v1"})

    def _begin_session(self, request: Request, path: tuple[str, ...]) -> Answer:
        self._check_kind(request, "application/json")
        body = request.json() or {}
        item = body.get("item", {})
        self.wrong += self.spec.wrong_value("driveItemUploadableProperties", item)
        if set(body) - {"item", "deferCommit"}:
            self.wrong.append(f"createUploadSession has no parameters {sorted(body)}")
        with self.lock:
            self._parent_of(path)
            secret = f"up-{secrets.token_urlsafe(24)}"
            self.sessions[secret] = _Session(path, item.get("@microsoft.graph.conflictBehavior", "fail"))
        return json_answer(
            {"uploadUrl": f"{self.url}/{CONTENTS}/{secret}/session", "expirationDateTime": "2026-11-30T10:00:00Z",
             "nextExpectedRanges": ["0-"]}
        )  # fmt: skip

    def _content(self, request: Request) -> Answer:
        """A request without a login, at an address that was given out."""
        secret = request.path.split("/")[1]
        if secret in self.sessions and request.method == "PUT":
            return self._fragment(request, secret)
        with self.lock:
            item_id, version = self.opened.get(secret, ("", 0))
            one = self.items.get(item_id)
        if request.method != "GET" or one is None or one.is_gone or one.data is None or one.version != version:
            return json_answer(error_of("itemNotFound"), 404)
        headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
        ranged = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if ranged is None:
            return Answer(200, one.data, headers)
        start, end = int(ranged[1]), min(int(ranged[2] or len(one.data)) + 1, len(one.data))
        if start >= len(one.data):
            return Answer(416, b"", {"Content-Range": f"bytes */{len(one.data)}"})
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(one.data)}"
        return Answer(206, one.data[start:end], headers)

    def _fragment(self, request: Request, secret: str) -> Answer:
        session = self.sessions[secret]
        ranged = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", request.headers.get("content-range", ""))
        if ranged is None:
            self.wrong.append("a fragment without its Content-Range")
            return json_answer(error_of("invalidRange"), 400)
        start, end, size = int(ranged[1]), int(ranged[2]) + 1, int(ranged[3])
        count = end - start
        if count != len(request.body) or (end < size and count % _FRAGMENT_UNIT) or count >= 60 << 20:
            self.wrong.append("a fragment of a size that no fragment may have")
        with self.lock:
            if start != len(session.data):
                return json_answer(error_of("invalidRange", "fragmentOutOfOrder"), 416)
            session.data += request.body
        if end < size:
            return json_answer({"expirationDateTime": "2026-11-30T10:00:00Z", "nextExpectedRanges": [f"{end}-"]}, 202)
        try:
            answer = self._put(session.path, bytes(session.data), session.behavior)
        except Refused as error:
            return error.answer
        del self.sessions[secret]
        return answer

    def _delta(self, request: Request, path: tuple[str, ...]) -> Answer:
        """Tokens: `all:FOLDER:SINCE:START` while everything is listed, `new:FOLDER:SINCE:START` of changes."""
        token = request.query.get("token", "")
        with self.lock:
            kind, _, rest = token.partition(":")
            numbers = rest.split(":")
            if not token:
                folder, since, start = self._seen(path).item_id, len(self.changes), 0
            elif kind in ("all", "new") and len(numbers) == 3:
                folder, since, start = numbers[0], int(numbers[1]), int(numbers[2])
            else:
                raise Refused(400, "invalidRequest", "invalidParameterFormat")
            if token and self.switches.resync:
                location = f"{self.url}/{GRAPH}{request.target}"
                raise Refused(410, "resyncRequired", "resyncChangesApplyDifferences", Location=location)
            if folder not in self.items:
                raise Refused(404, "itemNotFound")
            shown = self._snapshot if self.switches.stale and self._snapshot is not None else self.items
            if kind == "new":
                ids = list(dict.fromkeys(self.changes[since:]))
            else:
                ids = [one.item_id for one in shown.values() if not one.is_gone]
            found = [shown[i] for i in ids if i in shown and (i == folder or self._is_below(shown[i], folder))]
            by_place = {f"{place}": one for place, one in enumerate(found) if one.name not in self.switches.hidden}
            found = [by_place[place] for place in self.shown([*by_place])]
            most = min(int(request.query.get("$top", "200")), self.page)
            value = [self._told(one) for one in found[start : start + most]]
            now = len(self.changes)
        if start + most < len(found):
            link = self._link("@odata.nextLink", request, "token", f"{kind or 'all'}:{folder}:{since}:{start + most}")
        else:
            until = since if kind in ("", "all") else now
            link = self._link("@odata.deltaLink", request, "token", f"new:{folder}:{until}:0")
        return json_answer({"@odata.context": "c", "value": value, **link})

    def _link(self, name: str, request: Request, key: str, value: str) -> dict[str, str]:
        query = "&".join(f"{k}={quote(v, safe=',.')}" for k, v in {**request.query, key: value}.items())
        return {name: f"{self.url}/{GRAPH}{urlsplit(request.target).path}?{query}"}

    # The state. The caller holds the lock.

    def _add(self, parent: str, name: str, data: bytes | None) -> Kept:
        one = Kept(f"{self.drive_id}!{next(self._numbers)}", parent, name, data)
        self._store(one)
        return one

    def _store(self, one: Kept) -> None:
        self.items[one.item_id] = one
        self.changes.append(one.item_id)

    def _remove(self, one: Kept) -> None:
        for below in [other for other in self.items.values() if other.parent == one.item_id and not other.is_gone]:
            self._remove(below)
        self._store(replace(one, is_gone=True))

    def _child(self, parent: str, name: str) -> Kept | None:
        """By its name, in which capitals do not count."""
        for one in self.items.values():
            if one.parent == parent and not one.is_gone and one.name.lower() == name.lower():
                return one
        return None

    def _at(self, path: tuple[str, ...]) -> Kept:
        one = self.app
        for name in path:
            found = self._child(one.item_id, name) if one.data is None else None
            if found is None:
                raise Refused(404, "itemNotFound")
            one = found
        return one

    def _seen(self, path: tuple[str, ...]) -> Kept:
        """The same, as whoever asks for it sees it."""
        with self.lock:
            one = self._at(path)
            if self.switches.late and one.data is not None:
                self.switches.late -= 1
                raise Refused(404, "itemNotFound")
            return one

    def _by_id(self, item_id: str) -> Kept:
        one = self.items.get(item_id)
        if one is None or one.is_gone:
            raise Refused(404, "itemNotFound")
        return one

    def _parent_of(self, path: tuple[str, ...]) -> Kept:
        if not path:
            raise Refused(400, "invalidRequest")
        if not self.switches.makes_parents:
            return self._at(path[:-1])
        one = self.app
        for name in path[:-1]:
            one = self._child(one.item_id, name) or self._add(one.item_id, name, None)
            if one.data is not None:
                raise Refused(409, "generalException")
        return one

    def _live(self) -> list[Kept]:
        return [one for one in self.items.values() if not one.is_gone and self._is_below(one, self.app.item_id)]

    def _is_below(self, one: Kept, folder: str) -> bool:
        while one.parent:
            if one.parent == folder:
                return True
            one = self.items[one.parent]
        return False

    def _path(self, one: Kept) -> str:
        names = []
        while one.item_id != self.app.item_id:
            names.append(one.name)
            one = self.items[one.parent]
        return "/".join(reversed(names))

    # What items look like.

    def _shown(self, one: Kept) -> dict[str, Any]:
        parent = {"driveId": self.drive_id, "driveType": "personal", "id": one.parent}
        shown: dict[str, Any] = {
            "id": one.item_id, "name": one.name, "size": len(one.data or b""), "parentReference": parent,
            "eTag": f"a{one.item_id}.{one.version}", "cTag": f"c{one.item_id}.{one.version}",
            "lastModifiedDateTime": "2026-11-23T10:00:00Z",
        }  # fmt: skip
        if one.data is None:
            children = [other for other in self.items.values() if other.parent == one.item_id and not other.is_gone]
            shown["folder"] = {"childCount": len(children)}
        else:
            shown["file"] = {"mimeType": "application/octet-stream"}
            if self.switches.has_digests:
                digest = base64.b64encode(digest_of("quickxor", one.data)).decode()
                shown["file"]["hashes"] = {"quickXorHash": digest}
        return shown

    def _told(self, one: Kept) -> dict[str, Any]:
        """In delta, which leaves out what depends on the service (docs of driveItem: delta)."""
        shown = self._shown(one)
        if one.is_gone:
            shown["deleted"] = {"state": "deleted"}
            for name in ("cTag", "name", "file") if self.switches.is_business else ("cTag", "size"):
                shown.pop(name, None)
        elif self.switches.is_business:
            del shown["cTag"]
        return shown

    def _check_names(self, names: tuple[str, ...]) -> None:
        if any(_BAD_NAME.search(name) for name in names):
            self.wrong.append(f"a name that OneDrive does not take: {names}")
            raise Refused(400, "invalidRequest", "invalidPath")

    def _check_kind(self, request: Request, kind: str) -> None:
        if request.headers.get("content-type") != kind:
            self.wrong.append(f"a body of the kind {request.headers.get('content-type')} for {request.path}")


def _split(below: str) -> tuple[tuple[str, ...], str]:
    """`:/a/b:/content` as the path and what is asked of it."""
    if not below.startswith(":/"):
        return (), below
    path, _, verb = below[2:].partition(":")
    return tuple(path.rstrip("/").split("/")), verb


class Spec:
    """Graph's description of drives: the types, with the names and types of their properties."""

    def __init__(self, types: dict[str, dict[str, str]]) -> None:
        self.types = types

    @classmethod
    def read(cls) -> Spec:
        found: dict[str, dict[str, str]] = {}
        bases: dict[str, str] = {}
        for one in ElementTree.parse(_SPEC).iter():
            if one.tag in ("EntityType", "ComplexType"):
                name = one.get("Name", "")
                found[name] = {
                    part.get("Name", ""): part.get("Type", "") for part in one if part.tag.endswith("Property")
                }
                bases[name] = (one.get("BaseType") or "").removeprefix("graph.")
        for name in found:
            above = bases[name]
            while above in found:
                found[name] |= found[above]
                above = bases[above]
        return cls(found)

    def wrong_value(self, kind: str, value: Any) -> list[str]:
        """What is wrong with a JSON value for something of a type."""
        plain = {"Edm.String": str, "Edm.Int64": int, "Edm.Int32": int, "Edm.Boolean": bool, "Edm.DateTimeOffset": str}
        if kind.startswith("Collection("):
            if not isinstance(value, list):
                return [f"{value!r} is no collection"]
            return [wrong for one in value for wrong in self.wrong_value(kind[11:-1], one)]
        if kind in plain:
            return [] if type(value) is plain[kind] else [f"{value!r} is no {kind}"]
        kind = kind.removeprefix("graph.")
        if kind not in self.types:
            return [f"a type that is not described: {kind}"]
        if not isinstance(value, dict):
            return [f"{value!r} is no {kind}"]
        out: list[str] = []
        for name, one in value.items():
            if name.startswith("@"):
                if name == "@microsoft.graph.conflictBehavior" and one not in _BEHAVIORS:
                    out.append(f"a conflictBehavior {one!r}")
            elif name not in self.types[kind]:
                out.append(f"{kind} has no property {name}")
            else:
                out += self.wrong_value(self.types[kind][name], one)
        return out

    def wrong_answer(self, answer: Answer) -> list[str]:
        if answer.status >= 300 or not answer.body:
            return []
        found = json.loads(answer.body)
        if "value" in found:
            links = {"@odata.nextLink", "@odata.deltaLink"} & set(found)
            wrong = [] if len(links) <= 1 else ["a page with two links"]
            return wrong + self.wrong_value("Collection(graph.driveItem)", found["value"])
        kind = "drive" if "quota" in found else "uploadSession" if "uploadUrl" in found else "driveItem"
        return self.wrong_value(kind, found)

    def wrong_query(self, request: Request) -> list[str]:
        """What is wrong with the query of a request: names, and what is selected of a type."""
        out = []
        for name, value in request.query.items():
            if name == "$select":
                known = self.types["drive" if request.path == "/v1.0/me/drive" else "driveItem"]
                out += [f"nothing called {part} can be selected" for part in value.split(",") if part not in known]
            elif name == "$top":
                out += [] if value.isdecimal() and 0 < int(value) <= 1000 else [f"a page of {value} items"]
            elif name == "@microsoft.graph.conflictBehavior":
                out += [] if value in _BEHAVIORS else [f"a conflictBehavior {value!r}"]
            elif name not in ("$skiptoken", "token"):
                out.append(f"a parameter {name} that Graph does not have")
        return out
