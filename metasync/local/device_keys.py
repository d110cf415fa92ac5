"""Where a device keeps its own keys: the system's keyring, or a file of mode 0600 (architecture.md, D11).

`METASYNC_KEYRING=off` chooses the file. So does a system without a keyring, or without the `keyring` package.
"""

from __future__ import annotations

import base64
import contextlib
import os
import threading
import time
from pathlib import Path

from metasync.errors import WorkspaceError

SERVICE = "metasync"
FILE = "device.key"
LEFT_S = 3600.0  # a save takes milliseconds
IN_KEYRING = b"in the system's keyring\n"


def save(state_dir: Path, account: str, secret: bytes) -> None:
    """Keeps `secret` for this workspace; `account` names it in the keyring. The file appears whole or not at all."""
    path = state_dir / FILE
    content = secret
    if _keyring_set(account, secret):
        content = IN_KEYRING
    temporary = path.with_suffix(f".new-{os.getpid()}-{threading.get_native_id()}")  # a `status` may save beside a push
    for left in state_dir.glob(f"{path.stem}.new*"):  # of a process that died over it
        with contextlib.suppress(FileNotFoundError):
            if left == temporary or time.time() - left.stat().st_mtime > LEFT_S:
                left.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)


def load(state_dir: Path, account: str) -> bytes:
    """What `save` kept. `WorkspaceError` when it is gone."""
    try:
        content = (state_dir / FILE).read_bytes()
    except OSError as e:
        raise WorkspaceError(
            f"this device's keys are not in {state_dir / FILE}: {e.strerror}",
            next_step="Clone the workspace into a new folder; the passphrase gives this device new keys.",
        ) from e
    if content != IN_KEYRING:
        return content
    secret = _keyring_get(account)
    if secret is None:
        raise WorkspaceError(
            "this device's keys are not in the system's keyring any more, or the keyring is locked",
            next_step="Unlock it, or clone the workspace into a new folder.",
        )
    return secret


def _keyring_set(account: str, secret: bytes) -> bool:
    if os.environ.get("METASYNC_KEYRING", "").lower() == "off":
        return False
    try:
        import keyring
        import keyring.errors
    except ImportError:
        return False
    try:
        keyring.set_password(SERVICE, account, base64.b64encode(secret).decode("ascii"))
        return _keyring_get(account) == secret
    except (keyring.errors.KeyringError, RuntimeError):
        return False


def _keyring_get(account: str) -> bytes | None:
    try:
        import keyring
        import keyring.errors
    except ImportError:
        return None
    try:
        value = keyring.get_password(SERVICE, account)
    except (keyring.errors.KeyringError, RuntimeError):
        return None
    try:
        return base64.b64decode(value, validate=True) if value else None
    except ValueError:  # something else under our name: as good as nothing
        return None


def where(state_dir: Path) -> str:
    """Where a device's keys are kept: for people."""
    try:
        content = (state_dir / FILE).read_bytes()
    except OSError:
        return "nowhere: the file that should hold them cannot be read"
    return "the system's keyring" if content == IN_KEYRING else str(state_dir / FILE)
