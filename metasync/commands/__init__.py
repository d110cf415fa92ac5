"""The commands of the command line, a module for each family. `metasync.cli` puts them together."""
