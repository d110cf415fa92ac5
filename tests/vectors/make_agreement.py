"""Writes `tests/vectors/agreement/*.json` anew: one file per named case, with what must come of it.

    python tests/vectors/make_agreement.py

A change of format shows as a diff of these files, and none may show otherwise. Nothing here draws chance: what is
sealed to devices, which the library draws for, stands in `sealed.json` from the first time on.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any
from unittest import mock

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "kits"), str(TESTS.parent)]

from agreement_kit import (
    ACCEPTOR,
    ADMIN,
    ALICE,
    BASE,
    BOB,
    CAROL,
    CHAIN,
    CONFIG,
    DEVICES,
    GENESIS,
    INCARNATION,
    KEYS,
    MALLORY,
    NS_ID,
    OTHER_ACCEPTOR,
    OWNER,
    POLICY,
    RIVAL,
    BlockWriter,
    Writer,
    X,
    Y,
    drawn,
    entry,
    forged,
    sealed,
    value,
)

from metasync.codec import bytes16, encode_tags, u8, u16, u32, u64
from metasync.config import (
    CHANGED_TAG,
    MOVING_TAG,
    NO_LIMIT,
    Acceptor,
    BackendEntry,
    ChunkingClass,
    Config,
    RedundancyClass,
    Replicate,
    Storage,
)
from metasync.consensus.acceptors import block as blockform
from metasync.consensus.objects import seal_object
from metasync.consensus.participant import Remembered, encode_memory
from metasync.consensus.proposer import Journal
from metasync.consensus.records import entry as entries_module
from metasync.consensus.records.birth import encode_birth, seal_genesis
from metasync.consensus.records.entry import (
    CLAIM_BYTES_MAX,
    Claim,
    Entry,
    Head,
    Kind,
    Round,
    Seen,
    seal_block,
    seal_floor,
    seal_head,
    seal_hint,
)
from metasync.consensus.records.era import EraRecord, Tombstone, encode_tombstone, seal_record
from metasync.consensus.records.scrubbed import Scrubbed, seal_scrubbed
from metasync.consensus.records.state import NOTHING, STATE_BYTES, Change, Ref, skip_version, step_versions, successor
from metasync.keys import keyring
from metasync.keys.derive import Header, Recipient, RecordKind, seal, seal_to, sealing_key, sha256, sign, sign_public
from metasync.keys.device_set import (
    DeviceSet,
    Invitation,
    OpenLogins,
    make_device_set,
    recertified,
    with_invitations,
    with_logins,
)
from metasync.keys.invitation import Code, Invite, Way, invitation_name, seal_invite
from metasync.keys.keyring import make_ring, open_keys
from metasync.keys.policy import Skip, encode_skips
from metasync.keys.slots import Cost, make_slot
from metasync.store.index import INLINE_TAG, RootItem, encode_root, root_after
from metasync.store.index import Ref as Named

FOLDER = Path(__file__).resolve().parent / "agreement"
KEPT = FOLDER.parent / "sealed.json"  # what was sealed to devices, for there the library draws its own randomness
OK, FORMAT, UPGRADE, PASSPHRASE = "ok", "FormatError", "UpgradeError", "PassphraseError"
CHEAP = Cost(memory_kib=64, iterations=1, lanes=1, for_tests=True)
Case = dict[str, Any]
Cases = Iterator[tuple[str, Case]]


def plain(x: Any) -> Any:
    """A value as JSON shows it: bytes in hex, records by field, enums by name."""
    if isinstance(x, bytes):
        return x.hex()
    if isinstance(x, Enum):
        return x.name
    if hasattr(x, "_asdict"):
        return {k: plain(v) for k, v in x._asdict().items()}
    if is_dataclass(x) and not isinstance(x, type):
        return {"is": type(x).__name__, **{f.name: plain(getattr(x, f.name)) for f in fields(x)}}
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, tuple | list):
        return [plain(v) for v in x]
    return x


def case(what: str, about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
    return {
        "what": what,
        "about": about,
        "expect": expect,
        **{k: plain(v) for k, v in more.items()},
        "data": data.hex(),
    }


SEALED: dict[str, str] = json.loads(KEPT.read_text("utf-8"))
USED: set[str] = set()


def sealed_once(public: Recipient, secret: bytes, label: str, salt: bytes) -> bytes:
    """What `seal_to` gave the first time."""
    key = sha256(public.encode() + secret + label.encode() + salt).hex()
    USED.add(key)
    if key not in SEALED:
        SEALED[key] = seal_to(public, secret, label, salt).hex()
    return bytes.fromhex(SEALED[key])


def made_ring(*args: Any, **more: Any) -> bytes:
    with mock.patch.object(keyring, "seal_to", sealed_once):
        return make_ring(*args, **more)


def cut(data: bytes, at: int, put: bytes) -> bytes:
    """`data` with other bytes at a place."""
    return data[:at] + put + data[at + len(put) :]


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


PLACE = {"acceptor": ACCEPTOR, "v": 2, "idx": 0}


def entry_cases() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case("entry", about, data, expect, **{**PLACE, **more})

    prepare, accept = entry(), entry(Kind.ACCEPT)
    claim = Claim(OTHER_ACCEPTOR, 2, 0, sealed(replace(prepare, acceptor_id=OTHER_ACCEPTOR, device_id=BOB.device_id)))
    full = replace(accept, claim=claim, certificate=CAROL.certified(ADMIN, NS_ID).encode(), tags=((9, b"later"),))
    good = sealed(prepare)
    yield "entry-prepare", one("PREPARE", good, value=prepare)
    yield "entry-accept", one("ACCEPT", sealed(accept), value=accept)
    yield "entry-accept-full", one("ACCEPT with all there is", sealed(full), value=full)
    yield "entry-decided", one("DECIDED", sealed(entry(Kind.DECIDED)), value=entry(Kind.DECIDED))
    yield (
        "entry-wrong-signature",
        one("opens, but nobody of its device signed it", forged(prepare, signature=bytes(64))),
    )
    # Replayed from another place.
    yield "entry-bad-other-acceptor", one("read on another acceptor", good, FORMAT, acceptor=OTHER_ACCEPTOR)
    yield "entry-bad-other-version", one("read in another version", good, FORMAT, v=3)
    yield "entry-bad-other-index", one("read at another index", good, FORMAT, idx=1)
    theirs = forged(prepare, binding=bytes(32) + ACCEPTOR + u64(2) + u32(0))
    yield "entry-bad-other-workspace", one("bound to another workspace", theirs, FORMAT)
    yield "entry-bad-other-kind", one("a hint put into a log", hint(), FORMAT)
    # Sealed by one who holds the key, with a lie inside.
    lie = {"binding": NS_ID + ACCEPTOR + u64(2) + u32(0)}
    yield (
        "entry-bad-lies-acceptor",
        one("names another acceptor", forged(replace(prepare, acceptor_id=OTHER_ACCEPTOR), **lie), FORMAT),
    )
    yield (
        "entry-bad-lies-index",
        one("names another index", forged(replace(prepare, idx=1, prev_entry=drawn("p")), **lie), FORMAT),
    )
    yield (
        "entry-bad-lies-version",
        one("a version that its base does not have", forged(replace(prepare, v=3), **lie), FORMAT),
    )
    stranger = replace(BASE, ns_id=drawn("other workspace"))
    yield (
        "entry-bad-lies-workspace",
        one("a base of another workspace", forged(replace(prepare, base=stranger), **lie), FORMAT),
    )
    era = Header(RecordKind.ENTRY, 1, 1, drawn("record"))
    yield "entry-bad-era", one("a header of another era", forged(prepare, header=era), FORMAT)
    epoch = Header(RecordKind.ENTRY, 0, 2, drawn("record"))
    yield "entry-bad-epoch", one("a header of another epoch", forged(prepare, header=epoch), FORMAT)
    yield "entry-bad-key", one("sealed under another key", forged(prepare, log_key=drawn("key")), FORMAT)
    yield "entry-bad-record-kind", one("another kind of record", forged(prepare, kind=RecordKind.META), FORMAT)
    # Altered or cut.
    yield "entry-bad-bit", one("one bit of the ciphertext", cut(good, 100, bytes([good[100] ^ 1])), FORMAT)
    yield "entry-bad-tag", one("one bit of the tag", cut(good, len(good) - 1, bytes([good[-1] ^ 128])), FORMAT)
    yield "entry-bad-random", one("one bit of the header", cut(good, 12, bytes([good[12] ^ 1])), FORMAT)
    yield "entry-bad-cut", one("cut by 512 bytes", good[:-512], FORMAT)
    yield "entry-bad-cut-odd", one("cut by a byte", good[:-1], FORMAT)
    yield "entry-bad-grown", one("grown by 512 bytes", good + bytes(512), FORMAT)
    yield "entry-bad-empty", one("no bytes", b"", FORMAT)
    yield "entry-bad-zeros", one("512 zeros", bytes(512), FORMAT)
    yield "entry-bad-huge", one("longer than it was sealed", good * 9, FORMAT)
    yield "entry-bad-newer", one("format 2 in the clear, where nothing vouches for it", cut(good, 0, b"\2"), FORMAT)
    # Well sealed, signed, and impossible.
    body = entries_module._encode(prepare)
    kind_at = 1 + 32 + 4 + 16 + 8 + 4 + 32 + STATE_BYTES
    yield "entry-bad-body-newer", one("a body of format 2", forged(prepare, body=cut(body, 0, b"\2")), UPGRADE)
    yield "entry-bad-kind", one("an unknown kind", forged(prepare, body=cut(body, kind_at, b"\4")), UPGRADE)
    yield "entry-bad-kind-0", one("kind 0", forged(prepare, body=cut(body, kind_at, b"\0")), FORMAT)
    yield (
        "entry-bad-accept-without-value",
        one("ACCEPT of nothing", forged(prepare, body=cut(body, kind_at, b"\2")), FORMAT),
    )
    of_value = entries_module._encode(accept)
    yield (
        "entry-bad-prepare-with-value",
        one("PREPARE of a value", forged(accept, body=cut(of_value, kind_at, b"\1")), FORMAT),
    )
    yield "entry-bad-prepare-n-0", one("PREPARE of the owner's round", forged(entry(n=0)), FORMAT)
    nobody = replace(prepare, round=Round(1, bytes(16)))
    yield "entry-bad-nobody", one("a round of nobody", forged(nobody), FORMAT)
    first = replace(prepare, prev_entry=drawn("p"))
    yield "entry-bad-first-with-prev", one("index 0 names an entry before it", forged(first), FORMAT)
    yield "entry-bad-trailing", one("bytes behind the body", forged(prepare, body=body + b"\0"), FORMAT)
    yield "entry-bad-short-body", one("a body that ends early", forged(prepare, body=body[:-1]), FORMAT)
    claiming = replace(prepare, claim=claim)
    claim_at = kind_at + 1 + 20 + 1
    yield "entry-claim", one("PREPARE with another device's entry elsewhere", sealed(claiming), value=claiming)
    nothing = replace(prepare, claim=claim._replace(data=b""))
    yield "entry-claim-nothing", one("a claim of no bytes: of no effect, no fault", sealed(nothing), value=nothing)
    twice = cut(entries_module._encode(claiming), claim_at, b"\2")
    yield "entry-bad-claims", one("two claims", forged(claiming, body=twice), FORMAT)
    long = replace(prepare, claim=claim._replace(data=drawn("long", CLAIM_BYTES_MAX + 1)))
    yield "entry-bad-claim-long", one("a claim of more bytes than any has", forged(long), FORMAT)
    yield "entry-bad-unpadded", one("a byte of padding too few", forged(prepare, grown=-1), FORMAT)
    yield "entry-bad-padding", one("512 bytes of padding too many", forged(prepare, grown=512), FORMAT)
    objects = replace(accept, config=drawn("config object", 700), devices=drawn("devices object", 6_000))
    yield "entry-carries", one("ACCEPT that carries a config and a device set", sealed(objects), value=objects)
    carrying = replace(prepare, devices=drawn("devices object", 100))
    yield "entry-bad-carries", one("PREPARE that carries a device set", forged(carrying), FORMAT)
    stepping = replace(accept, steps=(GENESIS.encode(), BASE.encode()))
    yield "entry-steps", one("ACCEPT that carries two states, whatever their worth", sealed(stepping), value=stepping)
    yield (
        "entry-bad-steps",
        one("PREPARE that carries a state", forged(replace(stepping, kind=Kind.PREPARE, value=None)), FORMAT),
    )


BLOCK_BINDING = NS_ID + ACCEPTOR + u64(2) + ALICE.device_id + u32(0)


def block_cases() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case("block", about, data, expect, **{**PLACE, "device": ALICE.device_id, **more})

    def lies(about: str, expect: str = FORMAT, **more: Any) -> Case:
        e = replace(prepare, **more)
        signed = forged(e, kind=RecordKind.BLOCK, binding=BLOCK_BINDING)
        return one(about, signed, expect)

    prepare, accept = entry(), entry(Kind.ACCEPT)
    good = seal_block(KEYS, prepare, ALICE.sign_private, drawn("record"))
    yield "block-prepare", one("PREPARE", good, value=prepare)
    yield "block-accept", one("ACCEPT", seal_block(KEYS, accept, ALICE.sign_private, drawn("record")), value=accept)
    yield "block-bad-entry", one("an entry of a log", sealed(prepare), FORMAT)
    yield "block-bad-other-device", one("another device's", good, FORMAT, device=BOB.device_id)
    yield "block-bad-other-acceptor", one("another acceptor's", good, FORMAT, acceptor=OTHER_ACCEPTOR)
    yield "block-bad-other-version", one("another version's", good, FORMAT, v=3)
    yield "block-bad-other-index", one("another index's", good, FORMAT, idx=1)
    yield "block-bad-lies-device", lies("names another device inside", device_id=BOB.device_id)
    yield "block-bad-lies-acceptor", lies("names another acceptor inside", acceptor_id=OTHER_ACCEPTOR)
    certificate = CAROL.certified(ADMIN, NS_ID).encode()
    yield "block-bad-certificate", lies("shows a certificate", certificate=certificate)
    yield "block-bad-bit", one("altered", cut(good, 60, bytes([good[60] ^ 4])), FORMAT)
    yield "block-bad-cut", one("cut", good[:-512], FORMAT)
    yield "block-bad-empty", one("no bytes", b"", FORMAT)
    yield "block-bad-newer", one("format 2 in the clear, where nothing vouches for it", cut(good, 0, b"\2"), FORMAT)


def blocks_case(about: str, writer: BlockWriter, **expected: Any) -> Case:
    zero = {"promised": None, "accepted": None, "votes": 0, "closed": None, "poison": False, "silent": True}
    outcome = {k: plain(v) for k, v in {**zero, "newer": False, "elsewhere": False, **expected}.items()}
    reads = [[{"device": d.hex(), "data": data.hex()} for d, data in read] for read in writer.reads]
    return {"what": "blocks", "about": about, "expect": outcome, "reads": reads}


def blocks() -> Cases:
    def w() -> BlockWriter:
        return BlockWriter()

    one, high = Round(1, INCARNATION), Round(2, RIVAL)
    seen: dict[str, Any] = {"promised": one, "accepted": (one, X.hash), "silent": False}
    behind: dict[str, Any] = {"promised": high, "accepted": (one, X.hash), "silent": False}
    accepted = w().add(ALICE, Kind.PREPARE, 1).add(ALICE, Kind.ACCEPT, 1)
    yield "blocks-empty", blocks_case("nothing yet", w())
    yield "blocks-prepare", blocks_case("a PREPARE", w().add(ALICE, Kind.PREPARE, 1).then(), promised=one)
    yield "blocks-seen-once", blocks_case("an ACCEPT that was seen, and no read since", accepted, **seen)
    twice = w().add(ALICE, Kind.PREPARE, 1).add(ALICE, Kind.ACCEPT, 1).then()
    yield "blocks-counted", blocks_case("an ACCEPT, and a complete read since", twice, **seen, votes=1)
    outdone = w().add(ALICE, Kind.ACCEPT, 1).then().add(BOB, Kind.PREPARE, 2, round=high)
    yield "blocks-outdone", blocks_case("the read since shows a higher round: undetermined", outdone, **behind)
    later = w().add(ALICE, Kind.ACCEPT, 1).then().then().add(BOB, Kind.PREPARE, 2, round=high)
    yield "blocks-stays-counted", blocks_case("what counted once stays counted", later, **behind, votes=1)
    owner = Round(0, OWNER)
    owned = w().add(ALICE, Kind.ACCEPT, 0, round=owner).then()
    yield (
        "blocks-owner",
        blocks_case("the owner's round", owned, **{**seen, "promised": owner, "accepted": (owner, X.hash)}, votes=1),
    )
    nobody = w().add(ALICE, Kind.ACCEPT, 0, round=Round(0, RIVAL)).then()
    yield "blocks-not-the-owner", blocks_case("round 0 of somebody else: no effect", nobody)
    nobodys = Round(0, bytes(16))
    alone = w().add(BOB, Kind.DECIDED, 0, round=nobodys).then()
    yield "blocks-decided-alone", blocks_case("DECIDED of what was not accepted: no effect", alone)
    closed = w().add(ALICE, Kind.ACCEPT, 1).then().add(BOB, Kind.DECIDED, 0, round=nobodys)
    yield "blocks-decided", blocks_case("DECIDED of what was accepted", closed, **seen, votes=1, closed=X.hash)

    def poison(about: str, writer: BlockWriter, **more: Any) -> Case:
        return blocks_case(about, writer, poison=True, **more)

    yield "blocks-poison-rubbish", poison("no block at all", w().add(ALICE, Kind.PREPARE, 1, raw=bytes(512)))
    wrong = forged(entry(), kind=RecordKind.BLOCK, binding=BLOCK_BINDING, signature=bytes(64))
    yield "blocks-poison-signature", poison("a wrong signature", w().add(ALICE, Kind.PREPARE, 1, raw=wrong))
    spliced = w().add(ALICE, Kind.PREPARE, 1).add(ALICE, Kind.PREPARE, 3, prev_entry=drawn("another"))
    yield "blocks-poison-spliced", poison("it does not name the block before it", spliced, promised=one)
    other = w().add(ALICE, Kind.PREPARE, 1, base=replace(BASE, master=drawn("other")))
    yield "blocks-void-base", blocks_case("on another state: no effect", other, elsewhere=True)
    after = w().add(ALICE, Kind.ACCEPT, 1).then().add(BOB, Kind.PREPARE, 2, raw=bytes(512))
    yield "blocks-poison-evidence", poison("what was seen before stays evidence", after, **seen)
    newer = cut(seal_block(KEYS, entry(), ALICE.sign_private, drawn("record")), 0, b"\2")
    clear = "format 2 in the clear, where nothing vouches for it"
    yield "blocks-poison-clear-newer", poison(clear, w().add(ALICE, Kind.PREPARE, 1, raw=newer))
    body = cut(entries_module._encode(entry()), 0, b"\2")
    newer = forged(entry(), body=body, kind=RecordKind.BLOCK, binding=BLOCK_BINDING)
    yield "blocks-poison-newer", poison("a body of format 2", w().add(ALICE, Kind.PREPARE, 1, raw=newer), newer=True)


NO_ROUND = Round(0, bytes(16))


def hint(**changes: Any) -> bytes:
    told = replace(entry(Kind.DECIDED), **{"round": NO_ROUND, **changes})
    return seal_hint(KEYS, told, ALICE.sign_private, drawn("hint"))


def hints() -> Cases:
    good = hint()
    told = replace(entry(Kind.DECIDED), round=NO_ROUND)
    yield "hint", case("hint", "DECIDED, outside any log", good, acceptor=ACCEPTOR, value=told)
    one = entry(Kind.DECIDED)
    about = "a round, which no reader looks at"
    yield "hint-round", case("hint", about, hint(round=one.round), acceptor=ACCEPTOR, value=one)
    yield "hint-bad-other-acceptor", case("hint", "another acceptor's", good, FORMAT, acceptor=OTHER_ACCEPTOR)
    log = sealed(entry(Kind.DECIDED))
    yield "hint-bad-entry", case("hint", "an entry of a log", log, FORMAT, acceptor=ACCEPTOR)
    undecided = forged(entry(Kind.ACCEPT), kind=RecordKind.HINT, binding=NS_ID + ACCEPTOR)
    yield "hint-bad-accept", case("hint", "not DECIDED", undecided, FORMAT, acceptor=ACCEPTOR)
    yield "hint-bad-bit", case("hint", "altered", cut(good, 60, bytes([good[60] ^ 4])), FORMAT, acceptor=ACCEPTOR)
    yield (
        "hint-bad-newer",
        case(
            "hint",
            "format 2 in the clear, where nothing vouches for it",
            cut(good, 0, b"\2"),
            FORMAT,
            acceptor=ACCEPTOR,
        ),
    )


def log_configs(one: Round) -> Cases:
    """Configs after the base's, as its first change may make them, and as none may."""
    index, after = (BASE.index.generation, BASE.index.hash), (X.v, BASE.config)

    def changed(about: str, prev: bytes | None, moving: tuple[int, bytes] | None, said: Any = after, **n: Any) -> Case:
        config = replace(CONFIG, prev_config=prev).tagged(CHANGED_TAG, said).tagged(MOVING_TAG, moving)
        name, data = seal_object(
            KEYS, RecordKind.CONST, config.encode(), era=0, epoch=1, random=drawn("config " + about)
        )
        writer = Writer().prepare(1).accept(1, replace(X, config=name), config=data)
        voted = {"accepted": (one, replace(X, config=name).hash), "votes": 1, "promised": one}
        return log_case(about, writer, **(n or voted))

    void = {"void": 1, "promised": one}
    yield "log-value-config", changed("a change after which nothing moves", None, None)
    yield "log-value-previous", changed("a change after which packs lie by the base's config", BASE.config, index)
    yield (
        "log-void-value-changed",
        changed("it says that it was made after another", None, None, (X.v, drawn("x")), **void),
    )
    yield (
        "log-void-value-changed-version",
        changed("it says another version", None, None, (X.v + 1, BASE.config), **void),
    )
    yield "log-void-value-previous", changed("packs lie by a config that was not before it", drawn("y"), index, **void)
    yield "log-void-value-moving", changed("packs lie by another index", BASE.config, (0, drawn("z")), **void)
    yield "log-void-value-moving-none", changed("packs lie by no index", BASE.config, None, **void)


