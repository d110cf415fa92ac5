"""An answer of a cloud, or one thing in it, is not what it should be: the call ends by the contract, or right."""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from http_kit import Answer
from servers.standin import Request, linked

from metasync.backends.api import Sweeps, Watches
from metasync.backends.registry import open_backend, parse_url
from metasync.errors import BackendError, NotFoundError, UnreachableError

CLOUDS = {
    "dropbox": ("dropbox", "DropboxStandin"),
    "onedrive": ("metasync", "OneDriveStandin"),
    "gdrive": ("googleapiclient", "GoogleDriveStandin"),
    "box": ("box_sdk_gen", "BoxStandin"),
}
EDITS_MAX = 24  # of a call: all of them take over ten minutes
Edit = Callable[[int, Answer], Answer]  # of a call's answers, by their numbers
JSON = {"Content-Type": "application/json"}
DEEP = b"[" * 200_000
LARGE = bytes(3000)
GONE = object()
VALUES: tuple[Any, ...] = (
    7, -1, 2**70, True, None, "", "hunter2\a", "0", [], [7], ["a"], {}, {"id": 7}, "https://[::1", "mailto:a", GONE,
)  # fmt: skip
URLS = ("https://[::1", "https://a:port/", "mailto:a@b", "//", "http://", "é", "https://.../x", "https://a\\b/")

CALLS: dict[str, Callable[[Any], object]] = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/new", b"x"),
    "put again": lambda b: b.put("d/a", b"0123"),
    "put large": lambda b: b.put("d/new", LARGE),
    "get": lambda b: b.get("d/a", max_bytes=9),
    "part": lambda b: b.get("d/a", offset=1, length=2, max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "digest": lambda b: b.digest("d/a"),
    "list": lambda b: b.list("d"),
    "list all": lambda b: b.list(""),
    "inventory": lambda b: b.inventory("d", ""),
    "changes": lambda b: b.inventory("d", b.cursor),
    "watch": lambda b: b.watch("d", "", 30),
    "poll": lambda b: b.watch("d", b.cursor, 30),
    "delete": lambda b: b.delete("d/a"),
    "space": lambda b: b.space(),
    "identity": lambda b: b.identity(),
    "sweep": lambda b: b.sweep("d"),
}

ANSWERS: dict[str, Answer] = {
    "nested too deep": Answer(200, DEEP, JSON),
    "an error nested too deep": Answer(409, DEEP[:16_000], JSON),
    "a limit nested too deep": Answer(429, DEEP[:16_000], JSON),
    "a login's error nested too deep": Answer(401, DEEP[:16_000], JSON),
    "put off": Answer(202, b"", {}),
    "elsewhere": Answer(302, b"", {"Location": "https://[::1"}),
    "another type": Answer(200, b'["a"]', JSON),
    "a number": Answer(200, b"1e999", JSON),
    "an error that is none": Answer(409, b'{"error": 7, "code": 7, "context_info": 7}', JSON),
    "no text": Answer(200, b"\xff\xfe", JSON),
    "a wait that is no number": Answer(429, b"", {"Retry-After": "9" * 5000}),
}

ODD: dict[str, tuple[str, str, int, tuple[Any, ...], Any]] = {
    "the address of contents": ("box", "get", 0, ("Location",), "https://[::1"),
    "no address of contents": ("box", "get", 0, ("Location",), "mailto:a@b"),
    "the address of a poll": ("box", "poll", 0, ("entries", 0, "url"), "https://[::1"),
    "an event": ("box", "changes", 0, ("entries", 0), "a"),
    "events": ("box", "changes", 0, ("entries",), 7),
    "folders of a file": ("gdrive", "stat", 0, ("parents",), 7),
    "a text for folders": ("gdrive", "stat", 0, ("parents",), "a"),
    "a quota": ("gdrive", "space", 0, ("storageQuota",), 7),
}
"""Each got past the contract once: cloud, call, which of its answers, where in it, and what stood there."""


