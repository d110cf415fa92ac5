"""Has another set of backends agreed: `backend add`, `remove`, `set` (consensus.md, rules 4.1 and 6.4).

The order of things: the new root is written and the new acceptors get all they need, the change is agreed by the old
ones, the old instance is closed, and an empty version on the new config shows that it works. Whoever lost a version to
somebody else makes the change anew on top of that. Moving the data is a matter of its own (`moving.rebalance`):
until it is done, what changed hands is read where it was, and further changes are merged into this one (`store.moves`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict, Unpack

from metasync.backends.wrappers.ballast import BALLAST_BYTES, BALLAST_PATH
from metasync.codec import amount, duration
from metasync.config import CHANGED_TAG, MOVING_TAG, BackendEntry, Config, Storage, byzantine_f
from metasync.consensus import (
    BIRTH_NONCE_BYTES,
    JOURNAL_KEY,
    ZERO_HASH,
    Change,
    Ref,
    State,
    birth_digest,
    birth_path,
    encode_birth,
)
from metasync.consensus.eras import records
from metasync.consensus.reconfigure import check_step, foreseen
from metasync.errors import (
    BackendError,
    MetaSyncError,
    NoQuorumError,
    UsageError,
    WeakeningError,
    WorkspaceError,
)
from metasync.events import Notice, Phase
from metasync.keys.device_set import DeviceSet
from metasync.keys.policy import allowing
from metasync.local.state_keys import META_KIND, UNFINISHED_KEY
from metasync.maintenance.drill import would_be_lost
from metasync.maintenance.holdings import still_moving
from metasync.members import key_copies, key_store
from metasync.members.found import ID_BYTES, take_away
from metasync.moving import strays
from metasync.reports.backends import BackendChange, Gone, Moving
from metasync.runtime.effects import Op, Reply, each
from metasync.runtime.sizes import LOST_ROUNDS_MAX
from metasync.session import agreement, space
from metasync.session.folder import BASE_KEY
from metasync.session.session import Agreed, Session
from metasync.store import moves, placement
from metasync.store.index import PackRecord
from metasync.transfer.copies import Place
from metasync.transfer.verify import has_copy, where_not

Make = Callable[[Config], Config]
"""The wanted backends, from those agreed now. Pure; `UsageError` if they cannot be. May return its argument."""


class OnlyThereError(UsageError):
    """A backend that is to go alone holds packs, and gives them: they are to be moved first."""


@dataclass
class Wanted:
    """A change under way. `joins`: the name of the way to a backend that is added, `leaves`: id of one that goes.

    `is_dead`: what goes is never asked; `may_lose`: the user knows which files only that one had.

    `check` may refuse what a change would be made on, by an error.

    `births`: nonces by acceptor and storage id, drawn once, so that every attempt means the same new roots.
    """

    name: str
    make: Make
    joins: str = ""
    leaves: bytes = b""
    is_dead: bool = False
    may_lose: bool = False
    check: Callable[[Agreed], None] = lambda _: None
    births: dict[bytes, bytes] = field(default_factory=dict)
    gained: dict[bytes, Storage] = field(default_factory=dict)


def change(s: Session, wanted: Wanted, *, passphrase: str | None = None, dry_run: bool = False) -> BackendChange:
    """Has a change of the backends agreed. `UsageError`: it cannot be made, nothing was changed. `NoQuorumError`.

    `WeakeningError`: the policy promises more than they can then, and no passphrase was given. `PassphraseError`.
    """
    if not dry_run:
        agreement.settle_journal(s)
    base = agreement.newest(s)
    op_id = s.entropy(ID_BYTES)
    for _ in range(LOST_ROUNDS_MAX):
        old, raw = base.config, wanted.make(base.config)
        if raw == old:
            return _report(wanted, base, old, None, base.state, dry_run=dry_run)
        wanted.check(base)
        new = _complete(s, wanted, base, raw)
        alone = _check_data(s, wanted, base, new)
        if alone and not (dry_run or wanted.may_lose):
            raise _would_lose(alone, _leaving(base, s.previous, wanted))
        weaker = base.devices.policy.contradiction(new)
        devices = _allowing(s, base, new, passphrase, weaker) if weaker and not dry_run else None
        _tell_shares(s, old, new)
        if dry_run:
            moving, losses = _moving(s, base, new), _losses(s, base, alone)
            return _report(wanted, base, new, None, base.state, dry_run=True, moving=moving, weaker=weaker, **losses)
        if s.runtime.run(foreseen(s.group.participant, s.group.enter, base.state, new)):
            base = s.load(agreement.propose(s, base.state, Change(op_id=s.entropy(ID_BYTES))).state)
            continue  # the next version has logs of its own, which can be closed
        moving, digest = _moving(s, base, new), _prepared(s, wanted, base, new)
        policy = None if devices is None else s.put_const(base.state, devices.encode())
        decided = agreement.propose(s, base.state, Change(op_id=op_id, config=digest, devices=policy))
        if decided.mine:
            s.db.set(JOURNAL_KEY, None)
            after = _settle(s, base.state, decided.state)
            return _report(
                wanted, base, new, decided.state.v, after, dry_run=False, moving=moving, lost_packs=len(alone)
            )
        base = s.load(decided.state)
    raise WorkspaceError(
        f"others pushed {LOST_ROUNDS_MAX} times while the backends were to be changed; nothing was changed",
        next_step="Run again.",
    )


def _allowing(s: Session, base: Agreed, new: Config, passphrase: str | None, weaker: str) -> DeviceSet:
    """The device set with a policy that allows `new`, signed with the admin key that the passphrase opens."""
    if passphrase is None:
        raise WeakeningError(
            f"this takes the workspace's passphrase: {weaker}", next_step="Give it, or leave the backends as they are."
        )
    opened, state = key_store.open_admin_key(s, base.state, passphrase), base.state
    old = base.devices.policy
    policy = allowing(old, new, opened.admin_private, era=state.era, version=state.v + 1)
    return replace(base.devices, policy_data=policy.encode())


def _tell_shares(s: Session, old: Config, new: Config) -> None:
    """Says who gets how much of the data from now on, before anything is stored."""
    before, after = space.config_shares(old), space.config_shares(new)
    if before != after:
        s.listener(Notice(space.shares_text({b.name: after.get(b.backend_id) for b in new.backends})))


def _complete(s: Session, wanted: Wanted, base: Agreed, raw: Config) -> Config:
    """What `make` wants, with all that follows from it: new storage ids, and what is still to be moved."""
    old = base.config
    raw = _outvoting(old, raw)
    check_step(old, raw)
    _check_copies(raw)
    new = raw.tagged(CHANGED_TAG, (base.state.v + 1, base.state.config))
    if placement.is_same_mapping(old, new):
        return new.check()
    previous = s.previous if old.prev_config is not None else None
    if old.prev_config is not None:
        _check_merge(s, base, previous, takes_out=bool(wanted.leaves))
    gained = moves.fresh(old, new, previous)
    for backend_id in sorted(gained - wanted.gained.keys()):
        storage_id, nonce = s.entropy(ID_BYTES), s.entropy(BIRTH_NONCE_BYTES)
        wanted.gained[backend_id] = Storage(storage_id, birth_digest(nonce))
        wanted.births[storage_id] = nonce
    new = new.with_backends(
        [replace(b, storage=(*b.storage, wanted.gained[b.backend_id])) if b.backend_id in gained else b
         for b in new.backends]
    )  # fmt: skip
    index = (base.state.index.generation, base.state.index.hash)
    if old.prev_config is not None:
        return moves.merged(old, new).tagged(MOVING_TAG, index).check()
    if not any(map(moves.Places(new, old).is_displaced, (p.name for p in base.index.packs().values()))):
        return moves.unmoved(new).check()  # nothing to be trimmed either
    return replace(new, prev_config=base.state.config).tagged(MOVING_TAG, index).check()


def _check_merge(s: Session, base: Agreed, previous: Config | None, *, takes_out: bool) -> None:
    """`UsageError` where one more change, which may take out a backend, cannot be merged into those under way."""
    if previous is not None and moves.may_merge(base.config, takes_out=takes_out):
        return
    left = still_moving(s, base)
    takes = "" if left.seconds is None else f", in about {duration(left.seconds)} by what is known of the lines"
    why = (
        f"{moves.merges(base.config)} changes were merged"
        if previous is not None
        else "the config before cannot be read"
    )
    raise UsageError(
        f"data of earlier changes still move ({left.packs:,} packs, {amount(left.bytes)}), and {why}",
        next_step=f"metasync rebalance moves them{takes}; then the change goes through. A backend can be renamed "
        "meanwhile.",
    )


def _outvoting(old: Config, new: Config) -> Config:
    """As many lying backends allowed for as the new set outvotes: fewer if it must be, more where it costs nothing.

    Who chose to allow for none keeps it so.
    """
    copies = min(c.policy.losses for c in new.redundancy) + 1
    blocks = any(a.form == "block" for _, a in new.acceptors)
    free = byzantine_f(new.n)
    if blocks or copies <= free:
        free = 0
    impossible = new.f > 0 and (new.n < 3 * new.f + 1 or blocks or copies <= new.f)
    gained = new.f == 0 and new.n != old.n and not new.trusting
    return replace(new, mode="bft" if free else "crash", f=free) if impossible or gained else new


def _check_copies(new: Config) -> None:
    storing = sum(bool(b.storage) for b in new.backends)
    copies = max(placement.placement_of(new).copies, new.survives.copies + 1)
    if storing < copies:
        raise UsageError(
            f"{copies} copies need {copies} backends that hold data, and {storing} would be left",
            next_step="Add another backend first.",
        )


def _moving(s: Session, base: Agreed, new: Config) -> Moving:
    """What is still to move under `new`, which came out of a change of the base's config."""
    if new.prev_config is None or placement.is_same_mapping(base.config, new):
        return Moving()
    previous = base.config if base.config.prev_config is None else s.previous
    places = moves.Places(new, previous)
    return placement.moving(p for p in base.index.packs().values() if places.receivers(p.name))