def log_case(about: str, writer: Writer, **expected: Any) -> Case:
    zero = {"promised": None, "accepted": None, "votes": 0, "closed": None, "poison": False, "void": 0}
    outcome = {k: plain(v) for k, v in {**zero, "newer": False, "elsewhere": False, **expected}.items()}
    return {"what": "log", "about": about, "expect": outcome, "entries": [e.hex() for e in writer.entries]}


def logs() -> Cases:
    one, two, rival = Round(1, INCARNATION), Round(2, INCARNATION), Round(1, RIVAL)
    low, high = sorted((one, rival))
    low_is, high_is = low.incarnation, high.incarnation
    won = {"promised": one, "accepted": (one, X.hash), "votes": 1}
    yield "log-empty", log_case("nothing yet", Writer())
    yield "log-prepare", log_case("a promise", Writer().prepare(1), promised=one)
    yield "log-accepted", log_case("a vote", Writer().prepare(1).accept(1, X), **won)
    yield "log-accept-alone", log_case("a vote without a promise", Writer().accept(1, X), **won)
    yield (
        "log-lower-prepare",
        log_case("a lower round after a higher one", Writer().prepare(1, high_is).prepare(1, low_is), promised=high),
    )
    yield (
        "log-accept-below-promise",
        log_case("the vote comes too late", Writer().prepare(1).prepare(2).accept(1, X), promised=two),
    )
    yield (
        "log-two-rounds",
        log_case(
            "two votes in two rounds",
            Writer().accept(1, X).prepare(2).accept(2, Y),
            promised=two,
            accepted=(two, Y.hash),
            votes=2,
        ),
    )
    yield (
        "log-two-values-one-round",
        log_case("the second value of a round has no effect", Writer().accept(1, X).accept(1, Y), **won),
    )
    yield (
        "log-duplicates",
        log_case("the same messages again", Writer().prepare(1).prepare(1).accept(1, X).accept(1, X).prepare(1), **won),
    )
    yield (
        "log-owner",
        log_case(
            "the owner's round 0",
            Writer().accept(0, value("op o", OWNER), OWNER),
            promised=Round(0, OWNER),
            accepted=(Round(0, OWNER), value("op o", OWNER).hash),
            votes=1,
        ),
    )
    yield "log-not-owner", log_case("round 0 of somebody else", Writer().accept(0, X))
    yield (
        "log-closed",
        log_case(
            "nothing after DECIDED",
            Writer().accept(1, X).decided(X).prepare(2).accept(2, Y),
            **{**won, "closed": X.hash},
        ),
    )
    # VOID.
    yield (
        "log-void-stranger",
        log_case("a device that nobody admitted", Writer().prepare(2, device=CAROL).accept(1, X), void=1, **won),
    )
    yield (
        "log-void-revoked",
        log_case(
            "a revoked device, though it shows a certificate",
            Writer().prepare(2, device=MALLORY, certificate=MALLORY.certified(ADMIN, NS_ID).encode()).accept(1, X),
            void=1,
            **won,
        ),
    )
    elsewhere = replace(BASE, master=drawn("elsewhere"))
    yield (
        "log-void-before-base",
        log_case(
            "a revoked device cannot poison with another base",
            Writer().prepare(2, device=MALLORY, base=elsewhere).accept(1, X),
            void=1,
            **won,
        ),
    )
    forged_certificate = recertified(CAROL.certified(ADMIN, NS_ID), drawn("not the admin")).encode()
    yield (
        "log-void-forged-certificate",
        log_case(
            "a certificate by somebody else",
            Writer().prepare(2, device=CAROL, certificate=forged_certificate),
            void=1,
        ),
    )
    yield (
        "log-certified",
        log_case(
            "a newcomer with a certificate",
            Writer().prepare(2, device=CAROL, certificate=CAROL.certified(ADMIN, NS_ID).encode()),
            promised=two,
        ),
    )
    # POISON: what was accepted before stays evidence.
    poisoned = {**won, "poison": True}
    yield (
        "log-poison-rubbish",
        log_case("rubbish", Writer().accept(1, X).add(Kind.PREPARE, 2, raw=bytes(512)), **poisoned),
    )
    yield (
        "log-poison-signature",
        log_case(
            "a known device, a wrong signature",
            Writer().accept(1, X).add(Kind.PREPARE, 2, raw=badly_signed(Writer().accept(1, X))),
            **poisoned,
        ),
    )
    yield (
        "log-void-base",
        log_case(
            "signed on top of another state: no effect, and it keeps its index",
            Writer().accept(1, X).prepare(2, base=elsewhere).prepare(3),
            **{**won, "promised": Round(3, INCARNATION), "void": 1, "elsewhere": True},
        ),
    )
    yield (
        "log-poison-spliced",
        log_case(
            "it names another entry before it", Writer().accept(1, X).prepare(2, prev_entry=drawn("other")), **poisoned
        ),
    )
    other = Writer(OTHER_ACCEPTOR).prepare(1)
    zero = {"void": 1, "promised": one}

    def void(about: str, **changes: Any) -> Case:
        return log_case(about, Writer().prepare(1).accept(1, replace(X, **changes)), **zero)

    yield "log-void-value", void("a value that does not follow", v=7)
    yield "log-void-value-prev", void("a value on another base", prev=drawn("other"))
    yield "log-void-value-gen", void("a fence that goes back", min_gen=9)
    yield "log-void-value-gen-far", void("a generation more than one higher", gen=2)
    yield "log-void-value-min-fmt", void("for newer programs, without a policy that says so", min_fmt=2)
    yield "log-void-value-epoch", void("another epoch, without a policy that says so", epoch=2)
    yield "log-void-value-epoch-far", void("the last epoch there can be", epoch=(1 << 32) - 1, devices=drawn("any"))
    yield "log-void-value-keyring", void("another keyring, without a policy that says so", keyring=drawn("bogus"))
    yield "log-void-value-config", void("a config that the entry does not carry", config=drawn("missing"))
    yield "log-void-value-devices", void("a device set that the entry does not carry", devices=drawn("missing"))
    rubbish = drawn("no object", 700)
    carried = Writer().prepare(1).accept(1, replace(X, devices=sha256(rubbish)), devices=rubbish)
    yield "log-void-value-rubbish", log_case("a device set that does not open", carried, **zero)
    yield from log_configs(one)
    yield "log-void-value-skip", void("a skip to another state", skip=drawn("other"))
    yield from steps()
    yield from riding()
    yield (
        "log-poison-replayed",
        log_case("another acceptor's entry", Writer().add(Kind.PREPARE, 1, raw=other.entries[0]), poison=True),
    )
    repeated = Writer().prepare(1)
    repeated.entries.append(repeated.entries[0])
    yield "log-poison-repeated", log_case("the same bytes at two indexes", repeated, promised=one, poison=True)
    first = Writer().prepare(1)
    yield (
        "log-poison-clear-newer",
        log_case(
            "format 2 in the clear, where nothing vouches for it",
            Writer().accept(1, X).add(Kind.PREPARE, 2, raw=cut(first.entries[0], 0, b"\2")),
            **poisoned,
        ),
    )
    at = replace(entry(), idx=1, prev_entry=drawn("p"))
    yield (
        "log-newer",
        log_case(
            "a body of format 2",
            Writer().accept(1, X).add(Kind.PREPARE, 2, raw=forged(at, body=cut(entries_module._encode(at), 0, b"\2"))),
            **{**poisoned, "newer": True},
        ),
    )


