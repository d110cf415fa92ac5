"""The clouds keep the id of a store's own folder for a day: what that saves, and what it must not hide."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

for library in ("dropbox", "box_sdk_gen", "googleapiclient"):
    pytest.importorskip(library)

from servers.box_standin import BoxStandin  # noqa: E402  (after what may be missing)
from servers.dropbox_standin import DropboxStandin  # noqa: E402
from servers.gdrive_standin import GoogleDriveStandin  # noqa: E402
from servers.onedrive_standin import OneDriveStandin  # noqa: E402
from servers.standin import Standin, linked  # noqa: E402

from metasync.backends._shared import kept_root  # noqa: E402
from metasync.backends._shared.logins import forget_open, kept  # noqa: E402
from metasync.backends._shared.logins.oauth import PROVIDERS  # noqa: E402
from metasync.backends._shared.native_ids import NativeIds, path_for  # noqa: E402
from metasync.backends.api import Backend  # noqa: E402
from metasync.backends.registry import open_backend, parse_url  # noqa: E402
from metasync.errors import NotFoundError, UnreachableError  # noqa: E402


def _dropbox_moves(standin: DropboxStandin, name: str, other: str) -> None:
    moved = {p: one for p, one in standin.tree.items() if f"{p}/".startswith(f"/{name}/")}
    for path, one in moved.items():
        standin.tree[f"/{other}{path[len(name) + 1 :]}"] = standin.tree.pop(path)
        del one


def _onedrive_moves(standin: OneDriveStandin, name: str, other: str) -> None:
    standin._store(replace(standin._at((name,)), name=other))


def _box_moves(standin: BoxStandin, name: str, other: str) -> None:
    item = standin.find(f"/{name}")
    del standin._names[item.parent, name]
    item.name = other
    standin._names[item.parent, other] = item.id


def _gdrive_moves(standin: GoogleDriveStandin, name: str, other: str) -> None:
    next(file for file in standin.files.values() if file.name == name).name = other


class Kind(NamedTuple):
    standin: Callable[[], Any]
    moves: Callable[[Any, str, str], None]  # renames a folder at the top of what the app sees


KINDS = {
    "box": Kind(BoxStandin, _box_moves),
    "dropbox": Kind(DropboxStandin, _dropbox_moves),
    "gdrive": Kind(GoogleDriveStandin, _gdrive_moves),
    "onedrive": Kind(OneDriveStandin, _onedrive_moves),
}


class Cloud:
    """A stand-in and the devices that use it."""

    def __init__(self, name: str, standin: Standin) -> None:
        self.name, self.kind, self.standin = name, KINDS[name], standin
        self.opened: list[Backend] = []

    def restart(self, path: str = "ws", *, create_root: bool = False) -> Backend:
        """The store as a process opens it that has just begun."""
        forget_open()
        self.opened.append(open_backend(parse_url(f"{self.name}:/{path}"), create_root=create_root))
        self.standin.take_log()
        return self.opened[-1]

    def requests(self) -> int:
        """Those since the last time, but for renewals of the login."""
        return len([one for one in self.standin.take_log() if "token" not in one.request.path])

    def moves(self, name: str, other: str) -> None:
        with self.standin.lock:
            self.kind.moves(self.standin, name, other)


@pytest.fixture(params=KINDS)
def cloud(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    made = KINDS[request.param].standin()
    with linked(made, monkeypatch, tmp_path / "home"):
        found = Cloud(request.param, made)
        yield found
        for backend in found.opened:
            backend.close()


def test_the_folder_is_asked_for_once_a_day(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten processes ask no more for it than one; another day it is asked for again."""
    first = cloud.restart(create_root=True)
    identity = first.identity()
    assert [cloud.restart().identity() for _ in range(10)] == [identity] * 10
    assert cloud.requests() == 0
    now = time.time()
    for later_s, requests in ((kept_root.KEPT_S - 60, 0), (kept_root.KEPT_S + 60, 1), (-3600.0, 1)):
        monkeypatch.setattr(time, "time", lambda later_s=later_s: now + later_s)
        assert cloud.restart().identity() == identity
        assert cloud.requests() == requests


