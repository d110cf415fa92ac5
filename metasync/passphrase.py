"""Where the command line gets a passphrase from: the environment, a file, a command, or a prompt; never an argument."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from metasync.errors import UsageError

PASSPHRASE_COMMAND_TIMEOUT_S = 60


def passphrase(*, confirm: bool = False) -> str:
    """From the environment or a prompt; never from an argument (`METASYNC_PASSPHRASE`, `_FILE`, `_COMMAND`)."""
    env = os.environ
    if value := env.get("METASYNC_PASSPHRASE"):
        return value
    if path := env.get("METASYNC_PASSPHRASE_FILE"):
        try:
            return _given(Path(path).read_bytes(), f"METASYNC_PASSPHRASE_FILE ({path})")
        except OSError as e:
            raise UsageError(
                f"METASYNC_PASSPHRASE_FILE names {path}, which cannot be read: {e.strerror}",
                next_step="Check the path and who may read it.",
            ) from e
    if command := env.get("METASYNC_PASSPHRASE_COMMAND"):
        try:
            done = subprocess.run(  # noqa: S602 - the user's own command, as in restic and borg
                command, shell=True, capture_output=True, check=False, timeout=PASSPHRASE_COMMAND_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as e:
            raise UsageError(
                f"METASYNC_PASSPHRASE_COMMAND gave no passphrase within {PASSPHRASE_COMMAND_TIMEOUT_S} s",
                next_step="Run it by hand to see what it waits for.",
            ) from e
        if done.returncode:
            raise UsageError(
                f"METASYNC_PASSPHRASE_COMMAND ended with {done.returncode}", next_step="Run it by hand to see why."
            )
        return _given(done.stdout, "METASYNC_PASSPHRASE_COMMAND")
    if not sys.stdin.isatty():
        raise UsageError(
            "no passphrase: there is no terminal to ask on",
            next_step="Set METASYNC_PASSPHRASE_FILE (or METASYNC_PASSPHRASE, or METASYNC_PASSPHRASE_COMMAND).",
        )
    return str(click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True))


def _given(data: bytes, source: str) -> str:
    """A passphrase from a file or a command, without the end of its line."""
    try:
        text = data.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as e:
        raise UsageError(f"{source} gives a passphrase that is not UTF-8", next_step="Save it as UTF-8.") from e
    if not text.strip():
        raise UsageError(f"{source} gives an empty passphrase", next_step="Put the passphrase there.")
    return text
