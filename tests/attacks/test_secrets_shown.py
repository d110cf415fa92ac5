"""Secrets that a `repr` shows end in logs, tracebacks and bug reports. Nothing that MetaSync makes shows one."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import pkgutil
import re
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from workspace_kit import CHEAP, PASSPHRASE, Lab, write

import metasync
from metasync.errors import MetaSyncError
from metasync.keys.keyring import WorkspaceKeys
from metasync.keys.slots import SlotSecret
from metasync.members import found, key_store, search
from metasync.workspace import Workspace

NAMES = ("a", "b", "c")
NEW = "another passphrase of ours"
SECRET = re.compile(r"secret|private|phrase|password|seed$|^key$|^code$|_key$|epoch_keys|token$")
SHOWN = re.compile(r"bytes|str\b|Any")
NO_SECRETS = {  # which a name makes look like one
    ("Persist", "key"): "the name under which a value is stored",
    ("Recall", "key"): "the same",
    ("_Run", "key"): "the name of a task",
    ("Problem", "key"): "by what a problem is told once",
    ("RotationReport", "new_passphrase"): "whether there is one",
    ("Provider", "token"): "the address of a token endpoint",
    ("Recipient", "key"): "a public key, or the id of one",
}


def classes() -> Iterator[type]:
    """All classes of MetaSync that can be imported here."""
    for module in pkgutil.walk_packages(metasync.__path__, "metasync."):
        try:
            inside = importlib.import_module(module.name)
        except ImportError:  # of a provider whose library is not installed
            continue
        for item in vars(inside).values():
            if isinstance(item, type) and item.__module__ == module.name:
                yield item


def shown_fields(cls: type) -> list[tuple[str, str]]:
    """(name, type) of what its `repr` shows."""
    if dataclasses.is_dataclass(cls):
        return [(f.name, str(f.type)) for f in dataclasses.fields(cls) if f.repr and "__repr__" in vars(cls)]
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return [(name, str(cls.__annotations__.get(name, ""))) for name in cls._fields]
    return []


def test_no_value_shows_a_field_that_holds_a_secret() -> None:
    """Whoever logs a value of ours, or lets a debugger show it, gives no key or phrase away."""
    bad = [
        f"{cls.__module__}.{cls.__name__}.{name}"
        for cls in classes()
        for name, kind in shown_fields(cls)
        if SECRET.search(name) and SHOWN.search(kind) and (cls.__name__, name) not in NO_SECRETS
    ]
    assert not bad


class Secrets:
    """What must not be shown: texts, and bytes as `repr` and as hex."""

    def __init__(self) -> None:
        self.texts: set[str] = set()

    def add(self, *secrets: bytes | str) -> None:
        for s in secrets:
            self.texts |= {s} if isinstance(s, str) else {s.hex(), repr(s)[2:-1]}

    def keys(self, keys: WorkspaceKeys) -> None:
        self.add(keys.id_key, *(key for _, key in keys.epoch_keys), *([keys.chunk_seed] if keys.encrypted else []))

    def refuse(self, shown: str) -> None:
        found_in = [s for s in self.texts if s in shown]
        assert not found_in, shown[:2000]


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Secrets:
    """Takes note of every secret that is made or opened while the test runs."""
    out = Secrets()
    out.add(PASSPHRASE, NEW)
    real_found, real_open, real_rings = found.found, key_store.open_admin_key, search.open_rings

    def noted(*a: Any, **k: Any) -> Any:
        made = real_found(*a, **k)
        out.add(made.recovery_phrase, made.device.sign_private, made.device.seal_private)
        out.keys(made.keys)
        return made

    def opened(*a: Any) -> Any:
        admin = real_open(*a)
        out.add(admin.admin_private, admin.secret.key)
        return admin

    def rings(*a: Any) -> Any:
        for opening in real_rings(*a):
            out.add(opening.admin_private)
            out.keys(opening.keys)
            yield opening

    monkeypatch.setattr(found, "found", noted)
    monkeypatch.setattr(search, "open_rings", rings)
    for module in ("members.key_store", "members.rotation", "members.passphrase", "members.invitation"):
        held = importlib.import_module(f"metasync.{module}")
        if hasattr(held, "open_admin_key"):
            monkeypatch.setattr(held, "open_admin_key", opened)
    return out


def values_alive() -> list[Any]:
    """The values of MetaSync that are in memory."""
    return [
        x
        for x in gc.get_objects()
        if str(type(x).__module__).startswith("metasync.")
        and (dataclasses.is_dataclass(x) or hasattr(type(x), "_fields"))
        and type(x).__repr__ is not object.__repr__
    ]


def test_nothing_in_memory_shows_a_secret(lab: Lab, secrets: Secrets) -> None:
    """After founding, cloning, inviting and rotating, the `repr` of nothing alive holds a key, a phrase or a code."""
    w = lab.init(lab.urls(*NAMES))
    write(w.directory, {"one": b"1" * 5000})
    reports: list[Any] = [w.push("first")]
    d = lab.clone(lab.urls(*NAMES))
    invited = w.invite("tablet", PASSPHRASE)
    secrets.add(invited.code)
    reports += [invited, w.key_change_passphrase(PASSPHRASE, NEW, kdf=CHEAP), w.key_rotate(NEW, kdf=CHEAP), d.pull()]
    secrets.add(reports[-2].recovery_phrase)
    with w._session("test") as s, d._session("test") as other:
        for session in (s, other):
            secrets.keys(session.keys)
        reports += [w.key_show(), w.status()]
        for x in [*reports, *values_alive()]:
            secrets.refuse(repr(x) + str(x))
    assert len(secrets.texts) > 20


def test_no_error_shows_a_secret(lab: Lab, secrets: Secrets) -> None:
    """What goes wrong with a wrong passphrase, phrase or invitation is told without it, traceback included."""
    w = lab.init(lab.urls(*NAMES))
    wrong = "a passphrase that nobody chose"
    phrase = "abandon " * 11 + "about"
    invited = w.invite("tablet", PASSPHRASE)
    secrets.add(wrong, phrase, invited.code)
    for act in (
        lambda: lab.clone(lab.urls(*NAMES), device="new", passphrase=wrong),
        lambda: lab.clone(lab.urls(*NAMES), device="new", passphrase=phrase),
        lambda: lab.clone(lab.urls(*NAMES), device="new", passphrase="abandon " * 12),
        lambda: lab.clone(lab.urls(*NAMES), device="new", expect="1-0000000000"),
        lambda: w.key_rotate(wrong),
        lambda: w.key_change_passphrase(PASSPHRASE, ""),
        lambda: w.device_revoke(["nobody"], PASSPHRASE),
        lambda: Workspace.clone(lab.root / "new", invite=invited.code[:-3] + "xyz"),
        lambda: Workspace.init(lab.root / "more", name="docs", backends=lab.urls(*NAMES), passphrase=PASSPHRASE),
    ):
        with pytest.raises(MetaSyncError) as e:
            act()
        secrets.refuse("".join(traceback.format_exception(e.value)).replace(repr(e.tb), "") + repr(e.value))


def test_a_slot_secret_shows_no_key() -> None:
    secret = SlotSecret(1, bytes(32), "docs", b"k" * 32, ((7, b"later secret"),))
    assert "kkk" not in repr(secret)
    assert "later" not in repr(secret)
