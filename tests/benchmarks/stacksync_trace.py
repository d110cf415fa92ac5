"""A user's day with a folder, after StackSync's generator (section 5.2.1): adds, updates and removes, from a seed.

The paper gives the outcome: 20 files at first, 100 snapshots, 940 adds of 535.41 MB, 72 updates of 13.5 KB, 228
removes. It gives the states of a file (new, modified, unmodified, deleted) and how files are modified, but not the
transition matrix and not the sizes. `MATRIX` and the law of the sizes are ours, chosen so that such counts are to be
expected; `SEED` is the first seed with which they come out exactly. The same seed gives the same bytes.

- In each snapshot new files come, and each file that is there goes on to its next state by `MATRIX`. Files of 4 MB and
  more are never modified: what would be, stays unmodified. What happens in a snapshot happens in random order.
- Sizes are log-normal, scaled so that the sum comes out; more than nine of ten files are smaller than 4 MB.
- Contents are random bytes: nothing of them can be compressed, and no two files have anything in common.
- A modification is B (bytes put before the beginning), E (behind the end), M (written over the middle), or two of them.
- Files lie in ten folders of ten folders each; the paper says nothing of folders.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

FilesState = Literal["new", "modified", "unmodified", "deleted"]
Part = Literal["B", "E", "M"]

MATRIX: Final[Mapping[FilesState, Mapping[FilesState, float]]] = {
    "new": {"modified": 0.0080, "unmodified": 0.9820, "deleted": 0.0100},
    "modified": {"modified": 0.0500, "unmodified": 0.9400, "deleted": 0.0100},
    "unmodified": {"modified": 0.0016, "unmodified": 0.9927, "deleted": 0.0057},
}
CHANGES: Final[Mapping[tuple[Part, ...], float]] = {
    ("B",): 0.38,
    ("E",): 0.08,
    ("M",): 0.03,
    ("B", "E"): 0.17,
    ("B", "M"): 0.17,
    ("E", "M"): 0.17,
}
FILES_AT_FIRST, SNAPSHOTS = 20, 100
ADDS, UPDATES, REMOVES = 940, 72, 228
ADDED_BYTES, UPDATED_BYTES = 535_410_000, 13_500
SIZE_MEDIAN, SIZE_SIGMA, SIZE_BYTES_MAX = 20_000.0, 2.6, 50_000_000  # before they are scaled
UPDATED_FILE_BYTES_MAX = 4_000_000  # a file that is updated is smaller
GROUPS, FOLDERS = 10, 10
SEED = 806


@dataclass(frozen=True)
class Edit:
    """`data` at `at`: put in there (B, E), or over what is there (M)."""

    part: Part
    at: int
    data: bytes

    def of(self, content: bytes) -> bytes:
        rest = self.at + (len(self.data) if self.part == "M" else 0)
        return content[: self.at] + self.data + content[rest:]


@dataclass(frozen=True)
class Action:
    """One step of the trace. `size`: of the file that is added. Edits apply one after the other."""

    kind: Literal["add", "update", "remove"]
    path: str
    number: int
    size: int = 0
    edits: tuple[Edit, ...] = ()


class Snapshot(NamedTuple):
    """The files, by number, that came, were modified and went between two snapshots."""

    added: tuple[int, ...]
    updated: tuple[int, ...]
    removed: tuple[int, ...]


def path_of(number: int) -> str:
    rng = random.Random(number)
    return f"folder{rng.randrange(GROUPS)}/folder{rng.randrange(FOLDERS)}/file{number:04}"


def content_of(number: int, size: int) -> bytes:
    """What file `number` begins with."""
    return random.Random(f"content {number}").randbytes(size)


def sizes(seed: int) -> list[int]:
    """Of all files that are ever added; `ADDED_BYTES` together."""
    rng = random.Random(f"sizes {seed}")
    drawn = [min(SIZE_BYTES_MAX, SIZE_MEDIAN * rng.lognormvariate(0.0, SIZE_SIGMA)) for _ in range(ADDS)]
    out = [max(1, int(size * ADDED_BYTES / sum(drawn))) for size in drawn]
    out[out.index(max(out))] += ADDED_BYTES - sum(out)
    return out


def births() -> list[int]:
    """How many files come in each snapshot: as evenly as whole numbers can be."""
    coming = ADDS - FILES_AT_FIRST
    return [coming * (t + 1) // SNAPSHOTS - coming * t // SNAPSHOTS for t in range(SNAPSHOTS)]


def expected() -> tuple[float, float]:
    """The updates and removes that `MATRIX` gives on average, if no file were too large to be modified."""
    now: dict[FilesState, float] = {"new": FILES_AT_FIRST, "modified": 0.0, "unmodified": 0.0}
    updates = removes = 0.0
    for coming in births():
        after: dict[FilesState, float] = dict.fromkeys(MATRIX["new"], 0.0)
        for state, files in now.items():
            for to, chance in MATRIX[state].items():
                after[to] += files * chance
        updates, removes = updates + after["modified"], removes + after["deleted"]
        now = {"new": coming, "modified": after["modified"], "unmodified": after["unmodified"]}
    return updates, removes


def snapshots(seed: int) -> list[Snapshot]:
    """What becomes of the files, from the chain alone. The first one is the files that are there at first."""
    rng = random.Random(f"chain {seed}")
    small = [size < UPDATED_FILE_BYTES_MAX for size in sizes(seed)]
    state: dict[int, FilesState] = dict.fromkeys(range(FILES_AT_FIRST), "new")
    out = [Snapshot(tuple(state), (), ())]
    number = FILES_AT_FIRST
    for coming in births():
        gone: list[int] = []
        for file, was in state.items():
            chances, draw = MATRIX[was], rng.random()
            modified = draw < chances["modified"] and small[file]
            state[file] = "modified" if modified else "unmodified"
            if chances["modified"] <= draw < chances["modified"] + chances["deleted"]:
                gone.append(file)
        for file in gone:
            del state[file]
        updated = tuple(file for file, now in state.items() if now == "modified")
        added = tuple(range(number, number + coming))
        state.update(dict.fromkeys(added, "new"))
        number += coming
        out.append(Snapshot(added, updated, tuple(gone)))
    return out


def is_as_in_the_paper(seed: int) -> bool:
    chain = snapshots(seed)
    return sum(len(s.updated) for s in chain) == UPDATES and sum(len(s.removed) for s in chain) == REMOVES


def trace(seed: int = SEED) -> list[Action]:
    """The whole session. What an update puts in is `UPDATED_BYTES` in all."""
    rng = random.Random(f"order {seed}")
    size = sizes(seed)
    chain = snapshots(seed)
    lengths = _shares(rng, sum(len(s.updated) for s in chain))
    out: list[Action] = []
    for snapshot in chain:
        steps = [Action("add", path_of(n), n, size[n]) for n in snapshot.added]
        for n in snapshot.updated:
            edits = tuple(_edits(rng, size[n], next(lengths)))
            size[n] += sum(len(e.data) for e in edits if e.part != "M")
            steps.append(Action("update", path_of(n), n, 0, edits))
        steps += [Action("remove", path_of(n), n) for n in snapshot.removed]
        rng.shuffle(steps)
        out += steps
    return out


def _shares(rng: random.Random, n: int) -> Iterator[int]:
    """How many bytes each update changes."""
    drawn = [rng.uniform(0.2, 1.8) for _ in range(n)]
    ends = [math.floor(UPDATED_BYTES * sum(drawn[: i + 1]) / sum(drawn) + 0.5) for i in range(n)]
    return (end - start for start, end in zip([0, *ends], ends, strict=False))


def _edits(rng: random.Random, size: int, length: int) -> Iterator[Edit]:
    parts = rng.choices(list(CHANGES), list(CHANGES.values()))[0]
    for i, part in enumerate(parts):
        data = rng.randbytes(length // len(parts) + (length % len(parts) if not i else 0))
        at = {"B": 0, "E": size, "M": rng.randint(size // 3, max(size // 3, size * 2 // 3))}[part]
        if part == "M":
            yield Edit(part, min(at, max(0, size - len(data))), data)
            size = max(size, len(data))
        else:
            yield Edit(part, at, data)
            size += len(data)
