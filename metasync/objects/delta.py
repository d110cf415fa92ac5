"""A blob as its difference to another one, its base (format.md, 5.8): a zstd frame with the base as prefix.

The frame is what `zstd --patch-from` makes. Pure; what is opened is as long as the delta says, and is checked by the
caller against the blob's id.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final

from metasync.codec import u8, u32
from metasync.errors import FormatError, UpgradeError

CODEC: Final = 1
HEAD_BYTES: Final = 5
BLOB_BYTES_MAX: Final = 16 << 20  # of a base, and of what is made of it: no chunk is longer
LEVEL: Final = 3
LONG_BYTES_LEAST: Final = 1 << 20  # of a base of which the usual tables would hold a part only
TABLE_SHARE_LOG: Final = 3  # the tables of a long base have a row for each 4 to 8 of its bytes
WINDOW_LOG_LEAST: Final = 10
GAIN_SHARE: Final = 8  # a delta is to save an eighth of what the blob has by itself: its base is read for it each time
GAIN_BYTES_LEAST: Final = 128  # and more than its row takes in footer and index


@cache
def _zstd() -> Any:
    return import_module("zstandard")


def make(base: bytes, new: bytes) -> bytes:
    """The delta that gives `new` of `base`, both of at most `BLOB_BYTES_MAX` bytes, `new` not empty."""
    if not 0 < len(new) <= BLOB_BYTES_MAX or len(base) > BLOB_BYTES_MAX:
        raise ValueError("a blob that no delta may have")
    zstd, together = _zstd(), len(base) + len(new)
    tables = len(base).bit_length() - TABLE_SHARE_LOG
    parameters = zstd.ZstdCompressionParameters.from_level(
        LEVEL,
        source_size=together,
        window_log=max(WINDOW_LOG_LEAST, together.bit_length()),
        **({"hash_log": tables, "chain_log": tables} if len(base) >= LONG_BYTES_LEAST else {}),
        write_content_size=True,
        write_checksum=False,
        write_dict_id=False,
    )
    frame: bytes = zstd.ZstdCompressor(compression_params=parameters, dict_data=_prefix(base)).compress(new)
    return u8(CODEC) + u32(len(new)) + frame


def gain(base: bytes, new: bytes, level: int) -> bytes | None:
    """The same where it is clearly smaller than `new` is when it is compressed by itself at this level; else None."""
    made, alone = make(base, new), alone_bytes(new, level)
    return made if len(made) + max(alone // GAIN_SHARE, GAIN_BYTES_LEAST) <= alone else None


def alone_bytes(new: bytes, level: int) -> int:
    """How many bytes a blob has by itself, compressed at this level where that makes it smaller."""
    return min(len(new), len(_zstd().ZstdCompressor(level=level).compress(new)))


def opened(base: bytes | memoryview, delta: bytes | memoryview) -> bytes:
    """The blob that a delta gives of this base; `FormatError` where it gives none, `UpgradeError` where its codec is a
    later one. Builds no more than it says.
    """
    if delta and delta[0] > CODEC:
        raise UpgradeError("a blob is stored as a newer kind of delta", next_step="Upgrade metasync, then try again.")
    if len(delta) <= HEAD_BYTES or delta[0] != CODEC:
        raise FormatError("delta: of codec 0, or cut short")
    size = int.from_bytes(delta[1:HEAD_BYTES], "big")
    zstd, frame = _zstd(), memoryview(delta)[HEAD_BYTES:]
    try:
        if not 0 < size <= BLOB_BYTES_MAX or zstd.frame_content_size(bytes(frame[:32])) != size:
            raise FormatError("delta: not as long as it says")
        reader = zstd.ZstdDecompressor(dict_data=_prefix(bytes(base)))
        out: bytes = reader.decompress(frame, allow_extra_data=False)
    except zstd.ZstdError as e:
        raise FormatError(f"delta: does not unpack: {e}") from e
    if len(out) != size:
        raise FormatError("delta: not as long as it says")
    return out


def _prefix(base: bytes) -> Any:
    zstd = _zstd()
    return zstd.ZstdCompressionDict(base, dict_type=zstd.DICT_TYPE_RAWCONTENT) if base else None
