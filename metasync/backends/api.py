"""The contract of a backend: seven small calls on named, mostly immutable objects.

What agreement asks of them: consensus.md, rule 1.2. What providers do: providers.md, section 1.

Paths are relative to the backend's root, `/`-separated, made of `[a-z0-9._-]` only, never absolute and never with `..`.
Every call may be repeated. Calls come from several threads at once. A provider holds no retry loop, no cache and no
knowledge of what the bytes mean. A provider in a package of its own imports this module alone
(docs/howto/write-a-backend.md): what stands in `__all__` keeps its name and its meaning within a major version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from metasync.backends.names import check_part, count_bytes, is_name, native_identity, split_folder, split_path
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError, UsageError

__all__ = [
    "Backend",
    "BackendError",
    "BackendUrl",
    "Cautions",
    "Change",
    "Digest",
    "DigestKind",
    "ExplainsForm",
    "FullError",
    "Inventories",
    "Inventory",
    "Item",
    "Listed",
    "LogForm",
    "NotFoundError",
    "Probes",
    "Rate",
    "RefusedError",
    "Space",
    "Sweeps",
    "TellsDigests",
    "TellsSpace",
    "UnreachableError",
    "UsageError",
    "Watches",
    "check_part",
    "count_bytes",
    "is_name",
    "native_identity",
    "split_folder",
    "split_path",
]

LogForm = Literal["log", "block", "none"]
"""How a backend may vote: `log` (atomic create), `block` (without: it looks, then writes), `none` (holds data only)."""

DigestKind = Literal["sha256", "md5", "sha1", "content_hash", "quickxor"]
"""Digests that stores tell (`digests.KINDS`). The name of a pack is its SHA-256; others stand in the pack index."""


class Listed(NamedTuple):
    """One name directly below a listed path. `size` in bytes; None for something that holds further names."""

    name: str
    size: int | None


class Space(NamedTuple):
    """Bytes on the account as the provider tells them; None where it has no limit or does not say."""

    free_bytes: int | None
    total_bytes: int | None


class Digest(NamedTuple):
    """What a store says of an object of its own. `value`: None where it has no such digest of this one."""

    size: int
    value: bytes | None


class Item(NamedTuple):
    """An object in an inventory. `name`: its path below the folder that was asked for.

    size     in bytes; None in a feed of changes: it is gone
    digest   of the backend's `digest_kind`, as the store computed it; None where the inventory tells none
    changed  a mark that is another after each write, such as a time; "" where none is told
    """

    name: str
    size: int | None
    digest: bytes | None = None
    changed: str = ""


class Inventory(NamedTuple):
    """A page of an inventory. `more`: ask again with `cursor` for the next one.

    On the last page `cursor` is where changes from now on are told; "" where the store tells none, and lists anew.
    """

    items: tuple[Item, ...]
    cursor: str
    more: bool


class Rate(NamedTuple):
    """How much of something a provider bears of one account, as it publishes.

    what      "requests"
    a_minute  so much of it in a minute
    costs     of a call, by its kind ("get"); what is not named costs nothing
    """

    what: str
    a_minute: float
    costs: Mapping[str, float]


class Change(NamedTuple):
    """What a watch ended with.

    cursor   where to watch on
    changed  whether anything below the folder may have changed since the cursor that was given
    after_s  for how many seconds the server asks not to be asked again
    """

    cursor: str
    changed: bool
    after_s: float = 0.0


@runtime_checkable
class Backend(Protocol):
    """One storage account or folder.

    Errors are those of `metasync.errors.BackendError` alone: `NotFoundError`, `UnreachableError`, `FullError`,
    `RefusedError`, or `BackendError` for the rest. After an error of `create` or `put` the object may or may not exist.
    A refusal because of too many requests has `retry_after_s`: what the server says, or a second where it says nothing.

    From the moment a `create` or `put` returns, every `get`, whoever asks, sees what it stored. A store that is late
    there can hold data, but not vote. To vote in block form, what one `get` saw every later one must see, too.
    """

    scheme: ClassVar[str]
    # `rates: ClassVar[tuple[Rate, ...]]`, where its provider publishes any: calls keep to them (`wrappers.pace`).

    @property
    def form(self) -> LogForm:
        """What this store is allowed to do as an acceptor: a static allow-list, which a probe may only lower."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Stores `data` under a name that is free: True. False: the name is taken (whoever took it).

        Atomic in name and content: of several racing callers exactly one gets True, and no reader ever sees a part.
        Parents appear as needed. Durable on return.
        """
        ...

    def put(self, path: str, data: bytes) -> None:
        """Stores `data` under `path`, replacing what was there, atomically for readers. Durable on return."""
        ...

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        """The object's bytes, or `length` bytes from `offset` (fewer at its end). `NotFoundError` if absent.

        Never returns and never buffers more than `max_bytes`: a larger object is a `RefusedError`.
        """
        ...

    def stat(self, path: str) -> int:
        """The object's size in bytes. `NotFoundError` if absent."""
        ...

    def list(self, path: str) -> tuple[Listed, ...]:
        """Names directly below `path` ("" is the root), sorted. Empty when there are none. A hint only."""
        ...

    def delete(self, path: str) -> None:
        """Removes the object; nothing happens when it is absent."""
        ...

    def identity(self) -> bytes:
        """What makes two people's views of this store the same store (consensus.md, rule 1.1); no secrets.

        32 bytes: 16 for the scope in which stores can be compared (a machine, an endpoint), 16 for the place there.
        The same scope and another place is another store, such as a copy. Another scope cannot be compared.
        """
        ...

    def close(self) -> None:
        """Gives connections back. Further calls are an error of ours."""
        ...


