"""Runs a merge program on the two sides of a conflict, by the convention of `git mergetool`.

The command line is given to the shell, with the paths of four files in its environment: LOCAL (this device's side),
REMOTE (the other's), BASE (what both were changed from; empty if nothing was) and MERGED, which it is to write. They
are copies in a temporary folder: nothing in the workspace changes until it has ended with success.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from metasync.errors import UsageError

TOOLS: Final = {
    "code": 'code --wait --merge "$REMOTE" "$LOCAL" "$BASE" "$MERGED"',
    "kdiff3": 'kdiff3 --auto "$BASE" "$LOCAL" "$REMOTE" -o "$MERGED"',
    "meld": 'meld "$LOCAL" "$BASE" "$REMOTE" --output "$MERGED"',
    "opendiff": 'opendiff "$LOCAL" "$REMOTE" -ancestor "$BASE" -merge "$MERGED" | cat',
    "vimdiff": 'vim -d "$LOCAL" "$MERGED" "$REMOTE" -c "wincmd l"',
}
_NAME = re.compile(r"[\w.-]+")
_UNSAFE = re.compile(r"[^\w. -]")


def command_of(tool: str) -> str:
    """The command line of a tool: of git's config, or one that is known here; or the words themselves. `UsageError`."""
    if not _NAME.fullmatch(tool):
        return tool
    told = _shell(f"git config --get mergetool.{tool}.cmd", capture_output=True)
    command = told.stdout.decode(errors="surrogateescape").strip() or TOOLS.get(tool)
    if command is None:
        raise UsageError(
            f"{tool} is no merge tool that is known here",
            next_step=f"Known are {', '.join(sorted(TOOLS))}; git's config may have others (mergetool.{tool}.cmd); or "
            "give a command with $LOCAL, $REMOTE, $BASE and $MERGED.",
        )
    return command


def run(tool: str, path: bytes, *, local: bytes, remote: bytes, base: bytes, merged: bytes) -> bytes | None:
    """Runs a tool on these contents of the file at `path`; what it made of `merged`, or None where it failed."""
    command = command_of(tool)
    name = Path(_UNSAFE.sub("_", os.fsdecode(path).rpartition("/")[2]))
    with tempfile.TemporaryDirectory(prefix="metasync-merge-") as folder:
        files = {"LOCAL": local, "REMOTE": remote, "BASE": base, "MERGED": merged}
        places = {word: Path(folder) / f"{name.stem[:100]}_{word}{name.suffix[:100]}" for word in files}
        for word, data in files.items():
            places[word].write_bytes(data)
        done = _shell(command, env={**os.environ, **{word: str(place) for word, place in places.items()}}, cwd=folder)
        return places["MERGED"].read_bytes() if done.returncode == 0 else None


def _shell(command: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, shell=True, check=False, **options)  # noqa: S602 - the user's own command, as in git
