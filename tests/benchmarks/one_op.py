"""What one operation costs in the runtime, over a store in memory: microseconds of an `Op`, the best of five runs.

    python tests/benchmarks/one_op.py

30 to 60 µs were measured. A millisecond would be felt: a push makes some hundred.
"""

from __future__ import annotations

import time

from metasync.backends.memory import MemoryBackend
from metasync.runtime.effects import Op, Task
from metasync.runtime.tasks import Runtime

OPS = 500


def task() -> Task:
    for _ in range(OPS):
        yield Op("m", "put", "x", b"1")


def main() -> None:
    with Runtime({"m": MemoryBackend()}) as runtime:
        best_s = min(measured(runtime) for _ in range(5))
    print(f"{best_s / OPS * 1e6:.0f} µs an op")


def measured(runtime: Runtime) -> float:
    before = time.perf_counter()
    runtime.run(task())
    return time.perf_counter() - before


if __name__ == "__main__":
    main()
