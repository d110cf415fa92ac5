"""What the commands on devices, keys and invitations print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from metasync.reports.members import (
    DeviceList,
    InviteReport,
    KeyReport,
    NoteReport,
    PassphraseReport,
    RenameReport,
    RotationReport,
    Withdrawal,
)
from metasync.terminal.style import alarm
from metasync.terminal.text.phrases import count, when


def devices(r: DeviceList) -> list[str]:
    rows = [("device", "id", "version", "last seen", "")]
    for d in r.devices:
        notes = ["this device"] * d.this + [d.state] * (d.state != "admitted")
        seen = when(d.seen_ns) if d.seen_ns is not None and not d.this else "now" if d.this else "-"
        rows.append((d.name, d.device_id[:8], "-" if d.version is None else str(d.version), seen, ", ".join(notes)))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        f"{n:{widths[0]}}  {i:{widths[1]}}  {v:>{widths[2]}}  {t:{widths[3]}}  {note}".rstrip()
        for n, i, v, t, note in rows
    ]
    if r.invitations:
        lines += ["", "Open invitations:"]
        lines += [
            f"  {i.name} ({i.invitation_id[:8]}), "
            + (f"until version {i.expires}" if i.expires is not None else "without an end")
            for i in r.invitations
        ]
    lines += ["", *to_withdraw(r.withdraw)] if r.withdraw else []
    lines += ["", f"Version {r.version}; key epoch {r.epoch}."]
    return lines + ([f"There may be newer ones: {r.problem}"] if r.problem else [])


def renamed(r: RenameReport) -> list[str]:
    if r.version is None:
        return [f"Would call {r.before} {r.name} from now on."]
    return [f"{r.before} is called {r.name} now, as of version {r.version}."]


def to_withdraw(items: Sequence[Withdrawal]) -> list[str]:
    """What the user has still to do at the providers, red on a terminal."""
    if not items:
        return []
    lines: list[str] = [alarm("Revoked devices still have logins. Withdraw at each provider, then say so:")]
    for name in dict.fromkeys(i.device for i in items):
        mine = [i for i in items if i.device == name]
        lines += [alarm(f"  {name} at {i.backend} ({i.scheme}): {i.what}") for i in mine]
        lines.append(f"  metasync device confirm {name}")
    return lines


def rotation(r: RotationReport) -> list[str]:
    if r.version is None:
        lines = [f"Would change the keys to epoch {r.epoch}, for {', '.join(r.devices)}."]
        lines += [f"Would revoke {', '.join(r.revoked)}. To be withdrawn then:"] if r.revoked else []
        lines += [f"  {i.device} at {i.backend} ({i.scheme}): {i.what}" for i in r.withdraw]
        return lines + _ended(r.invitations, "would end")
    lines = [f"Revoked {', '.join(r.revoked)} in version {r.version}."] if r.revoked else []
    lines += [
        f"New keys, epoch {r.epoch}, for {', '.join(r.devices)}. They follow by themselves.",
        "The passphrase is the new one." if r.new_passphrase else "The passphrase stays as it is.",
        "",
        "New recovery phrase; the old one opens nothing any more. Write it down; it is not shown again.",
        f"  {r.recovery_phrase}",
    ]
    lines += _ended(r.invitations, "ended")
    lines += [f"warning: the new keys are not on {n}: {why}" for n, why in r.missing]
    lines += _old(r.old_slots, "metasync key rotate")
    if not r.complete:
        lines.append(
            "warning: too few backends confirmed it: until they do, the version before could still be tampered with "
            "by whoever was revoked. Run metasync pull when more are reachable; other devices do the same."
        )
    return [*lines, "", *to_withdraw(r.withdraw)] if r.withdraw else lines


def codes(r: RotationReport) -> list[int]:
    return [] if r.complete else [5]


def _ended(names: Iterable[str], how: str) -> list[str]:
    return [f"The invitation for {name} {how}; make a new one: metasync invite {name}" for name in names]


def _old(backends: Sequence[str], command: str) -> list[str]:
    if not backends:
        return []
    return [
        f"warning: old key slots may still lie on {', '.join(backends)}; they open old keys only. "
        f"{command} removes them when it is reachable."
        if command == "metasync key rotate"
        else f"warning: the old passphrase may still open the key slot on {', '.join(backends)}. "
        f"Run {command} again when it is reachable."
    ]


def taken_back(r: NoteReport) -> list[str]:
    names = ", ".join(r.names)
    if r.version is None:
        return [f"Would take back the invitation for {names}."]
    return [
        f"Took back the invitation for {names}.",
        "Whoever had read it by then holds the keys of today. If that may be: metasync key rotate",
    ]


def confirmed(r: NoteReport) -> list[str]:
    head = "Would note" if r.version is None else "Noted"
    lines = [f"{head}: logins of {', '.join(r.names)} were withdrawn."]
    return lines + ([f"Left: {', '.join(i.backend for i in r.withdraw)}"] if r.withdraw else [])


def keys(r: KeyReport) -> list[str]:
    lines = [
        f"Workspace {r.id}, keys of epoch {r.epoch}, admin key {r.admin}, {count(r.devices, 'device')}.",
        "Content is encrypted." if r.encrypted else "Content is not encrypted; the keys guard who may write.",
        f"This device keeps its own keys in {r.stored}.",
        f"Fingerprint of version {r.version} in words: {r.words}",
        "",
        "Key slots:",
    ]
    lines += [
        f"  {s.kind}, on {', '.join(s.backends)}" + ("" if s.agreed else ": not in force; it opens nothing of today")
        for s in r.slots
    ]
    lines += [f"Keyrings: {', '.join(r.rings)}."] if r.rings else []
    lines += [f"warning: {', '.join(r.unasked)} did not answer."] if r.unasked else []
    return [
        *lines,
        "",
        "The recovery phrase is kept nowhere and can't be shown again.",
        "A new one: metasync key rotate --keep-passphrase",
    ]


def passphrase(r: PassphraseReport, *, dry_run: bool) -> list[str]:
    if dry_run:
        return [f"The passphrase is right. Would write a new key slot on {', '.join(r.backends)}."]
    lines = [
        f"The passphrase is changed, on {', '.join(r.backends)}. The recovery phrase and all keys stay.",
        "Whoever knew the old one may have the keys all the same; against that: metasync key rotate",
    ]
    lines += [f"warning: the new key slot is not on {n}: {why}" for n, why in r.missing]
    return lines + _old(r.old_slots, "metasync key change-passphrase")


def invitation(r: InviteReport, out: Path | None) -> list[str]:
    if not r.code:
        return [f"Would make an invitation for {r.name}, with the ways to {', '.join(r.backends)}."]
    end = f"until version {r.expires}" if r.expires is not None else "without an end"
    lines = [f"Invitation for {r.name}, for one use, {end}."]
    if out is not None:
        lines += [f"Written to {out}. On the new device: metasync clone DIR --invite FILE"]
    else:
        lines += [f"  {r.code}", "On the new device: metasync clone DIR --invite CODE"]
    lines += [
        "Whoever uses it first is admitted. It holds no login for a provider.",
        f"Take it back: metasync device revoke {r.name}",
    ]
    return lines + [f"warning: it is not on {n}: {why}" for n, why in r.missing]
