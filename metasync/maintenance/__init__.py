"""What keeps a workspace sound: check, status, changing backends, recovery."""
