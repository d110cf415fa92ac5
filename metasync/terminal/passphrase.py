"""Where the command line gets a passphrase from: the environment, a file, a command, or a prompt; never an argument.

Whoever stores a workspace can try passphrases without being seen, for as long as they like. So a new one is judged by
how soon it is guessed, and seven words are offered in its place: 77 bits, where a fast farm guesses 50 in a century.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from metasync.errors import ExcludedError, PassphraseError, UsageError, WeakeningError
from metasync.terminal import prompt
from metasync.terminal.text.phrases import sentence

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

PASSPHRASE_COMMAND_TIMEOUT_S: Final = 60
TRIES: Final = 3  # at a passphrase that is typed
WORDS: Final = 7  # of 2,048: 77 bits
GUESSES_LEAST: Final = 1e10  # zxcvbn's highest score begins there: twelve days at TRIED_A_SECOND
TRIED_A_SECOND: Final = "offline_slow_hashing_1e4_per_second"  # zxcvbn's name for a farm against a slow hash
JUDGED_CHARS_MAX: Final = 72  # zxcvbn takes time by the square of the length

_OLD, _NEW = ("METASYNC_PASSPHRASE", "Passphrase"), ("METASYNC_NEW_PASSPHRASE", "New passphrase")


def anyway_option(f: F) -> F:
    """Adds `--passphrase-anyway` to a command that sets a passphrase."""
    return click.option("--passphrase-anyway", "anyway", is_flag=True, help="Take a passphrase that is easy to guess.")(
        f
    )


def first_passphrase(*, anyway: bool, about: Sequence[str] = ()) -> str:
    """The passphrase of a new workspace. `about`: words that are guessed first, such as its name."""
    return _chosen(*_OLD, anyway=anyway, about=about)


def new_passphrase(*, anyway: bool) -> str:
    """The one that is to be in place of the old: `METASYNC_NEW_PASSPHRASE`, or asked for."""
    return _chosen(*_NEW, anyway=anyway)


def tried(use: Callable[[str], T]) -> T:
    """Calls `use` with the passphrase. A wrong one that was typed may be typed again, three times in all."""
    given = _given(*_OLD)
    if given is not None:
        return use(given)
    for left in reversed(range(TRIES)):
        typed = prompt.secret(_OLD[1])
        try:
            return use(typed)
        except ExcludedError:
            raise
        except PassphraseError as e:
            if not left:
                raise
            why = misread(typed) or sentence(e.message)
            prompt.tell(f"{why.rstrip('.')}. {'Two more tries.' if left > 1 else 'One more try.'}")
    raise AssertionError


def if_needed(use: Callable[[str | None], T]) -> T:
    """Calls `use` without a passphrase; with it, where what it does turns out to weaken the workspace."""
    try:
        return use(None)
    except WeakeningError as e:
        if prompt.somebody():
            prompt.tell(sentence(e.message))
    return tried(use)


def checked(check: Callable[[str], object]) -> str:
    """The passphrase, with which the command goes on. One that is typed is checked before more is asked."""
    given = _given(*_OLD)

    def once(typed: str) -> str:
        check(typed)
        return typed

    return given if given is not None else tried(once)


def misread(typed: str) -> str:
    """Which word of a recovery phrase is misspelt, and what it may be; "" if none is. For a screen, not for a log."""
    from metasync.keys.slots import phrase_fault

    fault = phrase_fault(typed)
    if fault is None:
        return ""
    if not fault.place:
        return sentence(fault.message)
    near = " or ".join(f'"{word}"' for word in fault.near)
    meant = f" Did you mean {near}?" if near else ""
    return f'Word {fault.place}, "{fault.word}", is no word of a recovery phrase.{meant}'


def weakness(passphrase: str, about: Sequence[str] = ()) -> str:
    """Why a passphrase is easy to guess, as a sentence; "" if it is not."""
    from zxcvbn import zxcvbn  # 30 ms, where a passphrase is chosen

    told = zxcvbn(passphrase[:JUDGED_CHARS_MAX], user_inputs=[*about, "metasync"])
    if told["guesses"] >= GUESSES_LEAST:
        return ""
    why = str(told["feedback"]["warning"]).rstrip(".")
    time = told["crack_times_display"][TRIED_A_SECOND]
    return f"it is guessed in {time} at 10,000 tries a second" + (f". {why}" if why else "")


def seven_words() -> str:
    """A passphrase that nobody guesses, of words from the list of recovery phrases."""
    import secrets

    from metasync.keys.slots import word_list

    words = word_list()
    return " ".join(secrets.choice(words) for _ in range(WORDS))


def _chosen(variable: str, what: str, *, anyway: bool, about: Sequence[str] = ()) -> str:
    given = _given(variable, what)
    if given is not None:
        if not anyway and (why := weakness(given, about)):
            raise UsageError(
                f"the {what.lower()} is weak: {why}",
                next_step="Take four words or more that do not belong together, or give --passphrase-anyway.",
            )
        return given
    while True:
        typed = prompt.secret(f"{what} (Enter: seven words are made for you)", empty=True)
        if not typed:
            return _offered()
        why = "" if anyway else weakness(typed, about)
        if why and not prompt.confirmed(f"That is weak: {why}. Take it all the same?"):
            continue
        if typed == prompt.secret("Repeat it", empty=True):
            return typed
        prompt.tell("The two are not the same.")


def _offered() -> str:
    words = seven_words()
    prompt.tell("", f"  {words}", "", "Write these words down: every other device asks for them.")
    prompt.line("Press Enter when you have them", empty=True)
    return words


def _given(variable: str, what: str) -> str | None:
    """What the environment says; None where somebody is to be asked."""
    env = os.environ
    if value := env.get(variable):
        return value
    if path := env.get(f"{variable}_FILE"):
        try:
            return _decoded(Path(path).read_bytes(), f"{variable}_FILE ({path})")
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
        return _decoded(done.stdout, f"{variable}_COMMAND")
    if not prompt.somebody():
        raise UsageError(
            f"no {what.lower()}: there is no terminal to ask on",
            next_step=f"Set {variable}_FILE (or {variable}, or {variable}_COMMAND).",
        )
    return None


def _decoded(data: bytes, source: str) -> str:
    """A passphrase from a file or a command, without the end of its line."""
    try:
        text = data.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as e:
        raise UsageError(f"{source} gives a passphrase that is not UTF-8", next_step="Save it as UTF-8.") from e
    if not text.strip():
        raise UsageError(f"{source} gives an empty passphrase", next_step="Put the passphrase there.")
    return text
