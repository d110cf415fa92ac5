"""What several providers read in a URL alike: the prefix of objects, the address of a server, the part of an object."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

from metasync.backends.api import BackendUrl
from metasync.backends.names import count_bytes
from metasync.errors import BackendError, UsageError

if TYPE_CHECKING:
    from metasync.backends._shared.wire import Reply

_SKIPPED_AT_ONCE_BYTES: Final = 1 << 18

_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()~+=@,: -]+(/[A-Za-z0-9!_.*'()~+=@,: -]+)*")
_ACCOUNT = re.compile(r"[a-z0-9._-]{1,40}")


def prefix_of(url: BackendUrl, chars_max: int = 512) -> str:
    """The prefix that a URL names: its path without the outer slashes. `UsageError` if objects cannot be called so.

    `chars_max`: object stores take names of 1,024 bytes, and ours have a few hundred below the prefix.
    """
    prefix = url.path.strip("/")
    sound = _PREFIX.fullmatch(prefix) is not None and len(prefix) <= chars_max
    if prefix and (not sound or {".", ".."} & set(prefix.split("/"))):
        raise UsageError(
            f"not a prefix for objects: {prefix[:80]!r}",
            next_step=f"Write {url.scheme}://{url.host}/prefix with a plain prefix.",
        )
    return prefix


def check_account(url: BackendUrl) -> None:
    """`UsageError` if `account` in a URL cannot be the label of a linked account."""
    account = dict(url.params).get("account")
    if account is not None and _ACCOUNT.fullmatch(account) is None:
        raise UsageError(
            f"not the label of an account: {account[:40]!r}", next_step="`metasync auth --list` has the labels."
        )


def server_address(text: str) -> SplitResult | None:
    """An http or https address taken apart; None if it is none, or has more in it than host, port and path."""
    try:
        parts = urlsplit(text)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    alone = "@" not in parts.netloc and not parts.query and not parts.fragment and re.search(r"[^!-~]", text) is None
    return parts if sound and alone else None


def byte_range(offset: int, length: int | None) -> str:
    """The value of a Range header."""
    return f"bytes={offset}-" if length is None else f"bytes={offset}-{offset + length - 1}"


def part_of(answer: Reply, offset: int, length: int | None, max_bytes: int, attempt: str) -> bytes:
    """The part of an object that was asked for, from an answer that holds it, or all of the object.

    `RefusedError` where that is more than `max_bytes`, before anything of the body is read.
    """
    if answer.headers.get("content-encoding", "identity").lower() != "identity" or not answer.ends_for_sure:
        raise BackendError(f"{attempt}: the server sent it compressed, or does not say where it ends", retryable=False)
    first, size, part = 0, answer.size, None
    if answer.status == 206:
        part = answer.part
        if part is None or part[0] != offset:
            raise BackendError(f"{attempt}: the answer holds another part than was asked for")
        first, size = offset, part[2]
    count = None if size is None else count_bytes(size, offset, length, max_bytes, attempt)
    if part is not None and part[1] - offset != count:
        raise BackendError(f"{attempt}: the answer holds another part than was asked for")
    most = count if count is not None else min(max_bytes + 1, length if length is not None else max_bytes + 1)
    data = _cut(answer, offset - first, most)
    if count is None:
        count_bytes(offset + len(data), offset, length, max_bytes, attempt)
    elif len(data) != count:
        raise BackendError(f"{attempt}: the answer holds another part than was asked for")
    return data


def _cut(answer: Reply, skip: int, count: int) -> bytes:
    """`count` bytes of a body behind the first `skip`, and no more of it than that is read."""
    while skip:
        skipped = len(answer.read(min(skip, _SKIPPED_AT_ONCE_BYTES)))
        if not skipped:
            return b""
        skip -= skipped
    return answer.read(count)
