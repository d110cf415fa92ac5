"""What makes a folder a device: its local state, its keys, and the place it lies at (architecture.md, D11).

The keys are in the system's keyring. They are in a file of mode 0600 with `METASYNC_KEYRING=off`, or without a keyring.

Blocks are single-writer objects (consensus.md, rule 7.4): two processes that write as one device could take back what
was agreed. So the writer of a block holds the workspace's lock, and works in the folder that was enrolled. A copied
home directory or disk image has the same keys at another place; a moved folder keeps its place. A place is a machine, a
file system and an inode. The device number (`st_dev`) does not count, because a stick gets another one when it is
plugged in again.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from metasync.backends._folder_checks import place_of
from metasync.backends._shared.credentials import drop_from_keyring, from_keyring, to_keyring
from metasync.backends.names import is_name
from metasync.codec import Reader, bytes32
from metasync.config import Config
from metasync.consensus import Barred, checked_memory
from metasync.consensus.records.era import Passage, decode_passage
from metasync.consensus.records.state import State, decode_state
from metasync.errors import CHECK_PATH, FormatError, UsageError, WorkspaceError, step_after
from metasync.events import Listener, Notice
from metasync.keys.device_set import (
    Certificate,
    DeviceIdentity,
    DeviceSet,
    decode_certificate,
    decode_device_set,
    decode_identity,
)
from metasync.keys.keyring import WorkspaceKeys, decode_keys
from metasync.local import state_keys
from metasync.local.lock import WorkspaceLock
from metasync.local.state import LocalDb, refuse_strangers
from metasync.local.state_keys import (
    CLONE_ANEW,
    CLONING_KEY,
    CONFIG_KEY,
    DEVICE_KEY,
    GIVEN_UP_KEY,
    HUNG_KEY,
    META_KIND,
    NAME_KEY,
    PLACE_KEY,
    UNFINISHED_KEY,
    json_codec,
    local_value,
)
from metasync.worktree.names import STATE_DB, STATE_NAME

STATE_DIR: Final = STATE_NAME.decode()
DB_FILE: Final = STATE_DB.decode()
BEFORE: Final = "before"  # in STATE_DIR: the one that was lost, where this one was made in its place
CARRIED_OVER: Final = ("replaced", "bases")  # of it, for they hold bytes of the user's
NAME_CHARS_MAX: Final = 100
IDENTITY_BYTES: Final = 32
HUNG_LATELY_S: Final = 120.0  # so long later commands wait less for a backend that hung
_SECRET_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True)
class Link:
    """A link to a backend: its URL, the workspace's folder there, its native identity when linked (hex)."""

    url: str
    folder: str
    identity: str


def _link(url: str, folder: str, identity: str) -> Link:
    """Makes a link of JSON's values. `ValueError`, `TypeError` for values that no link has."""
    if not isinstance(url, str) or not is_name(folder) or len(bytes.fromhex(identity)) != IDENTITY_BYTES:
        raise ValueError("not a link")
    return Link(url, folder, identity)


_LINKS: Final = json_codec(
    "the ways to the backends", lambda told: {name: _link(**link) for name, link in told.items()}
)
LINKS_KEY: Final = state_keys.LINKS_KEY.holding(
    lambda links: json.dumps({name: asdict(link) for name, link in sorted(links.items())}).encode(), _LINKS.decode
)
JOINING_KEY: Final = state_keys.JOINING_KEY.holding(*LINKS_KEY.codec)
WIPE_KEY: Final = state_keys.WIPE_KEY.holding(*LINKS_KEY.codec)
BASE_KEY: Final = state_keys.BASE_KEY.holding(State.encode, decode_state)
NEWEST_KEY: Final = state_keys.NEWEST_KEY.holding(State.encode, decode_state)
PARTS_KEY: Final = state_keys.PARTS_KEY.holding(State.encode, decode_state)
ERA_KEY: Final = state_keys.ERA_KEY.holding(Passage.encode, decode_passage)
MEMORY_KEY: Final = state_keys.MEMORY_KEY.holding(bytes, checked_memory)


def stored_newest(db: LocalDb) -> State:
    """The newest state that this device has seen decided; the local state has its config."""
    return db.get(NEWEST_KEY) or db.need(BASE_KEY)


def stored_devices(db: LocalDb, state: State, ns_id: bytes) -> DeviceSet:
    """The device set of a stored state."""
    data = db.get_object(state.devices)
    if data is None:
        why = "it does not hold the device set of the version this folder is at"
        raise WorkspaceError(f"the local state in {STATE_DIR} is damaged: {why}", next_step=CLONE_ANEW)
    return local_value(lambda d: decode_device_set(d, ns_id, known=True), data)