@runtime_checkable
class TellsSpace(Protocol):
    """Optional power: knows how much room is left."""

    def space(self) -> Space: ...


@runtime_checkable
class TellsDigests(Protocol):
    """Optional power: says without a download what an object's bytes hash to, as the store computed it itself.

    It shows what broke by accident. A store that lies can tell any digest, and is found out by reading.
    """

    digest_kind: ClassVar[DigestKind]

    def digest(self, path: str) -> Digest:
        """For one request, like `stat`. `NotFoundError` if absent."""
        ...


@runtime_checkable
class Inventories(Protocol):
    """Optional power: lists all that is below a folder, however deep, in fewer requests than `list` takes."""

    def inventory(self, path: str, cursor: str) -> Inventory:
        """A page of the objects below a folder, which is not the root, in any order; a name may come twice.

        `cursor` "" begins. What is written or removed while pages are asked for may be in them or not; a feed tells it
        afterwards. Of changes only the last of a name need be told. A feed may tell of a folder that it is gone, and
        means all that was below it. `NotFoundError`: this cursor is too old, begin anew. An inventory is a hint, as a
        list is: nothing is deleted on its word.
        """
        ...


@runtime_checkable
class Watches(Protocol):
    """Optional power: waits at the store until something changes, in the place of asking again and again."""

    def watch(self, path: str, cursor: str, timeout_s: float) -> Change:
        """Waits until something below a folder, which is not the root, changes; for `timeout_s` or about that long.

        `cursor` "" begins: it returns at once, with `changed`. `NotFoundError`: this cursor is too old, begin anew.
        Changes of one's own count as well. A hint: it may say that something changed where nothing did, and whoever
        must not miss anything looks now and then all the same. It is no call like the others: it takes no place of
        theirs, and a long wait for it says nothing about the store. A process that ends need not wait for it.
        """
        ...


@runtime_checkable
class ExplainsForm(Protocol):
    """Optional power: says in words why its form is not `log`, for people who ask why it does not vote."""

    form_reason: str


@runtime_checkable
class Cautions(Protocol):
    """Optional power: says in words what people should know before they give it to a workspace; "" if nothing."""

    caution: str


@runtime_checkable
class Sweeps(Protocol):
    """Optional power: can remove what no list shows."""

    def sweep(self, path: str) -> None:
        """Removes half-written objects and empty folders below `path`, and `path` itself if it is empty then.

        Only for a folder that nobody writes to any more: what is half-written may be somebody's who is still at it.
        """
        ...


@runtime_checkable
class Probes(Protocol):
    """Optional power: can find out on the spot that a store must not vote. It can disprove, never prove."""

    def probe(self) -> LogForm: ...


@dataclass(frozen=True, slots=True)
class BackendUrl:
    """A backend URL taken apart: what reaches the store, and what the workspace wants of it.

    `location` keeps what identifies the store, without the `capacity`, `name` and `role` parameters.
    """

    scheme: str
    host: str
    path: str
    params: tuple[tuple[str, str], ...]
    location: str
    name: str | None = None
    capacity_bytes: int | None = None
    role: Literal["storage", "both"] = "both"
