"""This device's part in the agreement: asks for the newest state, remembers what was decided, proposes a change.

Only states are of concern here, with the configs and device sets that they name; `session` loads trees and indexes.

A state names the one before it and, by `skip`, one further back (`consensus.records.state`). To find the next version's
skip, `chain` goes back from the newest state, one request after the other. So the states on that way are kept
(`LINE_KEY`): one of 400 bytes for each bit that is set in the version. They are looked up by their hashes, so a wrong
one is never used.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from metasync.consensus import (
    DEADLINE_S,
    JOURNAL_KEY,
    STATE_BYTES,
    Change,
    Decided,
    Journal,
    State,
    decode_state,
    line_after,
)
from metasync.consensus.instance import PAST_IT
from metasync.consensus.participant import Word
from metasync.consensus.truncation import KEEP as LOGS_KEPT
from metasync.consensus.truncation import Progress, decode_progress
from metasync.errors import BackendError, DamagedError, ExcludedError, MetaSyncError, NoQuorumError, UnreachableError
from metasync.events import Notice
from metasync.local import state_keys
from metasync.local.state_keys import (
    AGREED_MARK,
    AWAY_KEY,
    INVITED_KEY,
    KEPT_KEY,
    META_KIND,
    OWN_KEY,
    REPLACED,
    RETIRED_KEY,
    UNLINKED_KEY,
)
from metasync.runtime.effects import Gather, Sleep, Task, Work, together
from metasync.session import evidence
from metasync.session.folder import BASE_KEY, ERA_KEY, MEMORY_KEY, NEWEST_KEY
from metasync.session.session import LOOK_S, Session

if TYPE_CHECKING:
    from metasync.config import Config
    from metasync.keys.device_set import DeviceSet
    from metasync.objects.model import Entry
    from metasync.session.session import Agreed
    from metasync.store.index import Index
    from metasync.transfer.copies import Transfer

SILENT_S: Final = 1.0  # without an answer, and it is told who is waited for
HEED_S: Final = 0.02  # between looks at whether there is news


LINE_KEY: Final = state_keys.LINE_KEY.holding(
    lambda line: b"".join(map(State.encode, line)),
    lambda data: [decode_state(data[at : at + STATE_BYTES]) for at in range(0, len(data), STATE_BYTES)],
)
LEFT_KEY: Final = state_keys.LEFT_KEY.holding(State.encode, decode_state)
FLOORS_KEY: Final = state_keys.FLOORS_KEY.holding(Progress.encode, decode_progress)


# --- what is newest


@contextlib.contextmanager
def looking(
    s: Session,
    *,
    deadline_s: float = DEADLINE_S,
    on_news: Callable[[], object] | None = None,
    preparing: bool = False,
) -> Iterator[Callable[[], State]]:
    """Asks for the newest decided state beside what the caller does; `told` takes the answer.

    Nothing else may be asked of logs until then, or until the block ends. A worker calls `on_news` at the first sign of
    a newer state, a round trip or two before it is known: time to load what it will need. `preparing`: asks by what a
    proposal begins with, which then need not be asked any more.
    """
    known, left_s, waited = s.newest_state(), _left_of(s, deadline_s), False
    if preparing:
        _recall(s)
        task = s.group.get_recent_preparing(known, deadline_s=left_s, hurry=lambda: waited)
    else:
        task = s.group.get_recent(known, deadline_s=left_s)
    with s.runtime.beside(task if on_news is None else _heeding(s, task, on_news)) as look:

        def answer() -> State:
            nonlocal waited
            waited = True
            state: State = look()
            return state

        yield answer


def _heeding(s: Session, look: Task, on_news: Callable[[], object]) -> Task:
    def heed() -> Task:
        while not s.group.hears_news:
            yield Sleep(HEED_S)
        yield Work(on_news)

    results = yield Gather({"look": look, "news": heed()}, lambda got: "look" in got)
    return results["look"]


def _left_of(s: Session, deadline_s: float) -> float:
    """What is left of a wait: opening ways to backends that hang belongs to it (the promise of exit code 5)."""
    return min(deadline_s, max(LOOK_S, deadline_s - s.opened_in_s))


@contextlib.contextmanager
def waiting(s: Session) -> Iterator[None]:
    """Tells the user for whom a wait for a quorum waits: as soon as too few can answer, and each change."""
    began, told = s.runtime.clock(), ""

    def tell(patient: bool = True) -> None:
        nonlocal told
        text = _awaited(s, patient=patient and s.runtime.clock() - began < SILENT_S)
        if text and text != told:
            told = text
            s.listener(Notice(text))

    s.runtime.on_wait = tell
    try:
        yield
    except NoQuorumError as e:
        if not told and e.next_step != PAST_IT:  # then it is no matter of waiting
            tell(patient=False)
        raise
    finally:
        s.runtime.on_wait = None


def _awaited(s: Session, *, patient: bool) -> str:
    """Who is waited for, if too few answer. `patient`: not while one may still be about to answer."""
    names = {entry.name for entry, _ in s.config.acceptors}
    answering = names & s.group.heard
    if len(answering) >= s.config.quorum:
        return ""
    out = {name for name, standing in s.group.standings.items() if standing.kind not in ("ok", "unknown")}
    if patient and names - answering - out:
        return ""
    return f"waiting for {', '.join(sorted(names - answering))} (answering: {', '.join(sorted(answering)) or 'none'})"


def told(s: Session, look: Callable[[], State]) -> State:
    """Takes the newest state that a quorum knows, and remembers it. `NoQuorumError`, `ForkError`."""
    known = s.newest_state()
    try:
        with waiting(s):
            state = look()
    except NoQuorumError:
        reached = s.group.reached  # maybe under a config with backends that this device has no way to yet
        if reached is not None and (reached.era, reached.v) > (known.era, known.v):
            with contextlib.suppress(MetaSyncError):
                remember(s, reached)
        raise
    finally:
        note_standings(s)
    remember(s, state)
    return state


def ask_newest(s: Session, *, deadline_s: float = DEADLINE_S, but_s: float = 0.0) -> State:
    """The same, asked for now. `but_s`: so much of the wait is left for what comes after it."""
    with looking(s, deadline_s=min(deadline_s, max(LOOK_S, deadline_s - but_s))) as look:
        return told(s, look)


def newest(s: Session, *, offline_ok: bool = False) -> Agreed:
    """Loads the newest decided state. `offline_ok`: without a quorum, the newest that any backend proves."""
    try:
        return s.load(ask_newest(s, but_s=LOOK_S if offline_ok else 0.0))
    except NoQuorumError as e:
        if not offline_ok:
            raise
        s.listener(Notice(f"{e.message}; showing the newest version that can be seen", warning=True))
        return newest_seen(s)


def newer_index(s: Session, state: State) -> tuple[Index, Transfer] | None:
    """The index of the newest state, and its config's way to read packs, where one is another than this state's.

    None too where they cannot be had.
    """
    try:
        newest_one = ask_newest(s)
        if (newest_one.index, newest_one.config) == (state.index, state.config):
            return None
        return s.load(newest_one).index, s.transfer
    except MetaSyncError:
        return None


def newest_or_own(s: Session) -> tuple[Agreed, bool]:
    """Loads the state to push on, and says whether it was asked for: an owner need not (consensus.md, rule 2.1)."""
    return (s.load(s.newest_state()), False) if need_not_ask(s) else (newest(s), True)


def need_not_ask(s: Session) -> bool:
    """Whether this process owns the next version: whoever was faster has to take that round first, and a create tells.

    What was heard of backends before is forgotten then.
    """
    if not s.group.owns(s.newest_state()):
        return False
    s.group.forget_heard()
    return True


def may_prepare(s: Session) -> bool:
    """Whether a small push may begin with its proposal in place of a look for news (consensus.md, rule 2.2).

    Where this device pushed last there is most often nothing newer. Elsewhere a look is cheaper than a proposal that
    finds one.
    """
    return s.db.get(OWN_KEY) == s.newest_state().hash


def newest_seen(s: Session) -> Agreed:
    """Loads the newest state that any reachable backend proves decided; there may be newer ones."""
    return s.load(s.runtime.run(s.group.newest_seen(s.newest_state(), deadline_s=LOOK_S)))


# --- what was decided


def remember(s: Session, state: State, *, own: bool = False) -> None:
    """Keeps a decided state and each acceptor's last entry, against rollback (consensus.md, rule 1.10).

    What others changed of what the workspace lives through is told; `own`: this device did.
    """
    s.follow_keys(state)
    known = s.newest_state()
    newer = (state.era, state.v) >= (known.era, known.v)
    # A new clone lacks the mapping before, which is still read; so does a device that could not have it.
    strange = state.config != s.connections.config_hash or (s.previous is None and s.config.prev_config is not None)
    configs = _configs_of(s, state) if newer and strange else None
    with s.db.transaction():
        if newer:
            s.db.set(NEWEST_KEY, state)
            line = s.db.get(LINE_KEY)
            if own:
                s.db.set(OWN_KEY, state.hash)
            if state.hash != known.hash or line is None:
                s.db.set(LINE_KEY, line_after(line or (), (known, state)))
        notices = [Notice(text, warning=True) for text in _cross(s, known, state)]
        s.db.set(MEMORY_KEY, s.group.memory)
        s.connections.note_floorless()
        if configs is not None:
            notices += [] if own else _changed(s.config, configs[0], state.v)
            s.connections.follow(state.config, *configs)
    if configs is not None:
        s.outdate("transfer")
    for (device_id, v), why in s.group.take_void_values().items():
        notices.append(_void(s, device_id, v, why))
    for notice in notices:
        s.listener(notice)


def _changed(old: Config, new: Config, v: int) -> list[Notice]:
    """What a user is told of a config that somebody else had agreed: that it keeps less, or trusts more or less."""
    out = []
    if new.survives.copies < old.survives.copies:
        copies = f"{new.survives.copies + 1} instead of {old.survives.copies + 1}"
        out.append(Notice(f"copies that are kept of everything, since version {v}: {copies}", warning=True))
    if new.f != old.f:
        text = f"voting backends that may lie, since version {v}: {new.f} instead of {old.f}"
        out.append(Notice(text, warning=new.f < old.f))
    return out


def _void(s: Session, device_id: bytes, v: int, why: str) -> Notice:
    """Names a device whose program proposed what the rules of values exclude, or whose word the backends do not bear
    out (consensus.md, rules 8.4 and 3.3)."""
    from metasync.keys.device_set import names_of

    name = names_of(s.devices_of(s.newest_state())).get(device_id, device_id.hex())
    if isinstance(why, Word):  # backends that were set back make an honest device look so
        text = f"{name} is not believed about version {v}: {why}. Either backends were set back to an older state, or"
        text = f"{text} hide what it knows, or that device is wrong. Before you push here: metasync status on {name}"
        return Notice(f"{text}; if that tells of an older past, the backends are wrong", warning=True)
    text = f"{name} proposed a version {v} that may not be, and it counts for nobody: {why}"
    step = f"If that is not a fault of its program: metasync device revoke {device_id.hex()[:8]}"
    return Notice(f"{text}. {step}", warning=True)


def _configs_of(s: Session, state: State) -> tuple[Config, Config | None]:
    """The config that a decided state names, and the one whose mapping it lets be read."""
    config = s.config_of(state)
    previous = None
    if (name := config.prev_config) is not None:
        with contextlib.suppress(MetaSyncError):  # then what was not moved cannot be found now, and all else can
            previous = s.config_named(name)
    return config, previous


def _cross(s: Session, known: State, state: State) -> list[str]:
    """Passes from `known` to a state of a later era, in the open transaction. -> what to tell the user.

    If the folder is at a version that the new era does not contain (consensus.md, rule 5.3), its base is set back to
    the last version of both. The disk stays as it is: what the folder has beyond that base becomes a change of this
    device. No content counts as agreed any more then, because a replaced file may be the only copy.
    """
    warnings = []
    records, before = s.group.participant.followed, s.base_state()
    base = before
    for number in range(known.era + 1, state.era + 1):
        record = records.get(number)
        if record is None:
            continue
        how = f"without {', '.join(record.without)}" if record.without else "past a version that was ended"
        text = f"the workspace was restarted as era {number} {how} on {_day(record.at_ns)}"
        if base.era < number and (base.era, base.v) > (record.ended.era, record.ended.v):
            base = record.ended
            text += (
                f"; version {before.v}, which this folder is at, is not part of it: what the folder has beyond version "
                f"{base.v} is kept as changes of this device"
            )
            s.db.set(BASE_KEY, base)
            s.db.set(LEFT_KEY, before)
            s.db.drop_objects_of(AGREED_MARK)
        s.db.set(ERA_KEY, record.passage)
        s.db.set(RETIRED_KEY, None)
        warnings.append(text)
    return warnings


def _day(at_ns: int) -> str:
    with contextlib.suppress(OverflowError, ValueError, OSError):
        return datetime.datetime.fromtimestamp(at_ns // 1_000_000_000, datetime.UTC).date().isoformat()
    return "an unknown day"


def note_standings(s: Session) -> None:
    """Leaves out the backends that are not what they were: no pack goes to them, none is read from them."""
    if s.group.evidence:
        evidence.note(s.db, s.group.evidence, s.wall_ns())
    note_retired(s)
    for name, standing in s.group.standings.items():
        wanted_so = standing.kind == "unlinked" and name in (s.db.get(UNLINKED_KEY) or ())
        if standing.kind in ("ok", "unknown") or wanted_so:
            continue
        s.down.setdefault(name, standing.reason or standing.kind)
        if standing.kind in ("replaced", "rolled back"):
            s.leave_out(name, UnreachableError(f"{standing.kind}: {standing.reason}"))
    ill = {name for name, standing in s.group.standings.items() if standing.kind in ("down", "replaced", "rolled back")}
    unasked = s.connections.without
    away = (ill | s.connections.absent.keys()) & s.connections.links.keys() - unasked
    evidence.note_writes(s.db, s.connections.writes())
    if away or s.db.has(AWAY_KEY):
        evidence.note_away(s.db, away, (s.connections.agreed_names - s.group.heard) | unasked, s.wall_ns())


def note_retired(s: Session) -> None:
    """Notes that an acceptor was seen retired, so that the next process looks for the record of the new era."""
    era = max((stone.era for stone in s.group.participant.tombstones.values()), default=0)
    if era > s.newest_state().era and not s.db.has(RETIRED_KEY):
        s.db.set(RETIRED_KEY, era)


def is_in(s: Session, devices: DeviceSet) -> bool:
    """True when this device stands in a device set. `ExcludedError`: another one does, by the same invitation."""
    if devices.get(s.device.device_id) is None:
        return False
    invited = s.db.get(INVITED_KEY)
    if invited is not None and not _is_used_here(s, devices, invited):
        raise ExcludedError(
            f"this invitation was used before, on another device that is {s.device.name} now; or the keys were changed "
            "while it was used here",
            next_step=f"If no other device is {s.device.name}, run on one of yours: metasync device revoke "
            f"{s.device.name}. Then ask for a new invitation.",
        )
    return True


def _is_used_here(s: Session, devices: DeviceSet, invited: bytes) -> bool:
    from metasync.keys.device_set import used_by
    from metasync.keys.invitation import SECRET_BYTES

    return used_by(devices, s.device.device_id, invited[:SECRET_BYTES])


# --- proposing


@contextlib.contextmanager
def preparing(s: Session, base: State) -> Iterator[None]:
    """Begins to agree on the version after `base` while the block stores the last of a push. `propose` goes on."""
    _recall(s)
    done = False
    prepared = s.runtime.start(s.group.prepare(base, hurry=lambda: done))
    try:
        yield
    finally:
        done = True
        prepared.exception()  # waits: one task at a time looks at logs. What failed, `propose` meets again


def proposing(s: Session, base: State, change: Change) -> Task:
    """The task of `propose`, for a caller that waits for it and then remembers the outcome."""
    _recall(s)
    return s.group.propose(base, lambda: change, op_id=change.op_id)


def _recall(s: Session) -> None:
    if not s.recalled:
        line = s.db.get(LINE_KEY)
        s.group.recall(line or ())
        s.recalled = True


def propose(s: Session, base: State, change: Change) -> Decided:
    """Proposes the version after `base`. The journal stays until the caller has recorded the outcome.

    An earlier push that never learned its end may be decided in the place of `change`: then the folder is at that.
    """
    journal = s.db.get(JOURNAL_KEY)
    if journal is not None and journal.v <= base.v and journal.op_id != change.op_id:
        settle_journal(s, base)
    try:
        with waiting(s):
            decided: Decided = s.runtime.run(proposing(s, base, change))
    finally:
        note_standings(s)
    remember(s, decided.state, own=decided.mine)
    won = journal is not None and not decided.mine and journal.op_id == decided.state.op_id
    if won and journal is not None and journal.base.hash == s.base_state().hash:
        adopt(s, decided.state)
    return decided


def settle_journal(s: Session, latest: State | None = None) -> int | None:
    """Returns the version that an interrupted push was agreed as, if it was; the folder is then at that version.

    `latest`: the newest state, if it was asked for already.
    """
    journal = s.db.get(JOURNAL_KEY)
    if journal is None:
        return None
    latest = latest or ask_newest(s)
    if latest.v < journal.v and latest.era == journal.base.era:
        return None  # still open: whoever proposes that version next, this push for one, finishes it
    state = agreed_as(s, journal, latest)
    if state is not None and state.epoch != journal.base.epoch:
        s.group.unfenced.append((journal.base, state))
        s.follow_keys(latest)
    if state is not None and journal.base.hash == s.base_state().hash:
        adopt(s, state)
    else:
        s.db.set(JOURNAL_KEY, None)
    return journal.v if state is not None and state.master != journal.base.master else None


def agreed_as(s: Session, journal: Journal, latest: State) -> State | None:
    """Finds the state that a journalled proposal became; None if it was not decided, or `latest` is too old."""
    try:
        agreed: bool | None = s.runtime.run(s.group.find_op(latest, journal))
    except DamagedError:  # so long ago that no backend of that time is left: what differs here is merged as any is
        return None
    return s.runtime.run(s.group.state_at(latest, journal.v)) if agreed else None


def adopt(s: Session, state: State) -> None:
    """Sets the folder's base to an own push that was agreed unnoticed.

    The agreed tree is what stood here then, so later edits are changes on top of it, and no conflicts.
    """
    s.devices_of(state)  # a folder opens with the device set of what it is at, which others may have followed
    with s.db.transaction():
        if state.master != s.base_state().master:  # else it was a change of keys or devices, and holds no files
            drop_kept(s)
        s.db.set(BASE_KEY, state)
        s.db.set(JOURNAL_KEY, None)


def drop_kept(s: Session) -> None:
    """Forgets the objects that merges staged: an agreed version holds them now."""
    staged = [i for i, _, _ in s.db.staged()]
    note_agreed(s, staged)  # small texts: their contents are their blobs
    s.db.set(KEPT_KEY, None)
    s.db.clear_staged(staged)


def note_agreed(s: Session, contents: Iterable[bytes]) -> None:
    """Notes contents that a decided version holds: replaced files of them may go (architecture.md, D8)."""
    s.db.put_objects((content, META_KIND, AGREED_MARK) for content in contents)


def note_replaced(s: Session, tree: Mapping[bytes, Entry]) -> None:
    """Notes the contents of replaced files that this decided tree holds."""
    if replaced := {r.content for r in s.db.records(REPLACED)}:
        note_agreed(s, replaced & {e.content for e in tree.values()})


@contextlib.contextmanager
def telling(s: Session, base: State, state: State) -> Iterator[None]:
    """Writes this device's head and a hint, where it is time, beside what the caller does; deletes old logs.

    Failures do not matter.
    """
    tasks = {"hint": s.group.write_hint(base, state)}
    if s.connections.head.say(state, state.master, base.master, s.runtime.clock()):
        tasks["head"] = s.connections.head.written(s.group.participant, sorted(s.names.values()))
    with s.runtime.beside(together(tasks)) as others_told:
        yield
        with contextlib.suppress(BackendError, NoQuorumError):
            others_told()
        if state.v > LOGS_KEPT:
            _bound_logs(s, state)


def _bound_logs(s: Session, state: State) -> None:
    """Does this push's share in deleting old logs (consensus.md, rule 1.11)."""
    progress = s.db.get(FLOORS_KEY) or Progress()
    with contextlib.suppress(BackendError, DamagedError, NoQuorumError):
        s.runtime.run(s.group.bound_logs(state, progress, s.wall_ns() / 1e9))
    s.db.set(FLOORS_KEY, progress)
