"""Brings folder and workspace together: push, pull, first checkout, and what they do around a merge."""
