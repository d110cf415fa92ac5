"""Writes `tests/vectors/agreement/*.json` anew: one file per named case, with what must come of it.

    python tests/vectors/make_agreement.py

A change of format shows as a diff of these files, and none may show otherwise. Nothing here draws chance: what is
sealed to devices, which the library draws for, stands in `sealed.json` from the first time on.
The cases stand in `agreement_*.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "kits"), str(TESTS.parent)]

from agreement_case import KEPT, SEALED, USED, Case, Cases, plain
from agreement_entries import block_cases, entry_cases, floors, heads, hints, scrubbed_records
from agreement_keys import (
    admin_chains,
    device_notes,
    device_sets,
    invitation_codes,
    invites,
    policies,
    rings,
    sealings,
    slots,
)
from agreement_kit import ACCEPTOR, BASE, CONFIG, DEVICES, KEYS, NS_ID
from agreement_logs import blocks, logs, several_logs
from agreement_states import births, blocks_of_states, configs, eras, geneses, local, names, objects, states

FOLDER = Path(__file__).resolve().parent / "agreement"


def given(what: str) -> Case:
    """What a reader needs besides the case: each file stands alone."""
    secret = {
        "ns_id": NS_ID,
        "encrypted": KEYS.encrypted,
        "epoch_keys": {str(epoch): key for epoch, key in KEYS.epoch_keys},
        "id_key": KEYS.id_key,
        "chunk_seed": KEYS.chunk_seed,
    }
    sealed_in = {
        "entry",
        "block",
        "log",
        "logs",
        "blocks",
        "hint",
        "floor",
        "genesis",
        "head",
        "scrubbed",
        "object",
        "states",
        "era",
    }
    out: Case = {}
    if what in sealed_in or what == "name":
        out.update(plain(secret))
    if what in ("block", "blocks", "log", "logs"):
        out["base"] = BASE.encode().hex()
    if what in ("blocks", "head", "log", "logs", "scrubbed"):
        out["devices"] = DEVICES.encode().hex()
    if what in ("blocks", "log", "logs"):
        out["config"] = CONFIG.encode().hex()
    if what in ("blocks", "log"):
        out["acceptor"] = ACCEPTOR.hex()
    return out


def cases() -> Cases:
    for make in (
        states,
        configs,
        entry_cases,
        block_cases,
        blocks,
        hints,
        logs,
        births,
        geneses,
        heads,
        scrubbed_records,
        objects,
        blocks_of_states,
        floors,
        device_notes,
        invitation_codes,
        invites,
        slots,
        sealings,
        rings,
        admin_chains,
        policies,
        device_sets,
        local,
        names,
        eras,
        several_logs,
    ):
        for name, c in make():
            needed = given(c["what"])
            if "base" in c:
                needed["base"] = c.pop("base")
            yield name, {**c, **({"given": needed} if needed else {})}


def text(c: Case) -> str:
    return json.dumps(c, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    made = dict(cases())
    for path in FOLDER.glob("*.json"):
        if path.stem not in made:
            path.unlink()
    for name, c in made.items():
        (FOLDER / f"{name}.json").write_text(text(c), encoding="utf-8")
    KEPT.write_text(json.dumps({k: SEALED[k] for k in sorted(USED)}, indent=1) + "\n", encoding="utf-8")
