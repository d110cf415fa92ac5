"""What a version let go is deleted only where it is known, so that a restart without the others lacks nothing.

A backend that has not heard of a version may be all that is left of the workspace. What it held before must then still
be there, whoever collected, moved or removed something meanwhile.
"""

from __future__ import annotations

from typing import Any

import pytest
from collect_kit import LAST, STORES, noise, packs, six_versions
from workspace_kit import PASSPHRASE, Lab, write

from metasync.errors import UnreachableError
from metasync.maintenance import sweep
from metasync.moving import rebalance
from metasync.testing.faults import FaultyBackend
from metasync.workspace import Workspace


class Deaf:
    """A backend that takes no entries of logs from the device that opened it last, while it `is_deaf`."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = FaultyBackend.create
        self.is_deaf = True

        def create(backend: FaultyBackend, path: str, data: bytes) -> bool:
            if "/px/" in path and self.is_deaf and lab.faults[name] is backend:
                raise UnreachableError("deaf", retryable=False)
            return real(backend, path, data)

        monkeypatch.setattr(FaultyBackend, "create", create)


def restarted_on(lab: Lab, w: Workspace, name: str) -> Workspace:
    """The workspace goes on with one backend alone, by a device that knows the state as that backend does."""
    others = [n for n in STORES if n != name]
    for other in others:
        lab.lose(other)
    w = lab.reopen(w)
    w.recover(others, PASSPHRASE, confirm="docs")
    return w


def slept(lab: Lab, w: Workspace) -> Workspace:
    return lab.clone(lab.urls(*STORES), device="slept")


@pytest.fixture
def six(lab: Lab) -> Workspace:
    """Six versions, three copies of everything."""
    return six_versions(lab.init(lab.urls(*STORES), replicas=3))


@pytest.mark.long
def test_a_collection_leaves_a_backend_alone_that_has_not_heard_of_it(
    six: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone is left afterwards: the restart goes on from before the fence, and all of that is there."""
    sleeper = slept(lab, six)
    six = lab.reopen(six)
    lab.hurry(proposing=True)
    deaf = Deaf(lab, monkeypatch, "c")
    before = packs(lab, "c")
    report = six.gc(LAST)
    assert {f.backend for f in report.freed} == {"a", "b"}
    assert "has not heard of version" in report.away["c"]
    assert before.items() <= packs(lab, "c").items()
    deaf.is_deaf = False
    w = restarted_on(lab, sleeper, "c")
    checked = w.check(read_data=True)
    assert not checked.lost and not checked.problems
    assert [i.version for i in w.log()][-1] == 1
    w.restore("2", to=lab.root / "out")
    assert (lab.root / "out" / "file2").read_bytes() == noise(2)


@pytest.mark.long
def test_a_collection_tells_a_backend_that_missed_the_vote(
    six: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its space comes back in the same run, and a restart with it alone goes on from behind the fence."""
    sleeper = slept(lab, six)
    six = lab.reopen(six)
    lab.hurry(proposing=True)
    deaf = Deaf(lab, monkeypatch, "c")
    real = sweep.sweep

    def heard_again(*args: Any, **options: Any) -> sweep.Swept:
        deaf.is_deaf = False
        return real(*args, **options)

    monkeypatch.setattr(sweep, "sweep", heard_again)
    report = six.gc(LAST)
    assert {f.backend for f in report.freed} == {"a", "b", "c"} and not report.away
    w = restarted_on(lab, sleeper, "c")
    checked = w.check(read_data=True)
    assert not checked.lost and not checked.problems
    assert [i.version for i in w.log()][-1] == 6


def test_the_next_collection_takes_what_was_left(six: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.hurry(proposing=True)
    deaf = Deaf(lab, monkeypatch, "c")
    six.gc(LAST)
    deaf.is_deaf = False
    report = six.gc(LAST)
    assert {f.backend for f in report.freed} == {"c"} and not report.away
    assert len(packs(lab, "a")) == len(packs(lab, "b")) == len(packs(lab, "c"))


def test_a_backend_without_a_vote_is_swept_once_all_that_vote_know(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be left with any one of them."""
    urls = [*lab.urls(*STORES), lab.url("d", role="storage")]
    six = six_versions(lab.init(urls, replicas=4))
    lab.hurry(proposing=True)
    deaf = Deaf(lab, monkeypatch, "c")
    report = six.gc(LAST)
    assert {f.backend for f in report.freed} == {"a", "b"} and report.away.keys() == {"c", "d"}
    assert "c may be the one that is left with it" in report.away["d"]
    deaf.is_deaf = False
    assert {f.backend for f in six.gc(LAST).freed} == {"c", "d"}


def test_records_that_a_backend_needs_for_what_it_knows_stay(
    six: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.hurry(proposing=True)
    deaf = Deaf(lab, monkeypatch, "c")
    before = {p.name for p in lab.objects("c", "meta")}
    six.gc(LAST)
    assert before <= {p.name for p in lab.objects("c", "meta")}
    assert not before <= {p.name for p in lab.objects("a", "meta")}
    deaf.is_deaf = False
    write(six.directory, {"more": noise(90)})
    six.push()
    six.gc(LAST)
    assert not before <= {p.name for p in lab.objects("c", "meta")}


def moved(lab: Lab, w: Workspace) -> Workspace:
    """A fourth backend, to which some packs move; copies are left where they were."""
    for n in range(8):
        write(w.directory, {f"more{n}": noise(200 + n)})
        w.push()
    w.backend_add(lab.url("d"), passphrase=PASSPHRASE)
    return w


def test_surplus_copies_stay_on_a_backend_that_has_not_heard_of_the_trim(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = moved(lab, lab.init(lab.urls(*STORES), replicas=2))
    lab.hurry(proposing=True)
    deaf = Deaf(lab, monkeypatch, "c")
    before = packs(lab, "c")
    report = w.rebalance()
    assert report.version is not None
    assert before.items() <= packs(lab, "c").items()
    assert "has not heard of version" in dict(report.unfreed).get("c", "") or not dict(report.unfreed)
    deaf.is_deaf = False
    again = w.rebalance()
    assert not again.unfreed
    checked = w.check(read_data=True)
    assert not checked.lost and not checked.problems


@pytest.mark.long
def test_a_removed_backend_is_emptied_once_all_that_vote_know(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = moved(lab, lab.init(lab.urls(*STORES), replicas=2))
    w.rebalance()
    lab.hurry(proposing=True)
    deaf = Deaf(lab, monkeypatch, "c")
    deaf.is_deaf = False
    real = rebalance._trim

    def trim(*args: Any) -> Any:
        deaf.is_deaf = True
        return real(*args)

    monkeypatch.setattr(rebalance, "_trim", trim)
    before = packs(lab, "d")
    with pytest.raises(UnreachableError, match=r"nothing was deleted there.*c: it has not heard"):
        w.backend_remove("d", passphrase=PASSPHRASE, wipe=True)
    assert before.items() <= packs(lab, "d").items()
    deaf.is_deaf = False
    done = w.backend_remove("d", passphrase=PASSPHRASE, wipe=True)
    assert done.wiped is not None and done.wiped.left == 0
    assert not lab.objects("d", "packs")
