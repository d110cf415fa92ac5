"""Builds concrete things from settings: backends from URLs, translator chains from names."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from metasync.backends.api import LogForm, Probes
from metasync.backends.registry import LINKED, TRACE_VARIABLE, is_own, open_backend, parse_url
from metasync.backends.wrappers.breaker import PATIENCE_S, PATIENCE_SHORT_S, Breaker
from metasync.backends.wrappers.last_write import LastWrite
from metasync.backends.wrappers.retry import Retrying
from metasync.backends.wrappers.travelled import Counting
from metasync.backends.wrappers.wrapper import layers
from metasync.config import DEFAULT_CAPACITY
from metasync.consensus import birth_path, is_root
from metasync.errors import BackendError, UnreachableError, UpgradeError, UsageError
from metasync.events import Notice
from metasync.local.lock import WAIT_S, WorkspaceLock
from metasync.runtime.tasks import Runtime, boottime
from metasync.runtime.threads import Alone
from metasync.runtime.travelled import Counter
from metasync.session.folder import STATE_DIR, load_secret, place_now, save_secret
from metasync.translators._base import Chain, Translator
from metasync.worktree.disk import Disk

if TYPE_CHECKING:
    from metasync.backends.api import Backend, BackendUrl
    from metasync.backends.wrappers.pace import Account
    from metasync.config import Config
    from metasync.events import Event, Listener
    from metasync.keys.device_set import Certificate, DeviceIdentity
    from metasync.keys.keyring import WorkspaceKeys
    from metasync.local.state import LocalDb
    from metasync.session.folder import Link


@dataclass(frozen=True)
class NewBackend:
    """A backend that will take part. `form`: how it may vote; `identity`: its native identity, 32 bytes.

    `capacity_bytes`: what the user gave, else `DEFAULT_CAPACITY`. `weight`: its share follows it; None: the capacity.
    """

    name: str
    scheme: str
    capacity_bytes: int
    form: LogForm
    identity: bytes
    role_both: bool
    weight: int | None = None

    @property
    def limit_bytes(self) -> int | None:
        """What the user gave, or None."""
        return self.capacity_bytes if self.capacity_bytes != DEFAULT_CAPACITY else None


FIRST_ANSWER_S: Final = 20.0  # for name look-up, TLS, a login, a disk that spins up
LOGIN_S: Final = 30.0  # for a linked account's token, which another server gives; the store's own time begins after it
SLOW_S: Final = 0.5  # to open a backend, and it is told that it is waited for
FIRST_PATH: Final = "metasync"  # no object is called so
ASK_TIMEOUT_S: Final = 10.0  # for a look at one backend
INCARNATION_BYTES: Final = 16
REST_S: Final = 60.0
CLOCK_STEP_S: Final = 60.0  # a clock that is put right little by little moves less between two operations
SCOPE_BYTES: Final = 16  # the half of a native identity that names the endpoint
UNMETERED: Final = frozenset({"file", "memory"})  # no server that counts requests

_opening: dict[str, Alone] = {}  # by location: an opening that hangs is waited for once, not by every command
_opening_lock = threading.Lock()


def mark_of_machine() -> tuple[object, ...]:
    """Changes when the machine is another, was started or has slept, or when its clock was set: as after an image of it
    was resumed."""
    now, awake, boot = time.time(), time.monotonic(), boottime()
    try:
        machine = Path("/etc/machine-id").read_bytes()
    except OSError:
        machine = b""
    return machine, round((now - boot) / CLOCK_STEP_S), round((boot - awake) / CLOCK_STEP_S)


class Machine:
    """The machine that an open workspace runs on; a simulator has one of its own."""

    def __init__(self) -> None:
        self.on_slow: Callable[[str], None] = lambda _: None  # is told the name of a backend that is slow to open
        self.travelled = Counter()  # to and from the linked backends

    def disk(self) -> Disk:
        return Disk()

    rests_after_s: float | None = REST_S  # without an operation, and connections and threads go; None: they stay

    def mark(self) -> tuple[object, ...]:
        """Changes when the machine has slept, or goes on from an image of itself: who proposed is another then."""
        return mark_of_machine()

    def wall_ns(self) -> int:
        """Nanoseconds since 1970, by the clock on the wall."""
        return time.time_ns()

    def entropy(self, n: int) -> bytes:
        return os.urandom(n)

    def runtime(self, backends: Mapping[str, Backend], db: LocalDb) -> Runtime:
        return Runtime(backends, persist=db.set_value, recall=db.value)

    def way(self, name: str, link: Link, *, suspected: bool) -> Backend:
        """The backend that was linked as `link`. `BackendError` when it cannot be had now."""
        url = parse_url(link.url)
        return reached(name, url, link, suspected=suspected, on_slow=lambda: self.on_slow(name), counter=self.travelled)

    def opened(self, name: str, url: BackendUrl, *, create: bool) -> Backend:
        """A store that takes no part yet: see `opened_first`."""
        return opened_first(name, url, create=create)

    def reached(self, name: str, url: BackendUrl, link: Link | None = None) -> Backend:
        """A store that is to be linked: see `reached`."""
        return reached(name, url, link, counter=self.travelled)

    def secret(self, directory: Path, db: LocalDb) -> tuple[WorkspaceKeys, DeviceIdentity, Certificate]:
        """The keys of the device that `directory` is."""
        return load_secret(directory, db)

    def place(self, directory: Path) -> bytes:
        """Where the workspace's `.metasync` lies: see `folder`."""
        return place_now(directory / STATE_DIR)

    def keep_secret(
        self, directory: Path, keys: WorkspaceKeys, device: DeviceIdentity, certificate: Certificate
    ) -> None:
        """Keeps new keys in the place of those that `secret` gave."""
        save_secret(directory, keys, device, certificate)

    def lock(
        self,
        directory: Path,
        command: str,
        waiting: Callable[[str], None],
        wait_s: float = WAIT_S,
        *,
        presses: bool = True,
        heed: Callable[[], None] = lambda: None,
    ) -> contextlib.AbstractContextManager[WorkspaceLock]:
        """The workspace's lock, taken: see `WorkspaceLock.acquire`."""
        lock = WorkspaceLock(directory / STATE_DIR)
        return lock.acquire(command, waiting=waiting, wait_s=wait_s, presses=presses, heed=heed)


