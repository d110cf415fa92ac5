"""Writes the user's folder: plan, staging, apply; nothing unsaved is lost."""
