"""The conformance kit: everything that `metasync.backends.api` promises, put to the test on any store.

`metasync backend check URL` runs it on an account. In tests a new backend joins by this much (the kit has no need of
pytest itself):

    import pytest
    from metasync.backends.folder import FolderBackend
    from metasync.testing.contract import CHECKS, Check, Store, check_id, try_check

    @pytest.mark.parametrize("check", CHECKS, ids=check_id)
    def test_contract(check: Check, tmp_path) -> None:
        store = Store(lambda: FolderBackend(str(tmp_path)), url=f"file://{tmp_path}")
        outcome = try_check(check, store, "scratch")
        if outcome.result == "skipped":
            pytest.skip(outcome.why)
        assert outcome.result != "failed", outcome.why

`Store` says how to open the store, again at each call, and by which URL another process does so. Without a URL all
races are between threads, and no process is killed. `opener="module:function"` names another way than a URL.

What a run costs at most is in docs/howto/check-a-backend.md. Every check keeps to a folder of its own below the one it
is given, needs nothing to be there, and leaves its objects to `run` to remove.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from metasync.backends.api import ExplainsForm, LogForm, Space, TellsSpace
from metasync.errors import BackendError, FullError, RefusedError, UnreachableError
from metasync.events import Event, Notice, Progress
from metasync.testing import killed_writers, many_callers, one_caller
from metasync.testing.harness import (
    QUICK,
    STANDARD,
    THOROUGH,
    Bench,
    BrokenPromiseError,
    Check,
    Note,
    NotShownError,
    Scale,
    named,
)
from metasync.testing.peer import PeerError, Store
from metasync.testing.verdict import Outcome, Report, Result, report_of

__all__ = [
    "CHECKS",
    "QUICK",
    "STANDARD",
    "THOROUGH",
    "Check",
    "Outcome",
    "Report",
    "Scale",
    "Store",
    "check_id",
    "run",
    "scratch_name",
    "try_check",
]

CHECKS: tuple[Check, ...] = (*one_caller.CHECKS, *many_callers.CHECKS, one_caller.LONG_LIST, *killed_writers.CHECKS)
"""Every check, in the order in which they are carried out: those that others stand on come first."""

Told: TypeAlias = Event | Outcome
"""What a run tells while it works: how far it is, what its user should know, and every outcome."""

_NEEDS = "needs "
_PEER_TRIES = 2  # a process that broke off may have been unlucky once


def _ignore(_told: Told) -> None:
    return


def check_id(check: Check) -> str:
    """The name of a check, for `pytest.mark.parametrize`."""
    return check.name


def scratch_name() -> str:
    """A folder for one run, called so that its owner knows what it is."""
    return f"metasync-check-{secrets.token_hex(6)}"


def try_check(
    check: Check, store: Store, folder: str, *, scale: Scale = STANDARD, on_event: Callable[[Told], None] = _ignore
) -> Outcome:
    """Carries out one check below `folder`, and leaves there what it stored.

    `UnreachableError` or `FullError` if the store is not there or has no room, also after `scale.waits_s`;
    `RefusedError` if it lets nobody write any more.
    """
    bench = Bench(store, scale, on_event)
    try:
        return _carry_out(bench, check, folder)
    finally:
        bench.close()


def run(
    store: Store,
    folder: str,
    *,
    scale: Scale = STANDARD,
    checks: Sequence[Check] = CHECKS,
    on_event: Callable[[Told], None] = _ignore,
    storage_only: str = "",
) -> Report:
    """Carries out all checks below `folder`, removes what they stored, and says what the store is fit for.

    `folder` is one new name in the root of the store: see `scratch_name`. `storage_only` is a reason why this store
    shall not vote whatever it can do. Each outcome goes to `on_event` as it comes. What cannot be removed is told by a
    notice, also when the run is broken off. Raises a `BackendError` where there can be no verdict: the store cannot be
    opened or reached, refuses the credentials, or is full.
    """
    bench = Bench(store, scale, on_event)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    try:
        form, reason, space = _reach(bench, folder)
        for number, check in enumerate(checks):
            on_event(Progress(check.name, number, len(checks), "checks"))
            outcomes.append(_after(outcomes, check) or _carry_out(bench, check, folder))
            on_event(outcomes[-1])
    except KeyboardInterrupt:
        on_event(Notice("interrupted; removing what was stored (interrupt again to leave it there)"))
        raise
    finally:
        left = bench.clean(folder)
        spent = bench.take()
        bench.close()
        if left.objects or left.why:
            bench.warn(f"{left.objects:,} objects may be left in the folder {folder} of this store: {left.why}")
    return report_of(
        outcomes,
        form="none" if storage_only else form,
        form_reason=storage_only or reason,
        scale=scale.name,
        space=space,
        cleaning=spent,
        seconds=time.monotonic() - began,
        left=left.objects,
    )


def _reach(bench: Bench, folder: str) -> tuple[LogForm, str, Space]:
    """Whether there can be a verdict at all: the store answers, and lets us write and remove.

    What is wrong in any other way is for the checks to say.
    """
    b = bench.open()
    path = f"{folder}/reached"
    for call in (
        lambda: b.list(""),
        lambda: b.put(path, b"1"),
        lambda: b.get(path, max_bytes=1),
        lambda: b.delete(path),
    ):
        try:
            call()
        except (UnreachableError, FullError, RefusedError):
            raise
        except Exception:  # noqa: BLE001, S112
            continue
    space = Space(None, None)
    if isinstance(b, TellsSpace):
        try:
            space = b.space()
        except BackendError:
            space = Space(None, None)
    return b.form, b.form_reason if isinstance(b, ExplainsForm) else "", space


def _after(outcomes: Sequence[Outcome], check: Check) -> Outcome | None:
    """A check that means nothing because of what failed before it."""
    before = [o for o in outcomes if o.name in check.after]
    broken = [o.name for o in before if o.result == "failed" or (o.result == "skipped" and o.why.startswith(_NEEDS))]
    return Outcome.of(check, "skipped", why=_NEEDS + " and ".join(broken)) if broken else None


def _carry_out(bench: Bench, check: Check, folder: str) -> Outcome:
    """One check, begun anew in another folder when the store did not answer for a moment."""
    began = time.monotonic()
    again = [*bench.scale.waits_s]
    peers_left = _PEER_TRIES
    turn = 0
    while True:
        base = f"{folder}/{check.name}" + (f"-{turn}" if turn else "")
        turn += 1
        try:
            result, note = _judged(bench, check, base)
            break
        except PeerError as error:
            peers_left -= 1
            result, note = "skipped", Note(str(error))
            if not peers_left:
                break
        except RefusedError:
            raise
        except BackendError as error:  # worth another try, unless these are used up
            if not again:
                if isinstance(error, UnreachableError | FullError):
                    raise
                result, note = "failed", Note(named(error))
                break
            time.sleep(again.pop(0))
        finally:
            bench.close_connections()
    spent = bench.take()
    return Outcome.of(check, result, why=note.text, cost=spent, seconds=time.monotonic() - began, figures=note.figures)


def _judged(bench: Bench, check: Check, base: str) -> tuple[Result, Note]:
    """How one try went. Passes on what may be otherwise the next time."""
    try:
        note = check.carry_out(bench, base) or Note()
    except BrokenPromiseError as error:
        return "failed", Note(str(error))
    except NotShownError as error:
        return "skipped", Note(str(error))
    except PeerError:
        raise
    except BackendError as error:
        if error.retryable or isinstance(error, FullError):
            raise
        if isinstance(error, RefusedError):
            _reach(bench, base)  # raises if nothing is allowed any more: a login that has run out is no verdict
        return "failed", Note(named(error))
    except Exception as error:  # noqa: BLE001 - whatever a backend raises besides breaks its contract
        return "failed", Note(f"raised {named(error)}, which is no error of the contract")
    return ("weak" if note.weak else "passed"), note
