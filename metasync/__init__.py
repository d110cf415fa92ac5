"""MetaSync: a folder versioned, encrypted and in step on all your devices, over providers nobody has to trust.

The library's face is `Workspace`. Its errors are in `metasync.errors`, its events in `metasync.events`, and what its
methods return in `metasync.reports`: all are there after `import metasync`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metasync import errors as errors
    from metasync import events as events
    from metasync import reports as reports
    from metasync.workspace import Workspace as Workspace

__version__ = "0.1.0"
__all__ = ["Workspace", "__version__", "errors", "events", "reports"]


def __getattr__(name: str) -> Any:
    """Loads what is asked for: importing the package alone costs next to nothing."""
    from importlib import import_module

    if name == "Workspace":
        return import_module("metasync.workspace").Workspace
    if name in __all__:
        return import_module(f"metasync.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
