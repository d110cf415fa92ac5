"""Key slots: what a passphrase or a recovery phrase opens (architecture.md, D11).

A slot is an immutable object at `keys/`. In the clear it holds the salt, the Argon2id cost and the id of its key;
sealed, the key, the workspace's id and its name. The key is symmetric: keyrings are made by who has the passphrase,
so that from it on nothing rests on a public key that stands beside what it protects. The cost that a slot asks for is
bounded before it is paid: a hostile provider must not make a client spend a terabyte of memory.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from metasync.codec import (
    UPGRADE,
    Reader,
    Tags,
    bytes16,
    bytes32,
    check_format,
    check_kind,
    encode_tags,
    text16,
    u8,
    u32,
)
from metasync.errors import FormatError, PassphraseError, UpgradeError, UsageError
from metasync.keys.derive import (
    FORMAT,
    KEY_BYTES,
    SLOT_KEY,
    Header,
    Recipient,
    RecordKind,
    read_recipient,
    seal,
    sha256,
    slot_recipient,
    unseal,
)

if TYPE_CHECKING:
    from mnemonic import Mnemonic

PASSPHRASE: Final = 1
RECOVERY: Final = 2
KINDS: Final = {PASSPHRASE: "passphrase", RECOVERY: "recovery phrase"}

PHRASE_ENTROPY_BYTES: Final = 16
SLOT_ENTROPY_BYTES: Final = 32 + 32 + 32  # salt, private key, record
SLOT_BYTES_MAX: Final = 4096
NAME_BYTES_MAX: Final = 1024

PHRASE_WORDS_LEAST: Final = 12
FINGERPRINT_WORDS: Final = 6  # nobody finds another genuine state with the same 66 bits
MEANT_WORDS: Final = (9, 27)  # a text of so many words may be a recovery phrase with words missing, or too many

MEMORY_KIB_MAX: Final = 256 << 10  # what any slot may ask of who opens it: a second of one core
ITERATIONS_MAX: Final = 4
LANES_MAX: Final = 16
MEMORY_KIB_LEAST: Final = 19 << 10  # of a slot that is made; with 2 passes OWASP's least for Argon2id
ITERATIONS_LEAST: Final = 2
TRIED_KIB_MAX: Final = 96 << 20  # KiB times passes of all slots that are tried: 512 slots of ours, two minutes


@dataclass(frozen=True, slots=True)
class Cost:
    """What one try at a passphrase costs with Argon2id. `for_tests`: may be cheaper than a slot that protects anything.

    A slot that is opened may be as cheap as it likes: trying it tells nobody anything.
    """

    memory_kib: int
    iterations: int
    lanes: int
    for_tests: bool = field(default=False, compare=False, repr=False)

    @property
    def work_kib(self) -> int:
        """KiB times passes, to which the time is proportional."""
        return self.memory_kib * self.iterations

    def check(self) -> None:
        """Raises `FormatError` unless within what a client is willing to pay."""
        if not 1 <= self.lanes <= LANES_MAX or not 1 <= self.iterations <= ITERATIONS_MAX:
            raise FormatError(f"key slot: {self.iterations} iterations on {self.lanes} lanes are out of bounds")
        if not 8 * self.lanes <= self.memory_kib <= MEMORY_KIB_MAX:
            raise FormatError(f"key slot: {self.memory_kib} KiB of memory are out of bounds")

    def check_made(self) -> None:
        """Raises `UsageError` for a cost that no slot of ours may have."""
        cheap = self.memory_kib < MEMORY_KIB_LEAST or self.iterations < ITERATIONS_LEAST
        if cheap and not self.for_tests:
            raise UsageError(
                f"{self.memory_kib} KiB and {self.iterations} passes are too few to protect a passphrase",
                next_step=f"Give {MEMORY_KIB_LEAST} KiB and {ITERATIONS_LEAST} passes at least.",
            )


COST: Final = Cost(memory_kib=64 << 10, iterations=3, lanes=4)
"""0.2 s and 64 MiB: RFC 9106's second recommendation."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The clear part of a slot."""

    kind: int
    salt: bytes
    cost: Cost
    recipient: Recipient
    tags: Tags
    sealed: bytes


