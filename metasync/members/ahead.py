"""Reads what needs no key while the passphrase is stretched, for `metasync clone`.

Stretching takes as long as two or three answers of a backend that is far away. Meanwhile a clone can ask for nothing
that it needs a key to name. So it reads the genesis and the hint of each root, and of a small workspace the objects
beside the logs and the packs, which inventories name. All of these are sealed, and named by their SHA-256. Nobody
relies on it: what is missing here, or is not what its name says, is asked for as ever.

Inventories are hints as well. Where they show no entry of the version after the hint, the device begins with its
proposal in place of a look for news (consensus.md, rule 2.2). A wrong one costs a round trip.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from metasync.backends.api import Backend, Item
from metasync.backends.wrappers.wrapper import Prefixed
from metasync.consensus import State
from metasync.consensus.founding import LOOK_TIMEOUT_S, ROOTS_AT_ONCE, Found, look
from metasync.consensus.objects import open_named
from metasync.consensus.records.entry import entry_path
from metasync.errors import FormatError, UnreachableError, UpgradeError
from metasync.keys.derive import RecordKind
from metasync.keys.keyring import WorkspaceKeys
from metasync.runtime.effects import Gather, Op, Reply, Task, Urgency, patience_s
from metasync.runtime.tasks import Runtime

if TYPE_CHECKING:
    from metasync.transfer.copies import Begun, PackKey

PAGES_MAX: Final = 2  # of an inventory; a large workspace has more, and is not read ahead
OBJECTS_MAX: Final = 32  # beside the logs of one acceptor, in all; more is a long history, most of which is not needed
OBJECTS_BYTES_MAX: Final = 512 << 10
PACKS_BYTES_MAX: Final = 4 << 20  # in all, and listed in one storage root: a few lines carry it in a second
_OBJECT: Final = re.compile(r"(?:const|meta/([0-9]{1,10}))/([0-9a-f]{64})")
_PACK: Final = re.compile(r"packs/([0-9]{1,10})/[0-9a-f]{2}/([0-9a-f]{64})")


class _Wanted(NamedTuple):
    """An object that an inventory shows. `key`: by which it is asked for once, whoever else has it."""

    key: PackKey
    path: str
    size: int


@dataclass(frozen=True)
class _UnderWay:
    """A pack that `backend` was asked for at the time `at`. `reply`: verified by whoever takes it."""

    backend: str
    size: int
    at: float
    reply: Future[Reply] = field(default_factory=Future)


class Ahead:
    """What is read of backends with one workspace folder. Tasks of `runtime` fill it; any thread may read it.

    `objects`: sealed objects by the SHA-256 that their names promise.
    """

    def __init__(self, runtime: Runtime, opened: Mapping[str, Backend]) -> None:
        self._runtime = runtime
        self._opened = opened
        self._begun: dict[tuple[str, str], Future[dict[tuple[str, str], Reply]]] = {}
        self._asked: set[PackKey] = set()  # keys of what some backend was asked for
        self._room = PACKS_BYTES_MAX  # for further packs
        self._logs: dict[tuple[str, bytes], frozenset[str]] = {}  # all that whole inventories name, by backend and id
        self.objects: dict[bytes, bytes] = {}
        self._packs: dict[PackKey, _UnderWay] = {}
        self._tasks: list[Future[None]] = []

    def begin(self, folders: Mapping[str, Sequence[str]]) -> None:
        """Begins to read, where a backend has one folder that may be a workspace's."""
        for n, inside in folders.items():
            if len(inside) == 1:
                key = f"{n} {inside[0]}"
                self._runtime.add_backend(key, Prefixed(self._opened[n], inside[0]))
                on_ids = partial(self._begin_inventories, n)
                self._begun[n, inside[0]] = self._runtime.start(look([key], on_ids))

    @property
    def under_way(self) -> int:
        """How many tasks are reading."""
        tasks: list[Future[Any]] = [*self._begun.values(), *self._tasks]
        return sum(not task.done() for task in tasks)

    def seen(self, places: Mapping[str, tuple[str, str]]) -> dict[tuple[str, str], Reply]:
        """Waits for genesis and hints. -> the replies, by the names of `places` (backend and folder)."""
        out = {}
        for key, place in places.items():
            if place in self._begun:
                out.update({(key, path): reply for (_, path), reply in self._begun[place].result().items()})
        return out

    def is_quiet(self, keys: WorkspaceKeys, found: Found, places: Mapping[str, tuple[str, str]]) -> bool:
        """Whether inventories show a quorum of logs of the version after `found`, and an entry of it nowhere."""
        state: State = found.state
        if found.config.has_blocks:
            return False
        shown = 0
        for _, acceptor in found.config.acceptors:
            link = found.links.get(acceptor.acceptor_id)
            names = None if link is None else self._logs.get((places[link][0], acceptor.acceptor_id))
            if names is None:
                continue
            if entry_path(keys, state.epoch, state.era, acceptor.acceptor_id, state.v + 1, 0) in names:
                return False
            shown += 1
        return shown >= found.config.quorum

    def pack(self, key: PackKey, names: Mapping[str, str]) -> Begun | None:
        """A pack that is here or on its way, as often as it is asked for; else it is left to the caller.

        `names`: what the caller calls backends.
        """
        from metasync.transfer.copies import Begun

        self._asked.add(key)
        one = self._packs.get(key)
        if one is None or one.backend not in names:
            return None
        reply: Future[Reply] = Future()
        one.reply.add_done_callback(lambda ended: reply.set_result(ended.result()))
        return Begun(names[one.backend], one.size, one.at, reply)

    # --- tasks

    def _begin_inventories(self, n: str, key: str, ids: Sequence[bytes]) -> None:
        if len(ids) <= ROOTS_AT_ONCE:
            for an_id in ids:
                self._tasks.append(self._runtime.start(self._take_stock(n, key, an_id)))

    def _take_stock(self, n: str, key: str, an_id: bytes) -> Task:
        """Reads the inventory of an acceptor or of a storage root, and what is small of it."""
        top, cursor, names = an_id.hex(), "", set[str]()
        packs: list[Item] = []
        for _ in range(PAGES_MAX):
            asked = Op(key, "inventory", top, cursor=cursor, timeout_s=LOOK_TIMEOUT_S, urgency=Urgency.LATER)
            reply: Reply = yield asked
            if reply.error is not None or reply.value is None:
                return
            _, page = reply.value
            names.update(f"{top}/{item.name}" for item in page.items)
            packs += page.items
            self._tasks.append(self._runtime.start(self._get_objects(key, top, page.items)))
            if not page.more:
                self._logs[n, an_id] = frozenset(names)
                yield from self._get_packs(n, key, top, packs)
                return
            cursor = page.cursor

    def _get_objects(self, key: str, top: str, items: Iterable[Item]) -> Task:
        """Reads objects beside the logs, unless they are many."""
        wanted = list(_matching(_OBJECT, top, items))
        if len(wanted) > OBJECTS_MAX or sum(w.size for w in wanted) > OBJECTS_BYTES_MAX:
            return
        yield Gather({w.path: self._object(key, w) for w in wanted if self._is_first(w)})

    def _object(self, key: str, wanted: _Wanted) -> Task:
        reply: Reply = yield _op(key, wanted)
        if reply.error is None:
            self.objects[wanted.key[1]] = reply.value

    def _get_packs(self, n: str, key: str, top: str, items: Iterable[Item]) -> Task:
        """Reads packs, unless they are much together: one after the other, as other backends have some of them too."""
        wanted = list(_matching(_PACK, top, items))
        if sum(w.size for w in wanted) > PACKS_BYTES_MAX:
            return
        for w in wanted:
            if w.size <= self._room and self._is_first(w):
                self._room -= w.size
                one = self._packs[w.key] = _UnderWay(n, w.size, self._runtime.clock())
                reply = Reply(error=UnreachableError(f"{n}: not waited for"))
                try:
                    reply = yield _op(key, w)
                finally:
                    one.reply.set_result(reply)

    def _is_first(self, wanted: _Wanted) -> bool:
        if wanted.key in self._asked:
            return False
        self._asked.add(wanted.key)
        return True


