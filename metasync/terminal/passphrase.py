"""Where the command line gets a passphrase from: the environment, a file, a command, or a prompt; never an argument."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from metasync.errors import UsageError
from metasync.terminal import prompt

PASSPHRASE_COMMAND_TIMEOUT_S = 60


def passphrase(*, confirm: bool = False) -> str:
    """From the environment or a prompt; never from an argument (`METASYNC_PASSPHRASE`, `_FILE`, `_COMMAND`)."""
    return _passphrase("METASYNC_PASSPHRASE", "Passphrase", confirm=confirm)


def new_passphrase() -> str:
    """The one that is to be in place of the old: the same with `METASYNC_NEW_PASSPHRASE`, and asked for twice."""
    return _passphrase("METASYNC_NEW_PASSPHRASE", "New passphrase", confirm=True)


def _passphrase(variable: str, what: str, *, confirm: bool) -> str:
    env = os.environ
    if value := env.get(variable):
        return value
    if path := env.get(f"{variable}_FILE"):
        try:
            return _given(Path(path).read_bytes(), f"{variable}_FILE ({path})")
        except OSError as e:
            raise UsageError(
                f"{variable}_FILE names {path}, which cannot be read: {e.strerror}",
                next_step="Check the path and who may read it.",
            ) from e
    if command := env.get(f"{variable}_COMMAND"):
        try:
            done = subprocess.run(  # noqa: S602 - the user's own command, as in restic and borg
                command, shell=True, capture_output=True, check=False, timeout=PASSPHRASE_COMMAND_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as e:
            raise UsageError(
                f"{variable}_COMMAND gave no passphrase within {PASSPHRASE_COMMAND_TIMEOUT_S} s",
                next_step="Run it by hand to see what it waits for.",
            ) from e
        if done.returncode:
            raise UsageError(f"{variable}_COMMAND ended with {done.returncode}", next_step="Run it by hand to see why.")
        return _given(done.stdout, f"{variable}_COMMAND")
    if not prompt.somebody():
        raise UsageError(
            f"no {what.lower()}: there is no terminal to ask on",
            next_step=f"Set {variable}_FILE (or {variable}, or {variable}_COMMAND).",
        )
    return prompt.secret(what, twice=confirm)


def _given(data: bytes, source: str) -> str:
    """A passphrase from a file or a command, without the end of its line."""
    try:
        text = data.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as e:
        raise UsageError(f"{source} gives a passphrase that is not UTF-8", next_step="Save it as UTF-8.") from e
    if not text.strip():
        raise UsageError(f"{source} gives an empty passphrase", next_step="Put the passphrase there.")
    return text
