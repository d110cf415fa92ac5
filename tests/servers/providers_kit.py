"""What the tests of workspaces over several providers share: a server of each, as URLs, and what lies on them."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from crash_kit import PASSPHRASE

from metasync.backends.api import Backend, TellsDigests
from metasync.backends.registry import open_backend, parse_url
from metasync.workspace import Workspace

LEAST = 5  # providers whose servers can be had here: fewer show little


def urls_of(servers: dict[str, Any], root: Path) -> dict[str, str]:
    prefix = f"all-{secrets.token_hex(4)}"
    urls = {name: server.url(prefix) for name, server in servers.items()}
    urls["disk"] = f"file://{root / 'disk'}"
    return {name: f"{url}{'&' if '?' in url else '?'}name={name}" for name, url in urls.items()}


def clone(place: Path, urls: dict[str, str], device: str) -> Workspace:
    return Workspace.clone(
        place, name="all", backends=[*urls.values()], passphrase=PASSPHRASE, device_name=device
    ).workspace


class Damage(NamedTuple):
    """What is wrong with a copy. `shows`: to whoever does not read it, too."""

    backend: str
    pack: str
    problem: str
    shows: bool


def _alter(backend: Backend, path: str, data: bytes) -> tuple[str, bool]:
    middle = len(data) // 2
    backend.put(path, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    return "altered", isinstance(backend, TellsDigests) and backend.digest(path).value is not None


def _cut(backend: Backend, path: str, data: bytes) -> tuple[str, bool]:
    backend.put(path, data[:-1])
    return f"has {len(data) - 1} bytes instead of {len(data)}", True


def _remove(backend: Backend, path: str, _: bytes) -> tuple[str, bool]:
    backend.delete(path)
    return "missing", True


DAMAGES: tuple[Callable[[Backend, str, bytes], tuple[str, bool]], ...] = (_alter, _cut, _remove)


def damage_one_each(name: str, url: str, first: int) -> set[Damage]:
    """Damages one copy in each way, past MetaSync as a provider would: three of its packs from the `first` on."""
    done = set()
    with contextlib.closing(open_backend(parse_url(url))) as backend:
        sizes = _sizes(backend)
        backend.get(min(sizes, key=lambda path: sizes[path]), max_bytes=1 << 10)  # shows S3 what its tags mean
        packs = sorted((path.rpartition("/")[2], path) for path in sizes if "/packs/" in path)
        for number, damage in enumerate(DAMAGES):
            pack, path = packs[(first + number) % len(packs)]
            done.add(Damage(name, pack, *damage(backend, path, backend.get(path, max_bytes=1 << 26))))
    return done


def _sizes(backend: Backend, path: str = "") -> dict[str, int]:
    """All that lies below a path."""
    out: dict[str, int] = {}
    for item in backend.list(path):
        below = f"{path}/{item.name}".removeprefix("/")
        out |= _sizes(backend, below) if item.size is None else {below: item.size}
    return out
