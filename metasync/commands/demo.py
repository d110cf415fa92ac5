"""`metasync demo`: the main job in a temporary folder, told as it happens. Every line it prints was checked."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from metasync.errors import MetaSyncError
from metasync.reports.sync import PushReport
from metasync.terminal.text import history_text, phrases, sync_text
from metasync.workspace import Workspace

Say = Callable[[str], None]
NAME = "demo"
PROVIDERS = ("attic", "cellar", "garage")


class DemoFailedError(MetaSyncError):
    """The demo saw something else than it promises."""


def run(say: Say, *, keep: bool = False) -> int:
    """Runs the demo; returns the exit code. `keep` leaves its folder behind."""
    os.environ["METASYNC_KEYRING"] = "off"  # a demo leaves nothing in anybody's keyring
    root = Path(tempfile.mkdtemp(prefix="metasync-demo-"))
    start = time.monotonic()
    try:
        _show(root, say)
    finally:
        if keep:
            say(f"\nEverything is still in {root}.")
        else:
            shutil.rmtree(root, ignore_errors=True)
    say(f"\nDone in {time.monotonic() - start:.1f} seconds. Try it on a folder of yours: metasync init --help")
    return 0


def _show(root: Path, say: Say) -> None:
    urls = [f"file://{root}/{p}" for p in PROVIDERS]
    passphrase = secrets.token_hex(16)
    laptop, desktop, phone = root / "laptop", root / "desktop", root / "phone"

    say("1. A folder on your laptop, and three storage providers (here: three folders).")
    _write(laptop, {
        "shopping.txt": "milk\nbread\napples\n",
        "trip.txt": "Monday: train\nTuesday: museum\nWednesday: beach\n",
        "photos/sunset.jpg": secrets.token_bytes(300_000),
    })  # fmt: skip
    made = Workspace.init(laptop, name=NAME, backends=urls, passphrase=passphrase, device_name="laptop")
    with made.workspace as w:
        say(f"   {made.survives}")
        _told(w.push("first"), say)
    packs = [p for name in PROVIDERS for p in (root / name).rglob("*") if p.is_file() and "packs" in p.parts]
    seen = sum(p.stat().st_size for p in packs)
    _must(b"bread" not in b"".join(p.read_bytes() for p in (root / PROVIDERS[0]).rglob("*") if p.is_file()))
    say(f"   The providers hold {phrases.size(seen)} of encrypted packs under random names; none can read any of it.")

    say("\n2. Your desktop joins: it needs the providers and the passphrase, nothing else.")
    with Workspace.clone(desktop, name=NAME, backends=urls, passphrase=passphrase, device_name="desktop").workspace:
        _must(_tree(desktop) == _tree(laptop))
    say("   desktop has the same files, bytes, modes and times.")

    say("\n3. Both edit at the same time: different files, and different lines of the same file.")
    _write(laptop, {"trip.txt": "Monday: night train\nTuesday: museum\nWednesday: beach\n", "laptop.txt": "hello\n"})
    _write(desktop, {"trip.txt": "Monday: train\nTuesday: museum\nWednesday: mountains\n", "desktop.txt": "hi\n"})
    with Workspace.open(laptop) as w:
        _told(w.push("from the laptop"), say)
    with Workspace.open(desktop) as w:
        _told(w.push("from the desktop"), say)
    merged = (desktop / "trip.txt").read_text()
    _must(merged == "Monday: night train\nTuesday: museum\nWednesday: mountains\n")
    say("   trip.txt on the desktop now has both edits, merged by lines:")
    for line in merged.splitlines():
        say(f"      | {line}")

    say("\n4. Both change the same line. Neither is lost.")
    with Workspace.open(laptop) as w:
        w.pull()
    _write(laptop, {"shopping.txt": "oat milk\nbread\napples\n"})
    _write(desktop, {"shopping.txt": "soy milk\nbread\napples\n"})
    with Workspace.open(laptop) as w:
        _told(w.push("oat"), say)
    with Workspace.open(desktop) as w:
        report = w.push("soy")
        _told(report, say)
    found = report.pulled.conflicts if report.pulled is not None else ()
    _must(len(found) == 1)
    for name in ("shopping.txt", os.fsdecode(found[0].kept)):
        say(f"      {name}: {(desktop / name).read_text().splitlines()[0]} ...")

    say(f"\n5. The provider '{PROVIDERS[1]}' goes out of business: all it held is deleted.")
    shutil.rmtree(root / PROVIDERS[1])

    say("\n6. A new phone, with the two that are left.")
    left = [u for u in urls if not u.endswith(PROVIDERS[1])]
    with Workspace.clone(phone, name=NAME, backends=left, passphrase=passphrase, device_name="phone").workspace as w:
        _must(_tree(phone) == _tree(desktop))
        say(f"   phone has all {len(_tree(phone))} files of version {w.status().version}, byte for byte.")
        say("\n   The history, newest first:")
        for line in history_text.log(w.log()):
            say(f"      {line}")


def _told(report: PushReport, say: Say) -> None:
    if report.pulled is not None and report.pulled.version != report.pulled.before:
        c = report.pulled.conflicts
        merged = f", {phrases.count(len(report.pulled.merged), 'file')} merged by lines" if report.pulled.merged else ""
        clash = f", {phrases.count(len(c), 'conflict')}" if c else ""
        say(f"   the other was faster, so first merged version {report.pulled.version}{merged}{clash}")
        for item in c:
            theirs, mine = phrases.text(item.path), phrases.text(item.kept)
            say(f"   {theirs} keeps the text that was pushed first; yours is in {mine}")
    say(
        f"   pushed version {report.version}: {sync_text.changes_line(report.changes)};"
        f" {phrases.count(report.packs, 'pack')} of {phrases.size(report.bytes_stored)}, {report.copies} copies each"
    )


def _write(root: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def _tree(root: Path) -> dict[str, tuple[bytes, int, int]]:
    out: dict[str, tuple[bytes, int, int]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and ".metasync" not in path.parts:
            st = path.stat()
            out[str(path.relative_to(root))] = (path.read_bytes(), st.st_mode, st.st_mtime_ns)
    return out


def _must(held: bool) -> None:
    if not held:
        raise DemoFailedError("the demo saw something else than it should", next_step="Please report this.")
