"""What users know of each other's backends and devices, beside what their own device tells them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from metasync.workspace import Workspace

if TYPE_CHECKING:
    from simulation.client import Client


class Agreed:
    """What a user knows who changes backends or devices; the simulation puts its own in the place of this.

    `forks`: backends do more than this mode of agreement bears.
    """

    forks = False

    def is_excluded(self, client: Client, revoked: bool) -> bool:
        """Whether a device was revoked; if not, whether the keys changed before it was agreed."""
        return False

    def spare(self, number: int) -> str | None:
        """The name of a store that takes no part."""
        return None

    def may_leave(self, name: str) -> bool:
        """Whether a backend may be taken out, or out of the vote, within the budget of faults."""
        return False

    def changing(self, by: int) -> None:
        """A change of the backends begins (1), or has ended (-1)."""

    def left(self, name: str) -> None:
        """A backend was removed."""

    def device(self, number: int) -> bytes:
        """The id of a device."""
        return bytes(16)

    def revoking(self, client: str) -> None:
        """A device's revocation begins."""

    def shut_out(self, device_id: bytes, version: int) -> None:
        """A device's revocation is complete."""

    def insider(self) -> bytes | None:
        """The id of the device that keeps no rule, while it is not revoked."""
        return None

    def lost(self, w: Workspace) -> list[str]:
        """The agreed backends that are lost for good."""
        return []

    def unreadable(self) -> int | None:
        """The first of the newest versions that nobody can read; None if the newest can be read."""
        return None

    def ender(self) -> bytes | None:
        """The id of a device that ended a version, while it is not revoked."""
        return None

    def may_stop(self) -> bool:
        """Whether a device may have written a second value in another's round, and a backend be away that tells."""
        return False

    def floors(self) -> Collection[int]:
        """The versions below which logs may be deleted by now."""
        return ()

    def store_of(self, w: Workspace, name: str) -> str | None:
        """The store that an agreed backend is."""
        return None
