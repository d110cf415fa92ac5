"""A collection where backends are away or full, and where versions or the index cannot be relied on."""

from __future__ import annotations

import pytest
from attack_kit import insider
from collect_kit import LAST, STORES, all_is_there, named, noise, nothing_else_is_there, packs
from workspace_kit import Lab, write

from metasync.consensus import JOURNAL_KEY, NOTHING, Change, Decided, State
from metasync.errors import DamagedError, FullError
from metasync.objects.model import ObjectKind
from metasync.session import agreement
from metasync.session.session import Session
from metasync.store import retention
from metasync.testing.quota import Quota
from metasync.transfer.upload import Upload
from metasync.workspace import Workspace


def test_a_backend_that_is_away_gives_its_space_when_it_is_back(six: Workspace, lab: Lab) -> None:
    lab.hurry(proposing=True)
    w = lab.reopen(six)
    lab.faults["c"].down = True
    report = w.gc(LAST)
    assert set(report.away) == {"c"}
    assert "not all may be gone on c" in report.notes[-1]
    lab.faults["c"].down = False
    lab.hurry(30.0, proposing=True)  # all answer again, however busy the machine is
    w = lab.reopen(w)
    assert {f.backend for f in w.gc().freed} == {"c"}
    nothing_else_is_there(w, lab)


def to_pack_anew(lab: Lab) -> Workspace:
    """A workspace with a pack that nothing needs, and one of which a twentieth is needed."""
    w = lab.init(lab.urls(*STORES))
    write(w.directory, {"whole": noise(500, 200_000)})
    w.push()
    write(w.directory, {f"f{n}": noise(n) for n in range(20)})
    (w.directory / "whole").unlink()
    w.push()
    for n in range(1, 20):
        (w.directory / f"f{n}").unlink()
    w.push(force=True)
    return w


def test_without_room_to_pack_anew_what_is_free_to_go_goes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = to_pack_anew(lab)
    real, tried = Upload.add, []

    def full(self: Upload, kind: ObjectKind, object_id: bytes, data: bytes) -> None:
        tried.append(1)
        raise FullError("a: no room for a pack of 20 KB")

    monkeypatch.setattr(Upload, "add", full)
    report = w.gc(LAST)
    assert tried
    assert sum(f.bytes for f in report.freed) > 2 * 200_000
    assert "could not be packed anew: a: no room" in report.notes[0]
    all_is_there_but_unused(w)
    monkeypatch.setattr(Upload, "add", real)
    assert w.gc(LAST).packed_anew
    all_is_there(w)
    nothing_else_is_there(w, lab)


def test_two_fences_of_one_run_are_two_changes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was free to go made room, so the rest is packed anew: who asks for the first must not be told the second."""
    w = to_pack_anew(lab)
    real, fences, propose = Upload.add, list[bytes](), agreement.propose

    def full(self: Upload, kind: ObjectKind, object_id: bytes, data: bytes) -> None:
        if not fences:
            raise FullError("a: no room for a pack of 20 KB")
        real(self, kind, object_id, data)

    def proposing(s: Session, base: State, change: Change) -> Decided:
        if change.index is not None:
            fences.append(change.op_id)
        return propose(s, base, change)

    monkeypatch.setattr(Upload, "add", full)
    monkeypatch.setattr(agreement, "propose", proposing)
    assert w.gc(LAST).packed_anew
    assert len(fences) == len({*fences}) == 2
    all_is_there(w)


def all_is_there_but_unused(w: Workspace) -> None:
    report = w.check(read_data=True)
    assert not report.problems
    w.restore("latest", to=w.directory.parent / "all")


def test_packs_with_too_few_copies_replace_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for one copy of what is packed anew, where two are promised: the old packs, which have two, stay."""
    w = lab.init(lab.urls("a", "b"))
    write(w.directory, {f"f{n}": noise(n, 100_000) for n in range(20)})
    w.push()
    for n in range(8, 20):
        (w.directory / f"f{n}").unlink()
    w.push(force=True)
    w.close()
    lab.quotas["b"] = Quota(sum(p.stat().st_size for p in lab.store("b").rglob("*") if p.is_file()) + 1_000)
    lab.faults.pop("b")
    again = lab.keep(Workspace.open(w.directory))
    report = again.gc(LAST)
    assert "too few backends have room" in " ".join(report.notes) or "could not be packed anew" in " ".join(
        report.notes
    )
    for name in ("a", "b"):
        assert {k.split("/", 1)[1] for k in packs(lab, name)} >= {f"{g}/{n.hex()}" for g, n in named(again)}


def test_a_version_that_cannot_be_read_stops_it(six: Workspace, lab: Lab) -> None:
    """What it needs is not known: nothing goes, until it is given up."""
    with insider(six) as m:
        m.commit(b"\5" * 32)
    before = packs(lab)
    six = lab.reopen(six)
    with pytest.raises(DamagedError):
        six.gc(retention.parse("last=2"))
    assert packs(lab).items() >= before.items()


def test_a_version_that_needs_contents_that_never_were_stops_nothing(six: Workspace, lab: Lab) -> None:
    """An insider names contents that nobody has: what goes is read first, and goes."""
    with insider(six) as m:
        m.commit(m.tree({b"hole": m.file(b"here")._replace(content=b"\6" * 32)}))
    report = six.gc(LAST)
    assert report.missing == 1
    assert "1 object that a version needs is in no pack" in report.notes[0]
    nothing_else_is_there(six, lab)


def test_an_index_that_lacks_what_is_kept_is_not_swept_by(six: Workspace, two: Workspace, lab: Lab) -> None:
    """An insider has a version agreed that fences all and names nothing: honest collectors do not finish that."""
    with six._work.begun("test") as s:
        state = agreement.newest(s).state
        for change in (Change(s.entropy(16), gen=1), Change(s.entropy(16), index=NOTHING, min_gen=1)):
            state = agreement.propose(s, state, change).state
        s.db.set(JOURNAL_KEY, None)
    before = packs(lab)
    for policy in (LAST, None):
        with pytest.raises(DamagedError):
            two.gc(policy)
    assert packs(lab) == before
