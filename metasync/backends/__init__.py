"""Storage backends: one module per provider, all under the contract of `_base`, found by the scheme of their URL."""
