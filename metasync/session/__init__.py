"""What every operation opens: ways to the backends, identity, agreement on the newest version."""
