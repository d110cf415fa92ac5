"""Golden vectors of states, configs, eras and all that is named by a hash of them, or by a place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from agreement_case import FORMAT, OK, UPGRADE, Case, Cases, case, cut, plain
from agreement_kit import (
    ACCEPTOR,
    ADMIN,
    ALICE,
    BASE,
    CHAIN,
    CONFIG,
    GENESIS,
    KEYS,
    NS_ID,
    OTHER_ACCEPTOR,
    OWNER,
    X,
    Y,
    drawn,
)

from metasync.codec import u8, u32, u64
from metasync.config import NO_LIMIT, Acceptor, BackendEntry, ChunkingClass, Config, RedundancyClass, Replicate, Storage
from metasync.consensus.acceptors import block as blockform
from metasync.consensus.objects import seal_object
from metasync.consensus.participant import Remembered, encode_memory
from metasync.consensus.proposer import Journal
from metasync.consensus.records import entry as entries_module
from metasync.consensus.records.birth import encode_birth, seal_genesis
from metasync.consensus.records.entry import Seen
from metasync.consensus.records.era import EraRecord, Tombstone, encode_tombstone, seal_record
from metasync.consensus.records.state import Ref
from metasync.keys.derive import Header, RecordKind, seal, sha256, sign, sign_public
from metasync.keys.invitation import invitation_name


def states() -> Cases:
    good, rides = X.encode(), replace(X, index=Ref(7, drawn("index")), index_rides=True)
    yield "state-genesis", case("state", "version 0, nobody's", GENESIS.encode(), value=GENESIS, hash=GENESIS.hash)
    yield "state", case("state", "version 2", good, value=X, hash=X.hash)
    yield "state-rides", case("state", "its index rides", rides.encode(), value=rides, hash=rides.hash)
    yield "state-bad-format-0", case("state", "format 0", cut(good, 0, b"\0"), FORMAT)
    yield "state-bad-newer", case("state", "format 2", cut(good, 0, b"\2"), UPGRADE)
    yield "state-bad-min-fmt", case("state", "for programs that know format 2", cut(good, 1, b"\2"), UPGRADE)
    yield "state-bad-short", case("state", "a byte is missing", good[:-1], FORMAT)
    yield "state-bad-long", case("state", "a byte too many", good + b"\0", FORMAT)
    yield "state-bad-empty", case("state", "no bytes", b"", FORMAT)


def a_config() -> Config:
    def backend(i: int, *, votes: bool) -> BackendEntry:
        acceptor = Acceptor(drawn(f"acceptor {i}", 16), "log", sha256(drawn(f"birth {i}"))) if votes else None
        storage = (Storage(drawn(f"storage {i}", 16), sha256(drawn(f"storage birth {i}"))),)
        return BackendEntry(bytes([i]) * 16, f"b{i}", "file", i << 30, drawn(f"identity {i}"), storage, acceptor)

    return Config(
        tuple(backend(i, votes=i < 4) for i in range(1, 5)),
        redundancy=(RedundancyClass(NO_LIMIT, Replicate(3)),),
        chunking=(
            ChunkingClass(1 << 20, "cdc", 4096, 16384, 65536),
            ChunkingClass(NO_LIMIT, "fixed", 1 << 20, 1 << 20, 1 << 20),
        ),
        chains=(("compress", "encrypt", "integrity"), ("encrypt", "integrity")),
        prev_config=drawn("previous config"),
        tags=((7, b"unknown"),),
    )


def configs() -> Cases:
    config = a_config()
    good = config.encode()
    about = "four backends, three of which vote, two classes of chunking, two chains"
    numbers = {"n": config.n, "quorum": config.quorum, "meta_copies": config.meta_copies, "survives": config.survives}
    yield "config", case("config", about, good, value=config, **numbers)
    emptied = replace(config, tags=((6, bytes([9]) * 16 + bytes([11]) * 16), *config.tags))
    yield (
        "config-to-empty",
        case("config", "two removed backends are to be emptied", emptied.encode(), value=emptied, **numbers),
    )
    yield "config-bad-newer", case("config", "format 2", cut(good, 0, b"\2"), UPGRADE)
    yield "config-bad-format-0", case("config", "format 0", cut(good, 0, b"\0"), FORMAT)
    yield "config-bad-mode", case("config", "an unknown mode", cut(good, 1, b"\2"), UPGRADE)
    for name, about, data in later_configs(config):
        yield f"config-bad-{name}", case("config", about, data, UPGRADE)
    yield "config-bad-f", case("config", "liars in crash mode", cut(good, 2, b"\1"), FORMAT)
    yield "config-bad-bft", case("config", "Byzantine mode with too few", cut(good, 1, b"\1\1"), FORMAT)
    yield "config-bad-flag", case("config", "an encrypted flag of 2", cut(good, 3, b"\2"), FORMAT)
    yield "config-bad-count", case("config", "65535 backends", cut(good, 4, b"\xff\xff"), FORMAT)
    swapped = replace(config, backends=config.backends[::-1])
    yield "config-bad-order", case("config", "backends descend", raw_config(swapped), FORMAT)
    twice = replace(config, backends=(config.backends[0], replace(config.backends[1], name="b1"), *config.backends[2:]))
    yield "config-bad-name-twice", case("config", "two backends have one name", raw_config(twice), FORMAT)
    nobody = replace(config, backends=tuple(replace(b, acceptor=None) for b in config.backends))
    yield "config-bad-nobody-votes", case("config", "no acceptor", raw_config(nobody), FORMAT)
    none = replace(config, redundancy=(RedundancyClass(NO_LIMIT, Replicate(0)),))
    yield "config-bad-no-copies", case("config", "no copies", raw_config(none), FORMAT)
    open_end = replace(config, redundancy=(RedundancyClass(5, Replicate(2)),))
    yield "config-bad-open-end", case("config", "the last size class ends", raw_config(open_end), FORMAT)
    yield "config-bad-chain", case("config", "no translator chain", raw_config(replace(config, chains=())), FORMAT)
    yield "config-bad-short", case("config", "a byte is missing", good[:-1], FORMAT)
    yield "config-bad-long", case("config", "a byte too many", good + b"\0", FORMAT)


def later_configs(config: Config) -> Iterator[tuple[str, str, bytes]]:
    """What later versions may agree: none of it may be passed over, and none is damage."""
    good = config.encode()
    one = u8(1) + u64(NO_LIMIT) + u8(1) + u8(1) + u8(3)
    assert good.count(one) == 1
    shards = u8(1) + u64(NO_LIMIT) + u8(2) + u8(2) + u8(4)
    two = u8(2) + u64(1 << 20) + u8(1) + u8(1) + u8(3) + one[1:]
    yield "shards", "shards in place of copies", good.replace(one, shards)
    yield "two-redundancies", "two classes of redundancy", good.replace(one, two)
    mapped = u8(1) + u32(config.mapping.partitions) + one
    yield "mapping", "a mapping of kind 2", good.replace(mapped, u8(2) + mapped[1:])
    cut_by = u64(1 << 20) + u8(1) + u32(4096)
    yield "chunking", "a chunking of kind 3", good.replace(cut_by, u64(1 << 20) + u8(3) + u32(4096))
    acceptor = config.backends[0].acceptor
    assert acceptor is not None
    form = u8(1) + acceptor.acceptor_id
    yield "form", "an acceptor of form 3", good.replace(form, u8(3) + acceptor.acceptor_id)


def raw_config(config: Config) -> bytes:
    """An impossible config's bytes."""
    check = Config.check
    Config.check = lambda self: self  # type: ignore[method-assign]
    try:
        return config.encode()
    finally:
        Config.check = check  # type: ignore[method-assign]


