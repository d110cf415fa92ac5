"""What was: log, versions, diff, restore, export, conflicts."""
