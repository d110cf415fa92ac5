"""What `auth` reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Account:
    """A linked account. `account`: its label. `kept`: the file of its login, or the system's keyring, as a phrase.

    `since_ns`: when it was linked, in nanoseconds since 1970; 0: the login cannot be read. `problem`: why not, or "".
    """

    provider: str
    account: str
    kept: str
    since_ns: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AuthReport:
    """The accounts that were asked for: the one that was linked or unlinked, or all that are linked.

    `revoked`: whether the provider was told that a login is not used any more; None: none was unlinked.
    """

    accounts: tuple[Account, ...]
    revoked: bool | None = None
