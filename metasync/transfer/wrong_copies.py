"""Notes packs with a copy that was noticed missing or damaged, or found no place, for a later push to make good.

`moving.upkeep` does that.

A note is a hint: whoever acts on it looks at every copy first, and reads it. What a store tells of a copy takes no note
back, and has no other copy deleted.

Of copies that were altered, or gone when it was their turn to be read, it is noted where they belong, too: people are
told of them until they are mended. Notes are this device's: of what it did not meet itself it does not know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from metasync.local.state import LocalDb
from metasync.local.state_keys import BAD_COPIES_KEY, MENDING_KEY

if TYPE_CHECKING:
    from metasync.reports.sync import BadCopies
    from metasync.transfer.copies import Fault

NOTED_MAX: Final = 4096  # more is a matter for `check --repair`
_NAME_BYTES: Final = 32


def load(db: LocalDb) -> set[bytes]:
    """The names of packs that are noted."""
    data = db.get(MENDING_KEY) or b""
    return {data[i : i + _NAME_BYTES] for i in range(0, len(data), _NAME_BYTES)}


def doubted(db: LocalDb) -> Callable[[bytes], bool]:
    """Whether a pack's copies count by their bytes alone. All do where there is no room for further notes."""
    names = load(db)
    return names.__contains__ if len(names) < NOTED_MAX else lambda _: True


def note(db: LocalDb, names: Iterable[bytes]) -> None:
    """Notes these packs too, as far as there is room."""
    with db.transaction():
        known = load(db)
        now = known | set(names)
        if now != known:
            db.set(MENDING_KEY, b"".join(sorted(now)[:NOTED_MAX]))


def drop(db: LocalDb, names: Iterable[bytes]) -> None:
    """Takes these from the notes."""
    with db.transaction():
        left = load(db).difference(names)
        db.set(MENDING_KEY, b"".join(sorted(left)) or None)


def note_bad(db: LocalDb, found: Iterable[tuple[bytes, bytes]], now_ns: int) -> None:
    """Notes where copies were found bad: (name of the pack, id of the backend). As far as there is room."""
    new = list(found)
    if not new:
        return
    with db.transaction():
        known = db.get(BAD_COPIES_KEY) or {}
        now = {pack: dict(by) for pack, by in known.items()}
        for name, backend_id in new:
            if name.hex() in now or len(now) < NOTED_MAX:
                now.setdefault(name.hex(), {}).setdefault(backend_id.hex(), now_ns)
        if now != known:
            db.set(BAD_COPIES_KEY, now)


def bad(db: LocalDb) -> Mapping[bytes, Mapping[bytes, int]]:
    """By the name of the pack: ids of the backends whose copy was found bad, with when (ns since 1970)."""
    noted = db.get(BAD_COPIES_KEY) or {}
    return {bytes.fromhex(p): {bytes.fromhex(b): at_ns for b, at_ns in by.items()} for p, by in noted.items()}


def mended(db: LocalDb, names: Iterable[bytes], but: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Takes back that copies of these packs were found bad. `but`: not of these, each as for `note_bad`."""
    gone, kept = {name.hex() for name in names}, {(name.hex(), backend_id.hex()) for name, backend_id in but}
    if not gone:
        return
    with db.transaction():
        known = db.get(BAD_COPIES_KEY) or {}
        rest = {p: {b: at for b, at in by.items() if p not in gone or (p, b) in kept} for p, by in known.items()}
        left = {pack: by for pack, by in rest.items() if by}
        if left != known:
            db.set(BAD_COPIES_KEY, left or None)


def summary(db: LocalDb, names: Mapping[bytes, str]) -> tuple[BadCopies, ...]:
    """The bad copies that are noted, by backend. `names`: of backends by id; what others have concerns nobody."""
    from metasync.reports.sync import BadCopies

    by: dict[str, list[int]] = {}
    for holders in bad(db).values():
        for backend_id, at_ns in holders.items():
            if backend_id in names:
                by.setdefault(names[backend_id], []).append(at_ns)
    return tuple(BadCopies(name, len(since), min(since)) for name, since in sorted(by.items()))


def met(faults: Iterable[Fault]) -> tuple[BadCopies, ...]:
    """How many altered copies one operation met, by backend."""
    from metasync.reports.sync import BadCopies

    # A way to a former backend ends in `~` and what it was.
    packs = {(f.backend.partition("~")[0], f.pack) for f in faults if f.altered}
    return tuple(BadCopies(name, n) for name, n in sorted(Counter(name for name, _ in packs).items()))


def told(a: BadCopies) -> str:
    """What people are told of them in the command that met them."""
    what = "the copy of 1 pack was" if a.packs == 1 else f"the copies of {a.packs:,} packs were"
    return (
        f"{a.backend}: {what} altered there, and not used. The next pushes mend that, or `metasync check --read-data"
        " --repair`; `metasync status` tells of it until then"
    )
