"""The deterministic mapping of the MetaSync paper (USENIX ATC 2015, figure 6), as the oracle for `store.placement`.

It is written for likeness, not for speed: one MD5 per virtual node and partition. `python tests/kits/figure6.py` prints
the tables of docs/design/placement.md, both algorithms side by side.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from metasync.store import placement

Table = Sequence[tuple[str, ...]]  # by partition: the distinct services in order

FIVE_GB = {"Dropbox": 2, "Box": 10, "Google": 15, "OneDrive": 15, "Baidu": 2048}  # the paper's table 5
FOUR_GB = {name: gb for name, gb in FIVE_GB.items() if name != "Baidu"}


def init(capacities: Mapping[str, int], partitions: int) -> Table:
    """INIT(Services, H): all virtual nodes (sId, vId), for each partition i sorted by md5(i, sId, vId).

    Uniq is applied here rather than in GETMAPPING, because H lists of 2,090 nodes do not fit in memory.
    """
    nodes = [(s_id, v_id) for s_id, capacity in capacities.items() for v_id in range(capacity)]

    def md5(i: int, s_id: str, v_id: int) -> bytes:
        return hashlib.md5(f"{i},{s_id},{v_id}".encode(), usedforsecurity=False).digest()

    return [uniq(sorted(nodes, key=lambda node: md5(i, *node))) for i in range(partitions)]


def uniq(nodes: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """The services of the nodes, each once, in the order in which they come first."""
    return tuple(dict.fromkeys(s_id for s_id, _ in nodes))


def get_mapping(table: Table, object_hash: int, copies: int) -> tuple[str, ...]:
    """GETMAPPING(object, R)."""
    return table[object_hash % len(table)][:copies]


# ---- what the tests and the tables measure, for either algorithm


def backend_id(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[: placement.BACKEND_ID_BYTES]


def targets_of(capacities: Mapping[str, int]) -> list[placement.Target]:
    return [placement.Target(backend_id(name), gb * 10**9) for name, gb in capacities.items()]


def ours(capacities: Mapping[str, int], partitions: int) -> Table:
    """The table of `placement.order`, with names in place of ids."""
    names = {backend_id(name): name for name in capacities}
    targets = targets_of(capacities)
    return [tuple(names[b] for b in placement.order(targets, i)) for i in range(partitions)]


def count_kept(table: Table, copies: int) -> Counter[str]:
    """For each service, the number of partitions that have it among their first `copies`."""
    return Counter(name for i in range(len(table)) for name in get_mapping(table, i, copies))


def count_moved(before: Table, after: Table, copies: int) -> int:
    """The number of (partition, service) pairs that are new: copies that a rebalance would upload."""
    pairs = zip(before, after, strict=True)
    return sum(len(set(new[:copies]) - set(old[:copies])) for old, new in pairs)


def inclusion(weights: Mapping[str, int], copies: int) -> dict[str, Fraction]:
    """For each service, the probability of being among the first `copies` drawn, in proportion to weight and without
    replacement: by recursion on the first draw, in exact fractions.
    """
    if copies == 0 or not weights:
        return dict.fromkeys(weights, Fraction(0))
    result = dict.fromkeys(weights, Fraction(0))
    for first, weight in weights.items():
        chance = Fraction(weight, sum(weights.values()))
        result[first] += chance
        rest = {name: w for name, w in weights.items() if name != first}
        for name, share in inclusion(rest, copies - 1).items():
            result[name] += chance * share
    return result


def expected_moved(before: Mapping[str, int], after: Mapping[str, int], copies: int) -> Fraction:
    """Moved copies per partition that no mapping with these shares can undercut: what services gain, summed.

    A service in a table with the shares p before and q after must receive at least q - p copies per partition.
    """
    old, new = inclusion(before, copies), inclusion(after, copies)
    return sum((max(new[name] - old.get(name, Fraction(0)), Fraction(0)) for name in new), Fraction(0))


CHANGES: Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]] = {
    "remove Baidu (2048) from the five": (FIVE_GB, FOUR_GB),
    "add Baidu (2048) to the four": (FOUR_GB, FIVE_GB),
    "remove Google (15) from the four": (FOUR_GB, {k: v for k, v in FOUR_GB.items() if k != "Google"}),
    "add Mega (50) to the four": (FOUR_GB, FOUR_GB | {"Mega": 50}),
    "grow Dropbox of the four, 2 to 20": (FOUR_GB, FOUR_GB | {"Dropbox": 20}),
}


def main(oracle_partitions: int = 4_096, our_partitions: int = 65_536) -> None:
    tables: dict[tuple[str, frozenset[tuple[str, int]]], Table] = {}

    def table(kind: str, make: Callable[[Mapping[str, int], int], Table], gb: Mapping[str, int], h: int) -> Table:
        key = kind, frozenset(gb.items())
        if key not in tables:
            start_s = time.perf_counter()
            tables[key] = make(gb, h)
            print(f"({kind}, H = {h}, {len(gb)} services, {sum(gb.values())} GB: ", end="", file=sys.stderr)
            print(f"{time.perf_counter() - start_s:.1f} s)", file=sys.stderr)
        return tables[key]

    print("| R | service | GB | exact % | ours % | figure 6 % |\n| --- | --- | --- | --- | --- | --- |")
    for copies in (1, 2, 3):
        exact = inclusion(FIVE_GB, copies)
        we = count_kept(table("ours", ours, FIVE_GB, our_partitions), copies)
        they = count_kept(table("figure 6", init, FIVE_GB, oracle_partitions), copies)
        for name, gb in FIVE_GB.items():
            measured = f"{100 * we[name] / our_partitions:.3f} | {100 * they[name] / oracle_partitions:.3f}"
            print(f"| {copies} | {name} | {gb} | {100 * float(exact[name]):.3f} | {measured} |")

    print("\n| change | R | least % | ours % | figure 6 % |\n| --- | --- | --- | --- | --- |")
    for change, (before, after) in CHANGES.items():
        for copies in (1, 2):
            least = 100 * float(expected_moved(before, after, copies))
            we, they = (
                100 * count_moved(table(kind, make, before, h), table(kind, make, after, h), copies) / h
                for kind, make, h in (("ours", ours, our_partitions), ("figure 6", init, oracle_partitions))
            )
            print(f"| {change} | {copies} | {least:.2f} | {we:.2f} | {they:.2f} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
