"""The golden vectors of agreement's records: one file per case in `tests/vectors/agreement`, by `make_agreement.py`.

`docs/design/format-agreement.md` says what the bytes mean. A log entry is also opened here by a reader of its own,
written from that page and using nothing of ours.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agreement_case import plain
from agreement_kit import ACCEPTOR, ALICE, BASE, CONFIG, DEVICES, KEYS, NS_ID, RULES, Writer, X, entry, sealed
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from make_agreement import cases, text

from metasync import errors
from metasync.codec import Reader
from metasync.config import decode_config
from metasync.consensus.acceptors.block import decode_journal as decode_block_journal
from metasync.consensus.objects import open_object, open_state_in_block
from metasync.consensus.participant import decode_memory
from metasync.consensus.proposer import decode_journal
from metasync.consensus.records.birth import birth_matches, open_genesis
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.entry import (
    Kind,
    Round,
    block_path,
    covering,
    entry_path,
    floor_path,
    open_block,
    open_entry,
    open_floor,
    open_head,
    open_hint,
)
from metasync.consensus.records.era import open_record, read_tombstone
from metasync.consensus.records.log_replay import NEVER, Log, ValueRules
from metasync.consensus.records.scrubbed import open_scrubbed
from metasync.consensus.records.state import decode_state
from metasync.consensus.truncation import STEP
from metasync.errors import FormatError, UpgradeError, UsageError
from metasync.keys.derive import RecordKind, open_sealed, sealing_key, sha256, sign_public
from metasync.keys.device_set import decode_device_set, invitations, open_logins
from metasync.keys.invitation import decode_code, invitation_name, open_invite
from metasync.keys.keyring import open_admin, open_ring
from metasync.keys.policy import decode_chain, decode_policy
from metasync.keys.slots import open_slot

HERE = Path(__file__).resolve().parent
CASES = {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in sorted((HERE / "agreement").glob("*.json"))}


def the(c: dict[str, Any], key: str) -> bytes:
    return bytes.fromhex(c[key])


def opened_entry(data: bytes, c: dict[str, Any]) -> Any:
    signed = open_entry(KEYS, data, ns_id=NS_ID, era=0, epoch=1, acceptor_id=the(c, "acceptor"), v=c["v"], idx=c["idx"])
    return signed.entry


def opened_block(data: bytes, c: dict[str, Any]) -> Any:
    place = {"acceptor_id": the(c, "acceptor"), "device_id": the(c, "device"), "v": c["v"], "idx": c["idx"]}
    return open_block(KEYS, data, base=BASE, **place).entry


def opened_ring(data: bytes, c: dict[str, Any]) -> Any:
    private = None if c["private"] is None else the(c, "private")
    keys = open_ring(data, private, the(c, "ns_id"), kind=c["recipient"])
    if "admin" in c:
        assert private is not None
        assert open_admin(data, private, NS_ID) == the(c, "admin")
    assert keys.encode() == the(c, "keys")
    return None


def opened_sealed(data: bytes, c: dict[str, Any]) -> Any:
    private = the(c, "private")
    assert "public" not in c or sealing_key(private).key == the(c, "public")
    secret = open_sealed(private, data, c["label"], the(c, "salt"))
    if secret is None:
        raise FormatError("it does not open")
    return secret


def opened_slot(data: bytes, c: dict[str, Any]) -> Any:
    s = open_slot(data, c["passphrase"])
    return {"kind": s.kind, "key_id": s.key_id, "ns_id": s.ns_id, "name": s.name, "key": s.key}


def told_notes(data: bytes, c: dict[str, Any]) -> Any:
    devices = decode_device_set(data, the(c, "ns_id"))
    return {"logins": list(open_logins(devices)), "invitations": list(invitations(devices))}


def read_code(data: bytes, c: dict[str, Any]) -> Any:
    try:
        return decode_code(data.decode("utf-8"))
    except (UsageError, UnicodeDecodeError) as e:  # a user typed it
        raise FormatError(str(e)) from e


def opened_era(data: bytes, c: dict[str, Any]) -> Any:
    r = open_record(KEYS, data, c["number"], [the(c, "admin")] if "admin" in c else ())
    assert r.digest == the(c, "digest")
    states = {"ended": r.ended.hash, "first": r.first.hash, "carried": r.carried.hash if r.carried else None}
    return {"number": r.number, "at_ns": r.at_ns, "without": r.without, **states}


def read_stone(data: bytes, c: dict[str, Any]) -> Any:
    stone = read_tombstone(data, the(c, "acceptor"), the(c, "birth"))
    if stone is None:
        raise FormatError("no tombstone of this acceptor")
    return stone


def read_chain(data: bytes, c: dict[str, Any]) -> Any:
    reader = Reader(data, "an admin chain")
    chain = decode_chain(reader)
    reader.end()  # it is a part of other records, which go on behind it
    assert chain.encode() == data
    assert chain.ns_id == the(c, "ns_id")
    return {"keys": chain.keys, "ns_id": chain.ns_id, "epoch": chain.epoch}


DECODE: dict[str, Callable[[bytes, dict[str, Any]], Any]] = {
    "state": lambda data, c: decode_state(data),
    "config": lambda data, c: decode_config(data),
    "entry": opened_entry,
    "hint": lambda data, c: open_hint(KEYS, data, the(c, "acceptor")).entry,
    "genesis": lambda data, c: open_genesis(KEYS, data, the(c, "acceptor")),
    "head": lambda data, c: open_head(KEYS, DEVICES, data, the(c, "device")),
    "scrubbed": lambda data, c: open_scrubbed(KEYS, DEVICES, data, the(c, "backend")),
    "object": lambda data, c: open_object(KEYS, RecordKind[c["kind"]], data),
    "slot": opened_slot,
    "sealed": opened_sealed,
    "ring": opened_ring,
    "chain": read_chain,
    "devices": lambda data, c: decode_device_set(data, the(c, "ns_id")),
    "policy": lambda data, c: decode_policy(data),
    "states": lambda data, c: open_state_in_block(KEYS, the(c, "hash"), data),
    "floor": lambda data, c: open_floor(KEYS, data, the(c, "acceptor"), c["floor"]).entry,
    "notes": told_notes,
    "code": read_code,
    "invite": lambda data, c: open_invite(data, the(c, "invitation"), the(c, "secret")),
    "journal": lambda data, c: decode_journal(data),
    "block": opened_block,
    "block-journal": lambda data, c: decode_block_journal(data),
    "era": opened_era,
    "tombstone": read_stone,
    "memory": lambda data, c: decode_memory(data),
}


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c["what"] in DECODE])
def test_a_record_decodes_as_its_case_says(name: str) -> None:
    c = CASES[name]
    data = the(c, "data")
    if c["expect"] != "ok":
        with pytest.raises(getattr(errors, c["expect"])):
            DECODE[c["what"]](data, c)
        return
    value = DECODE[c["what"]](data, c)
    if "value" in c:
        shown = {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else plain(value)
        assert shown == c["value"]
    if c["what"] in ("state", "config", "devices", "policy", "journal"):
        assert value.encode() == data
    if c["what"] == "state":
        assert value.hash.hex() == c["hash"]
    if c["what"] == "config":
        assert [value.n, value.quorum, value.meta_copies] == [c["n"], c["quorum"], c["meta_copies"]]
    if c["what"] == "object":
        assert sha256(data).hex() == c["name"]


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c["what"] == "log"])
def test_a_log_replays_as_its_case_says(name: str) -> None:
    c = CASES[name]
    log = Log(KEYS, ValueRules(KEYS, CONFIG, DEVICES, decode_state(the(c["given"], "base"))), ACCEPTOR)
    for data in c["entries"]:
        log.feed(bytes.fromhex(data))
    accepted = None if log.accepted is None else (log.accepted[0], log.accepted[1].hash)
    found = {
        "promised": None if log.promised == NEVER else log.promised,
        "accepted": accepted,
        "votes": len(log.votes),
        "closed": log.closed.hash if log.closed else None,
        "poison": bool(log.poison),
        "void": log.void,
        "newer": log.newer,
        "elsewhere": bool(log.elsewhere),
    }
    assert {k: plain(v) for k, v in found.items()} == c["expect"]


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c["what"] == "logs"])
def test_several_logs_say_together_what_their_case_says(name: str) -> None:
    """As section 14 has it: q votes of one earned round decide; a DECIDED is no vote; POISON counts for nothing."""
    c = CASES[name]
    q = (c["n"] + c["f"]) // 2 + 1
    logs = []
    for acceptor, entries in c["logs"].items():
        logs.append(Log(KEYS, RULES, bytes.fromhex(acceptor)))
        for data in entries:
            logs[-1].feed(bytes.fromhex(data))

    def earned(rnd: Round) -> bool:
        without = [log for log in logs if rnd not in log.prepared and log.promised >= rnd and not log.poison]
        return rnd.n == 0 or len(without) <= c["n"] - q + c["f"]

    votes = [(r, value.hash) for log in logs for r, value in log.votes.items() if not log.poison and earned(r)]
    decided = {value for rnd, value in votes if votes.count((rnd, value)) >= q}
    assert len(decided) <= 1
    seen = [(rnd, value.hash) for log in logs for rnd, value in log.votes.items() if earned(rnd)]
    found = {
        "decided": next(iter(decided), None),
        "newest": sum(not log.next_idx for log in logs) >= q,
        "open": max(seen)[1] if seen and not decided else None,
    }
    assert {k: plain(v) for k, v in found.items()} == c["expect"]


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c["what"] == "blocks"])
def test_blocks_count_as_their_case_says(name: str) -> None:
    c = CASES[name]
    blocks = Blocks(KEYS, RULES, ACCEPTOR)
    for read in c["reads"]:
        before = blocks.known()
        for block in read:
            blocks.feed(bytes.fromhex(block["device"]), bytes.fromhex(block["data"]))
        blocks.judge(before)
    found = {
        "promised": None if blocks.promised == NEVER else blocks.promised,
        "accepted": None if blocks.accepted is None else (blocks.accepted[0], blocks.accepted[1].hash),
        "votes": len(blocks.votes),
        "closed": blocks.closed.hash if blocks.closed else None,
        "poison": bool(blocks.poison),
        "silent": blocks.silent,
        "newer": blocks.newer,
        "elsewhere": bool(blocks.elsewhere),
    }
    assert {k: plain(v) for k, v in found.items()} == c["expect"]


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c["what"] == "birth"])
def test_a_birth_is_the_one_or_is_not(name: str) -> None:
    c = CASES[name]
    assert birth_matches(the(c, "data"), the(c, "acceptor"), the(c, "digest")) is c["expect"]


def test_names() -> None:
    c = CASES["name-entry"]
    assert entry_path(KEYS, 1, 0, the(c, "acceptor"), 2050, 3) == c["path"]
    c = CASES["name-block"]
    assert block_path(KEYS, 1, 0, the(c, "acceptor"), 2050, the(c, "device"), 3) == c["path"]
    assert KEYS.state_name(X.hash) == CASES["name-state"]["path"]
    c = CASES["name-floor"]
    assert floor_path(the(c, "acceptor"), 2048) == c["path"]
    assert covering(2047) == 2048
    assert KEYS.states_name(1, 0, 2048 // STEP) == CASES["name-states"]["path"]
    c = CASES["name-invite"]
    assert f"keys/{invitation_name(the(c, 'invitation'))}" == c["path"]


def test_another_reader_names_a_block_of_states() -> None:
    """HMAC-SHA256(HKDF(epoch key, "", "log names"), `states` · u32 era · u64 k)."""
    name = hmac.digest(
        hkdf(KEYS.epoch_key(1), b"", b"log names"), b"states" + bytes(4) + (2).to_bytes(8, "big"), "sha256"
    ).hex()
    assert CASES["name-states"]["path"] == name


def test_another_reader_reads_a_code() -> None:
    word = bytes.fromhex(CASES["code"]["data"]).decode().removeprefix("metasync-invitation-")
    data = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))
    value, body = CASES["code"]["value"], data[:-4]
    assert hashlib.sha256(body).digest()[:4] == data[-4:]
    assert (body[0], body[1:17].hex(), body[17:49].hex(), body[49]) == (1, value["invitation_id"], value["secret"], 2)
    texts, at = [], 50
    while at < len(body):
        n = int.from_bytes(body[at : at + 2], "big")
        texts.append(body[at + 2 : at + 2 + n].decode())
        at += 2 + n
    assert texts == [way[k] for way in value["ways"] for k in ("name", "url", "folder")]


def test_another_reader_opens_an_invitation() -> None:
    c = CASES["invite"]
    data, value = the(c, "data"), c["value"]
    assert (data[0], data[1], len(data) % 1024) == (1, 17, 0)
    key = hkdf(hkdf(the(c, "secret"), b"", b"invitation"), data[10:42], b"record 17")
    inner = AESGCM(key).decrypt(bytes(12), data[42:], data[:42] + the(c, "invitation"))
    body = inner[4 : 4 + int.from_bytes(inner[:4], "big")]
    assert not any(inner[4 + len(body) :])
    n = int.from_bytes(body[33:35], "big")
    assert (body[0], body[1:33].hex(), body[35 : 35 + n].decode()) == (1, value["ns_id"], value["name"])
    at = 35 + n
    for part in ("state", "config", "devices", "identity", "certificate", "keys", "memory"):
        n = int.from_bytes(body[at : at + 4], "big")
        assert body[at + 4 : at + 4 + n].hex() == value[part]
        at += 4 + n
    assert at == len(body)


def test_the_vectors_are_what_the_maker_writes() -> None:
    made = dict(cases())
    assert sorted(made) == sorted(CASES)
    for name, c in made.items():
        path = HERE / "agreement" / f"{name}.json"
        assert path.read_text(encoding="utf-8") == text(c), f"{name}: run make_agreement.py and look at the diff"


def test_bad_cases_outnumber_good_ones() -> None:
    bad = sum("-bad" in name or "-poison" in name or "-void" in name for name in CASES)
    assert bad > len(CASES) - bad


# A reader of its own, from docs/design/format-agreement.md.


def hkdf(key: bytes, salt: bytes, label: bytes) -> bytes:
    prk = hmac.digest(salt or bytes(32), key, "sha256")
    return hmac.digest(prk, b"metasync " + label + b"\x01", "sha256")


@pytest.mark.parametrize("name", ["entry-prepare", "entry-accept"])
def test_another_reader_opens_an_entry(name: str) -> None:
    c = CASES[name]
    data, value = the(c, "data"), c["value"]
    fmt, kind, era, epoch = data[0], data[1], int.from_bytes(data[2:6], "big"), int.from_bytes(data[6:10], "big")
    assert (fmt, kind, era, epoch) == (1, 3, 0, 1)
    log_key = hkdf(KEYS.epoch_key(1), b"", b"log")
    key = hkdf(log_key, data[10:42], b"record 3")
    binding = NS_ID + the(c, "acceptor") + c["v"].to_bytes(8, "big") + c["idx"].to_bytes(4, "big")
    inner = AESGCM(key).decrypt(bytes(12), data[42:], data[:42] + binding)
    length = int.from_bytes(inner[:4], "big")
    body, signature, padding = inner[4 : length - 60], inner[length - 60 : length + 4], inner[length + 4 :]
    assert not any(padding)
    assert len(data) % 512 == 0
    public = Ed25519PublicKey.from_public_bytes(sign_public(ALICE.sign_private))
    public.verify(signature, b"metasync entry 1\0" + data[:42] + body)
    at = 0

    def take(n: int) -> bytes:
        nonlocal at
        at += n
        return body[at - n : at]

    def number(n: int) -> int:
        return int.from_bytes(take(n), "big")

    assert (number(1), take(32), number(4), take(16), number(8), number(4)) == (1, NS_ID, 0, ACCEPTOR, 2, 0)
    assert take(32) == bytes(32)
    base = take(402)
    assert hashlib.sha256(base).hexdigest() == BASE.hash.hex()
    kind_number, n, incarnation, carried = number(1), number(4), take(16), number(1)
    assert (Kind(kind_number).name, n, incarnation.hex()) == (value["kind"], *value["round"].values())
    if carried:
        assert hashlib.sha256(take(402)).digest() == X.hash
    assert number(1) == 0  # no claim
    assert number(2) == 0  # certificate
    assert (number(4), number(4)) == (0, 0)  # neither a config nor a device set: the base names both
    assert number(1) == 0  # no states for the skip: 4 does not divide the version
    assert (take(16).hex(), take(16)) == (value["entry_id"], ALICE.device_id)
    assert number(1) == 0  # tags
    assert at == len(body)


# Fuzz: whatever bytes come, a decoder raises FormatError or UpgradeError, and nothing else.


GOOD = [(c["what"], c, the(c, "data")) for c in CASES.values() if c["what"] in DECODE and c["expect"] == "ok"]


@given(st.data())
def test_no_bytes_make_a_decoder_raise_anything_else(data: st.DataObject) -> None:
    what, c, good = data.draw(st.sampled_from(GOOD))
    if what == "slot":
        return  # a passphrase's cost is paid for each; test_keys alters slots
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        if bad:
            bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    keep = data.draw(st.integers(0, len(bad)) | st.just(len(bad)))
    grown = bytes(bad[:keep]) + data.draw(st.binary(max_size=4))
    try:
        DECODE[what](grown, {k: v for k, v in c.items() if k != "value"})
    except (FormatError, UpgradeError, errors.PassphraseError):
        return
    except AssertionError:
        assert what == "ring"  # it opened, to other keys than the case's
        raise


@given(st.sampled_from([what for what in DECODE if what not in ("slot", "ring")]), st.binary(max_size=700))
def test_rubbish_is_refused_everywhere(what: str, data: bytes) -> None:
    c = next(c for w, c, _ in GOOD if w == what)
    try:
        DECODE[what](data, c)
    except (FormatError, UpgradeError):
        return
    assert what == "memory"
    assert data == b"" or decode_memory(data) is not None


@given(st.binary(max_size=1200), st.sampled_from(list(Kind)))
def test_a_signed_body_of_rubbish_is_refused(body: bytes, kind: Kind) -> None:
    """Even one who holds the log key can only poison."""
    from agreement_kit import forged

    data = forged(entry(), body=body)
    log = Log(KEYS, RULES, ACCEPTOR)
    assert log.feed(data) is None
    assert log.poison


@given(st.lists(st.tuples(st.sampled_from("PAD"), st.integers(1, 3), st.booleans()), max_size=8))
def test_replay_is_a_function_of_the_bytes(steps: list[tuple[str, int, bool]]) -> None:
    writer = Writer()
    for kind, n, mine in steps:
        incarnation = writer_of(mine)
        if kind == "P":
            writer.prepare(n, incarnation)
        elif kind == "A":
            writer.accept(n, X, incarnation)
        else:
            writer.decided(X)
    whole = replayed(writer.entries)
    assert whole == replayed(writer.entries)
    for k in range(len(writer.entries)):
        part = replayed(writer.entries[:k])
        assert part.promised <= whole.promised
        assert part.votes.items() <= whole.votes.items()  # a vote is a stable fact
        assert part.closed is None or part.closed == whole.closed
    assert not whole.poison


def writer_of(mine: bool) -> bytes:
    from agreement_kit import INCARNATION, RIVAL

    return INCARNATION if mine else RIVAL


class _Seen:
    def __init__(self, log: Log) -> None:
        self.promised, self.votes, self.closed, self.poison = log.promised, dict(log.votes), log.closed, log.poison

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Seen) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def replayed(entries: list[bytes]) -> _Seen:
    log = Log(KEYS, RULES, ACCEPTOR)
    for data in entries:
        log.feed(data)
    return _Seen(log)


def test_sealing_is_deterministic_given_its_randomness() -> None:
    assert sealed(entry()) == sealed(entry())
    assert sealed(entry(), random="other") != sealed(entry())
    assert Round(1, b"a") < Round(1, b"b") < Round(2, b"a")
