"""A workspace on simulated providers, and devices of it: the real founding, on lines where nothing goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from metasync.backends.api import Backend
from metasync.backends.registry import parse_url
from metasync.backends.wrappers.wrapper import Prefixed
from metasync.config import Config
from metasync.consensus.records.state import State
from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, DeviceIdentity, DeviceSet, new_device
from metasync.keys.invitation import decode_code
from metasync.local.state_keys import (
    CLONING_KEY,
    CONFIG_KEY,
    DEVICE_KEY,
    META_KIND,
    NAME_KEY,
    PLACE_KEY,
    UNFINISHED_KEY,
)
from metasync.members.clone_invitation import opened_by
from metasync.members.found import Founded, found
from metasync.runtime.effects import Task
from metasync.runtime.tasks import Runtime
from metasync.session.folder import BASE_KEY, LINKS_KEY, Link
from metasync.session.open_backend import NewBackend
from simulation.db import Tables, empty_tables
from simulation.disk import Node, Volume
from simulation.machine import CHEAP, PASSPHRASE, Secret, place_of, url_of
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
    links = {s.name: Link(url_of(s.name), FOLDER, s.identity.hex()) for s in stores}
    made = b.founded
    return _tables(secret[1], made.config, made.devices, links, made.state, place, {}, unfinished=unfinished)


def accepted(
    world: World, actor: Actor, client: str, code: str, stores: Mapping[str, Store], lines: Lines, secret: bytes
) -> tuple[Secret, Tables]:
    """What the first half of `clone --invite` leaves: the device's secret, and its `.metasync`. Errors as there."""
    found = decode_code(code)
    urls = {way.name: parse_url(way.url) for way in found.ways}
    reached = {n: cast(Backend, SimStore(stores[url.path.rpartition("/")[2]], client)) for n, url in urls.items()}
    runtime = cast(Runtime, SimRuntime(world, Boot(actor, 0), client, lines, reached))
    made = opened_by(found, runtime, reached, urls, secret)
    tables = _tables(
        made.device, made.config, made.devices, made.links, made.state, place_of(client), made.more, unfinished=True
    )  # fmt: skip
    return (made.keys, made.device, made.certificate), tables


def _tables(
    device: DeviceIdentity, config: Config, devices: DeviceSet, links: dict[str, Link], state: State, place: bytes,
    more: Mapping[str, bytes | None], *, unfinished: bool,
) -> Tables:  # fmt: skip
    tables = empty_tables()
    tables["kv"] = dict(
        [
            NAME_KEY.entry(NAME),
            DEVICE_KEY.entry(device.device_id),
            CONFIG_KEY.entry(config),
            LINKS_KEY.entry(links),
            BASE_KEY.entry(state),
            PLACE_KEY.entry(place),
            *([UNFINISHED_KEY.entry(True), CLONING_KEY.entry(True)] if unfinished else []),
            *more.items(),
        ]
    )
    tables["objects"] = {
        state.config: (META_KIND, config.encode()),
        state.devices: (META_KIND, devices.encode()),
    }
    return tables


def make_state_dir(volume: Volume) -> Node:
    """An empty `.metasync`."""
    node = volume.make(volume.root, b".metasync", _DIR)
    volume.sync()
    return node
