"""Content objects and their bytes: blob, file, dir, snapshot, and the layout of packs. Pure; no I/O."""
