"""Workspaces that are kept in step in the background: one, and many in one process, which is the daemon."""
