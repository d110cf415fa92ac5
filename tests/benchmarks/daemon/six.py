"""Six devices over lines of 5 MB/s and 80 ms: one adds, updates, removes a file; when all the others have it so.

Each device is a real daemon. They hear of news by a real broker (Mosquitto, 80 ms away too), then by asking alone. With
the broker it is to be the batch time and MOST_S more at the median. By asking an interval comes to that: the longest
one that the daemons had to the next look, when the version was agreed.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import brokers
import loopback
import s3
import shaping
from daemon import far_kept, real
from real_soak_kit import Device

DEVICES = 6
SIZE = 10_000
MOST_S = 1.5
REST_S = 6.0  # between changes: what a daemon does after a pull is over
POLLED = 4  # of each, by asking alone: they take a minute each


def rows(folder: Path, times: int = 10) -> Iterator[tuple[str, str, str, bool]]:
    if s3.find_binary() is None:
        yield "over lines of 5 MB/s", s3.missing(), "", False
        return
    for how, count in (("broker", times), ("asking", min(times, POLLED))):
        made = folder / how
        made.mkdir()
        with far_kept.stores(made) as (_, urls):
            if how == "asking":
                yield from _rows(made, urls, {}, count)
            elif (program := brokers.find("METASYNC_MOSQUITTO") or _fetched()) is None:
                yield "with a broker", "no Mosquitto: tests/servers/mosquitto.sh fetches it", "", False
            else:
                with (
                    loopback.running(1, made, lambda root: brokers.Mosquitto(root, program)) as (broker,),
                    shaping.running([broker.port], shapes=[far_kept.SHAPE]) as proxy,
                ):
                    yield from _rows(made, urls, {"daemon.broker": f"mqtt://127.0.0.1:{proxy.ports[0]}"}, count)


def _fetched() -> Path | None:
    program = Path(__file__).parents[3] / ".servers/mosquitto/bin/mosquitto"
    return program if program.exists() else None


def _rows(
    folder: Path, urls: list[str], settings: Mapping[str, str], times: int
) -> Iterator[tuple[str, str, str, bool]]:
    rng, how = random.Random(6), "with a broker" if settings else "by asking"
    devices = real.made(folder, DEVICES, urls, settings)
    took: dict[str, list[tuple[float, float]]] = {"adds": [], "updates": [], "removes": []}
    with real.running(devices):
        real.until(lambda: all(_is_ready(device, bool(settings)) for device in devices), "all in step, and connected")
        for at in range(times):
            first, *others = rng.sample(devices, len(devices))
            for what in took:
                time.sleep(REST_S)
                data = rng.randbytes(SIZE)
                path = first.folder / f"file{at}"
                path.unlink() if what == "removes" else path.write_bytes(data)
                took[what].append(_all_have(first, others, path.name, None if what == "removes" else data))
    for what, each in took.items():
        median, interval = statistics.median(s for s, _ in each), max(s for _, s in each)
        longest = 0.0 if settings else interval
        bar = far_kept.QUIET_S + MOST_S + longest
        seconds = sorted(s for s, _ in each)
        told = f"{seconds[0]:.1f}, {median:.1f}, {seconds[-1]:.1f} s ({real.load()})"
        wanted = f"{bar:.1f} s" if settings else f"{bar:.1f} s, of it {longest:.1f} s to the next look"
        yield (
            f"{how}, one of {DEVICES} {what} {SIZE:,} B, {times} times: least, median, most",
            told,
            wanted,
            median <= bar,
        )


def _is_ready(device: Device, has_broker: bool) -> bool:
    state = device.state()
    return state is not None and real.is_settled(state) and (state.has_broker is True or not has_broker)


def _all_have(first: Device, others: list[Device], name: str, data: bytes | None) -> tuple[float, float]:
    """Seconds until all others have the file so, and the longest time that one had to its next look at the version."""
    began, missing, interval = time.time(), [device.folder / name for device in others], 0.0
    before = first.state()
    assert before is not None
    while missing:
        if not interval and (now := first.state()) is not None and now.version > before.version:
            states = [state for device in others if (state := device.state()) is not None]
            interval = max([0.0, *(s.look_at_s - time.time() for s in states if s.look_at_s is not None)])
        missing = [path for path in missing if not _is_so(path, data)]
        time.sleep(real.STEP_S)
    return time.time() - began, interval


def _is_so(path: Path, data: bytes | None) -> bool:
    try:
        return path.read_bytes() == data
    except FileNotFoundError:
        return data is None
