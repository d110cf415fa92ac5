"""The daemon as a service of the user's session: a systemd user unit on Linux, a launchd agent on macOS.

The unit runs this very Python; a program that was moved has to be installed anew. `environment` goes into it, so that
the daemon finds what the shell had: where its state is, which keyring. No secret belongs there.
"""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metasync.errors import WorkspaceError

UNIT: Final = "metasync.service"
LABEL: Final = "org.metasync.daemon"
CALL_S: Final = 30.0
CARRIED: Final = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "METASYNC_KEYRING", "METASYNC_BROKER_PASSWORD_FILE")
"""Variables that the unit gets as they are set now."""


@dataclass(frozen=True, slots=True)
class Installed:
    """What was installed, or taken away: the file, what runs it, whether it runs now."""

    path: str
    by: str
    is_running: bool


def command() -> list[str]:
    """What runs the daemon in the foreground."""
    return [sys.executable, "-m", "metasync", "daemon", "run", "--quiet"]


def unit(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """The text of the systemd unit."""
    lines = [
        "[Unit]",
        "Description=MetaSync keeps folders in step",
        "Documentation=man:metasync-daemon(1)",
        "",
        "[Service]",
        "ExecStart=" + " ".join(_quoted(word) for word in argv),
        *(f"Environment={_quoted(f'{key}={value}')}" for key, value in sorted(environment.items())),
        "Restart=on-failure",
        "RestartSec=5",
        "TimeoutStopSec=10",
        "UMask=0077",
        "NoNewPrivileges=yes",
        "Nice=5",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def _quoted(word: str) -> str:
    """A word of a unit file (systemd.syntax(7)): quoted, and nothing in it expanded."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$").replace("\n", "\\n")
    return f'"{plain}"' if plain != word or not word or any(c in " \t;'#" for c in word) else word


def agent(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> bytes:
    """The launchd agent. What it prints besides its log goes to `log`."""
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": list(argv),
            "EnvironmentVariables": dict(environment),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ProcessType": "Background",
            "Umask": 0o077,
            "StandardErrorPath": str(log),
        }
    )


def unit_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    top = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    return top / "systemd" / "user" / UNIT


def agent_path() -> Path:
    return Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"


def check() -> None:
    """`WorkspaceError` where neither systemd nor launchd is to be had."""
    if sys.platform != "darwin":
        _need_systemd()


def install(log: Path) -> Installed:
    """Writes the file and starts the service, now and with each login. `WorkspaceError` where neither is to be had."""
    check()
    environment = {key: os.environ[key] for key in CARRIED if os.environ.get(key)}
    if sys.platform == "darwin":
        path = agent_path()
        _write(path, agent(command(), environment, log))
        _run("launchctl", "bootout", f"gui/{os.getuid()}/{LABEL}", may_fail=True)
        _run("launchctl", "bootstrap", f"gui/{os.getuid()}", str(path))
        return Installed(str(path), "launchd", is_running=True)
    path = unit_path()
    _write(path, unit(command(), environment).encode("utf-8", "surrogateescape"))
    _run("systemctl", "--user", "daemon-reload")
    _run("systemctl", "--user", "enable", UNIT)
    _run("systemctl", "--user", "restart", UNIT)
    return Installed(str(path), "systemd", is_running=True)


def uninstall() -> Installed | None:
    """Stops the service and takes its file away; None where it was not installed."""
    if sys.platform == "darwin":
        path, by = agent_path(), "launchd"
        if path.exists():
            _run("launchctl", "bootout", f"gui/{os.getuid()}/{LABEL}", may_fail=True)
    else:
        path, by = unit_path(), "systemd"
        if path.exists():
            _run("systemctl", "--user", "disable", "--now", UNIT, may_fail=True)
    if not path.exists():
        return None
    path.unlink()
    if by == "systemd":
        _run("systemctl", "--user", "daemon-reload", may_fail=True)
    return Installed(str(path), by, is_running=False)


def is_installed() -> bool:
    return (agent_path() if sys.platform == "darwin" else unit_path()).exists()


def start() -> None:
    """Starts the service that is installed. `WorkspaceError` if its system refuses."""
    if sys.platform == "darwin":
        _run("launchctl", "kickstart", f"gui/{os.getuid()}/{LABEL}")
    else:
        _run("systemctl", "--user", "start", UNIT)


def stop() -> None:
    """Stops it, so that it is not started again at once."""
    if sys.platform != "darwin":
        _run("systemctl", "--user", "stop", UNIT, may_fail=True)


def _need_systemd() -> None:
    by_hand = "Have your system run `metasync daemon run` when you log in, or start it by hand: metasync daemon start."
    if shutil.which("systemctl") is None:
        raise WorkspaceError("there is no systemd here to install the daemon for", next_step=by_hand)
    asked = subprocess.run(
        ["systemctl", "--user", "show", "--property=Version"],  # noqa: S607 - as the user's own shell finds it
        capture_output=True, timeout=CALL_S, check=False,
    )  # fmt: skip
    if asked.returncode != 0:
        raise WorkspaceError(
            "systemd does not answer for this user: there is no session of yours",
            next_step=f"Log in directly (not by su), or run: loginctl enable-linger. {by_hand}",
        )


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.new")
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as e:
        raise WorkspaceError(f"{path} cannot be written: {e.strerror or e}", next_step="Check its rights.") from e


def _run(*argv: str, may_fail: bool = False) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, timeout=CALL_S, check=False)  # noqa: S603 - words of this module
    except (OSError, subprocess.TimeoutExpired) as e:
        raise WorkspaceError(f"{shlex.join(argv)} failed: {type(e).__name__}") from e
    if done.returncode != 0 and not may_fail:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise WorkspaceError(
            f"{shlex.join(argv)} failed: {said[-1][:200] if said else f'it ended with {done.returncode}'}",
            next_step="Run it by hand to see more.",
        )
