"""The kept workspaces (`tests/vectors/workspaces`, by `make_workspaces.py`): what was once written is read for ever."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from metasync.keys.slots import open_slot
from metasync.objects.model import ObjectKind
from metasync.session import agreement
from metasync.store import deltas
from metasync.workspace import Workspace

SPEC = importlib.util.spec_from_file_location("make_workspaces", Path(__file__).parent / "make_workspaces.py")
assert SPEC is not None
assert SPEC.loader is not None
MAKE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(MAKE)

READER = Path(__file__).parents[2] / "docs" / "reference" / "reader.py"
CASES = {
    p.stem: json.loads(p.read_text(encoding="utf-8")) for p in (Path(__file__).parent / "workspaces").glob("*.json")
}


def unpacked(c: dict[str, Any], root: Path, without: str = "") -> list[Path]:
    """The backends of a case as folders."""
    for name, objects in c["backends"].items():
        for path, data in objects.items() if name != without else ():
            (root / name / path).parent.mkdir(parents=True, exist_ok=True)
            (root / name / path).write_bytes(base64.b64decode(data))
    return [root / name for name in c["backends"] if name != without]


def objects_of(c: dict[str, Any]) -> list[tuple[str, bytes]]:
    return [(path, base64.b64decode(data)) for objects in c["backends"].values() for path, data in objects.items()]


def test_old_versions_are_read_by_their_deltas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    c = CASES["format-1-deltas"]
    urls = [f"file://{folder}?name={folder.name}" for folder in unpacked(c, tmp_path)]
    report = Workspace.clone(tmp_path / "new", name=c["name"], backends=urls, passphrase=c["passphrase"])
    with report.workspace as w:
        with w._session("test") as s:
            index = agreement.newest(s).index
            depths = {deltas.depth_of(index, i) for i in index.ids(ObjectKind.BLOB)}
        assert depths == {*range(9)}
        for n in range(11):
            pieces: list[bytes] = []
            w.cat("doc", str(2 + n), pieces.append)
            assert b"".join(pieces) == random.Random(1).randbytes(9_000) + b"edit %d" % n
        assert not w.check(read_data=True).problems


def test_an_index_is_read_from_log_entries_where_no_backend_has_it_as_an_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of versions 5 to 7, each of which goes on from the one before; a device that clones settles them. That of
    version 3 was settled for the rotation."""
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    c = CASES["format-1-riding"]
    folders = unpacked(c, tmp_path)
    urls = [f"file://{folder}?name={folder.name}" for folder in folders]
    kept = {path.name for folder in folders for path in folder.rglob("meta/*/*")}
    spec = importlib.util.spec_from_file_location("reader_of_vectors", READER)
    assert spec is not None
    assert spec.loader is not None
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    (space,) = reader.find_workspaces(folders, (1, c["passphrase"].encode()), reader.Report())
    newest = space.newest(False)
    assert [v for v, state in space.states.items() if state.index_gen >= reader.RIDES] == [3, 5, 6, 7]
    assert space.states[3].index.hex() in kept
    named = {space.states[v].index.hex() for v in (5, 6, 7)}
    assert len(named) == 3
    assert not named & kept
    assert [one.version for one in reader.Contents(space, newest).history()] == [7, 6, 5, 3, 1]
    with Workspace.clone(tmp_path / "new", name=c["name"], backends=urls, passphrase=c["passphrase"]).workspace as w:
        assert not w.check(read_data=True).problems
    assert named <= {path.name for folder in folders for path in folder.rglob("meta/*/*")}


def test_there_is_one_of_every_format() -> None:
    assert {c["format"] for c in CASES.values()} == {1}
    assert {c["encrypted"] for c in CASES.values()} == {True, False}


@pytest.mark.parametrize("name", CASES)
def test_names_are_hashes_where_they_say_so(name: str) -> None:
    found = 0
    for path, data in objects_of(CASES[name]):
        last = path.rpartition("/")[2].rpartition("-")[2]
        if "/packs/" in path or "/meta/" in path or "/keys/" in path:
            assert hashlib.sha256(data).hexdigest() == last, path
            found += 1
    assert found > 20


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_passphrase_and_recovery_phrase_open_it(name: str) -> None:
    c = CASES[name]
    for kind, phrase in ((1, c["passphrase"]), (2, c["recovery_phrase"])):
        slots = [data for path, data in objects_of(c) if f"keys/slot-{kind}-" in path]
        assert {open_slot(data, phrase).name for data in slots} == {c["name"]}


@pytest.mark.parametrize("name", CASES)
def test_what_is_expected_of_it_is_whole(name: str) -> None:
    c = CASES[name]
    sizes = {path: len(zlib.decompress(base64.b64decode(e["data"]))) for path, e in c["tree"].items() if "data" in e}
    more = {"doc": 9_007} if "deltas" in name else {"more.txt": 8} if "riding" in name else {}
    assert sizes == {"d/große Datei": 1_100_000, "notes.txt": 11, "run.sh": 10, **more}
    edits, small = 11 if "deltas" in name else 0, [7, 6] if "riding" in name else []
    assert [item["version"] for item in c["log"]] == [*small, 5 + edits, 3 + edits, *range(1 + edits, 0, -1)]
    assert os.path.normpath("d/" + c["tree"]["d/link"]["target"]) == "notes.txt"


@pytest.mark.few(3)
@pytest.mark.parametrize("without", ["", "a", "b", "c"])
@pytest.mark.parametrize("name", CASES)
def test_a_new_device_gets_all_of_it(name: str, without: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    c = CASES[name]
    urls = [f"file://{folder}?name={folder.name}" for folder in unpacked(c, tmp_path, without)]
    report = Workspace.clone(
        tmp_path / "new", name=c["name"], backends=urls, passphrase=c["passphrase"], device_name="new"
    )
    with report.workspace as w:
        assert MAKE.tree_of(w.directory) == c["tree"]
        log = [
            {"version": i.version, "snapshot": i.snapshot.hex(), "message": i.message, "device": i.device}
            for i in w.log()
        ]
    assert log == c["log"]
