"""The chain of translators: order, bounds, and that nothing unverified is decrypted or parsed."""

from __future__ import annotations

import random
from importlib.metadata import entry_points
from typing import ClassVar

import pytest
import zstandard
from content_kit import FULL, SEALED_ONLY, noise, refuses
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from metasync.errors import FormatError, UpgradeError
from metasync.session.open_backend import chain_of
from metasync.translators._base import Chain, Context, IntegrityError
from metasync.translators.compress import TRY_BYTES_MIN, Compress
from metasync.translators.encrypt import Encrypt
from metasync.translators.integrity import Integrity, sha256

MIB = 1 << 20


def context(data: bytes = b"", **changes: object) -> Context:
    values: dict[str, object] = {"key": b"k" * 32, "number": 3, "binding": b"ws", "raw_bytes": len(data), **changes}
    return Context(**values)


def put(chain: Chain, data: bytes, c: Context) -> bytes:
    return chain.seal(chain.shrink(data, c), c)


class Spy:
    """A step that leaves its mark at the end, and notes when it is called."""

    keyed: ClassVar[bool] = False

    def __init__(self, name: str, calls: list[str], keyed: bool = False) -> None:
        self.name, self.calls, self.keyed = name, calls, keyed

    def put(self, data: bytes, context: Context) -> bytes:
        self.calls.append(f"put {self.name}")
        return data + self.name.encode()

    def get(self, data: bytes, context: Context) -> bytes:
        self.calls.append(f"get {self.name}")
        assert data.endswith(self.name.encode())
        return data[: -len(self.name)]


def test_put_runs_in_order_and_get_in_reverse():
    calls: list[str] = []
    chain = Chain([Spy("a", calls), Spy("b", calls), Spy("c", calls, keyed=True), Spy("d", calls)])
    c = context()
    assert chain.names == ("a", "b", "c", "d")
    assert chain.shrink(b"x", c) == b"xab"
    assert chain.seal(b"xab", c) == b"xabcd"
    assert calls == ["put a", "put b", "put c", "put d"]
    calls.clear()
    assert chain.get(b"xabcd", c) == b"x"
    assert calls == ["get d", "get c", "get b", "get a"]
    assert chain.open(b"xabcd", c) == b"xab"


def test_the_built_in_steps_are_found_by_entry_point():
    found = {e.name: e.load() for e in entry_points(group="metasync.translators")}
    assert found["compress"] is Compress
    assert found["encrypt"] is Encrypt
    assert found["integrity"] is Integrity
    assert all(cls.name == name for name, cls in found.items())
    assert (Compress.keyed, Encrypt.keyed, Integrity.keyed) == (False, True, True)


def test_a_step_that_is_not_known_here_asks_for_an_upgrade():
    with pytest.raises(UpgradeError, match="'erasure', which is not installed"):
        chain_of(("compress", "erasure", "integrity"))


@given(st.binary(max_size=2000) | st.integers(0, 5000).map(bytes), st.booleans(), st.sampled_from([FULL, SEALED_ONLY]))
@settings(max_examples=examples(60))
def test_round_trip(data, encrypted, chain):
    c = context(data, encrypted=encrypted)
    stored = put(chain, data, c)
    assert put(chain, data, c) == stored, "pure: the same bytes and context give the same result"
    back = context(data, encrypted=encrypted, digest=sha256(stored))
    assert chain.get(stored, back) == data
    if encrypted and len(data) >= 4:
        assert data not in stored


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_wrong_digest_is_refused_before_anything_is_decrypted(encrypted):
    calls: list[str] = []

    class SpiedEncrypt(Encrypt):
        def get(self, data: bytes, context: Context) -> bytes:
            calls.append("decrypted")
            return super().get(data, context)

    class SpiedCompress(Compress):
        def get(self, data: bytes, context: Context) -> bytes:
            calls.append("unpacked")
            return super().get(data, context)

    chain = Chain([SpiedCompress(), SpiedEncrypt(), Integrity()])
    data = b"some text, some text, some text"
    stored = put(chain, data, context(data, encrypted=encrypted))
    for bad in (stored[:-1], stored + b"\0", bytes(len(stored)), b""):
        with pytest.raises(IntegrityError, match="not the bytes"):
            chain.get(bad, context(data, encrypted=encrypted, digest=sha256(stored)))
    assert calls == []
    assert chain.get(stored, context(data, encrypted=encrypted, digest=sha256(stored))) == data
    assert calls == ["decrypted", "unpacked"]


@pytest.mark.parametrize("digest_known", [True, False])
def test_every_altered_byte_is_noticed(digest_known):
    data = b"abc" * 100
    stored = put(FULL, data, context(data))
    digest = sha256(stored) if digest_known else None
    for at in range(len(stored)):
        bad = bytearray(stored)
        bad[at] ^= 1 << at % 8
        with pytest.raises(FormatError):
            FULL.get(bytes(bad), context(data, digest=digest))


@pytest.mark.parametrize(
    "changes",
    [{"key": b"K" * 32}, {"number": 4}, {"number": 2**32 - 1}, {"binding": b"other"}, {"binding": b""}],
    ids=["key", "number", "last number", "binding", "no binding"],
)
def test_what_belongs_elsewhere_does_not_open(changes):
    data = b"secret"
    stored = put(FULL, data, context(data))
    with pytest.raises(FormatError, match="does not open"):
        FULL.get(stored, context(data, **changes))


