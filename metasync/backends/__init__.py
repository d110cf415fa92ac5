"""Storage backends: one module per provider, all under the contract of `api`, found by the scheme of their URL."""
