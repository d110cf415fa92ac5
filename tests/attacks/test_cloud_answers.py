"""A linked cloud answers as no honest one does: each call ends with an error of the contract all the same, or right."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dropbox")
from http_kit import Answer
from servers.dropbox_standin import DropboxStandin
from servers.standin import Request, linked

from metasync.backends.api import Backend, Inventory
from metasync.backends.registry import open_backend, parse_url
from metasync.errors import BackendError, UnreachableError

JSON = {"Content-Type": "application/json"}
DEEP = b"[" * 200_000

CALLS: dict[str, Callable[[Any], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/new", b"x"),
    "get": lambda b: b.get("d/a", max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "digest": lambda b: b.digest("d/a"),
    "list": lambda b: b.list("d"),
    "inventory": lambda b: b.inventory("d", ""),
    "changes": lambda b: b.inventory("d", "AAF1"),
    "watch": lambda b: b.watch("d", "", 30),
    "poll": lambda b: b.watch("d", "AAF1", 30),
    "delete": lambda b: b.delete("d/a"),
    "space": lambda b: b.space(),
    "identity": lambda b: (b._root.gone(), b.identity()),  # as it is asked for once a day
    "sweep": lambda b: b.sweep("d"),
}

ANSWERS: dict[str, Answer] = {
    "nested too deep": Answer(200, DEEP, JSON),
    "an error nested too deep": Answer(409, DEEP[:16_000], JSON),
    "a limit nested too deep": Answer(429, DEEP[:16_000], JSON),
    "a login's error nested too deep": Answer(401, DEEP[:16_000], JSON),
    "another type": Answer(200, b'["a"]', JSON),
    "a number": Answer(200, b"1e999", JSON),
    "an error that is none": Answer(409, b'{"error": 7}', JSON),
    "an error of no kind": Answer(409, b'{"error": {".tag": "hunter2\\u0007"}}', JSON),
    "no text": Answer(200, b"\xff\xfe", JSON),
    "a result that is none": Answer(200, b"0123", {**JSON, "Dropbox-API-Result": "[" * 30_000}),
    "a wait for ever": Answer(
        429, b'{"error": {"reason": {".tag": "other"}, "retry_after": 18446744073709551615}}', JSON
    ),
    "a wait that is no number": Answer(429, b"", {"Retry-After": "9" * 5000}),
}


class Hostile(DropboxStandin):
    """Answers right until `answer` is set."""

    answer: Answer | None = None
    changes_to: Callable[[Any], Any] | None = None

    def respond(self, request: Request) -> Answer:
        if self.answer is not None:
            return Answer(self.answer.status, self.answer.body, dict(self.answer.headers))
        answer = super().respond(request)
        if self.changes_to is not None and answer.status == 200:
            if told := answer.headers.get("Dropbox-API-Result"):
                answer.headers["Dropbox-API-Result"] = json.dumps(self.changes_to(json.loads(told)))
            else:
                answer.body = json.dumps(self.changes_to(json.loads(answer.body))).encode()
        return answer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hostile]:
    with linked(Hostile(), monkeypatch, tmp_path / "home") as made:
        yield made


@pytest.fixture
def backend(server: Hostile) -> Iterator[Backend]:
    made = open_backend(parse_url("dropbox:/ws"), create_root=True)
    made.put("d/a", b"0123")
    yield made
    made.close()


@pytest.mark.parametrize("name", ANSWERS)
def test_no_answer_gets_past_the_contract(server: Hostile, backend: Backend, name: str) -> None:
    """The attacker sends what the provider's library cannot read, such as JSON so deep that reading it ends the stack.

    Each call ends with an error of the contract, whose words are printable, and which asks for an hour of rest at most.
    """
    server.answer = ANSWERS[name]
    for call in CALLS.values():
        with pytest.raises(BackendError) as caught:
            call(backend)
        words = f"{caught.value.message} {caught.value.next_step}"
        assert words.isprintable() and "hunter2\a" not in words
        assert (caught.value.retry_after_s or 0) <= 3600


def each_entry(change: Callable[[dict[str, Any]], None]) -> Callable[[Any], Any]:
    """Changes what is said of each file and folder."""

    def changed(told: Any) -> Any:
        for entry in told.get("entries", [told]):
            change(entry)
        return told

    return changed


@pytest.mark.parametrize("hash_text", ["g" * 64, "é" * 64, " " * 64, "0 " * 32])
def test_a_hash_that_is_none(server: Hostile, backend: Backend, hash_text: str) -> None:
    """The attacker tells a hash that is no number: it counts as none, or what answered is not Dropbox."""
    server.changes_to = each_entry(lambda entry: entry.update(content_hash=hash_text))
    for call in (CALLS["digest"], CALLS["inventory"]):
        try:
            found: Any = call(backend)
        except UnreachableError:
            continue
        digests = [item.digest for item in found.items] if isinstance(found, Inventory) else [found.value]
        assert digests == [None]


@pytest.mark.parametrize("name", ["..", "../../x", "a/b", "\x1b[2J", "A", ".tmp-1", "x" * 300, ""])
def test_names_that_are_none(server: Hostile, backend: Backend, name: str) -> None:
    """The attacker lists names that lead elsewhere, or write on a terminal: they are left out."""
    server.changes_to = each_entry(lambda entry: entry.update(name=name, path_lower=f"/ws/d/{name}"))
    assert [entry.name for entry in backend.list("d") if entry.name != "a"] == []
    told = CALLS["inventory"](backend)
    assert isinstance(told, Inventory)
    assert [item.name for item in told.items] in ([], ["a/b"]), "a/b is a name below the folder"
    if name == "":
        assert backend.list("d") == ()


def test_pages_without_an_end(server: Hostile, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacker's list has always another page: no more than so many are asked for."""
    monkeypatch.setattr("metasync.backends.dropbox.PAGES_MAX", 5)
    server.changes_to = lambda told: {**told, "has_more": True} if "entries" in told else told
    for call in (CALLS["list"], CALLS["sweep"]):
        with pytest.raises(BackendError, match="no end"):
            call(backend)
    assert server.objects() == {"/ws/d/a": b"0123"}


def test_a_poll_that_asks_for_patience_for_ever(server: Hostile, backend: Backend) -> None:
    """The attacker asks a watch to wait for 585 billion years: it waits an hour at most."""
    server.changes_to = lambda told: {**told, "backoff": 2**64 - 1} if "changes" in told else told
    watched: Any = backend
    begun = watched.watch("d", "", 30)
    assert watched.watch("d", begun.cursor, 30).after_s <= 3600
