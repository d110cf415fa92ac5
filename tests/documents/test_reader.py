"""The second implementation, `docs/reference/reader.py`, restores what the product wrote, byte for byte."""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from attack_kit import insider, named, spoil
from blake3 import blake3
from content_kit import ID_KEY, IDS
from racing_kit import URLS, crowd, race
from workspace_kit import CHEAP, PASSPHRASE, Lab, Node, flip, tree_of, write

from metasync.objects import delta
from metasync.objects.model import ObjectKind
from metasync.store.index import PackRecord, encode_segment, make_segment
from metasync.store.pack_format import Delta, Header, Located, Segment, delta_tags, encode_header
from metasync.store.retention import Keep
from metasync.workspace import Workspace

READER = Path(__file__).parents[2] / "docs" / "reference" / "reader.py"
EMPTY = base64.b64encode(zlib.compress(b""))
KEPT = {
    p.stem: json.loads(p.read_text("utf-8")) for p in (Path(__file__).parents[1] / "vectors/workspaces").glob("*.json")
}
LINES_MAX = 1193
CODE_LINES_MAX = 900  # without docstrings, comments and blank lines
LIBRARIES = {"blake3", "cryptography", "mnemonic", "zstandard"}
ALL = ("a", "b", "c")
EITHER = (0, 3)  # a push ends at a quorum: with one of its members away the newest version may be unproven


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reader", READER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reader"] = module
    spec.loader.exec_module(module)
    return module


reader = _load()


class Ran(NamedTuple):
    """How the reader ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`reader.py` with these words, and the passphrase in a file."""

    def call(*words: str | Path, secret: str = PASSPHRASE, option: str = "--passphrase-file") -> Ran:
        file = tmp_path / "secret"
        file.write_text(secret + "\n")
        monkeypatch.setattr(sys, "argv", ["reader.py", option, str(file), *map(str, words)])
        capsys.readouterr()
        code = reader.main()
        out = capsys.readouterr()
        return Ran(code, out.out, out.err)

    return call


def restored(run: Run, dest: Path, *words: str | Path, code: tuple[int, ...] = (0,), **how: Any) -> dict[bytes, Node]:
    """What the reader restores from these folders."""
    done = run(*words, "--restore", dest, **how)
    assert done.code in code, done.err
    tree = tree_of(dest)
    for folder, _, _ in os.walk(dest):
        os.chmod(folder, 0o755)
    shutil.rmtree(dest)
    return tree


def fill(root: Path, laptop: Workspace) -> list[dict[bytes, Node]]:
    """Several versions with all that a tree can have; -> the tree of each, from version 1 on."""
    big = b"".join(i.to_bytes(4, "big") * 64 for i in range(12_000))  # 3 MB: many chunks
    write(root, {"a.txt": b"first", "sub/deep/b.bin": bytes(range(256)), "empty": b"", "big.bin": big})
    write(root, {"sp ace\n\u00e9": b"odd", "run.sh": b"#!/bin/sh\n"})
    (root / "run.sh").chmod(0o751)
    (root / "link").symlink_to("sub/deep/b.bin")
    (root / "void").mkdir(mode=0o700)
    Path(os.fsdecode(os.fsencode(root) + b"/raw\xff")).write_bytes(b"no UTF-8")
    os.utime(root / "a.txt", ns=(1, 1_234_567_890_123_456_789))
    trees = []

    def push(message: str) -> None:
        laptop.push(message)
        trees.append(tree_of(root))

    push("one")
    (root / "sub" / "deep" / "b.bin").rename(root / "sub" / "moved.bin")
    (root / "empty").unlink()
    push("two")
    write(
        root,
        {"big.bin": big[:1_000_000] + b"edited" + big[1_000_000:], **{f"many/{i:04}": b"%d" % i for i in range(900)}},
    )
    push("three")
    return trees


def stores(lab: Lab, *names: str) -> list[Path]:
    """The folders of these backends."""
    return [lab.store(name) for name in names or ALL]


