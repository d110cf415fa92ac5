"""Objects over many unreliable backends: what lies in packs, where packs go, and the index that says so."""