def steps() -> Cases:
    """Values of versions that 4 divides, and the states that their `skip` rests on."""
    chain = [GENESIS, BASE]
    while len(chain) < 9:
        v = len(chain)
        change = Change(drawn(f"op {v}", 16), master=drawn(f"master {v}"))
        chain.append(successor(chain[-1], change, skip=chain[skip_version(v)].hash, writer=OWNER))
    raw = [state.encode() for state in chain]

    def at(v: int, about: str, carried: list[bytes], good: bool = False, **changes: Any) -> Case:
        state, more = replace(chain[v], writer=INCARNATION, **changes), {"v": v, "base": chain[v - 1]}
        log = Writer().prepare(1, **more).accept(1, state, steps=tuple(carried), **more)
        one = Round(1, INCARNATION)
        told = {"accepted": (one, state.hash), "votes": 1} if good else {"void": 1}
        return {**log_case(about, log, promised=one, **told), "base": raw[v - 1].hex()}

    other = [replace(state, writer=RIVAL) for state in chain]
    fourth = replace(chain[6], skip=other[4].hash)
    yield "log-steps-4", at(4, "version 4, with state 2", [raw[2]], good=True)
    yield "log-steps-8", at(8, "version 8, with states 6 and 4", [raw[6], raw[4]], good=True)
    yield "log-void-steps-none", at(4, "a skip that the entry does not bear out", [])
    yield "log-void-steps-few", at(8, "one state of two", [raw[6]])
    yield "log-void-steps-many", at(4, "one state too many", [raw[2], raw[0]])
    yield "log-void-steps-order", at(8, "the right states in another order", [raw[4], raw[6]])
    yield "log-void-steps-skip", at(8, "the right states, and another skip", [raw[6], raw[4]], skip=drawn("other"))
    about = "the last state is made up, of the right version"
    yield "log-void-steps-last", at(8, about, [raw[6], other[4].encode()], skip=GENESIS.hash)
    about = "all states are made up, of the right versions"
    yield "log-void-steps-all", at(8, about, [fourth.encode(), other[4].encode()])