# What must not be lost.


def _check_data(s: Session, wanted: Wanted, base: Agreed, new: Config) -> list[PackRecord]:
    """The packs that a backend which goes and is dead takes with it, as far as the others answer.

    `UsageError` when a pack would be left without any copy that can be read, and that one is not said to be dead.
    """
    if not wanted.leaves:
        return []
    s.listener(Phase("check"))
    packs = _may_hold(s, wanted, base)
    alone = _without_copy(s, packs, wanted.leaves)
    if wanted.is_dead or not alone:
        return alone
    leaving = _leaving(base, s.previous, wanted)
    text = f"{_alone(alone)}: without {leaving} {'it' if len(alone) == 1 else 'they'} could not be read"
    here = [p for i, p in s.transfer.places.items() if i == wanted.leaves]
    if not where_not(s.runtime, [(p, has_copy(here, p)) for p in alone]):
        raise OnlyThereError(
            text,
            next_step=f"Add the new backend beside it. Then metasync backend remove {leaving} moves its data.",
        )
    raise UsageError(
        text,
        next_step=f"Bring the other backends back, or keep {leaving}; `metasync check` lists what is missing."
        f" If {leaving} is lost for good: --dead.",
    )


def _may_hold(s: Session, wanted: Wanted, base: Agreed) -> list[PackRecord]:
    """The packs of which the backend that goes may have a copy. Of one that is dead, those that belong there."""
    packs = base.index.packs().values()
    here = [p for p in packs if wanted.leaves in s.transfer.home(p.name)]
    if s.previous is not None:  # while data move, anything may have come to lie anywhere
        return list(packs)
    if wanted.is_dead:
        return here
    try:
        return here + strays.listed(s, wanted.leaves, packs)
    except BackendError:
        return list(packs)


