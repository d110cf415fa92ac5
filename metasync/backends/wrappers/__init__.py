"""Wrappers around any backend, with its own interface: retry, pace, breaker, trace, ballast, counts, last writes."""
