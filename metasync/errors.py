"""Every error MetaSync raises, as one tree.

    MetaSyncError                  exit  whose fault, what next
    ├── UsageError                    2  the caller's: the message names the right form
    ├── PassphraseError               6  wrong passphrase or key
    │   ├── WeakeningError            6  what was asked weakens the workspace, which takes the passphrase
    │   └── ExcludedError             6  this device is not among those that may read and write now
    │       └── RevokedError          6  it was revoked
    ├── NoQuorumError                 5  too few backends answered, or the outcome is unknown: run again
    ├── DamagedError                  7  data that no reachable backend holds intact
    │   └── UnreadableError           7  a version that cannot be read: which, and whose, stands in the message
    ├── ForkError                     1  a backend shows a history that contradicts what this device saw
    ├── UpgradeError                  1  written by a newer MetaSync
    ├── CancelledError              130  the caller's own `cancel` or `close`: run again, it goes on where it was
    ├── WorkspaceError                1  this folder, its lock, its local state
    │   ├── GuardError                1  most of the files would be deleted: nothing was changed; force it, or look
    │   └── PausedError               1  the user paused all transfers: nothing was begun
    ├── FormatError                   -  bytes that are not what they claim (caught and turned into one of the others)
    └── BackendError                  -  one backend, one call
        ├── NotFoundError             -  the object is not there
        ├── UnreachableError          -  network, mount, credentials: the backend as a whole
        │   └── HeldBackError         -  it was not even asked: it wants fewer requests
        ├── FullError                 -  no space or quota left
        └── RefusedError              -  the backend refused the call for a reason of its own (rights, size, name)
            └── OtherSizeError        -  what it has is longer than what belongs there

A `BackendError` says whether trying again can help (`retryable`). Messages name what was attempted, on what, why it
failed and what to do next; they never hold a secret.
"""

from __future__ import annotations

import errno
from typing import Final

NO_WAY: Final = "this device has no way to it"
"""Why a backend is done without: it is not linked here."""
CHECK_PATH: Final = "Check the path, its rights and its disk, then run again; nothing that was pushed is lost."


def step_after(cause: OSError, otherwise: str) -> str:
    """What to do about what the operating system refused: `otherwise`, where its error number tells nothing better."""
    if cause.errno in (errno.EMFILE, errno.ENFILE):
        return "Too few files may be open at once. Raise that limit (ulimit -n 4096), then run again; nothing is lost."
    return otherwise


class MetaSyncError(Exception):
    """Base of all. `exit_code` is what the command line returns; `next_step` a sentence for the user."""

    exit_code = 1
    version: int | None = None
    """The version that cannot be read, where one is named as the cause."""

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.message}\n{self.next_step}" if self.next_step else self.message


class UsageError(MetaSyncError):
    """The call itself was wrong."""

    exit_code = 2


class PassphraseError(MetaSyncError):
    """No key slot opens with what was given."""

    exit_code = 6


class WeakeningError(PassphraseError):
    """What was asked weakens what the workspace's policy promises. With the passphrase it can be done."""


class ExcludedError(PassphraseError):
    """The workspace's keys or devices were changed, and this device is not among those they are for now."""


class RevokedError(ExcludedError):
    """This device was revoked."""


class NoQuorumError(MetaSyncError):
    """Fewer backends than a quorum answered in time, or whether a commit took place is unknown."""

    exit_code = 5


class DamagedError(MetaSyncError):
    """No reachable backend holds an intact copy. `objects`: ids of those that are lost, as far as they are known."""

    exit_code = 7
    objects: tuple[bytes, ...] = ()


class UnreadableError(DamagedError):
    """A version cannot be read: something of it is lost, or is not what it claims. `metasync skip` passes over it."""


class ForkError(MetaSyncError):
    """What backends show contradicts what this device has seen decided."""


class UpgradeError(MetaSyncError):
    """A format newer than this program knows."""


class CancelledError(MetaSyncError):
    """The operation was ended by `Workspace.cancel` or `close`. As after a kill: what was begun is gone on with."""

    exit_code = 130


class WorkspaceError(MetaSyncError):
    """The folder, its lock or its local state."""


class GuardError(WorkspaceError):
    """Stopped before anything was changed: `deleted` of `files` files would go. `force` does it all the same."""

    def __init__(self, message: str, *, next_step: str = "", deleted: int = 0, files: int = 0) -> None:
        super().__init__(message, next_step=next_step)
        self.deleted = deleted
        self.files = files


class PausedError(WorkspaceError):
    """The user has transfers rest on this device: nothing was begun."""


class FormatError(MetaSyncError):
    """Bytes that do not decode. Decoders raise this and nothing else.

    `is_too_large`: a tree that this device has no memory for, or that is too deep, though every part may be sound.
    """

    is_too_large = False


class BackendError(MetaSyncError):
    """One call on one backend failed. `retryable`: the same call may succeed later.

    `retry_after_s`: not before so many seconds, where the server asked for it.
    """

    def __init__(
        self, message: str, *, next_step: str = "", retryable: bool = True, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, next_step=next_step)
        self.retryable = retryable
        self.retry_after_s = retry_after_s

    def on(self, backend: str) -> BackendError:
        """The same error, saying on which backend."""
        out = type(self)(f"{backend}: {self.message}")
        out.next_step = self.next_step
        return out


class NotFoundError(BackendError):
    """The object does not exist on this backend."""

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message, next_step=next_step, retryable=False)


class UnreachableError(BackendError):
    """The backend as a whole does not answer, or its root is gone."""


class HeldBackError(UnreachableError):
    """The call was not made, because this account asked for fewer requests: not before `retry_after_s`.

    A provider never raises it; it raises a `BackendError` with the server's own `retry_after_s`.
    """


class FullError(BackendError):
    """No space or quota left on this backend."""

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message, next_step=next_step, retryable=False)


class RefusedError(BackendError):
    """The backend refused the call: rights, size, name."""

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message, next_step=next_step, retryable=False)


class OtherSizeError(RefusedError):
    """A copy was not read whole, for it has more bytes than it should. A provider never raises it."""


CANNOT_BE_READ = (DamagedError, FormatError, UpgradeError)
"""What reading raises where no backend could help by being back."""
