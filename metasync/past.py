"""The part of `Workspace` about versions: history, differences, bringing back, and conflicts that wait."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal

from metasync.worktree.paths import TreePath, tree_path

if TYPE_CHECKING:
    from metasync.reports.backends import LogItem
    from metasync.reports.history import ConflictItem, DiffReport, Listing, ResolveReport, RestoreReport
    from metasync.session.session import Session


class Past:
    """Mixed into `Workspace`. What only these operations need is imported by them: a push does not pay for it."""

    _operation: Callable[[str], AbstractContextManager[Session]]
    _session: Callable[[str], AbstractContextManager[Session]]

    # Versions are named as on the command line (`history.versions`); paths are relative to `directory`, joined by "/".

    def log(
        self, path: TreePath | None = None, limit: int | None = None, *, with_counts: bool = False
    ) -> list[LogItem]:
        """The agreed history, newest first, as of the newest version this device can learn of.

        With a path (of a file or a directory, a deleted one too): the versions in which it changed, each with what
        changed there, and what merges by lines replaced of it. `with_counts`: how much changed in each version; that
        reads the trees of all of them.
        """
        from metasync.history import log as history

        with self._session("log") as s:
            where = tree_path(path) if path is not None else None
            return history.log(history.History(s), where, limit=limit, with_counts=with_counts)

    def diff(
        self, a: str | None = None, b: str | None = None, paths: Sequence[TreePath] = (), *, text: bool = False
    ) -> DiffReport:
        """What differs between version `a` (this folder's base) and version `b` (the folder as it stands).

        `paths`: only there and below. `text`: also the lines of texts. `UsageError`: no such version or path.
        """
        from metasync.history import diff as compare

        with self._session("diff") as s:
            return compare.diff(s, a, b, [tree_path(p) for p in paths], text=text)

    def ls(self, version: str | None = None, path: TreePath = "", *, recursive: bool = False) -> Listing:
        """What a version (the newest) holds at a path: a directory's names, or all below it; or the file itself."""
        from metasync.history import diff as compare
        from metasync.history import log as history

        with self._session("ls") as s:
            return compare.listing(
                history.History(s, ask=version != "base"), version or "latest", tree_path(path), recursive=recursive
            )

    def restore(
        self,
        version: str,
        paths: Sequence[TreePath] = (),
        to: str | os.PathLike[str] | None = None,
        *,
        delete: bool = True,
        dry_run: bool = False,
    ) -> RestoreReport:
        """Brings the folder, or these paths in it, to what a version had; the next push takes that.

        What stands there and is in no agreed version is kept: under its name where it can be, else as a conflict copy.
        `delete`: what the version lacks goes, if it is agreed and unchanged. `to`: writes to that directory instead,
        where nothing that exists is replaced; what cannot be had is listed, and the rest is written.

        `UsageError`: no such version or path. `DamagedError`, `NoQuorumError`: what is needed cannot be had, nothing
        was changed. `WorkspaceError`: the disk is full; something else is in `to`.
        """
        from metasync.history import export as extracting
        from metasync.history import restore as restoring

        wanted = [tree_path(p) for p in paths]
        if to is not None:
            with self._session("restore") as s:
                return extracting.extract(s, version, wanted, to, dry_run=dry_run)
        with self._operation("restore") as s:
            return restoring.restore(s, version, wanted, delete=delete, dry_run=dry_run)

    def conflicts(self) -> tuple[ConflictItem, ...]:
        """The conflicts that wait: those this device found, and copies by name that arrived from another one."""
        from metasync.history import conflicts as conflicting

        with self._session("conflicts") as s:
            return conflicting.conflicts(s)

    def resolve(self, path: TreePath, keep: Literal["mine", "theirs", "both"]) -> ResolveReport:
        """Ends the conflict at `path`, the original or a copy.

        `mine`: the copy takes the name; `theirs`: the copy goes; `both`: both stay. What loses is kept until an agreed
        version holds it. `UsageError`: there is no conflict, or several copies and `mine` does not say which.
        """
        from metasync.history import conflicts as conflicting

        with self._operation("resolve") as s:
            return conflicting.resolve(s, tree_path(path), keep)