def riding() -> Cases:
    """Values whose index rides: a vote that does not carry the root which it names is none."""
    chain = [GENESIS, BASE]
    while len(chain) < 16:
        v = len(chain)
        change = Change(drawn(f"op {v}", 16), master=drawn(f"master {v}"), index=Ref(3, drawn(f"index {v}")))
        chain.append(successor(chain[-1], change, skip=chain[skip_version(v)].hash, writer=OWNER))

    def at(v: int, about: str, root: bytes, good: bool = False, short: int = 0, **changes: Any) -> Case:
        base, random = chain[v - 1], drawn("root")
        name, _ = seal_object(KEYS, RecordKind.META, root, era=0, epoch=1, random=random)
        change = Change(drawn("op", 16), master=drawn("m"))
        state = successor(base, change, skip=chain[skip_version(v)].hash, writer=INCARNATION)
        state = replace(state, **{"index": Ref(3, name), "index_rides": True, **changes})
        tags = ((2, (random + root)[: len(random + root) - short]),)
        more = {"v": v, "base": base}
        steps = tuple(chain[n].encode() for n in step_versions(v))
        log = Writer().prepare(1, **more).accept(1, state, tags=tags if root else (), steps=steps, **more)
        one = Round(1, INCARNATION)
        told = {"accepted": (one, state.hash), "votes": 1} if good else {"void": 1}
        return {**log_case(about, log, promised=one, **told), "base": base.encode().hex()}

    segment = b"an index segment"
    item = RootItem(Named(3, sha256(segment)), len(segment), 0, 0, ((INLINE_TAG, segment),))
    root = encode_root(root_after(Named(*chain[10].index), [item]))
    yield "log-riding", at(11, "the vote carries the index root of its value", root, good=True)
    yield "log-riding-longest", at(11, "a root of the most bytes that may ride", root.ljust(1536, b"."), good=True)
    yield "log-not-riding", at(11, "an index that does not ride: what the vote carries says nothing", root, good=True,
                               index_rides=False)  # fmt: skip
    yield "log-void-riding-none", at(11, "nothing is carried", b"")
    yield "log-void-riding-other", at(11, "another root is carried", root, index=Ref(3, drawn("another")))
    yield "log-void-riding-short", at(11, "the root without its last byte", root, short=1)
    yield "log-void-riding-long", at(11, "a root of more bytes than may ride", root.ljust(1537, b"."))
    yield "log-void-riding-hint", at(8, "a version that hints name", root)
    yield "log-void-riding-power", at(2, "the same, by a power of two", root)
    yield "log-void-riding-same", at(11, "the index of its base", root, index=chain[10].index)
    chain[10] = replace(chain[10], index=NOTHING)
    yield "log-void-riding-first", at(11, "an index where there was none", root, skip=chain[10].hash)


