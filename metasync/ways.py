"""Builds concrete things from settings: backends from URLs, translator chains from names. Part of `workspace`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from metasync.backends._base import Backend, BackendUrl, Probes
from metasync.backends._registry import open_backend, parse_url
from metasync.errors import BackendError, UnreachableError, UsageError
from metasync.events import Listener, Notice
from metasync.runtime import Runtime
from metasync.sync.enrolment import Link
from metasync.sync.found import DEFAULT_CAPACITY, NewBackend
from metasync.translators._base import Chain, Translator


@lru_cache(maxsize=32)
def chain_of(names: tuple[str, ...]) -> Chain:
    """The translator chain that a config names. `UsageError` when a translator is not installed here."""
    steps: list[Translator] = []
    for name in names:
        found_points = importlib.metadata.entry_points(group="metasync.translators", name=name)
        if not found_points:
            raise UsageError(
                f"this workspace uses the translator {name!r}, which is not installed here",
                next_step="Install the package that provides it.",
            )
        steps.append(next(iter(found_points)).load()())
    return Chain(steps)


def default_device_name() -> str:
    """What this device is called in the log unless the user says otherwise."""
    return platform.node() or "device"


def parsed_urls(texts: Sequence[str]) -> dict[str, BackendUrl]:
    """Backend URLs by name: the one given, else made from the scheme and the last part of the path."""
    if not texts:
        raise UsageError("a workspace needs a backend", next_step="Give --backend URL, several times as a rule.")
    out: dict[str, BackendUrl] = {}
    for text in texts:
        url = parse_url(text)
        base = url.name or _plain(url.path.rstrip("/").rpartition("/")[2] or url.host or url.scheme)
        name, n = base, 2
        while name in out:
            if url.name:
                raise UsageError(f"two backends are called {name!r}")
            name, n = f"{base}-{n}", n + 1
        for other, given in out.items():
            if given.location == url.location:  # before anything is made there; `refuse_twins` looks closer
                raise _same_store(other, name)
        out[name] = url
    return out


def refuse_inside(folder: Path, urls: Mapping[str, BackendUrl]) -> None:
    """`UsageError` for a store inside the workspace itself: every push would push what the one before had stored."""
    top = os.path.realpath(folder)
    for name, url in urls.items():
        if url.scheme == "file" and os.path.commonpath([top, os.path.realpath(url.path)]) == top:
            raise UsageError(
                f"the backend {name} ({url.path}) lies inside the workspace {folder}",
                next_step="Name a folder outside of it, best on another disk.",
            )


def _plain(text: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text.lower())[:40]
    return kept.strip("-.") or "backend"


def opened(name: str, url: BackendUrl, *, create: bool) -> Backend:
    """Opens a backend; errors say which one."""
    try:
        return open_backend(url, create_root=create)
    except BackendError as e:
        e.message = f"{name}: {e.message}"
        raise


def bare_runtime(backends: Mapping[str, Backend]) -> Runtime:
    """A runtime without local state: for `init` and `clone`, before there is any."""
    return Runtime(backends)


def new_backend(name: str, url: BackendUrl, backend: Backend, on_event: Listener) -> NewBackend:
    """What the config will say of a backend."""
    form = backend.form
    if url.role == "both" and form == "log" and isinstance(backend, Probes):
        form = backend.probe()
    if url.role == "both" and form != "log":
        on_event(Notice(f"{name} holds data but does not vote: it has no atomic create", warning=True))
    return NewBackend(
        name, url.scheme, url.capacity_bytes or DEFAULT_CAPACITY, form, backend.identity(), url.role == "both"
    )


def refuse_twins(backends: Sequence[NewBackend]) -> None:
    """`UsageError` when two URLs lead to one store: its loss would be the loss of two copies."""
    seen: dict[bytes, str] = {}
    for b in backends:
        if b.identity in seen:
            raise _same_store(seen[b.identity], b.name)
        seen[b.identity] = b.name


def _same_store(one: str, other: str) -> UsageError:
    return UsageError(f"{one} and {other} are the same store", next_step="Give each store once.")


def check_identity(name: str, backend: Backend, link: Link) -> None:
    """`UnreachableError` when a store in the same scope is not the one that was linked: a copy in its place, say."""
    now, then = backend.identity(), bytes.fromhex(link.identity)
    if now[:16] == then[:16] and now[16:] != then[16:]:
        raise UnreachableError(
            f"{name}: what is at {link.url} is not the store that was linked (replaced, or a copy?)",
            next_step=f"If it is right, run: metasync backend link {name} URL",
        )
