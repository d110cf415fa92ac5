"""Who is asked for what next, when packs are fetched from several backends at once. Pure: told of times and outcomes.

Theory of operation. What is wanted are *pieces*: a range of a pack, with the holders that ought to have it. Whenever a
holder has a connection free it takes a piece that it can serve, unless another holder would be through with that piece
sooner; so all holders end at about the same time, whatever their speeds (work stealing). How long each would take is
reckoned from the estimates of its line and from what is on its way there. Of the pieces that it can serve, a holder
takes one whose other holders have most to do. At the end, when a whole piece would keep one holder busy after the
others are through, it takes as much of the piece as it can bring by then, in whole segments; the rest is a piece anew.

An unknown holder takes one piece first, a small one where much is wanted. A holder whose answer is much later than its
estimate gets nothing new until it answers, and another holder is asked for the same as well; the first answer wins.
What is asked twice is bounded by SPARE_SHARE of all that is wanted, and SPARE_BYTES_LEAST. Pieces that a holder does
not have, or cannot give because it is away, are asked from others and do not count there.

A piece that no home can give is asked from the others in the order listed; then from holders of a bad copy of another
part of its pack; then once more in a download from those that are away.

With `need` above 1 a piece is given by so many of its holders together, each with a part of `size` bytes of its own, as
shards of erasure(k, n): k of them are asked, and others in place of those that are late or fail.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from metasync.transfer.estimates import LARGE_BYTES_LEAST, Estimate
from metasync.transfer.line_load import Holder, Lines

HELD_BYTES_MAX: Final = 40 << 20  # under way or being opened: two packs of each of four holders, and what is opened
LATE_HELD_BYTES_MAX: Final = 24 << 20  # and so much that is late: it may never come, and must not hold up the rest
CONNECTIONS_MAX: Final = 8  # calls at once on one backend, as `concurrency.START`
AT_ONCE_LEAST: Final = 6  # calls at once in all, where there is work for them: a service may limit each connection
HOLDER_AT_ONCE_LEAST: Final = 2  # so that the line does not idle between an answer and the next request
CUT_BYTES_LEAST: Final = 1 << 20  # no part of a pack that is cut is smaller; requests stay few
CUT_OVER_MAX: Final = 1.25  # nor larger than it ought to be by more than this
CUT_GAIN_S: Final = 0.1  # nor is one cut to save less than this
IDLE_SHARE_MAX: Final = 0.02  # of its line that a holder may leave idle between an answer and the next request
TRIAL_FROM_BYTES: Final = 64 << 20  # from so much on, a holder that nothing is known of is tried with a small piece
TAIL_FACTOR: Final = 2.0  # a holder with nothing to do helps one that needs so many times as long as it would,
TAIL_GAIN_S: Final = 0.5  # and this longer
SPARE_SHARE: Final = 1 / 8  # of what is wanted in all that may be asked twice,
SPARE_BYTES_LEAST: Final = 16 << 20  # and so much in any case: all that one silent backend has under way


class Failure(Enum):
    """Why a take brought nothing."""

    BAD = "bad"  # what came is not what was agreed
    MISSING = "missing"  # the holder has nothing of this pack
    AWAY = "away"  # the holder cannot be reached


class Piece(NamedTuple):
    """Bytes `begin` to `end` of what the caller knows as `key`. `homes` ought to have it, best first; `others` may.

    `cuts`: where it may be cut in two, ascending. `need`: how many holders must give their part; above 1 it is not cut.
    """

    key: int
    begin: int
    end: int
    homes: tuple[str, ...]
    others: tuple[str, ...] = ()
    cuts: tuple[int, ...] = ()
    need: int = 1

    @property
    def size(self) -> int:
        return self.end - self.begin


class Take(NamedTuple):
    """One request that is to be made now. `spare`: the same was asked from another holder, who is late."""

    number: int
    piece: Piece
    holder: str
    spare: bool = False


@dataclass(eq=False)
class _Open:
    """Pieces that the same holders can serve and that nobody is asked for yet, the largest first."""

    entries: list[tuple[int, int, Piece]] = field(default_factory=list)  # -size, number
    size: int = 0


@dataclass(eq=False)
class _Wanted:
    """A piece that is not there yet."""

    piece: Piece
    listed: tuple[tuple[str, ...], int] | None = None  # where it stands among the open ones, and its number there
    tried: set[str] = field(default_factory=set)  # holders whose copy did not serve
    silent: set[str] = field(default_factory=set)  # and who did not answer for it once; twice is enough
    got: set[str] = field(default_factory=set)
    under_way: dict[str, Take] = field(default_factory=dict)  # asked or being opened, by holder


class Schedule:
    """Decides for one download. `estimate` says what is known of a holder's line; `away` names holders that are down.

    The caller carries out every `Take` of `next` and reports it: `answered` when its bytes are there, then `opened`
    when they proved right; or `failed`. Between reports it asks `next` until that is None, and again at `wake_at`.
    """

    def __init__(
        self,
        estimate: Callable[[str], Estimate],
        *,
        away: Iterable[str] = (),
        connections: int = CONNECTIONS_MAX,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self._lines = Lines(estimate)
        self._connections = connections
        self._held_max = held_bytes_max
        self._away = set(away)
        self._again: dict[str, int | None] = {}  # asked once more though away: the take, None when it has ended
        self._bad: dict[int, set[str]] = {}  # holders with a bad copy of some part
        self._wanted: dict[Piece, _Wanted] = {}
        self._by_key: dict[int, set[Piece]] = {}
        self._open: dict[tuple[str, ...], _Open] = {}  # by who can serve them
        self._calls: dict[int, Take] = {}  # not answered yet
        self._opening: dict[int, Take] = {}
        self._numbers = 0
        self._total = 0
        self._twice: dict[Piece, int] = {}  # bytes asked twice, as far as no answer has failed

    # --- what is told

    def add(self, piece: Piece) -> None:
        """One more piece is wanted."""
        self._total += piece.size * piece.need
        wanted = _Wanted(piece)
        self._want(wanted)
        self._list(wanted)
        if self._is_lost(wanted):
            raise ValueError(f"{piece.key!r} is wanted, and nobody may have it")

    def may_ask(self, holder: str) -> bool:
        """Whether a holder is not known to be away."""
        return holder not in self._away

    def begun(self, piece: Piece, holder: str, since: float, now: float) -> Take:
        """A piece that was added is on its way from one of its homes already, since then. -> its take."""
        self._lines.go_to(since)
        wanted = self._wanted[piece]
        take = self._asked(self._lines.holders[holder], wanted, spare=False)
        self._list_anew([wanted])
        self._lines.go_to(now)
        return take

    def answered(self, take: Take, now: float, seconds: float = 0.0) -> bool:
        """Its bytes are there, and its connection is free. False: nobody needs them any more; it has ended.

        `seconds`: how long the holder took, without what the call waited for its turn; 0 where nobody measured.
        """
        self._end_call(take, now, seconds)
        wanted = self._wanted.get(take.piece)
        self._is_there(take.holder)
        if wanted is None:
            return False
        if wanted.piece.need == 1 and any(t.number in self._opening for t in wanted.under_way.values()):
            del wanted.under_way[take.holder]  # if what is being opened is bad, it is asked for again
            return False
        self._opening[take.number] = take
        return True

    def opened(self, take: Take) -> bool:
        """What was answered proved right. -> whether its piece is complete by that."""
        del self._opening[take.number]
        wanted = self._wanted.get(take.piece)
        if wanted is None:
            return False
        del wanted.under_way[take.holder]
        wanted.got.add(take.holder)
        if len(wanted.got) < take.piece.need:
            return False
        self._drop(take.piece)
        return True

    def failed(self, take: Take, failure: Failure, now: float) -> list[Piece]:
        """It brought nothing, or nothing right. -> pieces that can be had from nowhere; they are wanted no more."""
        if self._opening.pop(take.number, None) is None:
            self._end_call(take, now)
        self._twice.pop(take.piece, None)
        holder, wanted = take.holder, self._wanted.get(take.piece)
        if wanted is not None:
            del wanted.under_way[holder]
        if failure is Failure.AWAY:
            if self._again.get(holder) == take.number:
                self._again[holder] = None
            self._away.add(holder)
            if wanted is not None:
                (wanted.tried if holder in wanted.silent else wanted.silent).add(holder)
            concerned = list(self._wanted.values())
        else:
            self._is_there(holder)
            concerned = [self._wanted[piece] for piece in self._by_key.get(take.piece.key, ())]
            self._bad.setdefault(take.piece.key, set()).add(holder)
            for other in concerned if failure is Failure.MISSING else [wanted] if wanted is not None else []:
                other.tried.add(holder)
        self._list_anew(concerned)
        lost = [w.piece for w in concerned if self._is_lost(w)]
        self.forget(lost)
        return lost

    def _is_there(self, holder: str) -> None:
        """It answered, whatever it said."""
        if holder in self._away:
            self._away.discard(holder)
            self._again[holder] = None
            self._list_anew(self._wanted.values())

    def forget(self, pieces: Iterable[Piece]) -> None:
        """These are wanted no more."""
        for piece in pieces:
            if piece in self._wanted:
                self._drop(piece)

    @property
    def is_done(self) -> bool:
        return not self._wanted

    # --- what is decided

    def next(self, now: float) -> Take | None:
        """The next request to make; None while there is none to be made."""
        lines = self._lines
        lines.go_to(now)
        room, load = self._room(), self._loads()
        for holder in sorted(lines.holders.values(), key=lines.through):
            if self._has_connection(holder) and not holder.is_late:
                take = self._take_for(holder, room, load)
                if take is not None:
                    return take
        return self._take_again(room)

    def wake_at(self) -> float | None:
        """When an answer will be late that is not yet: `next` may then say more."""
        return self._lines.next_late({n for n, take in self._calls.items() if take.piece in self._wanted})

    def _has_connection(self, holder: Holder) -> bool:
        """Whether one more call would have the line carry more than it does."""
        latency, rate, known = self._lines.of(holder.name)
        size = max((-o.entries[0][0] for who, o in self._open.items() if holder.name in who), default=1)
        in_play = {name for who in self._open for name in who} | {h.name for h in self._lines.busy()}
        others = len(in_play - {holder.name})
        if not known and others and holder.asked >= LARGE_BYTES_LEAST:
            return False  # its first answer will say how much it bears
        if known and others and rate * latency < size * IDLE_SHARE_MAX:
            return not holder.calls  # a slow line: what is asked there too early would be there too late
        least = max(HOLDER_AT_ONCE_LEAST, AT_ONCE_LEAST // (others + 1))
        return len(holder.calls) < min(self._connections, max(least, 1 + math.ceil(2 * rate * latency / size)))

    def _end_call(self, take: Take, now: float, seconds: float = 0.0) -> None:
        del self._calls[take.number]
        self._lines.end(take.holder, take.number, now, seconds)

    # --- pieces

    def _want(self, wanted: _Wanted) -> None:
        piece = wanted.piece
        self._wanted[piece] = wanted
        self._by_key.setdefault(piece.key, set()).add(piece)
        for name in (*piece.homes, *piece.others):
            self._lines.know(name)

    def _drop(self, piece: Piece) -> _Wanted:
        wanted = self._wanted.pop(piece)
        self._unlist(wanted)
        of_key = self._by_key[piece.key]
        of_key.discard(piece)
        if not of_key:
            del self._by_key[piece.key]
        return wanted

    def _list(self, wanted: _Wanted) -> None:
        """Lists a piece among those to be taken, if it lacks a take."""
        asked = sum(name not in self._away for name in wanted.under_way)
        who = self._candidates(wanted)
        if who and len(wanted.got) + asked < wanted.piece.need:
            self._numbers += 1
            wanted.listed = who, self._numbers
            among = self._open.setdefault(who, _Open())
            insort(among.entries, (-wanted.piece.size, self._numbers, wanted.piece))
            among.size += wanted.piece.size

    def _unlist(self, wanted: _Wanted) -> None:
        if wanted.listed is None:
            return
        (who, number), wanted.listed = wanted.listed, None
        among, size = self._open[who], wanted.piece.size
        del among.entries[bisect_left(among.entries, (-size, number))]
        among.size -= size
        if not among.entries:
            del self._open[who]

    def _list_anew(self, concerned: Iterable[_Wanted]) -> None:
        for wanted in concerned:
            self._unlist(wanted)
            self._list(wanted)

    def _candidates(self, wanted: _Wanted) -> tuple[str, ...]:
        """Who may be asked for a piece now: all homes that are left, or one other."""
        piece = wanted.piece
        bad = self._bad.get(piece.key, set())
        not_now = wanted.tried | wanted.got | self._away
        homes = tuple(n for n in piece.homes if n not in not_now and n not in bad)
        if free := tuple(n for n in homes if n not in wanted.under_way):
            return free
        if homes and piece.need == 1:
            return ()  # asked already; `_take_again` is for when they are late
        everybody = (*piece.homes, *piece.others)
        order = [n for n in everybody if n not in not_now and n not in bad]
        order += [n for n in everybody if n not in not_now and n in bad]
        order += [n for n in everybody if n in self._away and n not in wanted.tried and n not in self._again]
        return tuple(n for n in order if n not in wanted.under_way)[:1]

    def _is_lost(self, wanted: _Wanted) -> bool:
        """Whether fewer holders are left than are needed."""
        left = {
            n
            for n in (*wanted.piece.homes, *wanted.piece.others)
            if n not in wanted.tried
            and n not in wanted.got
            and (n in wanted.under_way or n not in self._away or self._again.get(n, 0) is not None)
        }
        return len(wanted.got) + len(left) < wanted.piece.need

    # --- who takes what

    def _take_for(self, holder: Holder, room: int, load: dict[str, float]) -> Take | None:
        mine = [who for who in self._open if holder.name in who]
        if not mine:
            return None
        mine.sort(key=lambda who: max((-load[n] for n in who if n != holder.name), default=-math.inf))
        for who in mine:
            trial = not self._lines.of(holder.name)[2] and self._total >= TRIAL_FROM_BYTES
            _, _, piece = self._open[who].entries[-1 if trial else 0]
            if not trial:
                part = self._part(holder, who, piece, load)
            else:
                part = (_cut(piece, CUT_BYTES_LEAST * 2) if piece.need == 1 else 0) or piece.size
            if 0 < part <= room:
                return self._take(holder, piece, part)
        return None

    def _loads(self) -> dict[str, float]:
        """By holder: when it would be through with its share of all that is open, in seconds from now."""
        load = {h.name: h.owed / self._lines.of(h.name)[1] for h in self._lines.holders.values()}
        for who, among in self._open.items():
            reckoned = self._reckoned(who)
            together = sum(self._lines.of(n)[1] for n in reckoned)
            for name in reckoned:
                load[name] += among.size / together
        return load

    def _reckoned(self, who: Iterable[str]) -> list[str]:
        return [n for n in who if not self._lines.holders[n].is_late]

    def _part(self, holder: Holder, who: tuple[str, ...], piece: Piece, load: dict[str, float]) -> int:
        """How much of a piece a holder takes, from its begin: all, up to one of its cuts, or 0."""
        latency, rate, _ = self._lines.of(holder.name)
        begins = holder.owed / rate + latency
        whole = begins + piece.size / rate
        reckoned = self._reckoned(who)
        if reckoned == [holder.name]:
            return piece.size
        rates = {n: self._lines.of(n)[1] for n in reckoned}
        together = latency + sum(load[n] * rates[n] for n in reckoned) / sum(rates.values())
        if whole <= together + CUT_GAIN_S:
            return piece.size
        known = all(self._lines.of(n)[2] for n in reckoned)
        if known and piece.need == 1 and (part := _cut(piece, (together - begins) * rate)):
            return part
        share = piece.size / sum(rates.values())
        rivals = [self._lines.of(n)[0] + load[n] - share + piece.size / rates[n] for n in reckoned if n != holder.name]
        return piece.size if whole <= min(rivals) + CUT_GAIN_S else 0

    def _room(self) -> int:
        """Bytes that may be asked for now. A single piece always may."""
        in_time, late = self._lines.under_way()
        in_time += sum(take.piece.size for take in self._opening.values()) + max(0, late - LATE_HELD_BYTES_MAX)
        return self._held_max - in_time if in_time else sys.maxsize

    def _take(self, holder: Holder, piece: Piece, part: int) -> Take:
        wanted = self._wanted[piece]
        if part < piece.size:
            wanted = self._cut_off(piece, piece.begin + part)
        take = self._asked(holder, wanted, spare=False)
        self._list_anew([wanted])
        return take

    def _cut_off(self, piece: Piece, at: int) -> _Wanted:
        """Makes two pieces of one. -> the first; the second is open."""
        was = self._drop(piece)
        ranges = (
            piece._replace(end=at, cuts=tuple(c for c in piece.cuts if c < at)),
            piece._replace(begin=at, cuts=tuple(c for c in piece.cuts if c > at)),
        )
        first, second = (_Wanted(part, tried=set(was.tried), silent=set(was.silent)) for part in ranges)
        for part in (first, second):
            self._want(part)
        self._list(second)
        return first

    def _asked(self, holder: Holder, wanted: _Wanted, *, spare: bool) -> Take:
        self._numbers += 1
        take = Take(self._numbers, wanted.piece, holder.name, spare)
        if holder.name in self._away:
            self._again[holder.name] = take.number
            self._list_anew(self._wanted.values())
        self._calls[take.number] = take
        self._lines.begin(holder.name, take.number, take.piece.size)
        wanted.under_way[holder.name] = take
        if spare:
            self._twice[take.piece] = self._twice.get(take.piece, 0) + take.piece.size
        return take

    def _take_again(self, room: int) -> Take | None:
        """A piece whose holder is late, or would be long after all others, from another home."""
        bound = max(self._total * SPARE_SHARE, SPARE_BYTES_LEAST) - sum(self._twice.values())
        for slow in sorted(self._lines.holders.values(), key=self._lines.through, reverse=True):
            for wanted, take in self._needed(slow):
                if take.piece.size > min(bound, room):
                    continue
                able = [h for n in take.piece.homes if self._may_help(h := self._lines.holders[n], wanted)]
                if not able:
                    continue
                helper = min(able, key=self._lines.through)
                late = self._lines.is_call_late(slow, take.number) and not self._is_asked_twice(wanted)
                if late or self._would_end_alone(slow, helper, take.piece):
                    return self._asked(helper, wanted, spare=True)
        return None

    def _needed(self, holder: Holder) -> list[tuple[_Wanted, Take]]:
        """What a holder that is there was asked for, as far as it has not come."""
        if holder.name in self._away:
            return []
        takes = [self._calls[number] for number in holder.calls]
        return [(wanted, take) for take in takes if (wanted := self._wanted.get(take.piece)) is not None]

    def _would_end_alone(self, slow: Holder, helper: Holder, piece: Piece) -> bool:
        """Whether all are through but one, and another one would have its piece much sooner."""
        latency, rate, known = self._lines.of(helper.name)
        if self._open or helper.calls or not known or piece in self._twice or piece.size < CUT_BYTES_LEAST:
            return False
        return self._lines.through(slow) > TAIL_FACTOR * (latency + piece.size / rate) + TAIL_GAIN_S

    def _is_asked_twice(self, wanted: _Wanted) -> bool:
        """Whether as many are asked, or answered, as are needed, without those that are late."""
        well = [n for n in wanted.under_way if n not in self._away and not self._lines.holders[n].is_late]
        return len(wanted.got) + len(well) >= wanted.piece.need

    def _may_help(self, holder: Holder, wanted: _Wanted) -> bool:
        name = holder.name
        if name in self._away or name in wanted.tried or name in wanted.got or name in wanted.under_way:
            return False
        if name in self._bad.get(wanted.piece.key, ()):
            return False
        return len(holder.calls) < self._connections and not holder.is_late


def _cut(piece: Piece, size: float) -> int:
    """The part nearest to `size` bytes that a piece may be cut after; 0 if there is none worth it."""
    parts = [c - piece.begin for c in piece.cuts]
    fits = [p for p in parts if min(p, piece.size - p) >= CUT_BYTES_LEAST and p <= size * CUT_OVER_MAX]
    return min(fits, key=lambda p: abs(p - size), default=0)