def badly_signed(log: Writer) -> bytes:
    e = entry(idx=len(log.entries), prev_entry=sha256(log.entries[-1]), n=2)
    return forged(e, signature=sign(BOB.sign_private, "entry 1", b"something else"))


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


def heads() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case("head", about, data, expect, **{"device": ALICE.device_id, **more})

    head = Head(ALICE.device_id, 2, X.hash, drawn("head"), drawn("prev"))
    good = seal_head(KEYS, head, ALICE, era=0, epoch=1, random=drawn("head record"))
    yield "head", one("what a device made last", good, value=head)
    yield "head-bad-device", one("another device's", good, FORMAT, device=BOB.device_id)
    by_bob = seal_head(KEYS, head, BOB, era=0, epoch=1, random=drawn("head record"))
    yield "head-bad-signature", one("another device signed it", by_bob, FORMAT)
    gone = Head(MALLORY.device_id, 2, X.hash, drawn("head"), drawn("prev"))
    revoked = seal_head(KEYS, gone, MALLORY, era=0, epoch=1, random=drawn("head record"))
    yield "head-bad-revoked", one("a revoked device's", revoked, FORMAT, device=MALLORY.device_id)
    yield "head-bad-newer", one("format 2 in the clear, where nothing vouches for it", cut(good, 0, b"\2"), FORMAT)
    yield "head-bad-short", one("cut", good[:9], FORMAT)


def scrubbed_records() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case("scrubbed", about, data, expect, **{"backend": drawn("backend")[:16], **more})

    seen = Scrubbed(ALICE.device_id, drawn("backend")[:16], drawn("stores"), 1_795_000_000 * 10**9, 3, 1 << 31, 7)
    good = seal_scrubbed(KEYS, seen, ALICE, era=0, epoch=1, random=drawn("scrubbed record"))
    yield "scrubbed", one("who listed a backend last", good, value=seen)
    yield "scrubbed-bad-backend", one("of another backend", good, FORMAT, backend=drawn("another")[:16])
    by_bob = seal_scrubbed(KEYS, seen, BOB, era=0, epoch=1, random=drawn("scrubbed record"))
    yield "scrubbed-bad-signature", one("another device signed it", by_bob, FORMAT)
    gone = replace(seen, device_id=MALLORY.device_id)
    revoked = seal_scrubbed(KEYS, gone, MALLORY, era=0, epoch=1, random=drawn("scrubbed record"))
    yield "scrubbed-bad-revoked", one("a revoked device's", revoked, FORMAT)
    yield "scrubbed-bad-newer", one("format 2 in the clear, where nothing vouches for it", cut(good, 0, b"\2"), FORMAT)
    yield "scrubbed-bad-short", one("cut", good[:9], FORMAT)


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


def floors() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case("floor", about, data, expect, **{"acceptor": ACCEPTOR, "floor": 1024, **more})

    def floor(v: int) -> tuple[Entry, bytes]:
        base = replace(BASE, v=v - 1)
        e = entry(Kind.DECIDED, v=v, base=base, round=Round(0, bytes(16)), value=replace(X, v=v, prev=base.hash))
        return e, seal_floor(KEYS, e, ALICE.sign_private, drawn("floor"))

    e, good = floor(12_000)
    yield "floor", one("DECIDED of a version above it", good, value=e)
    lowest, least = floor(1024)
    yield "floor-lowest", one("of its own version", least, value=lowest)
    yield "floor-bad-below", one("of the last version below it", floor(1023)[1], FORMAT)
    yield "floor-bad-other-acceptor", one("another acceptor's", good, FORMAT, acceptor=OTHER_ACCEPTOR)
    yield "floor-bad-other-floor", one("of a version below another floor", good, FORMAT, floor=12_288)
    hinted = seal_hint(KEYS, e, ALICE.sign_private, drawn("hint"))
    yield "floor-bad-hint", one("a hint of that version", hinted, FORMAT)
    yield "floor-bad-bit", one("altered", cut(good, 60, bytes([good[60] ^ 4])), FORMAT)
    yield "floor-bad-newer", one("format 2 in the clear, where nothing vouches for it", cut(good, 0, b"\2"), FORMAT)
    yield "floor-bad-short", one("cut", good[:-512], FORMAT)


def a_note() -> tuple[OpenLogins, Invitation]:
    logins = OpenLogins(MALLORY.device_id, MALLORY.name, (("a", "file"), ("b", "s3")))
    carol = CAROL.certified(ADMIN, NS_ID)
    return logins, Invitation(drawn("invitation", 16), CAROL.device_id, carol.sign_public, CAROL.name, 1000)


def device_notes() -> Cases:
    def one(about: str, devices: DeviceSet, *, logins: Any = (), invitations: Any = ()) -> Case:
        told = {"logins": logins, "invitations": invitations}
        return case("notes", about, devices.encode(), ns_id=NS_ID, value=told)

    logins, invited = a_note()
    both = with_invitations(with_logins(DEVICES, [logins]), [invited])
    yield "notes", one("logins to withdraw, an open invitation", both, logins=[logins], invitations=[invited])
    used = replace(invited, expires=0, used=sha256(drawn("user")))
    yield "notes-used", one("an invitation that was used", with_invitations(DEVICES, [used]), invitations=[used])
    for at, what in ((1, "logins"), (2, "invitations")):
        short = replace(both, tags=tuple((tag, data[:-1] if tag == at else data) for tag, data in both.tags))
        other = {"invitations": [invited]} if at == 1 else {"logins": [logins]}
        yield f"notes-bad-{what}-short", one(f"{what} that do not decode are none, and the set stands", short, **other)


