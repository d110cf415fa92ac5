"""What operations tell their callers: plain values."""
