"""Whole clients, deterministically: time, disks, lines and providers out of one seed (`docs/design/simulation.md`)."""

from __future__ import annotations

from simulation.plan import Plan, make_plan
from simulation.play import Outcome, Play

__all__ = ["Outcome", "Plan", "Play", "make_plan"]