def births() -> Cases:
    nonce = drawn("nonce")
    good = encode_birth(ACCEPTOR, nonce)
    given = {"acceptor": ACCEPTOR, "digest": sha256(nonce)}
    yield "birth", {**case("birth", "the one the config means", good, **given), "expect": True}
    for name, about, data in (
        ("nonce", "another nonce", encode_birth(ACCEPTOR, drawn("other nonce"))),
        ("acceptor", "another acceptor", encode_birth(OTHER_ACCEPTOR, nonce)),
        ("long", "a byte too many", good + b"\0"),
        ("short", "a byte is missing", good[:-1]),
        ("format", "format 2", cut(good, 0, b"\2")),
        ("empty", "no bytes", b""),
    ):
        yield f"birth-bad-{name}", {**case("birth", about, data, **given), "expect": False}


def geneses() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case("genesis", about, data, expect, **{"acceptor": ACCEPTOR, **more})

    good = seal_genesis(KEYS, GENESIS, CHAIN, ADMIN, ACCEPTOR, drawn("genesis"))
    yield "genesis", one("state 0, signed by the admin", good, value=GENESIS)
    yield "genesis-bad-acceptor", one("another acceptor's", good, FORMAT, acceptor=OTHER_ACCEPTOR)
    forger = seal_genesis(KEYS, GENESIS, CHAIN, drawn("forger"), ACCEPTOR, drawn("genesis"))
    yield "genesis-bad-signature", one("not signed by the admin", forger, FORMAT)
    later = seal_genesis(KEYS, BASE, CHAIN, ADMIN, ACCEPTOR, drawn("genesis"))
    yield "genesis-bad-version", one("version 1", later, FORMAT)
    yield "genesis-bad-newer", one("format 2 in the clear, where nothing vouches for it", cut(good, 0, b"\2"), FORMAT)
    yield "genesis-bad-bit", one("altered", cut(good, 200, bytes([good[200] ^ 1])), FORMAT)
    yield "genesis-bad-empty", one("no bytes", b"", FORMAT)


