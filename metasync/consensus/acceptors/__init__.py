"""Acceptors: what this process sees of each one, and the requests that proposers and learners make of it.

    look(...)    reads what it holds, to its end          append(...)   has it take a PREPARE or an ACCEPT

Which form a backend has is agreed in the config (`config.Acceptor.form`).
"""
