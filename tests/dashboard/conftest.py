"""A workspace with a history, and its page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from page_kit import Served, served
from workspace_kit import Lab, laboratory, write

from metasync.workspace import Workspace


def begun(lab: Lab) -> Workspace:
    """A workspace `photos` at version 1."""
    w = lab.init(lab.urls("nas", "bucket", "work-box", kind="memory"), name="photos")
    write(w.directory, {"notes.txt": b"milk\nbread\nolives\n", "letters/a.txt": b"dear a"})
    w.push("first")
    return w


@pytest.fixture
def laptop(lab: Lab) -> Workspace:
    return begun(lab)


@pytest.fixture
def page(laptop: Workspace) -> Iterator[Served]:
    """Its page, which the user has opened."""
    with served([laptop.directory]) as s:
        s.open()
        yield s


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One page for all tests of a module, which must change nothing."""
    root = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch, laboratory(root, patch) as lab, served([begun(lab).directory]) as s:
        s.open()
        yield s


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """One workspace for all tests of a module, which must change nothing."""
    with pytest.MonkeyPatch.context() as patch, laboratory(tmp_path_factory.mktemp("folder"), patch) as lab:
        yield begun(lab)
