"""Benchmarks on distant services: what they generate, what they compute, what they print."""

from __future__ import annotations

import json
import random
from pathlib import Path

import bundles
import far
import measure
import pytest
import table7
import workloads
from bundles import Took as Pushes
from table7 import Took


def test_a_small_request_takes_as_long_as_the_services_say() -> None:
    shapes = far.services_of_paper()
    said = json.loads((Path(far.__file__).parent / "services.json").read_text())["services"]
    assert list(shapes) == [s["name"] for s in said] == ["dropbox", "google", "box", "onedrive", "baidu"]
    for s in said:
        shape = shapes[s["name"]]
        takes = {method: round(shape.round_trip_s + seconds, 6) for method, seconds in shape.service_s.items()}
        assert takes == {
            "PUT": s["append_s"],
            "POST": s["append_s"],
            "GET": s["get_s"],
            "HEAD": s["get_s"],
            "DELETE": s["get_s"],
            "LIST": s["list_s"],
        }
        assert (shape.up, shape.down, shape.jitter) == (s["up_mb_s"] * 1e6, s["down_mb_s"] * 1e6, s["jitter"])
        assert min(shape.service_s.values()) > 0


def test_small_files_are_random_and_of_their_size() -> None:
    made = bundles.files(random.Random(1), 5, 10)
    assert [len(data) for data in made] == [10_000] * 5
    assert len(set(made)) == 5
    assert made == bundles.files(random.Random(1), 5, 10)


def test_batches_are_held_against_one_by_one_by_their_medians() -> None:
    one = [Pushes(0.5, 20), Pushes(9.0, 99), Pushes(0.4, 20)]
    each = [Pushes(5.0, 200), Pushes(4.0, 200), Pushes(90.0, 999)]
    line, ratio = bundles.row("10 x 10", one, each)
    assert ratio == pytest.approx(0.1)
    assert line == "| 10 x 10 KB | 0.50 | 5.00 | 0.100 | 0.14 | 20 | 200 |"


@pytest.fixture
def load(tmp_path: Path) -> workloads.Load:
    for n in range(100):
        workloads.write(tmp_path / f"kernel/d{n % 7}/f{n:02}", b"%d\n" % n * 10)
    return workloads.described("kernel", tmp_path / "kernel", "generated")


def test_a_part_of_a_load_is_spread_evenly_over_it(load: workloads.Load, tmp_path: Path) -> None:
    part = table7.part_of(load, 20, tmp_path / "part")
    names = sorted(p.relative_to(part.path) for p in part.path.rglob("*") if p.is_file())
    assert (part.name, part.files, len(names)) == ("kernel", 20, 20)
    assert {n.parent.name for n in names} == {f"d{i}" for i in range(7)}
    assert all((load.path / n).read_bytes() == (part.path / n).read_bytes() for n in names)
    again = table7.part_of(load, 20, tmp_path / "again")
    assert measure.differences(part.path, again.path, frozenset()) == []
    assert table7.part_of(load, 0, tmp_path) is table7.part_of(load, 100, tmp_path) is load


def test_the_best_single_service_counts_and_the_whole_way(load: workloads.Load) -> None:
    singles = {"quick up": Took(10.0, 30.0), "quick in all": Took(20.0, 10.0)}
    line, ratio = table7.row(load, singles, Took(2.0, 1.0), Took(4.0, 1.0), 5.5)
    assert ratio == 10.0
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == [
        "kernel (generated)",
        "100 files, 0.0 MB",
        "30.0 (20.0 + 10.0), quick in all",
        "3.0 (2.0 + 1.0)",
        "5.5",
        "5.0 (4.0 + 1.0)",
        "10.00",
        "6.00",
        "10.0",
    ]


def test_a_wrong_copy_is_an_end(load: workloads.Load, tmp_path: Path) -> None:
    there = tmp_path / "there"
    workloads.write(there / "d0/f00", b"other")
    with pytest.raises(SystemExit, match="there differs in 106 places"):
        table7.same(load, there, frozenset())
    table7.same(load, load.path, table7.ALL)