def test_it_stands_alone() -> None:
    """It imports the standard library and four packages, and nothing of the product."""
    names = set()
    for node in ast.walk(ast.parse(READER.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    assert names - set(sys.stdlib_module_names) == LIBRARIES


def test_it_is_read_in_one_sitting() -> None:
    """It gets no longer: what is new in it makes something else in it shorter, and no line longer."""
    text = READER.read_text("utf-8")
    lines = text.splitlines()
    assert len(lines) <= LINES_MAX and max(map(len, lines)) <= 120
    code = {i for i, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            code -= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    assert len(code) <= CODE_LINES_MAX


@pytest.mark.few(1)
@pytest.mark.parametrize("encrypted", [True, False])
def test_every_version(lab: Lab, run: Run, tmp_path: Path, encrypted: bool) -> None:
    """Each version is restored as it was, the history and the list are told, whichever backend is missing."""
    laptop = lab.init(lab.urls(*ALL), encryption=encrypted)
    trees = fill(lab.root / "laptop", laptop)
    laptop.close()
    dest = tmp_path / "restored"
    assert restored(run, dest, *stores(lab)) == trees[-1]
    for v, tree in enumerate(trees, 1):
        assert restored(run, dest, *stores(lab), "--version", str(v)) == tree
    with pytest.raises(SystemExit) as wrong:
        run(*stores(lab), "--restore", dest, "--version", "0")
    assert wrong.value.code == 2 and not dest.exists()
    history = run(*stores(lab), "--history")
    assert history.code == 0 and "No such file" not in history.err, "packs lie on two of three"
    assert [(line.split("\t")[0], line.split("\t")[3]) for line in history.out.splitlines()] == [
        ("3", "three"),
        ("2", "two"),
        ("1", "one"),
    ]
    listed = run(*stores(lab), "--list")
    assert listed.code == 0 and len(listed.out.splitlines()) == len(trees[-1])
    assert "sp ace\\n\u00e9" in listed.out and "raw\\xff" in listed.out
    for missing in ALL:
        names = [name for name in ALL if name != missing]
        assert restored(run, dest, *stores(lab, *names), "--unproven", code=EITHER) == trees[-1]


@pytest.mark.long
def test_a_history_with_a_gap(lab: Lab, run: Run, tmp_path: Path) -> None:
    """Versions that were dropped are passed over, and told; those before them that have a name can be restored."""
    laptop = lab.init(lab.urls(*ALL))
    trees = fill(lab.root / "laptop", laptop)
    laptop.tag("1", "first")
    laptop.gc(Keep(last=1))
    laptop.close()
    history = run(*stores(lab), "--history")
    assert [line.split("\t")[0] for line in history.out.splitlines()] == ["3", "1"]
    assert "versions 2 to 2 were dropped on purpose" in history.err
    assert restored(run, tmp_path / "one", *stores(lab), "--version", "1") == trees[0]
    assert restored(run, tmp_path / "three", *stores(lab)) == trees[2]
    assert run(*stores(lab), "--version", "2", "--restore", tmp_path / "two").code != 0


def test_a_history_without_what_was_forgotten(lab: Lab, run: Run, tmp_path: Path) -> None:
    """A version whose paths were forgotten is restored without them, before and after a collection of garbage."""
    laptop = lab.init(lab.urls(*ALL))
    for n in (1, 2):
        write(lab.root / "laptop", {"dir/f": b"%d" % n, "dir/secret": b"secret", "g": b"g"})
        laptop.push()
    (lab.root / "laptop" / "dir" / "secret").unlink()
    laptop.push()
    laptop.forget(["dir/secret"])
    for turn in (1, 2):
        out = restored(run, tmp_path / f"{turn}", *stores(lab), "--version", "1")
        assert {path: node.data for path, node in out.items() if node.kind == "file"} == {b"dir/f": b"1", b"g": b"g"}
        laptop.gc()
    laptop.close()


def test_keys_devices_and_backends_that_changed(lab: Lab, run: Run, tmp_path: Path) -> None:
    """A rotation with a new passphrase, a device revoked, a backend replaced: the newest is found from the genesis."""
    laptop = lab.init(lab.urls(*ALL))
    root = lab.root / "laptop"
    trees = fill(root, laptop)
    desktop = lab.clone(lab.urls(*ALL))
    write(lab.root / "desktop", {"from-desktop": b"yes"})
    desktop.sync("desktop's")
    desktop.close()
    laptop.pull()
    laptop.device_revoke(["desktop"], PASSPHRASE, new_passphrase="another horse entirely")
    write(root, {"a.txt": b"after the rotation"})
    laptop.push("rotated")
    laptop.backend_add(lab.url("d"), replaces="b", passphrase="another horse entirely")
    write(root, {"a.txt": b"after the replacement"})
    laptop.push("replaced")
    laptop.close()
    tree, dest, new = tree_of(root), tmp_path / "restored", "another horse entirely"
    assert restored(run, dest, *stores(lab, "a", "b", "c", "d"), secret=new) == tree
    assert restored(run, dest, *stores(lab, "a", "c", "d"), secret=new) == tree
    for names in (("a", "b", "c"), ("a", "b", "d"), ("b", "c", "d")):
        assert restored(run, dest, *stores(lab, *names), "--unproven", code=EITHER, secret=new) == tree, names
    assert restored(run, dest, *stores(lab, "a", "c", "d"), "--version", "2", secret=new) == trees[1]
    old = run(*stores(lab), "--restore", dest)
    assert old.code == 1 and "was it changed" in old.err


@pytest.mark.long
def test_acceptors_in_block_form(lab: Lab, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stores without an atomic create, and two devices that write in turn."""
    crew = crowd(race(lab, monkeypatch, "block"), 2)
    for i in range(4):
        write(crew[i % 2].directory, {"turn": b"%d" % i})
        crew[i % 2].sync(f"turn {i}")
    for workspace in crew:
        workspace.close()
    assert lab.objects("dav1", "bl")
    assert restored(run, tmp_path / "restored", *stores(lab, *URLS)) == tree_of(crew[1].directory)
    tree = restored(run, tmp_path / "restored", *stores(lab, "dav1", "dav2"), "--unproven", code=EITHER)
    assert tree == tree_of(crew[1].directory)


def test_the_command(lab: Lab, tmp_path: Path) -> None:
    """It runs as people run it, without anything of the product in reach."""
    laptop = lab.init(lab.urls("a"), encryption=False)
    write(lab.root / "laptop", {"a": b"1"})
    laptop.push("one")
    laptop.close()
    words = [sys.executable, "-I", READER, lab.store("a"), "--restore", tmp_path / "restored"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert tree_of(tmp_path / "restored") == tree_of(lab.root / "laptop")


@pytest.mark.long
def test_a_restart_on_what_is_left(lab: Lab, run: Run, tmp_path: Path) -> None:
    """A new era is followed from the one store that is left, and also where the lost ones came back."""
    laptop = lab.init(lab.urls(*ALL), replicas=3)
    root = lab.root / "laptop"
    fill(root, laptop)
    laptop = lab.reopen(laptop)
    gone = [lab.lose("b"), lab.lose("c")]
    lab.hurry()
    laptop.recover(["b", "c"], PASSPHRASE, confirm="docs")
    write(root, {"a.txt": b"in the new era"})
    laptop.push("restarted")
    laptop.close()
    assert restored(run, tmp_path / "restored", lab.store("a")) == tree_of(root)
    assert restored(run, tmp_path / "restored", lab.store("a"), *gone) == tree_of(root)


@pytest.mark.long
def test_past_a_version_that_was_ended(lab: Lab, run: Run, tmp_path: Path) -> None:
    """A device ended a version, and was revoked with the restart: the new era has keys of its own, and old logs and
    garbage lie beside it on the same stores."""
    laptop = lab.init(lab.urls(*ALL))
    root = lab.root / "laptop"
    fill(root, laptop)
    phone = lab.clone(lab.urls(*ALL), device="phone")
    phone.push("enrolled")
    laptop.sync()
    spoil(lab, phone, "garbage", ["a", "b"], 1)
    laptop.recover([], PASSPHRASE, revoke=["phone"], confirm="docs")
    write(root, {"a.txt": b"in the new era"})
    laptop.push("restarted")
    laptop.close()
    assert restored(run, tmp_path / "restored", *stores(lab)) == tree_of(root)


def test_too_few_folders(lab: Lab, run: Run, tmp_path: Path) -> None:
    """One folder of two proves nothing: it shows what it can, says so, and goes further only when it is told to."""
    laptop = lab.init(lab.urls("a", "b"))
    root = lab.root / "laptop"
    trees = fill(root, laptop)
    laptop.close()
    done = run(lab.store("a"), "--history")
    assert done.code == 3 and "--unproven" in done.err
    assert restored(run, tmp_path / "restored", lab.store("a"), "--unproven", code=(3,)) == trees[-1]


def test_a_way_that_is_gone(lab: Lab, run: Run, tmp_path: Path) -> None:
    """The logs of version 1 are damaged everywhere: a hint leads back past them, and tells old copies."""
    laptop = lab.init(lab.urls("a"))
    write(lab.root / "laptop", {"a": b"0"})
    laptop.push("0")
    first = lab.objects("a", "px")
    for i in range(1, 5):
        write(lab.root / "laptop", {"a": b"%d" % i})
        laptop.push(str(i))
    laptop.close()
    for path in first:
        flip(path)
    assert restored(run, tmp_path / "restored", *stores(lab, "a")) == tree_of(lab.root / "laptop")
    for path in first:
        path.unlink()
    done = run(*stores(lab, "a"), "--history")
    assert done.code == 3 and "old copies" in done.err
    assert restored(run, tmp_path / "restored", *stores(lab, "a"), "--unproven", code=(3,)) == tree_of(
        lab.root / "laptop"
    )


def test_a_vote_that_is_missing_is_made_up_for_by_what_stands_on_it(lab: Lab, run: Run, tmp_path: Path) -> None:
    """Of version 1 one vote is left in these folders; version 2, which both have, proves it."""
    laptop = lab.init(lab.urls("a", "b"))
    write(lab.root / "laptop", {"a": b"1"})
    laptop.push("one")
    laptop.close()
    before = set(lab.objects("b", "px"))
    laptop = lab.reopen(laptop)
    write(lab.root / "laptop", {"a": b"2"})
    laptop.push("two")
    laptop.close()
    for path in before:
        path.unlink()
    assert restored(run, tmp_path / "restored", *stores(lab, "a", "b")) == tree_of(lab.root / "laptop")


def test_a_folder_that_lost_what_one_device_wrote_and_another_read_there_does_not_count(lab: Lab, run: Run) -> None:
    """The phone had begun a version on a and b when the laptop pushed: on a it carries what the phone wrote on b."""
    laptop = lab.init(lab.urls("a", "b"))
    phone = lab.reopen(lab.clone(lab.urls("a", "b"), device="phone"))
    laptop.pull()
    before = set(lab.objects("b", "px"))
    with insider(phone) as begun:
        assert begun.s.runtime.run(begun.s.group.prepare(begun.base.state))
    phone.close()
    write(lab.root / "laptop", {"a": b"1"})
    pushed = laptop.push("one").version
    laptop.close()
    for path in set(lab.objects("b", "px")) - before:
        path.unlink()
    done = run(*stores(lab, "a", "b"), "--list")
    assert f"backend b does not count for version {pushed}: it lacks an entry that was seen there" in done.err


@pytest.mark.few(3)
@pytest.mark.parametrize("without", ["", "a", "b", "c"])
@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT)
def test_a_kept_workspace(case: dict[str, Any], without: str, run: Run, tmp_path: Path) -> None:
    """What was once written is read for ever, with the passphrase and with the phrase."""
    for name, objects in case["backends"].items():
        for path, data in objects.items() if name != without else ():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_bytes(base64.b64decode(data))
    folders = [tmp_path / name for name in case["backends"] if name != without]
    how = (
        {"secret": case["recovery_phrase"], "option": "--phrase-file"}
        if without == "a"
        else {"secret": case["passphrase"]}
    )
    tree = restored(run, tmp_path / "restored", *folders, **how)
    assert {os.fsdecode(path): node for path, node in tree.items()} == {
        path: Node(
            "link" if one["kind"] == "symlink" else one["kind"],
            int(one.get("mode", "0"), 8),
            int(one.get("mtime_ns", tree[os.fsencode(path)].mtime_ns)),
            os.fsencode(one["target"])
            if "target" in one
            else zlib.decompress(base64.b64decode(one.get("data", EMPTY))),
        )
        for path, one in case["tree"].items()
    }
    history = [line.split("\t") for line in run(*folders, "--history", **how).out.splitlines()]
    assert [(int(row[0]), row[2], row[3]) for row in history] == [
        (one["version"], one["device"], one["message"]) for one in case["log"]
    ]


@pytest.mark.long
def test_damage(lab: Lab, run: Run, tmp_path: Path) -> None:
    """A damaged copy gives way to another one; where there is none the file is named, and all else is restored."""
    laptop = lab.init(lab.urls(*ALL))
    root = lab.root / "laptop"
    tree = fill(root, laptop)[-1]
    laptop.close()
    seen = set()
    for path in (path for name in ALL for path in lab.objects(name, "packs")):
        if path.name not in seen:  # the copy on the store that is asked first
            flip(path, 60)
        seen.add(path.name)
    done = run(*stores(lab), "--restore", tmp_path / "one")
    assert (done.code, tree_of(tmp_path / "one")) == (0, tree)
    assert "damaged; looking for another copy" in done.err
    big = max((path for name in ALL for path in lab.objects(name, "packs")), key=lambda path: path.stat().st_size)
    for name in ALL:
        for path in lab.objects(name, "packs"):
            if path.name == big.name:
                flip(path, 61)
    done = run(*stores(lab), "--restore", tmp_path / "two")
    left = tree_of(tmp_path / "two")
    assert done.code == 1 and "not restored" in done.err
    assert left.items() < tree.items()


def test_a_hostile_tree(lab: Lab, run: Run, tmp_path: Path) -> None:
    """A device made up a tree that would write into `.metasync`: all else is restored."""
    laptop = lab.init(lab.urls("a"))
    write(lab.root / "laptop", {"good": b"1"})
    laptop.push("one")
    with insider(laptop) as evil:
        blob = evil.put(ObjectKind.BLOB, b"[evil]")
        state = evil.directory(named(b"config", 1, blob, size=6))
        below = evil.directory(named(b"fine", 1, blob, size=6), named(b"metasy~1", 1, blob, size=6))
        evil.commit(evil.directory(named(b".Metasync", 2, state, mode=0o755), named(b"sub", 2, below, mode=0o755)))
    laptop.close()
    done = run(lab.store("a"), "--restore", tmp_path / "restored")
    assert done.code == 1 and done.err.count("kept for the local state") == 2
    assert {path for path, node in tree_of(tmp_path / "restored").items() if node.kind == "file"} == {b"sub/fine"}


def test_directories_without_end(lab: Lab, run: Run, tmp_path: Path) -> None:
    """Directories nested deeper than a tree may be end the restore with a sentence."""
    laptop = lab.init(lab.urls("a"))
    write(lab.root / "laptop", {"good": b"1"})
    laptop.push("one")
    with insider(laptop) as evil:
        below = evil.directory()
        for _ in range(1100):
            below = evil.directory(named(b"d", 2, below, mode=0o755))
        evil.commit(below)
    laptop.close()
    done = run(lab.store("a"), "--list")
    assert done.code == 1 and "too deep" in done.err


def test_what_is_refused(lab: Lab, run: Run, tmp_path: Path) -> None:
    """A wrong passphrase, a phrase that is none, a folder that is not empty, a version that is not there."""
    laptop = lab.init(lab.urls(*ALL))
    write(lab.root / "laptop", {"a": b"1"})
    laptop.push("one")
    laptop.close()
    assert run(*stores(lab), "--list", secret="wrong").code == 1
    assert "misspelled" in run(*stores(lab), "--list", secret="abandon abandon", option="--phrase-file").err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "not empty" in run(*stores(lab), "--restore", tmp_path / "full").err
    assert "no version 7" in run(*stores(lab), "--list", "--version", "7").err
    assert "no workspace" in run(tmp_path / "full", "--list").err


def test_the_recovery_phrase_opens_it(lab: Lab, run: Run, tmp_path: Path) -> None:
    """The phrase that `init` shows is as good as the passphrase."""
    made = Workspace.init(
        lab.root / "laptop", name="docs", backends=lab.urls(*ALL), passphrase=PASSPHRASE, kdf=CHEAP, by_space=False
    )
    lab.keep(made.workspace)
    write(lab.root / "laptop", {"a": b"1"})
    made.workspace.push("one")
    made.workspace.close()
    phrase = made.recovery_phrase.upper()
    tree = restored(run, tmp_path / "restored", *stores(lab), secret=phrase, option="--phrase-file")
    assert tree == tree_of(lab.root / "laptop")


@pytest.mark.parametrize("name", [b".metasync", b".MetaSync", b".meta\xe2\x80\x8bsync", b"METASY~1", b".metasync:x. "])
def test_names_of_the_local_state(name: bytes) -> None:
    """No name is written that some file system takes for `.metasync`."""
    assert reader.is_local_state(name)


@pytest.mark.parametrize("name", [b".metasync2", b"metasync", b"metasy~", b".metasync\xff", b"metasy~1x"])
def test_names_that_are_not(name: bytes) -> None:
    """Names that only look alike are written."""
    assert not reader.is_local_state(name)


VECTORS = {
    p.stem: json.loads(p.read_text("utf-8")) for p in (Path(__file__).parents[1] / "vectors/agreement").glob("*.json")
}


def _space(case: dict[str, Any], root: Path) -> tuple[Any, Any]:
    """A workspace of the reader that knows what a vector gives, and the base."""
    given = case["given"]
    keys = reader.Keys.__new__(reader.Keys)
    keys.ns_id, keys.encrypted = bytes.fromhex(given["ns_id"]), given["encrypted"]
    epochs = {int(epoch): bytes.fromhex(key) for epoch, key in given["epoch_keys"].items()}
    keys.rings = {b"": reader.Record(epochs=epochs)}
    base = reader.read_state(bytes.fromhex(given["base"]))
    space = reader.Workspace("vector", [root], keys, reader.Report())
    space.read[base.config] = reader.read_config(bytes.fromhex(given["config"]))
    space.read[base.devices] = reader.read_devices(bytes.fromhex(given["devices"]), keys.ns_id)
    return space, base


def _put(space: Any, base: Any, place: Path, entries: list[str], device: bytes = b"") -> None:
    for index, data in enumerate(entries):
        path = space.log_path(place, base, device, index)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes.fromhex(data))


@pytest.mark.parametrize("name", [n for n, c in VECTORS.items() if c["what"] == "logs"])
def test_it_concludes_from_logs_what_the_vectors_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several logs: what is decided, that there is nothing newer, or what alone may be decided."""
    case = VECTORS[name]
    space, base = _space(case, tmp_path)
    acceptors = [*map(bytes.fromhex, case["logs"]), *(bytes([i] * 16) for i in range(case["n"] - len(case["logs"])))]
    config = space.config(base)
    config.f, config.quorum = case["f"], (case["n"] + case["f"]) // 2 + 1
    config.voters = [reader.Record(acceptor=a, form=1, name=a.hex(), birth=b"") for a in acceptors]
    space.devices(base).acceptors = {(a, b"") for a in acceptors}
    monkeypatch.setattr(
        space,
        "acceptor",
        lambda voter: tmp_path / voter.acceptor.hex() if voter.acceptor.hex() in case["logs"] else None,
    )
    for acceptor, entries in case["logs"].items():
        _put(space, base, tmp_path / acceptor, entries)
    look, expect = space.look(base), case["expect"]
    assert (look.decided and look.decided.hash.hex(), look.newest) == (expect["decided"], expect["newest"])
    if expect["open"] is not None:
        assert look.candidates[0].hash.hex() == expect["open"]


@pytest.mark.parametrize("name", [n for n, c in VECTORS.items() if c["what"] in ("log", "blocks")])
def test_it_replays_as_the_vectors_say(name: str, tmp_path: Path) -> None:
    """Of one log, or of one acceptor's blocks once all of them stand."""
    case = VECTORS[name]
    space, base = _space(case, tmp_path)
    acceptor = (
        case["given"]["acceptor"] if case["what"] == "blocks" else case.get("acceptor", case["given"].get("acceptor"))
    )
    by_device: dict[bytes, list[str]] = {b"": case.get("entries", [])}
    for block in (block for read in case.get("reads", []) for block in read):
        by_device.setdefault(bytes.fromhex(block["device"]), []).append(block["data"])
    for device, entries in by_device.items():
        _put(space, base, tmp_path / acceptor, entries, device)
    voter = reader.Record(acceptor=bytes.fromhex(acceptor), form=1 if case["what"] == "log" else 2)
    log, expect = space.replay(tmp_path / acceptor, voter, base), case["expect"]
    accepted = max(log.accepted.items(), default=None)
    told = accepted and [accepted[0][0], accepted[0][1].hex(), hashlib.sha256(accepted[1]).hexdigest()]
    said = expect["accepted"] and [*expect["accepted"][0].values(), expect["accepted"][1]]
    assert (bool(log.poison), told) == (expect["poison"], said)
    if case["what"] == "log":
        assert (len(log.accepted), log.closed) == (expect["votes"], expect["closed"] is not None)
        assert (log.promised[0] or 0) == (expect["promised"] or {"n": 0})["n"]


def _chain(data: bytes, case: dict[str, Any]) -> None:
    keys = reader.read("keys:chain", data, "an admin chain").keys
    assert [key.hex() for key in keys] == case["value"]["keys"]
    assert hashlib.sha256(keys[0]).hexdigest() == case["ns_id"]


DECODERS: dict[str, Callable[[bytes, dict[str, Any]], object]] = {
    "chain": _chain,
    "config": lambda data, _: reader.read_config(data),
    "devices": lambda data, case: reader.read_devices(data, bytes.fromhex(case["ns_id"])),
    "slot": lambda data, case: reader.open_slot(reader.read_slot(data), case["passphrase"].encode()),
}


@pytest.mark.parametrize("name", [n for n, c in VECTORS.items() if c["what"] in DECODERS])
def test_it_decodes_as_the_vectors_say(name: str) -> None:
    """What is damaged, what is newer, and what is neither."""
    case = VECTORS[name]
    kinds = {"ok": None, "UpgradeError": reader.UpgradeError}
    expect = kinds.get(case["expect"], reader.DamageError)
    with contextlib.nullcontext() if expect is None else pytest.raises(expect):
        DECODERS[case["what"]](bytes.fromhex(case["data"]), case)


# ---- deltas

CONTENT = {
    p.stem: json.loads(p.read_text("utf-8")) for p in (Path(__file__).parents[1] / "vectors/content").glob("delta-*")
}


@pytest.mark.parametrize("name", CONTENT)
def test_it_opens_deltas_as_the_vectors_say(name: str) -> None:
    case = CONTENT[name]
    base, data = bytes.fromhex(case["base"]), bytes.fromhex("".join(case["hex"]))
    if case["expect"] == "ok":
        assert reader.undelta(base, data).hex() == case["value"]
    else:
        with pytest.raises(reader.UpgradeError if case["expect"] == "UpgradeError" else reader.DamageError):
            reader.undelta(base, data)


def test_it_reads_a_chain_of_deltas_and_no_circle() -> None:
    """Whatever the index lists first, and though a pack is listed again without its rows, for a digest."""
    texts = [b"the same words again and again " * 9 + b"%d" % n for n in range(5)]
    ids = [IDS.blob(text) for text in texts]
    raw, located, rows = b"", list[Located](), dict[tuple[int, int], Delta]()
    for n, (base, depth) in enumerate([(None, 0), (0, 1), (1, 2), (4, 1), (3, 1)]):
        data = texts[n] if base is None else delta.make(texts[base], texts[n])
        if base is not None:
            rows[0, len(raw)] = Delta(ids[base], depth)
        located.append(Located(ObjectKind.BLOB, ids[n], 0, len(raw), len(data), int(base is not None)))
        raw += data
    segment = Segment(len(raw), len(raw), bytes(32))
    listed = PackRecord(bytes(32), 1, len(raw) + 38, encode_header(Header(0, 1, bytes(32))), (segment,))
    contents = object.__new__(reader.Contents)
    contents.packs, contents.where = {}, {}
    contents.space = reader.Record(keys=reader.Record(of_kind=kind_keys(ID_KEY)))
    for tags, objects in ((((1, bytes(16)),), ()), (delta_tags(rows), located)):
        contents.add(encode_segment(make_segment([(listed._replace(tags=tags), objects)])))
    contents.unpacked = lambda *_: raw
    assert [contents.object(1, i) for i in ids[:3]] == texts[:3]
    for i in ids[3:]:
        with pytest.raises(reader.DamageError, match="delta of nothing"):
            contents.object(1, i)
    assert {i: contents.delta(row)[40] for i in ids for row in contents.where[i]} == dict(
        zip(ids, (0, 1, 2, 1, 1), strict=True)
    )


def kind_keys(id_key: bytes) -> dict[int, bytes]:
    root = reader.hkdf(id_key, b"", "object ids")
    return {kind: blake3(b"metasync object %d" % kind, key=root).digest() for kind in range(1, 5)}
