"""What the daemon tells: each problem once, by the ways that are set, and a log that stays small without secrets."""

from __future__ import annotations

import http.server
import json
import logging
import os
import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from daemon_kit import HUNG_S, FakeKeeper, problem, state, wait_for

from metasync.errors import UsageError, WorkspaceError
from metasync.local.settings import Settings
from metasync.reports.service import AWAY, DaemonState, Line, WorkspaceState
from metasync.runtime import daemon_keys
from metasync.service.telling import logs, metrics, notices, ways
from metasync.service.telling.due import AFTER_S, AN_HOUR_MAX, FORGET_S, PASSING_S, Notice, Told, due, noted
from metasync.service.telling.story import happened, words

NOW = 1_000_000.0
NOTICE = Notice("guard", "most files would go", "allow it", NOW, ("guard:push",))


# --- which are due


def test_a_problem_is_told_once_and_again_only_after_it_was_over_for_long() -> None:
    one = problem("guard:push", "guard")
    assert [n.keys for n in due([one], {}, NOW).notices] == [("guard:push",)]
    told = noted([one], {"guard:push": Told(NOW)}, NOW)
    assert due([one], told, NOW + 9e9).notices == ()
    told = noted([], told, NOW + 1)
    assert due([one], noted([one], told, NOW + 2), NOW + 2).notices == ()  # it came and went
    told = noted([], noted([], told, NOW + 3), NOW + 3 + FORGET_S)
    assert told == {}


@pytest.mark.parametrize(
    ("key", "kind", "wait_s"),
    [
        ("backend:usb", "backend", AFTER_S),
        (AWAY, "folder", AFTER_S),
        ("push:folder", "folder", PASSING_S),  # settings or a local state that cannot be read
        ("quorum", "quorum", PASSING_S),
    ],
)
def test_what_may_pass_by_itself_is_told_when_it_lasts(key: str, kind: Any, wait_s: float) -> None:
    away = problem(key, kind, since_s=NOW)
    early = due([away], {}, NOW + wait_s - 1)
    assert early.notices == ()
    assert early.look_s == NOW + wait_s
    assert len(due([away], {}, NOW + wait_s).notices) == 1
    assert len(due([away], {}, NOW + 60, after_s=60).notices) == 1


@pytest.mark.parametrize("kind", ["disk", "space", "unplaced", "guard", "login", "damage", "fork", "conflict"])
def test_what_waits_for_the_user_is_told_at_once(kind: Any) -> None:
    assert len(due([problem("x", kind, since_s=NOW)], {}, NOW).notices) == 1


def test_many_of_a_kind_are_told_together_and_there_is_an_end_to_them_in_an_hour() -> None:
    many = [problem(f"conflict:{n}", text=f"f{n} has two sides") for n in range(500)]
    (one,) = due(many, {}, NOW).notices
    assert one.text == "f0 has two sides; and 499 more of this kind"
    assert len(one.keys) == 500
    told = {f"k{n}": Told(NOW - 1800 + n) for n in range(AN_HOUR_MAX)}
    late = due([problem("conflict:z")], told, NOW)
    assert late.notices == ()
    assert late.look_s == NOW - 1800 + 3600
    assert due([problem("conflict:z")], told, late.look_s).notices


def test_what_asks_nothing_of_the_user_is_not_told() -> None:
    assert due([problem("x", "other")], {}, NOW).notices == ()
    assert due([problem("x", "other", blocks=True)], {}, NOW).notices


# --- the ways


class Way:
    """Takes notices, or does not."""

    name = "test"

    def __init__(self) -> None:
        self.told: list[Notice] = []
        self.fails = 0
        self.tried = 0

    def tell(self, workspace: str, directory: str, notice: Notice) -> None:
        self.tried += 1
        if self.tried <= self.fails:
            raise ways.NotToldError("nobody is logged in")
        self.told.append(notice)


@pytest.fixture
def said() -> list[tuple[str, dict[str, Any]]]:
    return []


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> Way:
    made = Way()
    monkeypatch.setattr(notices, "ways_of", lambda _: (made,))
    return made


