"""Logins to linked accounts (Dropbox, OneDrive, Box, Google Drive), renewed before their tokens end.

`metasync auth PROVIDER` links an account; a backend opens its login and asks it for a token before each request.

A renewal is made by one thread of one process at a time, under a lock on the login's file; whoever waited takes what it
got. The new tokens are on the disk before anybody uses them. Box takes a refresh token once, so that an answer that
nobody wrote down costs the login. Four things keep that rare: the lock, a renewal long before the old token ends, no
process that ends in the middle of one of its own accord, and the note `renewing_at` that is written first, which tells
afterwards what happened.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from metasync.backends._shared.logins import oauth
from metasync.backends._shared.logins.kept import Grant, Place, place_of
from metasync.errors import BackendError, RefusedError, UnreachableError
from metasync.runtime.threads import await_unbroken, unbroken

_LATE_S: Final = 20.0  # a token that has less left is not shown: a request takes its time, and clocks differ
_AGAIN_S: Final = 5.0  # after a renewal that failed: until then the failure is told again, and nobody is asked

_LAST_S: Final = 10.0  # for a renewal under way, when the process ends

_open: dict[Path, Login] = {}  # one for all backends of a process
_open_lock = threading.Lock()
atexit.register(await_unbroken, _LAST_S)  # a program that uses the library; a command ends by `interrupt.end`


class Login:
    """One linked account's login, for several threads. `open_login` makes it."""

    def __init__(self, place: Place) -> None:
        self.provider = place.provider.name
        self.account = place.account
        self._place = place
        self._lock = threading.Lock()
        self._beside = threading.Lock()  # taken by the thread that renews in the background
        self._grant = self._checked(place.read())
        self._unsaved = False
        self._failure: tuple[float, str, BackendError] | None = None  # until when; of which token; what

    def __repr__(self) -> str:
        return f"Login({self.provider}, {self.account})"

    @property
    def step(self) -> str:
        """What mends it: the command, for people."""
        return self._place.step

    @property
    def mark(self) -> str:
        """Another one after the account was linked anew, which may be another account then."""
        return f"{self._grant.linked_at:.6f}"

    def token(self) -> str:
        """A live access token. One that is about to end is renewed in the background, and given out meanwhile.

        `RefusedError`: the login ended or was revoked. `UnreachableError`: it cannot be renewed now.
        """
        grant, now = self._grant, time.time()
        if now >= grant.ends_at - _late_s(grant) or grant.ends_at - now > oauth.LIFE_S_MAX:
            return self._renewed(None)
        if now >= grant.renew_at and not self._has_failed() and self._beside.acquire(blocking=False):
            threading.Thread(target=self._renew_beside, name=f"metasync-login-{self.provider}", daemon=True).start()
        return grant.access

    def renewed(self, refused: str) -> str:
        """Another token than `refused`, which a server answered with 401. Errors as of `token`."""
        return self._renewed(refused)

    def _renew_beside(self) -> None:
        with contextlib.suppress(BackendError):  # the old token holds, and whoever needs another hears why
            try:
                self._renewed(None, early=True)
            finally:
                self._beside.release()

    def _renewed(self, refused: str | None, *, early: bool = False) -> str:
        with self._lock:
            if _is_good(self._grant, refused, early=early):
                return self._grant.access
            if (failed := self._has_failed()) is not None:
                raise type(failed)(failed.message, next_step=failed.next_step)
            try:
                with unbroken(), self._place.locked():
                    self._grant = self._of_disk_or_provider(refused, early=early)
            except BackendError as error:
                self._failure = time.monotonic() + _AGAIN_S, self._grant.access, error
                raise
            except OSError as error:
                raise UnreachableError(
                    f"the login to {self._place.provider.title} cannot be kept in {self._place.path.parent}:"
                    f" {error.strerror}",
                    next_step="Free some space, or make the folder writable.",
                ) from error
            self._failure = None
            return self._grant.access

    def _has_failed(self) -> BackendError | None:
        """Why the token could not be renewed a moment ago."""
        if self._failure is None or self._failure[1] != self._grant.access or time.monotonic() >= self._failure[0]:
            return None
        return self._failure[2]

    def _of_disk_or_provider(self, refused: str | None, *, early: bool) -> Grant:
        """A good login: another process's, or a new one. The caller holds the locks."""
        if self._unsaved:
            self._place.write(self._grant)
            self._unsaved = False
        kept = self._checked(self._place.read())
        if _is_good(kept, refused, early=early):
            return kept
        provider = self._place.provider
        if provider.single_use:
            self._place.write(replace(kept, renewing_at=time.time()))  # which also shows that there is room to write
        try:
            grant = kept.renewed(self._asked(kept))
        except RefusedError as error:
            if provider.single_use:
                self._place.write(kept)  # there was an answer: nothing broke off
            raise self._place.named(error) from None
        try:
            self._place.write(grant)
        except OSError:
            self._grant, self._unsaved = grant, True  # this process has it, and writes it down as soon as it can
            raise
        return grant

    def _asked(self, kept: Grant) -> oauth.Tokens:
        """New tokens, by the refresh token or else by the one before it."""
        provider = self._place.provider
        try:
            return oauth.renewed(provider, kept.client, kept.refresh)
        except oauth.EndedError as ended:
            if kept.previous:
                with contextlib.suppress(oauth.EndedError):
                    return oauth.renewed(provider, kept.client, kept.previous)
            raise self._ended(kept, ended) from None

    def _ended(self, kept: Grant, ended: oauth.EndedError) -> RefusedError:
        if not kept.renewing_at:
            return self._place.refused(ended.message)
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(kept.renewing_at))
        title = self._place.provider.title
        return self._place.refused(
            f"the login to {title} is lost: its renewal on {at} broke off, and {title} gives each answer once"
        )

    def _checked(self, grant: Grant) -> Grant:
        """A login is shown to the server that gave it, and to no other."""
        here = oauth.endpoint_of(self.provider)
        if grant.endpoint != here:
            raise RefusedError(
                f"the login to {self._place.provider.title} was given by {grant.endpoint or 'the provider itself'}, and"
                f" METASYNC_{self.provider.upper()}_ENDPOINT names another server",
                next_step=self._place.step,
            )
        return grant


def open_login(provider: str, account: str | None) -> Login:
    """The login of a linked account, by its label; without one that of `default`, else of the only account. Asks nobody
    on the network.

    `RefusedError` where none is linked, or several are and no label says which.
    """
    place = place_of(provider, account)
    with _open_lock:
        login = _open.get(place.path)
        if login is None:
            login = _open[place.path] = Login(place)
        return login


def forget_open() -> None:
    """Has the next `open_login` read anew what is kept: after an account was linked or unlinked."""
    with _open_lock:
        _open.clear()


def _late_s(grant: Grant) -> float:
    return min(_LATE_S, (grant.ends_at - grant.renew_at) / 2)


def _is_good(grant: Grant, refused: str | None, *, early: bool) -> bool:
    """Whether a token serves: it was not refused, and lives long enough."""
    now = time.time()
    ends_at = grant.renew_at if early else grant.ends_at - _late_s(grant)
    return grant.access != refused and now < ends_at and grant.ends_at - now <= oauth.LIFE_S_MAX
