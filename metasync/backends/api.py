"""What a provider in a package of its own imports (docs/howto/write-a-backend.md): the contract, errors, checks.

What stands here keeps its name and its meaning within a major version; the modules it comes from may change.
"""

from __future__ import annotations

from metasync.backends._base import (
    Backend,
    BackendUrl,
    Digest,
    DigestKind,
    ExplainsForm,
    Listed,
    LogForm,
    Probes,
    Space,
    Sweeps,
    TellsDigests,
    TellsSpace,
)
from metasync.backends._names import check_part, count_bytes, is_name, native_identity, split_folder, split_path
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError, UsageError

__all__ = [
    "Backend",
    "BackendError",
    "BackendUrl",
    "Digest",
    "DigestKind",
    "ExplainsForm",
    "FullError",
    "Listed",
    "LogForm",
    "NotFoundError",
    "Probes",
    "RefusedError",
    "Space",
    "Sweeps",
    "TellsDigests",
    "TellsSpace",
    "UnreachableError",
    "UsageError",
    "check_part",
    "count_bytes",
    "is_name",
    "native_identity",
    "split_folder",
    "split_path",
]
