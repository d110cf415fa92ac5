"""Keeps off an account that asked for fewer requests, and within the rate it bears: in all processes of this user.

What was learnt of an account (`_allowance`) is kept in one small file each, below the user's state directory
($XDG_STATE_HOME/metasync/accounts, or ~/.local/state/metasync/accounts), called by a hash. There is no lock: a file is
replaced as a whole after a look at what is there; what another writes in that moment is a hint that got lost. A file
that cannot be read or written, or holds nonsense, is no memory; it never is an error. Nothing is written before a
server has refused a call, and what has run out is removed. Times in it are those of the wall's clock, because processes
of other boots read it; one that was turned costs a request too early, or a wait of HOLD_MOST_S at most.

A call that may not be made is refused by `HeldBackError`, without a request. Whoever can do without this backend goes
on with the others at once; who cannot, waits and asks again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from metasync.backends.api import Backend, BackendUrl
from metasync.backends.wrappers.wrapper import Call, T, Wrapper
from metasync.errors import BackendError, HeldBackError, UnreachableError
from metasync.runtime.effects import DUE

if TYPE_CHECKING:  # loaded where something is known of an account: there is nothing to decide before
    from metasync.backends.wrappers.pace_rate import Allowance, Noted

LOOK_S: Final = 1.0  # between looks at the file, while calls are made
SAVE_S: Final = 10.0  # between notes of a rate that grows
TURN_MOST_S: Final = 30.0  # that a call waits for its turn, where nobody says when it is due
TELL_S: Final = 2.0  # what is shorter is not worth words
SMALL_BYTES_MAX: Final = 64 << 10  # log entries, births, heads, slots; not packs
FILE_BYTES_MAX: Final = 4096
_FORMAT: Final = 1

_accounts: dict[str, Account] = {}
_accounts_lock = threading.Lock()


def account_of(url: BackendUrl, scope: bytes, clock: Callable[[], float] = time.monotonic) -> Account:
    """The account that a URL leads to, one object for all who use it in this process. `clock`: see `Account`.

    `scope`: the first half of the store's native identity (the endpoint). With the user whom the URL names and the
    parameters of the store itself it says whose requests are counted together, for several workspaces and processes.
    """
    user = url.host.rpartition("@")[0]
    text = "\0".join([url.scheme, user, *(f"{key}={value}" for key, value in url.params)])
    name = hashlib.sha256(scope + text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    folder = _folder()
    path = os.path.join(folder, f"{name}.json") if folder else f"/dev/null/{name}"  # where nothing can ever be
    with _accounts_lock:
        found = _accounts.get(path)
        if found is None:
            found = _accounts[path] = Account(path, clock=clock)
        return found


def _folder() -> str:
    """Where notes lie; "" for a user without a home, whose working directory is no place for them."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "metasync", "accounts") if os.path.isabs(base) else ""


