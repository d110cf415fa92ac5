"""Acceptors: what this process sees of each one, and the requests that proposers and learners make of it.

    look(...)    reads what it holds, to its end          append(...)   has it take a PREPARE or an ACCEPT

Which form a backend has is agreed in the config (`config.Acceptor.form`).
"""

from __future__ import annotations

from typing import Final

from metasync.config import Config, Form
from metasync.consensus.acceptors.block import BlockAcceptor
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.acceptors.view import DELTA_S, AcceptorView
from metasync.consensus.participant import Participant
from metasync.consensus.records.state import State
from metasync.keys.device_set import DeviceSet

__all__ = ["DELTA_S", "AcceptorView", "BlockAcceptor", "LogAcceptor", "views_of"]

_FORMS: Final[dict[Form, type[AcceptorView]]] = {"log": LogAcceptor, "block": BlockAcceptor}


def views_of(m: Participant, config: Config, devices: DeviceSet, base: State) -> dict[bytes, AcceptorView]:
    """Every acceptor of the version after `base`, with nothing read of it yet, by id and in the config's order."""
    views: dict[bytes, AcceptorView] = {}
    for backend, acceptor in config.acceptors:
        views[acceptor.acceptor_id] = _FORMS[acceptor.form](m, config, devices, base, backend.name, acceptor, views)
    return views