@lru_cache(maxsize=32)
def chain_of(names: tuple[str, ...]) -> Chain:
    """The translator chain that a config names. `UpgradeError` when a translator is not installed here."""
    steps: list[Translator] = []
    for name in names:
        kind = _translator(name)
        if kind is None:
            raise UpgradeError(
                f"this workspace uses the translator {name!r}, which is not installed here",
                next_step="Upgrade metasync, or install the package that provides it.",
            )
        steps.append(kind())
    return Chain(steps)


_OWN_TRANSLATORS = {
    "compress": "metasync.translators.compress:Compress",
    "encrypt": "metasync.translators.encrypt:Encrypt",
    "integrity": "metasync.translators.integrity:Integrity",
}  # asking the installed packages costs 20 ms at every start


def _translator(name: str) -> Callable[[], Translator] | None:
    """The class of a translator, or None if it is not installed."""
    if name in _OWN_TRANSLATORS:
        module, _, attribute = _OWN_TRANSLATORS[name].partition(":")
        return cast(Callable[[], Translator], getattr(importlib.import_module(module), attribute))
    from importlib.metadata import entry_points

    point = next(iter(entry_points(group="metasync.translators", name=name)), None)
    return None if point is None else cast(Callable[[], Translator], point.load())


def default_device_name() -> str:
    """The name of this device in the log, unless the user gives one."""
    import platform

    return platform.node() or "device"


