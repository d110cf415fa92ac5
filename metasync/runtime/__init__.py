"""What carries effects out: tasks, threads, the calls on one backend, priorities, limits."""
