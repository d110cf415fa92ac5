"""The ways to tell a user: the desktop, a web hook, a command. Each is tried for a bounded time, and holds no secret.

A name of a file in a notice is somebody else's: it is escaped where there is markup, and never part of a command.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, Final, Protocol

from metasync.errors import MetaSyncError
from metasync.runtime.daemon_keys import COMMAND, DESKTOP, WEBHOOK, WEBHOOK_TOKEN, argv_of, check_webhook
from metasync.service.telling.due import Notice

WAIT_S: Final = 10.0  # for a desktop or a server
COMMAND_S: Final = 30.0
TEXT_CHARS_MAX: Final = 2000  # of a notice: a desktop shows a few lines


class NotToldError(MetaSyncError):
    """A notice did not reach the user this way. It is tried again."""


class Way(Protocol):
    name: str

    def tell(self, workspace: str, directory: str, notice: Notice) -> None:
        """`NotToldError` if it cannot."""


class Desktop:
    """The notices of the desktop, over the session's D-Bus (Desktop Notifications Specification 1.2)."""

    name = "desktop"

    def tell(self, workspace: str, directory: str, notice: Notice) -> None:
        try:
            from jeepney import DBusAddress, MessageType, new_method_call
            from jeepney.io.blocking import open_dbus_connection
        except ImportError as e:
            raise NotToldError("the package jeepney is not installed: pip install 'metasync[notices]'") from e
        where = DBusAddress("/org/freedesktop/Notifications", "org.freedesktop.Notifications",
                            "org.freedesktop.Notifications")  # fmt: skip
        body = escape(f"{notice.text}\n{notice.next_step}"[:TEXT_CHARS_MAX], quote=False)
        words: tuple[Any, ...] = ("MetaSync", 0, "", f"MetaSync: {workspace}", body, [], {"urgency": ("y", 1)}, -1)
        try:
            with contextlib.closing(open_dbus_connection(bus="SESSION")) as bus:
                message = new_method_call(where, "Notify", "susssasa{sv}i", words)
                reply = bus.send_and_get_reply(message, timeout=WAIT_S)
        except Exception as e:
            raise NotToldError(f"the desktop was not reached: {type(e).__name__}") from e
        if reply.header.message_type is not MessageType.method_return:
            raise NotToldError("nothing on this desktop shows notices")


class Webhook:
    """A POST of a JSON object to a URL. Its token comes from the environment; the URL is in no log."""

    name = "webhook"

    def __init__(self, url: str) -> None:
        check_webhook(url)
        self._url = url

    def tell(self, workspace: str, directory: str, notice: Notice) -> None:
        import http.client
        import urllib.error
        import urllib.request

        class Unmoved(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None:
                """Goes nowhere else: what is told is for the server that was named."""

        head = {"Content-Type": "application/json", "User-Agent": "metasync"}
        if token := os.environ.get(WEBHOOK_TOKEN, "").strip():
            head["Authorization"] = f"Bearer {token}"
        try:
            body = json.dumps(document(workspace, directory, notice)).encode("ascii")
            request = urllib.request.Request(self._url, body, head, method="POST")  # noqa: S310 - checked when it was set
            with urllib.request.build_opener(Unmoved).open(request, timeout=WAIT_S):
                pass  # what it answers is not read
        except urllib.error.HTTPError as e:
            raise NotToldError(f"the web hook answered {e.code}") from e
        except (OSError, ValueError, http.client.HTTPException) as e:
            reason = getattr(e, "reason", e)
            raise NotToldError(f"the web hook was not reached: {type(reason).__name__}") from e


class Command:
    """A program of the user's, with the notice as a JSON object on its standard input. There is no shell."""

    name = "command"

    def __init__(self, text: str) -> None:
        self._argv = argv_of(text)

    def tell(self, workspace: str, directory: str, notice: Notice) -> None:
        told = json.dumps(document(workspace, directory, notice)).encode("ascii")
        try:
            running = subprocess.Popen(  # noqa: S603 - the user's own setting
                self._argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                cwd=Path.home(), start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError, RuntimeError) as e:
            raise NotToldError(f"the command did not start: {type(e).__name__}") from e
        try:
            running.communicate(told, timeout=COMMAND_S)
        except subprocess.TimeoutExpired as e:
            with contextlib.suppress(OSError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            raise NotToldError(f"the command did not end within {COMMAND_S:.0f} s") from e
        if running.returncode != 0:
            raise NotToldError(f"the command ended with {running.returncode}")


def document(workspace: str, directory: str, notice: Notice) -> dict[str, Any]:
    """What a web hook and a command are told."""
    return {
        "workspace": workspace, "directory": directory, "kind": notice.kind, "text": notice.text[:TEXT_CHARS_MAX],
        "next_step": notice.next_step[:TEXT_CHARS_MAX], "since": notice.since_s,
    }  # fmt: skip


def ways_of(settings: Mapping[str, str]) -> tuple[Way, ...]:
    """The ways that are set. The desktop is one unless it is off. `UsageError`: a value that is none."""
    ways: list[Way] = [] if settings.get(DESKTOP) == "off" else [Desktop()]
    if url := settings.get(WEBHOOK):
        ways.append(Webhook(url))
    if command := settings.get(COMMAND):
        ways.append(Command(command))
    return tuple(ways)
