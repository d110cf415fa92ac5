"""Real brokers on loopback: Mosquitto and RabbitMQ, each in a folder and on a port of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from loopback import LoopbackServer, free_port


def find(variable: str) -> Path | None:
    """The program that `tests/servers/run.sh` fetched, by its variable."""
    found = os.environ.get(variable)
    return Path(found) if found and Path(found).exists() else None


class Mosquitto(LoopbackServer):
    name = "Mosquitto"
    scheme = "mqtt"

    def __init__(self, root: Path, program: Path) -> None:
        super().__init__(root)
        self._program = program

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        config = self.root / "mosquitto.conf"
        config.write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence false\n")
        return [str(self._program), "-c", str(config)], {}


class RabbitMq(LoopbackServer):
    name = "RabbitMQ"
    scheme = "amqp"
    stop_timeout_s = 60.0  # it puts its house in order first, and a busy machine gives it little time

    def __init__(self, root: Path, program: Path) -> None:
        super().__init__(root)
        self._program = program

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        (self.root / "plugins").write_text("[].\n")
        (self.root / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n")
        places = {"MNESIA_BASE": "mnesia", "LOG_BASE": "logs", "CONFIG_FILE": "rabbitmq", "PID_FILE": "pid",
                  "ENABLED_PLUGINS_FILE": "plugins", "CONF_ENV_FILE": "none"}  # fmt: skip
        return [str(self._program)], {
            **{f"RABBITMQ_{name}": str(self.root / place) for name, place in places.items()},
            "RABBITMQ_NODENAME": f"metasync{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }


KINDS: Mapping[str, tuple[str, Callable[[Path, Path], Mosquitto | RabbitMq]]] = {
    "mosquitto": ("METASYNC_MOSQUITTO", Mosquitto),
    "rabbitmq": ("METASYNC_RABBITMQ", RabbitMq),
}
"""The variable that names the program, and what runs it."""
