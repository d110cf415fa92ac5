"""Providers that lie about their logs: to each client they show another selection of what they were given.

    omit     now and then an entry is not there             deaf     no entry is ever there
    cut      only what the client wrote itself              apart    and where it wrote nothing, what others did
    replay   another entry in place of the one asked for    swap     the last one
    yes      "created", and nothing is kept

They cannot forge an entry. Moods change from time to time, for each client on its own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

LIES: Final = ("omit", "cut", "deaf", "apart", "replay", "swap", "yes")
_MOOD_SHARE: Final = 0.05  # of requests that change the mood
_LIE_SHARE: Final = 0.3  # of requests that are lied to, in the moods that lie now and then


class Liar:
    """What one lying store shows. `kinds`: its moods."""

    def __init__(self, seed: int, kinds: tuple[str, ...]) -> None:
        self._rng = random.Random(seed)
        self._kinds = kinds
        self._views: dict[str, dict[str, bytes]] = {}
        self._moods: dict[str, str] = {}
        self.told = 0

    @staticmethod
    def lies_about(path: str) -> bool:
        return "/px/" in path

    def _mood(self, who: str) -> str:
        if who not in self._moods or self._rng.random() < _MOOD_SHARE:
            self._moods[who] = self._rng.choice(self._kinds)
        return self._moods[who]

    def create(self, who: str, path: str, data: bytes, objects: dict[str, bytes]) -> bool | None:
        """What is said of a create; None: the truth."""
        mood = self._mood(who)
        if mood == "yes":
            self.told += 1
            return True
        if mood in ("apart", "cut"):
            view = self._views.setdefault(who, {})
            if path in view:
                return False
            self.told += path in objects
            view[path] = data
            objects.setdefault(path, data)
            return True
        return None

    def get(self, who: str, path: str, objects: Mapping[str, bytes]) -> bytes | None:
        """What is shown; None: it is not there."""
        mood, truth, view = self._mood(who), objects.get(path), self._views.get(who, {})
        shown = truth
        lies = self._rng.random() < _LIE_SHARE
        if mood == "deaf" or (mood == "omit" and lies):
            shown = None
        elif mood == "cut":
            shown = view.get(path)
        elif mood == "apart":
            shown = view.get(path, truth)
        elif mood in ("replay", "swap") and lies:
            entries = [data for name, data in objects.items() if "/px/" in name]
            if entries:
                shown = self._rng.choice(entries) if mood == "replay" else entries[-1]
        self.told += shown != truth
        return shown


__all__ = ["LIES", "Liar"]
