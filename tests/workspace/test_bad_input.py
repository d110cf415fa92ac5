"""Words of `init`, `clone` and the like that cannot be meant: each is refused with a way out, and nothing is left."""

from __future__ import annotations

import os
from typing import Any

import pytest
from bad_input_kit import says, started
from workspace_kit import CHEAP, PASSPHRASE, Lab, tree_of, write

from metasync.backends.folder import FolderBackend
from metasync.errors import MetaSyncError, NoQuorumError, PassphraseError, RefusedError, UsageError, WorkspaceError
from metasync.events import Event, Notice
from metasync.workspace import Workspace


def test_a_wrong_passphrase_is_said_only_after_all_slots_were_tried(lab: Lab) -> None:
    started(lab)
    lab.init(lab.urls("a", "b", "c"), device="other", name="other", passphrase="another secret")
    with pytest.raises(PassphraseError) as e:
        lab.clone(lab.urls("a", "b", "c"), passphrase="wrong")
    says(e.value, "wrong passphrase", "key slots on a, b, c")
    assert not (lab.root / "desktop" / ".metasync").exists()


def test_the_recovery_phrase_opens_too(lab: Lab) -> None:
    report = Workspace.init(
        lab.root / "laptop", name="docs", backends=lab.urls("a", "b", "c"), passphrase="lost", kdf=CHEAP
    )
    lab.keep(report.workspace).push()
    c = lab.clone(lab.urls("a", "b", "c"), passphrase="  " + report.recovery_phrase.upper())
    assert tree_of(c.directory) == tree_of(report.workspace.directory)


def test_a_name_that_the_passphrase_does_not_open(lab: Lab) -> None:
    started(lab)
    with pytest.raises(WorkspaceError) as e:
        lab.clone(lab.urls("a", "b", "c"), name="dogs")
    says(e.value, "'dogs'", "'docs'")


def test_no_workspace_there(lab: Lab) -> None:
    for n in ("a", "b"):
        lab.store(n).mkdir(parents=True)
    with pytest.raises(WorkspaceError) as e:
        lab.clone(lab.urls("a", "b"))
    says(e.value, "a, b")


def test_a_name_that_is_taken(lab: Lab) -> None:
    started(lab)
    before = sorted(lab.store("a").glob("*/keys/*"))  # what the first push left under way may land later
    with pytest.raises(WorkspaceError) as e:
        lab.init(lab.urls("a", "b", "c"), device="other")
    says(e.value, "'docs'", "clone")
    assert sorted(lab.store("a").glob("*/keys/*")) == before
    lab.init(lab.urls("a", "b", "c"), device="other", passphrase="of somebody else's")  # who cannot know of the first


def test_a_folder_that_is_no_workspace(lab: Lab) -> None:
    with pytest.raises(WorkspaceError) as e:
        Workspace.open(lab.root)
    says(e.value, str(lab.root), "metasync init")


def test_a_workspace_inside_a_workspace_is_refused(lab: Lab) -> None:
    started(lab)
    for make in (lab.init, lab.clone):
        with pytest.raises(WorkspaceError) as e:
            make(lab.urls("x"), device="laptop/d", name="inner")
        says(e.value, "lies in the workspace")


def test_a_folder_beside_the_workspace_is_not_inside_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """`..` leads out of the folder: `-C ../other push` must not push this one."""
    w = started(lab)
    (lab.root / "other").mkdir()
    monkeypatch.chdir(w.directory)
    for path in ("../other", "../not-there", f"{w.directory}/../other"):
        with pytest.raises(WorkspaceError) as e:
            Workspace.open(path)
        says(e.value, "is not in a MetaSync workspace", f"{lab.root}/{path.rpartition('/')[2]} ")
    Workspace.open(f"../{w.directory.name}").close()
    beside = Workspace.clone("../beside", name="docs", backends=lab.urls("a", "b", "c"), passphrase=PASSPHRASE)
    with beside.workspace as other:
        assert other.directory == lab.root / "beside"


def test_a_workspace_around_a_workspace_leaves_it_out(lab: Lab) -> None:
    started(lab, device="outer/inner")
    w = lab.init(lab.urls("x"), device="outer", name="outer")
    write(w.directory, {"mine": b"1"})
    r = w.push()
    assert r.changes.added == (b"mine",)
    assert [s.path for s in r.skipped] == [b"inner"]


def test_a_backend_inside_the_workspace_is_refused(lab: Lab) -> None:
    (lab.root / "laptop").mkdir()
    with pytest.raises(UsageError) as e:
        lab.init([f"file://{lab.root}/laptop/store"])
    says(e.value, "store")
    assert not (lab.root / "laptop" / "store").exists()
    with pytest.raises(UsageError):
        lab.init([f"file://{lab.root}/laptop"])
    w = started(lab)
    with pytest.raises(UsageError):
        w.link("a", f"file://{w.directory}/d")


def test_clone_into_a_folder_with_files(lab: Lab) -> None:
    started(lab)
    write(lab.root / "desktop", {"mine.txt": b"mine"})
    with pytest.raises(WorkspaceError) as e:
        lab.clone(lab.urls("a", "b", "c"))
    says(e.value, "not empty")
    assert os.listdir(lab.root / "desktop") == ["mine.txt"]


def test_one_store_given_twice(lab: Lab) -> None:
    (lab.root / "stores").mkdir()
    (lab.root / "stores/link").symlink_to(lab.root / "stores/a")
    with pytest.raises(UsageError) as e:
        lab.init([lab.url("a"), f"file://{lab.root}/stores/./a?name=b"])
    says(e.value, "a and b are the same store")
    with pytest.raises(UsageError):
        lab.init([lab.url("a"), f"file://{lab.root}/stores/link?name=b"])
    assert not (lab.root / "laptop" / ".metasync").exists()


