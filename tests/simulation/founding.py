"""A workspace on simulated providers, and devices of it: the real founding, on lines where nothing goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from metasync.backends.api import Backend
from metasync.backends.wrappers.wrapper import Prefixed
from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, new_device
from metasync.local.state_keys import (
    CLONING_KEY,
    CONFIG_KEY,
    DEVICE_KEY,
    META_KIND,
    NAME_KEY,
    PLACE_KEY,
    UNFINISHED_KEY,
)
from metasync.members.found import Founded, found
from metasync.runtime.effects import Task
from metasync.session.folder import BASE_KEY, LINKS_KEY, Link
from metasync.session.open_backend import NewBackend
from simulation.db import Tables, empty_tables
from simulation.disk import Node, Volume
from simulation.machine import CHEAP, PASSPHRASE, Secret, url_of
from simulation.network import Lines, SimStore, Store
from simulation.runtime import SimRuntime
from simulation.world import Actor, Boot, World

NAME: Final = "docs"
FOLDER: Final = "00" * 16  # the workspace's folder on every provider
_DIR: Final = 0o40700


class Beginning(NamedTuple):
    """A workspace that was just founded. `admin`: the key that lets devices in."""

    founded: Founded
    admin: bytes


def begin(
    world: World,
    actor: Actor,
    stores: Mapping[str, Store],
    lines: Lines,
    copies: int,
    *,
    byzantine: bool = False,
    encrypted: bool = True,
) -> Beginning:
    """Founds a workspace on these stores."""
    drawn: list[bytes] = []

    def entropy(n: int) -> bytes:
        drawn.append(world.rng.randbytes(n))
        return drawn[-1]

    views = {n: cast(Backend, Prefixed(cast(Backend, SimStore(s, "founder")), FOLDER)) for n, s in stores.items()}
    runtime = SimRuntime(world, Boot(actor, 0), "founder", lines, views)
    run = cast(Callable[[Task], Any], runtime.run)
    backends = [NewBackend(n, "file", 1 << 40, s.form, s.identity, True) for n, s in stores.items()]
    founded = found(
        backends, name=NAME, passphrase=PASSPHRASE, copies=copies, encrypted=encrypted, device_name="c0",
        entropy=entropy, run=run, cost=CHEAP, byzantine=byzantine,
    )  # fmt: skip
    return Beginning(founded, drawn[0])


def first_secret(b: Beginning) -> Secret:
    """The keys of the device that founded."""
    return b.founded.keys, b.founded.device, b.founded.certificate


def next_secret(world: World, b: Beginning, name: str) -> Secret:
    """The keys of one more device."""
    device = new_device(name, world.rng.randbytes(DEVICE_ENTROPY_BYTES))
    return b.founded.keys, device, device.certified(b.admin, b.founded.keys.ns_id)


def local_state(b: Beginning, stores: Sequence[Store], secret: Secret, place: bytes, *, unfinished: bool) -> Tables:
    """What `init`, or the first half of `clone`, leaves in `.metasync`."""
    made, tables = b.founded, empty_tables()
    links = {s.name: Link(url_of(s.name), FOLDER, s.identity.hex()) for s in stores}
    tables["kv"] = dict(
        [
            NAME_KEY.entry(NAME),
            DEVICE_KEY.entry(secret[1].device_id),
            CONFIG_KEY.entry(made.config),
            LINKS_KEY.entry(links),
            BASE_KEY.entry(made.state),
            PLACE_KEY.entry(place),
            *([UNFINISHED_KEY.entry(True), CLONING_KEY.entry(True)] if unfinished else []),
        ]
    )
    tables["objects"] = {
        made.state.config: (META_KIND, made.config.encode()),
        made.state.devices: (META_KIND, made.devices.encode()),
    }
    return tables


def make_state_dir(volume: Volume) -> Node:
    """An empty `.metasync`."""
    node = volume.make(volume.root, b".metasync", _DIR)
    volume.sync()
    return node
