"""The record of a scrub counts as the word of a device of this workspace about this backend, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from paxos_world import Workspace, World

from metasync.consensus.records import scrubbed
from metasync.consensus.records.scrubbed import Scrubbed, open_scrubbed, seal_scrubbed
from metasync.errors import FormatError, UpgradeError
from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, DeviceIdentity, new_device

HERE, ELSEWHERE = b"h" * 16, b"e" * 16


@pytest.fixture
def world() -> World:
    return World(9, [*"abc"])


def said(by: DeviceIdentity, of: bytes = HERE) -> Scrubbed:
    return Scrubbed(by.device_id, of, b"s" * 32, at_ns=1, wrong=2, read_to=3, read_ns=4)


def sealed(ws: Workspace, seen: Scrubbed, by: DeviceIdentity, keys: Any = None) -> bytes:
    return seal_scrubbed(keys or ws.keys, seen, by, era=0, epoch=1, random=bytes(32))


@pytest.fixture
def placed(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that lies has the keys to seal whatever it says for the place that is asked."""
    seal: Callable[..., bytes] = scrubbed.seal

    def for_here(key: Any, header: Any, body: bytes, *, binding: bytes) -> bytes:
        return seal(key, header, body, binding=ws.keys.ns_id + HERE)

    monkeypatch.setattr(scrubbed, "seal", for_here)


def test_it_is_read_as_it_was_written(ws: Workspace) -> None:
    me = ws.identities[1]
    assert open_scrubbed(ws.keys, ws.devices, sealed(ws, said(me), me), HERE) == said(me)


def test_what_is_said_of_another_backend_is_none(ws: Workspace, placed: None) -> None:
    me = ws.identities[1]
    with pytest.raises(FormatError, match="of another device, backend or workspace"):
        open_scrubbed(ws.keys, ws.devices, sealed(ws, said(me, ELSEWHERE), me), HERE)


def test_what_is_said_in_another_workspace_is_none(ws: Workspace, placed: None) -> None:
    me = ws.identities[1]
    keys = SimpleNamespace(ns_id=b"n" * 32, log_key=ws.keys.log_key)
    with pytest.raises(FormatError, match="of another device, backend or workspace"):
        open_scrubbed(ws.keys, ws.devices, sealed(ws, said(me), me, keys), HERE)


def test_what_a_device_says_that_is_none_of_the_workspace_is_none(ws: Workspace) -> None:
    stranger = new_device("stranger", b"q" * DEVICE_ENTROPY_BYTES)
    with pytest.raises(FormatError, match="of another device, backend or workspace"):
        open_scrubbed(ws.keys, ws.devices, sealed(ws, said(stranger), stranger), HERE)


def test_what_one_device_says_in_the_name_of_another_is_none(ws: Workspace) -> None:
    me, other = ws.identities[:2]
    forged = replace(me, sign_private=other.sign_private)
    with pytest.raises(FormatError, match="signature"):
        open_scrubbed(ws.keys, ws.devices, sealed(ws, said(me), forged), HERE)


def test_a_record_of_a_newer_format_is_told(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    me = ws.identities[1]
    with monkeypatch.context() as newer:
        newer.setattr(scrubbed, "FORMAT", scrubbed.FORMAT + 1)
        data = sealed(ws, said(me), me)
    with pytest.raises(UpgradeError):
        open_scrubbed(ws.keys, ws.devices, data, HERE)