LESS: tuple[tuple[str, str, int, tuple[Any, ...], tuple[Any, ...]], ...] = (
    ("dropbox", "inventory", 0, ("entries", 1, "path_lower"), (GONE, None)),
    ("dropbox", "inventory", 0, ("entries",), (GONE, None, 7, {})),
    ("dropbox", "list", 0, ("entries",), (GONE, None, 7, {})),
    ("onedrive", "list", 0, ("value",), (GONE, None, 7, {})),
    ("onedrive", "list", 0, ("value", 0), (7, None, {})),
    ("onedrive", "list", 0, ("value", 0, "name"), (GONE, None, 7)),
    ("onedrive", "list", 0, ("value", 0, "size"), (GONE, None, -1, "4")),
    ("onedrive", "inventory", 1, ("value", 1), (7, None, {})),
    ("onedrive", "inventory", 1, ("value", 1, "id"), (GONE, None, 7, "")),
    ("onedrive", "inventory", 1, ("value", 1, "size"), (GONE, None, -1)),
    ("onedrive", "inventory", 1, ("value", 1, "parentReference"), (GONE, None, {})),
    ("onedrive", "changes", 0, ("value", 0), (7, None, {})),
    ("onedrive", "sweep", 1, ("value", 1), (7, None, {})),
    ("gdrive", "list", 0, (), ({}, {"id": 7}, [])),
    ("gdrive", "list", 0, ("kind",), (GONE, None, "drive#file")),
    ("gdrive", "list", 0, ("files", 0, "name"), (GONE, None, 7)),
    ("gdrive", "list", 0, ("files", 0, "size"), (GONE, None, -1)),
    ("gdrive", "stat", 0, (), ({}, {"id": 7})),
    ("gdrive", "stat", 0, ("files", 0, "name"), (GONE, None, 7)),
    ("gdrive", "stat", 0, ("files", 0, "size"), (GONE, None)),
    ("gdrive", "stat", 0, ("files", 0, "createdTime"), (GONE, None, 7)),
    ("gdrive", "changes", 0, (), ({},)),
    ("gdrive", "changes", 0, ("changes", 0, "removed"), (7, "a")),
    ("gdrive", "changes", 0, ("changes", 0, "file"), (GONE, None, 7)),
    ("gdrive", "changes", 0, ("changes", 0, "file", "parents"), (None, 7, "a")),
    ("gdrive", "changes", 0, ("changes", 0, "file", "trashed"), (7, "a")),
    ("box", "list", 0, ("entries",), (GONE, None, "", {})),
    ("box", "list", 0, ("entries", 0), (7, None, {})),
    ("box", "list", 0, ("entries", 0, "type"), (GONE, None, "a")),
    ("box", "list", 1, ("entries", 0, "name"), (GONE, None, 7)),
    ("box", "list", 1, ("entries", 0, "size"), (GONE, None, -1)),
    ("box", "stat", 1, ("context_info",), (GONE, None, 7, {})),
    ("box", "stat", 0, ("entries", 0, "id"), (GONE, None, {})),
    ("box", "stat", 1, ("context_info", "conflicts", "type"), (GONE, None, "a", ["a"])),
    ("box", "changes", 0, (), ({},)),
    ("box", "changes", 0, ("entries",), (GONE, None, "", {})),
    ("box", "changes", 0, ("entries", 0, "event_type"), (GONE, None, 7)),
    ("box", "changes", 0, ("next_stream_position",), (GONE, None)),
)
"""What an answer lacks, or has in an odd form, and must not read as "nothing there": as in `ODD`, with values."""

ANEW = (
    ("source",), ("source", "type"), ("source", "name"), ("source", "size"),
)  # fmt: skip
"""What an event at Box lacks whose file is then not known: all is listed anew, or one odd event would end the feed."""

SHOWN_EMPTY: tuple[tuple[str, int, tuple[Any, ...], tuple[Any, ...]], ...] = (
    ("dropbox", 0, ("entries",), ([],)),
    ("dropbox", 0, ("entries", 1), (GONE,)),
    ("dropbox", 0, ("entries", 1, "path_lower"), (GONE, None, "", "a", "/b/a")),
    ("dropbox", 0, ("entries", 1, ".tag"), ("folder",)),
    ("onedrive", 1, ("value",), ([],)),
    ("onedrive", 1, ("value", 1), (GONE,)),
    ("onedrive", 1, ("value", 1, "parentReference", "id"), (GONE, "0")),
    ("onedrive", 1, ("value", 1, "folder"), ({},)),
    ("box", 1, ("entries",), ([],)),
)
"""A list for `sweep` that shows no file where there is one: cloud, which answer, where in it, and what stood there."""