def index_at_hand(keys: WorkspaceKeys, state: State, objects: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The index root of a state and its segments by hash, opened, as far as they are among sealed `objects`.

    Each is checked against its hash.
    """
    from metasync.store.index_root import decode_root

    out: dict[bytes, bytes] = {}
    wanted = [] if state.index_rides else [state.index.hash]
    with contextlib.suppress(FormatError, UpgradeError):  # whoever needs them asks for them, and is told why
        for digest in wanted:
            if digest in objects:
                data = open_named(keys, RecordKind.META, digest, objects[digest])
                if digest == state.index.hash:
                    wanted += [item.ref.hash for item in decode_root(data).apart]
                out[digest] = data
    return out


def _matching(pattern: re.Pattern[str], top: str, items: Iterable[Item]) -> Iterable[_Wanted]:
    for item in items:
        match = pattern.fullmatch(item.name)
        if match is not None and item.size is not None and item.size > 0:
            yield _Wanted((int(match[1] or -1), bytes.fromhex(match[2])), f"{top}/{item.name}", item.size)


def _op(key: str, wanted: _Wanted) -> Op:
    timeout_s = patience_s(wanted.size)
    return Op(key, "get", wanted.path, max_bytes=wanted.size, timeout_s=timeout_s, urgency=Urgency.SOON)
