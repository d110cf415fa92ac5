"""A copy that stands in for one of a backend that was away: it is not lost with the backend that it lies on."""

from __future__ import annotations

from typing import Never

import pytest
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.errors import UnreachableError, UsageError
from metasync.moving import strays
from metasync.session import agreement
from metasync.workspace import Workspace


def away_for_a_while(lab: Lab, w: Workspace, *names: str, pushes: int = 40) -> Workspace:
    """Pushes while these backends do not answer, then has them back."""
    for name in names:
        lab.faults[name].down = True
    for n in range(pushes):
        write(w.directory, {f"file{n}": f"{n} ".encode() * 700})
        w.push(f"push {n}")
    for name in names:
        lab.faults[name].down = False
    return lab.reopen(w)


def is_whole(lab: Lab, w: Workspace) -> None:
    """Every copy is where it belongs, and a new device gets all."""
    w = lab.reopen(w)
    report = w.check(read_data=True)
    assert (report.problems, report.lost, report.short, report.nowhere) == ((), (), 0, ())
    desktop = lab.clone([lab.url(b.name) for b in w.backends()])
    want = {path: node.data for path, node in tree_of(w.directory).items()}
    assert {path: node.data for path, node in tree_of(desktop.directory).items()} == want


@pytest.mark.parametrize("wiped", [False, True])
@pytest.mark.long
def test_removal_brings_what_stood_in_for_others_first(lab: Lab, wiped: bool) -> None:
    """Both copies of what belonged on a and b lie on backends that go, one after the other."""
    w = away_for_a_while(lab, lab.init(lab.urls(*"abcde"), replicas=2), "a", "b")
    for name in "ed":
        w.backend_remove(name, passphrase=PASSPHRASE, wipe=wiped)
        w = lab.reopen(w)
        assert w.rebalance().is_whole
    is_whole(lab, w)


@pytest.mark.long
def test_what_stands_in_alone_keeps_its_backend_until_the_others_are_back(lab: Lab) -> None:
    """Of three backends with one copy of each pack, what belongs on a lies on c alone, and a is away still."""
    w = away_for_a_while(lab, lab.init(lab.urls(*"abc"), replicas=1), "a")
    lab.faults["a"].down = True
    with pytest.raises(UnreachableError, match=r"^a: "):
        w.backend_remove("c", passphrase=PASSPHRASE)
    lab.faults["a"].down = False
    w = lab.reopen(w)
    w.backend_remove("c", passphrase=PASSPHRASE, wipe=True)
    is_whole(lab, w)


@pytest.mark.long
def test_a_replaced_backend_is_asked_what_stands_in_there(lab: Lab) -> None:
    w = away_for_a_while(lab, lab.init(lab.urls(*"abc"), replicas=1), "a")
    with w._session("test") as s:
        c = agreement.newest(s).config.named("c")
        assert c is not None
        packs = agreement.newest(s).index.packs().values()
        assert strays.listed(s, c.backend_id, packs), "some of 40 packs belong on a, and found their place on c"
        assert strays.listed(s, bytes(16), packs) == []
    with pytest.raises(UsageError, match="no copy on another") as caught:
        w.backend_add(lab.url("d"), passphrase=PASSPHRASE, replaces="c")
    assert "metasync backend remove c" in str(caught.value.next_step)
    w = lab.reopen(w)
    w.backend_add(lab.url("d"), passphrase=PASSPHRASE)
    w.backend_remove("c", passphrase=PASSPHRASE)
    is_whole(lab, w)


@pytest.mark.long
def test_one_that_does_not_list_is_compared_with_all_packs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = away_for_a_while(lab, lab.init(lab.urls(*"abc"), replicas=1), "a")

    def fails(*_: object) -> Never:
        raise UnreachableError("c: it lists nothing")

    monkeypatch.setattr(strays, "listed", fails)
    with pytest.raises(UsageError, match="no copy on another"):
        w.backend_add(lab.url("d"), passphrase=PASSPHRASE, replaces="c")
    w = lab.reopen(w)
    w.backend_remove("c", passphrase=PASSPHRASE)
    is_whole(lab, w)
