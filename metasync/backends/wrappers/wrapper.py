"""Wrappers around any backend, with the backend's own interface: what all of them share, and the simplest.

A wrapper says in `around` what it does about a call. It has an optional power (`space`, `probe`) exactly if what it
wraps has it. Wrappers stack: `layers` takes them off one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, cast

from metasync.backends.api import Backend, Change, Inventories, Inventory, Listed, LogForm, Watches
from metasync.errors import BackendError, UnreachableError

T = TypeVar("T")

CallKind: TypeAlias = Literal[
    "create",
    "put",
    "get",
    "stat",
    "list",
    "delete",
    "identity",
    "space",
    "probe",
    "sweep",
    "digest",
    "inventory",
    "watch",
]
_ASKED: tuple[CallKind, ...] = ("space", "probe", "sweep", "digest")
_SAID = ("digest_kind", "look", "form_reason", "caution", "rates")
WRITES: frozenset[CallKind] = frozenset({"create", "put", "delete"})

ATTEMPT: ContextVar[int] = ContextVar("attempt", default=1)
"""Which attempt at a call this is, for whoever writes down what happens below a wrapper that repeats calls."""


class Call(NamedTuple):
    """What a wrapper knows of a call before it is made. `down_bytes_max`: more than that does not come back."""

    kind: CallKind
    path: str = ""
    up_bytes: int = 0
    down_bytes_max: int = 0


class Wrapper:
    """The same store as `inner`, closed with it. A subclass overrides `around`, or single calls."""

    scheme: ClassVar[str] = "wrapped"

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        # Not by __getattr__: isinstance() with a protocol does not look there any more since Python 3.12. And asked by
        # name: isinstance() takes 10 us for each power, and every command wraps every backend five times.
        mine = vars(self)
        mine["scheme"] = inner.scheme
        mine.update((power, self._power(power)) for power in _ASKED if hasattr(inner, power))
        mine.update((power, getattr(inner, power)) for power in _SAID if hasattr(inner, power))
        if hasattr(inner, "inventory"):
            mine["inventory"] = self._inventory
        if hasattr(inner, "watch"):
            mine["watch"] = self._watch

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def around(self, call: Call, do: Callable[[], T]) -> T:
        """Makes the call `do`, or does not; once or more often; and whatever is to happen before and after."""
        return do()

    def below(self, path: str) -> str:
        """What `inner` calls the object that is `path` here."""
        return path

    @property
    def form(self) -> LogForm:
        return self.inner.form

    def create(self, path: str, data: bytes) -> bool:
        return self.around(Call("create", path, len(data)), lambda: self.inner.create(self.below(path), data))

    def put(self, path: str, data: bytes) -> None:
        self.around(Call("put", path, len(data)), lambda: self.inner.put(self.below(path), data))

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        most = max_bytes if length is None else min(length, max_bytes)
        return self.around(
            Call("get", path, 0, most),
            lambda: self.inner.get(self.below(path), offset=offset, length=length, max_bytes=max_bytes),
        )

    def stat(self, path: str) -> int:
        return self.around(Call("stat", path), lambda: self.inner.stat(self.below(path)))

    def list(self, path: str) -> tuple[Listed, ...]:
        return self.around(Call("list", path), lambda: self.inner.list(self.below(path)))

    def delete(self, path: str) -> None:
        self.around(Call("delete", path), lambda: self.inner.delete(self.below(path)))

    def identity(self) -> bytes:
        return self.around(Call("identity"), lambda: self.inner.identity())

    def close(self) -> None:
        self.inner.close()

    def _inventory(self, path: str, cursor: str) -> Inventory:
        inner = cast(Inventories, self.inner)
        return self.around(Call("inventory", path), lambda: inner.inventory(self.below(path), cursor))

    def _watch(self, path: str, cursor: str, timeout_s: float) -> Change:
        """Past `around`: a long wait takes nobody's place, and is no sign of a store that hangs."""
        return cast(Watches, self.inner).watch(self.below(path), cursor, timeout_s)

    def _power(self, kind: CallKind) -> Callable[..., Any]:
        return lambda *path: self.around(Call(kind, *path), lambda: getattr(self.inner, kind)(*map(self.below, path)))


def layers(backend: Backend) -> Iterator[Backend]:
    """A backend, then what it wraps, down to the store itself."""
    yield backend
    while isinstance(backend, Wrapper):
        backend = backend.inner
        yield backend


def dial(backend: Backend) -> None:
    """Has a store begin to open the connections that calls soon to come will want, where it can do so ahead."""
    for layer in layers(backend):
        if hasattr(layer, "dial"):  # `_shared.object_store.ObjectStoreBackend`, which many have no need to load
            layer.dial()


class Prefixed(Wrapper):
    """A folder of a backend as a backend of its own: every path gets the prefix. Closing it closes nothing."""

    def __init__(self, inner: Backend, prefix: str) -> None:
        super().__init__(inner)
        self._prefix = prefix.rstrip("/")

    def below(self, path: str) -> str:
        return f"{self._prefix}/{path}"

    def list(self, path: str) -> tuple[Listed, ...]:
        return self.inner.list(self.below(path) if path else self._prefix)

    def close(self) -> None:
        """Nothing: the inner backend belongs to whoever opened it."""


class AbsentBackend:
    """Stands in for a backend that could not be opened. Raises `why` from every call."""

    scheme: ClassVar[str] = "absent"
    form: ClassVar[LogForm] = "none"

    def __init__(self, why: BackendError) -> None:
        self.why = why
        if not isinstance(why, UnreachableError):
            self.why = UnreachableError(why.message, next_step=why.next_step, retryable=why.retryable)

    def _fail(self, *_args: object, **_kwargs: object) -> Any:
        raise self.why

    create = put = get = stat = list = delete = identity = _fail

    def close(self) -> None:
        """Nothing is open."""
