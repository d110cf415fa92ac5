"""What changed in a kept folder: the watcher, what it made dirty, and how much that is."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from metasync.local.state import State
from metasync.reports.service import Problem
from metasync.reports.sync import PushReport
from metasync.service import problems as told
from metasync.service.batch import LOOK_S, Sizes
from metasync.service.dirty import Dirty
from metasync.service.watch import Short, Watching
from metasync.worktree.hints import Hints
from metasync.worktree.ignore import Ruling, parse
from metasync.worktree.ignore_files import load_texts
from metasync.worktree.index import size_in

CATCH_UP_S: Final = 5.0  # for the watcher's queue; then everything counts as dirty


class Changes:
    """Hears a watcher, from its thread; all else is for the keeper's. `on_change` is called for each event.

    short    problems of a watcher that cannot watch all
    is_lost  the folder is not where it was any more
    """

    def __init__(self, directory: Path, on_change: Callable[[], None]) -> None:
        self._directory = directory
        self._on_change = on_change
        self._lock = threading.Lock()
        self._dirty = Dirty()
        self._sizes = Sizes()
        self._watch: Watching | None = None
        self._rules: Ruling | None = None
        self._texts: dict[bytes, bytes] = {}  # rule files that they are made of, by directory
        self._sized_changes, self._sized_at = 0, -math.inf
        self.short: Problem | None = None
        self.is_lost = False

    # what the watcher says

    def name(self, directory: bytes, name: bytes, is_dir: bool | None = None) -> None:
        """What rules ignore makes nothing dirty. What may be a directory or a file, only if they ignore both."""
        path = directory + b"/" + name if directory else name
        with self._lock:
            kinds = (False, True) if is_dir is None else (is_dir,)
            if self._rules is not None and name and all(self._rules.ignores(path, kind) for kind in kinds):
                return
            self._dirty.name(directory, name)
        self._on_change()

    def tree(self, directory: bytes) -> None:
        with self._lock:
            self._dirty.tree(directory)
        self._on_change()

    def everything(self) -> None:
        with self._lock:
            self._dirty.everything()
        self._on_change()

    def short_of(self, short: Short | None) -> None:
        self.short = None if short is None else told.of_watches(short.needed, short.limit, 0.0)
        self._on_change()

    def lost(self) -> None:
        self.is_lost = True
        self._on_change()

    # watching

    def begin(self, db: State, watching: Callable[..., Watching]) -> None:
        """Watches the folder, of which everything is dirty. Where that cannot be, it is dirty again and again."""
        self.end()
        self.is_lost, self.short = False, None
        self._read_rules(db)
        try:
            self._watch = watching(self._directory, self, self._leaves_out)
            self._watch.start()
        except OSError as e:
            self._watch = None
            step = "Raise it: sudo sysctl fs.inotify.max_user_instances=1024. Until then the folder is walked often."
            text = f"This folder cannot be watched: {e.strerror or e}."
            self.short = Problem("watch", "watch", text, step, 0.0)
        self.everything()

    def end(self) -> None:
        watching, self._watch = self._watch, None
        if watching is not None:
            watching.stop()

    def renew(self) -> None:
        """Has everything be looked at again, and watched if limits allow it now."""
        if self._watch is not None and self.short is not None:
            self._watch.renew()
        self.everything()

    def catch_up(self) -> None:
        """Hears of all that happened until now, so that the hints of the next walk are complete."""
        if self._dirty.is_all:
            return
        if self._watch is None or not self._watch.caught_up(CATCH_UP_S):
            self.everything()

    def follow_rules(self, db: State) -> None:
        """Watches by the rule files that the last walk found, if they are others. One may come with its directory."""
        if load_texts(db) != self._texts:
            self._read_rules(db)
            if self._watch is not None:
                self._watch.renew()

    def _read_rules(self, db: State) -> None:
        texts = self._texts = load_texts(db)
        rules = Ruling({directory: parse(text) for directory, text in texts.items()}) if texts else None
        with self._lock:
            self._rules = rules

    def _leaves_out(self, path: bytes) -> bool:
        with self._lock:
            return self._rules is not None and self._rules.ignores(path, True)

    # what is dirty

    def __bool__(self) -> bool:
        return bool(self._dirty)

    def __len__(self) -> int:
        """About how many paths changed: those that are named, else directories."""
        with self._lock:
            return max(len(self._dirty), len(self._dirty.files or ()))

    def hints(self) -> Hints:
        with self._lock:
            return self._dirty.take()

    def growing(self, now: float, longest_s: float) -> set[bytes]:
        with self._lock:
            return self._sizes.growing(now, longest_s)

    def ended(self, *, well: bool) -> None:
        with self._lock:
            self._dirty.ended(well=well)

    def settled(self) -> None:
        """What was taken is as it was agreed: nothing of it is to be pushed."""
        with self._lock:
            self._dirty.ended(well=True)
            self._sizes.forget()

    def pushed(self, report: PushReport) -> None:
        """What a push took is clean, but for what it could not read."""
        with self._lock:
            self._dirty.ended(well=True)
            for one in report.busy:
                directory, _, name = one.path.rpartition(b"/")
                self._dirty.name(directory, name)
            for one in report.unreadable:
                self._dirty.tree(one.path)
            self._sizes.forget({one.path for one in report.busy})

    @property
    def estimate_at(self) -> float:
        """When there is something new to estimate; infinity: not until something changes."""
        with self._lock:
            is_new = self._dirty.changes != self._sized_changes and self._dirty.files
            return self._sized_at + LOOK_S if is_new else math.inf

    def estimate(self, now: float, db: State) -> float | None:
        """How many bytes changed, by the sizes of changed files. None: nothing new, or it was estimated lately."""
        if now < self.estimate_at:
            return None
        with self._lock:
            files = self._dirty.files or {}
            self._sized_changes, self._sized_at = self._dirty.changes, now
            paths = list(files)
        found, top = [], os.fsencode(self._directory)
        for path in paths:
            try:
                size = os.lstat(os.path.join(top, path)).st_size
            except OSError:
                continue
            row = db.packed_row(path)
            found.append((path, size, None if row is None else size_in(row)))
        with self._lock:
            return self._sizes.look(now, found)
