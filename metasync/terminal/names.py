"""What a shell is offered for an argument: names of backends, devices, versions and settings that this device knows.

From the local state alone: a key that is pressed asks no network. Where anything is wrong, nothing is offered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    import click

    from metasync.local.state import LocalDb

VERSIONS_MAX: Final = 20  # numbers offered beside `latest` and `base`
What: TypeAlias = Literal["backends", "devices", "versions", "settings"]
Complete: TypeAlias = "Callable[[click.Context, click.Parameter, str], list[str]]"


def completing(what: What) -> Complete:
    """For `shell_complete=` of an argument or option: names that begin with what was typed."""

    def offer(ctx: click.Context, _param: click.Parameter, typed: str) -> list[str]:
        try:
            with _state(ctx) as db:
                return [name for name in _KNOWN[what](db) if name.startswith(typed)]
        except Exception:  # noqa: BLE001 - a message in the middle of a line that is typed helps nobody
            return []

    return offer


@contextlib.contextmanager
def _state(ctx: click.Context) -> Iterator[LocalDb]:
    from metasync.local.state import LocalDb
    from metasync.session.folder import DB_FILE, STATE_DIR, folder_above
    from metasync.terminal.console import Options

    folder = folder_above(ctx.ensure_object(Options).directory)
    with contextlib.closing(LocalDb.open(folder / STATE_DIR / DB_FILE)) as db:
        yield db


def _backends(db: LocalDb) -> list[str]:
    from metasync.local.state_keys import CONFIG_KEY

    config = db.get(CONFIG_KEY)
    return sorted(b.name for b in config.backends) if config is not None else []


def _devices(db: LocalDb) -> list[str]:
    from metasync.keys.device_set import decode_device_set
    from metasync.session.folder import BASE_KEY

    state = db.get(BASE_KEY)
    data = db.get_object(state.devices) if state is not None else None
    if state is None or data is None:
        return []
    return sorted(c.name for c in decode_device_set(data, state.ns_id, known=True).certificates)


def _versions(db: LocalDb) -> list[str]:
    from metasync.session.folder import BASE_KEY

    state = db.get(BASE_KEY)
    newest = state.v if state is not None else 0
    named = _tags(db) if state is not None else []
    return ["latest", "base", *named, *(str(v) for v in range(newest, max(0, newest - VERSIONS_MAX), -1))]


def _tags(db: LocalDb) -> list[str]:
    """The names of versions, as the newest state says that this device knows."""
    from metasync.session.folder import stored_newest
    from metasync.store.retained import decode_retained

    data = db.get_object(stored_newest(db).retained.hash)
    return [n.name for n in decode_retained(data).named] if data is not None else []


def _settings(db: LocalDb) -> list[str]:
    from metasync.runtime.limits import NUMBERS

    each = ["limit.connections", "limit.down", "limit.requests", "limit.up"]
    return sorted([*NUMBERS, "keep", *each, *(f"{key}.{name}" for key in each for name in _backends(db))])


_KNOWN: Final[dict[What, Callable[[LocalDb], list[str]]]] = {
    "backends": _backends, "devices": _devices, "versions": _versions, "settings": _settings,
}  # fmt: skip
