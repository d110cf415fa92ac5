"""paramiko, without the half of its import time (50 of 110 ms) that only `Match exec` in ~/.ssh/config needs.

That half is its own import of `invoke`, which it can do without: `with_match_exec` brings it where a configuration
has such a line.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_SPARED = "invoke"


def _load() -> Any:
    if "paramiko" in sys.modules or _SPARED in sys.modules:
        return importlib.import_module("paramiko")
    sys.modules[_SPARED] = None  # type: ignore[assignment]  # "it is not installed"
    try:
        return importlib.import_module("paramiko")
    finally:
        del sys.modules[_SPARED]


paramiko: Any = _load()


def with_match_exec() -> None:
    """From here on `SSHConfig` can carry out `Match exec`, where `invoke` is installed."""
    config = importlib.import_module("paramiko.config")
    if getattr(config, _SPARED, None) is None:
        setattr(config, _SPARED, importlib.import_module(_SPARED))