@dataclass(frozen=True, slots=True)
class SlotSecret:
    """What opening a slot yields: the key that keyrings are sealed to. `tags`: of later formats; they go with it."""

    kind: int
    ns_id: bytes
    name: str
    key: bytes = field(repr=False)
    tags: Tags = field(default=(), repr=False)

    @property
    def key_id(self) -> bytes:
        """By which keyrings and device sets name the key."""
        return slot_recipient(self.key).key


@cache
def _phrase_book() -> Mnemonic:
    """The word list of BIP 39, read from its file once."""
    from mnemonic import Mnemonic

    return Mnemonic("english")


def make_phrase(entropy: bytes) -> str:
    """The recovery phrase of 16 (12 words) to 32 (24 words) bytes of entropy."""
    return str(_phrase_book().to_mnemonic(entropy))


@dataclass(frozen=True, slots=True)
class PhraseFault:
    """What is wrong with a recovery phrase. `message` tells no word of it.

    `place`: of the first word that is not in the list, from 1; else 0. `near`: words of the list that it may be.
    """

    message: str
    place: int = 0
    word: str = field(default="", repr=False)
    near: tuple[str, ...] = field(default=(), repr=False)


def word_list() -> list[str]:
    """The 2,048 words of recovery phrases (BIP 39, English); no two begin with the same four letters."""
    return list(_phrase_book().wordlist)


def fingerprint_words(digest: bytes) -> str:
    """The first 66 bits of a hash as six words of that list: what two people compare by ear."""
    words = word_list()
    number = int.from_bytes(digest[:9], "big") >> (72 - 11 * FINGERPRINT_WORDS)
    return " ".join(words[number >> 11 * i & 2047] for i in reversed(range(FINGERPRINT_WORDS)))


def phrase_fault(text: str) -> PhraseFault | None:
    """What is wrong with a text that was meant as a recovery phrase; None if it was not, or nothing is."""
    words, known = _phrase_words(text), set(word_list())
    if not MEANT_WORDS[0] <= len(words) <= MEANT_WORDS[1] or 3 * sum(w in known for w in words) < 2 * len(words):
        return None
    return _fault(words)


def normalise_phrase(phrase: str) -> str:
    """Lower case, single spaces. `PassphraseError` naming the place of the wrong word, or the failed checksum."""
    words = _phrase_words(phrase)
    if fault := _fault(words):
        step = "" if fault.place else "compare it with what you wrote down, word by word"
        raise PassphraseError(fault.message, next_step=step)
    return " ".join(words)


def phrase_in(text: str) -> str:
    """A text as a recovery phrase, normalised; "" if it is none."""
    try:
        return normalise_phrase(text)
    except PassphraseError:
        return ""


def _phrase_words(text: str) -> list[str]:
    return unicodedata.normalize("NFKD", text).lower().split()


def _fault(words: list[str]) -> PhraseFault | None:
    book = _phrase_book()
    if len(words) < PHRASE_WORDS_LEAST:
        return PhraseFault(f"a recovery phrase has {PHRASE_WORDS_LEAST} words or more, not {len(words)}")
    for place, word in enumerate(words, 1):
        if word not in book.wordlist:
            message = f"word {place} of the recovery phrase is not in the word list"
            return PhraseFault(message, place, word, _near(word, book.wordlist))
    if not book.check(" ".join(words)):
        return PhraseFault("the recovery phrase's checksum is wrong: a word is misread, or out of place")
    return None


def _near(word: str, words: list[str]) -> tuple[str, ...]:
    """What a misread word may be: the one that begins as it does, else those that look like it."""
    from difflib import get_close_matches

    begins = [w for w in words if len(word) >= 4 and w[:4] == word[:4]]
    return tuple(begins or get_close_matches(word, words, n=2))


