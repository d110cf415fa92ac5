"""A provider of a workspace misbehaves: it is silent, shows a page, is too busy, or alters what it holds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import impostor
import pytest
import webdav
from crash_kit import CHEAP, PASSPHRASE, make_tree, quiet_environment, read_tree, same_trees
from providers_kit import DAMAGES, clone, damage_one_each, urls_of

from metasync.reports.checks import CheckReport
from metasync.workspace import Workspace

pytestmark = pytest.mark.servers
quiet_environment()


@pytest.fixture
def own_servers(
    request: pytest.FixtureRequest, dav_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """A server each of three kinds, for this test alone: what is learnt of them is forgotten with it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if missing := webdav.why_not("apache"):
        pytest.skip(missing)
    with webdav.running("apache", 1, tmp_path / "dav", dav_env) as davs:
        yield {
            "webdav": davs[0],
            "s3": request.getfixturevalue("own_s3_server"),
            "sftp": request.getfixturevalue("own_ssh_server"),
        }


def found(report: CheckReport) -> set[tuple[str, str, str]]:
    return {(p.backend, p.pack.hex(), p.problem) for p in (*report.problems, *report.meta_problems)}


@pytest.mark.parametrize("manner", impostor.MANNERS)
def test_what_answers_in_a_servers_place_holds_up_nobody(
    own_servers: dict[str, Any], tmp_path: Path, manner: impostor.Manner
) -> None:
    urls = urls_of(own_servers, tmp_path) | {n: f"file://{tmp_path / n}?name={n}" for n in ("disk2", "disk3")}
    one, two = tmp_path / "one", tmp_path / "two"
    make_tree(one, random.Random(5), files=20)
    with Workspace.init(
        one, name="all", backends=[*urls.values()], passphrase=PASSPHRASE, kdf=CHEAP, device_name="one"
    ).workspace as w:
        w.push("first")
    before: set[str] = set()
    for name, server in own_servers.items():
        if manner == "busy" and name != "webdav":
            continue  # SSH has no such answer, and what S3 says of it takes as long and shows no more
        server.stop()
        with impostor.in_place_of(server.port, manner) as there:
            (one / f"without {name}").write_bytes(name.encode())
            with Workspace.open(one) as w:
                assert w.push(f"without {name}").version is not None
                states = {b.name: b.state for b in w.backends()}
                assert {n for n, state in states.items() if state != "ok"} == {name}, states
                report = w.check()
            accused = found(report)
            assert any(backend == name for backend, _, _ in accused)
            late = {(b, p, what) for b, p, what in accused if b in before and what == "missing"}  # it stands in here
            assert {backend for backend, _, _ in accused - late} == {name}, accused
            assert not report.lost
            assert there.heard
        server.start()
        before.add(name)
    clone(two, urls, "two").close()
    same_trees({"one": read_tree(one), "two": read_tree(two)})
    with Workspace.open(one) as w:
        w.push()  # takes it in
        report = w.check(read_data=True)
        assert found(report) == set(), "what came back is not blamed for what others hold in its stead"
        assert not report.lost


def test_devices_join_a_mixed_quorum_while_one_is_away(dav_env: dict[str, str], tmp_path: Path) -> None:
    """Two in block form and two in log form: three must agree, and who is not in yet writes to two alone."""
    if missing := webdav.why_not("apache") or webdav.why_not("wsgidav"):
        pytest.skip(missing)
    with (
        webdav.running("apache", 1, tmp_path / "apache", dav_env) as apache,
        webdav.running("wsgidav", 1, tmp_path / "wsgidav", dav_env) as wsgidav,
    ):
        urls = urls_of({"apache": apache[0], "wsgidav": wsgidav[0]}, tmp_path)
        urls["disk2"] = f"file://{tmp_path}/disk2?name=disk2"
        places = {name: tmp_path / name for name in ("one", "two", "three")}
        make_tree(places["one"], random.Random(3), files=10)
        with Workspace.init(
            places["one"], name="all", backends=[*urls.values()], passphrase=PASSPHRASE, kdf=CHEAP, device_name="one"
        ).workspace as w:
            w.push("first")
        for away, device in ((apache[0], "two"), (wsgidav[0], "three")):
            away.stop()
            clone(places[device], urls, device).close()
            with Workspace.open(places["one"]) as w:
                w.push()  # takes it in
            (places[device] / f"of {device}").write_bytes(b"mine")
            with Workspace.open(places[device]) as w:
                assert w.push(f"of {device}").version is not None
            with Workspace.open(places["one"]) as w:
                w.pull()
            away.start()
        with Workspace.open(places["two"]) as w:
            w.pull()
        with Workspace.open(places["one"]) as w:
            report = w.check(read_data=True)
            assert (found(report), report.lost) == (set(), ())
        same_trees({name: read_tree(place) for name, place in places.items()})


def test_every_altered_cut_or_missing_copy_is_named_and_no_other(providers: dict[str, Any], tmp_path: Path) -> None:
    urls = urls_of(providers, tmp_path)
    one = tmp_path / "one"
    one.mkdir()
    with Workspace.init(
        one, name="all", backends=[*urls.values()], passphrase=PASSPHRASE, kdf=CHEAP, device_name="one",
        replicas=len(urls),
    ).workspace as w:  # fmt: skip
        for number in range(2 * len(DAMAGES)):  # half of the packs of each backend stay whole
            (one / f"file{number}").write_bytes(random.Random(number).randbytes(30_000))
            w.push(f"push {number}")
        assert found(w.check(read_data=True)) == set()
        done = {d for turn, (name, url) in enumerate(urls.items()) for d in damage_one_each(name, url, turn)}
        assert {d.backend for d in done if d.shows and d.problem == "altered"} >= {"s3", "gcs"}, "they tell digests"
        every = {d[:3] for d in done}
        quick = found(w.check())
        assert quick <= every, "who is well is not accused"
        assert quick >= {d[:3] for d in done if d.shows}
        report = w.check(read_data=True)
        assert found(report) == every
        assert not report.lost
    clone(tmp_path / "two", urls, "two").close()
    same_trees({"one": read_tree(one), "two": read_tree(tmp_path / "two")})
