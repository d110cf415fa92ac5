"""Edits by chance on several devices, whose end is known: each path is edited on one device alone.

So every device has at the end what each path's owner wrote last, and any conflict is a false one.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from workspace_kit import tree_of


@dataclass
class Edits:
    """Edits in the folders of devices. `model`: what every folder is to hold in the end; `count`: edits so far."""

    rng: random.Random
    folders: list[Path] = field(default_factory=list)
    model: dict[str, bytes] = field(default_factory=dict)
    count: int = 0

    def on(self, device: int) -> None:
        """One change on a device, of what it owns: files that are written, saved by renaming, moved, removed."""
        rng, root = self.rng, self.folders[device]
        own = sorted(p for p in self.model if p.startswith(f"d{device}/"))
        kind = rng.randrange(7)
        self.count += 1
        if not own or kind <= 1:
            path = f"d{device}/{rng.choice('abc')}/{rng.randrange(30)}"
            self._write(root, path, rng.randbytes(rng.choice([0, 10, 3000, 70_000])))
        elif kind == 2:
            self._write(root, rng.choice(own), rng.randbytes(500), saved=True)
        elif kind == 3:
            path = rng.choice(own)
            self._write(root, path, self.model[path] + rng.randbytes(100))
        elif kind == 4:
            path = rng.choice(own)
            (root / path).unlink()
            del self.model[path]
        elif kind == 5:
            old, new = rng.choice(own), f"d{device}/{rng.choice('abc')}/moved{rng.randrange(5)}"
            (root / new).parent.mkdir(parents=True, exist_ok=True)
            (root / old).replace(root / new)
            self.model[new] = self.model.pop(old)
        else:
            self._move_directory(root, device)

    def _write(self, root: Path, path: str, data: bytes, *, saved: bool = False) -> None:
        at = root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        if saved:
            at.with_name(".saving~").write_bytes(data)
            at.with_name(".saving~").replace(at)
        else:
            at.write_bytes(data)
        self.model[path] = data

    def _move_directory(self, root: Path, device: int) -> None:
        old, new = f"d{device}/{self.rng.choice('abc')}", f"d{device}/{self.rng.choice('abc')}"
        if old == new or not (root / old).is_dir():
            return
        if (root / new).exists():
            shutil.rmtree(root / new)
        (root / old).rename(root / new)
        kept = {p: d for p, d in self.model.items() if not p.startswith((f"{old}/", f"{new}/"))}
        moved = {f"{new}/{p.removeprefix(f'{old}/')}": d for p, d in self.model.items() if p.startswith(f"{old}/")}
        self.model = {**kept, **moved}

    def differing(self, folder: Path) -> list[str]:
        """Paths of files that are not as the model has them, in the order of their names."""
        files = {p.decode(): node.data for p, node in tree_of(folder).items() if node.kind == "file"}
        return sorted({path for path, _ in files.items() ^ self.model.items()})
