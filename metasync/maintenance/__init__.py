"""What keeps a workspace sound: status, check, repair, scrub, collection, recovery."""
