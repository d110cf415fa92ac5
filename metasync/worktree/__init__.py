"""Reads the user's folder: the scan, its index, ignore rules, names that disks cannot hold."""