class Account:
    """A cloud whose answers are right until `edit` is set: that changes one, by its number, or all."""

    def __init__(self, cloud: str, server: Any, patch: pytest.MonkeyPatch, home: Path) -> None:
        self.cloud, self.server, self.patch, self.home = cloud, server, patch, home
        self.edit: Edit | None = None
        self.numbers, self.edit_numbers = itertools.count(), itertools.count()
        honest = server.respond

        def respond(request: Request) -> Answer:
            answer: Answer = honest(request)
            return answer if self.edit is None else self.edit(next(self.edit_numbers), answer)

        server.respond = respond
        self.keeper: Any = self.opened()
        self.keeper.put("d/a", b"0123")

    def opened(self) -> Any:
        """A backend that knows nothing of what others learned."""
        self.patch.setenv("XDG_STATE_HOME", str(self.home / f"state-{next(self.numbers)}"))
        return open_backend(parse_url(f"{self.cloud}:/ws"), create_root=True)

    def made(self, name: str, *, is_warm: bool) -> Any:
        """A backend on which a call can be made, and the folder as the call is to find it."""
        self.edit = None
        self.keeper.delete("d/new")
        if name in ("delete", "put again"):
            self.keeper.put("d/a", b"0123")
        backend = self.opened()
        if is_warm:
            backend.list("d")
            backend.stat("d/a")
            backend.identity()
        if name == "changes":
            page = backend.inventory("d", "")
            while page.more:
                page = backend.inventory("d", page.cursor)
            backend.cursor = page.cursor
        if name == "poll":
            backend.cursor = backend.watch("d", "", 30).cursor
        if name in ("changes", "poll"):
            self.keeper.put("d/a", b"4567")  # the same bytes would be no change
            self.keeper.put("d/a", b"0123")
        return backend

    def answers(self, name: str, *, is_warm: bool) -> list[Answer]:
        """Those of a call that goes well."""
        seen: list[Answer] = []

        def see(_: int, answer: Answer) -> Answer:
            seen.append(answer)
            return answer

        backend = self.made(name, is_warm=is_warm)
        self.edit = see
        CALLS[name](backend)
        self.edit = None
        backend.close()
        return seen

    def ends_by_the_contract(self, name: str, edit: Edit, *, is_warm: bool) -> None:
        backend = self.made(name, is_warm=is_warm)
        self.edit_numbers, self.edit = itertools.count(), edit
        try:
            by_the_contract(name, backend)
        finally:
            self.edit = None
            backend.close()


def by_the_contract(name: str, backend: Any) -> None:
    try:
        CALLS[name](backend)
    except BackendError as error:
        words = f"{error.message} {error.next_step}"
        assert words.isprintable()
        assert "hunter2\a" not in words
        assert (error.retry_after_s or 0) <= 3600


@pytest.fixture(params=CLOUDS)
def account(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Account]:
    module, standin = CLOUDS[request.param]
    pytest.importorskip(module)
    server = getattr(importlib.import_module(f"servers.{request.param}_standin"), standin)()
    with linked(server, monkeypatch, tmp_path / "home"):
        made = Account(request.param, server, monkeypatch, tmp_path)
        _small_parts(made, monkeypatch)
        yield made
        made.keeper.close()
        server.wrong.clear()  # odd answers make odd requests


def _small_parts(account: Account, patch: pytest.MonkeyPatch) -> None:
    """What counts as large is small here."""
    if account.cloud in ("box", "gdrive"):
        patch.setattr(f"metasync.backends.{account.cloud}.files.WHOLE_BYTES_MAX", 2000)
    if account.cloud == "box":
        account.server.session_bytes_min, account.server.part_bytes = 2000, 1024