def begun(tmp_path: Path, said: list[Any]) -> notices.Notices:
    made = notices.Notices(Path("/w/docs"), tmp_path, lambda what, **v: said.append((what, v)), lambda: NOW)
    keeper = FakeKeeper(Path("/w/docs"), Settings(), lambda _: None)
    made.begin(keeper, Settings())
    return made


def test_a_notice_goes_out_once_also_after_a_restart(tmp_path: Path, way: Way, said: list[Any]) -> None:
    first = begun(tmp_path, said)
    first.hear(state(problems=(problem(),)))
    wait_for(lambda: way.told, "the notice")
    first.hear(state(problems=(problem(), problem("conflict:b"))))
    wait_for(lambda: len(way.told) == 2, "the other notice")
    wait_for(lambda: first._thread is None, "its end")
    again = begun(tmp_path, said)
    again.hear(state(problems=(problem("guard:x", "guard"), problem(), problem("conflict:b"))))
    wait_for(lambda: len(way.told) == 3, "the new one")
    assert [n.keys for n in way.told] == [("conflict:a",), ("conflict:b",), ("guard:x",)]
    assert {what for what, _ in said} == {"told"}
    for one in (first, again):
        one.end()


def test_what_reached_nobody_is_tried_again_and_said_once(
    tmp_path: Path, way: Way, said: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "RETRY_S", (0.001, 0.002))
    way.fails = 5
    made = begun(tmp_path, said)
    made.hear(state(problems=(problem(),)))
    wait_for(lambda: way.told, "the notice")
    wait_for(lambda: len(said) == 2)
    assert [what for what, _ in said] == ["not told", "told"]
    made.end()


def test_what_is_remembered_is_the_users_alone_and_nonsense_counts_as_nothing(tmp_path: Path) -> None:
    memory = notices.Memory(tmp_path, Path("/w/docs"))
    assert memory.read() == {}
    memory.write({"a": Told(1.0), "b": Told(2.0, 3.0)})
    assert memory.read() == {"a": Told(1.0), "b": Told(2.0, 3.0)}
    assert stat.S_IMODE(memory._path.stat().st_mode) == 0o600
    for data in (b"{", b"[]", b'{"a": {}}', b'{"a": {"at_s": 1e999, "over_s": null}}', b"[" * 10_000):
        memory._path.write_bytes(data)
        assert memory.read() == {}


def test_a_command_gets_the_notice_on_its_input_and_no_shell_sees_it(tmp_path: Path) -> None:
    out = tmp_path / "out file"
    program = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read() + sys.argv[2])"
    way = ways.Command(f"{sys.executable} -c {program!r} '{out}' '$HOME;id'")
    way.tell("docs", "/w/docs", replace(NOTICE, text="$(touch x) `id`"))
    document, _, rest = out.read_text().partition("}")
    assert json.loads(document + "}")["text"] == "$(touch x) `id`"
    assert rest == "$HOME;id"


def test_a_command_that_fails_or_hangs_is_told_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ways.NotToldError, match="ended with 3"):
        ways.Command(f"{sys.executable} -c 'raise SystemExit(3)'").tell("docs", "/w", NOTICE)
    with pytest.raises(ways.NotToldError, match="did not start"):
        ways.Command("/nowhere/program").tell("docs", "/w", NOTICE)
    monkeypatch.setattr(ways, "COMMAND_S", 0.01)
    with pytest.raises(ways.NotToldError, match="did not end"):
        ways.Command("sleep 600").tell("docs", "/w", NOTICE)


class Hook(http.server.BaseHTTPRequestHandler):
    """Takes what is posted; `/moved` sends elsewhere."""

    got: list[tuple[str, dict[str, str], Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.path, dict(self.headers), json.loads(body)))
        self.send_response({"/moved": 302, "/no": 500}.get(self.path, 204))
        if self.path == "/moved":
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[tuple[str, list[Any]]]:
    got: list[Any] = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Got", (Hook,), {"got": got}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_web_hook_gets_a_document_and_its_token_and_is_followed_nowhere(
    hook: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, got = hook
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(daemon_keys.WEBHOOK_TOKEN, "s3cret")
    ways.Webhook(f"{url}/hook?x=1").tell("docs", "/w/docs", NOTICE)
    path, head, document = got.pop()
    assert path == "/hook?x=1"
    assert head["Authorization"] == "Bearer s3cret"
    assert document == {
        "workspace": "docs", "directory": "/w/docs", "kind": "guard", "text": NOTICE.text, "next_step": "allow it",
        "since": NOW,
    }  # fmt: skip
    for where, why in (("/moved", "302"), ("/no", "500")):
        with pytest.raises(ways.NotToldError, match=why) as e:
            ways.Webhook(url + where).tell("docs", "/w", NOTICE)
        assert url not in e.value.message
    assert [path for path, _, _ in got] == ["/moved", "/no"]
    with pytest.raises(ways.NotToldError, match="not reached") as e:
        ways.Webhook("http://127.0.0.1:9/secret-path").tell("docs", "/w", NOTICE)
    assert "secret" not in e.value.message