def make_slot(
    kind: int, passphrase: str, *, ns_id: bytes, name: str, entropy: bytes, cost: Cost = COST, tags: Tags = ()
) -> tuple[bytes, SlotSecret]:
    """A new slot: (the bytes to store, what opening it yields). `entropy`: SLOT_ENTROPY_BYTES fresh bytes.

    `UsageError` when the passphrase is empty or the name too long.
    """
    if len(entropy) != SLOT_ENTROPY_BYTES:
        raise ValueError("a slot takes 96 random bytes")
    cost.check_made()
    if not passphrase.strip():
        raise UsageError("the passphrase is empty")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise UsageError(f"the workspace's name is longer than {NAME_BYTES_MAX} bytes")
    salt, random = entropy[:32], entropy[64:]
    secret = SlotSecret(kind, ns_id, name, entropy[32:64], tags)
    clear = _clear(kind, salt, cost, slot_recipient(secret.key))
    inner = bytes16(secret.key) + ns_id + text16(name) + encode_tags(tags)
    key = _stretch(kind, passphrase, salt, cost)
    sealed = seal(key, Header(RecordKind.SLOT, 0, 0, random), inner, binding=clear)
    return clear + bytes32(sealed), secret


@dataclass(frozen=True)
class NewSlots:
    """A slot for the passphrase, and one for a new recovery phrase. `secrets`: what opening each yields."""

    files: dict[str, bytes]
    secrets: list[SlotSecret]
    phrase: str = field(repr=False)

    @property
    def publics(self) -> list[tuple[int, bytes]]:
        """(kind, id of the key) of each, as device sets list them."""
        return [(s.kind, s.key_id) for s in self.secrets]


def new_slots(
    passphrase: str, *, ns_id: bytes, name: str, entropy: Callable[[int], bytes], cost: Cost = COST
) -> NewSlots:
    """Both slots of a key epoch. `UsageError` as `make_slot`."""
    phrase = make_phrase(entropy(PHRASE_ENTROPY_BYTES))
    made = [
        make_slot(kind, text, ns_id=ns_id, name=name, entropy=entropy(SLOT_ENTROPY_BYTES), cost=cost)
        for kind, text in ((PASSPHRASE, passphrase), (RECOVERY, phrase))
    ]
    return NewSlots({slot_path(d): d for d, _ in made}, [secret for _, secret in made], phrase)


def another_slot(secret: SlotSecret, passphrase: str, *, entropy: bytes, cost: Cost = COST) -> bytes:
    """A slot for the same key under another passphrase: keyrings need not be sealed anew. 96 fresh bytes."""
    keyed = entropy[:32] + secret.key + entropy[64:]
    ns_id, name, tags = secret.ns_id, secret.name, secret.tags
    return make_slot(secret.kind, passphrase, ns_id=ns_id, name=name, entropy=keyed, cost=cost, tags=tags)[0]


def slot_path(data: bytes) -> str:
    """Where a slot of these bytes lies on every backend. The kind is clear in the slot, so it may stand in the name."""
    return f"keys/slot-{data[1]}-{sha256(data).hex()}"


def is_intact(name: str, data: bytes) -> bool:
    """Whether these are the bytes of the slot or keyring called `name`, which ends with their hash."""
    return sha256(data).hex() == name.rpartition("-")[2]


