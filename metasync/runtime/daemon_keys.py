"""What the settings of the daemon mean: what it tells, by which ways, and where it listens for hints. Pure.

    notify.desktop   `off`: no notices on the desktop
    notify.webhook   a URL that notices are posted to, over TLS or on this machine
    notify.command   a program and its words, which gets each notice on its standard input
    notify.after     how long a backend or a drive is away before that is told; an hour unless set
    daemon.broker    the broker by which devices tell each other that there is something new
    daemon.metrics   the address on this machine where figures are to be had

No value holds a secret: those come from the daemon's environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from metasync.errors import UsageError
from metasync.runtime.addresses import is_loopback

DESKTOP, WEBHOOK, COMMAND, AFTER = "notify.desktop", "notify.webhook", "notify.command", "notify.after"
BROKER, METRICS = "daemon.broker", "daemon.metrics"
WEBHOOK_TOKEN: Final = "METASYNC_WEBHOOK_TOKEN"  # noqa: S105 - the variable's name; it is sent as a bearer token
PASSWORD, PASSWORD_FILE = "METASYNC_BROKER_PASSWORD", "METASYNC_BROKER_PASSWORD_FILE"
PORTS: Final = {"amqp": 5672, "amqps": 5671, "mqtt": 1883, "mqtts": 8883}
ARGV_MAX: Final = 64
_METRICS_STEP: Final = "Write an address of this machine and a port, such as 127.0.0.1:9464."
_BROKER_STEP: Final = "Write amqps://user@host/vhost or mqtts://user@host (amqp:// and mqtt:// on this machine)."
_COMMAND_STEP: Final = "Write the program and its words, as in a shell."


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """A broker. `path`: AMQP's virtual host. The password is in no text of it."""

    scheme: str
    host: str
    port: int
    user: str = ""
    path: str = ""
    password: str = field(default="", repr=False)

    @property
    def is_tls(self) -> bool:
        return self.scheme.endswith("s")

    @property
    def where(self) -> str:
        """The broker, for people: without the user's name."""
        return f"{self.scheme}://{self.host}:{self.port}"


def broker_of(text: str) -> BrokerUrl:
    """`UsageError` for what is no URL of a broker, or has a password in it."""
    found, port = _split(text)
    host = (found.hostname or "") if found is not None else ""
    if found is None or found.scheme not in PORTS or not host or found.query or found.fragment:
        raise UsageError(f"{BROKER} is no URL of a broker", next_step=_BROKER_STEP)
    if found.password is not None:
        raise UsageError(
            f"{BROKER} holds a password",
            next_step=f"Leave it out; set {PASSWORD} or {PASSWORD_FILE} in the daemon's environment.",
        )
    if not found.scheme.endswith("s") and found.username and not is_loopback(host):
        raise UsageError(f"{BROKER} would send a password in the clear", next_step=f"Write {found.scheme}s://")
    bracketed = f"[{host}]" if ":" in host else host
    path = unquote(found.path[1:])
    return BrokerUrl(found.scheme, bracketed, port or PORTS[found.scheme], unquote(found.username or ""), path)


def check_webhook(url: str) -> None:
    """`UsageError` for what is no URL that a notice may go to: over TLS, or to this machine."""
    found, _ = _split(url)
    if found is None or found.scheme not in ("https", "http") or not found.hostname:
        raise UsageError(f"{WEBHOOK} is no URL", next_step="Write https://host/path.")
    if "@" in found.netloc:
        raise UsageError(f"{WEBHOOK} holds a login", next_step=f"Set {WEBHOOK_TOKEN} in the daemon's environment.")
    if found.scheme == "http" and not is_loopback(found.hostname):
        raise UsageError(f"{WEBHOOK} would send in the clear", next_step="Write https://host/path.")


def _split(url: str) -> tuple[SplitResult | None, int | None]:
    """The parts of a URL and its port; (None, None) for what is none."""
    if not url.isascii() or not url.isprintable() or " " in url:
        return None, None
    try:
        found = urlsplit(url)
        return found, found.port
    except ValueError:
        return None, None


def argv_of(text: str) -> list[str]:
    """The words of a command. `UsageError` where it has none, or they do not end."""
    import shlex

    try:
        found = shlex.split(text)
    except ValueError as e:
        raise UsageError(f"{COMMAND}: {e}", next_step=_COMMAND_STEP) from e
    if not 0 < len(found) <= ARGV_MAX or "\0" in text:
        raise UsageError(f"{COMMAND} names no program", next_step=_COMMAND_STEP)
    return found


def metrics_address(text: str) -> tuple[str, int]:
    """The host and the port of `127.0.0.1:9464`. `UsageError` for another form, and for another machine's."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or not 0 < int(port[:6]) < 65536:
        raise UsageError(f"{METRICS}: no port in {text[:60]!r}", next_step=_METRICS_STEP)
    if not is_loopback(host):
        raise UsageError(f"{METRICS}: {host[:60]!r} is not this machine", next_step=_METRICS_STEP)
    return host.strip("[]"), int(port)


def _check_switch(text: str) -> None:
    if text not in ("on", "off"):
        raise UsageError(
            f"{DESKTOP} is on or off, not {text[:40]!r}", next_step=f"Write: metasync config set {DESKTOP} off"
        )


CHECKS: Final[Mapping[str, Callable[[str], object]]] = {
    DESKTOP: _check_switch,
    WEBHOOK: check_webhook,
    COMMAND: argv_of,
    BROKER: broker_of,
    METRICS: metrics_address,
}
"""What checks a value, by the setting; `notify.after` is a length of time."""
