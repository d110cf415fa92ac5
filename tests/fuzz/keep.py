"""Keeps a case for ever: `python tests/fuzz/keep.py NAME TARGET ABOUT < input`, or with a finding's file in place of
TARGET. Written to `tests/vectors/fuzz/NAME.json` with the outcome that it has now: mend the code first."""

from __future__ import annotations

import json
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "kits"), str(TESTS.parent)]

FOLDER = TESTS / "vectors" / "fuzz"


def text_of(target: str, about: str, expect: str, data: bytes) -> str:
    """A case as it is written: hex in lines of 32 bytes."""
    lines = [data[i : i + 32].hex() for i in range(0, len(data), 32)]
    return json.dumps({"target": target, "about": about, "expect": expect, "hex": lines}, indent=1) + "\n"


def main(name: str, target: str, about: str) -> None:
    from fuzz.table import TARGETS
    from fuzz.target import judge_memory

    if target in TARGETS:
        data = sys.stdin.buffer.read()
    else:
        found = json.loads(Path(target).read_text(encoding="utf-8"))
        target, data = found["target"], bytes.fromhex(found["hex"])
    expect = judge_memory(TARGETS[target], data)
    (FOLDER / f"{name}.json").write_text(text_of(target, about, expect, data), encoding="utf-8")
    print(f"{name}: {expect}")


if __name__ == "__main__":
    main(*sys.argv[1:])
