"""Where the Swift backend gets its credentials, to whom it shows them, and what it makes of Keystone's answers."""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from swift_fake import KEY, META, PAGE, Answer, Fake, Request, serving

from metasync.backends._shared import credentials
from metasync.backends._shared.wire import Answer as Told
from metasync.backends.registry import open_backend, parse_url
from metasync.backends.swift.login import Login, Tokens, read_login
from metasync.errors import BackendError, RefusedError, UnreachableError

AUTH = "https://auth.example.org:5000/v3"
KEYSTONE = {
    "OS_AUTH_URL": AUTH,
    "OS_USERNAME": "me",
    "OS_PASSWORD": KEY,
    "OS_PROJECT_NAME": "p",
    "OS_USER_DOMAIN_NAME": "Users",
}
TEMPAUTH = {"ST_AUTH": "https://swift.example.org/auth/v1.0", "ST_USER": "test:tester", "ST_KEY": KEY}


def login(
    environ: Mapping[str, str], params: Mapping[str, str] | None = None, ring: Mapping[str, str] | None = None
) -> Login:
    """`ring`: what the keyring has."""

    def secrets(account: str, variables: Sequence[str]) -> str | None:
        return next((environ[v] for v in variables if environ.get(v)), (ring or {}).get(account))

    return read_login(environ, params or {}, secrets)


def user(found: Login) -> dict[str, Any]:
    out = found.identity["password"]["user"]
    assert isinstance(out, dict)
    return out


# From the environment and the URL.


def test_keystone_with_a_password() -> None:
    found = login(KEYSTONE)
    assert (found.kind, found.auth_url, found.interface) == ("v3", AUTH, "public")
    assert user(found) == {"name": "me", "domain": {"name": "Users"}, "password": KEY}
    assert found.scope == {"project": {"name": "p", "domain": {"id": "default"}}}
    by_id = {"OS_USER_ID": "u1", "OS_PROJECT_ID": "p1", "OS_REGION_NAME": "R", "OS_ENDPOINT_TYPE": "internalURL"}
    found = login({**KEYSTONE, **by_id})
    assert user(found) == {"id": "u1", "password": KEY}
    assert found.scope == {"project": {"id": "p1"}}
    assert (found.region, found.interface) == ("R", "internal")
    found = login({**KEYSTONE, "OS_USER_DOMAIN_ID": "d1", "OS_PROJECT_DOMAIN_NAME": "D"})
    assert user(found)["domain"] == {"id": "d1"}
    assert found.scope == {"project": {"name": "p", "domain": {"name": "D"}}}


def test_keystone_with_an_application_credential() -> None:
    found = login({"OS_AUTH_URL": AUTH, "OS_APPLICATION_CREDENTIAL_ID": "ac", "OS_APPLICATION_CREDENTIAL_SECRET": KEY})
    assert found.identity == {
        "methods": ["application_credential"],
        "application_credential": {"id": "ac", "secret": KEY},
    }
    assert found.scope is None
    with pytest.raises(RefusedError, match="no secret"):
        login({"OS_AUTH_URL": AUTH, "OS_APPLICATION_CREDENTIAL_ID": "ac"})


def test_tempauth() -> None:
    found = login(TEMPAUTH)
    assert (found.kind, found.user, found.secret) == ("v1", "test:tester", KEY)
    assert found.auth_url == "https://swift.example.org/auth/v1.0"
    assert login({**TEMPAUTH, **KEYSTONE}).kind == "v3"


def test_a_token_of_somebody_elses() -> None:
    given = {"OS_STORAGE_URL": "https://s.example.org/v1/AUTH_p/", "OS_AUTH_TOKEN": KEY}
    found = login({**KEYSTONE, **given})
    assert (found.kind, found.storage_url) == ("token", "https://s.example.org/v1/AUTH_p")
    assert login({**KEYSTONE, "OS_STORAGE_URL": given["OS_STORAGE_URL"]}).storage_url == found.storage_url
    assert login(given, {"auth": AUTH, "user": "me", "project": "p"}, {f"me@{AUTH}": "k"}).kind == "v3"


