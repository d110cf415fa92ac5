"""Keeps off an account that asked for fewer requests, for as long as it asked: in all processes of this user.

It does not come to that where a provider publishes what it bears (`Backend.rates`): calls wait for their place in that,
together for one account in this process (`allowance`). Other processes are not counted: they are heard of by refusals.

The time comes from the server, or from its provider's code (`BackendError.retry_after_s`). It is kept for each account
in a small file below the user's state directory ($XDG_STATE_HOME/metasync/accounts, or
~/.local/state/metasync/accounts), named by a hash. `runtime.concurrency` learns how many calls at once an account
bears.

There is no lock: a file is replaced as a whole, and a note that another process overwrites is a lost hint. A file that
cannot be read or written, or holds nonsense, counts as absent. Nothing is written before a server has refused a call,
and what has run out is removed. Its times are of the wall's clock, because processes of other boots read them; a clock
that was turned costs one early request, or a wait of HOLD_MOST_S at most.

A call that may not be made is a `HeldBackError`, without a request. A caller that can do without this backend goes on
with the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from metasync.backends._shared.http import MOST_S as HOLD_MOST_S
from metasync.backends.api import Backend, BackendUrl, Change, Rate
from metasync.backends.wrappers.allowance import Allowance
from metasync.backends.wrappers.wrapper import Call, T, Wrapper
from metasync.errors import BackendError, HeldBackError
from metasync.local.user_folders import state_folder
from metasync.runtime.effects import CARRIED

LONGER: Final = 0.05  # of a wait: what would make it longer by less is not written; calls are refused in bursts
LOOK_S: Final = 1.0  # between looks at the file, while calls are made
TURN_S: Final = 0.25  # a call that has to wait for its place waits as long at least: several go then
ANY: Final[Mapping[str, float]] = dict.fromkeys(
    ("create", "put", "get", "stat", "list", "delete", "identity", "space", "probe", "sweep", "digest", "inventory"),
    1.0,
)
"""What calls cost where a backend does not say."""

TELL_S: Final = 2.0  # what is shorter is not worth words
FILE_BYTES_MAX: Final = 4096
_FORMAT: Final = 1

_accounts: dict[str, Account] = {}
_accounts_lock = threading.Lock()


def account_of(url: BackendUrl, scope: bytes, clock: Callable[[], float] = time.monotonic) -> Account:
    """The account of a URL: one object in this process. `clock`: see `Account`.

    `scope`, the first half of the store's native identity (the endpoint), the URL's user and its parameters say whose
    requests are counted together, for several workspaces and processes.
    """
    user = url.host.rpartition("@")[0]
    text = "\0".join([url.scheme, user, *(f"{key}={value}" for key, value in url.params)])
    name = hashlib.sha256(scope + text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    folder = state_folder("accounts")  # none for a user without a home, whose working directory is no place for it
    path = os.path.join(folder, f"{name}.json") if folder else f"/dev/null/{name}"  # where nothing can ever be
    with _accounts_lock:
        found = _accounts.get(path)
        if found is None:
            found = _accounts[path] = Account(path, clock=clock)
        return found


class Account:
    """The time until which an account is left alone; shared by threads and, through the file at `path`, processes.

    `clock` gives seconds and never goes back; `wall` gives seconds since 1970.
    """

    def __init__(
        self, path: str, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.clock = clock
        self.wall = wall
        self._path = path
        self._lock = threading.Lock()
        self._until = -math.inf  # on `clock`
        self._looked_at = -math.inf
        self._stamp: tuple[int, int, int] | None = None
        self._allowances: dict[tuple[tuple[str, float], ...], Allowance] = {}  # of one provider there is one

    def turn_s(self, kind: str, rates: Sequence[Rate], *, waits: bool) -> float:
        """Takes a place for a call within what the provider publishes. -> 0, or how long until there is one.

        `waits`: else it is taken from those that do.
        """
        with self._lock:
            now = self.clock()
            key = tuple((rate.what, rate.a_minute) for rate in rates)
            allowance = self._allowances.get(key)
            if allowance is None:
                allowance = self._allowances[key] = Allowance(rates)
            wait_s = allowance.wait_s(now, kind) if waits else 0.0
            if wait_s <= 0:
                allowance.take(now, kind)
            return wait_s

    def held_s(self) -> float:
        """For how many seconds nothing may be asked of it; 0: it may."""
        with self._lock:
            now = self.clock()
            if now - self._looked_at >= LOOK_S:
                self._look(now)
            return min(max(0.0, self._until - now), HOLD_MOST_S)  # (now + h) - now may be a little more than h

    def refused(self, after_s: float) -> None:
        """Notes that the account wants to be left alone for `after_s`: HOLD_MOST_S at most, never less than before."""
        with self._lock:
            now = self.clock()
            self._look(now)  # what another process was told meanwhile must not be written over
            after_s = min(max(after_s, 0.0), HOLD_MOST_S)
            for allowance in self._allowances.values():
                allowance.empty(now)
            before, self._until = max(self._until, now), max(self._until, now + after_s)
            if self._until - before > LONGER * after_s:
                self._save(after_s)

    # with the lock held

    def _look(self, now: float) -> None:
        """Reads the file when it is another than was read or written last."""
        self._looked_at = now
        stamp = _stamp(self._path)
        if stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        hold_s = _read(self._path, self.wall())
        if hold_s > 0:
            self._until = max(self._until, now + hold_s)
            return
        with contextlib.suppress(OSError):  # it has run out, or is none: the next one who is refused writes another
            os.unlink(self._path)

    def _save(self, hold_s: float) -> None:
        at = self.wall()
        beside = f"{self._path}.{os.getpid()}.{threading.get_ident()}"
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            try:
                file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(file, "w", encoding="utf-8") as f:
                    json.dump({"format": _FORMAT, "at": at, "until": at + hold_s}, f)
                os.replace(beside, self._path)
            except OSError:
                os.unlink(beside)
                return
            self._stamp = _stamp(self._path)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read(path: str, wall: float) -> float:
    """For how many seconds from `wall` on the account is to be left alone, as a file says; 0 if it says nothing."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as f:
            data = f.read(FILE_BYTES_MAX + 1)
        return _hold_s(json.loads(data), wall) if len(data) <= FILE_BYTES_MAX else 0.0
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return 0.0


