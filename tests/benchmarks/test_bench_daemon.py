"""`make bench-daemon`: that the rows of real daemons run, whatever the clock of this machine says of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from daemon import commands, idle, led


@pytest.mark.long
def test_the_rows_of_commands_beside_a_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "PAUSE_S", 0.0)
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    monkeypatch.setenv("METASYNC_DAEMON", "off")
    with tempfile.TemporaryDirectory() as short:  # sockets lie below it, whose paths have 107 bytes at most
        found = list(commands.rows(Path(short), 400))
    assert len(found) == 4


def test_what_is_idle_is_so_many_files_and_ignored_ones_beside_each_hundred(tmp_path: Path) -> None:
    idle._fill(tmp_path, 250)
    made = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".metasyncignore"]
    ignored = [path for path in made if path.suffix == ".tmp"]
    assert (len(made) - len(ignored), len(ignored)) == (250, 3)
    assert {path.parent for path in ignored} == {path.parent for path in made}


def test_tiny_files_are_a_hundred_in_a_directory(tmp_path: Path) -> None:
    assert [path.name for path in led.tiny_files(tmp_path, 201)] == ["00", "01", "02"]
    assert (tmp_path / "000/01/07").read_bytes() == b"107"
