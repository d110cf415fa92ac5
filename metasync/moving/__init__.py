"""Changes the set of backends, and moves packs to where they belong then."""
