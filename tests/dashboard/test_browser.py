"""The page in a real Chromium: what a user sees and does, with a keyboard, in light and dark, on a phone.

`make test-page` finds or fetches the browser. It is started once for all tests; each has a context of its own.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from page_kit import Served, served
from workspace_kit import PASSPHRASE, Lab, write

from metasync.commands import ui
from metasync.dashboard.views import path_id
from metasync.workspace import Workspace

CHROMIUM = os.environ.get("METASYNC_CHROMIUM", "")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="a Chromium: `make test-page` fetches one"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Playwright's own, at its end
]

ARGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
VIEWS = ("overview", "files", "history", "conflicts", "storage", "devices", "settings")
PHONE = {"width": 320, "height": 640}
REFUSED = "the server responded with a status of 409 (Conflict)"  # the browser notes it; the page has told it
HOSTILE = b"<img src=x onerror='document.title=1'><b>.txt"


def png(red: int, green: int, blue: int) -> bytes:
    """A small picture."""
    rows = b"".join(b"\0" + bytes((red, green, blue)) * 32 for _ in range(24))
    parts = ((b"IHDR", struct.pack(">IIBBBBB", 32, 24, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        found = p.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield found
        found.close()


@pytest.fixture
def laptop(lab: Lab) -> Workspace:
    """A workspace with three versions of two devices, a conflict in a text and one in a picture."""
    urls = lab.urls("nas", "bucket", "work-box", kind="memory")
    w = lab.init(urls, name="photos")
    write(w.directory, {"notes.txt": b"milk\nbread\nolives\n", "holiday/beach.png": png(90, 160, 200)})
    (w.directory / os.fsdecode(HOSTILE)).write_bytes(b"x")
    w.push("first <b>photos</b>")
    other = lab.clone(urls, name="photos", device="<i>phone</i>")
    write(w.directory, {"notes.txt": b"milk\nbread\ncheese\n", "holiday/beach.png": png(200, 120, 90)})
    write(other.directory, {"notes.txt": b"milk\nbread\ntea\n", "holiday/beach.png": png(90, 200, 120)})
    other.push("tea")
    w.sync("cheese")
    return w


@pytest.fixture
def page(laptop: Workspace) -> Iterator[Served]:
    with served([laptop.directory]) as s:
        yield s


@pytest.fixture
def tab(browser: Any, page: Served) -> Iterator[Callable[..., Any]]:
    """Opens the page in a tab; what the console or a script complains of fails the test."""
    contexts, complaints = [], []

    def opened(**how: Any) -> Any:
        context = browser.new_context(**how)
        contexts.append(context)
        found = context.new_page()
        found.set_default_timeout(60_000)
        found.on("pageerror", lambda e: complaints.append(str(e)))
        found.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        found.goto(page.gate.url)
        found.wait_for_selector("#headline")
        return found

    yield opened
    for context in contexts:
        context.close()
    assert [c for c in complaints if not c.endswith(REFUSED)] == []


def go(tab: Any, page: Served, *parts: str) -> None:
    """Goes to a view, and waits for it."""
    tab.evaluate("() => document.getElementById('main').replaceChildren()")
    tab.evaluate("(hash) => { location.hash = hash }", "#/" + "/".join(parts))
    tab.wait_for_selector("main h1")


# ---- what a user does


def test_the_state_is_seen_and_the_address_shows_no_token(tab: Any, page: Served) -> None:
    seen = tab()
    assert seen.url.startswith(page.gate.origin + page.gate.path)
    assert page.gate.is_opened
    assert seen.inner_text("h1") == "photos"
    assert "2 files have a conflict" in seen.inner_text("#problems")
    assert seen.inner_text("main").count("Healthy") == 3
    seen.reload()
    seen.wait_for_selector("#headline")


def test_room_that_nobody_asked_for_is_not_said_to_be_kept_back(tab: Any, page: Served) -> None:
    """The overview of a folder that the daemon keeps asks no backend."""

    def as_kept(route: Any) -> None:
        answer = route.fetch()
        found = {**answer.json(), "state": None}
        backends = [{**b, "free": None, "total": None, "limit": None} for b in found["backends"]]
        route.fulfill(response=answer, json={**found, "backends": backends})

    shown = tab()
    said = "It does not tell how much room it has."
    go(shown, page, "storage")
    shown.route("**/overview*", as_kept)
    go(shown, page, "overview")
    assert "used." in shown.inner_text("main") and said not in shown.inner_text("main")


def test_the_file_that_opens_the_browser_leads_to_the_page(browser: Any, page: Served, tmp_path: Path) -> None:
    """A page of a file is another site; what it leads to is the page all the same, and its reload too."""
    opened: list[str] = []
    ui.opened(page.gate.url, tmp_path, opened.append)
    context = browser.new_context()
    seen = context.new_page()
    seen.goto(opened[0])
    seen.wait_for_selector("#headline")
    seen.reload()
    seen.wait_for_selector("#headline")
    (cookie,) = context.cookies(page.gate.origin + page.gate.path)
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", page.gate.path)
    assert context.cookies(page.gate.origin + "/elsewhere") == []
    context.close()


def test_another_site_in_the_same_browser_gets_nothing(browser: Any, page: Served) -> None:
    """A server on another port of this host is the same site to a browser: it is another origin, and has no path."""
    context = browser.new_context()
    seen = context.new_page()
    seen.goto(page.gate.url)
    seen.wait_for_selector("#headline")
    asked: list[str | None] = []

    def answer(route: Any) -> None:
        asked.append(route.request.all_headers().get("cookie"))
        route.fulfill(body="<!doctype html><title>evil</title>", content_type="text/html")

    evil = context.new_page()
    evil.route("http://127.0.0.1:9/**", answer)
    evil.goto("http://127.0.0.1:9/")
    assert asked == [None]
    url = f"{page.gate.origin}{page.gate.path}api/{page.id}/"
    read = "(url) => fetch(url, { credentials: 'include' }).then((r) => r.text(), (e) => e.name)"
    assert evil.evaluate(read, url + "overview") == "TypeError"
    change = (
        "(url) => fetch(url, { method: 'POST', credentials: 'include', mode: 'no-cors', body: '{\"seconds\": null}',"
        " headers: { 'content-type': 'text/plain' } }).then((r) => r.type, (e) => e.name)"
    )
    assert evil.evaluate(change, url + "do/pause") in ("opaque", "TypeError")
    assert page_settings(page, context)["paused"] == ""
    context.close()


def page_settings(page: Served, context: Any) -> Any:
    """What is set, as the browser that opened the page is told."""
    return context.request.get(f"{page.gate.origin}{page.gate.path}api/{page.id}/settings").json()


def test_a_second_browser_is_told_why_it_sees_nothing(tab: Any, page: Served, browser: Any) -> None:
    url = page.gate.url
    tab()
    context = browser.new_context()
    other = context.new_page()
    other.goto(url)
    other.wait_for_function("() => document.getElementById('told').textContent.includes('used already')")
    other.goto(page.gate.origin + page.gate.path)
    assert "has not opened the page" in other.inner_text("body")
    context.close()


def test_a_file_of_an_old_version_is_restored_and_that_is_undone(tab: Any, page: Served, laptop: Workspace) -> None:
    seen = tab()
    go(seen, page, "files", "1")
    seen.get_by_role("button", name="Restore … notes.txt").click()
    dialog = seen.get_by_role("dialog")
    assert "as of version 1" in dialog.inner_text()
    assert (laptop.directory / "notes.txt").read_bytes() == b"milk\nbread\ntea\n"
    dialog.get_by_role("button", name="Restore", exact=True).click()
    undo = seen.get_by_role("button", name="Undo")
    undo.wait_for()
    assert (laptop.directory / "notes.txt").read_bytes() == b"milk\nbread\nolives\n"
    undo.click()
    seen.get_by_role("dialog").get_by_role("button", name="Restore", exact=True).click()
    seen.get_by_text(re.compile(r"Restored notes\.txt from version [2-9]")).wait_for()
    assert (laptop.directory / "notes.txt").read_bytes() == b"milk\nbread\ntea\n"


def test_a_restore_that_is_not_confirmed_changes_nothing(tab: Any, page: Served, laptop: Workspace) -> None:
    seen = tab()
    go(seen, page, "files", "1")
    seen.get_by_role("button", name="Restore … notes.txt").click()
    seen.get_by_role("dialog").wait_for()
    seen.keyboard.press("Escape")
    seen.get_by_role("dialog").wait_for(state="detached")
    assert (laptop.directory / "notes.txt").read_bytes() == b"milk\nbread\ntea\n"


def test_versions_are_walked_through_by_the_keyboard(tab: Any, page: Served) -> None:
    seen = tab()
    go(seen, page, "history")
    link = seen.locator(".timeline a").first
    link.focus()
    seen.keyboard.press("Enter")
    seen.get_by_role("link", name="Files of this version").click()
    seen.get_by_role("link", name="holiday").click()
    seen.get_by_role("link", name="beach.png", exact=True).wait_for()
    assert seen.get_by_role("navigation", name="Folders").inner_text().endswith("holiday")
    with seen.expect_download() as saved:
        seen.get_by_role("link", name="Save holiday/beach.png", exact=True).click()
    assert Path(saved.value.path()).read_bytes() == png(90, 160, 200)


def test_a_conflict_is_compared_and_resolved(tab: Any, page: Served, laptop: Workspace) -> None:
    seen = tab()
    go(seen, page, "conflicts")
    seen.get_by_role("link", name="Compare notes.txt").click()
    seen.wait_for_selector(".diff")
    assert seen.locator(".diff .deleted").inner_text().endswith("-tea")
    assert seen.locator(".diff .added").inner_text().endswith("+cheese")
    seen.get_by_role("button", name="Keep this device’s").click()
    seen.get_by_role("dialog").get_by_role("button", name="Keep it").click()
    seen.get_by_text("is over. The next push tells the other devices.").wait_for()
    assert (laptop.directory / "notes.txt").read_bytes() == b"milk\nbread\ncheese\n"
    seen.get_by_role("link", name="Compare holiday/beach.png").click()
    seen.wait_for_selector(".sides img")
    loaded = "() => [...document.querySelectorAll('.sides img')].every((i) => i.complete && i.naturalWidth === 32)"
    seen.wait_for_function(loaded)
    seen.get_by_role("button", name="Keep both").click()
    seen.get_by_text("No conflict waits").wait_for()


def test_a_device_is_invited_by_a_qr_code(tab: Any, page: Served) -> None:
    seen = tab()
    go(seen, page, "devices")
    seen.get_by_role("button", name="Invite a device …").click()
    dialog = seen.get_by_role("dialog")
    dialog.get_by_label("Name of the new device").fill("tablet")
    dialog.get_by_label("Passphrase of the workspace").fill("wrong")
    dialog.get_by_role("button", name="Make the invitation").click()
    dialog.get_by_role("alert").wait_for()
    dialog.get_by_label("Passphrase of the workspace").fill(PASSPHRASE)
    dialog.get_by_role("button", name="Make the invitation").click()
    seen.get_by_role("img", name="QR code of the invitation for tablet").wait_for()
    assert seen.inner_text("#code").startswith("metasync-invitation-")
    seen.get_by_role("button", name="Done").click()
    seen.get_by_role("button", name="Take back tablet").click()
    seen.get_by_role("dialog").get_by_role("button", name="Take it back").click()
    seen.get_by_text("None waits to be used.").wait_for()


def test_transfers_are_paused_and_go_on(tab: Any, page: Served, laptop: Workspace) -> None:
    seen = tab()
    seen.get_by_role("button", name="Pause …").click()
    seen.get_by_role("button", name="For an hour").click()
    seen.get_by_role("heading", name="Paused").wait_for()
    assert laptop.settings().paused
    seen.get_by_role("button", name="Resume").click()
    seen.get_by_text("Transfers go on.").wait_for()
    assert not laptop.settings().paused


def test_a_sync_shows_its_transfers(tab: Any, page: Served, laptop: Workspace) -> None:
    seen = tab()
    write(laptop.directory, {"film.bin": os.urandom(1 << 20)})
    seen.get_by_role("button", name="Sync now").click()
    seen.get_by_role("heading", name="Transfers").wait_for()
    seen.get_by_text("was pushed.").wait_for()
    seen.get_by_role("heading", name="In step").wait_for()


def test_a_guard_asks_before_it_deletes(tab: Any, page: Served, laptop: Workspace) -> None:
    seen = tab()
    for path in (p for p in laptop.directory.rglob("*") if p.is_file() and ".metasync" not in p.parts):
        path.unlink()
    seen.get_by_role("button", name="Sync now").click()
    dialog = seen.get_by_role("dialog")
    dialog.get_by_role("heading", name="Delete that much?").wait_for()
    dialog.get_by_role("button", name="Cancel").click()
    assert len(laptop.ls().entries) > 0


def test_a_setting_is_changed_and_a_wrong_one_is_told(tab: Any, page: Served, laptop: Workspace) -> None:
    seen = tab()
    go(seen, page, "settings")
    seen.get_by_label("Upload limit").fill("fast")
    seen.get_by_role("button", name="Save Upload limit").click()
    seen.get_by_role("dialog").get_by_role("alert").wait_for()
    seen.get_by_role("dialog").get_by_role("button", name="Close").click()
    seen.get_by_label("Upload limit").fill("2M")
    seen.get_by_role("button", name="Save Upload limit").click()
    seen.get_by_text("Upload limit: 2M").wait_for()
    assert laptop.settings().settings == {"limit.up": "2M"}


def test_what_holds_for_all_devices_is_asked_for_twice(tab: Any, page: Served, laptop: Workspace) -> None:
    seen = tab()
    go(seen, page, "settings")
    for sure, keep in (("Cancel", None), ("Change it for all devices", "last=2")):
        seen.get_by_label("Versions that are kept", exact=True).fill("last=2")
        seen.get_by_role("button", name="Save Versions that are kept").click()
        seen.get_by_role("dialog").get_by_role("button", name=sure).click()
        seen.get_by_role("dialog").wait_for(state="detached")
        if keep is not None:
            seen.get_by_text("Versions that are kept: last=2").wait_for()
        assert laptop.keep().keep == keep


def test_a_dialog_that_was_closed_is_gone_at_once(tab: Any, page: Served) -> None:
    """Its words are in the page no longer, before any event is served: who types next finds one field."""
    seen = tab()
    go(seen, page, "settings")
    seen.get_by_label("Versions that are kept", exact=True).fill("last=2")
    seen.get_by_role("button", name="Save Versions that are kept").click()
    cancel = seen.get_by_role("dialog").get_by_role("button", name="Cancel")
    left = cancel.evaluate("button => { button.click(); return document.querySelectorAll('dialog').length; }")
    assert left == 0
    assert seen.evaluate("document.activeElement.textContent") == "Save Versions that are kept"


def test_the_end_of_the_program_is_told(browser: Any, page: Served) -> None:
    context = browser.new_context()
    seen = context.new_page()
    seen.goto(page.gate.url)
    seen.wait_for_selector("#headline")
    page.server.stop()
    seen.get_by_text("Not connected").wait_for()
    seen.get_by_role("button", name="Sync now").click()
    seen.get_by_role("dialog").get_by_text("The page has ended.").wait_for()
    context.close()


# ---- hostile names


def test_hostile_names_are_text(tab: Any, page: Served, laptop: Workspace) -> None:
    """No name of a file, device, version or backend becomes markup: nothing is loaded, no title changes."""
    seen = tab()
    wanted: list[str] = []
    seen.on("request", lambda r: wanted.append(r.url))
    for view in (*VIEWS, "history/1", f"files/latest/{path_id(HOSTILE)}"):
        go(seen, page, *view.split("/"))
        assert "MetaSync" in seen.title()
        assert seen.locator("main b, main i, main img[src=x], main script").count() == 0
    assert all(url.startswith(page.gate.origin + page.gate.path) for url in wanted)
    go(seen, page, "files")
    assert os.fsdecode(HOSTILE) in seen.inner_text("main")


def test_the_policy_stops_what_should_never_be_there(browser: Any, page: Served) -> None:
    """Were there a mistake in the page, the policy would still let no markup and no script in."""
    context = browser.new_context()
    seen = context.new_page()
    seen.goto(page.gate.url)
    seen.wait_for_selector("#headline")
    for code in ("document.body.innerHTML = '<b>x</b>'", "document.createElement('script').text = 'window.x = 1'"):
        assert (
            seen.evaluate(f"() => {{ try {{ {code}; return 'made' }} catch (e) {{ return e.name }} }}") == "TypeError"
        )
    loads = (
        "(url) => new Promise((r) => { const i = new Image(); i.onload = i.onerror = (e) => r(e.type); i.src = url })"
    )
    assert seen.evaluate(loads, "http://127.0.0.1:9/x.png") == "error"
    context.close()


# ---- everybody


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(tab: Any, page: Served, scheme: str) -> None:
    """A screen reader can use each view and each dialog; contrast is enough in light and in dark."""
    from axe_playwright_python.sync_playwright import Axe

    seen = tab(color_scheme=scheme, bypass_csp=True)  # axe is put into the page as a script
    axe = Axe()
    copy = page_copy(page, seen)
    found = {}
    for view in (*VIEWS, "history/1", "files/latest/bm90ZXMudHh0", f"conflicts/{copy}"):
        go(seen, page, *view.split("/"))
        found[view] = violations(axe, seen)
    go(seen, page, "overview")
    seen.get_by_role("button", name="Pause …").click()
    found["pause"] = violations(axe, seen)
    seen.keyboard.press("Escape")
    go(seen, page, "devices")
    seen.get_by_role("button", name="Invite a device …").click()
    found["invite"] = violations(axe, seen)
    assert {view: f for view, f in found.items() if f} == {}


def page_copy(page: Served, seen: Any) -> str:
    """The id of the copy of a conflict."""
    go(seen, page, "conflicts")
    href = seen.get_by_role("link", name="Compare notes.txt").get_attribute("href")
    return str(href).rpartition("/")[2]


def violations(axe: Any, seen: Any) -> list[Any]:
    told = axe.run(seen).response["violations"]
    return [(v["id"], [(n["target"], n.get("failureSummary", "")[:200]) for n in v["nodes"]][:3]) for v in told]


@pytest.mark.parametrize("width", [320, 768])
def test_no_view_scrolls_sideways(tab: Any, page: Served, width: int) -> None:
    seen = tab(viewport={"width": width, "height": 640})
    copy = page_copy(page, seen)
    for view in (*VIEWS, "history/1", f"files/latest/{path_id(HOSTILE)}", f"conflicts/{copy}"):
        go(seen, page, *view.split("/"))
        assert seen.evaluate("() => document.documentElement.scrollWidth") <= width, view


def test_a_phone_has_a_menu(tab: Any, page: Served) -> None:
    seen = tab(viewport=PHONE)
    link = seen.get_by_role("link", name="Storage", exact=True)
    assert not link.is_visible()
    seen.get_by_role("button", name="Menu").click()
    link.click()
    seen.get_by_role("heading", name="Storage").wait_for()
    assert not link.is_visible()


def test_all_is_reached_by_the_keyboard_alone(tab: Any, page: Served) -> None:
    """From the top: skip to the content, or through the views; a dialog takes the focus and gives it back."""
    seen = tab()
    seen.keyboard.press("Tab")
    assert seen.evaluate("() => document.activeElement.id") == "skip"
    seen.keyboard.press("Enter")
    assert seen.evaluate("() => document.activeElement.id") == "main"
    words = set()
    for _ in range(40):
        seen.keyboard.press("Tab")
        words.add(seen.evaluate("() => document.activeElement.textContent.trim()"))
    assert {"Sync now", "Pause …", "More about storage", "All of the history"} <= words
    seen.get_by_role("button", name="Pause …").focus()
    seen.keyboard.press("Enter")
    assert seen.evaluate("() => document.activeElement.textContent") == "For an hour"
    seen.keyboard.press("Escape")
    seen.get_by_role("dialog").wait_for(state="detached")
    assert seen.evaluate("() => document.activeElement.textContent") == "Pause …"
