"""Names of versions, the agreed policy, and a history that has gaps: what each command says of it."""

from __future__ import annotations

import pytest
from workspace_kit import Lab, write

from metasync.errors import UsageError
from metasync.history import tags
from metasync.objects.model import version_of
from metasync.store.retained import Retained
from metasync.workspace import Workspace


@pytest.fixture
def six(lab: Lab) -> Workspace:
    """Versions 1 to 6; file N came with version N, and `f` changed in each."""
    w = lab.init(lab.urls("a", kind="memory"))
    for n in range(1, 7):
        write(w.directory, {f"file{n}": b"of %d" % n, "f": b"state %d\n" % n})
        w.push(f"push {n}")
    return w


def drop(w: Workspace, *keep: int) -> None:
    """Has all versions but these dropped, as far as the list of them says; no pack goes."""
    with w._operation("test") as s:

        def fewer(retained: Retained) -> Retained:
            history = tags.History(s)
            pushes = [(version_of(m.snapshot), m.id) for m in history.line()]
            return retained.without(sorted(pushes), keep)

        tags.change(s, fewer, dry_run=False)


# ---- names


def test_a_name_is_known_to_all_devices(six: Workspace, lab: Lab) -> None:
    assert six.tag("3", "draft").version == 7
    six.tag("latest", "a/b")
    other = lab.clone(lab.urls("a", kind="memory"))
    assert [(t.name, t.number) for t in other.tags().tags] == [("a/b", 6), ("draft", 3)]
    assert other.untag(["draft"]).version == 10, "the clone was let in as version 9"
    assert [t.name for t in six.tags().tags] == ["a/b"]


