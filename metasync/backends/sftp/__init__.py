"""SFTP: `sftp://user@host:port/absolute/path`, or `sftp://host/~/path` for a folder below the home there.

An object is written to a temporary name beside its place and flushed (fsync@openssh.com). `create` gives it its name by
hardlink@openssh.com, which fails if the name is taken; `put` by posix-rename@openssh.com, which replaces. SFTP has no
call that flushes a folder, so the file is flushed again under its new name: journalling file systems (ext4, XFS, btrfs,
ZFS) then have the name on the disk too, others may lose it with the server's power.

"Failure" stands for everything the protocol has no word for. Its cause is found by looking: at the name (taken?), the
folders above (a file among them?), the root (gone?), the file system (full? read-only?).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from metasync.backends._shared.race_probe import keeps_creates
from metasync.backends.api import BackendUrl, Inventory, Listed, LogForm, Space
from metasync.backends.names import (
    TEMP_PREFIX,
    check_part,
    count_bytes,
    is_name,
    native_identity,
    split_folder,
    split_path,
)
from metasync.backends.sftp import packets as sftp
from metasync.backends.sftp.folders import (
    find_root,
    flushing,
    is_taken,
    remove_temp,
    root_error,
    sweep_folder,
    why_not_made,
)
from metasync.backends.sftp.packets import HARDLINK, POSIX_RENAME, STATVFS, ProtocolError, StatusError
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError, UsageError
from metasync.runtime.sizes import LARGE_TIMEOUT_S, LEFT_OVER_MAX, SMALL_BYTES_MAX, SMALL_TIMEOUT_S

if TYPE_CHECKING:
    from metasync.backends.sftp.connection import Line
    from metasync.backends.sftp.session import Session

_LOOK_FIRST_BYTES = 1 << 16  # from here on a name that is taken is looked for before the bytes are sent
_ROOM_BYTES_MIN = 1 << 20  # a file system with less left beside what was to be written counts as full
_WHOLE_READ_BYTES = 32 << 10  # every server gives as many for one request

# Both become words of a shell where ~/.ssh/config has a ProxyCommand with %r or %h: letters, digits and a few marks.
_HOST = re.compile(
    r"(?:([^/]+)@)?(\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\]|[A-Za-z0-9._-]{1,255})(?::([0-9]{1,5}))?", re.ASCII
)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=,-]{0,127}", re.ASCII)


class SftpBackend:
    """A folder at an OpenSSH server. It is connected while it is open, and anew when the connection broke."""

    scheme: ClassVar[str] = "sftp"
    form: ClassVar[LogForm] = "log"
    url_params: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, line: Line, root: bytes, fsid: int | None) -> None:
        """`root`: the folder, as the server's `realpath` has it; `fsid`: of the file system it was seen on."""
        self._line = line
        self._root = root
        self._fsid = fsid
        self._shown = f"{os.fsdecode(root)} at {line.server.host}"
        self._identity = native_identity(f"sftp {line.key_fingerprint}", f"{line.server.user}\0{os.fsdecode(root)}")
        self._closed = False
        self._left_over: deque[bytes] = deque(maxlen=LEFT_OVER_MAX)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown})"

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        match = _HOST.fullmatch(url.host)
        if match is None or (match[3] and not 0 < int(match[3]) < 1 << 16) or match[2].startswith("-"):
            raise UsageError(
                "an SFTP URL begins with a server",
                next_step="Write sftp://user@host/path or sftp://user@host:port/path.",
            )
        if match[1] and _USER.fullmatch(match[1]) is None:
            raise UsageError(
                "not a user to log in as: the name has characters other than A-Z a-z 0-9 _ . @ + = , -",
                next_step="Write sftp://user@host/path. Any other user stands as User in ~/.ssh/config.",
            )
        parts = url.path.rstrip("/").split("/")[1:]
        home = bool(parts) and parts[0].startswith("~")
        if not {*parts[home:]} - {"", "."} or ".." in parts or (home and parts[0] != "~"):
            raise UsageError(
                "an SFTP URL names a folder of its own",
                next_step="Write sftp://host/absolute/path, or sftp://host/~/path for one below the home there.",
            )

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> SftpBackend:
        """Connects. `UnreachableError` if the folder is not there and not to be made."""
        from metasync.backends.sftp.connection import Line
        from metasync.backends.sftp.hosts import server_of

        match = _HOST.fullmatch(url.host)
        assert match is not None, "a URL that was not checked"
        host = match[2].strip("[]")
        line = Line(server_of(host, int(match[3]) if match[3] else None, match[1]))
        asked = url.path.removeprefix("/~/").lstrip("/") if url.path.startswith("/~/") else url.path
        try:
            with line.session(SMALL_TIMEOUT_S, f"cannot open {url.path}") as session:
                root, fsid = find_root(session, os.fsencode(asked), line.server.host, create=create_root)
                powers = session.powers
        except BaseException:
            line.close()
            raise
        if POSIX_RENAME not in powers:
            line.close()
            raise RefusedError(
                f"{line.server.host} cannot replace a file in one step ({POSIX_RENAME.decode()})",
                next_step="Use another server, such as OpenSSH, or another way to this one.",
            )
        kind = SftpBackend if _votes_in_log_form(line) and HARDLINK in powers else BlockSftpBackend
        return kind(line, root, fsid)

    def create(self, path: str, data: bytes) -> bool:
        target = self._path(path)
        with self._calling("create", path, len(data)) as session:
            if len(data) >= _LOOK_FIRST_BYTES and is_taken(session, target):
                return False
            with self._temp_name(path) as temp:
                handle = self._write_temp(session, path, temp, data)
                return self._give_name(session, handle, temp, target)

    def put(self, path: str, data: bytes) -> None:
        target = self._path(path)
        with self._calling("put", path, len(data)) as session, self._temp_name(path) as temp:
            handle = self._write_temp(session, path, temp, data)
            replies = session.ask(sftp.posix_rename(temp, target), *flushing(session, handle), sftp.close(handle))
            try:
                for reply in replies:
                    sftp.done(reply)
            except StatusError:
                remove_temp(session, temp)
                raise

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        place = self._path(path)
        check_part(offset, length, max_bytes)
        most = max_bytes if length is None else min(length, max_bytes)
        with self._calling("get", path, most, absent_is_error=True) as session:
            handle = sftp.handle_of(session.ask_one(sftp.open_to_read(place)))
            first = min(most, session.piece_bytes)
            size, head = session.send(sftp.fstat(handle)), session.send(sftp.read(handle, offset, first))
            whole = first == most <= _WHOLE_READ_BYTES
            if whole:
                session.send(sftp.close(handle), unwanted=True)
            try:
                found = self._size(sftp.attributes_of(session.receive(size)), path)
                count = count_bytes(found, offset, length, max_bytes, f"{path} in {self._shown}")
                data = sftp.data_of(session.receive(head), first) if count else b""
                if not whole and len(data) < count:
                    data += session.read(handle, offset + len(data), count - len(data))
            finally:
                if not whole:
                    session.send(sftp.close(handle), unwanted=True)
            if len(data) < count:
                raise ProtocolError("fewer bytes than the file has")
        return data[:count]

    def stat(self, path: str) -> int:
        place = self._path(path)
        with self._calling("stat", path, absent_is_error=True) as session:
            return self._size(sftp.attributes_of(session.ask_one(sftp.stat_of(place))), path)

    def list(self, path: str) -> tuple[Listed, ...]:
        split_folder(path)
        with self._calling("list", path) as session:
            if not path:
                self._check_root(session)
            return self._listed(session, [path])[path]

    def inventory(self, path: str, cursor: str) -> Inventory:
        """A page costs two or three round trips, however many folders are in it."""
        from metasync.backends import walk

        with self._calling("list", path) as session:
            return walk.inventory(path, cursor, lambda folders: self._listed(session, folders))

    def _listed(self, session: Session, folders: Sequence[str]) -> dict[str, tuple[Listed, ...]]:
        """What is in each of these folders: nothing where there is none, or a file."""
        out = {}
        for folder, entries in zip(folders, session.folders([self._below(f) for f in folders]), strict=True):
            if isinstance(entries, StatusError):
                if not self._is_absent(session, entries, self._below(folder) + b"/-"):
                    raise entries
                entries = []
            found = {}
            for raw, attributes in entries:
                name = raw.decode("ascii", "replace")
                if is_name(name) and attributes.is_folder:
                    found[name] = Listed(name, None)
                elif is_name(name) and attributes.is_file and attributes.size is not None:
                    found[name] = Listed(name, attributes.size)
            out[folder] = tuple(sorted(found.values(), key=lambda entry: entry.name))
        return out

    def delete(self, path: str) -> None:
        place = self._path(path)
        with self._calling("delete", path) as session:
            try:
                sftp.done(session.ask_one(sftp.remove(place)))
            except StatusError as error:
                if not self._is_absent(session, error, place):
                    raise

    def identity(self) -> bytes:
        return self._identity

    def space(self) -> Space:
        """None and None where the server has no statvfs@openssh.com. A user's own quota does not show."""
        with self._calling("measure", "") as session:
            if STATVFS not in session.powers:
                return Space(None, None)
            room = sftp.room_of(session.ask_one(sftp.statvfs(self._root)))
        return Space(free_bytes=room.free_bytes, total_bytes=room.total_bytes)

    def sweep(self, path: str) -> None:
        place = self._path(path)
        with self._calling("sweep", path) as session:
            try:
                sweep_folder(session, place)
            except StatusError as error:
                if not self._is_absent(session, error, place + b"/-"):
                    raise

    def probe(self) -> LogForm:
        """The form, or "none" if the server broke `create`'s promise in a probe, or cannot link files.

        In block form nobody races for a name, and so no thread of the probe does.
        """
        try:
            kept = keeps_creates(self, races=self.form == "log")
        except _NoLinksError:
            return "none"
        return self.form if kept else "none"

    def close(self) -> None:
        self._closed = True
        self._line.close()

    def _path(self, path: str) -> bytes:
        split_path(path)
        return self._below(path)

    def _below(self, path: str) -> bytes:
        return b"%s/%s" % (self._root, path.encode("ascii")) if path else self._root

    @contextlib.contextmanager
    def _calling(
        self, verb: str, path: str, size_bytes: int = 0, *, absent_is_error: bool = False
    ) -> Iterator[Session]:
        """Lends a session for a call; a `StatusError` out of the block becomes an error of the contract.

        `absent_is_error`: an absent object is a `NotFoundError`.
        """
        assert not self._closed, "the backend was closed"
        what = f"{path} in {self._shown}" if path else self._shown
        timeout_s = SMALL_TIMEOUT_S if size_bytes <= SMALL_BYTES_MAX else LARGE_TIMEOUT_S
        with self._line.session(timeout_s, f"cannot {verb} {what}") as session:
            while self._left_over:
                with contextlib.suppress(IndexError):  # another thread had it
                    session.send(sftp.remove(self._left_over.popleft()), unwanted=True)
            try:
                yield session
            except StatusError as error:
                session.settle()
                if absent_is_error and self._is_absent(session, error, self._below(path)):
                    raise NotFoundError(f"{path} is not in {self._shown}") from error
                raise self._refusal(session, error, verb, what, self._below(path), size_bytes) from error

    @contextlib.contextmanager
    def _temp_name(self, path: str) -> Iterator[bytes]:
        """A name beside an object's place. What is left under it when the block breaks off, a later call removes."""
        above, slash, _ = path.rpartition("/")
        temp = self._below(f"{above}{slash}{TEMP_PREFIX}{os.urandom(8).hex()}")
        try:
            yield temp
        except BaseException as error:
            if not isinstance(error, StatusError | BackendError):  # those are answers, and it was removed
                self._left_over.append(temp)
            raise

    def _write_temp(self, session: Session, path: str, temp: bytes, data: bytes) -> bytes:
        """Stores `data`, flushed, under a temporary name; -> a handle, still open."""
        above = path.rpartition("/")[0]
        if not above:
            self._check_root(session)  # else: a folder below it was there, or is made after a look at the root
        try:
            handle = sftp.handle_of(session.ask_one(sftp.open_to_create(temp)))
        except StatusError as error:
            if error.code not in sftp.ABSENT or not above:
                raise
            handle = self._open_in_new_folders(session, above, temp)
        try:
            numbers = session.write(handle, data)
            numbers += [session.send(request) for request in flushing(session, handle)]
            for number in numbers:
                sftp.done(session.receive(number))
        except StatusError:
            session.send(sftp.close(handle), unwanted=True)
            remove_temp(session, temp)
            raise
        return handle

    def _give_name(self, session: Session, handle: bytes, temp: bytes, target: bytes) -> bool:
        if HARDLINK not in session.powers:
            session.send(sftp.close(handle), unwanted=True)
            remove_temp(session, temp)
            raise UnreachableError(
                f"{self._line.server.host} does not offer any more what it did before ({HARDLINK.decode()})",
                next_step="Was the server's software exchanged? Run: metasync backend check URL",
            )
        linked, *others = session.ask(
            sftp.hardlink(temp, target), *flushing(session, handle), sftp.close(handle), sftp.remove(temp)
        )
        try:
            sftp.done(linked)
        except StatusError as error:
            if is_taken(session, target):
                return False
            if error.code in (sftp.PERMISSION_DENIED, sftp.OP_UNSUPPORTED):
                raise _NoLinksError(
                    f"cannot create in {self._shown}: the file system there has no hard links, or allows none",
                    next_step="It can hold data, but not vote: add ?role=storage to its URL.",
                ) from error
            raise
        for reply in others[:-1]:  # a temporary name that is left over does no harm
            sftp.done(reply)
        return True

    def _size(self, found: sftp.Attributes, path: str) -> int:
        if not found.is_file:
            raise RefusedError(f"{path} in {self._shown} is not a file")
        if found.size is None:
            raise ProtocolError("a file without a size")
        return found.size

    def _open_in_new_folders(self, session: Session, above: str, temp: bytes) -> bytes:
        self._check_root(session)
        parts = above.split("/")
        made = session.ask(*(sftp.mkdir(self._below("/".join(parts[:n]))) for n in range(1, len(parts) + 1)))
        try:
            return sftp.handle_of(session.ask_one(sftp.open_to_create(temp)))
        except StatusError as error:
            if error.code in sftp.ABSENT:
                raise why_not_made(made) from error
            raise

    def _check_root(self, session: Session) -> None:
        """`UnreachableError` unless the root is there, on the file system on which it was."""
        try:
            if self._fsid is not None and STATVFS in session.powers:
                # "/.": of a file in its place the same would be told.
                fsid = sftp.room_of(session.ask_one(sftp.statvfs(self._root + b"/."))).fsid
                if fsid != self._fsid:
                    raise UnreachableError(
                        f"{self._shown} lies on another file system than before; was a drive unmounted there?",
                        next_step="Mount the drive again and repeat the command.",
                    )
            elif not sftp.attributes_of(session.ask_one(sftp.stat_of(self._root))).is_folder:
                raise StatusError(sftp.NO_SUCH_FILE)
        except StatusError as error:
            raise root_error(error, self._shown) from error

    def _is_absent(self, session: Session, error: StatusError, place: bytes) -> bool:
        """Whether `error` says that there is nothing at `place`. `UnreachableError` if there is not even the root."""
        if error.code not in {*sftp.ABSENT, sftp.FAILURE}:
            return False
        self._check_root(session)
        return error.code in sftp.ABSENT or self._is_below_a_file(session, place)

    def _is_below_a_file(self, session: Session, place: bytes) -> bool:
        parts = place.removeprefix(self._root).strip(b"/").split(b"/")[:-1]
        above = [self._root + b"/" + b"/".join(parts[:n]) for n in range(1, len(parts) + 1)]
        for reply in session.ask(*map(sftp.lstat, above)):
            with contextlib.suppress(StatusError):
                found = sftp.attributes_of(reply)
                if found.mode is not None and not found.is_folder:
                    return True
        return False

    def _refusal(
        self, session: Session, error: StatusError, verb: str, what: str, place: bytes, size_bytes: int
    ) -> BackendError:
        """What the server's no means, which may take a look or two."""
        message = f"cannot {verb} {what}"
        full = FullError(f"{message}: no space or quota is left", next_step="Free some space, or add a backend.")
        if error.code in (sftp.NO_SPACE, sftp.QUOTA_EXCEEDED):
            return full
        if error.code in (sftp.NO_CONNECTION, sftp.CONNECTION_LOST):
            return UnreachableError(f"{message}: {error}", next_step="Try again later.")
        if error.code in (sftp.PERMISSION_DENIED, sftp.WRITE_PROTECT):
            return RefusedError(
                f"{message}: {error}",
                next_step=f"The account {self._line.server.user} must own the folder there, or may write in it.",
            )
        if error.code in (sftp.BAD_MESSAGE, sftp.OP_UNSUPPORTED):
            return RefusedError(f"{message}: {error}", next_step="This server cannot do that.")
        if error.code in {*sftp.ABSENT, sftp.FAILURE}:
            self._check_root(session)
            if self._is_below_a_file(session, place):
                return RefusedError(f"{message}: a file stands where a folder should", next_step="Look at it there.")
            room = self._room(session)
            if room is not None and room.read_only:
                return RefusedError(f"{message}: the file system is mounted read-only", next_step="Mount it anew.")
            if room is not None and (
                room.free_bytes < size_bytes + _ROOM_BYTES_MIN or (room.files_total and not room.files_free)
            ):
                return full
        return BackendError(
            f"{message}: the server says {str(error)!r} and no more",
            next_step="Look at it there; a quota may be used up." if error.code == sftp.FAILURE else "",
        )

    def _room(self, session: Session) -> sftp.Room | None:
        if STATVFS not in session.powers:
            return None
        with contextlib.suppress(StatusError):
            return sftp.room_of(session.ask_one(sftp.statvfs(self._root)))
        return None


class BlockSftpBackend(SftpBackend):
    """A server of which nobody knows that two racing creates cannot both win."""

    form: ClassVar[LogForm] = "block"
    form_reason: ClassVar[str] = (
        "the server is not OpenSSH, or offers no hard links: nobody vouches that two racing creates cannot both win"
    )

    def _give_name(self, session: Session, handle: bytes, temp: bytes, target: bytes) -> bool:
        if is_taken(session, target):
            session.ask(sftp.close(handle), sftp.remove(temp))
            return False
        renamed, *others = session.ask(sftp.rename(temp, target), *flushing(session, handle), sftp.close(handle))
        try:
            sftp.done(renamed)
        except StatusError:
            remove_temp(session, temp)
            if is_taken(session, target):
                return False
            raise
        for reply in others:
            sftp.done(reply)
        return True


class _NoLinksError(RefusedError):
    """The file system has no hard links."""


def _votes_in_log_form(line: Line) -> bool:
    """The allow-list: of OpenSSH it is known that a link never replaces, and that one of several makers gets it."""
    return line.is_openssh