def objects() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case("object", about, data, expect, **{"kind": "META", **more})

    digest, good = seal_object(KEYS, RecordKind.META, b"an index", era=0, epoch=1, random=drawn("meta"))
    yield "meta", one("a meta object", good, value=b"an index", name=digest)
    digest, const = seal_object(KEYS, RecordKind.CONST, b"a config", era=0, epoch=1, random=drawn("const"))
    yield "const", one("a const object", const, kind="CONST", value=b"a config", name=digest)
    yield "meta-bad-kind", one("a const object as a meta object", const, FORMAT)
    yield "meta-bad-bit", one("altered", cut(good, 50, bytes([good[50] ^ 1])), FORMAT)
    yield "meta-bad-epoch", one("of an unknown epoch", cut(good, 6, u32(9)), FORMAT)
    yield "meta-bad-newer", one("format 2", cut(good, 0, b"\2"), UPGRADE)
    yield "meta-bad-short", one("cut", good[:30], FORMAT)


def blocks_of_states() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case("states", about, data, expect, **{"hash": X.hash, **more})

    plain_states = X.encode() + Y.encode()
    _, good = seal_object(KEYS, RecordKind.STATES, plain_states, era=0, epoch=1, random=drawn("states"))
    _, single = seal_object(KEYS, RecordKind.STATE, X.encode(), era=0, epoch=1, random=drawn("state"))
    yield "states", one("the first of two; a whole block has 1,024", good, value=X)
    yield "states-last", one("the second", good, hash=Y.hash, value=Y)
    yield "states-bad-absent", one("the state is not in it", good, FORMAT, hash=BASE.hash)
    yield "states-bad-kind", one("a state's own object", single, FORMAT)
    yield "states-bad-bit", one("altered", cut(good, 50, bytes([good[50] ^ 1])), FORMAT)
    yield "states-bad-newer", one("format 2 in the clear, where nothing vouches for it", cut(good, 0, b"\2"), FORMAT)
    yield "states-bad-short", one("cut", good[:-16], FORMAT)


def local() -> Cases:
    journal = Journal(drawn("op", 16), BASE)
    yield "journal", case("journal", "what is persisted before an ACCEPT", journal.encode(), value=journal)
    yield "journal-bad-short", case("journal", "cut", journal.encode()[:-1], FORMAT)
    yield "journal-bad-newer", case("journal", "format 2", cut(journal.encode(), 0, b"\2"), UPGRADE)
    sent = blockform.Journal(7, 2, 0, 1, 9, drawn("block", 1024))
    yield "block-journal", case("block-journal", "what is persisted before a block is sent", sent.encode(), value=sent)
    yield "block-journal-bad-short", case("block-journal", "cut", sent.encode()[:-1], FORMAT)
    yield "block-journal-bad-newer", case("block-journal", "format 2", cut(sent.encode(), 0, b"\2"), UPGRADE)
    memory = (
        Remembered(1, Seen(bytes([1]) * 16, 4, 1, drawn("one"))),
        Remembered(1, Seen(bytes([2]) * 16, 5, 0, drawn("two"))),
    )
    good = encode_memory(memory)
    yield "memory", case("memory", "what two acceptors were seen to hold", good, value=memory)
    yield "memory-bad-order", case("memory", "acceptors descend", good[:3] + good[67:] + good[3:67], FORMAT)
    yield "memory-bad-short", case("memory", "cut", good[:-1], FORMAT)
    yield "memory-bad-count", case("memory", "65535 acceptors", cut(good, 1, b"\xff\xff"), FORMAT)


def names() -> Cases:
    def one(about: str, path: str, **place: Any) -> Case:
        return {"what": "name", "about": about, **{k: plain(v) for k, v in place.items()}, "path": path}

    place: dict[str, Any] = {"epoch": 1, "era": 0, "acceptor": ACCEPTOR, "v": 2050, "idx": 3}
    path = entries_module.entry_path(KEYS, 1, 0, ACCEPTOR, 2050, 3)
    yield "name-entry", one("entry 3 of version 2050, whose base is of epoch 1 and era 0", path, **place)
    device = ALICE.device_id
    path = entries_module.block_path(KEYS, 1, 0, ACCEPTOR, 2050, device, 3)
    yield "name-block", one("block 3 of a device in version 2050", path, **place, device=device)
    path = entries_module.floor_path(ACCEPTOR, 2048)
    yield "name-floor", one("the floor 2,048", path, acceptor=ACCEPTOR, floor=2048)
    about = "the const object of the states of versions 2,048 to 3,071"
    yield "name-states", one(about, KEYS.states_name(1, 0, 2), era=0, k=2, epoch=1)
    invitation = drawn("invitation", 16)
    path = f"keys/{invitation_name(invitation)}"
    yield "name-invite", one("an invitation's object", path, invitation=invitation)
    yield "name-state", one("the const object of a state", KEYS.state_name(X.hash), hash=X.hash)