def new_folder(directory: str | os.PathLike[str], name: str, *, anew: bool = False) -> Path:
    """The folder for a new workspace, checked: it is none yet, lies in none, and the name can be used.

    `anew`: it may have a local state, which is of no use any more (`session.lost_state`).
    """
    folder = absolute(directory)
    if not name.strip() or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise UsageError(f"a workspace's name has 1 to {NAME_CHARS_MAX} printable characters, not {name!r}")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    for place in (folder, *folder.parents):
        if (place / STATE_DIR / DB_FILE).exists() and not (anew and place == folder):
            where = "is a workspace already" if place == folder else f"lies in the workspace {place}"
            raise WorkspaceError(f"{folder} {where}", next_step="`metasync status` there tells more.")
    _refuse_strangers(folder)  # at once, and not when the workspace is used
    return folder


def _refuse_strangers(folder: Path) -> None:
    refuse_strangers(folder, folder / STATE_DIR, (DB_FILE, KEYS_FILE))


def absolute(directory: str | os.PathLike[str]) -> Path:
    """The same folder from the root. `..` is followed on the disk: the parent of `photos/../desk` is not `photos`."""
    path = Path(directory).absolute()
    return path.resolve() if ".." in path.parts else path


def folder_above(directory: str | os.PathLike[str]) -> Path:
    """The folder of the workspace that `directory` lies in. `WorkspaceError` if it lies in none, or in a stranger's."""
    start = absolute(directory)
    for folder in (start, *start.parents):
        if (folder / STATE_DIR / DB_FILE).is_file():
            _refuse_strangers(folder)
            return folder
    if not start.is_dir():
        why = "it is no directory" if start.exists() else "there is no such directory"
        raise WorkspaceError(f"{start} is not in a MetaSync workspace: {why}", next_step="Check the path.")
    if (start / STATE_DIR).is_dir():
        raise WorkspaceError(
            f"{start}: the local state of this workspace is gone: there is no {STATE_DIR}/{DB_FILE}",
            next_step=CLONE_ANEW,
        )
    raise WorkspaceError(
        f"{start} is not in a MetaSync workspace",
        next_step="`metasync init` makes one here; `metasync clone` brings one here.",
    )


def is_unfinished(folder: Path, name: str | None) -> bool:
    """Whether the folder is an interrupted clone of `name` (None: by an invitation)."""
    if not (folder / STATE_DIR / DB_FILE).is_file():
        return False
    _refuse_strangers(folder)
    with contextlib.closing(LocalDb.open(folder / STATE_DIR / DB_FILE)) as db:
        return db.has(CLONING_KEY) and (name is None or db.get(NAME_KEY) == name)


def take_back(folder: Path) -> bool:
    """Removes the local state of a clone that brought no file yet. False: there are files, and all stays."""
    if (folder / STATE_DIR / BEFORE).exists() or any(not e.name.startswith(STATE_DIR) for e in folder.iterdir()):
        return False
    import shutil

    gone = folder / f"{STATE_DIR}.new"
    shutil.rmtree(gone, ignore_errors=True)
    (folder / STATE_DIR).rename(gone)  # at once: half a local state is no use
    shutil.rmtree(gone, ignore_errors=True)
    return True


def write_local(
    folder: Path,
    name: str,
    keys: WorkspaceKeys,
    device: DeviceIdentity,
    certificate: Certificate,
    config: Config,
    devices: DeviceSet,
    links: Mapping[str, Link],
    state: State,
    *,
    unfinished: bool = False,
    anew: bool = False,
    objects: Mapping[bytes, bytes] = MappingProxyType({}),
    more: Mapping[str, bytes | None] = MappingProxyType({}),
) -> None:
    """Makes `.metasync` under another name, and renames it: whole or not at all. `more`: further values.

    `objects`: of the index of `state`, opened, by hash, where some were read already.

    `anew`: one that is there, and of no use, then lies in it as `before`. `WorkspaceError`, with another there.
    """
    try:
        folder.mkdir(0o755, parents=True, exist_ok=True)  # whatever the umask: see `refuse_strangers`
        building = folder / f"{STATE_DIR}.new"
        if (building / BEFORE).exists() and not (folder / STATE_DIR).exists():
            (building / BEFORE).rename(folder / STATE_DIR)  # killed between the two renames below
        if building.exists():
            import shutil

            shutil.rmtree(building)
        building.mkdir(mode=0o700)
        keep_secret(building, account(device.device_id), _secret(keys, device, certificate))
        with contextlib.closing(LocalDb.open(building / DB_FILE)) as db, db.transaction():
            db.set(NAME_KEY, name)
            db.set(DEVICE_KEY, device.device_id)
            db.set(CONFIG_KEY, config)
            db.set(LINKS_KEY, dict(links))
            db.set(BASE_KEY, state)
            db.put_objects([(state.config, META_KIND, config.encode()), (state.devices, META_KIND, devices.encode())])
            db.put_objects((digest, META_KIND, data) for digest, data in objects.items())
            db.set(PLACE_KEY, place_now(building))  # before anybody can copy it
            db.set(UNFINISHED_KEY, unfinished or None)
            db.set(CLONING_KEY, unfinished or None)
            for key, value in more.items():
                db.set_value(key, value)
        with contextlib.ExitStack() as held:
            if anew and (folder / STATE_DIR).exists():  # its lock: no process may be at work with it
                held.enter_context(WorkspaceLock(folder / STATE_DIR).acquire("metasync clone"))
                (folder / STATE_DIR).rename(building / BEFORE)
            building.rename(folder / STATE_DIR)
        for kept in CARRIED_OVER:
            with contextlib.suppress(FileNotFoundError):
                (folder / STATE_DIR / BEFORE / kept).rename(folder / STATE_DIR / kept)
    except OSError as e:
        raise WorkspaceError(
            f"{folder / STATE_DIR} cannot be made: {e.strerror}", next_step="Check the folder's rights and space."
        ) from e


