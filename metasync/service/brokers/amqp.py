"""Brokers that speak AMQP 0-9-1, such as RabbitMQ, by pika: a queue of this device's own on the exchange `amq.topic`.

The exchange is there on every such broker, so nothing is to be set up, and RabbitMQ's MQTT plugin delivers to it too.
The queue goes with the line, holds a few messages, and none for long.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from typing import Any, Final

from metasync.runtime.daemon_keys import BrokerUrl
from metasync.service.brokers.push_channel import BrokerError

EXCHANGE: Final = "amq.topic"
WAIT_S: Final = 15.0  # for each step of connecting
HEARTBEAT_S: Final = 60  # a line that is dead is noticed within two of them
LOOK_S: Final = 30.0  # the longest wait in one call: a message, or one to be sent, ends it
QUEUE: Final = {"x-max-length": 16, "x-message-ttl": 60_000}


class AmqpLink:
    """A line of pika's, which is for one thread: what others want done is handed to it."""

    def __init__(self, connection: Any, channel: Any, topic: str) -> None:
        self._connection, self._channel, self._topic = connection, channel, topic
        self._is_closed = False

    def run(self) -> None:
        import pika.exceptions

        try:
            while not self._is_closed:
                self._connection.process_data_events(time_limit=LOOK_S)
        except (pika.exceptions.AMQPError, OSError) as e:
            if not self._is_closed:
                raise _error(e) from e
        finally:
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                self._connection.close()

    def publish(self, data: bytes) -> None:
        def send() -> None:
            self._channel.basic_publish(EXCHANGE, self._topic, data)

        self._hand_over(send)

    def close(self) -> None:
        self._is_closed = True
        self._hand_over(lambda: None)

    def _hand_over(self, do: Callable[[], None]) -> None:
        import pika.exceptions

        with contextlib.suppress(pika.exceptions.AMQPError, OSError):  # it is closed
            self._connection.add_callback_threadsafe(do)


def connect(url: BrokerUrl, topic: str, hear: Callable[[bytes], None]) -> AmqpLink:
    """Connects, and hears the topic from then on. `BrokerError`."""
    import pika

    name = f"metasync.{topic}"
    host = url.host.strip("[]")
    login = {"credentials": pika.PlainCredentials(url.user, url.password)} if url.user else {}
    tls = {"ssl_options": pika.SSLOptions(ssl.create_default_context(), host)} if url.is_tls else {}
    parameters = pika.ConnectionParameters(
        host=host, port=url.port, virtual_host=url.path or "/", heartbeat=HEARTBEAT_S, connection_attempts=1,
        socket_timeout=WAIT_S, stack_timeout=WAIT_S, blocked_connection_timeout=WAIT_S, **login, **tls,
    )  # fmt: skip
    try:
        connection = pika.BlockingConnection(parameters)
        try:
            channel = connection.channel()
            queue = channel.queue_declare("", exclusive=True, auto_delete=True, arguments=QUEUE).method.queue
            channel.queue_bind(queue, EXCHANGE, routing_key=name)
            channel.basic_consume(queue, lambda _c, _m, _p, body: hear(body), auto_ack=True)
        except BaseException:
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                connection.close()
            raise
    except (pika.exceptions.AMQPError, OSError) as e:
        raise _error(e) from e
    return AmqpLink(connection, channel, name)


def _error(e: BaseException) -> BrokerError:
    """Why, by the class alone: some texts of pika's hold what was sent."""
    inner = e.args[0] if e.args and isinstance(e.args[0], BaseException) else e
    return BrokerError(f"the broker's line: {type(inner).__name__}")