def read_slot(data: bytes) -> Slot:
    """The clear part. `FormatError` also for a cost beyond bounds, `UpgradeError` for a newer format."""
    if len(data) > SLOT_BYTES_MAX:
        raise FormatError(f"key slot of {len(data)} bytes")
    r = Reader(data, "key slot")
    check_format(r.u8(), "a key slot")
    kind = r.u8()
    check_kind(kind, RECOVERY, "a key slot")
    salt = r.take(32)
    cost = Cost(r.u32(), r.u32(), r.u32())
    cost.check()
    recipient = read_recipient(r)
    if recipient.kind != SLOT_KEY:
        raise UpgradeError(f"a key slot has a key of kind {recipient.kind}", next_step=UPGRADE)
    slot = Slot(kind, salt, cost, recipient, r.tags(), r.bytes32(SLOT_BYTES_MAX))
    r.end()
    return slot


class Trials(NamedTuple):
    """Slots by name, in the order in which they are tried. `left`: how many are not, because all together cost much.

    `newer`: slots that only a newer program reads.
    """

    names: list[str]
    left: int
    newer: int


def trials(slots: Mapping[str, bytes], copies: Callable[[str], int], spent_kib: int = 0) -> Trials:
    """Which of these slots to try first: those that most backends hold, and of these the cheap ones.

    Whoever keeps slots can put others beside them, but not on a backend of somebody else. `copies`: how many backends
    hold one. `spent_kib`: what was tried before. What is no slot is left out.
    """
    costs: dict[str, int] = {}
    newer = 0
    for name, data in slots.items():
        try:
            costs[name] = read_slot(data).cost.work_kib
        except UpgradeError:
            newer += 1
        except FormatError:
            continue
    ranked = sorted(costs, key=lambda x: (-copies(x), costs[x], x))
    total = accumulate((costs[x] for x in ranked), initial=spent_kib)
    next(total)
    names = [x for x, sum_kib in zip(ranked, total, strict=True) if sum_kib <= TRIED_KIB_MAX]
    return Trials(names, len(ranked) - len(names), newer)


def open_slot(data: bytes, passphrase: str) -> SlotSecret:
    """Opens a slot with its passphrase (or recovery phrase). Costs `Cost`.

    `PassphraseError` when it does not open, `FormatError` when it is no slot, `UpgradeError` when newer. Say "wrong
    passphrase" to the user only after all reachable slots were tried.
    """
    slot = read_slot(data)
    if not passphrase.strip():
        raise PassphraseError("the passphrase is empty")
    key = _stretch(slot.kind, passphrase, slot.salt, slot.cost)
    binding = data[: len(data) - 4 - len(slot.sealed)]
    try:
        _, inner = unseal(key, slot.sealed, RecordKind.SLOT, binding=binding, bytes_max=SLOT_BYTES_MAX)
    except FormatError as e:
        raise PassphraseError("the passphrase does not open this key slot") from e
    r = Reader(inner, "key slot")
    slot_key, ns_id, name = r.bytes16(KEY_BYTES), r.take(32), r.text16(NAME_BYTES_MAX)
    secret = SlotSecret(slot.kind, ns_id, name, slot_key, r.tags())
    r.end()
    if len(slot_key) != KEY_BYTES or slot_recipient(slot_key) != slot.recipient:
        raise FormatError("key slot: the id of its key is not that of the key")
    return secret


def _clear(kind: int, salt: bytes, cost: Cost, recipient: Recipient) -> bytes:
    cost.check()
    numbers = u32(cost.memory_kib) + u32(cost.iterations) + u32(cost.lanes)
    return u8(FORMAT) + u8(kind) + salt + numbers + recipient.encode() + encode_tags(())


def _stretch(kind: int, passphrase: str, salt: bytes, cost: Cost) -> bytes:
    from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

    text = normalise_phrase(passphrase) if kind == RECOVERY else unicodedata.normalize("NFC", passphrase)
    argon = Argon2id(salt=salt, length=32, iterations=cost.iterations, lanes=cost.lanes, memory_cost=cost.memory_kib)
    try:
        return argon.derive(text.encode("utf-8", "surrogatepass"))
    except MemoryError as e:  # on a small machine; a slot that a provider made up must not end the search
        raise FormatError(f"key slot: {cost.memory_kib >> 10} MiB are not to be had") from e