def _hold_s(found: Any, wall: float) -> float:
    at, until = float(found["at"]), float(found["until"])
    if found["format"] != _FORMAT or not math.isfinite(at) or not math.isfinite(until):
        return 0.0
    if wall < at or until - at > HOLD_MOST_S + 1:
        return 0.0  # the clock was turned back, or nobody of ours wrote that
    return min(max(0.0, until - wall), HOLD_MOST_S)


class Paced(Wrapper):
    """The same store, which is left alone for as long as its account asked.

    A call that may not be made is a `HeldBackError` with the time to wait. `on_hold(seconds)` is called once for each
    time of rest that holds off a call, from any thread.
    """

    def __init__(
        self, inner: Backend, account: Account, *, on_hold: Callable[[float], None] = lambda _seconds: None
    ) -> None:
        super().__init__(inner)
        self.on_hold = on_hold
        self.most: Callable[[], float | None] = lambda: None  # the user's: requests a minute, in place of `rates`
        self._account = account
        self._own: Sequence[Rate] = getattr(inner, "rates", ())
        self._told_until = -math.inf

    def around(self, call: Call, do: Callable[[], T]) -> T:
        held_s = self._account.held_s()
        if held_s > 0:
            self._tell(self._account.clock() + held_s, held_s)
            raise _held_back(held_s, self._account.wall())
        self._take_turn(call)
        try:
            return do()
        except BackendError as error:
            if error.retry_after_s is not None:
                self._account.refused(error.retry_after_s)
                if (carried := CARRIED.get()) is not None:
                    carried.refused(error.retry_after_s)
            raise

    def _take_turn(self, call: Call) -> None:
        """`HeldBackError` where the call has to wait. Urgent ones go, and those of callers that make them once."""
        most = self.most()
        rates = self._own if most is None else (Rate("requests", most, self._own[0].costs if self._own else ANY),)
        if not rates or most == math.inf:
            return
        carried = CARRIED.get()
        wait_s = self._account.turn_s(call.kind, rates, waits=carried is not None and not carried.is_urgent)
        if wait_s > 0:
            raise HeldBackError(
                f"it bears {rates[0].a_minute:,.0f} {rates[0].what} a minute, and they were made",
                next_step="It is asked again by itself. `metasync config set limit.requests` sets another rate.",
                retry_after_s=max(wait_s, TURN_S),
            )

    def _watch(self, path: str, cursor: str, timeout_s: float) -> Change:
        return self.around(Call("watch", path), lambda: super(Paced, self)._watch(path, cursor, timeout_s))

    def _tell(self, until: float, held_s: float) -> None:
        if held_s >= TELL_S and until > self._told_until + TELL_S:
            self._told_until = until
            self.on_hold(held_s)


def _held_back(seconds: float, wall: float) -> HeldBackError:
    at = time.strftime("%H:%M:%S", time.localtime(wall + seconds))
    return HeldBackError(
        f"it asked for fewer requests, and is left alone until {at}",
        next_step="It is asked again by itself then.",
        retry_after_s=seconds,
    )
