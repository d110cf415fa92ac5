"""Changes of the keys beside everything else: lying backends, stores without an atomic create, changes of backends."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from racing_kit import URLS, at_once, crowd
from rotation_kit import NEW, agree_on_files, away, closed_logs, meanwhile, revoke, rotate
from test_key_copies import folder_of, names_in, push, ring_of
from workspace_kit import Lab, tree_of, wipe, write

from metasync.consensus import Group
from metasync.errors import NoQuorumError, RevokedError
from metasync.session import agreement
from metasync.workspace import Workspace


def base_of(w: Workspace) -> Any:
    with w._session("before") as s:
        return agreement.ask_newest(s)


# --- a backend that lies


def four(lab: Lab, *, byzantine: bool = True) -> tuple[Workspace, Workspace, Workspace]:
    """Three devices on four backends, of which one may lie."""
    urls = lab.urls("a", "b", "c", "d")
    w = lab.init(urls, byzantine=byzantine)
    with w._session("x") as s:
        assert (s.config.mode, s.config.f, s.config.quorum) == ("bft" if byzantine else "crash", int(byzantine), 3)
    write(w.directory, {"notes": b"one\n"})
    w.push("first")
    d, p = lab.clone(urls), lab.clone(urls, device="phone")
    w.pull()
    return w, d, p


def keep(lab: Lab, backend: str) -> Callable[[], None]:
    """-> puts a store back as it is now: the folder stays the same one."""
    kept = lab.root / f"{backend} before"
    shutil.copytree(lab.store(backend), kept)

    def put_back() -> None:
        wipe(lab.store(backend))
        shutil.copytree(kept, lab.store(backend), dirs_exist_ok=True)

    return put_back


@pytest.mark.parametrize("how", ["no ring", "another ring", "the past", "no log"])
@pytest.mark.long
def test_one_that_lies_hides_no_revocation(lab: Lab, how: str) -> None:
    w, d, p = four(lab)
    put_back = keep(lab, "a")
    before = {x for x in lab.store("a").rglob("px/*/*") if x.is_file()}
    base = base_of(w)
    report = revoke(w, "phone", new_passphrase=NEW)
    assert report.complete
    if how == "the past":
        put_back()
    elif how == "no log":
        for path in {x for x in lab.store("a").rglob("px/*/*") if x.is_file()} - before:
            path.unlink()
    elif how == "no ring":
        ring_of(lab, "a", 2).unlink()
    else:
        shutil.copy(ring_of(lab, "a", 1), ring_of(lab, "a", 2))
    d, p = lab.reopen(d), lab.reopen(p)
    d.pull()
    assert d.device_list().epoch == 2
    write(p.directory, {"mine": b"x"})
    with pytest.raises(RevokedError):
        p.push()
    write(d.directory, {"after": b"1"})
    agree_on_files(d, lab.reopen(w))
    assert closed_logs(d, base) >= 3
    late = lab.clone(lab.urls("a", "b", "c", "d"), device="late", passphrase=NEW)
    assert tree_of(late.directory) == tree_of(d.directory)


@pytest.mark.parametrize("byzantine", [True, False])
@pytest.mark.long
def test_a_revocation_is_not_complete_on_a_quorum_less_one(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, byzantine: bool
) -> None:
    """Of four, three must be closed. Two went away after the decision."""
    w, d, _ = four(lab, byzantine=byzantine)
    base = base_of(w)
    real = Group.fence

    def fence(self: Group, base: Any, decided: Any, **_: Any) -> Any:
        for n in "cd":
            if lab.store(n).is_dir():  # asked for twice: by who follows, and by who rotates
                lab.store(n).rename(lab.store(f"{n} is away"))
        return real(self, base, decided, deadline_s=1.0)

    with monkeypatch.context() as m:
        m.setattr(Group, "fence", fence)
        assert not revoke(w, "phone").complete
    for n in "cd":
        lab.store(f"{n} is away").rename(lab.store(n))
    lab.reopen(w).pull()
    assert closed_logs(d, base) >= 3


def test_following_asks_the_others_when_one_that_lies_gives_the_ring(lab: Lab) -> None:
    """Whatever a backend calls the ring, what the decided state names is the ring."""
    w, d, _ = four(lab)
    rotate(w)
    for n in "abc":
        ring_of(lab, n, 2).write_bytes(ring_of(lab, "a", 1).read_bytes())
    d.pull()
    push(d, "x")
    assert d.device_list().epoch == 2


def test_a_device_closes_no_version_that_it_had_no_part_in(lab: Lab) -> None:
    """What it would write there everybody else takes for VOID; and so it must not count it itself."""
    urls = lab.urls("a", "b", "c")
    w = lab.init(urls)
    base = base_of(w)
    rotate(w)
    decided = base_of(w)
    late = lab.clone(urls, device="late")
    before = len(lab.objects("a", "px"))
    with late._session("x") as s, pytest.raises(NoQuorumError, match="older than this device"):
        s.runtime.run(s.group.fence(base, decided, deadline_s=1.0))
    assert len(lab.objects("a", "px")) == before


# --- stores without an atomic create


@pytest.mark.long
def test_a_revocation_on_blocks(racing: Lab) -> None:
    first, second, third = crowd(racing, 3)
    base = base_of(first)
    report = revoke(first, "d2", new_passphrase=NEW)
    assert report.complete
    assert closed_logs(first, base) >= 2
    write(third.directory, {"late": b"x"})
    with pytest.raises(RevokedError):
        third.push()
    write(second.directory, {"of second": b"2"})
    agree_on_files(second, first)
    late = racing.clone(racing.urls(*URLS), device="late", passphrase=NEW)
    push(first, "lets it in")
    write(late.directory, {"of late": b"l"})
    agree_on_files(late, first, second)


def test_who_follows_closes_blocks_too(racing: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, _ = crowd(racing, 3)
    base = base_of(first)

    def dies(*_: Any, **__: Any) -> Any:
        raise NoQuorumError("died")

    with monkeypatch.context() as m:
        m.setattr(Group, "fence", dies)
        assert not revoke(first, "d2").complete
    second.pull()
    assert closed_logs(first, base) >= 2
    with first._session("x") as s:
        instance = s.runtime.run(s.group.enter(base))
        assert sum(a.form == "block" for a in instance.acceptors.values()) == 2


@pytest.mark.long
def test_pushes_on_blocks_while_the_keys_change(racing: Lab) -> None:
    crew = crowd(racing, 3)
    for i, w in enumerate(crew):
        write(w.directory, {f"by{i}": b"%d" % i})
    ends = at_once(lambda: rotate(crew[0]), crew[1].push, crew[2].push)
    assert ends == [None] * 3
    agree_on_files(*crew)
    assert {f"by{i}".encode() for i in range(3)} <= tree_of(crew[0].directory).keys()
    assert crew[2].device_list().epoch == 2


# --- pushes of others


@pytest.mark.long
def test_three_push_while_a_fourth_revokes_and_rotates(lab: Lab) -> None:
    urls = lab.urls("a", "b", "c")
    w = lab.init(urls)
    crew = [lab.clone(urls, device=f"d{i}") for i in range(3)]
    phone = lab.clone(urls, device="phone")
    for number in range(3):
        for i, x in enumerate(crew):
            write(x.directory, {f"by{i}/{number}": b"%d" % number * 5000})
        change: Callable[[], Any] = (lambda: revoke(w, "phone")) if number == 0 else (lambda: rotate(w))
        assert at_once(change, *(x.push for x in crew)) == [None] * 4
    agree_on_files(w, *crew)
    assert len([p for p, node in tree_of(w.directory).items() if node.kind == "file"]) == 9
    assert w.device_list().epoch == 4
    assert names_in(lab, "a", "ring") == names_in(lab, "b", "ring") == names_in(lab, "c", "ring")
    assert len(names_in(lab, "a", "ring")) == 4
    with pytest.raises(RevokedError):
        phone.push()
    late = lab.clone(urls, device="late")
    assert tree_of(late.directory) == tree_of(w.directory)


# --- changes of the backends


def pair(lab: Lab) -> tuple[Workspace, Workspace]:
    urls = lab.urls("a", "b", "c")
    return lab.init(urls), lab.clone(urls)


def works(lab: Lab, w: Workspace, d: Workspace, *names: str, passphrase: str = NEW) -> None:
    """Both devices go on, keys and slots are on all backends, and any of them are enough to clone."""
    for x in (w, d):
        with x._session("ways") as s:
            unlinked = {e.name for e in agreement.newest(s).config.backends} - set(s.names.values())
        for n in sorted(unlinked):
            x.link(n, lab.url(n))
    write(w.directory, {"of w": b"w"})
    write(d.directory, {"of d": b"d"})
    agree_on_files(w, d)
    assert not [p.problem for x in (w, d) for p in x.check().meta_problems if "key" in p.problem]
    assert {e.name for e in w.backends()} == set(names)
    for n in names:
        assert names_in(lab, n) == names_in(lab, names[0])
        assert len(names_in(lab, n, "slot")) == 2
    late = lab.clone(lab.urls(*names[::-1]), device="late", passphrase=passphrase)
    write(late.directory, {"of late": b"l"})
    agree_on_files(late, w, d)


@pytest.mark.long
def test_a_backend_is_added_while_the_keys_change(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, d = pair(lab)
    with meanwhile(monkeypatch, "laptop", lambda: d.backend_add(lab.url("e"))):
        report = rotate(w, new_passphrase=NEW)
    assert (report.epoch, report.complete) == (2, True)
    assert [n for n, _ in report.missing] == ["e"]  # this device has no way to it
    assert len(names_in(lab, "e", "ring")) == 1
    push(d, "brings the ring to e")
    assert len(names_in(lab, "e", "ring")) == 2
    works(lab, w, d, "a", "b", "c", "e")


@pytest.mark.long
def test_the_keys_change_while_a_backend_is_added(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, d = pair(lab)
    with meanwhile(monkeypatch, "desktop", lambda: rotate(w, new_passphrase=NEW)):
        assert d.backend_add(lab.url("e")).version is not None
    works(lab, w, d, "a", "b", "c", "e")


@pytest.mark.long
def test_a_backend_is_removed_while_the_keys_change(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, d = pair(lab)
    d.backend_add(lab.url("e"))
    with meanwhile(monkeypatch, "laptop", lambda: d.backend_remove("c")):
        assert rotate(w, new_passphrase=NEW).epoch == 2
    works(lab, w, d, "a", "b", "e")


@pytest.mark.long
def test_the_keys_change_while_a_backend_is_removed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, d = pair(lab)
    with meanwhile(monkeypatch, "desktop", lambda: rotate(w, new_passphrase=NEW)):
        assert d.backend_remove("c").version is not None
    works(lab, w, d, "a", "b")


@pytest.mark.long
def test_both_at_once_in_threads(lab: Lab) -> None:
    w, d = pair(lab)
    ends = at_once(lambda: rotate(w, new_passphrase=NEW), lambda: d.backend_add(lab.url("e")))
    assert ends == [None, None]
    works(lab, w, d, "a", "b", "c", "e")


def test_one_who_adds_is_revoked_meanwhile(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, d = pair(lab)
    with (
        meanwhile(monkeypatch, "desktop", lambda: revoke(w, "desktop", new_passphrase=NEW)),
        pytest.raises(RevokedError, match=r"desktop.*revoked"),
    ):
        d.backend_add(lab.url("e"))
    assert {e.name for e in w.backends()} == {"a", "b", "c"}
    push(w, "on")


@pytest.mark.long
def test_a_rotation_between_a_change_of_backends_and_its_end(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who changed the backends died before the fence; the one who rotates makes it first."""
    w, d = pair(lab)

    def dies(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(Group, "fence", dies)
        with pytest.raises(KeyboardInterrupt):
            d.backend_add(lab.url("e"))
    assert rotate(w, new_passphrase=NEW).complete
    with w._session("x") as s:
        state = s.newest_state()
        assert s.config_of(state).named("e") is not None
    works(lab, w, lab.reopen(d), "a", "b", "c", "e")


@pytest.mark.long
def test_one_removed_while_away_and_another_added_by_one_who_slept(lab: Lab) -> None:
    """It missed the rotation too: it follows, and what it brings to the new one is of today."""
    w, d = pair(lab)
    with away(lab, "c"):
        rotate(w, new_passphrase=NEW)
        d = lab.reopen(d)
        d.backend_remove("c")
        d.backend_add(lab.url("e"))
    works(lab, w, d, "a", "b", "e")
    assert isinstance(folder_of(lab, "c"), Path)
