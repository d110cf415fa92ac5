"""The login of a WebDAV server: where name and password come from, and how they are shown.

Basic shows the password itself, so it is sent unasked only over TLS or on this machine. Over a plain line the server
says first what it wants, and Digest (RFC 7616) is preferred.
"""

from __future__ import annotations

import base64
import hashlib
import netrc
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from metasync.backends._shared.credentials import SERVICE, from_keyring, is_for
from metasync.errors import RefusedError

HOST_VARIABLE: Final = "METASYNC_WEBDAV_HOST"
USER_VARIABLE: Final = "METASYNC_WEBDAV_USER"
PASSWORD_VARIABLE: Final = "METASYNC_WEBDAV_PASSWORD"  # noqa: S105 (the name of one)
_HEADER_CHARS_MAX: Final = 1 << 13
_SCHEME: Final = re.compile(r"(?:^|,)\s*(basic|digest)(?=\s|,|$)", re.IGNORECASE)
_FIELD: Final = re.compile(r'([a-z]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))', re.IGNORECASE)
_HASHES: Final = {"MD5": "md5", "SHA-256": "sha256"}


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """A name and its password. Never shown: it has no `repr`."""

    user: str
    password: str


class Challenge(NamedTuple):
    """What a server's Digest challenge says."""

    realm: str
    nonce: str
    opaque: str | None
    algorithm: str
    has_qop: bool


def find_login(host: str, user: str | None, environ: Mapping[str, str]) -> Login | None:
    """Finds the login for `host`, as `user` if the URL names one; None if there is none: some servers want none.

    The order is: the netrc file, where a host's own entry comes first; METASYNC_WEBDAV_*, which METASYNC_WEBDAV_HOST
    keeps to one server; the system's keyring.
    `RefusedError` for a netrc file that cannot be read.
    """
    return (
        _from_netrc(host, user, environ) or _from_variables(host, user, environ) or _from_keyring(host, user, environ)
    )


def where_to_put_it(host: str) -> str:
    """A sentence on where a login is looked for."""
    return (
        f"Put `machine {_bare(host)} login NAME password PASSWORD` into ~/.netrc (mode 600), or set"
        f" {USER_VARIABLE} and {PASSWORD_VARIABLE}, or store it in the keyring: keyring set {SERVICE} NAME@{host}."
        " With two-factor login the server wants an app password: make one in its security settings."
    )


def _bare(host: str) -> str:
    """Without port and brackets, as people write it elsewhere."""
    return re.sub(r":[0-9]+$", "", host).strip("[]")


def _from_netrc(host: str, user: str | None, environ: Mapping[str, str]) -> Login | None:
    path = environ.get("NETRC") or os.path.expanduser("~/.netrc")
    try:
        hosts = netrc.netrc(path)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError) as error:
        # What the parser says quotes the word it stumbled on, which may be the password.
        line = getattr(error, "lineno", None)
        raise RefusedError(
            f"cannot read the logins in {path}{f', line {line}' if line else ''}",
            next_step="Write lines of the form: machine HOST login NAME password PASSWORD",
        ) from None
    for name in (host, f"[{_bare(host)}]", _bare(host), "default"):
        found = hosts.hosts.get(name)
        if found is not None and found[2] and user in (None, found[0]):
            return Login(found[0], found[2])
    return None


def _from_variables(host: str, user: str | None, environ: Mapping[str, str]) -> Login | None:
    named, password = environ.get(USER_VARIABLE), environ.get(PASSWORD_VARIABLE)
    if not password or not is_for(host, HOST_VARIABLE, environ) or (user and named and user != named):
        return None
    if not (user or named):
        raise RefusedError(
            f"{PASSWORD_VARIABLE} is set without a user",
            next_step=f"Set {USER_VARIABLE} as well, or name it: user@host.",
        )
    return Login(user or named or "", password)


def _from_keyring(host: str, user: str | None, environ: Mapping[str, str]) -> Login | None:
    user = user or environ.get(USER_VARIABLE)
    password = from_keyring(f"{user}@{host}", environ) if user else None
    return Login(user, password) if user and password else None


