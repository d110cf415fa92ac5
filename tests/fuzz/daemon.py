"""Targets: what a program of the user's own says on the daemon's socket, and what a daemon answers."""

from __future__ import annotations

from daemon_kit import problem, state

from fuzz.target import Target
from metasync.errors import FormatError, GuardError
from metasync.events import Notice, Phase
from metasync.reports.service import DaemonState
from metasync.reports.sync import Changes, PushReport
from metasync.service.wire import protocol, values


def request_of(data: bytes) -> protocol.Request:
    """What is accepted is bounded, and asks the same when it is said again."""
    found = protocol.read_request(data)
    assert set(found.args) == set(protocol.REQUESTS[found.do])
    again = protocol.request(found.id, found.do, found.args)
    assert protocol.read_request(again[:-1]) == found or len(again) > protocol.REQUEST_BYTES_MAX
    return found


def request_seeds() -> list[bytes]:
    where = {"directory": "/home/a/docs"}
    return [
        protocol.request(n, do, args)[:-1]
        for n, (do, args) in enumerate(
            (
                ("status", {}),
                ("push", {**where, "message": "m\udcff", "durability": 2, "force": True, "version": "1.0"}),
                ("sync", {**where, "version": "1.0"}),
                ("pause", {"seconds": 60.0}),
                ("answer", {**where, "key": "guard:push", "allow": True}),
            )
        )
    ]


def answer_of(data: bytes) -> object:
    found = protocol.document_of(data)
    if "error" in found:
        return protocol.error_of(found["error"]).message
    if "event" in found:
        return protocol.event_of(found["event"])
    kind = PushReport if "id" in found else DaemonState
    value = values.decode(kind, found.get("ok"))
    assert values.decode(kind, values.encode(value)) == value
    return value


def answer_seeds() -> list[bytes]:
    whole = DaemonState(7, "1.0", 3.5, (state(problems=(problem(),), paused_until_s=float("inf")),))
    return [
        protocol.answer(1, PushReport(3, Changes(added=(b"a\xff",))))[:-1],
        protocol.line({"ok": values.encode(whole)})[:-1],
        protocol.refusal(2, GuardError("most would go"))[:-1],
        protocol.line({"id": 1, "event": protocol.told(Phase("scan"))})[:-1],
        protocol.line({"id": 1, "event": protocol.told(Notice("so"))})[:-1],
    ]


DAEMON = (
    Target("daemon-request", request_of, request_seeds, allowed=(FormatError,)),
    Target("daemon-answer", answer_of, answer_seeds, allowed=(FormatError,)),
)