def test_every_number_has_a_nonce_of_its_own():
    data = bytes(64)
    assert len({put(SEALED_ONLY, data, context(data, number=n)) for n in (0, 1, 255, 256, 2**32 - 3, 2**32 - 1)}) == 6


@pytest.mark.parametrize("data", [b"", b"x" * 15])
def test_too_short_to_be_sealed(data):
    with pytest.raises(FormatError, match="too short"):
        FULL.get(data, context())


def test_without_encryption_integrity_stays():
    data = b"plain" * 50
    c = context(data, encrypted=False)
    stored = put(SEALED_ONLY, data, c)
    assert stored == data
    with pytest.raises(IntegrityError):
        SEALED_ONLY.get(stored[:-1] + b"?", context(data, encrypted=False, digest=sha256(stored)))


# --- compression


@pytest.mark.parametrize(
    ("data", "packed"),
    [
        (b"", False),
        (b"a", False),
        (noise(1000), False),
        (noise(MIB), False),
        (b"text " * 1000, True),
        (bytes(MIB), True),
        (noise(MIB) + bytes(MIB), True),
        (bytes(40_000) + noise(MIB), True),
    ],
    ids=["empty", "one byte", "noise", "much noise", "text", "zeros", "zeros behind", "zeros before"],
)
def test_compression_where_it_helps(data, packed):
    stored = Compress().put(data, context(data))
    assert stored[:1] == (b"\1" if packed else b"\0")
    assert len(stored) <= len(data) + 1
    assert Compress().get(stored, context(data)) == data


def test_large_noise_is_told_by_samples(monkeypatch):
    compressed: list[int] = []
    real = zstandard.ZstdCompressor

    class Counting:
        def __init__(self, **options: object) -> None:
            self._real = real(**options)

        def compress(self, data: bytes) -> bytes:
            compressed.append(len(data))
            return self._real.compress(data)

    monkeypatch.setattr(zstandard, "ZstdCompressor", Counting)
    Compress().put(noise(4 * MIB), context())
    assert sum(compressed) < 4 * MIB // 50
    compressed.clear()
    Compress().put(noise(TRY_BYTES_MIN - 1), context())
    assert compressed == [TRY_BYTES_MIN - 1]


def frame(data: bytes, **options: object) -> bytes:
    return b"\1" + zstandard.ZstdCompressor(level=3, **options).compress(data)


def stream(data: bytes) -> bytes:
    """A frame that does not say how large it unpacks."""
    c = zstandard.ZstdCompressor().compressobj()
    return b"\1" + c.compress(data) + c.flush()


def with_size(size: int, of: bytes) -> bytes:
    """A frame whose header claims `size` in 8 bytes, with the blocks of another."""
    real = zstandard.ZstdCompressor(write_content_size=False).compress(of)
    assert real[4] & 0xC0 == 0  # no size, window descriptor follows
    return b"\1" + real[:4] + bytes((real[4] | 0xC0,)) + real[5:6] + size.to_bytes(8, "little") + real[6:]


BOMBS = {
    "larger than agreed": (frame(bytes(1001)), "more than it may"),
    "a gigabyte": (frame(bytes(1 << 24)), "more than it may"),
    "no content size": (stream(bytes(100)), "more than it may"),
    "claims less than it holds": (with_size(10, bytes(5000)), "does not unpack"),
    "claims more than it holds": (with_size(900, bytes(500)), "does not unpack"),
    "claims 2^63": (with_size(2**63, bytes(500)), "more than it may"),
    "claims nothing": (b"\1\x28\xb5\x2f\xfd\x20\0" + b"whatever", "more than it may"),
    "skippable": (b"\1\x50\x2a\x4d\x18\3\0\0\0abc", "more than it may"),
    "two frames": (frame(b"a" * 100) + frame(b"b" * 100)[1:], "does not unpack"),
    "trailing bytes": (frame(b"a" * 100) + b"\0", "does not unpack"),
    "cut short": (frame(b"a" * 100)[:-1], "does not unpack"),
    "no frame": (b"\1", "does not unpack"),
    "not zstd": (b"\1garbage garbage", "does not unpack"),
    "raw and too long": (b"\0" + bytes(1001), "longer than it may"),
    "unknown compression": (b"\2abc", "unknown compression"),
    "nothing at all": (b"", "unknown compression"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_bombs_are_refused(case):
    data, why = BOMBS[case]
    with pytest.raises(FormatError, match=why):
        Compress().get(data, context(raw_bytes=1000))


def test_hostile_frames():
    valid = [frame(b"abc" * 200), frame(random.Random(1).randbytes(300) * 2), b"\0" + bytes(50)]
    c = context(raw_bytes=1000)

    def get(data: bytes) -> bytes:
        out = Compress().get(data, c)
        assert len(out) <= 1000
        return out

    refuses(get, valid, checked=False)  # a frame has no checksum: integrity stands before it


def test_hostile_sealed_segments():
    data = b"abc" * 200
    stored = put(FULL, data, context(data))
    raw = SEALED_ONLY.seal(b"\0abc", context(data))
    refuses(lambda d: FULL.get(d, context(data)), [stored, raw])
    refuses(lambda d: FULL.get(d, context(data, digest=sha256(stored))), [stored])