@pytest.mark.parametrize("when", ["opened", "asked"])
def test_what_to_do_about_refused_credentials(lab: Lab, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """A temporary key that ended, say: to run again when the backends are reachable would not help."""
    w = started(lab)

    def refuse(*_: Any, **__: Any) -> Any:
        raise RefusedError("the server refused the credentials (ExpiredToken)", next_step="Check AWS_SESSION_TOKEN.")

    for name in ("open",) if when == "opened" else ("get", "create", "put", "stat", "list"):
        monkeypatch.setattr(FolderBackend, name, refuse)
    lab.hurry()
    w = lab.reopen(w)
    write(w.directory, {"new": b"1"})
    for act in (w.push, w.pull):
        with pytest.raises(NoQuorumError, match="ExpiredToken") as e:
            act()
        assert e.value.next_step == "Check AWS_SESSION_TOKEN. Then run again."


def test_one_store_under_two_addresses(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names of a server, or a folder by two protocols: their identities tell nothing, what lies there does."""
    (lab.root / "stores/a").mkdir(parents=True)
    (lab.root / "stores/link").symlink_to(lab.root / "stores/a")
    monkeypatch.setattr(FolderBackend, "identity", lambda _: os.urandom(32))
    with pytest.raises(UsageError) as e:
        lab.init([lab.url("a"), lab.url("b"), f"file://{lab.root}/stores/link?name=c"])
    says(e.value, "a and c are the same store")
    assert not (lab.root / "laptop" / ".metasync").exists()
    assert not [path for name in "ab" for path in lab.store(name).rglob("*") if path.is_file()], "all is taken away"


def test_a_store_inside_another(lab: Lab) -> None:
    """Two of one: what takes the outer one takes both. Nothing is made before that is seen."""
    with pytest.raises(UsageError) as e:
        lab.init([lab.url("a"), lab.url("b"), f"file://{lab.root}/stores/a/deeper/c"])
    says(e.value, "the backend c", "lies inside the backend a", "beside it")
    assert not lab.store("a").exists()
    assert not (lab.root / "laptop" / ".metasync").exists()


def test_a_further_store_inside_another_or_around_it(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    (lab.root / "link").symlink_to(lab.store("a"))
    inside, around = f"file://{lab.root}/link/workspaces?name=sub", f"file://{lab.root}/stores?name=all"
    for url, why in ((inside, "sub .* lies inside the backend a "), (around, "[abc] .* lies inside the backend all ")):
        for dry_run in (True, False):
            with pytest.raises(UsageError, match=why):
                laptop.backend_add(url, dry_run=dry_run)
    assert not (lab.store("a") / "workspaces").exists()
    assert laptop.status().version == 0
    laptop.backend_add(f"file://{lab.store('b')}-beside?name=d")


def test_a_store_inside_the_one_whose_place_it_takes(lab: Lab) -> None:
    laptop = lab.init(lab.urls("a", "b", "c"))
    laptop.backend_add(f"file://{lab.store('a')}/deeper?name=d", replaces="a")
    assert laptop.check().meta_problems == ()


@pytest.mark.parametrize("by", ["passphrase", "invitation"])
def test_a_clone_warns_of_stores_inside_each_other(lab: Lab, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set that has them already stays usable."""
    inner = f"file://{lab.root}/stores/a/deeper?name=d"
    monkeypatch.setattr("metasync.members.found.refuse_nested", lambda *_, **__: None)
    laptop = lab.init([*lab.urls("a", "b", "c"), inner])
    events: list[Event] = []
    how: dict[str, Any] = {"name": "docs", "backends": [*lab.urls("a", "b", "c"), inner], "passphrase": PASSPHRASE}
    if by == "invitation":
        how = {"invite": laptop.invite("desktop", PASSPHRASE).code}
    desktop = lab.keep(Workspace.clone(lab.root / "desktop", on_event=events.append, **how).workspace)
    told = [e.text for e in events if isinstance(e, Notice) and e.warning]
    assert told == ["d lies inside a: they count as two, and what takes a takes both"]
    write(desktop.directory, {"new": b"1"})
    assert desktop.push().changes.added == (b"new",)


def test_an_added_backend_warns_of_stores_inside_each_other(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a clone does. The new one is beside them."""
    monkeypatch.setattr("metasync.members.found.refuse_nested", lambda *_, **__: None)
    lab.init([*lab.urls("a", "b", "c"), f"file://{lab.root}/stores/a/deeper?name=d"])
    ran = lab.cli("backend", "add", lab.url("e"))
    assert ran.code == 0
    assert ran.err.count("d lies inside a: they count as two, and what takes a takes both") == 1


def test_more_copies_than_backends(lab: Lab) -> None:
    with pytest.raises(UsageError) as e:
        lab.init(lab.urls("a", "b"), replicas=3)
    says(e.value, "3 copies", "2")


def test_init_with_a_backend_that_fails_leaves_nothing(lab: Lab) -> None:
    lab.store("b").parent.mkdir(parents=True)
    lab.store("b").write_bytes(b"a file, no folder")
    with pytest.raises(MetaSyncError) as e:
        lab.init(lab.urls("a", "b", "c"))
    says(e.value, "b:")
    assert not (lab.root / "laptop" / ".metasync").exists()
    assert not [p for p in lab.store("a").rglob("*") if p.is_file()]


def test_the_expected_fingerprint(lab: Lab) -> None:
    w = started(lab)
    right = w.status().fingerprint
    with pytest.raises(WorkspaceError) as e:
        lab.clone(lab.urls("a", "b", "c"), expect="1-0000000000")
    says(e.value, right)
    assert not (lab.root / "desktop" / ".metasync").exists()
    lab.clone(lab.urls("a", "b", "c"), expect=right)