def invitation_codes() -> Cases:
    def one(about: str, text: str, expect: str = OK, **more: Any) -> Case:
        return case("code", about, text.encode(), expect, **more)

    def coded(body: bytes) -> str:
        data = base64.urlsafe_b64encode(body + sha256(body)[:4]).decode().rstrip("=")
        return f"metasync-invitation-{data}"

    ways = (Way("a", "file:///mnt/a", drawn("folder", 16).hex()), Way("b", "s3://bucket/docs?region=x", "0" * 32))
    code = Code(drawn("invitation", 16), drawn("secret"), ways)
    good = code.encode()
    prefix = u8(1) + code.invitation_id + code.secret
    yield "code", one("two ways", good, value=code)
    yield "code-spaces", one("broken into lines", f" {good[:40]}\n  {good[40:]}\n", value=code)
    yield "code-no-ways", one("no ways", coded(prefix + u8(0)), value=replace(code, ways=()))
    yield "code-bad-short", one("a character is missing", good[:-9], FORMAT)
    yield (
        "code-bad-character",
        one("a character is another", good[:50] + ("A" if good[50] != "A" else "B") + good[51:], FORMAT),
    )
    yield "code-bad-prefix", one("something else", good.removeprefix("metasync-"), FORMAT)
    yield "code-bad-newer", one("format 2", coded(u8(2) + prefix[1:] + u8(0)), UPGRADE)
    yield "code-bad-count", one("fewer ways than it says", coded(prefix + u8(1)), FORMAT)
    yield "code-bad-long", one("a byte too many", coded(prefix + u8(0) + b"\0"), FORMAT)


def invites() -> Cases:
    invitation_id, secret = drawn("invitation", 16), drawn("secret")

    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case("invite", about, data, expect, **{"invitation": invitation_id, "secret": secret, **more})

    invite = Invite(
        ns_id=NS_ID,
        name="photos",
        state=X.encode(),
        config=a_config().encode(),
        devices=DEVICES.encode(),
        identity=CAROL.encode(),
        certificate=CAROL.certified(ADMIN, NS_ID).encode(),
        keys=KEYS.encode(),
        memory=encode_memory(()),
    )
    good = seal_invite(invite, invitation_id, secret, drawn("invite"), epoch=1)
    yield "invite", one("all that a device begins with", good, value=invite)
    yield "invite-bad-secret", one("another secret", good, FORMAT, secret=drawn("other"))
    yield "invite-bad-other", one("another invitation's", good, FORMAT, invitation=drawn("other", 16))
    yield "invite-bad-bit", one("altered", cut(good, 60, bytes([good[60] ^ 4])), FORMAT)
    yield "invite-bad-newer", one("format 2 in the clear, where nothing vouches for it", cut(good, 0, b"\2"), FORMAT)
    yield "invite-bad-short", one("cut", good[:-1024], FORMAT)


def slots() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, passphrase: str = "correct horse", **more: Any) -> Case:
        return case("slot", about, data, expect, passphrase=passphrase, **more)

    good, secret = make_slot(1, "correct horse", ns_id=NS_ID, name="photos", entropy=drawn("slot", 96), cost=CHEAP)
    opened = {"kind": 1, "key_id": secret.key_id, "ns_id": NS_ID, "name": "photos", "key": secret.key}
    yield "slot", one("a passphrase's", good, value=opened)
    words = "abandon " * 11 + "about"
    phrase, found = make_slot(2, words, ns_id=NS_ID, name="photos", entropy=drawn("recovery", 96), cost=CHEAP)
    recovered = {"kind": 2, "key_id": found.key_id, "ns_id": NS_ID, "name": "photos", "key": found.key}
    yield "slot-recovery", one("a recovery phrase's", phrase, passphrase=words, value=recovered)
    yield "slot-bad-passphrase", one("a wrong passphrase", good, PASSPHRASE, passphrase="wrong horse")
    yield "slot-bad-empty-passphrase", one("no passphrase", good, PASSPHRASE, passphrase="")
    yield "slot-bad-words", one("a misread recovery phrase", phrase, PASSPHRASE, passphrase="abandon " * 12)
    yield "slot-bad-memory", one("a terabyte of memory", cut(good, 34, u32(1 << 30)), FORMAT)
    yield "slot-bad-iterations", one("17 iterations", cut(good, 38, u32(17)), FORMAT)
    yield "slot-bad-lanes", one("17 lanes", cut(good, 42, u32(17)), FORMAT)
    tagged = make_slot(
        1, "correct horse", ns_id=NS_ID, name="photos", entropy=drawn("slot", 96), cost=CHEAP, tags=((7, b"later"),)
    )
    yield "slot-tags", one("with tags of a later version inside", tagged[0], value=opened)
    yield "slot-bad-key-id", one("the id of another key", cut(good, 49, drawn("other")), PASSPHRASE)
    yield "slot-bad-key-kind", one("a key of a later kind", cut(good, 46, b"\4"), UPGRADE)
    yield "slot-bad-key-length", one("an id of 31 bytes", good[:46] + b"\3\0\37" + good[50:], FORMAT)
    yield "slot-bad-kind", one("a later kind", cut(good, 1, b"\3"), UPGRADE)
    yield "slot-bad-kind-0", one("kind 0", cut(good, 1, b"\0"), FORMAT)
    yield "slot-bad-newer", one("format 2", cut(good, 0, b"\2"), UPGRADE)
    yield "slot-bad-long", one("a byte too many", good + b"\0", FORMAT)


def sealings() -> Cases:
    secret, salt = drawn("ring secret"), drawn("salt")

    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        shown = {"private": ALICE.seal_private, "label": "ring", "salt": salt, "value": secret, **more}
        return case("sealed", about, data, expect, **shown)

    public = sealing_key(ALICE.seal_private)
    good = sealed_once(public, secret, "ring", salt)
    yield "sealed", one("32 bytes for a device; `public` is its key", good, public=public.key)
    yield "sealed-bad-device", one("for somebody else", good, FORMAT, private=BOB.seal_private)
    yield "sealed-bad-label", one("for another purpose", good, FORMAT, label="ring admin")
    yield "sealed-bad-salt", one("of another keyring", good, FORMAT, salt=drawn("other"))
    yield "sealed-bad-lattice", one("a bit of the ML-KEM half", cut(good, 500, bytes([good[500] ^ 1])), FORMAT)
    yield "sealed-bad-curve", one("a bit of the X25519 half", cut(good, 1100, bytes([good[1100] ^ 1])), FORMAT)
    yield "sealed-bad-zero", one("an X25519 key of small order", cut(good, 1088, bytes(32)), FORMAT)
    yield "sealed-bad-tag", one("altered", cut(good, len(good) - 1, bytes([good[-1] ^ 1])), FORMAT)
    yield "sealed-bad-short", one("cut", good[:-1], FORMAT)
    yield "sealed-bad-long", one("a byte too many", good + b"\0", FORMAT)
    yield "sealed-bad-empty", one("no bytes", b"", FORMAT)


