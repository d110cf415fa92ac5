"""This device's own state: the database in `.metasync`, its lock, its keys, the user's settings."""
