"""How commands and the page speak to the daemon: one JSON document a line, over a socket of the user's own."""
