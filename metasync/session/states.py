"""Older states of the workspace, by the chain that ends with the newest: what was agreed as a version, whatever a
snapshot says of itself (consensus.md, rule 1.1)."""

from __future__ import annotations

from metasync.consensus import State, decode_state, skip_version
from metasync.errors import DamagedError
from metasync.local.state_keys import META_KIND
from metasync.session.session import Session


class Chain:
    """States of the chain below the newest, from the local cache where it has them."""

    def __init__(self, s: Session, newest: State) -> None:
        self.s = s
        self.newest = newest

    def lowest(self, v: int, above: State) -> State:
        """State `v`, or the oldest after it that can still be had on the way down from `above`."""
        best, low = above, v - 1
        while best.v > v and low < best.v - 1:
            middle = v if low < v else (low + best.v) // 2
            try:
                best = self.at(best, middle)
            except DamagedError:
                low = middle
        return best

    def at(self, above: State, v: int) -> State:
        """State `v`, on the way down from `above`."""
        state = above
        while state.v > v:
            below = skip_version(state.v)
            digest, below = (state.skip, below) if below >= v else (state.prev, state.v - 1)
            data = self.s.db.get_object(digest)
            found = decode_state(data) if data is not None else None
            if found is None or found.hash != digest:
                found = self.s.runtime.run(self.s.group.state_at(self.newest, below, state))
                self.s.db.put_objects([(digest, META_KIND, found.encode())])
            state = found
        return state