def parsed_urls(texts: Sequence[str]) -> dict[str, BackendUrl]:
    """Parses backend URLs; -> by name: the given one, else the last part of the path, the host or the scheme."""
    if not texts:
        raise UsageError("a workspace needs a backend", next_step="Give --backend URL, several times as a rule.")
    out: dict[str, BackendUrl] = {}
    for text in texts:
        url = parse_url(text)
        base = url.name or _plain(url.path.rstrip("/").rpartition("/")[2] or url.host or url.scheme)
        name, n = base, 2
        while name in out:
            if url.name:
                raise UsageError(f"two backends are called {name!r}")
            name, n = f"{base}-{n}", n + 1
        for other, given in out.items():
            if given.location == url.location:  # before anything is made there; `refuse_twins` looks closer
                raise _same_store(other, name)
        out[name] = url
    return out


def refuse_inside(folder: Path, urls: Mapping[str, BackendUrl]) -> None:
    """Raises `UsageError` for a store inside the workspace: every push would push what the one before stored."""
    top = os.path.realpath(folder)
    for name, url in urls.items():
        if url.scheme == "file" and os.path.commonpath([top, os.path.realpath(url.path)]) == top:
            raise UsageError(
                f"the backend {name} ({url.path}) lies inside the workspace {folder}",
                next_step="Name a folder outside of it, best on another disk.",
            )


def _plain(text: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text.lower())[:40]
    return kept.strip("-.") or "backend"


def opened(name: str, url: BackendUrl, *, create: bool) -> Backend:
    """Opens a backend, traced if the environment says so. Errors name it."""
    trace = os.environ.get(TRACE_VARIABLE)
    try:
        if not trace:
            return open_backend(url, create_root=create)
        from metasync.backends.wrappers.trace import file_sink, traced  # which nobody else pays for

        return traced(name, lambda: open_backend(url, create_root=create), file_sink(trace))
    except BackendError as e:
        e.message = f"{name}: {e.message}"
        raise


def opened_first(name: str, url: BackendUrl, *, create: bool) -> Backend:
    """Opens an unknown store and waits for one answer, so that a silent server does not cost many time-outs later."""

    def opening() -> Backend:
        backend = Counting(opened(name, url, create=create))
        if url.scheme not in UNMETERED:
            with contextlib.suppress(BackendError):  # whatever it says; what follows asks for what it needs
                backend.get(FIRST_PATH, length=1, max_bytes=1)
        return backend

    return _in_time(name, url, opening, FIRST_ANSWER_S)


def refuse_silent(url: BackendUrl) -> None:
    """Raises `OpeningHangsError` for a store that gives no answer. Other errors are left to later calls."""
    try:
        opened_first(url.scheme, url, create=False).close()
    except BackendError as error:
        if isinstance(error, OpeningHangsError):
            raise


class OpeningHangsError(UnreachableError):
    """A backend did not open in time: a mount whose server is gone, say."""


def reached(
    name: str,
    url: BackendUrl,
    link: Link | None = None,
    *,
    suspected: bool = False,
    on_slow: Callable[[], None] = lambda: None,
    counter: Counter | None = None,
) -> Backend:
    """Opens a backend that others must not wait for: as `wrapped`, and within a time-out.

    `link`: what was linked, to be compared with what is there. `suspected`: it hung a moment ago. `on_slow` is called
    when it takes longer than `SLOW_S`. `counter`: see `Counting`.
    """
    account: list[Account] = []

    def opening() -> Backend:
        backend = opened(name, url, create=False)
        if link is not None:
            check_identity(name, Retrying(backend, clock=boottime), link)  # some log in for it
        if url.scheme not in UNMETERED:
            from metasync.backends.wrappers.pace import account_of

            account.append(account_of(url, _scope(backend, link), boottime))
        return backend

    backend = _in_time(name, url, opening, PATIENCE_SHORT_S if suspected else PATIENCE_S, on_slow)
    return wrapped(backend, suspected=suspected, account=account[0] if account else None, counter=counter)


def _scope(backend: Backend, link: Link | None) -> bytes:
    """The endpoint of a store; b"" if it is not known."""
    try:
        identity = backend.identity() if link is None else bytes.fromhex(link.identity)
    except (BackendError, ValueError):
        return b""
    return identity[:SCOPE_BYTES]