def _alone(packs: Sequence[PackRecord]) -> str:
    n, size = len(packs), f"({sum(p.size for p in packs):,} bytes)"
    those = f"1 pack {size} has" if n == 1 else f"{n:,} packs {size} have"
    return f"{those} no copy on another backend that answers"


def _would_lose(alone: Sequence[PackRecord], leaving: str) -> UsageError:
    return UsageError(
        f"{_alone(alone)}: {'it is' if len(alone) == 1 else 'they are'} lost with {leaving}",
        next_step="--dry-run names the files; --yes gives them up.",
    )


class _Losses(TypedDict, total=False):
    lost_packs: int
    gone: tuple[Gone, ...]
    gone_objects: int


def _losses(s: Session, base: Agreed, alone: Sequence[PackRecord]) -> _Losses:
    """What goes with these packs, by name."""
    if not alone:
        return {}
    gone, objects = would_be_lost(s, base, alone)
    return {"lost_packs": len(alone), "gone": gone, "gone_objects": objects}


def _leaving(base: Agreed, previous: Config | None, wanted: Wanted) -> str:
    """The name of the backend that goes; `wanted.name` is that of another one where it is replaced."""
    configs = [base.config, previous] if previous is not None else [base.config]
    return next((e.name for c in configs if (e := c.backend(wanted.leaves)) is not None), wanted.name)


def _without_copy(s: Session, packs: Iterable[PackRecord], leaves: bytes) -> list[PackRecord]:
    """Packs of which no other backend holds a copy of the right size."""

    def others(record: PackRecord) -> list[Place]:
        return [p for p in s.transfer.read_order(record.name) if p.backend_id != leaves]

    return where_not(s.runtime, [(p, has_copy(others(p), p)) for p in packs])


# Making ready.


