"""MetaSync: a folder versioned, encrypted and in step on all your devices, over providers nobody has to trust.

The library's face is `Workspace`; its errors are in `metasync.errors`, its events in `metasync.events`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metasync.workspace import Workspace as Workspace

__version__ = "0.1.0"
__all__ = ["Workspace", "__version__"]


def __getattr__(name: str) -> Any:
    """Loads `Workspace` when it is asked for: importing the package alone costs next to nothing."""
    if name == "Workspace":
        from metasync.workspace import Workspace

        return Workspace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
