"""A clone from its beginning to its end: a new folder becomes a device, then the newest version is brought.

What brings it is loaded while the passphrase is stretched (`clone_passphrase`): so this module loads nothing of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

from metasync.errors import ExcludedError
from metasync.reports.start import CloneReport

JOINS_MAX: Final = 3  # times that a clone begins anew because the keys were changed meanwhile


class Joined(Protocol):
    """A workspace that is open on a new folder."""

    def configure(self, key: str, value: str | None) -> object: ...
    def close(self) -> None: ...


J = TypeVar("J", bound=Joined)


def clone(
    begin: Callable[[bool], J], bring: Callable[[J], CloneReport[J]], settings: Mapping[str, str],
    may_again: Callable[[], bool],
) -> CloneReport[J]:  # fmt: skip
    """Makes a new folder a device by `begin`, with these settings, and brings the newest version by `bring`.

    Where the keys were changed between the two, `begin` is told True and begins anew, if `may_again`.
    """
    for turn in range(JOINS_MAX):
        workspace = begin(turn > 0)
        try:
            for key, value in settings.items():
                workspace.configure(key, value)
            return bring(workspace)
        except BaseException as e:
            workspace.close()
            if not (isinstance(e, ExcludedError) and may_again() and turn < JOINS_MAX - 1):
                raise
    raise AssertionError