def _prepared(s: Session, wanted: Wanted, base: Agreed, new: Config) -> bytes:
    """Writes all that the new config needs. -> its hash. What was begun on a new root is taken away after a failure."""
    s.listener(Phase("prepare"))
    try:
        if wanted.joins:
            _write_root(s, wanted.joins, base.state)
        _write_births(s, wanted, new)
        joining = {a: n for a, n in wanted.births.items() if a in {x.acceptor_id for _, x in new.acceptors}}
        ways = {a.acceptor_id: _way(s, wanted, e) for e, a in new.acceptors if a.acceptor_id in joining}
        s.group.follow(base.config, base.state.config, ways)
        apart = [*base.root.before, *(item.ref for item in base.root.apart)]
        refs = [base.state.index, base.state.retained, *(Ref(*ref) for ref in apart)]
        refs = [ref for ref in refs if ref.hash != ZERO_HASH]
        digest: bytes = s.runtime.run(s.group.prepare_config(base.state, new, joining, refs))
    except BaseException:
        if wanted.joins:
            with contextlib.suppress(MetaSyncError):
                take_away(s.runtime.run, [wanted.joins])
        raise
    s.db.put_objects([(digest, META_KIND, new.encode())])
    return digest


def _way(s: Session, wanted: Wanted, entry: BackendEntry) -> str:
    return s.names.get(entry.backend_id) or wanted.joins


def _write_births(s: Session, wanted: Wanted, new: Config) -> None:
    ops: dict[str, Op] = {}
    for entry in new.backends:
        for store in entry.storage:
            if store.storage_id in wanted.births:
                way = _way(s, wanted, entry)
                if not way:
                    raise UsageError(
                        f"{entry.name} gets more data by this, and this device has no way to it",
                        next_step=f"metasync backend link {entry.name} URL",
                    )
                data = encode_birth(store.storage_id, wanted.births[store.storage_id])
                ops[entry.name] = Op(way, "put", birth_path(store.storage_id), data)
    for name, reply in sorted(s.runtime.run(each(ops)).items()):
        if reply.error is not None:
            raise reply.error.on(name)


def _write_root(s: Session, name: str, state: State) -> None:
    """Key slots and keyrings, by which `clone` finds the workspace there, the records of its eras, and the ballast."""
    others = [n for n in s.names.values() if n != name and n not in s.down]
    of_eras = s.runtime.run(records(s.group.participant, state.era, others)) if state.era else {}
    for path, data in {**key_copies.give(s, state, name), **of_eras}.items():
        _confirmed(s, name, Op(name, "put", path, data))
    _confirmed(s, name, Op(name, "create", BALLAST_PATH, s.entropy(BALLAST_BYTES)))


def _confirmed(s: Session, name: str, op: Op) -> None:
    reply: Reply = s.runtime.run(each({"": op}))[""]
    if reply.error is not None:
        raise reply.error.on(name)


# After it was agreed.


def _settle(s: Session, base: State, decided: State) -> State:
    """Closes the old instance and passes on to the new config. -> the newest state.

    What fails here is no failure of the change: whoever pushes next does it first.
    """
    newest = decided
    try:
        s.runtime.run(s.group.fence(base, decided))
        newest = agreement.propose(s, decided, Change(op_id=s.entropy(ID_BYTES))).state
    except NoQuorumError as e:
        text = f"{e.message}. The change is agreed; the next push goes on from there."
        s.listener(Notice(text, warning=True))
    s.db.set(JOURNAL_KEY, None)
    with contextlib.suppress(BackendError, NoQuorumError):
        s.runtime.run(s.group.write_hint(base, decided, now=True, everywhere=True))
    with contextlib.suppress(NoQuorumError):
        if s.base_state().master == newest.master and not s.db.has(UNFINISHED_KEY):
            s.load(newest)
            s.db.set(BASE_KEY, newest)
    return newest


def unchanged(s: Session, name: str, *, dry_run: bool = False) -> BackendChange:
    """What is told of a backend that was removed before."""
    base = agreement.newest(s)
    return _report(Wanted(name, lambda config: config), base, base.config, None, base.state, dry_run=dry_run)


def _report(
    wanted: Wanted, base: Agreed, new: Config, version: int | None, state: State, *, dry_run: bool,
    moving: Moving | None = None, weaker: str = "", **losses: Unpack[_Losses],
) -> BackendChange:  # fmt: skip
    moving, old = moving or Moving(), base.config
    kept = [f"This takes the workspace's passphrase: {weaker}."] if weaker else []
    if moving.packs:
        kept.append("What lies elsewhere now than it belongs is read where it was. To move it: metasync rebalance")
    if wanted.leaves and wanted.leaves not in {b.backend_id for b in new.backends}:
        leaving = _leaving(base, None, wanted)
        text = f"What {leaving} holds was left there; keep it until nothing is left to move."
        kept.append(f"Nobody asks {leaving} for anything any more." if wanted.is_dead else text)
    return BackendChange(
        name=wanted.name,
        version=version,
        fingerprint=state.fingerprint,
        dry_run=dry_run,
        before=placement.survives(old),
        after=placement.survives(new),
        voting=new.n,
        storing=sum(bool(b.storage) for b in new.backends),
        moving=moving,
        kept=tuple(kept),
        **losses,
    )