def wrapped(
    backend: Backend, *, suspected: bool = False, account: Account | None = None, counter: Counter | None = None
) -> Backend:
    """Wraps a backend for workspaces: passing failures are tried again; a backend that hangs, and an account that asked
    for fewer requests, are left alone for a time. What travels is counted."""
    inner: Backend = Breaker(LastWrite(Counting(backend, counter)), suspected=suspected)
    if account is not None:
        from metasync.backends.wrappers.pace import Paced

        inner = Paced(inner, account)
    return Retrying(inner, clock=boottime)  # the clock by which calls are due


def ask_anew(backend: Backend) -> None:
    """Begins an operation: a backend that was left alone in an earlier one is asked again."""
    for layer in layers(backend):
        if isinstance(layer, Breaker):
            layer.again()


def is_silent(backend: Backend) -> bool | None:
    """Whether a backend hangs, as far as this process knows; None if it does not know."""
    return next((layer.silent() for layer in layers(backend) if isinstance(layer, Breaker)), None)


def tell_holds(
    name: str, backend: Backend, tell: Callable[[Event], None], most: Callable[[], float | None] = lambda: None
) -> None:
    """Makes a backend tell when its calls are held off because its account asked for fewer requests.

    `most`: how many requests a minute the user allows, asked before each call; None: as many as its provider bears.
    """

    def held(seconds: float) -> None:
        tell(Notice(f"{name} asked for fewer requests: it is left alone for {seconds:.0f} s"))

    for layer in layers(backend):
        if hasattr(layer, "on_hold"):  # `wrappers.pace.Paced`, which is loaded only where a server counts requests
            vars(layer).update(on_hold=held, most=most)


def _in_time(
    name: str,
    url: BackendUrl,
    opening: Callable[[], Backend],
    seconds: float,
    on_slow: Callable[[], None] = lambda: None,
) -> Backend:
    """Opens a backend in a thread that is left behind when it takes too long: it may never come back.

    A backend whose thread has not come back is not opened again, so a process leaves at most one thread for each.
    """
    has_token = threading.Event()
    attempt = Alone(
        f"open-{name}", opening if url.scheme not in LINKED else lambda: _logged_in(name, url, opening, has_token)
    )
    with _opening_lock:
        before = _opening.get(url.location)
        if before is not None and before.is_stuck():
            raise _opening_hangs(url, f"{name}: an earlier attempt to open it has not come back")
        _opening.pop(url.location, None)
        attempt.start()
    if url.scheme in LINKED and not has_token.wait(SLOW_S):
        on_slow()
        has_token.wait(LOGIN_S)
    at_once_s = min(SLOW_S, seconds)
    if not wait([attempt.outcome], at_once_s).done:
        on_slow()
    if not wait([attempt.outcome], seconds - at_once_s).done:
        with _opening_lock:
            _opening[url.location] = attempt
        raise _opening_hangs(url, f"{name}: it did not open within {seconds:g} s")
    return cast("Backend", attempt.outcome.result())


def _logged_in(name: str, url: BackendUrl, opening: Callable[[], Backend], has_token: threading.Event) -> Backend:
    """Opens a store of a linked account once the account's token is live; `has_token` is set then, or if it fails."""
    from metasync.backends._shared.logins import open_login

    try:
        open_login(url.scheme, dict(url.params).get("account")).token()
    except BackendError as error:
        raise error.on(name) from error
    finally:
        has_token.set()
    return opening()


def _opening_hangs(url: BackendUrl, message: str) -> OpeningHangsError:
    step = "Check the drive or the mount; a network share may have lost its server."
    if url.scheme not in UNMETERED:
        step = "Check the address, the server and the network: something may take connections there and say nothing."
    return OpeningHangsError(message, next_step=step)


def bare_runtime(backends: Mapping[str, Backend]) -> Runtime:
    """A runtime without local state: for `init` and `clone`, before there is any."""
    return Runtime(backends)


