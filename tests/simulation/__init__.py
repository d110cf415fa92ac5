"""Whole clients, deterministically: time, disks, lines and providers out of one seed (`docs/design/simulation.md`)."""

from __future__ import annotations

from simulation.plan import Plan
from simulation.play import Outcome, Play
from simulation.seeds import make_plan

__all__ = ["Outcome", "Plan", "Play", "make_plan"]