def account(device_id: bytes) -> str:
    """The name of a device's keys in the system's keyring."""
    return f"device {device_id.hex()}"


def save_secret(folder: Path, keys: WorkspaceKeys, device: DeviceIdentity, certificate: Certificate) -> None:
    """Replaces the device's own keys: the old ones or the new ones are there at any time."""
    keep_secret(folder / STATE_DIR, account(device.device_id), _secret(keys, device, certificate))


def _secret(keys: WorkspaceKeys, device: DeviceIdentity, certificate: Certificate) -> bytes:
    return bytes32(keys.encode()) + bytes32(device.encode()) + bytes32(certificate.encode())


def load_secret(folder: Path, db: LocalDb) -> tuple[WorkspaceKeys, DeviceIdentity, Certificate]:
    """The device's own keys."""
    secret = kept_secret(folder / STATE_DIR, account(db.need(DEVICE_KEY)))
    try:
        r = Reader(secret, "device keys")
        keys = decode_keys(r.bytes32(_SECRET_BYTES_MAX))
        device = decode_identity(r.bytes32(_SECRET_BYTES_MAX))
        certificate = decode_certificate(r.bytes32(_SECRET_BYTES_MAX))
        r.end()
    except FormatError as e:
        raise WorkspaceError(f"this device's keys are damaged: {e.message}", next_step=CLONE_ANEW) from e
    return keys, device, certificate


def place_now(state_dir: Path) -> bytes:
    """32 bytes: the machine, the file system and the inode of `.metasync`."""
    folder = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return place_of(folder, str(state_dir))
    finally:
        os.close(folder)


def given_up(db: LocalDb) -> frozenset[str]:
    """The backends that this device knows to lack their ballast."""
    return db.get(GIVEN_UP_KEY) or frozenset()


def hung_lately(db: LocalDb, now: float) -> dict[str, float]:
    """The backends that gave no answer a moment ago, by name, with the time."""
    noted = db.get(HUNG_KEY) or {}
    return {n: at for n, at in noted.items() if 0 <= now - at < HUNG_LATELY_S}


