"""Golden vectors of logs and blocks that are replayed, one by one and several together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agreement_case import Case, Cases, cut, plain
from agreement_entries import BLOCK_BINDING
from agreement_kit import (
    ACCEPTOR,
    ADMIN,
    ALICE,
    BASE,
    BOB,
    CAROL,
    CONFIG,
    GENESIS,
    INCARNATION,
    KEYS,
    MALLORY,
    NS_ID,
    OTHER_ACCEPTOR,
    OWNER,
    RIVAL,
    BlockWriter,
    Writer,
    X,
    Y,
    drawn,
    entry,
    forged,
    value,
)

from metasync.config import CHANGED_TAG, MOVING_TAG
from metasync.consensus.objects import seal_object
from metasync.consensus.records import entry as entries_module
from metasync.consensus.records.entry import Kind, Round, seal_block
from metasync.consensus.records.state import NOTHING, Change, Ref, skip_version, step_versions, successor
from metasync.keys.derive import RecordKind, sha256, sign
from metasync.keys.device_set import recertified
from metasync.store.index import INLINE_TAG, RootItem, encode_root, root_after
from metasync.store.index import Ref as Named


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
