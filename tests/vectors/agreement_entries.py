"""Golden vectors of single records that devices write: entries, blocks, hints, heads, floors, records of a scrub."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agreement_case import FORMAT, OK, UPGRADE, Case, Cases, case, cut
from agreement_kit import (
    ACCEPTOR,
    ADMIN,
    ALICE,
    BASE,
    BOB,
    CAROL,
    GENESIS,
    KEYS,
    MALLORY,
    NS_ID,
    OTHER_ACCEPTOR,
    X,
    drawn,
    entry,
    forged,
    sealed,
)

from metasync.codec import u32, u64
from metasync.consensus.records import entry as entries_module
from metasync.consensus.records.entry import (
    CLAIM_BYTES_MAX,
    Claim,
    Entry,
    Head,
    Kind,
    Round,
    seal_block,
    seal_floor,
    seal_head,
    seal_hint,
)
from metasync.consensus.records.scrubbed import Scrubbed, seal_scrubbed
from metasync.consensus.records.state import STATE_BYTES
from metasync.keys.derive import Header, RecordKind

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


BLOCK_BINDING = NS_ID + ACCEPTOR + u64(2) + ALICE.device_id + u32(0)


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
