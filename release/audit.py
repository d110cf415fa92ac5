"""Asks for known vulnerabilities of what the locks name: `make audit`.

    python release/audit.py PIP_AUDIT

Exits with 0 when none is known, 1 when some are, 2 when no database could be asked: then nothing is known.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements-all.lock", "requirements-dev.lock", "requirements-docs.lock", "requirements-release.lock")
ASKED = ("pypi", "osv")  # databases, one after the other until one answers
HUNG_S = 300


class Told(NamedTuple):
    """What a database says of a lock: `known`, a line for each vulnerability, and packages that it does not know."""

    known: list[str]
    unknown: list[str]
    asked: int


def ask(pip_audit: str, lock: str) -> Told:
    """Asks until a database knows packages of a lock. A mirror may answer without knowing one."""
    best = Told([], [], 0)
    for database in ASKED:
        command = [pip_audit, "-r", lock, "--require-hashes", "--disable-pip", "-s", database, "-f", "json"]
        try:
            ran = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=HUNG_S)
            found = json.loads(ran.stdout)["dependencies"]
        except (subprocess.TimeoutExpired, ValueError, KeyError):
            continue
        known = [
            f"{package['name']} {package['version']}: {v['id']}, mended in {', '.join(v['fix_versions']) or 'none yet'}"
            for package in found
            for v in package.get("vulns", ())
        ]
        told = Told(known, [p["name"] for p in found if "skip_reason" in p], len(found))
        if len(told.unknown) < told.asked:
            return told
        best = told
    return best


def main(pip_audit: str) -> int:
    code = 0
    for lock in LOCKS:
        told = ask(str(Path(pip_audit).resolve()), lock)
        if len(told.unknown) == told.asked:
            print(f"{lock}: no database of vulnerabilities can be asked from here, so nothing is known of it")
            code = 2
            continue
        print(*[f"{lock}: {line}" for line in told.known or ["no vulnerability is known"]], sep="\n")
        if told.unknown:
            print(f"{lock}: the database does not know {', '.join(told.unknown)}")
            code = 2
        code = code or int(bool(told.known))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
