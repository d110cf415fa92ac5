"""Makes whole what `check` and `scrub` find: which paths are lost, what is mended from where, an index that is true."""