def test_a_desktop_that_is_not_there_is_a_notice_that_was_not_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    with pytest.raises(ways.NotToldError, match="desktop"):
        ways.Desktop().tell("docs", "/w", NOTICE)


# --- the settings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("notify.desktop", "yes"), ("notify.webhook", "ftp://x"), ("notify.webhook", "https://"),
        ("notify.webhook", "http://example.org/x"), ("notify.webhook", "https://a:b@example.org/x"),
        ("notify.webhook", "https://example.org/a b"), ("notify.webhook", "https://example.org:x/"),
        ("notify.command", ""), ("notify.command", "'a"), ("daemon.broker", "http://x"), ("daemon.broker", "amqp://"),
        ("daemon.broker", "amqps://u:p@h"), ("daemon.broker", "amqp://u@example.org"), ("daemon.broker", "mqtts://h?x=1"),
        ("daemon.broker", "mqtts://h:99999"), ("daemon.metrics", "9464"), ("daemon.metrics", "0.0.0.0:1"),
        ("daemon.metrics", "127.0.0.1:0"), ("daemon.metrics", "127.0.0.1:65536"), ("daemon.metrics", "127.0.0.1:"),
    ],
)  # fmt: skip
def test_what_no_setting_may_be_is_refused(key: str, value: str) -> None:
    with pytest.raises(UsageError):
        daemon_keys.CHECKS[key](value)


def test_what_a_setting_may_be_is_taken() -> None:
    assert daemon_keys.metrics_address("[::1]:9464") == ("::1", 9464)
    broker = daemon_keys.broker_of("amqps://me@h/vhost")
    assert (broker.host, broker.port, broker.user, broker.path) == ("h", 5671, "me", "vhost")
    assert daemon_keys.broker_of("mqtt://[::1]").where == "mqtt://[::1]:1883"
    assert daemon_keys.argv_of("mail -s 'a b'") == ["mail", "-s", "a b"]
    daemon_keys.check_webhook("http://127.0.0.1:8080/x")
    assert "s3cret" not in repr(replace(broker, password="s3cret"))


# --- the log


def test_the_log_is_bounded_the_users_alone_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES_MAX", 2000)
    path = tmp_path / "d" / "daemon.log"
    log = logs.Log(path)
    for n in range(500):
        log.say("pushed", workspace="docs", version=n)
    logging.getLogger("metasync").warning("a listener raised %s", "x" * 9000)
    log.close()
    files = sorted(path.parent.iterdir())
    assert len(files) == logs.FILES_MAX + 1
    assert all(f.stat().st_size < 8000 and stat.S_IMODE(f.stat().st_mode) == 0o600 for f in files)
    found = logs.last(path, 20)
    assert found[-1]["what"] == "library"
    assert len(found[-1]["text"]) == logs.TEXT_CHARS_MAX
    assert [e["version"] for e in found[:-1]] == list(range(481, 500))
    assert logs.shown(found[0]).endswith("docs: pushed version 481")
    assert logs.last(path, 0) == []


