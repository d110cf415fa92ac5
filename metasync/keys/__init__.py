"""Keys: derivation and sealing, key slots, keyrings, devices and their certificates (architecture.md, D2 and D11)."""
