"""Working tree and snapshots: scan, merge, checkout, and the engine that keeps them in step."""
