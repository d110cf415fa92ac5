"""What several providers need: credentials, HTTP, the object stores behind obstore, the race probe."""
