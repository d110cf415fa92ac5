"""Takes the pictures of the page that docs/howto/page.md shows: a real page, in a real Chromium, of a real workspace.

    python docs/pictures/make.py      (`make pictures`)

Three devices have pushed to three stores over nine days, by a clock that is set for it. Names are made up.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
DAY_S = 86_400
ARGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
PASSPHRASE = "seven quiet herons by the mill"
HISTORY = (  # days ago, who, what is written, the message
    (9.2, "laptop", {"letters/landlord.txt": 900, "taxes/2025.pdf": 240_000}, "papers"),
    (8.1, "phone", {"photos/lake/one.jpg": 900_000, "photos/lake/two.jpg": 1_100_000}, "the lake"),
    (7.9, "phone", {"photos/lake/three.jpg": 800_000}, "one more of the lake"),
    (6.0, "laptop", {"letters/landlord.txt": 1_300}, "about the heating"),
    (4.4, "desktop", {"music/setlist.txt": 400, "music/demo.flac": 2_500_000}, "the demo"),
    (3.2, "laptop", {"taxes/2025.pdf": 260_000}, "taxes, signed"),
    (1.1, "phone", {"photos/garden.jpg": 1_200_000}, "first tulips"),
    (0.2, "desktop", {"music/setlist.txt": 520}, "setlist for May"),
    (0.02, "laptop", {"letters/thanks.txt": 300}, "thanks"),
)


def workspace(home: Path) -> Path:
    """Makes the workspace, and its history."""
    from metasync.keys.slots import Cost
    from metasync.session.open_backend import Machine
    from metasync.workspace import Workspace

    now = time.time()
    clock = [now]
    Machine.wall_ns = lambda _: int(clock[0] * 1e9)  # type: ignore[method-assign]
    quick = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
    sizes = (("nas", "40MiB"), ("s3-archive", "20MiB"), ("dropbox", "20MiB"))
    stores = [f"file://{home}/stores/{name}?name={name}&capacity={size}" for name, size in sizes]
    clock[0] = now - 9.3 * DAY_S
    devices = {}
    for name in ("laptop", "phone", "desktop"):
        words = {"name": "family", "backends": stores, "passphrase": PASSPHRASE, "device_name": name}
        folder = home / ("Documents" if name == "laptop" else name)
        make: Callable[..., Any] = Workspace.clone if devices else Workspace.init
        devices[name] = make(folder, **words, **({} if devices else {"kdf": quick})).workspace
    for days, name, files, message in HISTORY:
        clock[0] = now - days * DAY_S
        w = devices[name]
        w.pull()
        for path, size in files.items():
            place = w.directory / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(os.urandom(size) if size > 2_000 else f"{message}\n".encode() * (size // 8))
        w.push(message)
    clock[0] = now
    for w in devices.values():
        w.close()
    return home / "Documents"


def pictures(folder: Path, chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    from metasync.dashboard.server import Server

    server, found, ready = Server([folder]), [], threading.Event()
    thread = threading.Thread(target=server.run, args=(lambda gate: (found.append(gate), ready.set()),))
    thread.start()
    ready.wait()
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=ARGS)
        page = browser.new_page(viewport={"width": 1100, "height": 790}, color_scheme="light")
        page.goto(found[0].url)
        page.wait_for_selector("#headline")
        page.screenshot(path=FOLDER / "page.png")
        page.emulate_media(color_scheme="dark")
        page.evaluate("() => { location.hash = '#/history' }")
        page.get_by_role("heading", name="Versions over time, by device").wait_for()
        page.screenshot(path=FOLDER / "page-history.png")
        page.emulate_media(color_scheme="light")
        page.evaluate("() => { location.hash = '#/storage' }")
        card = page.locator(".card", has=page.get_by_role("heading", name="Where the data lie"))
        card.screenshot(path=FOLDER / "page-storage.png")
        browser.close()
    server.stop()
    thread.join()


def main() -> None:
    """Takes them."""
    chromium = subprocess.run(
        [ROOT / "tests/dashboard/chromium.sh"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as top:
        home = Path(top).resolve()
        os.environ.update(HOME=str(home), METASYNC_KEYRING="off", METASYNC_DAEMON="off")
        pictures(workspace(home), chromium)
    for path in sorted(FOLDER.glob("*.png")):
        print(f"{path.name}: {path.stat().st_size:,} bytes")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
