"""What a run of the conformance kit concludes. Pure: from outcomes to a verdict, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from metasync.backends.api import LogForm, Space
from metasync.testing.harness import Check, Cost

Result: TypeAlias = Literal["passed", "failed", "weak", "skipped"]
Verdict: TypeAlias = Literal["may vote", "holds data only", "unfit"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one check went. `weak`: nothing was wrong, but too little was seen for that to mean much.

    `requests` counts calls of the contract, the bytes are those of the objects moved.
    """

    name: str
    what: str
    proves: str
    needed_for: Literal["data", "voting"]
    result: Result
    why: str
    seconds: float
    requests: int
    up_bytes: int
    down_bytes: int
    figures: Mapping[str, int]

    @classmethod
    def of(
        cls,
        check: Check,
        result: Result,
        *,
        why: str,
        cost: Cost | None = None,
        seconds: float = 0.0,
        figures: Mapping[str, int] | None = None,
    ) -> Outcome:
        spent = cost or Cost()
        return cls(
            check.name,
            check.what,
            check.proves,
            check.needed_for,
            result,
            why,
            round(seconds, 3),
            spent.requests,
            spent.up_bytes,
            spent.down_bytes,
            dict(figures or {}),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What a run found. `form` is what the backend's own list allows; the verdict may be less, and is never more.

    `reasons` say why the verdict is not better, `notes` what the run could not show. `left_behind` objects could not be
    removed. `requests` and bytes include the cleaning.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    advice: str
    form: LogForm
    scale: Literal["quick", "standard", "thorough"]
    checks: tuple[Outcome, ...]
    seconds: float
    requests: int
    up_bytes: int
    down_bytes: int
    free_bytes: int | None
    total_bytes: int | None
    left_behind: int


NEEDS_ATOMIC_CREATE = ("create-taken", "big-taken", "race", "big-race", "lost-reply")
"""Checks that log form needs and block form does without: there every device writes names of its own."""
BY_BLOCKS = "it votes in block form, which does without an atomic create and costs more requests"
_FORMS = {
    "none": "MetaSync lets no store of this kind vote",
}
_ADVICE: dict[Verdict, str] = {
    "may vote": "Passing is evidence, not proof: a run can show that a store must not vote, never that it may.",
    "holds data only": "Give it with role=storage in its URL: it then holds copies of packs, and others vote.",
    "unfit": "Do not give it to a workspace: what it stores or answers cannot be relied on.",
}


def verdict_of(outcomes: Sequence[Outcome], form: LogForm, form_reason: str = "") -> tuple[Verdict, tuple[str, ...]]:
    """The verdict, and why it is not better. It never exceeds what `form`, the backend's static list, allows."""
    broken = {
        needed: [f"{o.name}: {o.why}" for o in outcomes if o.result == "failed" and o.needed_for == needed]
        for needed in ("data", "voting")
    }
    if broken["data"]:
        return "unfit", tuple(broken["data"] + broken["voting"])
    if form == "block":
        without = {f"{o.name}: {o.why}" for o in outcomes if o.name in NEEDS_ATOMIC_CREATE}
        broken["voting"] = [why for why in broken["voting"] if why not in without]
    reasons = [form_reason or _FORMS[form]] if form == "none" else []
    reasons += broken["voting"]
    if form == "block" and not reasons:
        return "may vote", (BY_BLOCKS,)
    return ("holds data only", tuple(reasons)) if reasons else ("may vote", ())


def report_of(
    outcomes: Sequence[Outcome],
    *,
    form: LogForm,
    form_reason: str,
    scale: Literal["quick", "standard", "thorough"],
    space: Space,
    cleaning: Cost,
    seconds: float,
    left: int,
) -> Report:
    """The whole, with what it cost."""
    verdict, reasons = verdict_of(outcomes, form, form_reason)
    notes = [f"{o.name} was weak: {o.why}" for o in outcomes if o.result == "weak"]
    notes += _not_carried_out(outcomes)
    if scale == "quick":
        notes.append(
            "This was a quick run: too few names for a race that means much. Run it in full before you rely on it."
        )
    return Report(
        verdict=verdict,
        reasons=reasons,
        notes=tuple(notes),
        advice=_ADVICE[verdict],
        form=form,
        scale=scale,
        checks=tuple(outcomes),
        seconds=round(seconds, 3),
        requests=cleaning.requests + sum(o.requests for o in outcomes),
        up_bytes=cleaning.up_bytes + sum(o.up_bytes for o in outcomes),
        down_bytes=cleaning.down_bytes + sum(o.down_bytes for o in outcomes),
        free_bytes=space.free_bytes,
        total_bytes=space.total_bytes,
        left_behind=left,
    )


def _not_carried_out(outcomes: Sequence[Outcome]) -> list[str]:
    names: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.result == "skipped":
            names.setdefault(outcome.why, []).append(outcome.name)
    return [f"not carried out: {', '.join(those)} ({why})" for why, those in names.items()]