@pytest.mark.parametrize(
    ("address", "kind", "used"),
    [
        ("https://h/v3/", "v3", "https://h/v3"),
        ("https://h/identity", "v3", "https://h/identity/v3"),
        ("HTTPS://Host:5000", "v3", "https://host:5000/v3"),
        ("https://h/auth/v1.0/", "v1", "https://h/auth/v1.0"),
        ("https://h/v1", "v1", "https://h/v1"),
    ],
)
def test_which_server_it_is(address: str, kind: str, used: str) -> None:
    found = login({}, {"auth": address, "user": "u", "project": "p"}, {f"u@{used}": "k"})
    assert (found.kind, found.auth_url) == (kind, used)


def test_the_url_names_what_differs() -> None:
    """Two accounts of one cloud, or of two: the environment has one of them, the keyring the other."""
    found = login(KEYSTONE, {"project": "other", "domain": "D", "region": "R2"})
    assert user(found) == {"name": "me", "domain": {"name": "D"}, "password": KEY}
    assert (found.scope, found.region) == ({"project": {"name": "other", "domain": {"name": "D"}}}, "R2")
    found = login({**KEYSTONE, "OS_USER_ID": "u1"}, {"user": "you"}, {f"you@{AUTH}": "yours"})
    assert user(found) == {"name": "you", "domain": {"name": "Users"}, "password": "yours"}
    other = "https://other.example.org/v3"
    found = login(KEYSTONE, {"auth": other, "user": "me", "project": "x"}, {f"me@{other}": "theirs"})
    assert (found.auth_url, found.secret) == (other, "theirs")
    assert user(found)["domain"] == {"id": "default"}, "nor is a domain of another cloud's taken"


@pytest.mark.parametrize(
    ("environ", "params"),
    [
        (KEYSTONE, {"auth": "https://thief.example.org/v3", "user": "me", "project": "p"}),
        (KEYSTONE, {"auth": "http://auth.example.org:5000/v3", "user": "me", "project": "p"}),
        (KEYSTONE, {"auth": "https://thief.example.org/v1.0", "user": "me"}),
        (KEYSTONE, {"user": "another"}),
        (TEMPAUTH, {"auth": "https://thief.example.org/auth/v1.0", "user": "test:tester"}),
        (TEMPAUTH, {"auth": "https://thief.example.org/v3", "user": "test:tester", "project": "p"}),
        (TEMPAUTH, {"user": "test:other"}),
        (
            {
                "OS_AUTH_URL": AUTH,
                "OS_APPLICATION_CREDENTIAL_ID": "a",
                "OS_APPLICATION_CREDENTIAL_SECRET": KEY,
                "OS_PASSWORD": "",
            },
            {"auth": "https://thief.example.org/v3", "user": "a", "project": "p"},
        ),
    ],
)
def test_a_secret_goes_to_nobody_else(environ: dict[str, str], params: dict[str, str]) -> None:
    """Not to another server than the environment's, and not as another user's."""
    with pytest.raises(RefusedError, match="no Swift credentials") as caught:
        login(environ, params)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("OS_AUTH_URL", "OS_AUTH_URL"),
        ("OS_USERNAME", "OS_USERNAME"),
        ("OS_PASSWORD", "OS_PASSWORD"),
        ("OS_PROJECT_NAME", "OS_PROJECT_NAME"),
    ],
)
def test_what_is_missing_is_named(missing: str, named: str) -> None:
    with pytest.raises(RefusedError) as caught:
        login({name: value for name, value in KEYSTONE.items() if name != missing})
    assert caught.value.next_step.startswith(f"Set {named}")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "variable", "params"),
    [
        (TEMPAUTH, "ST_KEY", {"user": "other:user"}),
        (TEMPAUTH, "ST_USER", {"auth": "https://other.example/auth/v1.0"}),
        (KEYSTONE, "OS_PASSWORD", {"user": "other"}),
        (KEYSTONE, "OS_USERNAME", {"auth": "https://other.example/v3"}),
    ],
)
def test_what_is_set_for_another_is_not_asked_to_be_set(
    environ: dict[str, str], variable: str, params: dict[str, str]
) -> None:
    with pytest.raises(RefusedError) as caught:
        login(environ, params)
    assert caught.value.next_step.startswith(f"The {variable} of the environment is for another server or user")
    assert ("keyring set metasync 'other" in caught.value.next_step) is ("user" in params)


@pytest.mark.parametrize("missing", ["ST_USER", "ST_KEY"])
def test_what_is_missing_for_tempauth_is_named(missing: str) -> None:
    with pytest.raises(RefusedError) as caught:
        login({name: value for name, value in TEMPAUTH.items() if name != missing})
    assert caught.value.next_step.startswith(f"Set {missing}.")


