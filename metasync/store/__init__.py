"""Objects over many unreliable backends: where packs go, how they travel, what lies in them."""
