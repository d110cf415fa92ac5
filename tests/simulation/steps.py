"""What a step of a client's plan does to its workspace."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from metasync.config import Config
from metasync.errors import UsageError
from metasync.reports.backends import Status
from metasync.reports.checks import CheckReport
from metasync.store.placement import is_same_mapping
from metasync.store.retention import Keep
from metasync.workspace import Workspace
from simulation.agreed import Agreed
from simulation.founding import NAME
from simulation.machine import CHEAP, PASSPHRASE, url_of
from simulation.plan import GUEST, Step

if TYPE_CHECKING:
    from simulation.client import Operation

BACKENDS_FEW: Final = 3  # of which none is taken out by a change of any kind
BACKENDS_MANY: Final = 6  # to which none is added then


def _push(w: Workspace, op: Operation, step: Step) -> None:
    report = w.push(f"{op.client} {step.seed}", force=step.force)
    _pushed(op, report)


def _pushed(op: Operation, report: Any) -> None:
    op.version, op.pushed = report.version, report.version is not None
    op.notes += ["found again"] * (report.found_again is not None)
    if report.pulled is not None:
        _pulled(op, report.pulled)


def _pulled(op: Operation, report: Any) -> None:
    op.notes += ["conflict"] * len(report.conflicts) + ["merged by lines"] * len(report.merged)
    # Those that were found now: others, and older ones that come back, may be with what was pushed here.
    found = [c for c in report.conflicts if c.sides[1].here and (c.sides[1].version or 0) >= report.before]
    op.conflicts += [c.path for c in found]


def _sync(w: Workspace, op: Operation, step: Step) -> None:
    pulled, pushed = w.sync(f"{op.client} {step.seed}", force=step.force)
    op.version = pulled.version
    _pulled(op, pulled)
    if pushed.version is not None:
        _pushed(op, pushed)


def _pull(w: Workspace, op: Operation, step: Step) -> None:
    report = w.pull(force=step.force)
    op.version = report.version
    _pulled(op, report)


def _status(w: Workspace, op: Operation, step: Step) -> None:
    told = w.status()
    op.version = told.newest if not told.problem else None
    op.accused = accused_by_status(told)


def _check(w: Workspace, op: Operation, step: Step) -> None:
    report = w.check(read_data=bool(step.seed & 1))
    op.version = report.version
    op.accused = accused_by_check(report)


def accused_by_status(told: Status) -> frozenset[str]:
    """The backends of which `status` says that they are not well."""
    return frozenset(b.name for b in told.backends if b.condition != "ok")


def accused_by_check(report: CheckReport) -> frozenset[str]:
    """The backends of which `check` says that something is wrong there, or was missing."""
    brought = [note.partition(": ")[0] for note in report.notes if ": brought what was missing" in note]
    return frozenset((*brought, *(p.backend for p in (*report.problems, *report.meta_problems))))


def _rebalance(w: Workspace, op: Operation, step: Step) -> None:
    report = w.rebalance(read_data=bool(step.seed & 1))
    op.version = report.version


def _repair(w: Workspace, op: Operation, step: Step) -> None:
    report = w.check(read_data=bool(step.seed & 1), repair=True)
    op.version = report.version
    op.notes += ["copies made again"] * bool(report.repaired is not None and report.repaired.copies)


def _gc(w: Workspace, op: Operation, step: Step) -> None:
    """Takes away what no version needs, with some of the versions, or none."""
    last = step.seed % 7
    report = w.gc(Keep(last=last if last > 1 else 1 << 20))
    op.version = report.version
    op.notes += ["garbage deleted"] * any(freed.packs for freed in report.freed)
    op.notes += ["versions dropped"] * bool(report.dropped) + ["packed anew"] * bool(report.packed_anew)


def _tag(w: Workspace, op: Operation, step: Step, agreed: Agreed) -> None:
    """Names the version that the folder is at, or one before."""
    version = w.status().version
    if version > 1:
        w.tag(str(version - step.seed % 2), f"t{step.seed % 1000}")
        op.notes.append("tagged")


def _clone(w: Workspace, op: Operation, step: Step) -> None:
    report = w._finish_clone()  # the first half, on real folders, has its own tests
    op.version = None if report.problem else report.version


def unlinked(w: Workspace) -> list[str]:
    c = w._connections
    return sorted(c.agreed_names - c.links.keys())


def _link(w: Workspace, op: Operation, step: Step, agreed: Agreed) -> None:
    """Tells the ways to all that lack one; of which one is emptied keeps nobody from the others."""
    failed: UsageError | None = None
    for name in unlinked(w):
        if (store := agreed.store_of(w, name)) is not None:
            try:
                w.link(name, url_of(store))
                op.notes.append("linked")
            except UsageError as e:
                failed = e
    if failed is not None:
        raise failed


def _change_backends(w: Workspace, op: Operation, step: Step, agreed: Agreed) -> None:
    before: Config | None = None
    agreed.changing(1)
    try:
        if step.kind == "change":
            before, step = w._connections.config, _some_change(w, step, agreed)
        report = _changed(w, step, agreed)
        if before is not None and is_same_mapping(before, w._connections.config):
            report = None  # such as another limit where all weigh the same
    finally:
        agreed.changing(-1)
    if report is not None:
        op.version, op.pushed = report.version, report.version is not None
        if step.kind in ("remove", "swap"):
            agreed.left(report.name)


def _some_change(w: Workspace, step: Step, agreed: Agreed) -> Step:
    """Which change of the mapping is made: one that today's backends bear, as the step's seed draws it."""
    rng, config = random.Random(step.seed), w._connections.config
    names = sorted(w._connections.agreed_names)
    may_go = agreed.may_leave(names[step.target % len(names)])
    kinds = ["capacity", "copies"]
    if agreed.spare(step.target) is not None:
        kinds += ["add", "add"] if len(names) < BACKENDS_MANY else []
        kinds += ["swap"] if may_go else []
    kinds += ["remove", "remove"] if may_go and len(names) > BACKENDS_FEW else []
    kind, copies = rng.choice(kinds), config.survives.copies + 1
    # `copies` is 2 or 3 by its seed: the other number. A capacity is drawn anew.
    return replace(step, kind=kind, seed=2 * rng.getrandbits(30) + (copies == 2 if kind == "copies" else 1))


def _changed(w: Workspace, step: Step, agreed: Agreed) -> Any:
    names = sorted(w._connections.agreed_names)
    name = names[step.target % len(names)]
    if step.kind == "swap":
        spare = agreed.spare(step.target)
        return None if spare is None else w.backend_add(url_of(spare), replaces=name, passphrase=PASSPHRASE)
    if step.kind == "capacity":
        return w.backend_set(name, capacity_bytes=(1 + step.seed % 9) << 40, passphrase=PASSPHRASE)
    if step.kind == "add":
        spare = agreed.spare(step.target)
        role = "?role=storage" if step.seed % 4 == 0 else ""
        return None if spare is None else w.backend_add(url_of(spare) + role, passphrase=PASSPHRASE)
    if step.kind == "replace":
        here = agreed.store_of(w, name)
        return None if here is None else w.backend_add(url_of(here), replaces=name, passphrase=PASSPHRASE)
    if step.kind == "rename":
        return w.backend_set(name, new_name=f"n{step.seed % 1000}")
    if step.kind == "copies":
        return w.set_copies(2 + step.seed % 2, passphrase=PASSPHRASE)
    if step.kind == "promote":
        return w.backend_set(name, role="both", passphrase=PASSPHRASE)
    if not agreed.may_leave(name):
        return None
    if step.kind == "remove":
        return w.backend_remove(name, passphrase=PASSPHRASE)
    return w.backend_set(name, role="storage", passphrase=PASSPHRASE)


def _rotate(w: Workspace, op: Operation, step: Step, agreed: Agreed) -> None:
    op.version = w.key_rotate(PASSPHRASE, kdf=CHEAP).version
    op.pushed = True


def _oust(w: Workspace, op: Operation, step: Step, agreed: Agreed) -> None:
    """Revokes the insider."""
    if (device_id := agreed.insider()) is not None:
        _revoke_device(w, op, agreed, device_id)


def _recover(w: Workspace, op: Operation, step: Step, agreed: Agreed) -> None:
    if without := agreed.lost(w):
        op.version = w.recover(without, PASSPHRASE, confirm=NAME).version
        op.notes.append("recovered")
    elif (device_id := agreed.ender()) is not None:
        op.version = w.recover([], PASSPHRASE, revoke=[device_id.hex()], confirm=NAME, kdf=CHEAP).version
        op.notes += ["recovered", "recovered without a device"]
    elif agreed.is_ended():
        op.version = w.recover([], PASSPHRASE, confirm=NAME).version
        op.notes.append("recovered")
    agreed.recovered()


def _skip(w: Workspace, op: Operation, step: Step, agreed: Agreed) -> None:
    if (version := agreed.unreadable()) is not None:
        op.version = w.skip(version, PASSPHRASE).version
        op.pushed = True
        op.notes.append("skipped")


def _invite(w: Workspace, op: Operation, step: Step, agreed: Agreed) -> None:
    report = w.invite(f"{GUEST}{step.target}", PASSPHRASE, expires_after=None if step.seed % 4 else 3)
    op.version, op.pushed = report.version, True
    op.notes.append("invited")
    agreed.invited(step.target, report.code)


def _uninvite(w: Workspace, op: Operation, step: Step, agreed: Agreed) -> None:
    op.version, op.pushed = w.invitation_revoke([f"{GUEST}{step.target}"]).version, True
    op.notes.append("invitation taken back")


def _revoke(w: Workspace, op: Operation, step: Step, agreed: Agreed) -> None:
    agreed.revoking(op.client)
    _revoke_device(w, op, agreed, agreed.device(step.target))


def _revoke_device(w: Workspace, op: Operation, agreed: Agreed, device_id: bytes) -> None:
    report = w.device_revoke([device_id.hex()], PASSPHRASE, kdf=CHEAP)
    op.version, op.pushed = report.version, True
    if report.complete and report.version is not None:
        agreed.shut_out(device_id, report.version)
    op.notes.append("revoked")


CHANGES: Mapping[str, Callable[[Workspace, Operation, Step, Agreed], None]] = {
    "link": _link,
    "add": _change_backends,
    "remove": _change_backends,
    "replace": _change_backends,
    "change": _change_backends,
    "rename": _change_backends,
    "promote": _change_backends,
    "copies": _change_backends,
    "tag": _tag,
    "demote": _change_backends,
    "rotate": _rotate,
    "invite": _invite,
    "uninvite": _uninvite,
    "revoke": _revoke,
    "oust": _oust,
    "recover": _recover,
    "skip": _skip,
}
"""Steps that change who takes part. They may be refused."""

DO: Mapping[str, Callable[[Workspace, Operation, Step], None]] = {
    "push": _push,
    "sync": _sync,
    "pull": _pull,
    "status": _status,
    "check": _check,
    "rebalance": _rebalance,
    "repair": _repair,
    "gc": _gc,
    "clone": _clone,
    "join": _clone,
}
"""What a step's kind does. A new operation of the product is a function here and a kind in `plan`."""
