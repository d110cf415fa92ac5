"""A folder of a Dropbox: `dropbox:/path/of/folder?account=NAME`, whose account `metasync auth dropbox` has linked.

Objects are addressed by the folder's id and their path below it. Dropbox gives an id once, and keeps it where a folder
is moved; it is looked up by the URL's path once a day (`_shared.kept_root`).

`create` is an upload with mode `add` that neither renames nor takes the same bytes for the same file (providers.md,
section 2). Names on Dropbox know no case; ours are small letters. A pack is one upload. Upload sessions in batches take
three calls for all, but 15,000 files make eleven packs, of which one of three backends gets seven.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from metasync.backends._shared.http import MOST_S
from metasync.backends._shared.kept_root import KeptRoot
from metasync.backends._shared.native_ids import NativeIds, ids_of
from metasync.backends._shared.race_probe import create_by, keeps_creates
from metasync.backends._shared.urls import byte_range, check_account
from metasync.backends.api import BackendUrl, Change, Digest, DigestKind, Inventory, Item, Listed, LogForm, Space
from metasync.backends.names import check_part, count_bytes, is_name, native_identity, split_folder, split_path
from metasync.errors import BackendError, NotFoundError, RefusedError, UnreachableError, UsageError

T = TypeVar("T")

UPLOAD_BYTES_MAX: Final = 150 << 20  # in one request (providers.md, section 3); a pack has 64 MiB at most
PAGE_NAMES: Final = 2000  # as many as Dropbox gives at once
NAMES_MAX: Final = 1 << 20
PAGES_MAX: Final = 1 << 12
_PART_CHARS_MAX: Final = 200
_PART: Final = re.compile(r'[^\0-\x1f\x7f/\\:?*"<>|]{1,200}')  # what all of Dropbox's clients take
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_ROOT: Final = re.compile(r"(id:[!-~]{1,200}) ([0-9a-f]{64}) (/[^\0-\x1f\x7f]{1,4000})")  # as it is kept
_CURSOR: Final = re.compile(r"[!-~]{1,4000}")
_WATCH_S: Final = (30, 480)  # that Dropbox takes
_WATCH_LATE_S: Final = 90 + 60  # what Dropbox adds at random, and what a line may add


class _Root(NamedTuple):
    """The folder, as Dropbox tells it. `lower`: its whole path in small letters, as the feed has it."""

    id: str
    identity: bytes
    lower: str


class DropboxBackend:
    """A folder of an account. It makes no request before the first call."""

    scheme: ClassVar[str] = "dropbox"
    library: ClassVar[tuple[str, str]] = ("dropbox", "dropbox")
    form: ClassVar[LogForm] = "log"
    digest_kind: ClassVar[DigestKind] = "content_hash"
    url_params: ClassVar[frozenset[str]] = frozenset({"account"})

    def __init__(self, path: str, client: Any, ids: NativeIds) -> None:
        """`path`: the folder, from the account's root or from the app's folder on. `client`: a `client.Client`.

        `ids`: those of this account and folder.
        """
        self._path = path
        self._where = f"dropbox:{path}"
        self._client = client
        self._ids = ids
        self._root = KeptRoot(ids, _ROOT)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where})"

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        parts = url.path.strip("/").split("/")
        sound = url.path.startswith("/") and all(_PART.fullmatch(p) and p == p.strip(" ").rstrip(".") for p in parts)
        if url.host or not sound:
            raise UsageError(
                f"not the path of a folder in a Dropbox: {(url.host + url.path)[:80]!r}",
                next_step="Write dropbox:/folder, with a plain name for the folder.",
            )
        check_account(url)

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> DropboxBackend:
        """With `create_root` the folder is made, and those above it, if it is missing."""
        module, package = cls.library
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"no package {package}", name=package)
        from metasync.backends._shared.logins import open_login
        from metasync.backends._shared.logins.oauth import endpoint_of
        from metasync.backends.dropbox.client import Client

        login, stand_in = open_login("dropbox", dict(url.params).get("account")), endpoint_of("dropbox")
        path = "/" + url.path.strip("/")
        backend = cls(path, Client(login, stand_in), ids_of(login, stand_in, path))
        if create_root:
            backend._make_root()
        return backend

    # The calls of the contract.

    def create(self, path: str, data: bytes) -> bool:
        return create_by(lambda: self._create(path, data), self, path, data)

    def put(self, path: str, data: bytes) -> None:
        self._upload("put", path, data, "overwrite")

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        split_path(path)
        check_part(offset, length, max_bytes)
        if length == 0:
            self.stat(path)
            return b""
        attempt = self._attempt("get", path)
        is_part = bool(offset) or length is not None
        headers = {"Range": byte_range(offset, length)} if is_part else None
        most = max_bytes if length is None else min(length, max_bytes)
        at = self._at(attempt, path)
        # What begins at or behind the end is answered with 416, which is no error here.
        found, answer = self._ask(attempt, lambda sdk: _part_of(sdk, at, headers), body_bytes_max=most)
        if found is None:
            return b""
        data: bytes = answer.content
        if is_part and answer.status_code == 200:  # the whole
            data = data[offset:][:length]
        if len(data) != count_bytes(found.size, offset, length, max_bytes, path):
            raise UnreachableError(f"{attempt}: the answer broke off", next_step="Check the network.")
        return data

    def stat(self, path: str) -> int:
        return int(self._file("stat", path).size)

    def list(self, path: str) -> tuple[Listed, ...]:
        from dropbox import files

        split_folder(path)
        found: dict[str, Listed] = {}
        for entry in self._entries("list", path, recursive=False):
            if is_name(entry.name) and isinstance(entry, files.FileMetadata | files.FolderMetadata):
                found[entry.name] = Listed(entry.name, entry.size if isinstance(entry, files.FileMetadata) else None)
        return tuple(sorted(found.values(), key=lambda entry: entry.name))

    def delete(self, path: str) -> None:
        """A folder of this name, which nothing of ours has, is left alone."""
        split_path(path)
        attempt = self._attempt("delete", path)
        try:
            rev, at = self._file("delete", path).rev, self._at(attempt, path)
            self._ask(attempt, lambda sdk: sdk.files_delete_v2(at, parent_rev=rev))
        except NotFoundError:
            return

    def identity(self) -> bytes:
        """By the folder's own id, which Dropbox gives once, or that of the shared folder it is or lies in.

        A folder that is shared later has another scope, so that it is not taken for another store.
        """
        found = self._found(self._attempt("look at", ".")).identity
        self._root.pin()
        return found

    def close(self) -> None:
        self._client.close()
        self._ids.close()

    # Optional powers.

    def digest(self, path: str) -> Digest:
        found = self._file("digest", path)
        return Digest(int(found.size), _hash_of(found))

    def space(self) -> Space:
        usage = self._client.ask(self._attempt("measure", "."), lambda sdk: sdk.users_get_space_usage())
        allocation, used = usage.allocation, usage.used
        if allocation.is_individual():
            total: int | None = allocation.get_individual().allocated
        elif allocation.is_team():
            team = allocation.get_team()
            own = team.user_within_team_space_allocated  # 0: as much as the team has
            total, used = (own, team.user_within_team_space_used_cached) if own else (team.allocated, team.used)
        else:
            return Space(None, None)
        return Space(max(0, total - used), total)

    def probe(self) -> LogForm:
        """The form, or "none" if Dropbox broke `create`'s promise in a probe (`race_probe.keeps_creates`)."""
        return self.form if keeps_creates(self) else "none"

    def inventory(self, path: str, cursor: str) -> Inventory:
        """By the feed of the folder. What it says of a folder that is gone is an item as well: all below it is gone."""
        from dropbox import files

        split_path(path)
        attempt = self._attempt("list", path)
        try:
            page = self._page(attempt, path, cursor, recursive=True)
        except NotFoundError:
            if cursor:
                raise
            return Inventory((), "", False)  # nothing was stored there yet; there is nothing to have a feed of
        root = self._found(attempt).lower
        if not all(entry.path_lower or isinstance(entry, files.FolderMetadata) for entry in page.entries):
            raise _other(attempt)  # what cannot be named would be missing
        told = [entry.path_lower for entry in page.entries if entry.path_lower]
        if not all(f"{lower}/".startswith(f"{root}/") for lower in told):
            self._root.gone()
            raise NotFoundError(f"{attempt}: the folder was moved meanwhile")
        above = root.count("/") + path.count("/") + 1
        if any(isinstance(e, files.DeletedMetadata) and (e.path_lower or "").count("/") <= above for e in page.entries):
            raise NotFoundError(f"{attempt}: the folder was gone meanwhile")
        items = [item for entry in page.entries if (item := _item(entry, above)) is not None]
        return Inventory(tuple(items), page.cursor, page.has_more)

    def watch(self, path: str, cursor: str, timeout_s: float) -> Change:
        """By a long poll, of at least 30 s. It shows no login: Dropbox wants none for it."""
        split_path(path)
        attempt = self._attempt("watch", path)
        if not cursor:
            return Change(self._newest(attempt, path), True)
        if _CURSOR.fullmatch(cursor) is None:
            raise NotFoundError(f"{attempt}: this cursor is none")
        waits_s = min(max(round(timeout_s), _WATCH_S[0]), _WATCH_S[1])
        told = self._client.ask(
            attempt, lambda sdk: sdk.files_list_folder_longpoll(cursor, waits_s), within_s=waits_s + _WATCH_LATE_S
        )
        # The poll of a cursor that something came after ends at once: whoever was told looks from the newest on.
        newest = self._newest(attempt, path) if told.changes else cursor
        return Change(newest, bool(told.changes), min(float(told.backoff or 0), MOST_S))

    def sweep(self, path: str) -> None:
        """Removes the folders that hold no file: Dropbox keeps a folder whose last file is gone.

        A deletion takes all that is in a folder. So each is looked into once more just before, and goes only where
        both lists show it, and no file in it.
        """
        split_path(path)
        attempt = self._attempt("sweep", path)
        root = self._found(attempt).lower
        empty = self._empty_folders(path)
        for name in sorted(empty):
            below = name[len(root) + 1 :]
            # The topmost goes with all that is in it.
            if name.rpartition("/")[0] not in empty and name in self._empty_folders(below):
                at = self._at(attempt, below)
                try:
                    self._client.ask(attempt, lambda sdk, at=at: sdk.files_delete_v2(at))
                except NotFoundError:
                    continue

    # What they are made of.

    def _empty_folders(self, path: str) -> set[str]:
        """The folders, by their whole paths, that the list of a folder shows with no file below them, itself included.

        `UnreachableError` where the list tells what is neither file nor folder of that place: it may be a file.
        """
        from dropbox import files

        attempt = self._attempt("sweep", path)
        top = f"{self._found(attempt).lower}/{path}"
        folders, full = set[str](), set[str]()
        for entry in self._entries("sweep", path, recursive=True):
            told = getattr(entry, "path_lower", None) or ""
            if not f"{told}/".startswith(f"{top}/") or not isinstance(entry, files.FileMetadata | files.FolderMetadata):
                raise _other(attempt)
            if isinstance(entry, files.FolderMetadata):
                folders.add(told)
            else:
                parts = told.split("/")
                full.update("/".join(parts[:n]) for n in range(1, len(parts)))
        return folders - full

    def _create(self, path: str, data: bytes) -> bool:
        from metasync.backends.dropbox.client import ConflictError

        try:
            self._upload("create", path, data, "add")
        except ConflictError as error:
            if error.kind in {"file", "folder"}:
                return False
            raise
        return True

    def _upload(self, verb: str, path: str, data: bytes, mode: str) -> None:
        split_path(path)
        attempt = self._attempt(verb, path)
        if len(data) > UPLOAD_BYTES_MAX:
            raise RefusedError(f"{attempt}: it has {len(data)} bytes, and an upload {UPLOAD_BYTES_MAX} at most")
        at = self._at(attempt, path)

        def upload(sdk: Any) -> Any:
            from dropbox import files

            return sdk.files_upload(
                bytes(data),
                at,
                mode=getattr(files.WriteMode, mode),
                autorename=False,
                strict_conflict=mode == "add",
                mute=True,
            )

        found = self._ask(attempt, upload)
        if found.size != len(data):
            raise BackendError(f"{attempt}: Dropbox says that it has {found.size} bytes", next_step="Try again.")

    def _file(self, verb: str, path: str) -> Any:
        """What Dropbox says of an object. `NotFoundError` for anything else, too."""
        from dropbox import files

        split_path(path)
        attempt = self._attempt(verb, path)
        at = self._at(attempt, path)
        found = self._ask(attempt, lambda sdk: sdk.files_get_metadata(at))
        if not isinstance(found, files.FileMetadata):
            raise NotFoundError(f"{attempt}: it is no file")
        return found

    def _entries(self, verb: str, path: str, *, recursive: bool) -> Iterator[Any]:
        """All that a listing shows; nothing where there is no such folder."""
        attempt, cursor, names = self._attempt(verb, path or "."), "", 0
        for _ in range(PAGES_MAX):
            try:
                page = self._page(attempt, path, cursor, recursive=recursive)
            except NotFoundError:
                if cursor:
                    raise BackendError(f"{attempt}: it changed too much meanwhile", next_step="Try again.") from None
                return
            names += len(page.entries)
            yield from page.entries
            if not page.has_more:
                return
            if names > NAMES_MAX or page.cursor == cursor:
                break
            cursor = page.cursor
        raise BackendError(f"{attempt}: the listing has no end", retryable=False, next_step="Look what lies there.")

    def _page(self, attempt: str, path: str, cursor: str, *, recursive: bool) -> Any:
        if not cursor:
            at = self._at(attempt, path)
            return self._ask(attempt, lambda sdk: sdk.files_list_folder(at, recursive=recursive, limit=PAGE_NAMES))
        if _CURSOR.fullmatch(cursor) is None:
            raise NotFoundError(f"{attempt}: this cursor is none")
        return self._client.ask(attempt, lambda sdk: sdk.files_list_folder_continue(cursor))

    def _newest(self, attempt: str, path: str) -> str:
        at = self._at(attempt, path)
        told = self._ask(attempt, lambda sdk: sdk.files_list_folder_get_latest_cursor(at, recursive=True))
        return str(told.cursor)

    def _ask(self, attempt: str, call: Callable[[Any], T], **bounds: Any) -> T:
        """A call about something below the folder. Its refusals count only where the folder itself is there."""
        try:
            found: T = self._client.ask(attempt, call, **bounds)
        except (NotFoundError, RefusedError) as error:
            # A write into a folder that is gone is refused, and Dropbox has no word of its own for that.
            if isinstance(error, NotFoundError) or type(error) is RefusedError:
                self._root.check(attempt, lambda: self._told_of(attempt, self._found(attempt).id))
            raise
        self._root.seen()
        return found

    # The folder.

    def _found(self, attempt: str) -> _Root:
        """`UnreachableError` if there is no such folder."""
        line = self._root.get(attempt, lambda: self._told_of(attempt, self._path))
        match = _ROOT.fullmatch(line)
        assert match is not None
        return _Root(match[1], bytes.fromhex(match[2]), match[3])

    def _told_of(self, attempt: str, at: str) -> str:
        """What is kept of the folder at a path, or of an id. `UnreachableError` if there is none."""
        from dropbox import files

        try:
            found = self._client.ask(attempt, lambda sdk: sdk.files_get_metadata(at))
        except NotFoundError:
            found = None
        if not isinstance(found, files.FolderMetadata):
            self._root.gone()
            raise UnreachableError(
                f"{attempt}: there is no folder {self._path} in this Dropbox",
                next_step="Check the URL's path. Only init and `backend add` make a folder that is missing.",
            )
        line = f"{found.id} {_identity_of(found).hex()} {found.path_lower}"
        if _ROOT.fullmatch(line) is None:
            raise _other(attempt)
        return line

    def _make_root(self) -> None:
        from metasync.backends.dropbox.client import ConflictError

        attempt = self._attempt("make", ".")
        try:
            self._client.ask(attempt, lambda sdk: sdk.files_create_folder_v2(self._path))
        except ConflictError as error:
            if error.kind != "folder":
                raise
        self._root.keep(attempt, self._told_of(attempt, self._path))

    def _at(self, attempt: str, path: str) -> str:
        root = self._found(attempt).id
        return f"{root}/{path}" if path else root

    def _attempt(self, verb: str, path: str) -> str:
        return f"cannot {verb} {path} in {self._where}"


