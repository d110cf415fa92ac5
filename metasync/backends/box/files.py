"""Objects at Box as files: by ids that are kept, else by a look whether a name is free; uploads, whole or in parts."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from metasync.backends.api import Space
from metasync.backends.box.client import NotReadyError, TakenError
from metasync.backends.box.folders import FIELDS, ID, File, Folders, file_of, id_of, other, place
from metasync.errors import BackendError, NotFoundError, RefusedError, UnreachableError

WHOLE_BYTES_MAX: Final = 50 << 20  # in one request (providers.md, section 3)
_SESSION: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
COMMITS_MAX: Final = 8  # of one upload in parts, which Box puts off while it reads them
_COMMITS_S: Final = 30.0  # for all pauses between them


class Files:
    """The files of a folder, for several threads. `attempt` begins the messages of errors."""

    def __init__(self, at: Folders, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._at = at
        self._sleep = sleep

    @property
    def folder(self) -> Folders:
        return self._at

    # By path.

    def look(self, attempt: str, path: str) -> str | None:
        """The id of an object's file: by the one that is kept, else by a look whether the name is free."""
        kept = self._at.ids.get(path)
        if kept is not None:
            return kept
        folder = self._at.folder(attempt, path, make=False)
        return self._look_in(attempt, path, folder) if folder is not None else None

    def find(self, attempt: str, path: str) -> File:
        """What Box says of an object. `NotFoundError` if there is none, `UnreachableError` without its folder."""
        for _ in range(2):
            file_id = self.look(attempt, path)
            if file_id is None:
                break
            found = self._told(attempt, file_id)
            if found is not None and self._at.path_of(found) == path:
                self._at.seen()
                return found
            self._forget(path)
        self._at.check_root(attempt)
        raise NotFoundError(f"{attempt}: it is not there")

    def part(self, attempt: str, path: str, most: int, range_: str | None) -> bytes:
        status, data = self._content(attempt, path, most, {"Range": range_} if range_ else {})
        if status == 416:  # it begins at or behind the end
            return b""
        if (range_ is not None) != (status == 206):
            raise other(attempt)
        return data

    def listed(self, attempt: str, path: str) -> Iterator[tuple[str, int | None]]:
        return self._at.below(attempt, path)

    def _content(self, attempt: str, path: str, most: int, headers: dict[str, str]) -> tuple[int, bytes]:
        """Status and bytes of an object: `headers` may ask for a part."""
        for _ in range(2):
            file_id = self.look(attempt, path)
            if file_id is None:
                break
            try:
                url = self._address(attempt, file_id)
                status, _, body = self._at.client.fetch(attempt, url, body_bytes_max=most, headers=headers)
                self._at.seen()
                return status, body
            except NotFoundError:
                self._forget(path)
        self._at.check_root(attempt)
        raise NotFoundError(f"{attempt}: it is not there")

    def _told(self, attempt: str, file_id: str) -> File | None:
        try:
            told = self._at.client.ask(attempt, lambda box: box.files.get_file_by_id(file_id, fields=FIELDS))
        except NotFoundError:
            return None
        return file_of(attempt, told)

    def _address(self, attempt: str, file_id: str) -> str:
        """Where the bytes are for a while."""
        return str(self._at.client.ask(attempt, lambda box: box.downloads.get_download_file_url(file_id)))

    def create(self, attempt: str, path: str, data: bytes) -> bool:
        """A new file under a name that is free; False: it is taken."""
        for last in (False, True):
            folder = self._at.folder(attempt, path, make=True)
            assert folder is not None
            try:
                self._keep(path, self._upload(attempt, path, data, folder=folder))
                return True
            except TakenError as taken:
                self._note_taken(path, taken)
                return False
            except NotFoundError:  # the folder is gone
                self._at.lost(attempt, path, last=last)
        raise AssertionError  # the last one raises

    def put(self, attempt: str, path: str, data: bytes) -> None:
        """A new file, or a new version of the one that is there. The id that is kept may be another object's."""
        kept = self._at.ids.get(path)
        if kept is not None and ((found := self._told(attempt, kept)) is None or self._at.path_of(found) != path):
            self._forget(path)
            kept = None
        for last in (False, False, True):  # its file may be gone, and then its folder
            try:
                if kept is None:
                    folder = self._at.folder(attempt, path, make=True)
                    assert folder is not None
                    self._keep(path, self._upload(attempt, path, data, folder=folder))
                else:
                    self._keep(path, self._upload(attempt, path, data, file_id=kept))
                return
            except TakenError as taken:
                if kept is not None:
                    raise
                kept = self._note_taken(path, taken)
                if kept is None:
                    raise
                if last:
                    self._keep(path, self._upload(attempt, path, data, file_id=kept))
                    return
            except NotFoundError:
                if kept is None:
                    self._at.lost(attempt, path, last=last)
                elif last:
                    raise UnreachableError(f"{attempt}: the file went away meanwhile", next_step="Try again.") from None
                self._forget(path)
                kept = None

    def delete(self, attempt: str, path: str) -> None:
        """For good: what lies in the trash keeps its space."""
        try:
            found = self.find(attempt, path)
        except NotFoundError:
            return
        for call in (
            lambda box: box.files.delete_file_by_id(found.id),
            lambda box: box.trashed_files.delete_trashed_file_by_id(found.id),
        ):
            try:
                self._at.client.ask(attempt, call)
            except NotFoundError:
                break
            except RefusedError:  # a policy keeps what is in the trash
                if self._look_in(attempt, path, found.parent) == found.id:
                    raise
        self._forget(path)

    def _upload(self, attempt: str, path: str, data: bytes, *, folder: str = "", file_id: str = "") -> File:
        """Stores bytes, and checks what Box says of them. Box compares them with the SHA-1 that is sent along."""
        from box_sdk_gen import (
            UploadFileAttributes,
            UploadFileAttributesParentField,
            UploadFileVersionAttributes,
        )

        name, sha1 = place(attempt, path)[1], _sha1(data)

        def ask(box: Any) -> Any:
            if file_id:
                version = UploadFileVersionAttributes(name=name)
                told = box.uploads.upload_file_version(
                    file_id, version, io.BytesIO(data), file_file_name=name, content_md_5=sha1.hex(), fields=FIELDS
                )
            else:
                attributes = UploadFileAttributes(name=name, parent=UploadFileAttributesParentField(id=folder))
                told = box.uploads.upload_file(
                    attributes, io.BytesIO(data), file_file_name=name, content_md_5=sha1.hex(), fields=FIELDS
                )
            return told.entries[0]

        if len(data) > WHOLE_BYTES_MAX:
            found = self._upload_in_parts(attempt, name, data, folder, file_id)
        else:
            found = file_of(attempt, self._at.client.ask(attempt, ask))
        if found.size != len(data) or found.digest not in (None, sha1):
            raise BackendError(f"{attempt}: Box says that it has other bytes", next_step="Try again.")
        self._at.seen()
        return found

    def _upload_in_parts(self, attempt: str, name: str, data: bytes, folder: str, file_id: str) -> File:
        """A large object, by an upload session: nobody sees it before the whole is there."""
        size = len(data)

        def begin(box: Any) -> tuple[str, int]:
            uploads = box.chunked_uploads
            if file_id:
                begun = uploads.create_file_upload_session_for_existing_file(file_id, size, file_name=name)
            else:
                begun = uploads.create_file_upload_session(folder, size, name)
            return str(begun.id), int(begun.part_size)

        session, step = self._at.client.ask(attempt, begin)
        if _SESSION.fullmatch(session) is None or not 1 << 10 <= step <= 1 << 30:
            raise other(attempt)
        parts = []
        try:
            for at in range(0, size, step):
                piece = data[at : at + step]
                where = f"bytes {at}-{at + len(piece) - 1}/{size}"
                parts.append(self._part(attempt, session, piece, where))
            return self._commit(attempt, session, parts, data)
        except (NotReadyError, RefusedError) as error:
            self._abort(attempt, session)
            found = self._told(attempt, file_id) if file_id and isinstance(error, NotReadyError) else None
            if found is not None and (found.size, found.digest) == (size, _sha1(data)):
                return found  # a commit that changes nothing is never done, Box's library says
            raise

    def _part(self, attempt: str, session: str, piece: bytes, where: str) -> Any:
        return self._at.client.ask(
            attempt,
            lambda box: box.chunked_uploads.upload_file_part(session, io.BytesIO(piece), _digest(piece), where).part,
        )

    def _commit(self, attempt: str, session: str, parts: list[Any], data: bytes) -> File:
        """Makes a file of parts. Box may put that off with a 202: it is asked again, when it says."""

        def ask(box: Any) -> Any:
            told = box.chunked_uploads.create_file_upload_session_commit(session, parts, _digest(data))
            return told.entries[0]

        left_s = _COMMITS_S
        for left in reversed(range(COMMITS_MAX)):
            try:
                return file_of(attempt, self._at.client.ask(attempt, ask))
            except NotReadyError as error:
                pause_s = error.retry_after_s or 0.0
                if not left or pause_s > left_s:
                    # Without a time: the account as a whole is not asked to wait.
                    raise NotReadyError(
                        f"{attempt}: Box has not put its parts together yet", next_step="Try again later."
                    ) from None
            left_s -= pause_s
            self._sleep(pause_s)
        raise AssertionError  # the last one raises

    def _abort(self, attempt: str, session: str) -> None:
        """Box forgets what was sent; else it does so within a week."""
        with suppress(BackendError):
            self._at.client.ask(attempt, lambda box: box.chunked_uploads.delete_file_upload_session_by_id(session))

    def space(self, attempt: str) -> Space:
        def ask(box: Any) -> tuple[Any, Any]:
            told = box.users.get_user_me(fields=["space_amount", "space_used"])
            return told.space_amount, told.space_used

        total, used = self._at.client.ask(attempt, ask)
        if not isinstance(total, int) or not isinstance(used, int) or total < 0:
            return Space(None, None)
        return Space(max(0, total - used), total)

    def _look_in(self, attempt: str, path: str, folder: str) -> str | None:
        """Whether a name is free, and if not, whose it is: one request."""
        try:
            item = self._at.taken(attempt, place(attempt, path)[1], folder)
        except NotFoundError:  # the folder is gone
            self._at.ids.forget(f"/{place(attempt, path)[0]}")
            return None
        if item is None or item.get("type") != "file":
            return None
        found = id_of(attempt, item.get("id"))
        self._at.ids.note([(path, found)])
        return found

    def _note_taken(self, path: str, taken: TakenError) -> str | None:
        found = str(taken.item.get("id", ""))
        if taken.item.get("type") != "file" or ID.fullmatch(found) is None:
            return None
        self._at.ids.note([(path, found)])
        return found

    def _keep(self, path: str, file: File) -> None:
        self._at.ids.note([(path, file.id)])

    def _forget(self, path: str) -> None:
        self._at.ids.forget(path)


def _sha1(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()


def _digest(data: bytes) -> str:
    return "sha=" + base64.b64encode(_sha1(data)).decode()
