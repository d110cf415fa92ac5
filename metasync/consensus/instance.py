"""What this process knows of one instance: every acceptor's answers for one version, and what follows from them.

Pure bookkeeping: which value is decided, which is the highest accepted one, who promised what. Votes count only from
acceptors whose birth object was seen to be the right one during the operation in progress (consensus.md, rule 1.9: a
root that was wiped may accept what it had promised not to), and only if their log was read at most DELTA_S ago: who
slept longer must read again, and then meets the fence that a change of the config left behind (`reconfigure`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final

from metasync.codec import UPGRADE
from metasync.config import Config, Form
from metasync.consensus.acceptors.block import BlockAcceptor
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.acceptors.view import AcceptorView, two_values
from metasync.consensus.participant import Participant, Standing
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.entry import Round, SignedEntry
from metasync.consensus.records.log_replay import NEVER, Log, ValueRules
from metasync.consensus.records.state import State
from metasync.errors import ForkError, NoQuorumError, UpgradeError
from metasync.keys.device_set import DeviceSet
from metasync.runtime.effects import Gather, Task

_FORMS: Final[dict[Form, type[AcceptorView]]] = {"log": LogAcceptor, "block": BlockAcceptor}
SLEPT: Final = (
    "if other devices still push, this one slept too long: clone into a new folder and copy there what was not pushed "
    "from here"
)
PAST_IT: Final = (
    f"run again, in case a store showed it wrongly; {SLEPT}. Where none can push any more, metasync recover goes past "
    "it; --revoke NAME shuts out a device that you do not trust, for garbage does not say who put it there"
)


class Instance:
    """Instance v = base.v + 1, on the config and device set that `base` names. `acceptors`: its acceptors by id."""

    def __init__(self, m: Participant, config: Config, devices: DeviceSet, base: State) -> None:
        self.m = m
        self.config = config
        self.devices = devices
        self.base = base
        self.v = base.v + 1
        self.rules = ValueRules(m.keys, config, devices, base)
        views = self.acceptors = dict[bytes, AcceptorView]()
        for backend, acceptor in config.acceptors:
            form = _FORMS[acceptor.form]
            views[acceptor.acceptor_id] = form(m, self.rules, backend.name, acceptor, views)
        self.quorum = config.quorum
        self.asked_all = False  # in this operation, and those that answered in time were read
        self.prepared = NEVER  # a round of ours that a quorum promised ahead, and that was not used yet

    @property
    def names(self) -> list[str]:
        """The agreed names of the backends that vote."""
        return [a.name for a in self.acceptors.values()]

    @property
    def all_logs(self) -> bool:
        """True when no acceptor has the block form: then an absent entry 0 shows that nothing is there at all."""
        return all(a.form == "log" for a in self.acceptors.values())

    def begin(self) -> None:
        """Starts an operation: births and ends of logs seen before count no longer."""
        self.asked_all = False
        for acceptor in self.acceptors.values():
            acceptor.begin()

    @property
    def heard(self) -> set[bytes]:
        """Acceptors whose births were seen right when they were asked last in this operation."""
        return {a for a, view in self.acceptors.items() if view.heard}

    def hear(self, acceptor_ids: Collection[bytes]) -> None:
        """The births of these were seen right in this operation, on the way to this version."""
        for a, view in self.acceptors.items():
            view.heard = view.heard or a in acceptor_ids

    def take_prepared(self) -> Round:
        """The round that was prepared ahead, once; `NEVER` when there is none."""
        prepared, self.prepared = self.prepared, NEVER
        return prepared

    def decided(self, *, births: bool = True) -> State | None:
        """The value decided for v as far as the logs that were read show, or None.

        The one for which a quorum voted in the lowest round (consensus.md, rule 8.2): honest devices propose nothing
        else above it. `births=False` counts every log: a reason to look, not a result. `ForkError` when two values are
        decided in one round.
        """
        votes: Counter[tuple[Round, bytes]] = Counter()
        values: dict[bytes, State] = {}
        for log in self._counted(births):
            for rnd, value in log.votes.items():
                values[value.hash] = value
                votes[rnd, value.hash] += 1
        if len(values) == 1:  # then a closed log, which votes no more, stands for its value in later rounds as well
            for rnd, key in votes:
                late = [log for log in self._counted(births) if log.closed is not None and rnd not in log.votes]
                votes[rnd, key] += sum(log.accepted is not None and log.accepted[0] < rnd for log in late)
        won = [(rnd, key) for (rnd, key), count in votes.items() if count >= self.quorum and self.is_earned(rnd)]
        found = [key for rnd, key in won if rnd == min(won)[0]]
        if len(found) > 1:
            raise ForkError(f"two values are decided for version {self.v}: backends show contradicting histories")
        is_shown = not births or any(key in found and self.is_shown_earned(rnd) for rnd, key in won)
        return values[found[0]] if found and is_shown else None

    def may_decide(self, value: State) -> bool:
        """True unless the logs that were read show that this value was not decided for v."""
        decided = self.decided()
        if decided is not None:
            return decided == value
        rnd = self.round_of(value)
        held = sum(log.votes.get(rnd) == value for log in self._counted(births=True))
        return rnd != NEVER and held + self._unread() >= self.quorum

    def is_certain(self, value: State) -> bool:
        """True unless what was not read, or is hidden by those that may lie, can show that another value was decided in
        a lower round than this one. `value`: what `decided` gave, which is that of the lowest round with a quorum."""
        votes = Counter((rnd, x) for log in self._counted(births=True) for rnd, x in log.votes.items())
        rounds = (rnd for (rnd, _), held in votes.items() if held >= self.quorum and self.is_earned(rnd))
        won = min(rounds, default=NEVER)  # closed logs stood for it, and then there is no other value
        others = [held for (rnd, x), held in votes.items() if x != value and rnd < won and self.is_earned(rnd)]
        return max(others, default=-len(self.acceptors)) + self._unread() < self.quorum

    def is_bound(self, value: State) -> bool:
        """True when all that this value's votes lack for a quorum are acceptors that were emptied, and nothing that was
        read has a vote for another one: every quorum that is left then has one of its votes, which binds proposers.

        An acceptor that does not answer now is none that was emptied.
        """
        votes = [vote for log in self._counted(births=True) for vote in log.votes.items() if self.is_earned(vote[0])]
        lost = sum(bool(a.memory.replaced) and not a.memory.tombstone for a in self.acceptors.values())
        held = max(Counter(rnd for rnd, _ in votes).values(), default=0)  # all of them are its, or it is not bound
        enough = held > 0 and held + lost >= self.quorum and self._unread() < self.quorum
        return enough and all(x == value for _, x in votes)

    def _unread(self) -> int:
        """How many logs may hold votes that were not seen."""
        return sum(not (a.born and a.ended) for a in self.acceptors.values()) + self.config.f

    def is_earned(self, rnd: Round) -> bool:
        """False when so many logs lack its PREPARE, and always will, that no quorum can have promised it."""
        lacking = sum(a.log.usable and a.log.lacks(rnd) for a in self.acceptors.values())
        return rnd.n == 0 or lacking <= len(self.acceptors) - self.quorum + self.config.f

    def is_shown_earned(self, rnd: Round) -> bool:
        """True when so many logs show its PREPARE that what was not read cannot make it unearned (rule 8.2).

        One that is closed counts as in `promises`. Where one is closed on its vote in that round others may be unable
        to finish the version: then those that were asked, and showed nothing, count for it.
        """
        views = [a for a in self.acceptors.values() if not (a.log.usable and a.log.lacks(rnd))]
        shown = [a for a in views if a.log.usable and (rnd in a.log.prepared or a.log.shut)]
        logs = [a.log for a in self.acceptors.values() if a.log.usable]
        if self.asked_all and any(log.closed is not None and rnd in log.votes for log in logs):
            shown += [a for a in views if a not in shown and not (a.born and a.ended)]
        return rnd.n == 0 or len(shown) >= self.quorum - self.config.f

    def _counted(self, births: bool) -> list[Log | Blocks]:
        """The logs whose votes count; all usable ones where `births` do not matter."""
        return [a.log for a in self.acceptors.values() if a.log.usable and (not births or a.counts())]

    def evidence(self, *, either: bool = False) -> State | None:
        """The value of the highest round that was earned, in any log seen: the one that may already be decided.

        Of two values in one round it is the one that may have a quorum. `ForkError` when both may: an incarnation was
        duplicated, or its device lies. `either`: then one of them.
        """
        logs = [a.log for a in self.acceptors.values()]
        top = max((rnd for log in logs for rnd in log.accepts if self.is_earned(rnd)), default=None)
        if top is None:
            return None
        voters = Counter(log.accepts[top] for log in logs if top in log.accepts)
        if len(voters) == 1:
            return next(iter(voters))
        open_yet = sum(top not in log.accepts and log.promised <= top for log in logs) + self.config.f
        may = [value for value, count in voters.items() if count + open_yet >= self.quorum]
        if len(may) > 1 and not either:
            raise two_values(self.v)
        return may[0] if may else max(voters, key=lambda value: value.hash)

    def promises(self, rnd: Round) -> int:
        """How many acceptors promised `rnd`, nothing higher since, and were not emptied before they did.

        One whose log is closed takes nothing any more, which is as good as a promise of what it can still promise.
        """
        return sum(self._promised(a, rnd) for a in self.acceptors.values())

    def _promised(self, a: AcceptorView, rnd: Round) -> bool:
        gives = a.log.grants(rnd) or (a.log.shut and not a.log.lacks(rnd))
        return a.log.usable and gives and a.vouched and a.is_fresh()

    def is_quiet_below(self, rnd: Round) -> bool:
        """True when a quorum promised `rnd` and holds no vote: nothing was decided when the first of them was asked."""
        return rnd != NEVER and self.quorum <= sum(
            self._promised(a, rnd) and a.log.silent for a in self.acceptors.values()
        )

    def top_round(self) -> Round:
        """The highest round promised anywhere. One that promised the last there is can only be passed by."""
        return max((a.log.promised for a in self.acceptors.values() if not a.log.spent), default=NEVER)

    def ended(self) -> dict[str, str]:
        """Acceptors that can take no more part in this version though they answer, by name, and why."""
        return {a.name: why for a in self.acceptors.values() if (why := a.log.ended or self._shut_by_a_lie(a.log))}

    def _shut_by_a_lie(self, log: Log | Blocks) -> str:
        """Why a log that is closed votes for nobody (consensus.md, rule 8.1); "" if it votes, or may yet."""
        if log.closed is None or log.accepted is None or self.is_earned(log.accepted[0]):
            return ""
        return f"its log of version {self.v} was closed on a value that nobody could propose"

    def owned(self, except_for: bytes) -> bool:
        """True when some other incarnation's round is promised by a quorum: let it finish."""
        rounds = Counter(a.log.promised for a in self.acceptors.values() if a.log.usable)
        return any(n >= self.quorum and rnd.incarnation != except_for for rnd, n in rounds.items() if rnd != NEVER)

    def closed_vote(self) -> tuple[Round, State] | None:
        """The highest earned vote of a log that is closed, while others can still vote in its round; None without."""
        votes = [a.log.accepted for a in self.acceptors.values() if a.log.closed is not None and a.log.accepted]
        vote = max((v for v in votes if self.is_earned(v[0])), key=lambda v: v[0], default=None)
        logs = [a.log for a in self.acceptors.values()]
        takes = vote is not None and any(vote[0] not in log.accepts and log.promised <= vote[0] for log in logs)
        return vote if takes else None

    def round_of(self, value: State) -> Round:
        """The round in which a closed acceptor, or else most acceptors, voted for a value; `NEVER` when none did."""
        rounds: Counter[Round] = Counter()
        for log in (a.log for a in self.acceptors.values()):
            weight = 1 if log.closed is None else len(self.acceptors)
            rounds.update({rnd: weight for rnd, x in log.votes.items() if x == value})
        return max(rounds, key=lambda rnd: (rounds[rnd], rnd), default=NEVER)

    def has_unread(self) -> bool:
        """True when a create found an entry of another that was not read yet."""
        return any(a.has_unread for a in self.acceptors.values())

    def has_votes(self) -> bool:
        """True when any acceptor was seen to have accepted a value."""
        return any(a.log.votes for a in self.acceptors.values())

    def silent(self) -> bool:
        """True when nothing that was read shows a vote that somebody may have counted."""
        return all(a.log.silent for a in self.acceptors.values())

    def progress(self) -> int:
        """How many entries were read; grows while somebody works on this instance."""
        return sum(a.log.next_idx for a in self.acceptors.values())

    def quiet(self) -> bool:
        """True when a quorum's logs, read to their ends, hold no vote: nothing was decided when the read began."""
        return sum(a.log.usable and a.born and a.ended and a.log.silent for a in self.acceptors.values()) >= self.quorum

    def is_last(self) -> bool:
        """True when a quorum of the same acceptors holds nothing of the version after this one either.

        What is decided for that one would stand on a quorum. It has these acceptors, and names made with the same keys,
        only where the value that is decided here changes neither.
        """
        value = self.decided()
        same = value is not None and (value.config, value.epoch) == (self.base.config, self.base.epoch)
        return same and sum(a.beyond and a.born for a in self.acceptors.values()) >= self.quorum

    def read(self) -> int:
        """How many acceptors were read to the end of their logs in this operation, with the right birth."""
        return sum(a.born and a.ended for a in self.acceptors.values())

    def is_audited(self) -> bool:
        """True when every acceptor still showed what it was seen to hold, by whomever."""
        return not any(a.memory.unaudited for a in self.acceptors.values())

    def is_behind_floor(self) -> bool:
        """True when an acceptor has a floor above v: its logs may be deleted."""
        return any(a.floor is not None for a in self.acceptors.values())

    def fault_after(self, base: State, devices: DeviceSet) -> str:
        """What speaks against a state far ahead of this base, with the device set that it names; "" if nothing."""
        if base.v <= self.base.v:
            return ""
        old, new = self.devices.policy, devices.policy
        if new.sequence < old.sequence or (new.sequence == old.sequence and new != old):
            return "its policy is older than the one that this device knows"
        return ""

    def writer_of(self, state: State, deadline_s: float) -> Task:
        """-> id of the device that proposed `state` here, by first entries; None where these tell nothing."""
        asked = {a.name: a.first_entry(state.v) for a in self.acceptors.values() if a.reach() is not None}
        got: Mapping[str, Any] = yield Gather(asked, deadline_s=deadline_s)
        for signed in got.values():
            if isinstance(signed, SignedEntry) and signed.entry.round.incarnation == state.writer:
                device = self.devices.get(signed.entry.device_id)
                if device is not None and signed.verifies(device.sign_public):
                    return device.device_id
        return None

    def read_births(self, wait_s: float) -> Task:
        """-> {agreed name: Standing}: whether every acceptor is still the one that the config means."""
        got = yield Gather({a.name: a.read_birth() for a in self.acceptors.values()}, deadline_s=wait_s)
        out = {}
        for name in self.names:
            fallback = Standing("ok") if got.get(name) else Standing("down", "no answer")
            standing = self.m.standings.get(name, fallback)
            right = standing.kind in ("ok", "unknown", "down", "full") and got.get(name)
            out[name] = fallback if right else standing
        return out

    def check_fork(self) -> Task:
        """Has entries on another state than our base looked into, once each (`forks`). `ForkError` naming backends."""
        if any(a.log.elsewhere.keys() - self.m.doubted for a in self.acceptors.values()):
            assert self.m.look_apart is not None
            yield from self.m.look_apart(self)

    def check_upgrade(self) -> None:
        """Raises `UpgradeError` naming the backends that hold entries of a newer format."""
        newer = [a.name for a in self.acceptors.values() if a.log.newer]
        if newer:
            raise UpgradeError(f"{', '.join(sorted(newer))}: written by a newer version", next_step=UPGRADE)

    def check_rollback(self) -> None:
        """Raises `ForkError` when so many acceptors show an older past than remembered that no quorum is left."""
        lost = {a.name: a.memory.rolled_back for a in self.acceptors.values() if a.memory.rolled_back}
        if len(lost) > len(self.acceptors) - self.quorum:
            reasons = "; ".join(f"{name}: {why}" for name, why in sorted(lost.items()))
            raise ForkError(
                f"backends show an older past than this device has seen ({reasons})",
                next_step="they were restored from a backup, or lie: compare fingerprints with another device",
            )


