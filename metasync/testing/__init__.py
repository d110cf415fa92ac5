"""For tests and benchmarks, ours and other people's: backends that fail on demand, and backends that count."""
