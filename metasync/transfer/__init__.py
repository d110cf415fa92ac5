"""Moves packs to and from the backends: scheduling, estimates, copies, resuming."""
