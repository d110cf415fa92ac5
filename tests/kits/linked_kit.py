"""A store of a linked account: a folder that takes a call only with a token that a stand-in gave.

    lab = linked(lab, monkeypatch, standin)
    lab.urls(...) + ["box:/some/folder?name=c"]

`box:/path` is the folder once `install` was called.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ClassVar

import pytest
from servers.oauth_standin import Standin

from metasync.backends import registry
from metasync.backends._shared.logins import Login, open_login
from metasync.backends.api import BackendUrl
from metasync.backends.folder import FolderBackend
from metasync.backends.wrappers.wrapper import Call, T, Wrapper
from metasync.errors import RefusedError

_standins: list[Standin] = []


def install(monkeypatch: pytest.MonkeyPatch, standin: Standin) -> None:
    """From now on the provider's URLs lead to folders, whose calls the stand-in's tokens open."""
    name = standin.provider.name
    monkeypatch.setitem(registry._BUILT_IN, name, "linked_kit:LinkedBackend")
    monkeypatch.setenv(f"METASYNC_{name.upper()}_ENDPOINT", standin.url)
    monkeypatch.setattr("linked_kit._standins", [standin])


class LinkedBackend(Wrapper):
    url_params: ClassVar[frozenset[str]] = frozenset({"account"})

    def __init__(self, root: str, login: Login) -> None:
        super().__init__(FolderBackend(root))
        self._login = login

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        """Any path of any account."""

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> LinkedBackend:
        login = open_login(url.scheme, dict(url.params).get("account"))
        if create_root:
            os.makedirs(url.path, exist_ok=True)
        return cls(url.path, login)

    def around(self, call: Call, do: Callable[[], T]) -> T:
        standin = _standins[0]
        token = self._login.token()
        if not standin.holds(token) and not standin.holds(self._login.renewed(token)):
            raise RefusedError(f"cannot {call.kind} {call.path}: 401")
        return do()
