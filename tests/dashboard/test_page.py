"""What the page shows of a workspace, and what it has done there."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from daemon_kit import wait_for
from page_kit import HUNG_S, Ear, Served, served
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.dashboard import live, views
from metasync.dashboard.compare import kind_of
from metasync.dashboard.gate import HOST
from metasync.dashboard.workers import CHANGES_MAX
from metasync.errors import UsageError
from metasync.workspace import Workspace

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


def pid(path: bytes) -> str:
    return views.path_id(path)


def ok(answer: Any) -> Any:
    assert answer.status == 200, answer.body
    return answer.json


@pytest.fixture
def desktop(lab: Lab, laptop: Workspace) -> Workspace:
    """The same workspace on another device."""
    return lab.clone(lab.urls("nas", "bucket", "work-box", kind="memory"), name="photos")


@pytest.fixture
def conflict(laptop: Workspace, desktop: Workspace) -> Workspace:
    """The laptop after both sides edited one text and one picture."""
    write(desktop.directory, {"notes.txt": b"milk\nbread\ntea\n", "beach.png": PNG})
    desktop.push("tea")
    write(laptop.directory, {"notes.txt": b"milk\nbread\ncheese\n", "beach.png": PNG + b"x"})
    laptop.sync("cheese")
    return laptop


# ---- what is shown


def test_the_state_at_a_glance(page: Served, laptop: Workspace) -> None:
    write(laptop.directory, {"new.txt": b"new"})
    told = page.look("overview")
    assert (told["name"], told["version"], told["newest"], told["copies"], told["short"]) == ("photos", 1, 1, 2, 0)
    assert told["changes"]["added"] == {"count": 1, "first": [{"text": "new.txt", "id": pid(b"new.txt")}]}
    assert [(b["name"], b["condition"]) for b in told["backends"]] == [
        ("bucket", "ok"),
        ("nas", "ok"),
        ("work-box", "ok"),
    ]


def test_a_backend_that_is_away_is_told(page: Served, lab: Lab) -> None:
    lab.hurry()
    lab.faults["nas"].down = True
    told = page.look("overview")
    assert [b["condition"] for b in told["backends"]] == ["ok", "down", "ok"]
    assert told["newest"] == 1


def test_where_the_data_lie(page: Served) -> None:
    told = page.look("storage")
    assert len(told["together"]) == 3
    assert sum(part["share"] for part in told["together"]) == pytest.approx(1)
    assert all(len(part["backends"]) == 2 for part in told["together"])


def test_versions_and_what_they_changed(page: Served, laptop: Workspace) -> None:
    write(laptop.directory, {"notes.txt": b"milk\n", "b.txt": b"b"})
    (laptop.directory / "letters/a.txt").unlink()
    laptop.push("second")
    items = page.look("log", counted="yes")["items"]
    assert [(i["version"], i["message"], i["device"]) for i in items] == [
        (2, "second", "laptop"),
        (1, "first", "laptop"),
    ]
    assert items[0]["counts"] == {"added": 1, "modified": 1, "deleted": 1, "renamed": 0, "other": 0}
    shown = page.look("version", version="2")
    assert {(c["text"], c["kind"]) for c in shown["changes"]} == {
        ("notes.txt", "modified"),
        ("b.txt", "added"),
        ("letters/a.txt", "deleted"),
    }
    assert [i["version"] for i in page.look("log", path=pid(b"b.txt"))["items"]] == [2]


def test_the_files_of_a_version(page: Served, laptop: Workspace) -> None:
    (laptop.directory / "notes.txt").unlink()
    laptop.push("gone")
    assert [e["name"] for e in page.look("files", version="1")["entries"]] == ["letters", "notes.txt"]
    assert [e["name"] for e in page.look("files")["entries"]] == ["letters"]
    inside = page.look("files", version="1", path=pid(b"letters"))["entries"]
    assert [(e["name"], e["kind"], e["size"]) for e in inside] == [("a.txt", "file", 6)]


def test_an_unknown_version_is_told_in_words(page: Served) -> None:
    for version in ("99", "nonsense", "", "x" * 200, "1\n2"):
        answer = page.get(f"api/{page.id}/files?version={version.replace(chr(10), '%0A')}")
        assert answer.status == 409
        assert answer.message


# ---- hostile names


NAMES = [
    b"<img src=x onerror=alert(1)>",
    b'"><script>alert(1)<!--.svg',
    b"\xff\xfe.txt",
    "evil\u202etxt.exe".encode(),
    b"a\nb\tc.txt",
    b"% 00.txt",
    b"-rf",
    b"x" * 250,
]


def test_hostile_names_are_told_as_text_and_found_again(page: Served, laptop: Workspace) -> None:
    for n, name in enumerate(NAMES):
        Path(os.fsdecode(os.fsencode(laptop.directory) + b"/" + name)).write_bytes(b"%d" % n)
    laptop.push("<b>\u202ename</b>")
    found = {views.path_of(e["id"]): e for e in page.look("files")["entries"]}
    assert set(NAMES) <= set(found)
    assert all(e["name"].isprintable() for e in found.values())
    for n, name in enumerate(NAMES):
        answer = page.get(f"api/{page.id}/file?path={pid(name)}")
        assert answer.body == b"%d" % n
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
        assert answer.headers["content-disposition"].isascii()
        assert "sandbox" in answer.headers["content-security-policy"]
    assert page.look("log")["items"][0]["message"].isprintable()


def test_a_page_that_was_pushed_is_saved_and_never_shown(page: Served, laptop: Workspace) -> None:
    write(laptop.directory, {"evil.html": b"<script>alert(1)</script>"})
    laptop.push()
    answer = page.get(f"api/{page.id}/file?path={pid(b'evil.html')}")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"].startswith("attachment")


# ---- downloads


def test_a_large_file_is_downloaded_in_pieces(page: Served, laptop: Workspace) -> None:
    data = os.urandom(9 << 20)
    write(laptop.directory, {"film.bin": data})
    laptop.push()
    answer = page.get(f"api/{page.id}/file?path={pid(b'film.bin')}")
    assert (answer.status, answer.body) == (200, data)
    assert answer.headers["content-length"] == str(len(data))


def test_an_empty_file_is_downloaded(page: Served, laptop: Workspace) -> None:
    write(laptop.directory, {"empty": b""})
    laptop.push()
    answer = page.get(f"api/{page.id}/file?path={pid(b'empty')}")
    assert (answer.status, answer.body) == (200, b"")


def test_a_browser_that_goes_away_ends_its_download(page: Served, laptop: Workspace) -> None:
    write(laptop.directory, {"film.bin": os.urandom(40 << 20)})
    laptop.push()
    for _ in range(5):  # more than may run at once: each must give its turn back
        connection = http.client.HTTPConnection(HOST, page.server.port, timeout=HUNG_S)
        path = f"{page.gate.path}api/{page.id}/file?path={pid(b'film.bin')}"
        connection.request("GET", path, headers={"cookie": page.cookie})
        assert connection.getresponse().read(1000)
        connection.close()
    assert page.get(f"api/{page.id}/file?path={pid(b'notes.txt')}").body == b"milk\nbread\nolives\n"


def test_a_file_whose_packs_are_away_is_told_as_an_error(page: Served, lab: Lab) -> None:
    lab.hurry()
    for name in ("nas", "bucket", "work-box"):
        lab.faults[name].down = True
    answer = page.get(f"api/{page.id}/file?path={pid(b'notes.txt')}")
    assert answer.status in (200, 409)  # what is kept here may do
    if answer.status == 409:
        assert answer.message


# ---- restore


def test_restore_shows_what_it_would_do_and_then_does_it(page: Served, laptop: Workspace) -> None:
    write(laptop.directory, {"notes.txt": b"other\n"})
    laptop.push()
    before = tree_of(laptop.directory)
    plan = ok(page.do("restore", version="1", path=pid(b"notes.txt"), dry_run=True))
    assert plan["changes"]["modified"]["count"] == 1
    assert tree_of(laptop.directory) == before
    done = ok(page.do("restore", version="1", path=pid(b"notes.txt")))
    assert done["changes"]["count"] == 1
    assert (laptop.directory / "notes.txt").read_bytes() == b"milk\nbread\nolives\n"
    ok(page.do("restore", version="2", path=pid(b"notes.txt")))  # which undoes it
    assert (laptop.directory / "notes.txt").read_bytes() == b"other\n"


def test_restoring_a_folder_deletes_nothing(page: Served, laptop: Workspace) -> None:
    write(laptop.directory, {"letters/later.txt": b"later"})
    laptop.push()
    (laptop.directory / "letters/a.txt").unlink()
    ok(page.do("restore", version="1", path=pid(b"letters")))
    assert (laptop.directory / "letters/a.txt").read_bytes() == b"dear a"
    assert (laptop.directory / "letters/later.txt").read_bytes() == b"later"


def test_what_is_in_no_version_is_kept_by_a_restore(page: Served, laptop: Workspace) -> None:
    write(laptop.directory, {"notes.txt": b"unsaved\n"})
    plan = ok(page.do("restore", version="1", path=pid(b"notes.txt"), dry_run=True))
    assert [p["text"] for p in plan["unsaved"]] == ["notes.txt"]
    done = ok(page.do("restore", version="1", path=pid(b"notes.txt")))
    (kept,) = done["conflicts"]
    assert (laptop.directory / kept["copy"]["text"]).read_bytes() == b"unsaved\n"


# ---- conflicts


def test_both_sides_of_a_text_are_compared(conflict: Workspace) -> None:
    with served([conflict.directory]) as page:
        page.open()
        found = {c["text"]: c for c in page.look("conflicts")["conflicts"]}
        assert set(found) == {"notes.txt", "beach.png"}
        one = page.look("conflict", copy=found["notes.txt"]["copy"]["id"])
        assert [(s["device"], s["here"], s["size"], s["picture"]) for s in one["sides"]] == [
            ("desktop", False, 15, False),
            ("laptop", True, 18, False),
        ]
        assert one["lines"] == ["@@ -1,3 +1,3 @@", " milk", " bread", "-tea", "+cheese"]


@pytest.mark.parametrize("ours", [True, False])
def test_a_side_is_chosen(conflict: Workspace, ours: bool) -> None:
    with served([conflict.directory]) as page:
        page.open()
        (c,) = [c for c in page.look("conflicts")["conflicts"] if c["text"] == "notes.txt"]
        (side,) = [s for s in c["sides"] if s["here"] is ours]
        ok(page.do("resolve", copy=c["copy"]["id"], keep=side["id"]))
        assert (conflict.directory / "notes.txt").read_bytes().endswith(b"cheese\n" if ours else b"tea\n")
        assert [c["text"] for c in page.look("conflicts")["conflicts"]] == ["beach.png"]
        assert page.do("resolve", copy=c["copy"]["id"], keep=side["id"]).status == 409


def test_both_sides_may_stay(conflict: Workspace) -> None:
    with served([conflict.directory]) as page:
        page.open()
        before = tree_of(conflict.directory)
        for c in page.look("conflicts")["conflicts"]:
            ok(page.do("resolve", copy=c["copy"]["id"], keep=None))
        assert tree_of(conflict.directory).keys() == before.keys()
        assert page.look("conflicts") == {"conflicts": []}


def test_pictures_are_shown_side_by_side_and_nothing_else_is(conflict: Workspace) -> None:
    with served([conflict.directory]) as page:
        page.open()
        copies = {c["text"]: c["copy"]["id"] for c in page.look("conflicts")["conflicts"]}
        for side, data in enumerate((PNG, PNG + b"x")):
            answer = page.get(f"api/{page.id}/picture?copy={copies['beach.png']}&side={side}")
            assert (answer.headers["content-type"], answer.body) == ("image/png", data)
            assert "sandbox" in answer.headers["content-security-policy"]
        assert page.get(f"api/{page.id}/picture?copy={copies['notes.txt']}&side=0").status == 409
        for side in ("2", "-1", "x", ""):
            assert page.get(f"api/{page.id}/picture?copy={copies['beach.png']}&side={side}").status == 409


def test_only_what_a_conflict_names_is_read_from_the_folder(conflict: Workspace) -> None:
    (conflict.directory / "beach.png").unlink()
    (conflict.directory / "beach.png").symlink_to("/etc/passwd")
    with served([conflict.directory]) as page:
        page.open()
        copies = {c["text"]: c["copy"]["id"] for c in page.look("conflicts")["conflicts"]}
        for copy in (pid(b"notes.txt"), pid(b"../laptop/notes.txt"), pid(b"/etc/passwd"), pid(b"")):
            assert page.get(f"api/{page.id}/conflict?copy={copy}").status == 409
        assert page.get(f"api/{page.id}/picture?copy={copies['beach.png']}&side=0").status == 409
        one = page.look("conflict", copy=copies["beach.png"])
        assert one["sides"][0]["kind"] == "link" and one["lines"] == []


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF0000WEBPVP8 ", "image/webp"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'>", None),
        (b"<html>", None),
        (b"", None),
        (b"RIFF0000WAVE", None),
    ],
)
def test_pictures_are_told_by_their_bytes_and_none_can_hold_a_script(data: bytes, kind: str | None) -> None:
    assert kind_of(data) == kind


# ---- what is done


def test_a_sync_brings_and_sends(page: Served, laptop: Workspace, desktop: Workspace) -> None:
    write(desktop.directory, {"from-desktop.txt": b"x"})
    desktop.push()
    write(laptop.directory, {"from-laptop.txt": b"y"})
    told = ok(page.do("sync"))
    assert told["pulled"]["changes"]["added"]["count"] == 1
    assert told["pushed"]["version"] == page.look("overview")["version"]
    assert (laptop.directory / "from-desktop.txt").exists()


def test_a_guard_asks_and_is_allowed(page: Served, laptop: Workspace) -> None:
    for path in ("notes.txt", "letters/a.txt"):
        (laptop.directory / path).unlink()
    stopped = page.do("push")
    assert stopped.status == 409
    assert stopped.json["error"]["guard"] == {"deleted": 2, "files": 2}
    assert page.look("overview")["version"] == 1
    assert ok(page.do("push", force=True))["version"] == 2


def test_an_invitation_is_made_and_taken_back(page: Served) -> None:
    made = ok(page.do("invite", name="tablet", passphrase=PASSPHRASE))
    assert made["code"].startswith("metasync-invitation-")
    assert len(made["qr"]) == len(made["qr"][0]) > 20
    (one,) = page.look("devices")["invitations"]
    assert (one["name"], one["id"]) == ("tablet", made["id"])
    ok(page.do("take_back", invitation=made["id"]))
    assert page.look("devices")["invitations"] == []


def test_a_device_is_renamed(page: Served) -> None:
    (device,) = page.look("devices")["devices"]
    ok(page.do("rename", device=device["id"], name="old laptop"))
    assert [d["name"] for d in page.look("devices")["devices"]] == ["old laptop"]


def test_settings_are_set_and_taken_back(page: Served) -> None:
    assert ok(page.do("set", key="limit.up", value="2M"))["settings"] == {"limit.up": "2M"}
    assert ok(page.do("set", key="limit.up", value=None))["settings"] == {}
    assert ok(page.do("set", key="limit.up", value=None))["settings"] == {}
    assert ok(page.do("set", key="keep", value="last=10"))["keep"] == "last=10"
    assert ok(page.do("set", key="copies", value="3"))["copies"] == 3


def test_transfers_are_paused_and_go_on(page: Served, laptop: Workspace) -> None:
    assert ok(page.do("pause", seconds=3600))["paused"]
    assert page.do("push").json["error"]["kind"] == "PausedError"
    assert ok(page.do("resume"))["paused"] == ""


def test_a_folder_whose_state_is_gone_is_told_in_words(page: Served, laptop: Workspace, tmp_path: Path) -> None:
    (laptop.directory / ".metasync").rename(tmp_path / "elsewhere")
    answer = page.get(f"api/{page.id}/overview")
    assert answer.status == 409
    assert answer.json["error"]["kind"] == "WorkspaceError"


def test_a_mistake_of_ours_is_told_without_what_it_holds(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workspace, "status", lambda _: 1 / 0)
    answer = page.get(f"api/{page.id}/overview")
    assert answer.status == 500
    assert "division" not in answer.body.decode()


# ---- as it happens


def test_an_open_page_is_told_what_a_push_does(page: Served, laptop: Workspace) -> None:
    ear = Ear(page)
    states = ear.states()
    assert next(states)["doing"] == "starting"
    write(laptop.directory, {"film.bin": os.urandom(3 << 20)})
    done = threading.Thread(target=lambda: ok(page.do("push")))
    done.start()
    seen = next(s for s in states if any(line["up"] for line in s["lines"]))
    assert seen["activity"] is None or seen["activity"]["up"] > 0
    done.join(HUNG_S)
    page.look("overview")
    last = next(s for s in states if s["doing"] == "in step")
    assert (last["version"], last["daemon"]) == (2, False)
    assert {line["backend"] for line in last["lines"]} == {"nas", "bucket", "work-box"}
    ear.close()


def test_a_slow_look_holds_up_no_other(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Semaphore(0), threading.Event()
    status = Workspace.status

    def slow(w: Workspace) -> Any:
        begun.release()
        assert go.wait(HUNG_S)
        return status(w)

    monkeypatch.setattr(Workspace, "status", slow)
    looks = [threading.Thread(target=lambda: page.look("overview")) for _ in range(2)]
    for look in looks:
        look.start()
    for _ in looks:
        assert begun.acquire(timeout=HUNG_S)
    assert page.look("log")["items"][0]["version"] == 1
    go.set()
    for look in looks:
        look.join(HUNG_S)


def test_only_so_many_changes_wait(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(_: Workspace, *__: Any) -> Any:
        begun.set()
        assert go.wait(HUNG_S)
        raise UsageError("done")

    monkeypatch.setattr(Workspace, "pause", slow)
    codes: list[str] = []
    asking = [
        threading.Thread(target=lambda: codes.append(page.do("pause", seconds=None).message))
        for _ in range(CHANGES_MAX + 3)
    ]
    for thread in asking:
        thread.start()
    wait_for(lambda: len(codes) >= 3, "the refusals")  # they are answered while the others wait
    assert set(codes) == {"too much waits to be done already"}
    assert begun.is_set()
    go.set()
    for thread in asking:
        thread.join(HUNG_S)
    assert sorted(codes).count("done") == CHANGES_MAX


def test_a_page_that_is_slow_is_told_the_newest_state_and_none_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.0)

    async def run() -> list[int]:
        told, sent, free = live.Live(asyncio.get_running_loop(), lambda _: None), asyncio.Event(), asyncio.Event()
        seen: list[int] = []

        async def send(message: Any) -> None:
            found = [line for line in message.get("body", b"").split(b"\n") if line.startswith(b"data: ")]
            seen.extend(json.loads(line[6:])["n"] for line in found)
            if found:
                sent.set()
                await free.wait()

        async def receive() -> Any:
            await asyncio.Event().wait()

        listening = asyncio.create_task(told({}, receive, send))
        told.tell({"id": "a", "n": 0})
        await sent.wait()
        for n in range(1, 100):
            told.tell({"id": "a", "n": n})
            await asyncio.sleep(0)
        sent.clear()
        free.set()
        await sent.wait()
        told.end()
        await listening
        return seen

    assert asyncio.run(asyncio.wait_for(run(), HUNG_S)) == [0, 99]


def test_the_server_ends_when_nobody_looks_any_more(laptop: Workspace) -> None:
    with served([laptop.directory]) as page:
        page.open()
        page.server.quiet_s = 0.0
        ear = Ear(page)
        assert next(ear.states())
        assert page.thread.is_alive()
        ear.close()
        page.thread.join(HUNG_S)
        assert not page.thread.is_alive()


def test_the_server_ends_when_nobody_opens_it(laptop: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasync.dashboard.server.FIRST_PAGE_S", 0.0)
    with served([laptop.directory]) as page:
        page.thread.join(HUNG_S)
        assert not page.thread.is_alive()


def test_an_end_waits_for_what_was_begun(laptop: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that the user began is not cut short because the tab was closed."""
    begun, go = threading.Event(), threading.Event()
    push = Workspace.push

    def slow(w: Workspace, *args: Any, **options: Any) -> Any:
        begun.set()
        assert go.wait(HUNG_S)
        return push(w, *args, **options)

    monkeypatch.setattr(Workspace, "push", slow)
    write(laptop.directory, {"new.txt": b"new"})
    with served([laptop.directory]) as page:
        page.open()
        page.server.quiet_s = 0.0
        ear = Ear(page)
        assert next(ear.states())
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(page.do("push")))
        asking.start()
        assert begun.wait(HUNG_S)
        ear.close()
        go.set()
        asking.join(HUNG_S)
        page.thread.join(HUNG_S)
        assert ok(answers[0])["version"] == 2