class Account:
    """What is known of one account, shared by threads and, through the file at `path`, by processes.

    `clock` never goes back, and is the one by which calls are due (`effects.DUE`); `wall` is seconds since 1970.
    """

    def __init__(
        self, path: str, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.clock = clock
        self.wall = wall
        self._path = path
        self._lock = threading.Lock()
        self._allowance: Allowance | None = None  # None: nobody was ever refused
        self._window_at = -math.inf
        self._calls = self._calls_before = 0  # in this second, and in the one before
        self._looked_at = self._saved_at = -math.inf
        self._stamp: tuple[int, int, int] | None = None
        self._saved: Noted | None = None  # what the file says by us, or said when it was read

    def held_s(self) -> float:
        """For how long nothing may be asked of it; 0: it may."""
        with self._lock:
            now = self.clock()
            self._look(now)
            return 0.0 if self._allowance is None else self._allowance.held_s(now)

    def begin(self, *, small: bool, most_s: float) -> tuple[float, float]:
        """(for how long nothing may be asked, how long this call must wait for its turn); the turn is had, unless
        nothing may be asked or it takes more than `most_s`."""
        with self._lock:
            now = self.clock()
            self._look(now)
            if self._allowance is None:
                self._count(now)
                return 0.0, 0.0
            held_s = self._allowance.held_s(now)
            if held_s > 0:
                return held_s, 0.0
            self._count(now)
            wait_s = self._allowance.turn_s(now, small=small, most_s=most_s)
            if self._saved is not None and now - self._saved_at >= SAVE_S:
                self._save(now)
            return 0.0, wait_s

    def refused(self, began: float, after_s: float) -> None:
        """A call that began then was sent away: it asks for fewer requests, and for a rest of `after_s`."""
        with self._lock:
            now = self.clock()
            self._looked_at = -math.inf  # what another process was told meanwhile must not be written over
            self._look(now)
            allowance = self._known()
            before = allowance.noted(now)
            allowance.refused(now, began, after_s, self._used(now))
            after = allowance.noted(now)
            if after.rate != before.rate or after.hold_s > before.hold_s + 0.05 * after_s:
                self._save(now)

    def answered(self) -> None:
        """A call was answered, or refused for another reason."""
        if (allowance := self._allowance) is not None:  # as quick as can be: it is so with every call
            allowance.answered()

    def close(self) -> None:
        """Notes how far the rate has grown."""
        with self._lock:
            now = self.clock()
            if self._allowance is not None and self._saved is not None and self._allowance.rate != self._saved.rate:
                self._save(now)

    # with the lock held

    def _known(self) -> Allowance:
        if self._allowance is None:
            from metasync.backends.wrappers.pace_rate import Allowance

            self._allowance = Allowance()
        return self._allowance

    def _count(self, now: float) -> None:
        if now - self._window_at >= 1.0:
            self._calls_before = self._calls if now - self._window_at < 2.0 else 0
            self._calls, self._window_at = 0, now
        self._calls += 1

    def _used(self, now: float) -> float:
        """Calls a second, lately."""
        return float(max(self._calls, self._calls_before)) if now - self._window_at < 2.0 else 0.0

    def _look(self, now: float) -> None:
        """Reads the file when it is another than was read or written last."""
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        stamp = _stamp(self._path)
        if stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        noted = _read(self._path, self.wall())
        if noted is None:  # it has run out, or is none: the next one who was refused writes another
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            return
        self._saved, self._saved_at = noted, now
        self._known().learn(now, noted)

    def _save(self, now: float) -> None:
        noted = self._known().noted(now)
        self._saved, self._saved_at = noted, now
        at = self.wall()
        text = json.dumps(
            {"format": _FORMAT, "at": at, "until": at + noted.hold_s, "rate": noted.rate, "refused": noted.refused}
        )
        beside = f"{self._path}.{os.getpid()}.{threading.get_ident()}"
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            try:
                file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(file, "w", encoding="utf-8") as f:
                    f.write(text)
                os.replace(beside, self._path)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(beside)
                return
            self._stamp = _stamp(self._path)
        except OSError:
            return


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read(path: str, wall: float) -> Noted | None:
    """What a file says that still holds; None where that is nothing."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as f:
            data = f.read(FILE_BYTES_MAX + 1)
        return _noted(json.loads(data), wall) if len(data) <= FILE_BYTES_MAX else None
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _noted(found: Any, wall: float) -> Noted | None:
    from metasync.backends.wrappers.pace_rate import FORGET_S, HOLD_MOST_S, Noted

    at, until, refused = float(found["at"]), float(found["until"]), float(found["refused"])
    rate = None if found["rate"] is None else float(found["rate"])
    if found["format"] != _FORMAT or not all(map(math.isfinite, (at, until, refused, rate or 0.0))):
        return None
    age_s = wall - at
    hold_s = until - wall
    if age_s < 0 or until - at > HOLD_MOST_S + 1 or not refused >= 0 or (rate is not None and not rate > 0):
        return None  # the clock was turned back, or nobody of ours wrote that
    if rate is not None and age_s - (until - at) > FORGET_S:
        rate = None
    if hold_s <= 0 and rate is None:
        return None
    return Noted(min(max(0.0, hold_s), HOLD_MOST_S), rate, refused)


class Paced(Wrapper):
    """The same store, asked for as much as its account bears.

    A call that may not be made now is a `HeldBackError` with the time to wait. `on_hold(seconds)` is told once of each
    time of rest that keeps a call off, in whatever thread it does.
    """

    def __init__(
        self,
        inner: Backend,
        account: Account,
        *,
        sleep: Callable[[float], None] = time.sleep,
        on_hold: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        super().__init__(inner)
        self.on_hold = on_hold
        self._account = account
        self._sleep = sleep
        self._told_until = -math.inf

    def around(self, call: Call, do: Callable[[], T]) -> T:
        small = max(call.up_bytes, call.down_bytes_max) <= SMALL_BYTES_MAX
        clock = self._account.clock
        due = DUE.get()
        most_s = TURN_MOST_S if due is None else max(0.0, min(TURN_MOST_S, due - clock()))
        held_s, wait_s = self._account.begin(small=small, most_s=most_s)
        if wait_s > most_s:
            raise _held_back(call, wait_s, self._account.wall(), "others are before this call")
        if wait_s > 0:
            self._sleep(wait_s)
            held_s = self._account.held_s()
        if held_s > 0:
            self._tell(clock() + held_s, held_s)
            raise _held_back(call, held_s, self._account.wall())
        began = clock()
        try:
            value = do()
        except BackendError as error:
            if error.retry_after_s is not None:
                self._account.refused(began, error.retry_after_s)
            elif not isinstance(error, UnreachableError):
                self._account.answered()
            raise
        self._account.answered()
        return value

    def close(self) -> None:
        self._account.close()
        self.inner.close()

    def _tell(self, until: float, held_s: float) -> None:
        if held_s >= TELL_S and until > self._told_until + TELL_S:
            self._told_until = until
            self.on_hold(held_s)


def _held_back(call: Call, seconds: float, wall: float, why: str = "") -> HeldBackError:
    at = time.strftime("%H:%M:%S", time.localtime(wall + seconds))
    return HeldBackError(
        f"it asked for fewer requests, and is left alone until {at}" + (f" ({why})" if why else ""),
        next_step="It is asked again by itself then.",
        retry_after_s=seconds,
    )