def _part_of(sdk: Any, at: str, headers: dict[str, str] | None) -> tuple[Any, Any]:
    """What Dropbox says of a file, and the answer with its bytes; nothing where the part begins behind its end."""
    from dropbox import exceptions

    try:
        found, answer = sdk.files_download(at, extra_headers=headers)
    except exceptions.HttpError as error:
        if error.status_code == 416 and headers:
            return None, None
        raise
    return found, answer


def _other(attempt: str) -> UnreachableError:
    return UnreachableError(f"{attempt}: what answered is not Dropbox", next_step="Check the network.")


def _identity_of(found: Any) -> bytes:
    """By the folder's own id, or that of the shared folder it is or lies in."""
    shared = found.sharing_info
    within = shared and (shared.shared_folder_id or shared.parent_shared_folder_id)
    mounted = shared and shared.shared_folder_id
    place = f"{within}" if mounted else f"{within} {found.id}" if within else f"{found.id}"
    return native_identity("dropbox shared" if within else "dropbox", place)


def _hash_of(found: Any) -> bytes | None:
    """What is no hash is none that was told."""
    return bytes.fromhex(found.content_hash) if _HASH.fullmatch(found.content_hash or "") else None


def _item(entry: Any, above: int) -> Item | None:
    """An entry of a feed, `above` folders deep; None for a folder that is there, and for what is not ours."""
    from dropbox import files

    parts = (entry.path_lower or "").split("/")[above + 1 :]
    if not parts or not all(map(is_name, parts)) or not isinstance(entry, files.DeletedMetadata | files.FileMetadata):
        return None
    name = "/".join(parts)
    if isinstance(entry, files.DeletedMetadata):
        return Item(name, None)
    return Item(name, int(entry.size), _hash_of(entry), str(entry.rev))