def no_quorum(m: Participant, instance: Instance, *, sent: bool = False) -> NoQuorumError:
    """What to tell when too few acceptors answered, with each one's reason."""
    names = sorted(instance.names)
    barred = {a.name: a.barred for a in instance.acceptors.values() if a.barred is not None}
    why = {n: b.reason for n, b in barred.items()}
    why |= {n: s.reason or s.kind for n in names if (s := m.standings.get(n)) and s.kind != "ok"}
    ended = instance.ended()
    reasons = "; ".join(f"{n}: {reason.removeprefix(f'{n}: ')}" for n, reason in sorted((why | ended).items()))
    if len(names) - len(ended) < instance.quorum:
        text = f"version {instance.v} cannot be agreed any more: what lies in its logs leaves no quorum ({reasons})"
        return NoQuorumError(text + "; the change may be committed" * sent, next_step=PAST_IT)
    text = f"version {instance.v}: no quorum of {instance.quorum} of {len(names)} backends"
    text += f" ({reasons})" if reasons else " in time"
    if sent:
        return NoQuorumError(f"{text}; the change may be committed", next_step="run again: it will be found out")
    first = next((s.first for n in names if (s := m.standings.get(n)) and s.kind == "down" and s.first), "")
    away = [n for n in names if (s := m.standings.get(n)) and s.kind in ("down", "replaced")]
    step = f"{first.rstrip('.')}. Then run again." if first else "run again when the backends are reachable"
    if not first and len(names) - instance.quorum < len(away) + len(ended) and len(away) < len(names):
        past = ended or any(m.standings[n].kind == "replaced" for n in away)  # others may have gone on without these
        step += f"; {SLEPT}; if none does and they are lost for good" if past else "; if they are lost for good"
        step += f": metasync recover {' '.join(f'--without {n}' for n in away)}"
    gone = [n for n in names if (s := m.standings.get(n)) and s.kind == "replaced"]
    full = [n for n in names if (s := m.standings.get(n)) and s.kind == "full"]
    if full:
        step = f"free space on {', '.join(full)}, then run again"
    if barred:
        step = next(iter(barred.values())).next_step
        if away:  # what they hold may be all that it lacks
            step = f"run again when {' and '.join(sorted(away))} answers, or clone into a new folder; or {step}"
    if not m.links.keys() & instance.acceptors.keys():
        step = (
            "this device knows a way to none of the backends of today. Ask for a new invitation, or clone anew;"
            " or tell it the ways: metasync backend link NAME URL"
        )
    elif any((s := m.standings.get(n)) and s.kind == "unlinked" for n in names):
        step = "tell this device the way to them: metasync backend link NAME URL"
    elif len(gone) > len(names) - instance.quorum:
        step = f"{SLEPT}; if none does: metasync recover {' '.join(f'--without {n}' for n in gone)}"
    return NoQuorumError(text, next_step=step)
