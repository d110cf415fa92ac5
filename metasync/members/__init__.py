"""Who belongs to a workspace: founding, cloning, invitations, devices, keys."""
