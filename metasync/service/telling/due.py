"""Which problems the user is to be told of now: each once, and some only when they last. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from metasync.reports.service import AWAY, Kind, Problem

AFTER_S: Final = 3600.0  # a provider or a drive that is away: told when it lasts that long, unless `notify.after` says
PASSING_S: Final = 600.0  # too few backends, most often since this device has no network; a folder that cannot be used
FORGET_S: Final = 6 * 3600.0  # a problem that was over for that long is another one when it comes again
EACH_MAX: Final = 3  # of one kind at the same time: more are told together
AN_HOUR_MAX: Final = 20  # notices, whatever happens


@dataclass(frozen=True, slots=True)
class Notice:
    """What is told. `keys`: the problems it is about."""

    kind: Kind
    text: str
    next_step: str
    since_s: float
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """That a problem was told, when; and since when it is over, if it is."""

    at_s: float
    over_s: float | None = None


class Due(NamedTuple):
    """`notices` are to be told now; `look_s` is when there may be another one, None: when a state changes."""

    notices: tuple[Notice, ...]
    look_s: float | None


def due(problems: Sequence[Problem], told: Mapping[str, Told], now_s: float, after_s: float = AFTER_S) -> Due:
    """What is to be told of these problems. Seconds since 1970; a clock that was set back makes no notice twice."""
    waits: dict[Kind, list[Problem]] = {}
    look_s: float | None = None
    for one in problems:
        if one.key in told or not (one.blocks or one.kind != "other"):
            continue
        at_s = one.since_s + _wait_s(one, after_s)
        if at_s <= now_s:
            waits.setdefault(one.kind, []).append(one)
        else:
            look_s = at_s if look_s is None else min(look_s, at_s)
    notices = tuple(n for kind, items in waits.items() for n in _together(kind, items))
    lately = [t.at_s for t in told.values() if now_s - 3600 < t.at_s <= now_s]
    room = max(0, AN_HOUR_MAX - len(set(lately)))
    if len(notices) > room:
        look_s = min(lately, default=now_s) + 3600
    return Due(notices[:room], look_s)


def _wait_s(one: Problem, after_s: float) -> float:
    if one.kind == "backend" or one.key == AWAY:
        return after_s
    return min(PASSING_S, after_s) if one.kind in ("quorum", "folder") else 0.0


def _together(kind: Kind, items: Sequence[Problem]) -> list[Notice]:
    if len(items) <= EACH_MAX:
        return [Notice(kind, p.text, p.next_step, p.since_s, (p.key,)) for p in items]
    first = items[0]
    text = f"{first.text}; and {len(items) - 1} more of this kind"
    return [Notice(kind, text, first.next_step, min(p.since_s for p in items), tuple(p.key for p in items))]


def noted(problems: Sequence[Problem], told: Mapping[str, Told], now_s: float) -> dict[str, Told]:
    """What was told, without what was over for long. The same problem is told again only after that."""
    here = {p.key for p in problems}
    out = {}
    for key, one in told.items():
        if key in here:
            out[key] = replace(one, over_s=None)
        elif one.over_s is None or one.over_s > now_s:
            out[key] = replace(one, over_s=now_s)
        elif now_s - one.over_s < FORGET_S:
            out[key] = one
    return out
