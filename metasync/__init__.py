"""MetaSync: a folder versioned, encrypted and in step on all your devices, over providers nobody has to trust."""

from __future__ import annotations

__version__ = "0.1.0"
