"""The agreed history, read through the newest index (consensus.md, rule 6.2), and `metasync log`.

A snapshot names its parents, so a history is read one step after the other. Snapshots are small and kept in the local
cache; where many are missing, all that the index names are fetched side by side first, and each brings the directories
that lie beside it in its pack. Beside the line of agreed snapshots stand *kept* ones: second parents, which hold what a
merge by lines replaced (`texts.kept_snapshot`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Final, NamedTuple, TypedDict, Unpack

from metasync.consensus import ZERO_HASH
from metasync.errors import BackendError, DamagedError, NoQuorumError, UnreachableError, UsageError
from metasync.events import Notice
from metasync.history.times import WAYS, span
from metasync.keys.device_set import names_of
from metasync.keys.policy import Skip
from metasync.local.memory import room_for_tree
from metasync.local.state_keys import KEPT_KEY
from metasync.merge.changes import Pair, counts, described
from metasync.objects import walk
from metasync.objects.model import Entry, Kind, ObjectKind, Snapshot, decode_snapshot, version_of
from metasync.reports.history import Counts, LogItem, PathChange
from metasync.session import agreement, left_out, unreadable
from metasync.session.session import Agreed, Session
from metasync.store.retained import Dropped, Retained
from metasync.transfer.contents import PACKS_IN_FLIGHT, Contents

AHEAD_AFTER = 3  # snapshots that had to be fetched one by one, before the others are fetched ahead
AHEAD_BATCH = 256  # fetched ahead in one go
KEPT_MAX = 1024  # kept snapshots behind one version: each merge that no push had carried yet adds one


class Moment(NamedTuple):
    """A snapshot with its id."""

    id: bytes
    snapshot: Snapshot


class History:
    """Snapshots and trees of one workspace.

    `newest` is the version through which all is read: the newest that can be learned, or with `ask` false the one this
    folder is at, for which nobody is asked. `problem`: why it is not known to be the newest.
    """

    def __init__(self, s: Session, *, ask: bool = True) -> None:
        self.s = s
        self.problem: NoQuorumError | None = None
        self.newest: Agreed = self._learned() if ask else s.base()
        at_hand = {}
        if s.db.has(KEPT_KEY):
            at_hand = {i: (ObjectKind(kind), data) for i, kind, data in s.db.staged()}
        newer = partial(agreement.newer_index, s, self.newest.state)
        told = self.explained
        self.contents = Contents(self.newest.index, s.transfer, s.db, s.runtime, at_hand, newer=newer, explained=told)
        self.whole = False  # the caller goes through all of it
        self.needed_by = 0  # the oldest version that was asked for by its number
        self._last: Moment | None = None
        self._fetched = 0
        self._ahead: list[bytes] | None = []  # what may be fetched ahead; None: it was

    def _learned(self) -> Agreed:
        try:
            return self.s.load(agreement.ask_newest(self.s))
        except NoQuorumError as e:
            self.problem = e
            self.s.listener(Notice(f"{e.message}; showing the newest version that can be seen", warning=True))
            return agreement.newest_seen(self.s)

    @cached_property
    def retained(self) -> Retained:
        """Which versions are no longer kept, and which have names."""
        return unreadable.list_or_older(self.s, self.newest.state)

    @cached_property
    def devices(self) -> dict[bytes, str]:
        """Names of devices by id, revoked ones too."""
        return names_of(self.newest.devices)

    @cached_property
    def skips(self) -> dict[int, Skip]:
        """What was passed over because it cannot be read, by the version that passed over it."""
        return {skip.at: skip for skip in self.newest.devices.policy.skips}

    def author(self, snapshot: Snapshot) -> str:
        return self.devices.get(snapshot.device, snapshot.device.hex()[:8])

    # ---- snapshots

    def snapshot(self, snapshot_id: bytes) -> Snapshot:
        """A snapshot by its id. `DamagedError`, `UnreachableError` if it can be had from nowhere."""
        if self._last is None or self._last.id != snapshot_id:
            if self.s.db.get_object(snapshot_id) is None:
                self._fetched += 1
                self._fetch_ahead()
            data = self.contents.load(ObjectKind.SNAPSHOT, [snapshot_id])[snapshot_id]
            self._last = Moment(snapshot_id, self.retained.as_kept(snapshot_id, decode_snapshot(data)))
        return self._last.snapshot

    def _fetch_ahead(self) -> None:
        """Fetches the snapshots that are not here side by side, once that is no dearer than going on one by one."""
        if self._fetched <= AHEAD_AFTER or self._ahead is None:
            return
        if not self._ahead:
            known = self.newest.index.ids(ObjectKind.SNAPSHOT)
            self._ahead = [i for i in known if self.s.db.get_object(i) is None]
        if not self.whole and self._fetched * PACKS_IN_FLIGHT < len(self._ahead):
            return
        ids, self._ahead = self._ahead, None
        for start in range(0, len(ids), AHEAD_BATCH):
            try:
                self.contents.load(ObjectKind.SNAPSHOT, ids[start : start + AHEAD_BATCH])
            except (DamagedError, UnreachableError):
                return  # whoever needs the one that is missing will say so

    def line(self, start: bytes | None = None) -> Iterator[Moment]:
        """Snapshots along first parents, newest first, from `start` or the newest agreed one.

        Versions that are no longer kept are left out.
        """
        current = self.newest.state.master if start is None else start
        above = self.newest.state.v + 1
        while current != ZERO_HASH and current in self.contents:
            snapshot = self.snapshot(current)
            yield Moment(current, snapshot)
            above, current = version_of(snapshot), self.before(snapshot)
        if current != ZERO_HASH:
            left_out.tell_end(self.s, self.newest.state, current, above - 1)

    def explained(self, error: DamagedError) -> DamagedError:
        """The error of an object that no index names, with the version that left it out, if that can be told."""
        return left_out.explained(self.s, self.newest.state, error, self.needed_by)

    def before(self, snapshot: Snapshot) -> bytes:
        """The id of the version before that is kept; zeros: there is none."""
        gap = self.gap_below(version_of(snapshot))
        return gap.below if gap is not None else next(iter(snapshot.parents), ZERO_HASH)

    def gap_below(self, v: int) -> Dropped | None:
        """The versions directly before this one that are no longer kept."""
        return self.retained.over(v - 1) if v else None

    def kept_beside(self, snapshot: Snapshot) -> Iterator[Moment]:
        """The kept snapshots behind a version's further parents, newest first."""
        todo = list(snapshot.parents[:0:-1])
        seen: set[bytes] = set()
        while todo and len(seen) < KEPT_MAX:
            current = todo.pop()
            if current in seen or current not in self.contents:
                continue
            seen.add(current)
            kept = self.snapshot(current)
            if version_of(kept):
                continue
            yield Moment(current, kept)
            todo += kept.parents[:0:-1]

    def staged(self) -> Iterator[Moment]:
        """The kept snapshots that no push has carried yet."""
        first = self.s.db.get(KEPT_KEY)
        if first is not None and first in self.contents:
            kept = self.snapshot(first)
            yield Moment(first, kept)
            yield from self.kept_beside(kept)

    def ids_like(self, prefix: str) -> list[bytes]:
        """The ids of snapshots that begin so."""
        staged = [first] if (first := self.s.db.get(KEPT_KEY)) is not None else []
        return sorted({i for i in [*self.newest.index.ids(ObjectKind.SNAPSHOT), *staged] if i.hex().startswith(prefix)})

    def master_at(self, v: int) -> bytes:
        """The id of the snapshot agreed at version `v`, which a version that is no push has from the one before.

        The chain of states says it: a snapshot may lie about its version.
        """
        if v == self.newest.state.v:
            return self.newest.state.master
        if v == 0:
            return ZERO_HASH
        if (gap := self.retained.over(v)) is not None:
            raise UsageError(f"version {v} is no longer kept", next_step=_kept_around(gap, self.newest.state.v))
        from metasync.session.states import Chain

        try:
            return Chain(self.s, self.newest.state).at(self.newest.state, v).master
        except (
            NoQuorumError,
            DamagedError,
            BackendError,
        ):  # the chain of states can't be read now, but snapshots say what they were agreed as
            return next((m.id for m in self.line() if 0 < version_of(m.snapshot) <= v), ZERO_HASH)

    # ---- trees

    def find(self, root: bytes | None, path: bytes, trail: walk.Trail | None = None) -> walk.Found:
        """What is at a path of a tree; only what lies on the way is read."""
        return self.contents.walk(walk.find(root, path, trail))

    def subtree(self, root: bytes | None, path: bytes) -> dict[bytes, Entry]:
        """What is at a path and below, the root itself left out; empty if nothing is there."""
        entry = self.find(root, path).entry
        if entry is None:
            return {}
        out = {path: _bare(entry)} if path else {}
        if entry.kind is Kind.DIR:
            below = self.contents.walk(walk.flatten(entry.content, room_for_tree))
            out.update((_join(path, name), e) for name, e in below.items())
        return out

    def pairs(self, a: bytes | None, b: bytes | None, paths: tuple[bytes, ...] = (b"",)) -> list[Pair]:
        """What differs between two trees at these paths and below. Directories that are equal stay shut."""
        out: list[Pair] = []
        for path in paths:
            x, y = self.find(a, path).entry, self.find(b, path).entry
            if x == y:
                continue
            if path and (x is None or y is None or _bare(x) != _bare(y)):
                out.append((path, _bare(x) if x else None, _bare(y) if y else None))
            x_dir, y_dir = (e.content if e is not None and e.kind is Kind.DIR else None for e in (x, y))
            below = self.contents.walk(walk.diff(x_dir, y_dir, room_for_tree))
            out += ((_join(path, name), p, q) for name, (p, q) in below.items())
        return out


