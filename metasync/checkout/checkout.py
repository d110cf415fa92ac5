"""The checkout: from the tree that the scan saw to the merged one, without losing a byte of the user's.

`begin` writes the plan to the journal, in the local state. Contents arrive in any order, into `.metasync/tmp/`
(`staging`), each with its final mode and time; the working tree is not touched. Of very many files another process
makes a part (`handed`). When all are there, `apply` makes them
durable (`syncfs`), notes their inodes, which turns the journal from staging to applying, and changes the tree:

1. What goes, from the leaves up: a file is renamed to `.metasync/replaced/`, a directory goes by rmdir alone.
2. What comes, from the root down: directories, and each new file by a rename that never replaces; a directory that was
   staged whole comes by one rename. To replace a file the two names are *exchanged* in one system call: the path is
   never empty, and whatever stood there at that moment is in our hands. The file that the scan saw goes to `replaced/`;
   another one is the user's late change and becomes a conflict copy.
3. Modes of directories, from the leaves up. Then `syncfs`; the file system's clock is waited past; stats are read back
   into rows; and one transaction writes rows, the caller's values and the end of the journal.

Where `apply` is given somebody to be `answered`, the rows of each slice of changes are written as soon as these are
made. So the rows say what stands in the folder, in the middle of it. They count for nothing more: the journal is as it
was, and `recover` makes the rows of all changes anew.

A killed process leaves the old or the new bytes at each path. What was staged stays, and the next checkout takes from
it what it needs and finds right (`open_left`, `take_left`). A plan that was being applied is run again by `recover`:
every step looks first at what is there (a staged inode at its path is done; one that is gone from `tmp/` was placed).

What this disk cannot take (a name it can't hold, a directory that is not ours to write, a file that has no room: see
`room`) is left out, told, and noted in `State.unplaced`. Without a row its absence says nothing. If another file stands
there, a row with the agreed entry and that file's stat says that it is no change of the user's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from metasync.checkout.apply import Placer
from metasync.checkout.handed import Handed
from metasync.checkout.outcome import note_conflicts, replaced_files, rows_after
from metasync.checkout.plan import (
    CHANGED_MEANWHILE,
    Applied,
    Change,
    Plan,
    decode_plan,
    encode_plan,
    is_of_others,
    not_as_agreed,
    unfit,
)
from metasync.checkout.room import FULL, RESERVE_BYTES, full, lacks_inodes, no_room, waiting, with_room, without_room
from metasync.checkout.staging import (
    TMP,
    Leftovers,
    Stage,
    drop_left,
    leave,
    may_come_whole,
    no_fit,
    remove_all,
    sync,
    undelivered,
    whole_dirs,
    wrong_size,
)
from metasync.checkout.trash import next_free
from metasync.errors import WorkspaceError
from metasync.local.state import State
from metasync.local.state_keys import (
    INODES_KEY,
    MODES_KEY,
    PLAN_KEY,
    REPLACED,
    REPLACED_KEY,
    UNPLACED,
    WHOLE_KEY,
    Unplaced,
)
from metasync.merge.copies import UNNAMED, Origin
from metasync.objects.model import Entry, Kind
from metasync.worktree.disk import APPEND_FLAGS, READ_FLAGS, check_path, dress, set_mode
from metasync.worktree.index import Row, store_rows
from metasync.worktree.tree import WorkTree, failed

__all__ = ["Applied", "Change", "Checkout"]

SLICE_CHANGES = 4000  # a fifth of a second of CPU at most, and a commit


class Checkout:
    """One checkout at a time: `recover` after every start, then `begin`, deliver contents, `apply`.

    Its user holds the workspace's lock. Contents may be delivered from several threads.
    """

    def __init__(self, db: State, tree: WorkTree) -> None:
        self.db = db
        self.tree = tree
        self.disk = tree.disk
        self.plan: Plan | None = None
        self._numbers: dict[bytes, int] = {}  # of the changes that are staged
        self._stats: dict[int, os.stat_result] = {}  # of what was staged
        self._awaited: set[int] = set()
        self._may_wait: set[int] = set()  # of those that are staged: they are left out where the disk is full
        self._short: set[int] = set()  # those that were
        self._parts: dict[int, dict[int, int]] = {}  # change -> offset -> bytes delivered
        self._stage: Stage | None = None
        self._left: Leftovers | None = None
        self._handed: Handed | None = None
        self._lock = threading.RLock()
        self.rows: tuple[dict[bytes, Row], list[bytes]] = {}, []  # put and deleted by `apply`, when it calls `commit`

    def begin(
        self,
        changes: Iterable[Change],
        commit: Mapping[str, bytes | None] | None = None,
        *,
        version: int = 0,
        own: bool = False,
        needed: Collection[bytes] | None = (),
        reason: str = CHANGED_MEANWHILE,
        origin: Origin = UNNAMED,
    ) -> list[bytes]:
        """Journals the plan; -> the paths whose contents are to be delivered, in order.

        Directories, symlinks, empty files, files of which only mode or mtime change, what this disk can't hold and what
        has no room are not among them. `commit` is set in the local state in the transaction of the outcome, by `apply`
        or `recover`. `version`: the agreed version of the merged tree, for the records of conflicts; `own`, `reason`,
        `origin`: see `Plan`. `needed`: paths that may not wait for room; None, and with `own`: all of them.
        `WorkspaceError`: a plan is under way (`recover` first), or the disk has no room for what may not wait.
        """
        if self.db.has(INODES_KEY) or self.plan is not None:
            raise WorkspaceError("An earlier checkout has not ended.", next_step="Run the command again to finish it.")
        if (before := self._staged_before()) is not None:
            self._left = Leftovers(self.tree, before.changes, before.unfit)
        by_path = {change.path: change for change in changes}
        for path in self.db.unplaced().keys() & by_path.keys():
            by_path[path] = not_as_agreed(by_path[path])
        ordered = tuple(by_path[path] for path in sorted(by_path))
        first = next_free(self.tree, self.db)
        root = self.tree.root_stat
        bad = {
            i: why for i, change in enumerate(ordered) if change.new is not None and (why := check_path(change.path))
        }
        left = {**unfit(self.tree, self.db, ordered), **bad}
        needed = None if own else needed
        staged = [(i, change) for i, change in enumerate(ordered) if i not in left and change.is_staged]
        if waiting := self._without_room(staged, needed):
            left |= waiting
            staged = [(i, change) for i, change in staged if i not in waiting]
        plan = Plan(ordered, dict(commit or {}), version, first, (root.st_dev, root.st_ino), own, reason, left, origin)
        self._expect(plan, staged, needed)
        try:
            with self.db.transaction():
                self.db.set_value(PLAN_KEY.name, encode_plan(plan))
                self.db.set(REPLACED_KEY, first + len(ordered))
            self.plan = plan
            with self._staging(b""):  # of no file
                self._stage_of().make_dirs()
            for i, change in staged:
                if i not in self._awaited and i not in self._short:
                    self._stage_here(i, change)
        except BaseException:
            self._close()
            raise
        return [ordered[i].path for i in sorted(self._awaited)]

    def _expect(self, plan: Plan, staged: Sequence[tuple[int, Change]], needed: Collection[bytes] | None) -> None:
        """Notes what is to be staged. A process that makes files starts here: it is there when the first one comes."""
        self._numbers = {change.path: i for i, change in staged}
        self._stats, self._short, self._parts = {}, set(), {}
        self._may_wait = set() if needed is None else {i for i, change in staged if change.path not in needed}
        self._awaited = {i for i, (_, new, _) in staged if new is not None and new.kind is Kind.FILE and new.size}
        whole = whole_dirs(plan.changes, plan.unfit) if may_come_whole(self.tree) else {}
        self._stage = Stage(self.tree, plan.changes, whole)
        self._handed = Handed.begin(self._stage, self._stats, self._awaited, self._parts, self._make_handed)

    def _staged_before(self) -> Plan | None:
        """Moves what an interrupted checkout staged out of the way; -> its plan, None if nothing was staged."""
        journal = self.db.value(PLAN_KEY.name)
        if journal is not None and is_of_others(journal) and leave(self.tree):
            return decode_plan(journal)
        self._clear_tmp()
        return None

    def stage_whole(self, path: bytes, data: bytes | memoryview) -> None:
        """Delivers a file's whole content; from any thread, repeatable. `WorkspaceError`: wrong size, disk failed.

        What is delivered of a file that waits for room (`begin`) is dropped.
        """
        i, entry = self._staged(path)
        if len(data) != entry.size:
            raise wrong_size(path, len(data), entry.size)
        with self._lock:
            if self._handed is not None and self._handed.take(i, entry, data):
                return
            with self._staging(path):
                if i not in self._short:
                    self._make_whole(i, entry, data)

    def _make_whole(self, i: int, entry: Entry, data: bytes | memoryview) -> None:
        with_room(self.tree, self.db, lambda again: self._write_whole(i, entry, data, again))
        self._awaited.discard(i)

    def _make_handed(self, i: int, data: memoryview, clear: Callable[[], None]) -> None:
        """Makes a file that was handed over and not made. `clear`: removes what is left of it."""
        path, entry, _ = self._planned().changes[i]
        assert entry is not None
        with self._staging(path):
            if i not in self._short:
                clear()
                self._make_whole(i, entry, data)

    def stage_part(self, path: bytes, offset: int, data: bytes | memoryview) -> None:
        """Delivers a piece of a file's content, in any order, from any thread; then `finish`."""
        i, entry = self._staged(path)
        if offset < 0 or offset + len(data) > entry.size:
            raise wrong_size(path, offset + len(data), entry.size)
        with self._lock, self._staging(path):
            if i not in self._short:
                is_new, parts, write = i not in self._parts, self._parts.setdefault(i, {}), self._stage_of().write_part
                with_room(self.tree, self.db, lambda again: write(i, data, offset, is_new=is_new, again=again))
                parts[offset] = len(data)

    def forget(self, path: bytes) -> None:
        """Drops the pieces that were delivered of a file: they are delivered anew."""
        with self._lock, self._staging(path):
            self._unstage(self._staged(path)[0])

    def finish(self, path: bytes) -> None:
        """Ends the delivery of a file by pieces. `WorkspaceError`: they don't cover it exactly."""
        i, entry = self._staged(path)
        with self._lock, self._staging(path):
            if i in self._short:
                return
            at = 0
            for offset, size in sorted(self._parts.pop(i, {}).items()):
                if offset != at:
                    raise wrong_size(path, at, entry.size)
                at += size
            name, above = self._stage_of().at(i)
            with self.disk.opened(name, APPEND_FLAGS, above) as fd:
                size = self.disk.fstat(fd).st_size
                if at != entry.size or size != entry.size:
                    raise wrong_size(path, min(at, size), entry.size)
                self._stats[i] = dress(self.disk, fd, self.tree.mode_of(entry.mode), entry.mtime_ns)
        self._awaited.discard(i)

    # ---- what an interrupted checkout had staged

    @property
    def has_left(self) -> bool:
        """Whether an interrupted checkout staged something that may be of use."""
        return self._left is not None

    def open_left(self, path: bytes) -> int | None:
        """Opens what was staged for this file before; None if nothing was. Nobody vouches for its bytes."""
        found = self._left.find(path, self._staged(path)[1]) if self._left is not None else None
        try:
            return self.disk.open(found[0], READ_FLAGS, found[1]) if found is not None else None
        except OSError:
            return None

    def take_left(self, path: bytes, parts: Mapping[int, int]) -> bool:
        """Takes over what was staged before, with these right parts (offset -> size); False: it is gone.

        A whole file is one part. Of any other the rest is delivered, and then `finish` is called.
        """
        i, entry = self._staged(path)
        with self._lock, self._staging(path):
            found = self._left.find(path, entry) if self._left is not None else None
            if found is None or i in self._short:
                return False
            stage = self._stage_of()
            stage.take(i, *found)
            name, above = stage.at(i)
            with self.disk.opened(name, READ_FLAGS, above) as fd:
                if entry.root:
                    set_mode(self.disk, fd, 0o600)  # it may have been complete, and for reading only
                    self._parts[i] = dict(parts)
                    return True
                self._stats[i] = dress(self.disk, fd, self.tree.mode_of(entry.mode), entry.mtime_ns)
            self._awaited.discard(i)
        return i not in self._short

    def drop_left(self) -> None:
        """Removes what is left of an interrupted checkout."""
        if self._left is not None:
            self._left.close()
            self._left = None
        drop_left(self.tree)

    def pause(self) -> None:
        """Leaves what is staged for the next `begin`, and the tree untouched. May be repeated."""
        self._close()
        self.plan = None

    def _close(self) -> None:
        with self._lock:  # somebody may still be delivering
            self._end_handing()
            for held in (self._stage, self._left):
                if held is not None:
                    held.close()
            self._stage = self._left = None

    def _end_handing(self) -> None:
        if self._handed is not None:
            self._handed.close()
            self._handed = None

    def settle(self) -> None:
        """Waits until another process, if there is one, made what it was given. `WorkspaceError`: the disk failed."""
        with self._lock:
            if self._handed is not None:
                self._handed.settle()

    def apply(self, commit: Callable[[], None] | None = None, answer: Callable[[], None] | None = None) -> Applied:
        """Carries out the plan, once all is staged.

        `commit` runs inside the closing transaction, after the values given to `begin` were set. `recover` knows no
        callables, so what must survive a crash belongs to those values.
        `answer` is called after each slice of changes, when the rows are what stands in the folder. It changes nothing
        in the folder or the local state, and lets no other process do so.
        `WorkspaceError`: the disk failed half-way; `recover` goes on later.
        """
        self.settle()
        self._end_handing()
        plan = self._planned()
        if self._awaited:
            raise undelivered(len(self._awaited), plan.changes[min(self._awaited)].path)
        try:
            sync(self.tree)
        except OSError as e:
            raise failed(self.tree, b"the new files", e) from e
        stage = self._stage_of()
        inodes = [self._stats[i].st_ino if i in self._stats else 0 for i in range(len(plan.changes))]
        with self.db.transaction():
            if self._short:
                self.db.set_value(PLAN_KEY.name, encode_plan(plan))
            self.db.set(WHOLE_KEY, stage.encode())
            self.db.set(INODES_KEY, tuple(inodes))
        return self._carry_out(Placer(self.db, self.tree, plan, stage, inodes, self._stats), commit, answer)

    def abandon(self) -> None:
        """Drops a plan that is being staged, and what is staged."""
        if self.db.has(INODES_KEY):
            raise WorkspaceError("The checkout is being applied already.", next_step="Run again to finish it.")
        self.pause()
        self._clear_tmp()
        drop_left(self.tree)
        if self.db.has(PLAN_KEY):
            self.db.set(PLAN_KEY, None)

    def recover(self) -> Applied | None:
        """Finishes a plan that the last process was applying; -> its outcome, None if the tree was not touched.

        What was staged of others' changes stays for the next `begin`. May be repeated; scan afterwards.
        """
        journal, inodes = self.db.value(PLAN_KEY.name), self.db.get(INODES_KEY)
        if journal is None or inodes is None:
            if journal is None or not is_of_others(journal):
                self.abandon()
            return None
        root = self.tree.root_stat
        plan = decode_plan(journal).on_device(root.st_dev, root.st_ino)
        if len(inodes) != len(plan.changes):
            raise no_fit()
        self._stage = Stage.decode(self.tree, plan, self.db.get(WHOLE_KEY))
        return self._carry_out(Placer(self.db, self.tree, plan, self._stage, inodes), None)

    # ---- staging

    def _planned(self) -> Plan:
        if self.plan is None:
            raise WorkspaceError("No checkout has begun.", next_step="This is a fault of MetaSync: please report it.")
        return self.plan

    def _stage_of(self) -> Stage:
        assert self._stage is not None, "no checkout has begun"
        return self._stage

    def _staged(self, path: bytes) -> tuple[int, Entry]:
        plan = self._planned()
        i = self._numbers[path]
        entry = plan.changes[i].new
        assert entry is not None
        return i, entry

    def _without_room(self, staged: Sequence[tuple[int, Change]], needed: Collection[bytes] | None) -> dict[int, str]:
        """Of the changes that are to be staged, those that wait for room. `WorkspaceError`: see `begin`."""
        before = self._left.bytes_of if self._left is not None else lambda _: 0
        try:
            return without_room(self.tree, self.db, staged, needed, before)
        except WorkspaceError:
            self.drop_left()
            raise

    @contextmanager
    def _staging(self, path: bytes) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            if e.errno not in FULL or self._numbers.get(path) not in self._may_wait:
                raise self._not_staged(path, e) from e
            try:
                with self._lock:
                    self._leave_out()
            except OSError as other:
                raise self._not_staged(path, other) from other

    def _leave_out(self) -> None:
        """The disk is full, whatever it said: all that may wait and is not whole yet is left out.

        Where that gives little back, so are the largest files that are whole: the local state needs some room.
        """
        self.settle()
        plan = self._planned()
        sizes = {i: new.size for i in self._may_wait if (new := plan.changes[i].new) is not None}
        out = [i for i in sizes if i in self._awaited or i not in self._stats]
        given = 0
        for i in sorted(sizes.keys() - set(out), key=lambda i: -sizes[i]):
            if given >= RESERVE_BYTES:
                break
            given += sizes[i]
            out.append(i)
        is_out = lacks_inodes(self.disk, self.tree.state_dir())
        self._drop({i: no_room(sizes[i], is_out=is_out) for i in out})

    def leave_out(self, why: Mapping[bytes, str]) -> None:
        """Leaves these files of those that are to be delivered unplaced, each for a reason."""
        with self._lock:
            self.settle()
            self._drop({self._numbers[path]: reason for path, reason in why.items()})

    def _drop(self, out: Mapping[int, str]) -> None:
        plan, stage = self._planned(), self._stage_of()
        for i in out:
            self._unstage(i)
        stage.drop(list(out))
        self._awaited.difference_update(out)
        self._may_wait.difference_update(out)
        self._short.update(out)
        self.plan = replace(plan, unfit={**plan.unfit, **out})

    def _unstage(self, i: int) -> None:
        name, above = self._stage_of().at(i)
        with suppress(FileNotFoundError):
            self.disk.unlink(name, above)
        self._parts.pop(i, None)
        self._stats.pop(i, None)

    def _not_staged(self, path: bytes, error: OSError) -> WorkspaceError:
        needed = sum(self._staged(other)[1].size for other in self._numbers)
        return full(self.tree, needed) if error.errno in FULL else failed(self.tree, path, error)

    def _stage_here(self, i: int, change: Change) -> None:
        """Stages a symlink or an empty file, for which nothing is delivered."""
        entry = change.new
        assert entry is not None
        with self._staging(change.path):
            if entry.kind is Kind.FILE:
                self._write_whole(i, entry, b"")
                return
            self._stage_of().symlink(i, entry.content)
            name, above = self._stage_of().at(i)
            self.disk.utime(name, above, entry.mtime_ns)
            self._stats[i] = self.disk.lstat(name, above)

    def _write_whole(self, i: int, entry: Entry, data: bytes | memoryview, again: bool = False) -> None:
        """Stages a file with its mode and time, so that it appears complete."""
        with self._lock:
            stage, disk = self._stage_of(), self.disk
            fd = stage.create(i, entry.mode & 0o777, again=again or i in self._stats)
            try:
                if data:
                    disk.write(fd, data)
                self._stats[i] = dress(disk, fd, self.tree.mode_of(entry.mode), entry.mtime_ns)
            finally:
                disk.close(fd)

    # ---- applying

    def _carry_out(
        self, placer: Placer, commit: Callable[[], None] | None, answer: Callable[[], None] | None = None
    ) -> Applied:
        put, delete = self.rows = {}, []
        sliced: set[int] = set()  # changes whose rows are written

        def went_on() -> None:
            if len(placer.done) >= SLICE_CHANGES and answer is not None:
                sliced.update(self._store_slice(placer))
                answer()

        is_sliced = answer is not None and not self.tree.rules.has_twins  # else rows tell twins apart
        plan, applied = placer.plan, placer.run(went_on) if is_sliced else placer.run()
        try:
            sync(self.tree)
            left_over = [i for i in range(len(plan.changes)) if i not in sliced or i in placer.made]  # modes were set
            put_last, delete_last = rows_after(self.tree, placer, left_over)
            put.update(put_last)
            delete += delete_last
            kept = replaced_files(self.tree, plan)
        except OSError as e:
            raise failed(self.tree, b"the new files", e) from e
        with self.db.transaction():
            store_rows(self.db, put_last.items())
            self.db.delete_rows(delete_last)
            note_conflicts(self.db, put, delete)
            self.db.put_records(REPLACED, kept)
            left = {plan.changes[i].path for i in placer.left} if plan.own else set()
            applied.without_room = waiting(plan, applied)
            were = self.db.unplaced().keys() - left
            self.db.delete_records(UNPLACED, [change.path for change in plan.changes if change.path in were])
            if not plan.own:  # what others agreed is offered again by every pull
                self.db.put_records(UNPLACED, (Unplaced(noted.path, noted.reason) for noted in applied.unplaced))
            for name, value in plan.commit.items():
                self.db.set_value(name, value)
            if commit is not None:
                commit()
            for key in (PLAN_KEY, INODES_KEY, WHOLE_KEY, MODES_KEY):
                self.db.set_value(key.name, None)
        self.pause()
        self._clear_tmp()
        drop_left(self.tree)
        return applied

    def _store_slice(self, placer: Placer) -> list[int]:
        """Writes the rows of the changes that are done. -> their numbers."""
        done, placer.done = placer.done, []
        try:
            put, delete = rows_after(self.tree, placer, done)
        except OSError as e:
            raise failed(self.tree, b"the new files", e) from e
        with self.db.transaction():
            store_rows(self.db, put.items())
            self.db.delete_rows(delete)
        self.rows[0].update(put)
        self.rows[1].extend(delete)
        return done

    def _clear_tmp(self) -> None:
        """Empties `.metasync/tmp/`. While a plan is being applied, what is there may be the user's."""
        tmp = self.tree.state_dir(TMP)
        remove_all(self.disk, tmp, self.disk.names(tmp))
