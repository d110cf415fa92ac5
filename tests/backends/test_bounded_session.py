"""The session that providers' SDKs are given: what leaves it, what is taken as an answer, and what is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_kit import Answer, Handler, listening

from metasync.backends._shared.wire import STEPS
from metasync.errors import RefusedError, UnreachableError

pytest.importorskip("requests")

from metasync.backends._shared.session_requests import BoundedSession

HOST = "api.provider.example"
URL = f"https://{HOST}/2/call?a=1"
SECRET = "hunter2"


class _Server(Handler):
    answers: list[Answer]
    asked: list[tuple[str, dict[str, str], bytes]]

    def respond(self, body: bytes) -> Answer:
        self.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        return self.answers.pop(0)


class Served:
    """A session, the server it leads to, and what that was asked."""

    def __init__(self, port: int, server: type[_Server]) -> None:
        self.answers, self.asked = server.answers, server.asked
        self.session = BoundedSession({HOST}, provider="Provider", stand_in=f"http://127.0.0.1:{port}", steps=STEPS)

    def post(self, answer: Answer, url: str = URL, most: int = 100, **options: Any) -> Any:
        self.answers.append(answer)
        with self.session.bounds("cannot call", body_bytes_max=most) as self.bounds:
            return self.session.post(url, headers={"Authorization": f"Bearer {SECRET}"}, **options)


@pytest.fixture
def served() -> Iterator[Served]:
    server = type("Server", (_Server,), {"answers": [], "asked": []})
    with listening(server) as port:
        out = Served(port, server)
        with contextlib.closing(out.session):
            yield out


def test_an_answer_as_an_sdk_reads_it(served: Served) -> None:
    answer = Answer(200, b'{"a": 1}', {"Content-Type": "application/json", "X-Id": "7"})
    got = served.post(answer, json={"b": 2})
    assert (got.status_code, got.json(), got.headers["x-id"], got.content) == (200, {"a": 1}, "7", b'{"a": 1}')
    assert b"".join(got.iter_content(3)) == b'{"a": 1}'
    assert got.raw.read() == b'{"a": 1}'
    ((path, headers, body),) = served.asked
    assert path == f"/{HOST}/2/call?a=1", "a stand-in has all hosts of a provider under it"
    assert headers["authorization"] == f"Bearer {SECRET}"
    assert headers["accept-encoding"] == "identity"
    assert body == b'{"b": 2}'


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(served: Served, status: int) -> None:
    got = served.post(Answer(status, b"", {"Location": f"{URL}&again"}))
    assert got.status_code == status
    assert len(served.asked) == 1


@pytest.mark.parametrize(
    "answer", [Answer(200, bytes(101)), Answer(200, b"0" * 101, chunked=True)], ids=["sized", "chunked"]
)
def test_an_answer_that_is_too_long_is_refused(served: Served, answer: Answer) -> None:
    with pytest.raises(RefusedError, match="more than the 100 bytes"):
        served.post(answer)
    assert served.post(Answer(200, bytes(100))).content == bytes(100), "as many as are allowed"


def test_an_answer_without_an_end(served: Served) -> None:
    with pytest.raises(RefusedError):
        served.post(Answer(200, bytes(1 << 16), endless=True))
    got = served.post(Answer(500, bytes(1 << 16), endless=True))
    assert got.status_code == 500
    assert len(got.content) <= 1 << 15, "of a refusal only the beginning is looked at"


@pytest.mark.parametrize("answer", [Answer(hangs_up=True), Answer(200, b"ab", length=3)], ids=["none", "half"])
def test_no_whole_answer_is_an_error_of_the_contract(served: Served, answer: Answer) -> None:
    with pytest.raises(UnreachableError, match="cannot call") as caught:
        served.post(answer)
    assert SECRET not in f"{caught.value}{caught.value.__cause__!r}"


@pytest.mark.parametrize("headers", [{"Content-Type": "text/html"}, {"Content-Encoding": "gzip"}], ids=str)
def test_what_is_no_answer_of_the_provider(served: Served, headers: dict[str, str]) -> None:
    with pytest.raises(UnreachableError, match="is not Provider"):
        served.post(Answer(200, b"<html>log in</html>", headers))


def test_what_the_last_answer_said(served: Served) -> None:
    assert served.post(Answer(429, b"", {"Retry-After": "7"})).status_code == 429
    assert (served.bounds.status, served.bounds.retry_after_s) == (429, 7.0)
    served.post(Answer(503))
    assert (served.bounds.status, served.bounds.retry_after_s) == (503, None)


@pytest.mark.parametrize(
    "url", [f"http://{HOST}/2/call", "https://other.example/", f"https://{HOST}:444/", f"https://u@{HOST}/"], ids=str
)
def test_a_login_goes_to_the_providers_own_servers_by_tls_alone(served: Served, url: str) -> None:
    with pytest.raises(RefusedError, match="none of its own"):
        served.post(Answer(200), url)
    assert not served.asked


def test_no_cookie_and_no_netrc(served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text(f"machine {HOST} login a password {SECRET}\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    served.answers += [Answer(200, b"", {"Set-Cookie": "a=b"}), Answer(200)]
    for _ in range(2):
        served.session.get(URL)
    for _, headers, _ in served.asked:
        assert not {"cookie", "authorization"} & headers.keys()