def an_era(**changes: Any) -> EraRecord:
    nobody = {"writer": bytes(16), "op_id": bytes(16)}
    first = replace(BASE, era=1, v=2, prev=BASE.hash, skip=GENESIS.hash, **nobody)
    return replace(EraRecord(BASE, first, None, CONFIG, ("b2", "b3"), 1_800_000_000_000_000_000, CHAIN), **changes)


def eras() -> Cases:
    def told(r: EraRecord) -> Case:
        states = {"ended": r.ended.hash, "first": r.first.hash, "carried": r.carried.hash if r.carried else None}
        return {"number": r.number, "at_ns": r.at_ns, "without": r.without, **states}

    def one(
        about: str, r: EraRecord, expect: str = OK, *, key: bytes = ADMIN, number: int = 1, random: str = "era"
    ) -> Case:
        data = seal_record(KEYS, r, key, drawn(random))
        opened = {"digest": sha256(body_of(data)[:-64]), "value": told(r)} if expect == OK else {}
        return case("era", about, data, expect, number=number, **opened)

    def body_of(data: bytes) -> bytes:
        return KEYS.opened(data, RecordKind.ERA, "", binding=NS_ID, bytes_max=len(data))[1]

    def again(about: str, body: bytes, expect: str, **more: Any) -> Case:
        header = Header(RecordKind.ERA, 1, 1, drawn("era"))
        return case("era", about, seal(KEYS.log_key(1), header, body, binding=NS_ID), expect, number=1, **more)

    r = an_era()
    yield "era", one("two backends were lost; version 2 begins it", r)
    yield "era-again", one("the same, sealed again: it is the same record", r, random="again")
    newer = cut(body_of(seal_record(KEYS, r, ADMIN, drawn("era"))), 0, b"\2")
    yield "era-bad-newer", again("a body of format 2 that no admin signed", newer, FORMAT)
    newer = newer[:-64] + sign(ADMIN, "era 1", newer[:-64])
    yield "era-newer", again("the same, signed by an admin who is known", newer, UPGRADE, admin=sign_public(ADMIN))
    newer_state = seal_record(KEYS, replace(r, first=replace(r.first, min_fmt=2)), drawn("forger"), drawn("era"))
    about = "a first state for newer programs, signed by somebody else"
    yield "era-bad-newer-state", case("era", about, newer_state, FORMAT, number=1)
    content = {"master": X.master, "op_id": X.op_id}
    yield (
        "era-carried",
        one("it carries what may have been decided", an_era(first=replace(r.first, **content), carried=X)),
    )
    yield "era-tag", one("with a tag", an_era(tags=((9, b"later"),)))
    far = replace(BASE, v=31)
    jump = replace(r.first, v=32, prev=far.hash, skip=GENESIS.hash)
    yield "era-power-of-two", one("the least power of two above 31 is 32", an_era(ended=far, first=jump))
    far = replace(BASE, v=32)
    jump = replace(r.first, v=64, prev=far.hash, skip=GENESIS.hash)
    yield "era-power-of-two-above", one("the least power of two above 32 is 64", an_era(ended=far, first=jump))
    yield "era-bad-number", one("read as the record of era 2", r, FORMAT, number=2)
    yield "era-bad-signature", one("signed by somebody else", r, FORMAT, key=drawn("forger"))
    yield "era-bad-prev", one("not after the state it ends with", an_era(first=replace(r.first, prev=X.hash)), FORMAT)
    yield "era-bad-writer", one("owned by somebody", an_era(first=replace(r.first, writer=OWNER)), FORMAT)
    yield "era-bad-version", one("three versions later", an_era(first=replace(r.first, v=4)), FORMAT)
    yield "era-bad-carried", one("carries what its first state does not have", an_era(carried=X), FORMAT)
    nonce = drawn("nonce")
    for name, about, stone in (
        ("tombstone", "of an acceptor that era 1 retired", Tombstone(1, drawn("record"))),
        ("tombstone-unknown", "the record is not known yet", Tombstone(1, bytes(32))),
    ):
        data = encode_tombstone(ACCEPTOR, nonce, stone)
        yield name, case("tombstone", about, data, value=stone, acceptor=ACCEPTOR, birth=sha256(nonce))
    other = encode_tombstone(OTHER_ACCEPTOR, nonce, Tombstone(1, bytes(32)))
    more = {"acceptor": ACCEPTOR, "birth": sha256(nonce)}
    yield "tombstone-bad-acceptor", case("tombstone", "another acceptor's", other, FORMAT, **more)
