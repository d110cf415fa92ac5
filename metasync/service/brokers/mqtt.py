"""Brokers that speak MQTT (version 3), such as Mosquitto, by paho: a subscription that goes with the line."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final

from metasync.runtime.daemon_keys import BrokerUrl
from metasync.service.brokers.push_channel import BrokerError

WAIT_S: Final = 15.0  # for each step of connecting
KEEPALIVE_S: Final = 60
LOOK_S: Final = 20.0  # the longest wait in one call: a message, or one to be sent, ends it


class MqttLink:
    """A client of paho's that is connected, and what it hears."""

    def __init__(self, client: Any, topic: str) -> None:
        self._client, self._topic = client, topic
        self._is_closed = False

    def run(self) -> None:
        try:
            while not self._is_closed:
                if (code := self._client.loop(timeout=LOOK_S)) != 0:
                    if self._is_closed:
                        return
                    raise BrokerError(f"the broker's line broke ({int(code)})")
        except (OSError, ValueError) as e:
            if not self._is_closed:
                raise BrokerError(f"the broker's line: {type(e).__name__}") from e

    def publish(self, data: bytes) -> None:
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # it is closed
            self._client.publish(self._topic, data, qos=0)

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError, ValueError):
            self._client.disconnect()


def connect(url: BrokerUrl, topic: str, hear: Callable[[bytes], None]) -> MqttLink:
    """Connects, and hears the topic from then on. `BrokerError`."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    name = f"metasync/{topic}"
    answered, refused = threading.Event(), []
    client = Client(CallbackAPIVersion.VERSION2, clean_session=True, reconnect_on_failure=False)
    client.connect_timeout = WAIT_S
    client.max_queued_messages_set(16)
    if url.user:
        client.username_pw_set(url.user, url.password)
    if url.is_tls:
        client.tls_set()

    def connected(_client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            refused.append(str(reason))
            answered.set()
        else:
            client.subscribe(name, qos=0)

    def subscribed(_client: Any, _data: Any, _id: Any, reasons: Any, _properties: Any) -> None:
        refused.extend(str(r) for r in reasons if r.is_failure)
        answered.set()

    client.on_connect, client.on_subscribe = connected, subscribed
    client.on_message = lambda _client, _data, message: hear(bytes(message.payload))
    try:
        client.connect(url.host.strip("[]"), url.port, KEEPALIVE_S)
        waited_s = 0.0
        while not answered.is_set() and waited_s < WAIT_S:
            if client.loop(timeout=1.0) != 0 and not answered.is_set():
                raise BrokerError("the broker closed the line")
            waited_s += 1.0
    except (OSError, ValueError) as e:
        raise BrokerError(f"the broker was not reached: {type(e).__name__}") from e
    if refused or not answered.is_set():
        client.disconnect()
        raise BrokerError(f"the broker refused: {refused[0] if refused else 'no answer'}")
    return MqttLink(client, name)
