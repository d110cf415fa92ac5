"""The line of one workspace to its broker: kept up by a thread of its own, and missed by nobody while it is down."""

from __future__ import annotations

import importlib
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from metasync.errors import MetaSyncError, WorkspaceError
from metasync.keys.derive import derive
from metasync.local.settings import Settings
from metasync.reports.service import WorkspaceState
from metasync.runtime.daemon_keys import BROKER, BrokerUrl, broker_of
from metasync.service.brokers.hints import Bucket
from metasync.service.brokers.passwords import with_password
from metasync.service.supervisor import Keeping

if TYPE_CHECKING:
    from metasync.workspace import Workspace

MESSAGE_BYTES: Final = 16
MESSAGE_BYTES_MAX: Final = 1024  # of what others send: only that it came counts
OWN_MAX: Final = 64  # of our messages that may still come back
RETRY_S: Final = (1.0, 300.0)  # between tries to connect, each drawn anew: a broker that is back is not stormed
STEADY_S: Final = 60.0  # a line that held for so long makes the next pauses short again
Say = Callable[..., None]


class BrokerError(MetaSyncError):
    """A broker does not answer, refuses, or its line broke. The text holds no password."""


class Link(Protocol):
    """A line to a broker that is up."""

    def run(self) -> None:
        """Hears messages until the line is closed; `BrokerError` when it breaks."""

    def publish(self, data: bytes) -> None:
        """Sends a message, from any thread. What cannot be sent is lost."""

    def close(self) -> None:
        """Has `run` end, from any thread."""


Connect = Callable[[BrokerUrl, str, Callable[[bytes], None]], Link]
"""Connects, and hears the topic from then on: `BrokerError`. The names of its packages: see `connect_by`."""
_PACKAGES: Final = {"amqp": ("pika", "amqp"), "mqtt": ("paho.mqtt.client", "mqtt")}


def connect_by(url: BrokerUrl) -> Connect:
    """What connects to brokers of this kind. `WorkspaceError`: its package is not installed."""
    package, extra = _PACKAGES[url.scheme.removesuffix("s")]
    try:
        importlib.import_module(package)
    except ImportError as e:
        name = package.partition(".")[0]
        raise WorkspaceError(
            f"{BROKER} needs the package {name}", next_step=f"Run: pip install 'metasync[{extra}]'"
        ) from e
    found: Connect = importlib.import_module(f"metasync.service.brokers.{extra}").connect
    return found


def topic_of(workspace: Workspace) -> str:
    """The topic of a workspace: the same on all its devices, and no other can make it. It never changes."""
    keys = workspace._connections.keys
    return derive(keys.id_key, "broker topic", keys.ns_id).hex()[:32]


class PushChannel:
    """The push channel of one workspace: goes along with its keeper. Without `daemon.broker` it does nothing."""

    def __init__(self, say: Say, *, connect_by: Callable[[BrokerUrl], Connect] = connect_by) -> None:
        self._say, self._connect_by = say, connect_by
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._link: Link | None = None
        self._own: deque[bytes] = deque(maxlen=OWN_MAX)
        self._thread: threading.Thread | None = None

    def begin(self, keeper: Keeping, settings: Settings) -> None:
        text = settings.values.get(BROKER)
        if text is None:
            return
        url = with_password(broker_of(text))
        connect = self._connect_by(url)
        ends = self._ends = threading.Event()
        keeper.published = self.publish
        self._thread = threading.Thread(
            target=self._run, args=(keeper, url, connect, ends), name="push channel", daemon=True
        )
        self._thread.start()

    def hear(self, state: WorkspaceState) -> None:
        """What is published is told by the keeper itself."""

    def end(self) -> None:
        self._ends.set()
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def publish(self) -> None:
        """Tells the other devices that there is something new; nothing where the broker is away."""
        data = os.urandom(MESSAGE_BYTES)
        with self._lock:
            link = self._link
            self._own.append(data)
        if link is not None:
            link.publish(data)

    # its own thread

    def _run(self, keeper: Keeping, url: BrokerUrl, connect: Connect, ends: threading.Event) -> None:
        hints = _Hints(keeper.hint, ends)
        pause_s, topic, was_away = RETRY_S[0], "", False
        while not ends.is_set():
            began, why = time.monotonic(), ""
            try:
                topic = topic or keeper.call(topic_of)
                link = connect(url, topic, lambda data: self._heard(data, hints))
                keeper.covered("broker", True)
                self._hold(link, url, hints, ends)
            except MetaSyncError as e:
                was_away = was_away and time.monotonic() - began < STEADY_S  # each outage is told, a flutter once
                if not was_away and not ends.is_set():
                    self._say("broker away", level="warning", broker=url.where, why=e.message)
                was_away, why = True, f"{url.where}: {e.message}"
            finally:
                keeper.covered("broker", False, why)
            if time.monotonic() - began >= STEADY_S:
                pause_s = RETRY_S[0]
            ends.wait(random.uniform(0, pause_s))
            pause_s = min(2 * pause_s, RETRY_S[1])

    def _hold(self, link: Link, url: BrokerUrl, hints: _Hints, ends: threading.Event) -> None:
        with self._lock:
            self._link = link
        try:
            if not ends.is_set():
                self._say("broker connected", broker=url.where)
                hints.come()  # what was told while the line was down
                link.run()
        finally:
            with self._lock:
                if self._link is link:
                    self._link = None
            link.close()

    def _heard(self, data: bytes, hints: _Hints) -> None:
        with self._lock:
            is_own = data in self._own
        if not is_own and len(data) <= MESSAGE_BYTES_MAX:
            hints.come()


class _Hints:
    """Passes hints on, as often as the bucket lets them: one that comes too early comes later, once."""

    def __init__(self, hint: Callable[[], None], ends: threading.Event) -> None:
        self._hint, self._ends = hint, ends
        self._lock = threading.Lock()
        self._bucket = Bucket(time.monotonic())
        self._is_waiting = False

    def come(self) -> None:
        with self._lock:
            if self._is_waiting:
                return
            wait_s = self._bucket.wait_s(time.monotonic())
            self._is_waiting = wait_s > 0
        if wait_s <= 0:
            self._hint()
        else:
            threading.Thread(target=self._later, args=(wait_s,), name="hint", daemon=True).start()

    def _later(self, wait_s: float) -> None:
        if self._ends.wait(wait_s):
            return
        with self._lock:
            self._is_waiting = False
        self.come()
