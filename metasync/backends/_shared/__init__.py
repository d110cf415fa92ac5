"""What several providers need: credentials, HTTP, object stores, the race probe."""
