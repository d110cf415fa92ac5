"""Backends that answer garbage: one stops nobody, and all of them break nothing here."""

from __future__ import annotations

import os
from typing import Any

import pytest
from bad_input_kit import says, started
from workspace_kit import Lab, tree_of, write

from metasync.errors import DamagedError, MetaSyncError
from metasync.testing.faults import Plan

PARTS = ["packs", "px", "keys", "meta", "const", "birth", "genesis", "devices"]


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("part", "fault"),
    [
        *((part, fault) for part in PARTS for fault in ("html", "swapped")),
        *(("", fault) for fault in ("html", "garbage", "bit_flip", "truncated", "swapped")),
        *(
            (part, "absent") for part in PARTS if part != "px"
        ),  # to hide votes is to lie: 3 backends survive none that does
        *((part, "garbage") for part in ("keys", "genesis", "const")),
        *((part, "bit_flip") for part in ("packs", "px", "meta")),
    ],
)
def test_one_backend_that_answers_garbage(lab: Lab, part: str, fault: Any) -> None:
    w = started(lab, "a", "b", "c")
    plan = Plan(seed=1, rates={fault: 1.0}, paths=lambda path: part in path)
    lab.faults["a"].plan = plan
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"more", "notes.txt": b"one\ntwo\n3\n"})
    v = w.push().version
    assert v == 2
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)
    write(c.directory, {"from-c": os.urandom(300)})
    c.push()
    w.pull()
    assert tree_of(c.directory) == tree_of(w.directory)
    lab.faults["a"].plan = None
    c = lab.clone(lab.urls("a", "b", "c"), device="third")
    assert tree_of(c.directory) == tree_of(w.directory)


@pytest.mark.parametrize("fault", ["html", "garbage"])
def test_all_backends_answer_garbage(lab: Lab, fault: Any) -> None:
    w = started(lab)
    lab.hurry()
    for name in "abc":
        lab.faults[name].plan = Plan(seed=1, rates={fault: 1.0})
    w = lab.reopen(w)
    write(w.directory, {"more.txt": b"more"})
    before = tree_of(w.directory)
    for act in (w.push, w.pull):
        with pytest.raises(MetaSyncError) as e:
            act()
        says(e.value, "a", "b", "c")
    assert tree_of(w.directory) == before
    with pytest.raises(MetaSyncError):
        lab.clone(lab.urls("a", "b", "c"))


def test_a_clone_takes_the_keyring_from_a_backend_that_has_it_intact(lab: Lab) -> None:
    w = started(lab)
    for ring in lab.store("a").glob("*/keys/ring-*"):
        ring.write_bytes(b"<html>please log in</html>")
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)
    for n in "bc":
        for ring in lab.store(n).glob("*/keys/ring-*"):
            ring.unlink()
    with pytest.raises(DamagedError, match="no keyring"):
        lab.clone(lab.urls("a", "b", "c"), device="phone")