def test_a_log_is_followed_beyond_its_beginning_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FOLLOW_S", 0.001)
    path = tmp_path / "daemon.log"
    path.write_text('{"what": "old"}\n')
    ends = threading.Event()
    heard: list[str] = []
    began = threading.Event()

    def follow() -> None:
        for entry in logs.follow(path, ends):
            heard.append(str(entry["what"]))
            began.set()

    thread = threading.Thread(target=follow)
    thread.start()
    with path.open("a") as file:
        wait_for(lambda: file.write('{"what": "one"}\n') and file.flush() is None and began.wait(0.01), "the first")
        file.write('{"what": "ha')
        file.flush()
        file.write('lf"}\nno json\n')
    wait_for(lambda: "no json" in heard)
    path.rename(tmp_path / "daemon.log.1")
    path.write_text('{"what": "new"}\n')
    wait_for(lambda: heard[-1] == "new")
    ends.set()
    thread.join(HUNG_S)
    assert set(heard) == {"one", "half", "no json", "new"}


def test_the_story_tells_what_changed_and_nothing_else() -> None:
    before = state(doing="in step", version=3, pulled_s=1.0)
    assert happened(before, before) == []
    assert happened(before, replace(before, doing="looking")) == []
    moved = happened(before, replace(before, doing="pushing", version=4, pulled_s=2.0))
    assert [words(e) for e in moved] == ["docs: pulled version 4", "docs: pushing"]
    wrong = replace(before, doing="waiting", why="usb", problems=(problem(text="usb is away", next_step="plug it in"),))
    told = happened(before, wrong)
    assert [words(e) for e in told] == ["docs: usb is away (plug it in)", "docs: waiting: usb"]
    assert [e["level"] for e in told] == ["warning", "info"]
    assert [words(e) for e in happened(wrong, before)] == ["docs: over: usb is away", "docs: in step"]
    assert [words(e) for e in happened(None, before)] == ["docs: in step"]


# --- figures


def whole() -> DaemonState:
    docs = state(
        version=7, changed=3, problems=(problem(), problem("conflict:b")), pushed_s=5.0,
        lines=(Line("usb", 10, 20, 3, "unplugged", 1.0),),
    )  # fmt: skip
    return DaemonState(7, "1.0", 3.0, (docs, state("/w/photos", "stuck")))


def test_the_figures_are_what_the_state_says() -> None:
    text = metrics.text(whole)
    for line in (
        'metasync_in_step{workspace="/w/docs"} 1.0', 'metasync_in_step{workspace="/w/photos"} 0.0',
        'metasync_stuck{workspace="/w/photos"} 1.0', 'metasync_version{workspace="/w/docs"} 7.0',
        'metasync_problems{kind="conflict",workspace="/w/docs"} 2.0',
        'metasync_up_bytes_total{backend="usb",workspace="/w/docs"} 10.0',
        'metasync_backend_away{backend="usb",workspace="/w/docs"} 1.0', "metasync_daemon_start_time_seconds 3.0",
    ):  # fmt: skip
        assert line in text
    assert 'metasync_pushed_time_seconds{workspace="/w/photos"}' not in text


def test_the_page_of_figures_is_there_while_a_workspace_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket
    import urllib.error
    import urllib.request

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        pages = metrics.Pages(whole)
        with pytest.raises(WorkspaceError, match="cannot be served"):
            pages.open(f"127.0.0.1:{port}", self := object())
    pages.open(f"127.0.0.1:{port}", self)
    pages.open(f"127.0.0.1:{port}", other := object())
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=HUNG_S) as answer:
        assert b"metasync_in_step" in answer.read()
    for host in (f"evil.example:{port}", "127.0.0.1", "evil.example", f"localhost:{port}.evil.example"):
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Host": host})
        with pytest.raises(urllib.error.HTTPError) as refused:  # the name of a page that was led here (DNS rebinding)
            opener.open(asked, timeout=HUNG_S)
        assert refused.value.code == 421
        assert b"metasync_" not in refused.value.read()
        refused.value.close()
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Host": f"localhost:{port}"})
    with opener.open(asked, timeout=HUNG_S) as answer:
        assert answer.status == 200
    pages.leave(self)
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=HUNG_S) as answer:
        assert answer.status == 200
    pages.leave(other)
    with pytest.raises(urllib.error.URLError):
        opener.open(f"http://127.0.0.1:{port}/metrics", timeout=HUNG_S)


def test_without_its_package_the_settings_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(WorkspaceError) as e:
        metrics.text(lambda: DaemonState(os.getpid(), "1", 0.0, ()))
    assert "metasync[metrics]" in e.value.next_step
    assert isinstance(state(), WorkspaceState)