class Showing:
    """Shows a login to one server. Used by several threads.

    `unasked`: the password itself may be sent before the server has said what it wants.
    """

    def __init__(self, login: Login | None, *, unasked: bool) -> None:
        self.login = login
        self._basic = self._private = unasked
        self._challenge: Challenge | None = None
        self._count = 0
        self._lock = threading.Lock()

    def header(self, method: str, target: str) -> str | None:
        """What `Authorization` is to say of a request for `target`, path and all; None for nothing."""
        if self.login is None:
            return None
        with self._lock:
            self._count += 1
            challenge, count, basic = self._challenge, self._count, self._basic
        if challenge is not None:
            return digest_header(self.login, challenge, method, target, count, os.urandom(8).hex())
        if not basic:
            return None
        return "Basic " + base64.b64encode(f"{self.login.user}:{self.login.password}".encode()).decode("ascii")

    def asked(self, challenges: Sequence[str], sent: str | None) -> bool:
        """A server that refused a request says what it wants. Whether to show that, other than what was `sent`."""
        if self.login is None:
            return False
        wants_basic, wants_digest = read_challenges(challenges)
        if wants_digest is not None and not (wants_basic and self._private):
            if sent is not None and f'nonce="{wants_digest.nonce}"' in sent:
                return False
            with self._lock:
                if self._challenge is None or self._challenge.nonce != wants_digest.nonce:
                    self._challenge, self._count = wants_digest, 0
            return True
        if wants_basic and sent is None:
            with self._lock:
                self._basic = True
            return True
        return False


def read_challenges(values: Sequence[str]) -> tuple[bool, Challenge | None]:
    """Whether Basic is offered, and the first Digest challenge that can be answered."""
    basic, digest = False, None
    for value in values:
        text = "".join(c if c.isprintable() else " " for c in value[:_HEADER_CHARS_MAX])
        marks = list(_SCHEME.finditer(text))
        for number, mark in enumerate(marks):
            end = marks[number + 1].start() if number + 1 < len(marks) else None
            if mark[1].lower() == "basic":
                basic = True
            elif digest is None:
                digest = _challenge(text[mark.end() : end])
    return basic, digest


def _challenge(text: str) -> Challenge | None:
    fields = {m[1].lower(): re.sub(r"\\(.)", r"\1", m[2]) if m[2] is not None else m[3] for m in _FIELD.finditer(text)}
    algorithm, qops = fields.get("algorithm", "MD5").upper(), fields.get("qop", "").lower()
    offers = [item.strip() for item in qops.split(",") if item.strip()]
    if algorithm not in _HASHES or not fields.get("nonce") or (offers and "auth" not in offers):
        return None
    return Challenge(fields.get("realm", ""), fields["nonce"], fields.get("opaque"), algorithm, bool(offers))


def digest_header(login: Login, challenge: Challenge, method: str, target: str, count: int, cnonce: str) -> str:
    """RFC 7616, 3.4, with qop=auth; as RFC 2069 had it where the server knows no qop."""

    def of(text: str) -> str:
        return hashlib.new(_HASHES[challenge.algorithm], text.encode(), usedforsecurity=False).hexdigest()

    who = of(f"{login.user}:{challenge.realm}:{login.password}")
    what = of(f"{method}:{target}")
    middle = f"{challenge.nonce}:{count:08x}:{cnonce}:auth" if challenge.has_qop else challenge.nonce
    fields = {
        "username": _quoted(login.user),
        "realm": _quoted(challenge.realm),
        "nonce": _quoted(challenge.nonce),
        "uri": _quoted(target),
        "response": f'"{of(f"{who}:{middle}:{what}")}"',
        "algorithm": challenge.algorithm,
    }
    if challenge.opaque is not None:
        fields["opaque"] = _quoted(challenge.opaque)
    if challenge.has_qop:
        fields |= {"qop": "auth", "nc": f"{count:08x}", "cnonce": f'"{cnonce}"'}
    text = "Digest " + ", ".join(f"{name}={value}" for name, value in fields.items())
    return text.encode().decode("latin-1")  # headers are sent as that


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
