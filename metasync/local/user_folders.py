"""Folders of this user outside of any workspace: what is remembered between runs, and where the daemon listens."""

from __future__ import annotations

import os
from typing import Final

_NAME: Final = "metasync"


def state_folder(part: str) -> str:
    """`metasync/<part>` in $XDG_STATE_HOME or ~/.local/state; "" for a user without a home. It need not be there."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, _NAME, part) if os.path.isabs(base) else ""


def run_folder() -> str:
    """`metasync` in $XDG_RUNTIME_DIR; without one in /run/user/<id>, which login sessions have and cron's jobs do not
    name; else below the state folder. "" where there is none. It need not be there.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(base):
        return os.path.join(base, _NAME)
    base = f"/run/user/{os.getuid()}"
    try:
        if os.stat(base).st_uid == os.getuid():
            return os.path.join(base, _NAME)
    except OSError:
        pass
    return state_folder("run")
