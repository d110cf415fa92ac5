"""Shows which keys there are, and changes the passphrase (architecture.md, D11).

Changing the passphrase writes a new slot around the same key and removes the old one. No key changes: a copy of the old
slot still opens with the old passphrase. `rotation` helps against that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from metasync.errors import UsageError
from metasync.keys.derive import sha256
from metasync.keys.slots import (
    COST,
    KINDS,
    PASSPHRASE,
    SLOT_ENTROPY_BYTES,
    Cost,
    another_slot,
    fingerprint_words,
    slot_path,
)
from metasync.members import key_copies, key_store
from metasync.reports.members import KeyReport, PassphraseReport, SlotInfo
from metasync.session import agreement, folder
from metasync.session.session import Session

FINGERPRINT_BYTES: Final = 5


def show(s: Session, *, state_dir: Path) -> KeyReport:
    """Lists keys, slots and rings, and where they lie, without secrets."""
    state = s.newest_state()
    devices = s.devices_of(state)
    files = key_store.look(s)
    slots = []
    for name, data in sorted(files.slots.items(), key=lambda item: (item[1][1], item[0])):
        shown = key_store.key_of(data)
        if shown is not None:
            slots.append(SlotInfo(KINDS[shown[0]], files.holders(name), shown in devices.slots))
    rings = {name.rpartition("-")[0] for names in files.names.values() for name in names if name.startswith("ring-")}
    return KeyReport(
        encrypted=s.keys.encrypted,
        epoch=state.epoch,
        id=s.keys.ns_id[:FINGERPRINT_BYTES].hex(),
        admin=sha256(devices.chain.admin)[:FINGERPRINT_BYTES].hex(),
        devices=len(devices.certificates),
        slots=tuple(slots),
        rings=tuple(sorted(rings)),
        unasked=tuple(sorted({*files.failed, *s.down})),
        stored=folder.where(state_dir),
        version=state.v,
        words=fingerprint_words(state.hash),
    )


def change_passphrase(
    s: Session, passphrase: str, new_passphrase: str, *, dry_run: bool = False, cost: Cost = COST
) -> PassphraseReport:
    """Puts the passphrase's slot under another passphrase. The recovery phrase and all keys stay.

    `PassphraseError`; `UsageError` when what was given is the recovery phrase: its slot is another one. `NoQuorumError`
    before the old slot was touched.
    """
    if not new_passphrase.strip():
        raise UsageError("the new passphrase is empty", next_step="Choose one that nobody guesses.")
    state = agreement.ask_newest(s)
    opened = key_store.open_admin_key(s, state, passphrase)
    if opened.secret.kind != PASSPHRASE:
        raise UsageError(
            "the recovery phrase does not open the passphrase's slot, so that it cannot be put under another one",
            next_step="`metasync key rotate` takes the recovery phrase, and makes new slots for both.",
        )
    config = s.config_of(state)
    linked = tuple(sorted(s.names.values()))
    if dry_run:
        return PassphraseReport("passphrase", linked)
    data = another_slot(opened.secret, new_passphrase, entropy=s.entropy(SLOT_ENTROPY_BYTES), cost=cost)
    missing = key_store.store(s, config, {slot_path(data): data})
    mine = (opened.secret.kind, opened.secret.key_id)
    files = opened.files
    old = {name: files.holders(name) for name, slot in files.slots.items() if key_store.key_of(slot) == mine}
    lacking = dict(missing)
    kept = {name: tuple(b for b in holders if b not in lacking) for name, holders in old.items()}
    left = key_store.remove(s, kept)
    still = {b for holders in old.values() for b in holders if b in lacking}
    key_copies.note(s, state.epoch, {*lacking, *files.failed})
    return PassphraseReport(
        "passphrase",
        tuple(n for n in linked if n not in lacking),
        missing,
        tuple(sorted({*left, *still, *files.failed})),
    )