@pytest.mark.parametrize(
    "address",
    [
        "nonsense",
        "ftp://h/v3",
        f"https://me:{KEY}@h/v3",
        f"https://h/v3?x={KEY}",
        "https://h:99999/v3",
        "https://h/a b",
    ],
)
def test_addresses_that_cannot_be(address: str) -> None:
    for environ in ({**KEYSTONE, "OS_AUTH_URL": address}, {"OS_STORAGE_URL": address, "OS_AUTH_TOKEN": "t"}):
        with pytest.raises(RefusedError, match="not the address of a server") as caught:
            login(environ)
        assert KEY not in str(caught.value)


def test_keystone_v2_is_refused() -> None:
    with pytest.raises(RefusedError, match="Keystone v2"):
        login({**KEYSTONE, "OS_AUTH_URL": "https://h/v2.0"})


@pytest.mark.parametrize(
    ("auth", "warned"),
    [
        ("http://10.0.0.5:5000/v3", True),
        ("http://127.0.0.1.example:5000/v3", True),
        ("https://10.0.0.5:5000/v3", False),
        ("http://127.0.0.1:5000/v3", False),
        ("http://[::1]:5000/v3", False),
        ("http://localhost/v3", False),
    ],
)
def test_a_plain_line_is_warned_of(monkeypatch: pytest.MonkeyPatch, auth: str, warned: bool) -> None:
    for name, value in {
        "OS_AUTH_URL": auth,
        "OS_USERNAME": "u",
        "OS_PASSWORD": "hunter2",
        "OS_PROJECT_NAME": "p",
    }.items():
        monkeypatch.setenv(name, value)
    caution = open_backend(parse_url("swift://box/prefix")).caution  # type: ignore[attr-defined]
    assert ("no TLS" in caution) == warned
    assert "hunter2" not in caution


def test_no_secret_is_shown() -> None:
    for found in (login(KEYSTONE), login(TEMPAUTH), login({"OS_STORAGE_URL": "https://h/v1/a", "OS_AUTH_TOKEN": KEY})):
        assert KEY not in f"{found!r} {found}"


# The keyring.


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], str]:
    """A keyring in place of the system's."""
    entries: dict[tuple[str, str], str] = {}
    module, errors = types.ModuleType("keyring"), types.ModuleType("keyring.errors")

    class KeyringError(Exception):
        pass

    def get_password(service: str, account: str) -> str | None:
        if account == "locked":
            raise KeyringError
        return entries.get((service, account))

    errors.KeyringError = KeyringError  # type: ignore[attr-defined]
    module.errors = errors  # type: ignore[attr-defined]
    module.get_password = get_password  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", module)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    monkeypatch.delenv("METASYNC_KEYRING", raising=False)
    return entries


