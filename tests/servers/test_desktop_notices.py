"""Notices on a real D-Bus session bus, with a desktop of the test's own that takes them as the specification says."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_kit import HUNG_S

from metasync.service.telling.due import Notice
from metasync.service.telling.ways import Desktop, NotToldError

pytestmark = pytest.mark.servers
NOTICE = Notice("conflict", "<b>a & b</b>.txt has two sides", "metasync conflicts", 0.0, ("conflict:a",))


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    program = shutil.which("dbus-daemon")
    if program is None:
        pytest.skip("no dbus-daemon")
    config = tmp_path / "session.conf"
    config.write_text(
        f"<busconfig><type>session</type><listen>unix:path={tmp_path}/bus</listen>"
        '<policy context="default"><allow send_destination="*"/><allow eavesdrop="true"/><allow own="*"/></policy>'
        "</busconfig>"
    )
    with subprocess.Popen(
        [program, f"--config-file={config}", "--nofork", "--print-address"], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", child.stdout.readline().strip())
        yield
        child.terminate()


def test_a_notice_is_shown_as_it_stands_and_names_make_no_markup(bus: None) -> None:
    from jeepney import MessageType, new_method_return
    from jeepney.bus_messages import message_bus
    from jeepney.io.blocking import open_dbus_connection

    shown: list[Any] = []
    desktop = open_dbus_connection(bus="SESSION")
    desktop.send_and_get_reply(message_bus.RequestName("org.freedesktop.Notifications"), timeout=HUNG_S)

    def serve() -> None:
        while not shown:
            message = desktop.receive(timeout=HUNG_S)
            if message.header.message_type is MessageType.method_call:
                shown.append(message.body)
                desktop.send(new_method_return(message, "u", (1,)))

    thread = threading.Thread(target=serve)
    thread.start()
    Desktop().tell("docs", "/w/docs", NOTICE)
    thread.join(HUNG_S)
    desktop.close()
    name, replaces, _icon, summary, body, actions, hints, expires = shown[0]
    assert (name, replaces, summary, actions, expires) == ("MetaSync", 0, "MetaSync: docs", [], -1)
    assert body == "&lt;b&gt;a &amp; b&lt;/b&gt;.txt has two sides\nmetasync conflicts"
    assert hints == {"urgency": ("y", 1)}


def test_a_bus_without_a_desktop_shows_nothing_and_says_so(bus: None) -> None:
    with pytest.raises(NotToldError, match="desktop"):
        Desktop().tell("docs", "/w/docs", NOTICE)