def rings() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case(
            "ring", about, data, expect, **{"private": ALICE.seal_private, "recipient": 2, "ns_id": NS_ID, **more}
        )

    def signed(ring: bytes) -> bytes:
        return ring + sign(ADMIN, "keyring 1", ring)

    parts: dict[str, Any] = {"devices": [sealing_key(ALICE.seal_private)], "slots": [drawn("slot key")]}
    good = made_ring(KEYS, CHAIN, admin_private=ADMIN, signer_private=ADMIN, entropy=drawn("ring", 96), **parts)
    by_slot = {"private": drawn("slot key"), "recipient": 3, "keys": KEYS.encode(), "admin": ADMIN}
    yield "ring", one("the first", good, keys=KEYS.encode())
    yield "ring-slot", one("the first, by a slot", good, **by_slot)
    at = len(good) - 64 - 1
    yield "ring-tags", one("with tags of a later version", signed(good[:at] + encode_tags(((7, b"later"),))), **by_slot)
    listed = 2 + len(CHAIN.encode()) + 32
    head, body = good[:listed], good[listed:-64]
    one_device, one_slot = 1 + 2 + 32 + 2 + 1168, 1 + 2 + 32 + 2 + 48
    device, slot, rest = body[2:][:one_device], body[2 + one_device :][:one_slot], body[2 + one_device + one_slot :]

    def listing(*recipients: bytes) -> bytes:
        return signed(head + u16(len(recipients)) + b"".join(recipients) + rest)

    later = u8(4) + bytes16(drawn("later", 32) * 38) + bytes16(drawn("wrapped", 32) * 35)
    x25519 = u8(1) + bytes16(drawn("x25519")) + bytes16(drawn("wrapped", 48))
    yield "ring-later-recipient", one("a recipient of a later kind", listing(device, slot, later), **by_slot)
    yield "ring-x25519", one("a recipient of kind 1, which nobody is", listing(x25519, device, slot), **by_slot)
    yield "ring-bad-kind-0", one("a recipient of kind 0", listing(u8(0) + x25519[1:], device, slot), FORMAT)
    yield "ring-bad-order", one("recipients descend", listing(slot, device), FORMAT)
    yield "ring-bad-twice", one("a recipient twice", listing(device, device, slot), FORMAT)
    yield "ring-bad-id", one("a device's id of 31 bytes", listing(u8(2) + u16(31) + device[4:], slot), FORMAT)
    short = device[:35] + u16(1167) + device[37:-1]
    yield "ring-bad-wrapped", one("1,167 bytes wrapped to a device", listing(short, slot), FORMAT)
    bobs = sealed_once(sealing_key(BOB.seal_private), drawn("ring", 96)[32:64], "ring", drawn("ring", 96)[:32])
    swapped = listing(device[:37] + bobs, slot)
    yield "ring-bad-swapped", one("what is sealed to Bob under Alice's id", swapped, PASSPHRASE)
    second = drawn("second admin")
    chain = CHAIN.extended(ADMIN, sign_public(second))
    keys = replace(KEYS, epoch_keys=(*KEYS.epoch_keys, (2, drawn("epoch 2"))))
    next_one = made_ring(keys, chain, admin_private=second, signer_private=ADMIN, entropy=drawn("ring 2", 96), **parts)
    yield "ring-second", one("of the second epoch", next_one, keys=keys.encode())
    bare = open_keys(NS_ID, 1)
    plain_ring = made_ring(bare, CHAIN, admin_private=ADMIN, signer_private=ADMIN, entropy=drawn("ring", 96), **parts)
    yield "ring-open", one("without encryption", plain_ring, private=None, keys=bare.encode())
    yield "ring-bad-recipient", one("for somebody else", good, PASSPHRASE, private=BOB.seal_private)
    yield "ring-bad-workspace", one("of another workspace", good, FORMAT, ns_id=bytes(32))
    yield "ring-bad-signature", one("altered signature", cut(good, len(good) - 1, bytes([good[-1] ^ 1])), FORMAT)
    yield "ring-bad-flag", one("the encryption flag cleared", cut(good, 1, b"\0"), FORMAT)
    yield "ring-bad-chain", one("an uncertified admin key", cut(next_one, 70, drawn("x", 4)), FORMAT)
    yield "ring-bad-newer", one("format 2", cut(good, 0, b"\2"), UPGRADE)
    yield "ring-bad-long", one("a byte too many", good + b"\0", FORMAT)
    yield "ring-bad-short", one("cut", good[:-65], FORMAT)


def admin_chains() -> Cases:
    """The chain of a workspace whose keys were rotated twice, alone: section 5."""

    def one(about: str, data: bytes, expect: str = FORMAT) -> Case:
        return case("chain", about, data, expect, ns_id=NS_ID)

    def link(private: bytes, ns_id: bytes, i: int, public: bytes) -> bytes:
        return public + sign(private, "admin key 1", ns_id + u32(i) + public)

    second, third = drawn("second admin"), drawn("third admin")
    chain = CHAIN.extended(ADMIN, sign_public(second)).extended(second, sign_public(third))
    keys = [sign_public(key) for key in (ADMIN, second, third)]
    first, good = u16(3) + keys[0], [link(ADMIN, NS_ID, 2, keys[1]), link(second, NS_ID, 3, keys[2])]
    whole = first + good[0] + good[1]
    assert chain.encode() == whole
    value = {"keys": keys, "ns_id": NS_ID, "epoch": 3}
    yield "chain", case("chain", "three keys: two rotations", whole, ns_id=NS_ID, value=value)
    by_first = good[0] + link(ADMIN, NS_ID, 3, keys[2])
    yield "chain-bad-signer", one("the third key certified by the first one", first + by_first)
    by_itself = good[0] + link(third, NS_ID, 3, keys[2])
    yield "chain-bad-own-signature", one("the third key certified by itself", first + by_itself)
    again = good[0] + link(second, NS_ID, 2, keys[2])
    yield "chain-bad-number", one("the third key certified as the second one", first + again)
    elsewhere = good[0] + link(second, sha256(keys[1]), 3, keys[2])
    yield "chain-bad-workspace", one("the third key certified for another workspace", first + elsewhere)
    yield "chain-bad-order", one("the links in reverse", first + good[1] + good[0])
    yield "chain-bad-key", one("another third key than was certified", cut(whole, 2 + 32 + 96, drawn("x", 32)))
    yield "chain-bad-none", one("no keys", u16(0) + whole[2:])
    yield "chain-bad-count", one("1,025 keys", u16(1025) + whole[2:])
    yield "chain-bad-short", one("cut", whole[:-1])


def policies() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case("policy", about, data, expect, **{"ns_id": NS_ID, "admin": CHAIN.admin, **more})

    def altered(about: str, **changes: Any) -> Case:
        return one(about, replace(POLICY, **changes).encode(), FORMAT)

    good = POLICY.encode()
    yield "policy", one("of version 0: two copies, one slot, one device revoked", good, value=POLICY)
    second = drawn("second admin")
    chain = CHAIN.extended(ADMIN, sign_public(second))
    later = POLICY.signed(second, chain=chain, version=7, keyring=drawn("ring 2"), f=1, tags=((9, b"later"),))
    yield "policy-second", one("of the second epoch, with a tag", later.encode(), value=later, admin=chain.admin)
    skips = (Skip(9, 5, drawn("tree"), drawn("snapshot")), Skip(20, 0, drawn("empty tree"), bytes(32)))

    def skipping(about: str, tag: bytes) -> Case:
        return one(about, POLICY.signed(ADMIN, tags=((1, tag),)).encode(), FORMAT)

    said = encode_skips(skips)
    passed = POLICY.signed(ADMIN, tags=((1, said),))
    yield "policy-skips", one("6 to 8 were passed over, and 1 to 19 since", passed.encode(), value=passed)
    for name, about, tag in (
        ("nothing", "a tag of no bytes", b""),
        ("65", "65 skips", u8(65) + b"".join(u64(n) + u64(n - 2) + bytes(64) for n in range(2, 67))),
        ("order", "the newest skip first", u8(2) + said[81:] + said[1:81]),
        ("twice", "a skip two times", u8(2) + said[1:81] * 2),
        ("long", "a byte behind the last skip", said + b"\0"),
        ("short", "a skip that is cut", said[:-1]),
    ):
        yield f"policy-bad-skips-{name}", skipping(about, tag)
    yield "policy-bad-skips-unsigned", altered("skips that the admin key did not sign", tags=passed.tags)
    bare = replace(passed, tags=()).encode()
    yield "policy-bad-skips-left-out", one("without the skips that were signed", bare, FORMAT)
    yield "policy-bad-copies", altered("fewer copies than were signed", copies=1)
    yield "policy-bad-f", altered("another f than was signed", f=1)
    yield "policy-bad-chains", altered("other steps than were signed", chains=(("compress", "integrity"),))
    yield "policy-bad-encrypted", altered("encryption switched off", encrypted=False)
    yield "policy-bad-min-fmt", altered("another oldest format than was signed", min_fmt=2)
    yield "policy-bad-keyring", altered("another ring than was signed", keyring=drawn("bogus"))
    yield "policy-bad-version", altered("another sequence number than was signed", version=7)
    yield "policy-bad-acceptors", altered("a vote fewer than was signed", acceptors=POLICY.acceptors[1:])
    yield "policy-bad-slots", altered("without the slot that was signed", slots=())
    yield "policy-bad-revoked", altered("without the revocation that was signed", revoked_ids=())
    old = replace(later, signature=sign(ADMIN, "policy 1", later.encode()[:-64]))
    yield "policy-bad-signer", one("signed by the admin key of the epoch before", old.encode(), FORMAT)
    none = POLICY.signed(ADMIN, copies=0)
    yield "policy-bad-no-copies", one("no copies", none.encode(), FORMAT)
    flag = 1 + len(CHAIN.encode()) + 4 + 8 + 1 + 32
    yield "policy-bad-flag", one("an encrypted flag of 2", cut(good, flag, b"\2"), FORMAT)
    yield "policy-bad-count", one("65535 chains", cut(good, flag + 1, b"\xff\xff"), FORMAT)
    slot = POLICY.signed(ADMIN, slots=((9, bytes(32)),))
    yield "policy-bad-slot", one("a slot of unknown kind", slot.encode(), UPGRADE)
    yield "policy-bad-newer", one("format 2", cut(good, 0, b"\2"), UPGRADE)
    yield "policy-bad-short", one("cut", good[:-1], FORMAT)
    yield "policy-bad-long", one("a byte too many", good + b"\0", FORMAT)