def new_backends(
    backends: Mapping[str, Backend], urls: Mapping[str, BackendUrl], on_event: Listener
) -> list[NewBackend]:
    """Looks at new backends, side by side, because a probe is many requests. -> in their order."""
    from concurrent.futures import ThreadPoolExecutor

    told: dict[str, list[Event]] = {name: [] for name in backends}
    with ThreadPoolExecutor(max_workers=max(1, len(backends))) as pool:
        found = [pool.submit(new_backend, n, urls[n], b, told[n].append) for n, b in backends.items()]
    out = []
    for name, future in zip(backends, found, strict=True):
        for event in told[name]:
            on_event(event)
        out.append(future.result())
    return out


def new_backend(name: str, url: BackendUrl, backend: Backend, on_event: Listener) -> NewBackend:
    """Looks at a new backend, and tells what limits its vote."""
    form = backend.form
    if url.role == "both" and form != "none" and isinstance(backend, Probes):
        form = backend.probe()
    why = getattr(backend, "form_reason", "") if form == backend.form else ""
    if url.role == "both" and form == "block":
        text = f"{name} has no atomic create: it votes in block form, which costs more requests"
        on_event(Notice(f"{text}, and allows for no backend that lies"))
    if url.role == "both" and form != "none" and not is_own(url.scheme):
        text = f"{name} votes on the word of the package that provides {url.scheme} URLs: it is not MetaSync's own"
        on_event(Notice(f"{text}. Try the store: metasync backend check URL; or add role=storage to its URL."))
    if url.role == "both" and form == "none":
        text = f"{name} holds data but does not vote: {why or 'it has no atomic create'}"
        on_event(Notice(text, warning=True))
    if caution := getattr(backend, "caution", ""):
        on_event(Notice(f"{name}: {caution}", warning=True))
    return NewBackend(
        name, url.scheme, url.capacity_bytes or DEFAULT_CAPACITY, form, backend.identity(), url.role == "both"
    )


def refuse_twins(backends: Sequence[NewBackend]) -> None:
    """Raises `UsageError` if two URLs lead to one store: its loss would be the loss of two copies."""
    seen: dict[bytes, str] = {}
    for b in backends:
        if b.identity in seen:
            raise _same_store(seen[b.identity], b.name)
        seen[b.identity] = b.name


def _same_store(one: str, other: str) -> UsageError:
    return UsageError(f"{one} and {other} are the same store", next_step="Give each store once.")


def check_identity(name: str, backend: Backend, link: Link) -> None:
    """Raises `UnreachableError` for another store in the same scope than the linked one: a copy in its place, say."""
    now, then = backend.identity(), bytes.fromhex(link.identity)
    if now[:16] == then[:16] and now[16:] != then[16:]:
        raise UnreachableError(
            f"{name}: what is at {link.url} is not the store that was linked (replaced, or a copy? If it is the right"
            f" one: metasync backend link {name} URL)",
            next_step="Find out who replaced it, before you link it.",
        )


def find_folder(config: Config, name: str, backend: Backend) -> str:
    """Finds the workspace's folder on the store of an agreed backend, by the births in the config. `UsageError`."""
    entry = config.named(name)
    assert entry is not None
    places = [(s.storage_id, s.birth) for s in entry.storage[-1:]]
    if entry.acceptor is not None:
        places.append((entry.acceptor.acceptor_id, entry.acceptor.birth))
    doubt: BackendError | None = None
    for listed in backend.list(""):
        if listed.size is not None:
            continue
        try:
            if all(
                is_root(backend.get(f"{listed.name}/{birth_path(i)}", max_bytes=1024), i, birth) for i, birth in places
            ):
                return listed.name
        except BackendError as e:  # a folder of others that may not be read is passed over; silence says nothing
            doubt = doubt or (e if e.retryable else None)
    if doubt is not None:
        raise doubt
    raise UsageError(
        f"what is there is not the backend {name!r} of this workspace",
        next_step="Check the URL. A backend that was emptied or replaced cannot be linked again.",
    )