def test_the_keyring(keyring: dict[tuple[str, str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    keyring["metasync", f"me@{AUTH}"] = "kept"
    monkeypatch.delenv("OS_A", raising=False)
    monkeypatch.setenv("OS_B", "b")
    assert credentials.secret(f"me@{AUTH}", ()) == "kept"
    assert credentials.secret(f"me@{AUTH}", ("OS_A",)) == "kept"
    assert credentials.secret(f"me@{AUTH}", ("OS_A", "OS_B")) == "b"
    for absent in ("other", "locked"):
        assert credentials.secret(absent, ()) is None
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    assert credentials.secret(f"me@{AUTH}", ("OS_A",)) is None
    monkeypatch.delenv("METASYNC_KEYRING")
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert credentials.secret(f"me@{AUTH}", ()) is None


# Keystone's answers.


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    for name in [name for name in os.environ if name.startswith(("OS_", "ST_")) or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    with serving() as fake:
        for name, value in {**KEYSTONE, "OS_AUTH_URL": f"{fake.root}/identity/v3"}.items():
            monkeypatch.setenv(name, value)
        fake.answer = lambda _: Answer(200, b"", META, length=3)
        yield fake


def keystone(fake: Fake, endpoints: list[dict[str, str]] | None = None, **fields: Any) -> Any:
    """A Keystone with an object store."""
    here = {"interface": "public", "region": "R1", "region_id": "R1", "url": f"{fake.root}/v1/AUTH_test"}
    stores = [here, {**here, "interface": "admin", "url": f"{fake.root}/v1/admin"}] if endpoints is None else endpoints
    catalog = [{"type": "compute", "endpoints": [here]}, {"type": "object-store", "endpoints": stores}]

    def answer(request: Request) -> Answer:
        token = {"catalog": catalog, **fields}
        number = len(fake.logins)
        return Answer(201, json.dumps({"token": token}).encode(), {"X-Subject-Token": fake.token(number)})

    return answer


def test_a_login_at_keystone(fake: Fake) -> None:
    fake.log_in = keystone(fake)
    backend = open_backend(parse_url("swift://bucket/x"))
    assert fake.logins == [], "not before it is needed"
    assert backend.stat("a") == backend.stat("b") == 3
    (asked,) = fake.logins
    assert (asked.method, asked.path) == ("POST", "/identity/v3/auth/tokens")
    identity = {
        "methods": ["password"],
        "password": {"user": {"name": "me", "domain": {"name": "Users"}, "password": KEY}},
    }
    scope = {"project": {"name": "p", "domain": {"id": "default"}}}
    assert json.loads(asked.body) == {"auth": {"identity": identity, "scope": scope}}
    assert [(r.path, r.headers["X-Auth-Token"]) for r in fake.asked] == [
        ("/bucket/x/a", fake.token(1)),
        ("/bucket/x/b", fake.token(1)),
    ]


def test_a_token_is_renewed_before_it_ends(fake: Fake) -> None:
    """By the server's own clock: ours may be wrong by years."""
    fake.log_in = keystone(fake, issued_at="2001-01-01T10:00:00.000000Z", expires_at="2001-01-01T11:00:00.000000Z")
    backend = open_backend(parse_url("swift://bucket/x"))
    now = [0.0]
    backend._tokens._clock = lambda: now[0]  # type: ignore[attr-defined]
    for at, logins in ((0.0, 1), (3000.0, 1), (3580.0, 2), (6500.0, 2), (7200.0, 3)):
        now[0] = at
        backend.stat("a")
        assert len(fake.logins) == logins


def test_a_token_that_says_how_long_it_lives(fake: Fake) -> None:
    head = {"X-Storage-Url": "http://h/v1/a", "X-Auth-Token": "t", "X-Auth-Token-Expires": "1000"}
    asked = []
    now = [0.0]

    def ask(*request: object) -> Told:
        asked.append(request)
        return Told(200, {name.lower(): value for name, value in head.items()})

    tokens = Tokens(login(TEMPAUTH | {"ST_AUTH": "http://h/auth/v1.0"}), ask, lambda: now[0])
    for at, logins in ((0.0, 1), (900.0, 1), (990.0, 2)):
        now[0] = at
        tokens.current()
        assert len(asked) == logins
    for life in ("", "soon", "-5", "9" * 30):
        head["X-Auth-Token-Expires"] = life
        assert Tokens(tokens.login, ask, lambda: 0.0).current().ends_at > 1e6


def test_a_login_that_leads_to_another_store_later(fake: Fake) -> None:
    """What was compared with the workspace's own is not exchanged under way."""
    fake.log_in = keystone(fake)
    backend = open_backend(parse_url("swift://bucket"))
    backend.stat("a")
    fake.answer = lambda _: Answer(401)
    fake.log_in = keystone(fake, [endpoint(fake, "R1", "AUTH_test/other")])
    with pytest.raises(UnreachableError, match="another store"):
        backend.stat("a")
    assert len(fake.asked) == 2


def endpoint(fake: Fake, region: str, account: str) -> dict[str, str]:
    return {"interface": "public", "region": region, "region_id": region, "url": f"{fake.root}/v1/{account}"}


def test_regions(fake: Fake) -> None:
    fake.log_in = keystone(fake, [endpoint(fake, "R1", "AUTH_test"), endpoint(fake, "R2", "AUTH_test/two")])
    open_backend(parse_url("swift://bucket?region=R2")).stat("a")
    assert fake.asked[-1].path == "/two/bucket/a"
    with pytest.raises(RefusedError, match="several regions") as caught:
        open_backend(parse_url("swift://bucket")).stat("a")
    assert "R1, R2" in caught.value.next_step
    with pytest.raises(RefusedError, match="in the region R3") as caught:
        open_backend(parse_url("swift://bucket?region=R3")).stat("a")
    assert "R1, R2" in caught.value.next_step


def test_a_project_without_an_object_store(fake: Fake) -> None:
    for endpoints in ([], [{**endpoint(fake, "R1", "a"), "interface": "internal"}]):
        fake.log_in = keystone(fake, endpoints)
        with pytest.raises(RefusedError, match="knows no object store"):
            open_backend(parse_url("swift://bucket")).stat("a")


@pytest.mark.parametrize(
    ("status", "expected", "said"),
    [
        (401, RefusedError, "refused the credentials"),
        (403, RefusedError, "refused the credentials"),
        (300, UnreachableError, "no Keystone v3"),
        (302, UnreachableError, "leads elsewhere"),
        (404, UnreachableError, "no Keystone v3"),
        (200, UnreachableError, "no token"),
        (204, UnreachableError, "no Keystone v3"),
        (429, BackendError, "fewer requests"),
        (400, BackendError, "400"),
        (500, BackendError, "500"),
        (503, BackendError, "503"),
    ],
)
def test_a_login_that_fails(fake: Fake, status: int, expected: type[BackendError], said: str) -> None:
    fake.log_in = lambda r: Answer(status, r.body)
    with pytest.raises(BackendError, match=said) as caught:
        open_backend(parse_url("swift://bucket")).stat("a")
    assert type(caught.value) is expected
    assert "cannot log in at" in caught.value.message
    assert KEY not in f"{caught.value}{caught.value.__cause__}"
    assert fake.asked == []


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_that_says_so_in_a_page_is_asked_again(fake: Fake, status: int) -> None:
    """It was told as none that logs anybody in, and left out at once."""
    fake.log_in = lambda _: Answer(status, PAGE, {"Content-Type": "text/html"})
    with pytest.raises(BackendError) as caught:
        open_backend(parse_url("swift://bucket")).stat("a")
    assert caught.value.retryable
    assert not isinstance(caught.value, UnreachableError)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        PAGE,
        b"[]",
        b'{"token": 5}',
        b'{"token": {"catalog": 7}}',
        b'{"token": {"catalog": [5]}}',
        b'{"token": {"catalog": [{"type": "object-store"}]}}',
        b'{"token": {"catalog": [{"type": "object-store", "endpoints": [{"interface": "public"}]}]}}',
        b'{"token": {"expires_at": "soon", "issued_at": "now"}}',
        b'{"token": {"expires_at": "2001-01-01T10:00:00", "issued_at": "2001-01-01T10:00:00Z"}}',
        b"[" * 200_000,
        b"\xff\xfe",
    ],
)
def test_what_is_no_token(fake: Fake, body: bytes) -> None:
    fake.log_in = lambda _: Answer(201, body, {"X-Subject-Token": "t"})
    with pytest.raises(BackendError) as caught:
        open_backend(parse_url("swift://bucket")).stat("a")
    assert type(caught.value) in (UnreachableError, RefusedError)
    assert fake.asked == []


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "ftp://h/v1", "http://u:p@h/v1", "http://h:99999/v1", "http:///v1", "http://h/\u00fc", "//h/v1"],
)
def test_a_catalogue_with_an_address_that_is_none(fake: Fake, url: str) -> None:
    fake.log_in = keystone(fake, [{**endpoint(fake, "R1", "a"), "url": url}])
    with pytest.raises(UnreachableError, match="no address of a store"):
        open_backend(parse_url("swift://bucket")).stat("a")


def test_a_login_page_of_the_network(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.log_in = lambda _: Answer(200, PAGE, {"Content-Type": "text/html"})
    with pytest.raises(UnreachableError, match="not the Swift server"):
        open_backend(parse_url("swift://bucket")).stat("a")
    monkeypatch.setenv("ST_KEY", KEY)
    tempauth = open_backend(parse_url(f"swift://bucket?auth={fake.root}/auth/v1.0&user=u"))
    with pytest.raises(UnreachableError, match="no token and storage URL"):
        tempauth.stat("a")


def test_every_error_says_what_to_do() -> None:
    for environ in ({}, {"OS_AUTH_URL": AUTH}, {"ST_AUTH": "https://h/v1.0"}):
        with pytest.raises(RefusedError) as caught:
            login(environ)
        assert caught.value.next_step.endswith("docs/howto/swift.md.")
