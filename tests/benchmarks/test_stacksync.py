"""StackSync's trace as a benchmark: what the generator makes, and what the benchmark counts of it."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import stacksync
import stacksync_trace as generator
from stacksync_trace import CHANGES, MATRIX, Action, Edit, content_of, trace

from metasync.backends.memory import MemoryBackend

# --- the generator


def test_the_counts_and_volumes_are_those_of_the_paper() -> None:
    actions = trace()
    assert Counter(a.kind for a in actions) == {"add": 940, "update": 72, "remove": 228}
    assert sum(a.size for a in actions) == 535_410_000
    assert sum(len(e.data) for a in actions for e in a.edits) == 13_500


def test_such_counts_are_what_the_matrix_gives_on_average() -> None:
    for chances in MATRIX.values():
        assert sum(chances.values()) == pytest.approx(1)
    assert generator.expected() == pytest.approx((72, 228), abs=1.5)
    found = [generator.snapshots(seed) for seed in range(30)]
    updates = [sum(len(s.updated) for s in chain) for chain in found]
    removes = [sum(len(s.removed) for s in chain) for chain in found]
    assert 64 < sum(updates) / len(updates) < 80
    assert 215 < sum(removes) / len(removes) < 245


def test_the_seed_is_one_with_which_they_come_out_exactly() -> None:
    assert generator.is_as_in_the_paper(generator.SEED)
    assert not generator.is_as_in_the_paper(generator.SEED - 1)


def test_a_trace_can_be_carried_out_from_its_first_step_to_its_last() -> None:
    there: dict[int, int] = {}
    ever: set[int] = set()
    for a in trace():
        if a.kind == "add":
            assert a.number not in ever
            there[a.number] = a.size
            ever.add(a.number)
        elif a.kind == "update":
            assert there[a.number] < generator.UPDATED_FILE_BYTES_MAX
            there[a.number] += sum(len(e.data) for e in a.edits if e.part != "M")
        else:
            del there[a.number]
    assert len(there) == 940 - 228
    assert len({generator.path_of(n) for n in ever}) == len(ever)


def test_the_files_at_first_come_first() -> None:
    assert [a.kind for a in trace()[:20]] == ["add"] * 20
    assert {a.number for a in trace()[:20]} == set(range(20))


def test_sizes_are_mostly_small() -> None:
    sizes = generator.sizes(generator.SEED)
    assert sum(s < 4_000_000 for s in sizes) > 0.9 * len(sizes)
    assert min(sizes) >= 1
    assert sorted(sizes)[len(sizes) // 2] < 60_000


def test_updates_are_of_the_kinds_of_the_paper_as_often_as_it_says() -> None:
    drawn: Counter[tuple[str, ...]] = Counter()
    rng = random.Random(1)
    for _ in range(4000):
        drawn[tuple(e.part for e in generator._edits(rng, 1000, 100))] += 1
    assert drawn.keys() == CHANGES.keys()
    for parts, chance in CHANGES.items():
        assert drawn[parts] / 4000 == pytest.approx(chance, abs=0.03)


@pytest.mark.parametrize("size", [0, 1, 50, 100, 1000, 100_000])
def test_edits_change_the_beginning_the_end_or_the_middle(size: int) -> None:
    before = random.Random(size).randbytes(size)
    seen = set()
    for seed in range(300):
        rng = random.Random(seed)
        content = before
        edits = list(generator._edits(rng, size, 120))
        assert sum(len(e.data) for e in edits) == 120
        for e in edits:
            after = e.of(content)
            if e.part == "B":
                assert after == e.data + content
            elif e.part == "E":
                assert after == content + e.data
            else:
                assert len(after) == max(len(content), len(e.data))
                assert after[: e.at] == content[: e.at]
                assert after[e.at + len(e.data) :] == content[e.at + len(e.data) :]
                assert size < 1000 or 0 < e.at < len(content) - len(e.data)
            seen.add(e.part)
            content = after
    assert seen == {"B", "E", "M"}


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    assert trace(5) == trace(5)
    assert trace(5) != trace(6)
    digest = hashlib.sha256(repr(trace()).encode() + content_of(7, 1000)).hexdigest()
    assert digest == DIGEST, "the trace has changed: figures of before cannot be compared any more"


DIGEST = "be58b36a05fa5ed303477e3da10f07ef1ad55e190b92e9cd2aa138a277376119"


# --- the benchmark


def test_what_an_action_does_to_a_file(tmp_path: Path) -> None:
    one = Action("add", "a/b/one", 3, 500)
    stacksync.carry_out(one, tmp_path)
    assert (tmp_path / "a/b/one").read_bytes() == content_of(3, 500)
    edits = (Edit("B", 0, b"<<"), Edit("E", 502, b">>"), Edit("M", 2, b"mm"))
    stacksync.carry_out(Action("update", "a/b/one", 3, edits=edits), tmp_path)
    assert (tmp_path / "a/b/one").read_bytes() == b"<<mm" + content_of(3, 500)[2:] + b">>"
    stacksync.carry_out(Action("remove", "a/b/one", 3), tmp_path)
    assert not (tmp_path / "a/b/one").exists()


def test_content_is_what_a_push_finds() -> None:
    edit = (Edit("E", 0, b"12345"),)
    actions = [Action("add", "1", 1, 100), Action("add", "2", 2, 30), Action("update", "3", 3, edits=edit)]
    assert stacksync.new_content(actions) == 135
    assert stacksync.new_content([*actions, Action("remove", "1", 1), Action("remove", "3", 3)]) == 30
    assert [len(b) for b in stacksync.batches(actions * 3, 4)] == [4, 4, 1]


def test_everything_on_the_wire_is_counted_and_named() -> None:
    wire = stacksync.Wire()
    backend = stacksync.Counted(MemoryBackend(), wire)
    place = "f" * 32 + "/" + "a" * 32
    backend.put(f"{place}/packs/0/ab/cd", b"p" * 1000)
    backend.put(f"{place}/meta/0/name", b"i" * 10)
    assert backend.get(f"{place}/meta/0/name", max_bytes=99) == b"i" * 10
    assert backend.create(f"{place}/px/0/name", b"log")
    assert [e.name for e in backend.list(f"{place}/px/0")] == ["name"]
    with pytest.raises(Exception, match="not in this store"):
        backend.get(f"{place}/birth", max_bytes=99)
    kinds = wire.kinds
    assert {k: (t.up, t.down, sum(t.requests.values())) for k, t in kinds.items()} == {
        "packs": (1000, 0, 1),
        "index": (10, 10, 2),
        "log": (3, 4 + 8, 2),
        "births": (0, 0, 1),
    }
    names = [len(place) + n for n in (14, 12, 12, 10, 5, 6)]
    assert wire.packs == 1000
    assert wire.control == 10 + 10 + 3 + 12 + sum(names)
    assert wire.requests == 6


def test_a_session_counts_what_it_pushes_and_brings_it_to_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    edit = Edit("B", 0, b"begin")
    actions = [
        Action("add", "x/one", 1, 300_000),
        Action("add", "x/two", 2, 10_000),
        Action("update", "x/two", 2, edits=(edit,)),
        Action("remove", "x/one", 1),
    ]
    each = stacksync.session(actions, 1, tmp_path, 3, check=True)
    both = stacksync.session(actions, 2, tmp_path, 3, check=True)
    assert (each.pushes, both.pushes) == (4, 2)
    assert each.content == 310_005
    assert both.wire.control < each.wire.control
    for result in (each, both):
        p = result.packed
        assert result.wire.packs == 2 * p.size
        assert p.blobs > 310_000
        assert min(p.trees, p.padding, p.rest) > 0
    assert each.packed.packs == 4
    assert list(tmp_path.iterdir()) == []


def test_it_prints_its_tables_and_says_what_is_missed(tmp_path: Path) -> None:
    argv = [sys.executable, stacksync.__file__, "--batch", "2", "--operations", "4", "--work", str(tmp_path), "--check"]
    done = subprocess.run(argv, check=True, timeout=120, capture_output=True, text=True, env=dict(os.environ))
    assert "4 adds" in done.stdout
    assert "| index |" in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith("| 2 |")]
    assert len(rows) == 2
    assert rows[0].split("|")[2].strip() == "2"  # pushes
    assert 0.01 < float(rows[0].split("|")[3]) < 1


def test_a_bar_that_is_missed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    result = stacksync.session([Action("add", "one", 1, 1000)], 1, tmp_path, 2, check=False)
    assert len(stacksync.by_batch([result], barred=True)[1]) == 1  # a small file alone: packs are larger than it
    monkeypatch.setitem(stacksync.CONTROL_BARS_MB, 1, 0.001)
    missed = stacksync.by_batch([result], barred=True)[1]
    assert [text.split(": ")[1].split()[0] for text in missed] == ["control", "packs"]
    assert stacksync.by_batch([result], barred=False)[1] == []
