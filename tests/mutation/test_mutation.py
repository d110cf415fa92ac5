"""The tool of `make mutants` itself: what it takes for a guard, what becomes of a broken one, and what it reports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutation.__main__ import ROOMS, Room, explained, hunt, report
from mutation.guards import Planted, Wrapping, modules_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("source", "guards"),
    [
        ("if torn: raise ValueError", [("torn", False)]),
        ("while a and not b: pass", [("a", True), ("not b", True)]),
        ("x = 1 if a or b else 2", [("a", False), ("b", False)]),
        ("x = [y for y in z if y if y > 1]", [("y", True), ("y > 1", True)]),
        ("if a and (b or c): pass", [("a", True), ("b", False), ("c", False)]),
        ("is_late = a < b", [("a < b", False)]),
        ("x = a or b", []),  # a value, not a decision
        ("look(a is None, key=not b)", [("a is None", False), ("not b", False)]),
        ("tree.check_path(path)", [("call of tree.check_path", False)]),
        ("self._sync()", [("call of self._sync", False)]),
        ("sum(a.b and c < d for a in e)", [("a.b", True), ("c < d", True)]),
        ("any(a < 1 for a in e)", [("a < 1", False)]),
        ("sum(len(a) for a in e)", []),
        ("syncing()", []),
        ("assert a", []),
        ("while True: pass", []),
    ],
)
def test_what_is_a_guard_and_what_its_fault_is(source: str, guards: list[tuple[str, bool]]) -> None:
    planted = Planted()
    Wrapping(planted, "room", "room.py").visit(ast.parse(source))
    assert [(g.key, g.fault) for g in planted.guards] == [(f"room:-: {text}", fault) for text, fault in guards]


def test_a_guard_is_named_by_its_function_and_its_text_and_its_turn() -> None:
    planted = Planted()
    source = "class A:\n    def f(self):\n        if x: pass\n        if x: pass\n"
    tree = Wrapping(planted, "room", "room.py").visit(ast.parse(source))
    assert [g.key for g in planted.guards] == ["room:A.f: x", "room:A.f: x #2"]
    assert ast.unparse(tree).count("__guard_met__(") == 2


TOY = """
def checked(size, names=()):
    if size < 0:
        raise ValueError
    if size > 10:
        raise OverflowError
    while size > 100:
        size -= 1
    if names:
        return 0
    return size
"""
TOY_TEST = """
import pytest
from toy.room import checked

def test_it():
    assert checked(3) == 3
    with pytest.raises(ValueError):
        checked(-1)

def test_weak():
    try:
        checked(11)
    except OverflowError:
        pass
"""


def test_a_fault_in_each_guard_of_a_toy_room_is_caught_or_survives_or_is_never_met(tmp_path: Path) -> None:
    """One guard has a test that fails without it, one a test that does not mind, two decide nothing in any test."""
    for name, text in (("toy/__init__.py", ""), ("toy/room.py", TOY), ("tests/toy/test_toy.py", TOY_TEST)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    servers\n    long\n")
    outcomes = hunt("toy", Room(("toy",), ("toy",)), tmp_path)
    assert outcomes is not None
    assert {o["guard"].removeprefix("toy.room:checked: "): o["outcome"] for o in outcomes} == {
        "size < 0": "caught",
        "size > 10": "survives",
        "size > 100": "never decides",
        "names": "never decides",
    }


OUTCOMES = [
    {"guard": f"a.b:f: {name}", "file": "a/b.py", "line": 1, "outcome": outcome}
    for name, outcome in (("x", "caught"), ("y", "survives"), ("z", "never met"))
]


@pytest.mark.parametrize(
    ("named", "is_clean", "told"),
    [
        ("", False, ["UNEXPLAINED, survives, a/b.py:1: a.b:f: y", "UNEXPLAINED, never met, a/b.py:1: a.b:f: z"]),
        ("yz", True, ["explained: 2"]),
        ("xyz", False, ["EXPLAINED FOR NOTHING: a.b:f: x"]),
    ],
)
def test_what_nothing_catches_is_explained_and_nothing_else_is(named: str, is_clean: bool, told: list[str]) -> None:
    text, clean = report(OUTCOMES, {f"a.b:f: {name}": "why" for name in named})
    assert clean is is_clean
    assert all(line in text for line in told)


def test_a_module_whose_name_begins_like_another_one_is_another() -> None:
    room = Room(("a.b",), ())
    keys = {"a.b:f: x": True, "a.b.c:f: x": True, "a.b_c:f: x": False, "a.bc:f: x": False}
    assert {key: room.has(key) for key in keys} == keys


def test_each_explanation_names_a_guard_that_is_there() -> None:
    planted = Planted()
    for room in ROOMS.values():
        for module in modules_of(room.packages, ROOT):
            place = ROOT / module.replace(".", "/")
            file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            Wrapping(planted, module, str(file)).visit(ast.parse(file.read_bytes()))
    keys = explained((Path(__file__).parent / "explained.toml").read_text(encoding="utf-8")).keys()
    assert sorted(keys - {g.key for g in planted.guards}) == []