def test_a_name_is_given_once(six: Workspace) -> None:
    six.tag("3", "draft")
    assert six.tag("3", "draft").version is None
    with pytest.raises(UsageError, match="version 3 is called 'draft' already"):
        six.tag("4", "draft")


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["12", "two words", "latest", ""])
def test_what_is_no_name(six: Workspace, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name"):
        six.tag("3", name)


def test_a_name_stands_for_its_version(six: Workspace, lab: Lab) -> None:
    """Wherever a version is taken; what no version is called is told as what names none."""
    six.tag("3", "draft")
    assert six.read("f", "draft") == b"state 3\n"
    assert six.read("f", "draft~1") == b"state 2\n"
    assert six.diff("draft", "4").a == "version 3"
    assert six.show("draft").version.version == 3
    six.restore("draft", to=lab.root / "out")
    assert (lab.root / "out" / "f").read_bytes() == b"state 3\n"
    assert six.tag("draft", "again").tags[0].number == 3
    with pytest.raises(UsageError, match="'drafts' names no version"):
        six.diff("drafts")
    six.untag(["draft"])
    with pytest.raises(UsageError, match="'draft' names no version"):
        six.read("f", "draft")


def test_a_path_comes_before_a_word_that_no_version_is_called(six: Workspace, lab: Lab) -> None:
    assert lab.cli("ls", "file1").out.split() == ["file1"]
    assert "there is no file1x" in lab.cli("ls", "file1x").err or "file1x" in lab.cli("ls", "file1x").err


def test_what_is_kept_is_among_the_settings_without_asking(six: Workspace, lab: Lab) -> None:
    six.keep("last=3", change=True)
    lab.hurry()
    for store in lab.faults.values():
        store.down = True
    assert "keep = last=3" in lab.cli("config", "list").out
    assert lab.cli("config", "list", "--json").json["settings"]["keep"] == "last=3"


def test_what_cannot_have_a_name(six: Workspace) -> None:
    six.device_rename("laptop", "other")
    with pytest.raises(UsageError, match="there is no version 99"):
        six.tag("99", "draft")
    with pytest.raises(UsageError, match="no version is called 'draft'"):
        six.untag(["draft"])
    drop(six, 2)
    with pytest.raises(UsageError, match="version 3 is no longer kept"):
        six.tag("3", "draft")


def test_a_dry_run_changes_nothing(six: Workspace) -> None:
    assert six.tag("3", "draft", dry_run=True).version is None
    assert six.tags().tags == ()


def test_a_push_keeps_names_and_policy(six: Workspace) -> None:
    six.tag("3", "draft")
    six.keep("daily=7 last=2", change=True)
    write(six.directory, {"more": b"x"})
    six.push()
    assert [t.name for t in six.tags().tags] == ["draft"]
    assert six.keep().keep == "last=2 daily=7"
    assert six.keep(None, change=True).keep is None
    assert six.keep().keep is None
    with pytest.raises(UsageError, match="minutely"):
        six.keep("minutely=3", change=True)


def test_two_devices_give_names_at_once(six: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who loses the version makes his change anew, on top of that of the other."""
    other = lab.clone(lab.urls("a", kind="memory"))
    real, went = tags.agreement.ask_newest, []

    def meanwhile(s: tags.Session, **options: object) -> object:
        state = real(s, **options)  # type: ignore[arg-type]
        if not went and s.directory == other.directory:
            went.append(1)
            six.tag("2", "first")
        return state

    monkeypatch.setattr(tags.agreement, "ask_newest", meanwhile)
    other.tag("3", "second")
    assert went
    assert [(t.name, t.number) for t in six.tags().tags] == [("first", 2), ("second", 3)]


def test_log_of_everything_tells_of_names_and_policy(six: Workspace) -> None:
    six.tag("3", "draft")
    six.keep("last=2", change=True)
    drop(six, 3, 5)
    told = {item.version: item.events for item in six.log(everything=True)}
    assert told[7] == ("version 3 is called draft now",)
    assert told[8] == ("what is kept: last=2",)
    assert told[9] == ("3 versions are no longer kept",)


# ---- gaps


def test_log_leaves_out_what_is_no_longer_kept_and_says_so(six: Workspace, lab: Lab) -> None:
    drop(six, 2, 5)
    assert [(i.version, i.dropped, i.others_after) for i in six.log()] == [
        (6, None, 1), (5, (3, 4), 0), (2, None, 0),
    ]  # fmt: skip
    assert six.log()[-1].begins == "History begins with version 2: older ones are no longer kept."
    out = lab.cli("log").out
    assert "versions 3 and 4  no longer kept" in out
    assert [i.version for i in six.log("file3")] == [5], "it is there since the version that is kept"


def test_gaps_are_read_from_other_devices(six: Workspace, lab: Lab) -> None:
    drop(six, 1, 4)
    other = lab.clone(lab.urls("a", kind="memory"))
    assert [i.version for i in other.log()] == [6, 4, 1]
    other.restore("latest~2", to=lab.root / "out")
    assert sorted(p.name for p in (lab.root / "out").iterdir()) == ["f", "file1"]


@pytest.mark.few(2)
@pytest.mark.parametrize("words", [["restore", "3"], ["diff", "3", "5"], ["show", "3"], ["cat", "3", "f"],
                                   ["ls", "3"], ["restore", "3", "f", "--to", "elsewhere"]])  # fmt: skip
def test_commands_say_that_a_version_is_no_longer_kept(six: Workspace, lab: Lab, words: list[str]) -> None:
    drop(six, 2, 5)
    ran = lab.cli(*words)
    assert ran.code == 2
    assert "version 3 is no longer kept" in ran.err
    assert "version 2 and version 5 are kept" in ran.err


def test_show_compares_with_the_version_that_is_kept(six: Workspace) -> None:
    drop(six, 2, 5)
    shown = six.show("5")
    assert shown.diff is not None
    assert shown.diff.a == "version 2"
    assert [c.path for c in shown.diff.changes] == [b"f", b"file3", b"file4", b"file5"]
    with pytest.raises(UsageError, match="the version before it is no longer kept"):
        six.show("2")


def test_undelete_takes_the_newest_version_that_is_kept(six: Workspace) -> None:
    (six.directory / "file1").unlink()
    six.push()
    drop(six, 2)
    six.undelete("file1")
    assert (six.directory / "file1").read_bytes() == b"of 1"
    with pytest.raises(UsageError, match="no version that is kept"):
        six.undelete("never")


def test_times_name_versions_that_are_kept(six: Workspace) -> None:
    drop(six, 2)
    shown = six.show("@now").version.version
    assert shown == 6