class IdentityGuard:
    """The guard of one open workspace, for several threads.

    `place()` is where the workspace lies now; `lock()` takes its lock, or raises `WorkspaceError` at once. A workspace
    of an older version has no place on record: it is recorded here.
    """

    def __init__(
        self,
        directory: Path,
        db: LocalDb,
        *,
        place: Callable[[], bytes],
        lock: Callable[[], contextlib.AbstractContextManager[object]],
    ) -> None:
        self._directory = directory
        self._place = place
        self._lock = lock
        self._mutex = threading.Lock()
        self._held = 0
        self._borrowed = contextlib.ExitStack()
        self._borrows = self._lends = False
        recorded = db.get(PLACE_KEY)
        if recorded is None:
            recorded = place()
            db.set(PLACE_KEY, recorded)
        self._recorded = recorded

    def __call__(self) -> Barred | None:
        """Says why no block may be written now; None: it may. Takes the lock, if it is free and not held."""
        if self.is_copy():
            return Barred(
                f"{self._directory} is a copy of another folder, whose device identity it must not use",
                "`metasync clone --merge` there gives it an identity of its own, and all its files stay",
            )
        with self._mutex:
            if not (self._held or self._borrows):
                if not self._lends:  # to what an operation left under way: nobody would give the lock back
                    return Barred("the operation that this is of has ended", "run again")
                try:
                    self._borrowed.enter_context(self._lock())
                except WorkspaceError as e:
                    text = f"what is under way there must be finished first, and {e.message}"
                    return Barred(text, "run again when that ended")
                self._borrows = True
            return None

    def tell(self, config: Config, listener: Listener) -> None:
        """Warns the user of keys that others can read, and of a copy, which votes through log-form acceptors alone."""
        if text := exposed(self._directory / STATE_DIR):
            listener(Notice(text, warning=True))
        names = sorted(b.name for b, a in config.acceptors if a.form == "block")
        if names and self.is_copy():
            text = f"this folder is a copy of another: it does not vote on {', '.join(names)}"
            listener(Notice(f"{text}. `metasync clone --merge` there gives it an identity of its own", warning=True))

    def is_copy(self) -> bool:
        """True when `.metasync` is not where this device was enrolled."""
        try:
            return self._place() != self._recorded
        except OSError:
            return True

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """While the caller holds the workspace's lock."""
        with self._mutex:
            self._held += 1
        try:
            yield
        finally:
            with self._mutex:
                self._held -= 1

    @contextlib.contextmanager
    def lending(self) -> Iterator[None]:
        """During an operation: the lock is taken for a block where the operation does not hold it, until its end."""
        with self._mutex:
            self._lends = True
        try:
            yield
        finally:
            with self._mutex:
                self._borrows = self._lends = False
                self._borrowed.close()


KEYS_FILE = "device.key"
_LEFT_S = 3600.0  # a save takes milliseconds
IN_KEYRING = b"in the system's keyring\n"


def keep_secret(state_dir: Path, account: str, secret: bytes) -> None:
    """Keeps `secret` for this workspace; `account` names it in the keyring. The file appears whole or not at all."""
    path = state_dir / KEYS_FILE
    content = IN_KEYRING if to_keyring(account, base64.b64encode(secret).decode("ascii")) else secret
    temporary = path.with_suffix(f".new-{os.getpid()}-{threading.get_native_id()}")  # a `status` may save beside a push
    for left in state_dir.glob(f"{path.stem}.new*"):  # of a process that died over it
        with contextlib.suppress(FileNotFoundError):
            if left == temporary or time.time() - left.stat().st_mtime > _LEFT_S:
                left.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)


def kept_secret(state_dir: Path, account: str) -> bytes:
    """Reads what `keep_secret` kept. `WorkspaceError` if it is gone."""
    try:
        content = (state_dir / KEYS_FILE).read_bytes()
    except OSError as e:
        raise WorkspaceError(
            f"this device's keys are not in {state_dir / KEYS_FILE}: {e.strerror}",
            next_step=CLONE_ANEW,
        ) from e
    if content != IN_KEYRING:
        return content
    secret = _keyring_get(account)
    if secret is None:
        raise WorkspaceError(
            "this device's keys are not in the system's keyring any more, or the keyring is locked",
            next_step=f"Unlock it. If they are gone: {CLONE_ANEW}",
        )
    return secret


def exposed(state_dir: Path) -> str:
    """A warning where other users may read this device's keys; "" where they may not."""
    path = state_dir / KEYS_FILE
    try:
        mode = path.stat().st_mode
        shown = mode & (stat.S_IRGRP | stat.S_IROTH) and path.read_bytes() != IN_KEYRING
    except OSError:
        return ""
    if not shown:
        return ""
    return f"other users may read this device's keys in {path}, and with them all versions: chmod 600 {path}"


def drop_secret(state_dir: Path, db: LocalDb) -> None:
    """Removes this device's keys from the system's keyring, for a folder that is removed."""
    if (state_dir / KEYS_FILE).read_bytes() == IN_KEYRING:
        drop_from_keyring(account(db.need(DEVICE_KEY)))


def _keyring_get(account: str) -> bytes | None:
    value = from_keyring(account, {})  # whatever the environment says now: the keys were put there
    try:
        return base64.b64decode(value, validate=True) if value else None
    except ValueError:  # something else under our name: as good as nothing
        return None


def where(state_dir: Path) -> str:
    """Where a device's keys are kept: for people."""
    try:
        content = (state_dir / KEYS_FILE).read_bytes()
    except OSError:
        return "nowhere: the file that should hold them cannot be read"
    return "the system's keyring" if content == IN_KEYRING else str(state_dir / KEYS_FILE)


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Tells what the operating system refuses as a `WorkspaceError`, but for a pipe that the caller's reader closed."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as e:
        where = f"{os.fsdecode(e.filename)}: " if isinstance(e.filename, str | bytes) else ""
        raise WorkspaceError(
            f"{what} failed: {where}{e.strerror or e}",
            next_step=step_after(e, CHECK_PATH),
        ) from e
