"""A store that counts its requests and sends them away for a while: a folder, usable from several processes.

`limited://user@server/path` is the folder, for the account `user`, once `install` was called and its folder is on the
Python path. The file `<path>.rule` says what the server does (`Rule`), `<path>.calls` holds a line for each request:
time, kind, path, answer.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, NamedTuple

from metasync.backends.api import BackendUrl
from metasync.backends.folder import FolderBackend
from metasync.backends.wrappers.wrapper import Call, T, Wrapper
from metasync.errors import BackendError


class Rule(NamedTuple):
    """`until`: all requests before this time (seconds since 1970) are sent away, and asked to come back then, or after
    `after_s` where that is not None. `first_s`: the same for so many seconds after the first request. `per_s`: so many
    are answered in any second; None: any number."""

    until: float = 0.0
    after_s: float | None = None
    per_s: int | None = None
    first_s: float = 0.0


class LimitedBackend(Wrapper):
    url_params: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, root: str) -> None:
        super().__init__(FolderBackend(root))
        self.root = root

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        """Any path of any user."""

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> LimitedBackend:
        if create_root:
            os.makedirs(url.path, exist_ok=True)
        return cls(url.path)

    def around(self, call: Call, do: Callable[[], T]) -> T:
        if call.kind == "identity":  # no request: every provider knows it
            return do()
        now = time.time()
        after_s = _refusal(self.root, now)
        _note(self.root, f"{now:.6f} {call.kind} {call.path or '.'} {200 if after_s is None else 429}")
        if after_s is not None:
            raise BackendError(f"cannot {call.kind} {call.path}: 429", retry_after_s=after_s)
        return do()


def _refusal(root: str, now: float) -> float | None:
    try:
        rule = Rule(*json.loads(Path(f"{root}.rule").read_text()))
    except OSError:
        return None
    until = rule.until
    if rule.first_s:
        made = calls(root)
        until = (made[0].at if made else now) + rule.first_s
    if now < until:
        return until - now if rule.after_s is None else rule.after_s
    if rule.per_s is not None:
        lately = [c for c in calls(root) if c.at > now - 1.0 and c.status == 200]
        if len(lately) >= rule.per_s:
            return 1.0
    return None


def _note(root: str, line: str) -> None:
    file = os.open(f"{root}.calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


class Made(NamedTuple):
    at: float
    kind: str
    path: str
    status: int


def calls(root: str | Path) -> list[Made]:
    """The requests that the store was asked since `forget`."""
    try:
        lines = Path(f"{root}.calls").read_text().splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [Made(float(at), kind, path, int(status)) for at, kind, path, status in fields]


def forget(root: str | Path) -> None:
    Path(f"{root}.calls").unlink(missing_ok=True)


def rule(root: str | Path, **fields: float | None) -> None:
    """Sets what the server does from now on."""
    beside = Path(f"{root}.rule.new")
    beside.write_text(json.dumps(Rule(**fields)))  # type: ignore[arg-type]
    beside.replace(f"{root}.rule")


def install(folder: Path) -> str:
    """Makes a package's metadata with the entry point in `folder`. -> what goes on PYTHONPATH."""
    info = folder / "limited_kit-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: limited-kit\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[metasync.backends]\nlimited = limited_kit:LimitedBackend\n")
    return os.pathsep.join([str(folder), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
