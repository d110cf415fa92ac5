"""Versions that cannot be read: which one it is, who wrote it, and what to do. Loaded when reading has failed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from metasync.checkout.room import is_too_large
from metasync.consensus import NOTHING, ZERO_HASH, Ref, State
from metasync.errors import (
    CANNOT_BE_READ,
    DamagedError,
    MetaSyncError,
    NoQuorumError,
    UnreadableError,
    UpgradeError,
)
from metasync.events import Notice
from metasync.keys.device_set import names_of
from metasync.local.memory import room_for_tree
from metasync.objects import walk, walk_large
from metasync.objects.model import Entry, Kind, ObjectKind, Snapshot, decode_snapshot
from metasync.reports.sync import path_str
from metasync.session import agreement
from metasync.store.retained import Retained
from metasync.transfer.contents import Contents, NotNamedError

if TYPE_CHECKING:
    from metasync.session.session import Agreed, Session

NAMED_MAX: Final = 10  # lost directories
OPENED_MAX: Final = 100_000  # directories that are gone through for them: seconds
LOOK_S: Final = 5.0  # for who wrote a version
LOOK_BACK_MAX: Final = 64  # versions that are looked at for the one that brought what cannot be read
NO_TREE: Final = (ZERO_HASH, NOTHING)
STATES_MAX: Final = 4096  # that are gone through: more versions than a workspace agrees while nobody can pull


def brought(
    s: Session, newest: State, of: Callable[[State], object] = lambda state: (state.master, state.index)
) -> Iterator[State]:
    """The states that brought a new snapshot, or another index of one, newest first, by the chain of states.

    A snapshot may lie about it. `of`: what they brought, in place of these two.
    """
    here, left = newest, STATES_MAX
    while here.v and of(here) not in (NO_TREE, NOTHING) and left:
        before = here
        while before.v and of(before) == of(here) and left:
            first, left = before, left - 1
            before = s.runtime.run(s.group.state_at(newest, first.v - 1))
        yield first
        here = before


def list_of(state: State) -> Ref:
    """The list of what is kept that a state names."""
    return state.retained


def snapshot_of(contents: Contents, state: State) -> Snapshot:
    """The snapshot that a state names."""
    return decode_snapshot(contents.load(ObjectKind.SNAPSHOT, [state.master])[state.master])


def read_through(
    s: Session,
    contents: Contents,
    base_root: bytes | None,
    root: bytes,
    *,
    lost: Collection[bytes] = (),
    fetched: set[bytes] | None = None,
) -> None:
    """Raises one of `CANNOT_BE_READ` if a tree cannot be read, as far as it is not that of `base_root`.

    `lost`: objects that no backend has. `fetched`: also reads all contents, but for those in it, and adds them to it.
    Files that are too large for this disk are left out: nobody reads them here.
    """
    changes = contents.walk(walk.diff(base_root, root, room_for_tree))
    free = s.tree.disk.free_bytes(s.tree.state_dir())
    files = [e for _, e in changes.values() if e is not None and _is_read(e) and not is_too_large(e.size, free)]
    wanted = {e.content: e.size for e in files if not e.root}
    big = {e.root: e.size for e in files if e.root}
    for file_id, chunks in (contents.walk(walk.chunks(tuple(big))) if big else {}).items():
        if sum(chunk.size for chunk in chunks) != big[file_id]:
            raise DamagedError(f"the chunks of a file do not make the {big[file_id]:,} bytes that its entry says")
        wanted.update((chunk.id, chunk.size) for chunk in chunks)
    for object_id, size in wanted.items():
        if object_id in lost or object_id not in contents:
            raise DamagedError(f"object {object_id.hex()[:16]} is nowhere")
        if contents.size_of(object_id) not in (0, size):
            raise DamagedError(f"object {object_id.hex()[:16]} does not have the {size:,} bytes that its file says")
    if fetched is not None:
        contents.fetch(wanted.keys() - fetched, lambda _: None)
        fetched.update(wanted)


def _is_read(entry: Entry) -> bool:
    return entry.kind is Kind.FILE and entry.size > 0


def named(s: Session, base: Agreed, target: Agreed, error: MetaSyncError) -> MetaSyncError:
    """The error of a merge that could not read what it merges, with the version that brought that and who wrote it.

    The same error where that cannot be told, or it is named already.
    """
    if isinstance(error, UnreadableError) or error.version is not None:
        return error
    floor = base.state.v if base.snapshot is not None else 0
    lost = error.objects if isinstance(error, DamagedError) else ()
    contents, found = s.contents(target), None
    with contextlib.suppress(MetaSyncError):
        for steps, state in enumerate(brought(s, target.state)):
            if state.v <= floor or state.master == ZERO_HASH or steps >= LOOK_BACK_MAX:
                break
            try:
                own = _by_its_own(s, state, target, contents)
                read_through(s, own, base.tree_root, snapshot_of(own, state).root, lost=lost)
            except CANNOT_BE_READ:
                found = state
            else:
                break
    if found is None:
        return error
    dirs, files = _lost_paths(contents, base, target, _nowhere(contents, lost)) if lost else ("", "")
    return told(s, found, error, dirs, files)


def _by_its_own(s: Session, state: State, target: Agreed, contents: Contents) -> Contents:
    """Reads a state through its own index: a later version may have taken out of the index what this one needs.

    `contents` of the newest, where its own is gone.
    """
    if state.index == target.state.index:
        return contents
    try:
        return s._reader(state, s.indexes.of_state(state)[1])
    except (*CANNOT_BE_READ, NoQuorumError):
        return contents


def _nowhere(contents: Contents, lost: Collection[bytes]) -> set[bytes]:
    """Those of these objects that no backend has: others were read, and are not what is said of them."""
    gone = set[bytes]()
    with contextlib.suppress(MetaSyncError):
        contents.fetch(lost, lambda _: None, on_lost=lambda ids, _: gone.update(ids))
    return gone


def _lost_paths(contents: Contents, base: Agreed, target: Agreed, nowhere: Collection[bytes]) -> tuple[str, str]:
    """Names the directories that are lost of what `target` has and `base` has not, and the files that are made of what
    is `nowhere`; "" if there are none.

    A few directories may say very many paths, so that only so many are gone through.
    """
    lost, files, gone, opened = set[bytes](), set[bytes](), set[bytes](), 0

    def unread(ids: Sequence[bytes], error: MetaSyncError) -> None:
        gone.update(ids if isinstance(error, DamagedError) else ())

    def count(_: bytes) -> None:
        nonlocal opened
        opened += 1
        if opened > OPENED_MAX:
            raise DamagedError(f"more than {OPENED_MAX:,} directories")

    def take(found: Sequence[tuple[bytes, Entry | None, Entry | None]]) -> None:
        for path, new, _ in found:
            if new is not None and _is_read(new) and len(files) <= NAMED_MAX and _is_made_of(contents, new, nowhere):
                files.add(path)

    losses = walk_large.Losses(lambda path, node_id: lost.update({path or b"/"} if node_id in gone else ()))
    trees = target.tree_root, base.tree_root
    with contextlib.suppress(MetaSyncError):
        walked = walk_large.compare(*trees, contents.size_of, take, losses=losses, opened=count)
        contents.walk(walked, on_lost=unread)
    return _some(lost, "directories"), _some(files, "files")


def _is_made_of(contents: Contents, entry: Entry, nowhere: Collection[bytes]) -> bool:
    """Whether a file needs one of these objects, as far as its list of chunks can be read."""
    if not entry.root or entry.root in nowhere:
        return (entry.root or entry.content) in nowhere
    try:
        return any(c.id in nowhere for c in contents.walk(walk.chunks((entry.root,)))[entry.root])
    except CANNOT_BE_READ:
        return False


def _some(paths: Collection[bytes], what: str) -> str:
    named = [path_str(path) for path in sorted(paths)[:NAMED_MAX]]
    if len(paths) > NAMED_MAX:
        named.append(f"{len(paths) - NAMED_MAX:,} more {what}" if what == "directories" else f"more {what}")
    return ", ".join(named)


def of_state(s: Session, state: State, error: MetaSyncError) -> MetaSyncError:
    """The same, for a state whose snapshot or index cannot be read."""
    first = state
    with contextlib.suppress(MetaSyncError):
        for _ in range(LOOK_BACK_MAX):
            if not first.v:
                break
            before = s.runtime.run(s.group.state_at(state, first.v - 1))
            if (before.master, before.index) != (state.master, state.index):
                break
            first = before
    return told(s, first, error)


def of_list(s: Session, state: State, error: MetaSyncError) -> MetaSyncError:
    """The same, for a state whose list of what is kept cannot be read."""
    first = state
    with contextlib.suppress(MetaSyncError):
        first = next(brought(s, state, list_of), state)
    return told(s, first, error)


def list_or_older(s: Session, state: State) -> Retained:
    """Which versions are no longer kept, for who only reads: where that cannot be read, what was said before."""
    try:
        return s.indexes.retained(state)
    except CANNOT_BE_READ as e:
        error = e
    found = Retained()
    with contextlib.suppress(MetaSyncError):
        for earlier in brought(s, state, list_of):
            with contextlib.suppress(*CANNOT_BE_READ):
                found = s.indexes.list_of(earlier)
                break
    s.listener(Notice(f"{error.message}; shown by the list of what is kept before it", warning=True))
    return found


def check_cut(s: Session, state: State, error: MetaSyncError) -> None:
    """Raises the error of a version that cannot be read, unless that version was dropped on purpose."""
    try:
        is_cut = s.indexes.retained(agreement.ask_newest(s)).has_dropped(state.v)
    except MetaSyncError:
        is_cut = False
    if not is_cut:
        raise error
    told = f"version {state.v}, which this folder is at, is no longer kept: nothing counts as deleted"
    s.listener(Notice(told, warning=True))


def author(s: Session, state: State) -> str:
    """The name of the device that proposed a state, by what it signed; else by what its snapshot says, if anything."""
    device: bytes | None = None
    with contextlib.suppress(MetaSyncError):
        before = s.runtime.run(s.group.state_at(s.newest_state(), state.v - 1))
        device = s.runtime.run(s.group.writer_of(before, state, deadline_s=LOOK_S))
    if device is None:
        with contextlib.suppress(MetaSyncError):
            device = snapshot_of(s._reader(state, s.indexes.of_state(state)[1]), state).device
    if device is None:
        return "a device"
    name = device.hex()[:8]
    with contextlib.suppress(MetaSyncError):
        name = names_of(s.devices_of(s.newest_state())).get(device, name)
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in name)


def told(s: Session, state: State, error: MetaSyncError, lost: str = "", files: str = "") -> MetaSyncError:
    """The error for a version that cannot be read. `lost`: directories that are lost with it; `files`: and these."""
    message = f"version {state.v}, which {author(s, state)} wrote, cannot be read: {error.message}"
    message += f"; what is in {lost} is not known" if lost else f"; of {files} not all is there" if files else ""
    go_on = f"`metasync skip {state.v}` goes on without it, for all devices"
    if isinstance(error, UpgradeError):
        step = f"{error.next_step} If no newer MetaSync reads it either: {go_on}.".strip()
        out: MetaSyncError = UpgradeError(message, next_step=step)
    elif files and not lost:
        out = UnreadableError(
            message,
            next_step="`metasync check --repair` on a device that has it stores it again. On any other it gives that "
            f"up, and all else comes; if it does not: {go_on}.",
        )
    elif isinstance(error, NotNamedError):
        out = UnreadableError(
            message,
            next_step="`metasync check --repair` puts back what an older index names and a backend has. If it does not "
            f"help: {go_on}.",
        )
    else:
        out = UnreadableError(
            message, next_step=f"`metasync check --read-data` tells what is lost. If nothing brings it back: {go_on}."
        )
    out.version = state.v
    return out
