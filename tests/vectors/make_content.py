"""Writes `tests/vectors/content/*.json` anew: one file per named case, with what must come of it.

    python tests/vectors/make_content.py

A change of format shows as a diff of these files, and none may show otherwise. Nothing here draws chance or depends on
the version of a compressor: zstd frames are written by hand, of raw blocks. The cases stand in `content_*.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "kits"), str(TESTS.parent)]

from content_index import of_index, of_placement, of_retained, of_roots
from content_objects import of_chunks, of_dirs, of_files, of_ids, of_snapshots, of_splits, of_tags
from content_packs import of_deltas, of_footers, of_packs, of_sizes

FOLDER = Path(__file__).resolve().parent / "content"


def build() -> dict[str, str]:
    """Every vector: file name -> text."""
    out: dict[str, str] = {}
    makers = (of_tags, of_ids, of_dirs, of_splits, of_files, of_chunks, of_snapshots, of_packs, of_footers, of_sizes)
    for maker in (*makers, of_deltas, of_index, of_roots, of_retained, of_placement):
        for name, value in maker():
            assert f"{name}.json" not in out, name
            out[f"{name}.json"] = json.dumps(value, indent=1) + "\n"
    return out


def main() -> None:
    files = build()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        if old.name not in files:
            old.unlink()
    for name, text in files.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"{len(files)} vectors in {FOLDER.name}/")


if __name__ == "__main__":
    main()
