"""Commands in a folder that the daemon keeps: they work through it, and print what they print without it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_kit import Fleet, WorkingKeeper, fleet, listening, problem
from workspace_kit import Lab, run_cli, run_process, write

from metasync import __version__
from metasync.errors import GuardError
from metasync.service import client, desk
from metasync.service.wire import sockets
from metasync.terminal import by_daemon


@pytest.fixture
def kept(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """The workspace `laptop`, with the daemon listening and keeping it."""
    lab.init(lab.urls("a", "b", "c")).close()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(lab.root / "run"))
    monkeypatch.setenv("METASYNC_DAEMON", "on")
    path = sockets.socket_path()
    assert path is not None
    with fleet(lab.root, kind=WorkingKeeper) as made, listening(made, path):
        made.supervisor.add(lab.root / "laptop")
        made.keeper("laptop")
        yield made


def without_varying(text: str) -> str:
    text = re.sub(r"[0-9a-f]{8,64}", "ID", text)
    return re.sub(
        r"[\d.]+ (B|KiB|s)\b",
        "N",
        re.sub(r'("(bytes_stored|seconds|requests|up_bytes|down_bytes)": )[\d.]+', r"\1N", text),
    )


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_push_through_the_daemon_prints_what_it_prints_without(
    lab: Lab, kept: Fleet, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    folder = lab.root / "laptop"
    write(folder, {"a.txt": b"a" * 100, "b\n.txt": b"b"})
    keeper = kept.keepers["laptop"]
    assert isinstance(keeper, WorkingKeeper)
    through = lab.cli("push", "-m", "first", *words)
    assert keeper.called == 1
    monkeypatch.setenv("METASYNC_DAEMON", "off")
    write(folder, {"c.txt": b"a" * 100, "d\n.txt": b"b"})
    alone = lab.cli("push", "-m", "first", *words)
    assert keeper.called == 1
    assert through.code == alone.code == 0
    renamed = alone.out.replace("c.txt", "a.txt").replace("d\\", "b\\").replace("d\\n", "b\\n")
    same = without_varying(renamed).replace("version 2", "version 1").replace('"version": 2', '"version": 1')
    assert without_varying(through.out) == same


def test_in_json_a_command_says_what_the_daemon_moved_for_it(lab: Lab, kept: Fleet) -> None:
    write(lab.root / "laptop", {"a": b"a" * 20_000})
    went = run_process("push", "--json", cwd=lab.root / "laptop").json["travelled"]
    keeper = kept.keepers["laptop"]
    assert isinstance(keeper, WorkingKeeper) and keeper.called == 1
    assert went["requests"] >= 2 + 3 + 3, "packs, promises and votes"
    assert went["up_bytes"] >= 2 * 1024
    refused = run_process("push", "--json", "--durability", "9", cwd=lab.root / "laptop")
    assert refused.code == 2
    assert set(refused.json["travelled"]) == {"requests", "up_bytes", "down_bytes"}


def test_pull_and_sync_go_through_it_as_well(lab: Lab, kept: Fleet) -> None:
    desk_folder = lab.clone(lab.urls("a", "b", "c"), device="desktop")
    write(desk_folder.directory, {"from-desk": b"x"})
    desk_folder.push()
    pulled = lab.cli("pull", "--json")
    assert (pulled.code, pulled.json["changes"]["added"]) == (0, ["from-desk"])
    write(lab.root / "laptop", {"from-laptop": b"y"})
    both = lab.cli("sync", "--json")
    assert (both.code, both.json["push"]["changes"]["added"]) == (0, ["from-laptop"])
    dry = lab.cli("push", "--dry-run")
    assert dry.out.startswith("Would push 0 added")
    keeper = kept.keepers["laptop"]
    assert isinstance(keeper, WorkingKeeper)
    assert keeper.called == 3


def test_an_error_and_its_exit_code_are_the_same(lab: Lab, kept: Fleet) -> None:
    write(lab.root / "laptop", {f"f{n}": b"x" for n in range(3)})
    assert lab.cli("push").code == 0
    for n in range(3):
        (lab.root / "laptop" / f"f{n}").unlink()
    refused = lab.cli("push", "--json")
    assert (refused.code, refused.json["error"]["kind"]) == (1, GuardError.__name__)
    assert "--force" in refused.json["error"]["next_step"]
    assert lab.cli("push", "--force").code == 0
    for name in "abc":
        lab.faults[name].down = True
    lab.hurry()
    assert lab.cli("pull").code == 5


def test_with_now_and_where_it_cannot_serve_the_command_works_by_itself(
    lab: Lab, kept: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = kept.keepers["laptop"]
    assert isinstance(keeper, WorkingKeeper)
    write(lab.root / "laptop", {"a": b"x"})
    assert lab.cli("push", "--now").code == 0
    monkeypatch.setattr(desk, "__version__", "0.0.1")
    write(lab.root / "laptop", {"b": b"x"})
    ran = lab.cli("push")
    assert ran.code == 0
    assert f"warning: the daemon runs version 0.0.1, this command {__version__}; going on without it" in ran.err
    assert keeper.called == 0


def test_another_folder_is_not_the_daemons(lab: Lab, kept: Fleet) -> None:
    other = lab.init([lab.url("d")], device="other", name="other")
    write(other.directory, {"a": b"x"})
    other.close()
    assert lab.cli("push", cwd="other").code == 0
    keeper = kept.keepers["laptop"]
    assert isinstance(keeper, WorkingKeeper)
    assert keeper.called == 0
    assert lab.cli("status", "--json", cwd="other").json["daemon"] is None


def test_a_folder_is_found_by_another_of_its_names_and_from_below(lab: Lab, kept: Fleet) -> None:
    (lab.root / "link").symlink_to(lab.root / "laptop")
    write(lab.root / "laptop", {"below/a": b"x"})
    assert lab.cli("push", cwd="link/below").code == 0
    keeper = kept.keepers["laptop"]
    assert isinstance(keeper, WorkingKeeper)
    assert keeper.called == 1


def test_status_says_what_the_daemon_does_and_what_is_wrong(lab: Lab, kept: Fleet) -> None:
    assert "The daemon keeps this folder: in step with version 0 since" in lab.cli("status").out
    keeper = kept.keepers["laptop"]
    keeper.become("waiting", why="files that are still written", changed=3, changed_bytes=2048)
    out = lab.cli("status").out
    assert "waiting for files that are still written since" in out
    assert "; 3 changes (about 2.0 KiB) to push." in out
    keeper.become("stuck", problems=(problem("guard:push", "guard", text="most files would go", next_step="allow it"),))
    ran = lab.cli("status")
    assert "Most files would go, since" in ran.out
    assert "Next: allow it" in ran.out
    told = lab.cli("status", "--json").json["daemon"]
    assert (told["doing"], told["problems"][0]["key"]) == ("stuck", "guard:push")


def test_daemon_status_lists_folder_by_folder(lab: Lab, kept: Fleet) -> None:
    kept.keepers["laptop"].become("in step", version=7)
    ran = run_cli("daemon", "status")
    assert ran.code == 0
    assert f"laptop  {lab.root}/laptop" in ran.out
    assert "In step with version 7" in ran.out
    kept.keepers["laptop"].become("stuck", problems=(problem(blocks=True),))
    assert run_cli("daemon", "status", "--json").code == 3


def test_pause_and_resume(lab: Lab, kept: Fleet) -> None:
    assert "Paused until it is resumed" in run_cli("daemon", "pause").out
    paused = run_cli("daemon", "pause", "--json").json
    assert paused["workspaces"][0]["paused_until_s"] == "inf"
    assert "In step" in run_cli("daemon", "resume").out
    assert run_cli("daemon", "pause", "soon").code == 2


def test_add_and_remove_with_a_daemon_and_without(
    lab: Lab, kept: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lab.init([lab.url("d")], device="other", name="other").close()
    assert "keeps" in run_cli("daemon", "add", str(lab.root / "other")).out
    assert kept.keeper("other").is_started
    assert run_cli("daemon", "add", str(tmp_path)).code == 1
    with client.connected() as daemon:
        assert daemon is not None
        assert [w.name for w in daemon.status().workspaces] == ["laptop", "other"]
        daemon.remove(lab.root / "other")
        assert [w.name for w in daemon.status().workspaces] == ["laptop"]
    monkeypatch.setenv("METASYNC_DAEMON", "off")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert "when the daemon runs" in run_cli("daemon", "add", str(lab.root / "other")).out
    (lab.root / "other").rename(lab.root / "away")  # a drive that is not mounted
    removed = run_cli("daemon", "remove", str(lab.root / "other"), "--json")
    assert (removed.code, removed.json["is_running"]) == (0, False)
    assert run_cli("daemon", "remove", str(lab.root / "other")).code == 2
    assert json.loads((tmp_path / "state" / "metasync" / "daemon" / "workspaces.json").read_text())["workspaces"] == []


def test_without_a_daemon_it_says_how_to_start_one(lab: Lab) -> None:
    for word in ("status", "pause", "resume"):
        ran = run_cli("daemon", word)
        assert ran.code == 1
        assert "metasync daemon start" in ran.err


def test_a_folder_that_it_keeps_is_made_no_new_device_until_it_lets_go(lab: Lab, kept: Fleet) -> None:
    folder, words = lab.root / "laptop", ("clone", "--merge", ".", "--name", "docs", *lab.words("a", "b", "c"))
    state = folder / ".metasync"
    write(folder, {"mine": b"never pushed"})
    key = (state / "device.key").read_bytes()
    (state / "state.db").unlink()
    refused = lab.cli(*words, "--json")
    assert (refused.code, refused.json["error"]["kind"]) == (1, "WorkspaceError")
    assert "the daemon keeps" in refused.json["error"]["message"]
    assert f"metasync daemon remove {folder}" in refused.json["error"]["next_step"]
    assert (state / "device.key").read_bytes() == key
    assert not (state / "before").exists()
    assert lab.cli("clone", "--dry-run", *words[1:]).code == 0, "what changes nothing is not refused"
    with client.connected() as daemon:  # as `metasync daemon remove` does; the fleet's list is not the user's
        assert daemon is not None
        daemon.remove(folder)
    assert lab.cli(*words).code == 0
    assert (state / "device.key").read_bytes() != key
    assert lab.cli("push").code == 0
    assert lab.cli("clone", "../second", "--name", "docs", *lab.words("a", "b", "c")).code == 0
    assert (lab.root / "second" / "mine").read_bytes() == b"never pushed"


def test_after_a_command_that_may_mend_what_it_waits_with_the_daemon_goes_on_at_once(lab: Lab, kept: Fleet) -> None:
    """It waited for the end of its pause: up to five minutes for a backend, an hour for what needs a hand."""
    keeper = kept.keepers["laptop"]
    url = lab.urls("c")[0]
    assert lab.cli("backend", "link", "c", url).code == 0
    assert keeper.asked == [], "it waits with nothing"
    keeper.become("waiting", problems=(problem("quorum", "quorum", blocks=True),))
    assert lab.cli("status").code == 0
    assert keeper.asked == [], "a look mends nothing"
    assert lab.cli("backend", "link", "nosuch", url).code == 2
    assert keeper.asked == [], "nothing was done"
    assert lab.cli("backend", "link", "c", url).code == 0
    assert lab.cli("check", "--repair").code == 0
    assert keeper.asked == ["sync_now"] * 2
    by_daemon.go_on()
    assert keeper.asked == ["sync_now"] * 3, "of all folders"
    keeper.become("in step", problems=(problem(),))
    by_daemon.go_on()
    assert keeper.asked == ["sync_now"] * 3, "a conflict is no reason to look"