def _bare(entry: Entry) -> Entry:
    return entry._replace(content=b"") if entry.kind is Kind.DIR else entry


def _join(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path else name


# ---- the log


OLDER_IN_A_ROW: Final = 32  # versions before `since`, one after the other: clocks of devices differ by less than that
ID_DIGITS_LEAST: Final = 4  # of a device's id given in place of its name


class Wanted(NamedTuple):
    """Which versions a log is to list: by whom, from when to when (ns since 1970), with what in the message."""

    devices: Callable[[bytes], bool] | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    message: re.Pattern[str] | None = None

    def has(self, snapshot: Snapshot) -> bool:
        return (
            (self.devices is None or self.devices(snapshot.device))
            and (self.since_ns is None or snapshot.time_ns >= self.since_ns)
            and (self.until_ns is None or snapshot.time_ns <= self.until_ns)
            and (self.message is None or self.message.search(snapshot.message) is not None)
        )


ALL: Final = Wanted()


def wanted(history: History, options: Options) -> Wanted:
    """What filters ask for. `UsageError`: a device that never was, no time, no pattern."""
    grep, device = options.get("grep"), options.get("device")
    try:
        pattern = None if grep is None else re.compile(grep)
    except re.error as e:
        raise UsageError(
            f"{grep!r} is no pattern: {e}", next_step="It is a regular expression: a backslash makes `(` a bracket."
        ) from e
    since, until = options.get("since"), options.get("until")
    return Wanted(
        None if device is None else _by(history, device),
        None if since is None else _time(since)[0],
        None if until is None else _time(until)[1],
        pattern,
    )


def _time(text: str) -> tuple[int, int]:
    try:
        return span(text)
    except ValueError as e:
        raise UsageError(f"{text!r} is no date or time", next_step=f"Write {WAYS}.") from e


def _by(history: History, word: str) -> Callable[[bytes], bool]:
    """Whether a device id is one that a name, or the beginning of an id, means."""
    ids = {device_id for device_id, name in history.devices.items() if name == word}
    if ids:
        return ids.__contains__
    if len(word) >= ID_DIGITS_LEAST and re.fullmatch("[0-9a-fA-F]+", word):
        return lambda device_id: device_id.hex().startswith(word.lower())
    names = ", ".join(sorted(set(history.devices.values())))
    raise UsageError(f"no device of this workspace is or was called {word!r}", next_step=f"They are: {names}.")


class Options(TypedDict, total=False):
    """Which versions a log lists, and what of them.

    with_counts  how much changed in each version; that reads the trees of all of them
    device       only versions of this device, by its name or the beginning of its id; a revoked one too
    since, until  only versions of that time or later, or earlier, by the clock of who pushed: see `history.times`
    grep         only versions with a match of this regular expression (`re`) in their message
    everything   also versions that are no pushes, and what any of them changed of devices, keys and backends
    """

    with_counts: bool
    device: str | None
    since: str | None
    until: str | None
    grep: str | None
    everything: bool


def log(s: Session, path: bytes | None, limit: int | None, **options: Unpack[Options]) -> list[LogItem]:
    """Agreed versions, newest first; with a path those in which it changed, and what was kept of it beside them."""
    history = History(s)
    chosen, everything = wanted(history, options), options.get("everything", False)
    if everything and (path is not None or chosen != ALL):
        raise UsageError("all versions were asked for, and some of them", next_step="Leave --all out, or what filters.")
    history.whole = limit is None and chosen.since_ns is None
    if path is not None:
        return _log_of(history, path, limit, chosen)
    out: list[LogItem] = []
    above, last = history.newest.state.v + 1, None
    for moment in _near(history, chosen):
        if limit is not None and len(out) >= limit:
            return _with_events(history, out, ended=False)[:limit] if everything else out
        last = moment
        if chosen.has(moment.snapshot):
            item = item_of(history, moment, counts=_counted(history, moment) if options.get("with_counts") else None)
            after = history.skips[above].good + 1 if above in history.skips else above
            after = gap.first if (gap := history.gap_below(above)) is not None else after
            others = max(after - item.version - 1, 0) if item.version and chosen == ALL else 0
            out.append(replace(item, others_after=others, dropped=_dropped_before(history, moment.snapshot)))
        above = version_of(moment.snapshot) or above
    if last is not None and chosen == ALL:
        out[-1] = replace(out[-1], begins=begins(history, last.snapshot))
    ended = last is None or not last.snapshot.parents  # else it is not known which of the older ones were no pushes
    return _with_events(history, out, ended=ended)[:limit] if everything else out


def _with_events(history: History, items: list[LogItem], *, ended: bool) -> list[LogItem]:
    """The same with what versions changed of devices, keys and backends. `ended`: these items reach the beginning."""
    from metasync.history.membership import events

    newest = history.newest.state
    first = items[-1].version if items else newest.v + 1
    gaps = [range(item.version + 1, item.version + item.others_after + 1) for item in items]
    gaps += [range(first)] if ended else []
    told = events(history.s, newest, 0 if ended else first - 1, [v for gap in gaps for v in gap if v])
    out = [replace(item, events=told.get(item.version, ())) for item in items]
    out += [LogItem(v, b"", "", 0, "", events=told.get(v, ())) for gap in gaps for v in gap]
    return sorted(out, key=lambda item: -item.version)


def _near(history: History, chosen: Wanted) -> Iterator[Moment]:
    """The line of versions, as far back as `since` may reach."""
    older = 0
    for moment in history.line():
        older = older + 1 if chosen.since_ns is not None and moment.snapshot.time_ns < chosen.since_ns else 0
        if older > OLDER_IN_A_ROW:
            return
        yield moment


def begins(history: History, oldest: Snapshot) -> str:
    """Why history begins where it does."""
    v = version_of(oldest)
    dropped = history.gap_below(v) is not None
    if dropped or (oldest.parents and oldest.parents[0] not in history.contents):
        why = "are no longer kept" if dropped else "are missing, though nobody dropped them"
        return f"History begins with version {v}: older ones {why}."
    if v <= 1:
        return f"History begins with version {v or 1}, the first push."
    earlier = "version 1" if v == 2 else f"versions 1 to {v - 1}"
    return f"History begins with version {v}, the first push; {earlier} changed devices, keys or backends."


def _dropped_before(history: History, snapshot: Snapshot) -> tuple[int, int] | None:
    """The first and the last of the versions directly before this one that are no longer kept, if older ones are."""
    gap = history.gap_below(version_of(snapshot))
    return (gap.first, gap.last) if gap is not None and gap.below != ZERO_HASH else None


def _kept_around(gap: Dropped, newest: int) -> str:
    """What to do instead of asking for a version that was dropped."""
    near = [f"version {gap.first - 1}"] if gap.below != ZERO_HASH else []
    near += [f"version {gap.last + 1}"] if gap.last < newest else []
    return f"Next to it {' and '.join(near)} {'is' if len(near) == 1 else 'are'} kept; `metasync log` lists all."


def item_of(
    history: History,
    moment: Moment,
    changes: tuple[PathChange, ...] | None = None,
    counts: Counts | None = None,
    *,
    kept: bool = False,
) -> LogItem:
    s = moment.snapshot
    version = 0 if kept else version_of(s)
    skip = history.skips.get(version)
    skips = tuple(range(skip.good + 1, skip.at)) if skip is not None else ()
    cut = history.retained.replacing(moment.id) is not None
    author = history.author(s)
    return LogItem(version, moment.id, author, s.time_ns, s.message, changes, counts, kept, skips=skips, forgotten=cut)


def last_with(history: History, path: bytes, most: int | None = None) -> Moment | None:
    """The newest version that has something at a path, looked for in the `most` newest; None: none of them."""
    trail: walk.Trail = {}
    for steps, moment in enumerate(history.line()):
        if most is not None and steps >= most:
            break
        found = history.find(moment.snapshot.root, path, trail)
        if found.entry is not None:
            return moment
        trail = found.trail
    return None


def _root_before(history: History, snapshot: Snapshot) -> bytes | None:
    """The root of the kept version before; None: this is the first that is kept."""
    first = history.before(snapshot)
    return history.snapshot(first).root if first != ZERO_HASH and first in history.contents else None


def _counted(history: History, moment: Moment) -> Counts:
    return counts(described(history.pairs(_root_before(history, moment.snapshot), moment.snapshot.root)))


def _log_of(history: History, path: bytes, limit: int | None, chosen: Wanted) -> list[LogItem]:
    staged = (_kept_item(history, moment, path) for moment in history.staged() if chosen.has(moment.snapshot))
    out: list[LogItem] = [item for item in staged if item is not None]
    versions, seen = 0, bool(out)
    trail: walk.Trail = {}
    later: Moment | None = None
    after: Entry | None = None
    for moment in _near(history, chosen):
        found = history.find(moment.snapshot.root, path, trail)
        trail = found.trail
        if later is not None and found.entry != after and chosen.has(later.snapshot):
            out.append(item_of(history, later, _changes_at(history, moment.snapshot.root, later.snapshot.root, path)))
            versions += 1
        if later is not None and chosen.has(later.snapshot):
            out += _kept_items(history, later, path)
        seen = seen or found.entry is not None or bool(out)
        if limit is not None and versions >= limit:
            return out
        later, after = moment, found.entry
    if later is not None and after is not None and chosen.has(later.snapshot):
        before = _root_before(history, later.snapshot)
        out.append(item_of(history, later, _changes_at(history, before, later.snapshot.root, path)))
    if later is not None and chosen.has(later.snapshot):
        out += _kept_items(history, later, path)
    if not out and not seen and chosen.since_ns is None:
        raise UsageError(
            f"nothing was ever agreed at {path.decode('utf-8', 'surrogateescape')}",
            next_step="`metasync ls -r` lists the newest version; `metasync log` all versions.",
        )
    return out


def _changes_at(history: History, before: bytes | None, after: bytes, path: bytes) -> tuple[PathChange, ...]:
    """What changed at a path and below between two versions; files that came from elsewhere or went there are named."""
    pairs = history.pairs(before, after, (path,))
    if before is not None and any((a is None) != (b is None) for _, a, b in pairs):
        pairs = history.pairs(before, after)  # the other end of a rename may be anywhere
    return tuple(c for c in described(pairs) if is_below(c.path, path) or (c.was is not None and is_below(c.was, path)))


def is_below(path: bytes, top: bytes) -> bool:
    """Whether a path is `top` or below it."""
    return not top or path == top or path.startswith(top + b"/")


def _kept_items(history: History, moment: Moment, path: bytes) -> list[LogItem]:
    items = (_kept_item(history, kept, path) for kept in history.kept_beside(moment.snapshot))
    return [item for item in items if item is not None]


def _kept_item(history: History, kept: Moment, path: bytes) -> LogItem | None:
    """What a kept snapshot holds at a path and below, against the version it was based on; None if nothing."""
    held = {p: e for p, e in history.subtree(kept.snapshot.root, path).items() if e.kind is not Kind.DIR}
    if not held:
        return None
    root = _root_before(history, kept.snapshot)
    pairs = [(p, history.find(root, p).entry, e) for p, e in held.items()]
    return item_of(history, kept, described(pairs), kept=True)
