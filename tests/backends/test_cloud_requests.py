"""What each cloud is asked for: no command takes more requests than its bar, and none looks for the folder again.

A cloud that is the only backend is waited for, so that its requests are the same in each run, but for one or two of a
busy machine. Beside folders it gets as many as there is time for. docs/benchmarks.md has the figures of today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from clouds_kit import CLOUDS, Cloud
from servers.standin import Exchange, Standin, linked
from workspace_kit import Lab, write

from metasync.workspace import Workspace

FIRST, MORE, AGAIN, PULL, PUSH = (
    "push of 70",
    "push of one more",
    "and of another",
    "pull of nothing",
    "push of nothing",
)
BUSY: Final = 2  # more than without anything else to do
ALONE: Final[Mapping[str, Mapping[str, int]]] = {
    "dropbox": {FIRST: 14, MORE: 9, AGAIN: 7, PULL: 4, PUSH: 3},
    "onedrive": {FIRST: 26, MORE: 24, AGAIN: 22, PULL: 6, PUSH: 6},
    "box": {FIRST: 21, MORE: 14, AGAIN: 11, PULL: 5, PUSH: 5},
}
"""Of a workspace with this backend alone. Google Drive does not vote, so that it cannot be alone."""

OF_THREE_MAX: Final = 30  # a push with the cloud as one of three; at Box and OneDrive one more for each new folder
FOLDERS: Final = {"box": 1, "onedrive": 1}


@pytest.fixture
def standin(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    with linked(cloud.make(), monkeypatch, tmp_path / "config") as made:
        yield made


def looks_for_the_folder(exchange: Exchange) -> bool:
    """Whether a request looks up the store's own folder by its path, as providers.md has it: once a day."""
    request = exchange.request
    return (
        (request.path == "/2/files/get_metadata" and b'"/notes"' in request.body)
        or "/special/approot" in request.path
        or (request.path in ("/2.0/folders", "/2.0/files/content") and b'"notes"' in request.body)
        or "name = 'notes'" in request.query.get("q", "")
    )


def commands(lab: Lab, standin: Standin, urls: list[str], **options: Any) -> dict[str, list[Exchange]]:
    """What each command asks for. In life each is a process of its own: the workspace is opened anew."""
    w = lab.init(urls, **options)
    assert any(map(looks_for_the_folder, standin.take_log()))
    out: dict[str, list[Exchange]] = {}

    def run(what: str, do: Callable[[Workspace], object]) -> None:
        nonlocal w
        w = lab.reopen(w)
        standin.take_log()
        do(w)
        w.close()
        out[what] = standin.take_log()

    write(Path(w.directory), {f"{n}.txt": f"file {n}\n".encode() for n in range(70)})
    run(FIRST, lambda w: w.push("first"))
    for what in (MORE, AGAIN):
        write(Path(w.directory), {what: b"a line of text\n" * 100})
        run(what, lambda w: w.push("one more"))
    run(PULL, lambda w: w.pull())
    run(PUSH, lambda w: w.push())
    return out


def told(log: list[Exchange]) -> str:
    return "\n".join(f"{e.request.method} {e.request.path[-60:]} {e.status}" for e in log)


@pytest.mark.few(1)
@pytest.mark.parametrize("cloud", [one for one in CLOUDS if one.name in ALONE], ids=lambda cloud: cloud.name)
def test_a_cloud_alone(lab: Lab, cloud: Cloud, standin: Any) -> None:
    for what, log in commands(lab, standin, [f"{cloud.name}:/notes?name={cloud.name}"]).items():
        assert len(log) <= ALONE[cloud.name][what] + BUSY, f"{what}:\n{told(log)}"
        assert not any(map(looks_for_the_folder, log)), f"{what}: the folder is known for a day\n{told(log)}"


@pytest.mark.parametrize(
    "cloud", [pytest.param(one, id=one.name, marks=pytest.mark.long if one.name in ALONE else ()) for one in CLOUDS]
)
def test_a_cloud_as_one_of_three(lab: Lab, cloud: Cloud, standin: Any) -> None:
    urls = [*lab.urls("a", "b", kind="memory"), f"{cloud.name}:/notes?name={cloud.name}"]
    for what, log in commands(lab, standin, urls, replicas=2).items():
        assert len(log) <= OF_THREE_MAX + FOLDERS.get(cloud.name, 0), f"{what}:\n{told(log)}"
        assert not any(map(looks_for_the_folder, log)), f"{what}: the folder is known for a day\n{told(log)}"
