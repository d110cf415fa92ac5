"""Copies that stand in for those of a backend that was away: on one that goes, they are not lost with it.

A push whose backends do not all answer stores what belongs on those that are away on others, and the index does not say
where. Who removes a backend therefore asks it what lies there, and brings that to where it belongs.
"""

from __future__ import annotations

from collections.abc import Iterable

from metasync.session.session import Session
from metasync.store.index import PackRecord
from metasync.transfer.inventories import Pages


def listed(s: Session, backend_id: bytes, packs: Iterable[PackRecord]) -> list[PackRecord]:
    """Those of these packs that a backend lists and that do not belong there. Raises the backend's errors.

    A backend that this device has no way to lists nothing.
    """
    place = s.transfer.places.get(backend_id)
    if place is None:
        return []
    others = {p.id: p for p in packs if backend_id not in s.transfer.home(p.name)}
    pages = Pages(place)
    found: set[tuple[int, bytes]] = set()
    while others and (copies := s.runtime.run(pages.following())) is not None:
        found.update(copy.id for copy in copies if copy.id in others)
    return [others[key] for key in sorted(found)]
