"""What single calls on S3 cost the client: milliseconds of its CPU, user and system, the median of five rounds.

    METASYNC_S3_SERVER=.servers/bin/versitygw python tests/benchmarks/object_calls.py [--calls 400]

The server is a process of its own on loopback, without TLS. One thread calls; opening, and the first call of each kind,
are not counted. `start` is what loading the provider and the first call take, once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "servers"), str(HERE.parents[1])]

import s3

ROUNDS = 5
LARGE_BYTES = 4 << 20


def measured(call: Callable[[int], object], calls: int) -> float:
    """Milliseconds of CPU a call."""
    rounds = []
    call(0)
    for number in range(ROUNDS):
        before = time.process_time()
        for n in range(calls):
            call(1 + number * calls + n)
        rounds.append((time.process_time() - before) / calls * 1000)
    return statistics.median(rounds)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--calls", type=int, default=400)
    calls = arguments.parse_args().calls
    keys = s3.make_keys()
    os.environ |= {**keys, "METASYNC_KEYRING": "off"}
    with tempfile.TemporaryDirectory() as root, s3.running(1, Path(root), keys) as (server,):
        before = time.process_time()
        from metasync.backends.registry import open_backend, parse_url

        backend = open_backend(parse_url(server.url("bench")))
        backend.put("d/small", b"x" * 1024)
        print(f"start         {(time.process_time() - before) * 1000:8.2f} ms")
        large = os.urandom(LARGE_BYTES)
        backend.put("large", large)
        for name, call, count in (
            ("get 1 KiB", lambda _: backend.get("d/small", max_bytes=4096), calls),
            ("get absent", lambda _: _absent(backend), calls),
            ("stat", lambda _: backend.stat("d/small"), calls),
            ("create 1 KiB", lambda n: backend.create(f"c/{n}", b"x" * 1024), calls),
            ("list 1", lambda _: backend.list("d"), calls),
            ("get 4 MiB", lambda _: backend.get("large", max_bytes=LARGE_BYTES), max(1, calls // 20)),
            ("put 4 MiB", lambda _: backend.put("large", large), max(1, calls // 20)),
        ):
            print(f"{name:13} {measured(call, count):8.3f} ms")  # type: ignore[arg-type]
        backend.close()


def _absent(backend: object) -> None:
    from metasync.errors import NotFoundError

    try:
        backend.get("d/none", max_bytes=99)  # type: ignore[attr-defined]
    except NotFoundError:
        return


if __name__ == "__main__":
    main()
