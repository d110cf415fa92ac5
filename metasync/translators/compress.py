"""zstd, where it helps. One byte says what was done: 0 as it is, 1 zstd (RFC 8878)."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, ClassVar

from metasync.errors import FormatError
from metasync.translators._base import Buffer, Context

_RAW, _ZSTD = b"\0", b"\1"
SAMPLE_BYTES = 16 << 10
TRY_BYTES_MIN = 256 << 10  # below this, trying costs less than asking whether to


@cache
def _zstd() -> Any:
    """The library, loaded when something is packed or unpacked: 8 ms that most commands can do without."""
    return import_module("zstandard")


class Compress:
    """Compresses a segment unless samples of it, or the result, gain less than about 3 %."""

    name: ClassVar[str] = "compress"
    keyed: ClassVar[bool] = False

    def put(self, data: bytes, context: Context) -> bytes:
        if len(data) >= TRY_BYTES_MIN and not _samples_gain(data):
            return _RAW + data
        packed: bytes = _zstd().ZstdCompressor(level=context.level, write_content_size=True).compress(data)
        return _ZSTD + packed if len(packed) + len(packed) // 32 < len(data) else _RAW + data

    def get(self, data: Buffer, context: Context) -> Buffer:
        if data[:1] == _RAW:
            if len(data) - 1 > context.raw_bytes:
                raise FormatError("segment: longer than it may be")
            return memoryview(data)[1:]
        if data[:1] != _ZSTD:
            raise FormatError("segment: unknown compression")
        zstandard = _zstd()
        try:
            size = zstandard.frame_content_size(data[1:32])
            # never unpack what does not say how large it is; of an empty frame zstandard reads no more than the header
            if not 0 < size <= context.raw_bytes:
                raise FormatError("segment: unpacks to more than it may")
            unpacked: bytes = zstandard.ZstdDecompressor().decompress(memoryview(data)[1:], allow_extra_data=False)
            return unpacked
        except zstandard.ZstdError as e:
            raise FormatError(f"segment: does not unpack: {e}") from e


def _samples_gain(data: bytes) -> bool:
    """True when any of three samples shrinks: photos and archives are told apart at a fiftieth of the cost."""
    compressor = _zstd().ZstdCompressor(level=1)
    for start in (0, len(data) // 2, len(data) - SAMPLE_BYTES):
        sample = data[start : start + SAMPLE_BYTES]
        if len(compressor.compress(sample)) < len(sample) - len(sample) // 32:
            return True
    return False
