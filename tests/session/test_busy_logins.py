"""A backend is opened whose server is busy for a moment: its login is tried again, as any other call is."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from swift_fake import Answer, Fake, serving

from metasync.backends.registry import open_backend as bare
from metasync.backends.registry import parse_url
from metasync.errors import BackendError, RefusedError
from metasync.session import open_backend
from metasync.session.folder import Link


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.setattr(open_backend, "boottime", lambda: 0.0)  # however long an attempt takes here
    for name in [name for name in os.environ if name.startswith(("OS_", "ST_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ST_USER", "test:tester")
    monkeypatch.setenv("ST_KEY", "key")
    with serving() as made:
        yield made


def linked(fake: Fake) -> Link:
    """The link to a store that could be reached."""
    url = f"swift://bucket/x?auth={fake.root}/auth/v1.0"
    backend = bare(parse_url(url))
    link = Link(url, "folder", backend.identity().hex())
    backend.close()
    fake.logins.clear()
    return link


def busy(fake: Fake, *answers: Answer) -> None:
    """The next logins are answered so, and those after them well."""
    left, well = [*answers], {"X-Auth-Token": "token", "X-Storage-Url": f"{fake.root}/v1/AUTH_test"}
    fake.log_in = lambda _: left.pop(0) if left else Answer(200, b"", well)


@pytest.mark.parametrize("answer", [Answer(503), Answer(500), Answer(429, headers={"Retry-After": "0"})])
def test_a_login_that_is_put_off_once_is_tried_again(fake: Fake, answer: Answer) -> None:
    """Else a server that was busy for a moment is away for the whole command: it is asked once, when it is opened."""
    link = linked(fake)
    busy(fake, answer)
    open_backend.reached("swift", parse_url(link.url), link).close()
    assert len(fake.logins) == 2


def test_a_login_that_is_put_off_for_long_is_not(fake: Fake) -> None:
    link = linked(fake)
    busy(fake, Answer(503, headers={"Retry-After": "60"}))
    with pytest.raises(BackendError, match="503"):
        open_backend.reached("swift", parse_url(link.url), link)
    assert len(fake.logins) == 1


def test_a_login_that_is_refused_is_not_tried_again(fake: Fake) -> None:
    link = linked(fake)
    busy(fake, Answer(401))
    with pytest.raises(RefusedError, match="credentials"):
        open_backend.reached("swift", parse_url(link.url), link)
    assert len(fake.logins) == 1