def device_sets() -> Cases:
    def one(about: str, data: bytes, expect: str = OK, **more: Any) -> Case:
        return case("devices", about, data, expect, **{"ns_id": NS_ID, **more})

    alice, bob = (d.certified(ADMIN, NS_ID) for d in (ALICE, BOB))
    yield "devices", one("two devices, one revoked", DEVICES.encode(), value=DEVICES)
    yield "devices-bad-workspace", one("of another workspace", DEVICES.encode(), FORMAT, ns_id=bytes(32))
    reverse = replace(DEVICES, certificates=DEVICES.certificates[::-1])
    yield "devices-bad-order", one("certificates descend", reverse.encode(), FORMAT)
    renamed = make_device_set(POLICY, [replace(alice, name="renamed"), bob])
    yield "devices-bad-certificate", one("an altered certificate", renamed.encode(), FORMAT)
    forger = make_device_set(POLICY, [recertified(alice, drawn("forger"))])
    yield "devices-bad-admin", one("certified by somebody else", forger.encode(), FORMAT)
    both = make_device_set(POLICY.signed(ADMIN, revoked_ids=(ALICE.device_id,)), [alice])
    yield "devices-bad-revoked-id", one("a device that is revoked too", both.encode(), FORMAT)
    key = make_device_set(POLICY.signed(ADMIN, revoked_keys=(alice.sign_public,)), [alice])
    yield "devices-bad-revoked-key", one("a key that is revoked too", key.encode(), FORMAT)
    ended = make_device_set(POLICY, [alice], [ALICE.device_id])
    yield "devices-bad-ended", one("a device whose invitation has ended", ended.encode(), FORMAT)
    unsigned = replace(DEVICES, policy_data=replace(POLICY, copies=1).encode())
    yield "devices-bad-policy", one("a policy that was changed after it was signed", unsigned.encode(), FORMAT)
    at = 1 + 4 + len(POLICY.encode())
    yield "devices-bad-count", one("65535 certificates", cut(DEVICES.encode(), at, b"\xff\xff"), FORMAT)
    yield "devices-bad-newer", one("format 2", cut(DEVICES.encode(), 0, b"\2"), UPGRADE)
    yield "devices-bad-long", one("a byte too many", DEVICES.encode() + b"\0", FORMAT)


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


def several_logs() -> Cases:
    """What the logs of one version say together: a decided value, nothing newer, or a version that is open."""
    one, two = INCARNATION, RIVAL
    low, high = sorted((one, two))

    def at(i: int) -> Writer:
        return Writer(ACCEPTOR if i == 1 else drawn(f"acceptor {i}", 16))

    def logs(about: str, *writers: Writer, n: int = 3, f: int = 0, **expect: Any) -> Case:
        outcome = {"decided": None, "newest": False, "open": None, **expect}
        read = {w.acceptor_id.hex(): [e.hex() for e in w.entries] for w in writers}
        return {"what": "logs", "about": about, "n": n, "f": f, "expect": plain(outcome), "logs": read}

    def voted(i: int, n: int = 1, value: Any = X, by: bytes = one) -> Writer:
        return at(i).prepare(n, by).accept(n, value, by)

    yield "logs-decided", logs("two of three voted in one round", voted(1), voted(2), at(3), decided=X.hash)
    yield "logs-missing", logs("the same, and the third does not answer", voted(1), voted(2), decided=X.hash)
    yield "logs-newest", logs("no entries on a quorum", at(1), at(2), newest=True)
    yield "logs-unknown", logs("no entries, and no quorum answers", at(1))
    yield "logs-one-vote", logs("one vote: whether there was another is not known", voted(1), at(2), open=X.hash)
    late = at(2).prepare(2, one).accept(2, X, one)
    yield "logs-two-rounds", logs("two votes for one value in two rounds", voted(1), late, open=X.hash)
    yield (
        "logs-higher-round",
        logs("the votes of the higher round", voted(1), voted(2, 2, Y, two), voted(3, 2, Y, two), decided=Y.hash),
    )
    outdone = at(1).prepare(1, high).accept(1, X, low)
    about = "rounds of one n are ordered by incarnation: a vote below a promise is none"
    yield "logs-order-of-rounds", logs(about, outdone, voted(2, by=low), at(3), open=X.hash)
    fenced = [voted(i).decided(Y) for i in (1, 2)]
    yield "logs-fenced", logs("a DECIDED of another value after the votes", *fenced, decided=X.hash)
    lying = [voted(i).accept(2, Y, two) for i in (1, 2)]
    yield "logs-unearned", logs("two later votes in a round that nobody prepared: none", *lying, at(3), decided=X.hash)
    told = [at(i).decided(X) for i in (1, 2, 3)]
    yield "logs-decided-alone", logs("DECIDED in every log, and no vote: it is told, and not decided", *told)
    rubbish = voted(2).add(Kind.PREPARE, 2, raw=bytes(512))
    yield "logs-poisoned", logs("one of the two votes is in a poisoned log", voted(1), rubbish, open=X.hash)
    four = [voted(i) for i in (1, 2, 3, 4)]
    yield "logs-liars-three", logs("three of five, one of which may lie", *four[:3], n=5, f=1, open=X.hash)
    yield "logs-liars-four", logs("four of five, one of which may lie", *four, n=5, f=1, decided=X.hash)
    yield "logs-liars-newest", logs("three empty logs of five say nothing yet", *(at(i) for i in (1, 2, 3)), n=5, f=1)


def given(what: str) -> Case:
    """What a reader needs besides the case: each file stands alone."""
    secret = {
        "ns_id": NS_ID,
        "encrypted": KEYS.encrypted,
        "epoch_keys": {str(epoch): key for epoch, key in KEYS.epoch_keys},
        "id_key": KEYS.id_key,
        "chunk_seed": KEYS.chunk_seed,
    }
    sealed_in = {
        "entry",
        "block",
        "log",
        "logs",
        "blocks",
        "hint",
        "floor",
        "genesis",
        "head",
        "scrubbed",
        "object",
        "states",
        "era",
    }
    out: Case = {}
    if what in sealed_in or what == "name":
        out.update(plain(secret))
    if what in ("block", "blocks", "log", "logs"):
        out["base"] = BASE.encode().hex()
    if what in ("blocks", "head", "log", "logs", "scrubbed"):
        out["devices"] = DEVICES.encode().hex()
    if what in ("blocks", "log", "logs"):
        out["config"] = CONFIG.encode().hex()
    if what in ("blocks", "log"):
        out["acceptor"] = ACCEPTOR.hex()
    return out


def cases() -> Cases:
    for make in (
        states,
        configs,
        entry_cases,
        block_cases,
        blocks,
        hints,
        logs,
        births,
        geneses,
        heads,
        scrubbed_records,
        objects,
        blocks_of_states,
        floors,
        device_notes,
        invitation_codes,
        invites,
        slots,
        sealings,
        rings,
        admin_chains,
        policies,
        device_sets,
        local,
        names,
        eras,
        several_logs,
    ):
        for name, c in make():
            needed = given(c["what"])
            if "base" in c:
                needed["base"] = c.pop("base")
            yield name, {**c, **({"given": needed} if needed else {})}


def text(c: Case) -> str:
    return json.dumps(c, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    made = dict(cases())
    for path in FOLDER.glob("*.json"):
        if path.stem not in made:
            path.unlink()
    for name, c in made.items():
        (FOLDER / f"{name}.json").write_text(text(c), encoding="utf-8")
    KEPT.write_text(json.dumps({k: SEALED[k] for k in sorted(USED)}, indent=1) + "\n", encoding="utf-8")
