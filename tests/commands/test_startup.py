"""What a process loads before it works: a push pays for nothing that it does not use."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from workspace_kit import Lab, run_process, write

from metasync import cli
from metasync.terminal import interrupt

LOADED = """
import sys
import metasync.cli
try:
    metasync.cli.main(sys.argv[1:])
except SystemExit:
    pass
print(*sys.modules, sep="\\n", file=sys.stderr)
"""


def loaded(*words: str, cwd: Path) -> set[str]:
    """The modules that a process has loaded when its command ends."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words], cwd=cwd, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stderr.split())


def test_the_package_alone_loads_next_to_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, metasync; print(*sys.modules)"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert {m for m in done.stdout.split() if m.startswith(("metasync.", "click", "sqlite3", "cryptography"))} == set()


UNUSED = {
    *("asyncio", "difflib", "importlib.metadata", "pyfastcdc", "shutil", "socket", "ssl"),
    *(
        "metasync.commands.devices",
        "metasync.consensus.founding",
        "metasync.members.clone_passphrase",
        "metasync.reports.members",
    ),
    *(
        "metasync.members.found",
        "metasync.moving.reconfigure",
        "metasync.maintenance.recover",
        "metasync.members.rotation",
    ),
    *(
        "metasync.maintenance.status",
        "metasync.testing",
        "metasync.backends.wrappers.trace",
        "ctypes",
        "fractions",
        "zstandard",
    ),
    *(
        "metasync.session.write_index",
        "metasync.sync.push",
        "metasync.sync.pull",
        "metasync.worktree.scan",
        "metasync.merge.trees",
    ),
    *("metasync.reports.backends", "metasync.backends.wrappers.pace"),
    *(
        "metasync.checkout.checkout",
        "metasync.transfer.late_copies",
        "metasync.session.space",
        "metasync.members.key_copies",
    ),
    *("metasync.transfer.copies", "metasync.transfer.contents", "metasync.store.index", "metasync.objects.walk"),
    *(
        "cryptography",
        "metasync.worktree.ignore",
        "metasync.worktree.deletions",
        "metasync.worktree.ingest",
        "metasync.consensus.new_era",
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["push", "pull"])
def test_a_push_or_pull_of_nothing_loads_no_more_than_it_uses(lab: Lab, command: str) -> None:
    write(lab.init(lab.urls("a", "b", "c")).directory, {"a": b"a"})
    assert run_process("push", cwd=lab.root / "laptop").code == 0
    time.sleep(0.02)  # beyond the tick of the file system's clock: the file's row is trusted
    assert loaded("push", cwd=lab.root / "laptop")
    assert loaded(command, cwd=lab.root / "laptop") & UNUSED == set()


def test_every_command_is_found_where_the_table_says(tmp_path: Path) -> None:
    for name in cli.cli.list_commands(click.Context(cli.cli)):
        command = cli.cli.get_command(None, name)
        assert command is not None
        assert command.name == name
    assert cli.cli.get_command(None, "frobnicate") is None


SDKS = {
    *("obstore", "boto3", "botocore", "requests", "urllib3", "swiftclient", "asyncssh", "paramiko", "google", "azure"),
    *("dropbox", "stone", "box_sdk_gen", "googleapiclient", "httplib2"),
}


def test_no_provider_and_no_sdk_is_loaded_before_a_backend_is_opened(tmp_path: Path) -> None:
    """Neither by the package nor by taking a URL of each scheme apart."""
    code = (
        "import sys, metasync; from metasync import Workspace; from metasync.backends import registry as _registry\n"
        "for scheme, form in _registry._FORMS.items():\n"
        "    if scheme in _registry._BUILT_IN: _registry.parse_url(form.replace('NAME', 'name'))\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & SDKS == set()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["push"], cli._COLLECT_AFTER),
        (["-C", "docs", "pull", "--json"], cli._COLLECT_AFTER),
        (["status"], gc.get_threshold()),
        (["daemon", "run"], gc.get_threshold()),
    ],
)
def test_what_makes_many_values_looks_through_them_seldom_and_what_lives_long_does_not(
    words: list[str], wanted: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen = gc.get_threshold(), list[tuple[int, int, int]]()
    monkeypatch.setattr(sys, "argv", ["metasync", *words])
    monkeypatch.setattr(cli, "_run_alone", lambda *_: seen.append(gc.get_threshold()))
    monkeypatch.setattr(interrupt, "end", lambda _: None)
    try:
        cli.main()
    finally:
        gc.set_threshold(*before)
    assert seen == [wanted]


def test_nothing_is_looked_for_among_modules_while_they_are_loaded(tmp_path: Path) -> None:
    """The command itself runs with the collector of circles on: what lives for days needs it."""
    code = (
        "import gc, sys\n"
        "class Loading:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('metasync.cli', 'click', 'metasync.commands.sync'): print(name, gc.isenabled())\n"
        "sys.meta_path.insert(0, Loading())\n"
        "from metasync.__main__ import main\n"
        "sys.argv = ['metasync', 'status']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[:3] == ["metasync.cli False", "click False", "metasync.commands.sync True"]
