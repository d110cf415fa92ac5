"""The tables of a benchmark, from what `bench.py` measured; no I/O."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from launch import FLOOR_MB

STEPS = ("push", "no-change push", "clone", "no-change pull", "one-file push", "one-file pull")
OURS = "metasync"
# What is promised of a tree of many files on a quiet machine (docs/benchmarks.md).
NO_CHANGE_PUSH_S, PEAK_MB = 0.5, 250.0
BAR_LOAD = "kernel"

Row = dict[str, Any]


def markdown(result: dict[str, Any]) -> str:
    """All tables: for each network and tree seconds, requests and bytes, and the ratios."""
    rows, lines = result["rows"], head(result["about"])
    titles = {load["name"]: load for load in result["loads"]}
    for net in _seen(rows, "net"):
        for name in _seen(rows, "load"):
            here = [row for row in rows if row["net"] == net and row["load"] == name]
            if here:
                lines += section(net, titles[name], here, list(result["about"]["versions"]))
    lines += bars(rows)
    if result["failures"]:
        lines += ["", "### Failed", "", *(f"- {line.splitlines()[0]}" for line in result["failures"])]
    return "\n".join(lines)


def head(about: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    out = [
        f"{about['date']}, commit {about['commit']}. {about['cpu']}, {about['cpus']} CPUs, {about['ram_gb']} GB, "
        f"{about['system']}.",
        f"Versions: {versions}.",
    ]
    if about["missing"]:
        out.append(f"Not installed, left out: {', '.join(about['missing'])}.")
    if about["stores"] == "folders":
        out.append("No S3 server: all store in folders, and nothing was counted.")
    else:
        proxy = about["proxy"]
        out.append(f"The proxy carries {proxy['megabytes']:.0f} MB/s or {proxy['requests']:.0f} requests/s on a core.")
    return out


def section(net: str, load: dict[str, Any], rows: list[Row], order: Sequence[str]) -> list[str]:
    """The tables of one tree on one network, the programs in this order."""
    rows = sorted(rows, key=lambda row: order.index(row["peer"]))
    timed = [row for row in rows if row["run"] > 0]
    counted = [row for row in rows if "requests" in row]
    peers = _seen(rows, "peer")
    runs = len(_seen(timed, "run"))
    title = f"{net}, {load['title']}, {runs} run{'s' if runs > 1 else ''}"
    what = (
        f"{load['files']} files, {load['folders']} folders, {load['size_bytes'] / 1e6:.1f} MB, from: {load['origin']}."
    )
    lines = [
        "",
        f"### {title}",
        "",
        what,
        "",
        "Wall seconds (CPU seconds), medians; peak memory of the largest process:",
        "",
    ]
    lines += table(
        ("", *STEPS, "peak MB"),
        ([peer, *(_seconds(timed, peer, step) for step in STEPS), _peak(timed, peer)] for peer in peers),
    )
    if counted:
        lines += ["", "HTTP requests; MB up / MB down:", ""]
        spoke = _seen(counted, "peer")
        lines += table(("", *STEPS), ([peer, *(_traffic(counted, peer, step) for step in STEPS)] for peer in spoke))
    others = [peer for peer in peers if peer != OURS]
    if OURS in peers and others:
        lines += [
            "",
            "MetaSync ÷ the other, wall (CPU), medians of the ratios run by run; below 1 MetaSync is quicker:",
            "",
        ]
        lines += table(("", *STEPS), ([peer, *(ratio(timed, peer, step) for step in STEPS)] for peer in others))
    busy = [row["others_cores"] for row in timed if "others_cores" in row]
    if busy:
        lines += ["", f"Meanwhile other programs used {statistics.median(busy):.1f} cores, at most {max(busy):.1f}."]
    return lines


def ratio(rows: list[Row], peer: str, step: str) -> str:
    """Ours to the other's in the same run. Where the other was given up, it is at most that to the limit."""
    cells = []
    pairs = [(a, b) for a in _of(rows, OURS, step) for b in _of(rows, peer, step) if a["run"] == b["run"]]
    pairs = [(a, b) for a, b in pairs if not (a["timed_out"] or a["exit_code"])]
    pairs = [(a, b) for a, b in pairs if b["timed_out"] or not b["exit_code"]]
    if not pairs:
        return "-"
    for key in ("wall_s", "cpu_s"):
        middle = statistics.median(a[key] / max(b[key], 0.001) for a, b in pairs)
        cells.append(f"{middle:.2f}" if middle < 100 else f"{middle:.0f}")
    if any(b["timed_out"] for _, b in pairs):
        return f"< {cells[0]}"
    return f"{cells[0]} ({cells[1]})"


def bars(rows: list[Row]) -> list[str]:
    """The two figures that the project promises, and whether they were met; nothing if the tree was not measured."""
    ours = [row for row in rows if row["peer"] == OURS and row["load"] == BAR_LOAD and row["run"] > 0]
    lines = []
    quiet = [row["wall_s"] for row in _of([r for r in ours if r["net"] == "near"], OURS, "no-change push")]
    if quiet:
        middle = statistics.median(quiet)
        lines.append(
            f"- no-change push, near: {middle:.2f} s, at most {NO_CHANGE_PUSH_S}: {_met(middle <= NO_CHANGE_PUSH_S)}"
        )
    if ours:
        most = max(row["peak_mb"] for row in ours)
        lines.append(f"- peak memory of any step: {most:.0f} MB, at most {PEAK_MB:.0f}: {_met(most <= PEAK_MB)}")
    return ["", f"### MetaSync's bounds on {BAR_LOAD}", "", *lines] if lines else []


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]


def _seconds(rows: list[Row], peer: str, step: str) -> str:
    def show(found: list[Row]) -> str:
        return f"{_median(found, 'wall_s'):.2f} ({_median(found, 'cpu_s'):.2f})"

    return _cell(_of(rows, peer, step), show)


def _traffic(rows: list[Row], peer: str, step: str) -> str:
    def show(found: list[Row]) -> str:
        up, down = _median(found, "up_mb"), _median(found, "down_mb")
        return f"{_median(found, 'requests'):.0f}; {up:.2f} / {down:.2f}"

    return _cell(_of(rows, peer, step), show)


def _cell(found: list[Row], show: Callable[[list[Row]], str]) -> str:
    if not found:
        return "-"
    if any(row["timed_out"] for row in found):
        return f"> {max(row['wall_s'] for row in found):.0f}"
    if any(row["exit_code"] for row in found):
        return "failed"
    return show(found)


def _peak(rows: list[Row], peer: str) -> str:
    most = max((row["peak_mb"] for row in rows if row["peer"] == peer), default=0.0)
    return f"< {FLOOR_MB:.0f}" if most < FLOOR_MB else f"{most:.0f}"


def _median(rows: list[Row], key: str) -> float:
    return float(statistics.median(row[key] for row in rows))


def _of(rows: list[Row], peer: str, step: str) -> list[Row]:
    return [row for row in rows if row["peer"] == peer and row["step"] == step]


def _seen(rows: list[Row], key: str) -> list[Any]:
    """The values, in the order in which they came first."""
    return list(dict.fromkeys(row[key] for row in rows))


def _met(yes: bool) -> str:
    return "met" if yes else "not met"
