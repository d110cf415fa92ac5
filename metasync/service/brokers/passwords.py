"""Where a broker's password comes from: never from the URL."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from metasync.backends._shared.credentials import from_keyring
from metasync.errors import UsageError
from metasync.runtime.addresses import is_loopback
from metasync.runtime.daemon_keys import PASSWORD, PASSWORD_FILE, BrokerUrl

PASSWORD_BYTES_MAX: Final = 4096


def with_password(url: BrokerUrl, environ: Mapping[str, str] = os.environ) -> BrokerUrl:
    """The same with its password: of the environment, of a file of the user's alone, of the system's keyring.

    `UsageError`: the file cannot be read or others can read it; or the password would go over the network in the clear.
    """
    found = environ.get(PASSWORD) or ""
    if not found and (path := environ.get(PASSWORD_FILE)):
        found = _from_file(path)
    if not found and url.user:
        found = from_keyring(f"{url.user}@{url.host}", environ) or ""
    if found and not url.is_tls and not is_loopback(url.host):
        raise UsageError(f"the password of {url.where} would be sent in the clear", next_step=f"Write {url.scheme}s://")
    return replace(url, password=found)


def _from_file(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as f:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode) or mode & 0o077:
                raise UsageError(f"others can read {path}", next_step=f"Run: chmod 600 {path}")
            data = f.read(PASSWORD_BYTES_MAX)
    except OSError as e:
        raise UsageError(f"{path} cannot be read: {e.strerror}", next_step=f"Check {PASSWORD_FILE}.") from e
    return data.decode("utf-8", "replace").strip("\r\n")