def calls_of(account: Account) -> list[str]:
    lacks = {"watch": Watches, "poll": Watches, "sweep": Sweeps}
    return [name for name in CALLS if isinstance(account.keeper, lacks.get(name, object))]


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a JSON text."""
    yield ()
    rows: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in list(rows)[:12]:
        yield from ((key, *rest) for rest in places(below))


def changed(value: Any, place: tuple[Any, ...], to: Any) -> Any:
    if not place:
        return None if to is GONE else to
    out = copy.deepcopy(value)
    at = out
    for key in place[:-1]:
        at = at[key]
    if to is GONE:
        del at[place[-1]]
    else:
        at[place[-1]] = to
    return out


def edits(answers: list[Answer]) -> Iterator[tuple[str, Edit]]:
    """Everything that is done to one of these answers, with its description."""
    for number, answer in enumerate(answers):
        for head in {"Location", "Dropbox-API-Result"} & {*answer.headers}:
            for url in URLS:
                yield f"{number} {head} {url}", _in_head(number, head, url)
        try:
            told = json.loads(answer.body)
        except ValueError:
            continue
        for place in places(told):
            for value in VALUES:
                yield f"{number} {place} {value!r}", _in_json(number, place, value)


def _all(to: Answer) -> Edit:
    return lambda _number, _answer: Answer(to.status, to.body, dict(to.headers))


def _in_head(number: int, name: str, text: str) -> Edit:
    def edit(n: int, answer: Answer) -> Answer:
        if n == number:
            answer.headers[name] = text.encode().decode("latin-1")
        return answer

    return edit


def _in_json(number: int, place: tuple[Any, ...], to: Any) -> Edit:
    def edit(n: int, answer: Answer) -> Answer:
        if n == number:
            with contextlib.suppress(LookupError, TypeError, ValueError):  # where this time it is another answer
                answer.body = json.dumps(changed(json.loads(answer.body), place, to)).encode()
        return answer

    return edit


@pytest.mark.few(1)
def test_no_answer_gets_past_the_contract(account: Account) -> None:
    """The attacker sends what a provider's library cannot read, such as JSON so deep that reading it ends the stack."""
    backends = {name: account.made(name, is_warm=True) for name in calls_of(account)}
    for answer in ANSWERS.values():
        account.edit = _all(answer)
        for name, backend in backends.items():
            by_the_contract(name, backend)
    for backend in backends.values():
        backend.close()


@pytest.mark.parametrize("account", ["box", "gdrive"], indirect=True)
def test_odd_things_that_got_past_the_contract_once(account: Account) -> None:
    for cloud, name, number, place, value in ODD.values():
        if cloud == account.cloud:
            is_head = place == ("Location",)
            edit = _in_head(number, "Location", value) if is_head else _in_json(number, place, value)
            account.ends_by_the_contract(name, edit, is_warm=True)


@pytest.mark.few(1)
def test_a_list_that_says_less_than_it_should(account: Account) -> None:
    """What it lacks is no word on what is there: neither "empty", nor "not there", nor "gone"."""
    for cloud, name, number, place, values in LESS:
        for value in values if cloud == account.cloud else ():
            backend = account.made(name, is_warm=False)
            account.edit_numbers, account.edit = itertools.count(), _in_json(number, place, value)
            with pytest.raises(UnreachableError):
                print(name, number, place, value, CALLS[name](backend))
            account.edit = None
            backend.close()
    assert account.keeper.get("d/a", max_bytes=9) == b"0123"


@pytest.mark.parametrize("account", ["box"], indirect=True)
def test_an_event_that_does_not_say_what_changed(account: Account) -> None:
    for place in ANEW:
        backend = account.made("changes", is_warm=False)
        account.edit_numbers, account.edit = itertools.count(), _in_json(0, ("entries", 0, *place), GONE)
        with pytest.raises(NotFoundError, match="does not say what changed"):
            print(place, CALLS["changes"](backend))
        account.edit = None
        backend.close()


@pytest.mark.parametrize("account", ["dropbox", "onedrive", "box"], indirect=True)
def test_a_folder_that_one_list_shows_empty_is_not_deleted(account: Account) -> None:
    """A deletion of a folder takes all that is in it."""
    for cloud, number, place, values in SHOWN_EMPTY:
        for value in values if cloud == account.cloud else ():
            account.ends_by_the_contract("sweep", _in_json(number, place, value), is_warm=False)
            assert account.keeper.get("d/a", max_bytes=9) == b"0123", (place, value)


@pytest.mark.long
@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("name", CALLS)
def test_anything_odd_in_one_answer(account: Account, name: str, is_warm: bool) -> None:
    if name not in calls_of(account):
        pytest.skip("no such call")
    wrong, every = [], [*edits(account.answers(name, is_warm=is_warm))]
    for text, edit in every[:: len(every) // EDITS_MAX + 1]:
        try:
            account.ends_by_the_contract(name, edit, is_warm=is_warm)
            if name != "delete":
                assert account.keeper.get("d/a", max_bytes=9) == b"0123"
        except Exception as error:
            wrong.append(f"{text}: {error!r}"[:300])
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:40])