def test_a_copy_in_its_place_is_not_taken_for_it(cloud: Cloud) -> None:
    """The folder is moved, and another is made at its path, as a restore from a copy does it.

    What is stored by then goes where the id leads. Nothing of the folder in its place is read, and nothing is written
    there, although the URL leads to it: two logs would go by one name.
    """
    device = cloud.restart(create_root=True)
    device.put("d/a", b"of the first")
    identity = device.identity()
    cloud.moves("ws", "away")
    copy = cloud.restart("other", create_root=True)
    copy.put("d/a", b"of the copy")
    cloud.moves("other", "ws")
    for name, one in (("d/b", device), ("d/c", cloud.restart())):
        assert one.get("d/a", max_bytes=99) == b"of the first"
        assert one.create(name, b"new") is True
        assert one.identity() == identity
        with pytest.raises(NotFoundError):
            copy.get(name, max_bytes=9)


def test_a_folder_that_was_replaced_is_away(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone, and another is at its path. Who had the first one never goes over to the second."""
    monkeypatch.setattr(kept_root, "SEEN_S", -1.0)
    device = cloud.restart(create_root=True)
    identity = device.identity()
    late = cloud.restart()
    assert late.identity() == identity
    cloud.moves("ws", "away")
    _remove(cloud, "away")
    cloud.restart("other", create_root=True)
    cloud.moves("other", "ws")
    for one in (device, device, late, late):
        with pytest.raises(UnreachableError):
            _asks(one)
    assert cloud.restart().identity() != identity


def test_an_account_that_is_linked_anew_has_no_ids(cloud: Cloud) -> None:
    """It may be another account by the same label, where an id of the first one's is nobody's, or a stranger's."""
    cloud.restart(create_root=True).identity()
    cloud.restart().identity()
    assert cloud.requests() == 0
    place = kept.Place(PROVIDERS[cloud.name], kept.DEFAULT)
    place.write(replace(place.read(), linked_at=1.0))
    cloud.restart().identity()
    assert cloud.requests() == 1


@pytest.mark.parametrize("line", ["", "id:x", "../.. y z", "id:zz 00 /ws", "a b c d e", "\0", "9 \xe9"])
def test_a_line_that_is_damaged_is_not_believed(cloud: Cloud, line: str) -> None:
    device = cloud.restart(create_root=True)
    device.put("a", b"1")
    identity = device.identity()
    _write_line(cloud, line)
    other = cloud.restart()
    assert other.identity() == identity
    assert other.get("a", max_bytes=9) == b"1"


def test_an_id_that_is_nobodys_is_found_out_by_the_first_call(cloud: Cloud) -> None:
    device = cloud.restart(create_root=True)
    identity = device.identity()
    wrong = "9" * 20
    _write_line(
        cloud, {"dropbox": f"id:{wrong} {bytes(32).hex()} /ws", "onedrive": f"A!{wrong} A"}.get(cloud.name, wrong)
    )
    with pytest.raises(UnreachableError):
        _asks(cloud.restart())
    assert cloud.restart().identity() == identity


def _write_line(cloud: Cloud, line: str) -> None:
    """Changes what is kept of the folder."""
    place = kept.Place(PROVIDERS[cloud.name], kept.DEFAULT)
    where = "ws" if cloud.name == "onedrive" else "/ws"
    ids = NativeIds(path_for(cloud.name, kept.DEFAULT, f"{place.read().linked_at:.6f}", cloud.standin.url, where))
    assert ids.get(".") is not None
    ids.note([(".", f"{line} {int(time.time())}")])
    ids.close()


def test_several_threads_that_find_nothing_ask_once_for_the_folder(cloud: Cloud) -> None:
    cloud.restart(create_root=True).put("d/there", b"1")
    device = cloud.restart()
    together, found = threading.Barrier(6), []
    looks = cloud.standin.switches
    looks.latency_s = 0.02

    def look(number: int) -> None:
        together.wait()
        try:
            device.stat(f"d/none-{number}")
        except NotFoundError:
            found.append(number)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [*range(6)]
    assert cloud.requests() <= 6 + 1


def _asks(backend: Backend) -> None:
    backend.get("d/nothing", max_bytes=9)


def _remove(cloud: Cloud, name: str) -> None:
    standin: Any = cloud.standin
    with standin.lock:
        if cloud.name == "dropbox":
            for path in [p for p in standin.tree if f"{p}/".startswith(f"/{name}/")]:
                del standin.tree[path]
        elif cloud.name == "onedrive":
            standin.remove_all(name)
        elif cloud.name == "box":
            standin.trash(standin.find(f"/{name}").id)
        else:
            for file in [file for file in standin.files.values() if file.name == name]:
                del standin.files[file.id]
