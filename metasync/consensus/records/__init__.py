"""What agreement writes and reads: formats of states, entries, births, eras, heads; replay of logs and blocks."""
