"""From the text of a backend URL to an open backend.

A scheme is an entry point of the group `metasync.backends`, which names a class with the calls of `BackendClass`. Those
that come with MetaSync also stand in a table, because asking the installed packages costs milliseconds at every start.
Only `open_backend` imports a provider's SDK.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import replace
from typing import ClassVar, Literal, Protocol, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode

from metasync.backends.api import Backend, BackendUrl
from metasync.config import CAPACITY_BYTES_MAX
from metasync.errors import UsageError

GROUP = "metasync.backends"
TRACE_VARIABLE = "METASYNC_TRACE"  # names the file that every call is written to (`wrappers.trace`)

_BUILT_IN = {
    "file": "metasync.backends.folder:FolderBackend",
    "memory": "metasync.backends.memory:MemoryBackend",
    "s3": "metasync.backends.s3:S3Backend",
    "azure": "metasync.backends.azure:AzureBackend",
    "box": "metasync.backends.box:BoxBackend",
    "dropbox": "metasync.backends.dropbox:DropboxBackend",
    "gcs": "metasync.backends.gcs:GcsBackend",
    "gdrive": "metasync.backends.gdrive:GoogleDriveBackend",
    "swift": "metasync.backends.swift:SwiftBackend",
    "sftp": "metasync.backends.sftp:SftpBackend",
    "onedrive": "metasync.backends.onedrive:OneDriveBackend",
    "webdav": "metasync.backends.webdav:WebDavBackend",
    "webdav+http": "metasync.backends.webdav:PlainWebDavBackend",
}
LINKED = frozenset({"dropbox", "onedrive", "box", "gdrive"})
"""The schemes whose stores are reached by a linked account (`_shared.logins`), which `account` names in the URL."""

_ALIASES = {"gs": "gcs", "webdav+https": "webdav"}
"""Other names for a scheme, which a URL never keeps: one store has one name."""

_FORMS = {
    "azure": "azure://container/prefix?account=NAME",
    "box": "box:/folder?account=NAME",
    "dropbox": "dropbox:/folder?account=NAME",
    "file": "file:///absolute/path",
    "gcs": "gcs://bucket/prefix",
    "gdrive": "gdrive:/folder?account=NAME",
    "onedrive": "onedrive:/folder",
    "s3": "s3://bucket/prefix",
    "sftp": "sftp://user@host/path",
    "swift": "swift://container/prefix?auth=https://host:5000/v3",
    "webdav": "webdav://user@host/path",
}
"""What URLs look like, for whoever mistyped a scheme; whether what it needs is installed is another question."""

_OTHER_NAMES = {
    **dict.fromkeys(("gcp", "google", "googlestorage"), _FORMS["gcs"]),
    **dict.fromkeys(("az", "azblob", "blob", "abfs", "abfss", "wasb", "wasbs", "adl"), _FORMS["azure"]),
    **dict.fromkeys(("dav", "davs", "nextcloud", "owncloud", "koofr", "webdavs"), _FORMS["webdav"]),
    **dict.fromkeys(("ssh", "scp", "rsync"), _FORMS["sftp"]),
    **dict.fromkeys(("msgraph", "graph", "skydrive"), _FORMS["onedrive"]),
    **dict.fromkeys(("openstack", "ovh", "st"), _FORMS["swift"]),
    **dict.fromkeys(("s3a", "s3n", "aws", "amazon"), _FORMS["s3"]),
    "minio": "s3://bucket/prefix?endpoint=https://host:9000",
    **dict.fromkeys(("ceph", "rgw", "garage"), "s3://bucket/prefix?endpoint=https://host"),
    "wasabi": "s3://bucket/prefix?endpoint=https://s3.REGION.wasabisys.com&region=REGION",
    "r2": "s3://bucket/prefix?endpoint=https://ACCOUNT.r2.cloudflarestorage.com&region=auto",
    **dict.fromkeys(("b2", "backblaze"), "s3://bucket/prefix?endpoint=https://s3.REGION.backblazeb2.com&region=REGION"),
    **dict.fromkeys(
        ("http", "https"), f"{_FORMS['webdav']} for WebDAV, s3://bucket/prefix?endpoint=https://host for S3"
    ),
    **dict.fromkeys(("smb", "cifs", "nfs", "afp"), "file:///path/of/the/folder, after mounting the share"),
    **dict.fromkeys(("ftp", "ftps"), f"{_FORMS['sftp']} if the server has SSH too; there is no backend for FTP"),
    **dict.fromkeys(("folder", "dir", "path", "local"), _FORMS["file"]),
}
"""What else stores are called, and the URL to write. Nothing here quotes what was typed: it may hold a secret."""

_URL_CHARS_MAX = 4096  # longer than any path a system opens: what is longer is not a URL someone meant
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}")
_NAME = re.compile(r"[a-z0-9._-]{1,40}")
_LATE = re.compile(r"&(capacity|name|role)=")  # parameters, where none is before them: never part of a folder's name
_AMOUNT = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,6})?)\s*([a-z]*)", re.IGNORECASE)
_SECRET = re.compile(
    r"secret|passw|passphrase|token|credential|signature|(^|[_-])(key|pass|pwd|sig|auth)($|[_-])|key$", re.I
)
_UNITS = {"": 1, "b": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("kmgtp", start=1)
    for ending, base in (("b", 1000), ("ib", 1024))
}


class BackendClass(Protocol):
    """What an entry point of the group names."""

    url_params: ClassVar[frozenset[str]]
    """The URL parameters it knows besides `capacity`, `name` and `role`."""

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        """`UsageError` with the right form, if this URL cannot be one of its own. No I/O."""
        ...

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> Backend:
        """A backend for the URL. `UnreachableError` if its root is not there and not to be made."""
        ...


def parse_url(text: str) -> BackendUrl:
    """Takes a backend URL apart and checks all that can be checked without reaching the store.

    `UsageError` with the right form otherwise; what it quotes never holds a secret that stood in the URL.
    `parse_url(url.location)` gives the same store again. Bytes that are not UTF-8 (an argument, %ff) stand for
    themselves.
    """
    scheme, rest = _split_scheme(text)
    kind = _load(scheme)
    where, _, query = rest.partition("?")
    if (late := _LATE.search(where)) is not None:  # as in "file:///mnt/disk&role=storage"
        if query:
            raise UsageError(
                f"the parameters of a {scheme} URL begin with ?, and this one has a & before it",
                next_step="Write ?name=value for the first; and %26 for a & that belongs to a name.",
            )
        where, query = where[: late.start()], where[late.start() + 1 :]
    host, path = "", where
    if where.startswith("//"):
        host, slash, path = where[2:].partition("/")
        path = slash + path
    host, path = (_one_form(unquote(part, errors="surrogateescape")) for part in (host, path))
    user, at, _ = host.rpartition("@")
    if at and ":" in user:
        raise _secret_refused(f"the {scheme} URL holds a password")
    own, params = _split_params(scheme, query, kind.url_params)
    # In a path most are a name's own bytes; nowhere else do they mean anything.
    if {*path} & {"\0", "\n"} or _CONTROL.search(host) or any(_CONTROL.search(value) for _, value in params):
        raise UsageError(f"the {scheme} URL holds a control character", next_step="Write it anew, by hand.")
    url = BackendUrl(
        scheme=scheme,
        host=host,
        path=path,
        params=params,
        location=_location(scheme, host, path, params, double_slash=where.startswith("//")),
    )
    kind.check_url(url)
    return replace(
        url,
        name=_name(own["name"]) if "name" in own else None,
        capacity_bytes=parse_bytes(own["capacity"]) if "capacity" in own else None,
        role=_role(own["role"]) if "role" in own else "both",
    )


def open_backend(url: BackendUrl, *, create_root: bool = False) -> Backend:
    """Opens the store of a URL. With `create_root` a missing `file://` or `memory://` root is made.

    `UsageError` if the scheme needs an extra that is not installed or cannot be loaded; else errors of the contract.
    """
    kind = _load(url.scheme)
    try:
        return kind.open(url, create_root=create_root)
    except ImportError as error:
        raise _not_loaded(url.scheme, error) from error


def check_installed(scheme: str) -> None:
    """`UsageError` with the command to run, if the library that a linked account's stores need is not installed.

    `parse_url` does not look for it, and `open_backend` comes after the login. Imports nothing of the library.
    """
    needed = getattr(_load(scheme), "library", None)
    for module, package in (needed, ("requests", "requests")) if needed else ():
        if importlib.util.find_spec(module) is None:
            raise _not_loaded(scheme, ModuleNotFoundError(f"no package {package}", name=package))


def is_watchable(scheme: str) -> bool:
    """Whether stores of a scheme can be watched (`Watches`); False where it is not installed."""
    try:
        return hasattr(_load(scheme), "watch")
    except (UsageError, ImportError):
        return False


def digest_kind(scheme: str) -> str | None:
    """The kind of digest that stores of a scheme tell (`TellsDigests`); None for none, or where it is not installed."""
    try:
        return getattr(_load(scheme), "digest_kind", None)
    except (UsageError, ImportError):
        return None


_DEFAULT_SERVERS = {
    "box": "api.box.com",
    "dropbox": "api.dropboxapi.com",
    "gcs": "storage.googleapis.com",
    "gdrive": "www.googleapis.com",
    "onedrive": "graph.microsoft.com",
    "s3": "amazonaws.com",
}
_LOCAL = frozenset({"file", "memory"})


def server_of(url: BackendUrl) -> str:
    """The server that a URL leads to, with its scheme, for people: `webdav dav.example:8443`. Two are the same server
    only if the words are. "": this machine, or (Swift without `auth`) what the user's own environment names.
    """
    params = dict(url.params)
    address = params.get("endpoint") or params.get("auth")
    if url.scheme in _LOCAL or (url.scheme == "swift" and address is None):
        return ""
    if address is None and url.scheme == "azure":
        address = f"{params['account']}.blob.core.windows.net"
    host = url.host.rpartition("@")[2]
    words = f"{url.scheme} {address or _DEFAULT_SERVERS.get(url.scheme) or host or url.location}"
    return words.lower().encode("ascii", "backslashreplace").decode("ascii")  # letters that look like others do not


def is_own(scheme: str) -> bool:
    """Whether the provider of a scheme comes with MetaSync, so that what may vote is MetaSync's own judgement."""
    return scheme in _BUILT_IN


def may_vote(scheme: str) -> bool:
    """Whether stores of a scheme vote as a rule. One store may be fit for less: its own `form` says so."""
    return getattr(_load(scheme), "form", "log") != "none"


def has_atomic_create(scheme: str) -> bool:
    """Whether stores of a scheme vote in log form as a rule, so that some of them may lie."""
    return getattr(_load(scheme), "form", "log") == "log"


def schemes() -> tuple[str, ...]:
    """Every scheme that is installed, sorted."""
    from importlib.metadata import entry_points  # 20 ms, which a known scheme does not need

    return tuple(sorted(_BUILT_IN.keys() | {point.name for point in entry_points(group=GROUP)}))


def parse_bytes(text: str) -> int:
    """Bytes of an amount such as `15GiB`, `1.5TB` or `1000000`. `UsageError` for another form."""
    from fractions import Fraction  # 2 ms, and few URLs name a capacity

    match = _AMOUNT.fullmatch(text.strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    amount = int(Fraction(match[1]) * unit) if match and unit else 0
    if not 1 <= amount <= CAPACITY_BYTES_MAX:
        raise UsageError(
            f"not an amount of storage: {text[:40]!r}",
            next_step="Write a number with B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (of 1024): 15GiB.",
        )
    return amount


def _split_scheme(text: str) -> tuple[str, str]:
    if len(text) > _URL_CHARS_MAX:
        raise UsageError(
            f"a backend URL of more than {_URL_CHARS_MAX} characters",
            next_step="Give each URL with a --backend of its own.",
        )
    scheme, colon, rest = text.strip().partition(":")
    scheme = _ALIASES.get(scheme.lower(), scheme.lower())
    if len(scheme) == 1 and scheme.isalpha():
        raise UsageError("the letter of a drive is no backend URL", next_step=f"For a folder write {_FORMS['file']}.")
    if not colon or _SCHEME.fullmatch(scheme) is None:
        is_scp = colon and "@" in scheme and "/" not in scheme
        raise UsageError(
            "a backend is named by a URL such as file:///path or s3://bucket/prefix, and this one has no scheme",
            next_step=f"For a server with SSH write {_FORMS['sftp']}."
            if is_scp
            else "For a folder write file:// and its absolute path: file:///media/stick/metasync.",
        )
    if "#" in rest:
        raise UsageError(f"the {scheme} URL holds a #", next_step="Write %23 for a # that belongs to a name.")
    return scheme, rest


def _load(scheme: str) -> BackendClass:
    target = _BUILT_IN.get(scheme)
    if target is not None:
        module, _, name = target.partition(":")
        try:
            return cast(BackendClass, getattr(importlib.import_module(module), name))
        except ImportError as error:
            raise _not_loaded(scheme, error) from error
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=scheme):
        try:
            return cast(BackendClass, point.load())
        except Exception as error:  # of somebody else's package, whatever it is
            raise UsageError(
                f"what provides {scheme} URLs ({point.value}) cannot be loaded: {type(error).__name__}: {error}",
                next_step="Install or update the package that it belongs to.",
            ) from error
    raise UsageError(f"no backend is called {scheme!r}", next_step=_meant(scheme))


def _meant(scheme: str) -> str:
    """What to write in the place of a scheme that is none."""
    if scheme in _OTHER_NAMES:
        return f"Write {_OTHER_NAMES[scheme]}."
    import difflib

    known = [s for s in schemes() if s != "memory"]  # ends with the process: nobody's files belong there
    nearest = difflib.get_close_matches(scheme, sorted({*known, *_FORMS} - {scheme}), n=1, cutoff=0.5)
    if not nearest:
        return f"There are: {', '.join(known)}."
    form = _FORMS.get(nearest[0])
    return f"Did you mean {nearest[0]}?" + (f" Write {form}." if form else "")


def _not_loaded(scheme: str, error: ImportError) -> UsageError:
    extra = scheme.partition("+")[0]
    if not isinstance(error, ModuleNotFoundError):
        return UsageError(
            f"{scheme} URLs need {error.name or 'a package'}, which is installed but cannot be loaded: {error}",
            next_step=f"Install the packages of metasync[{extra}] anew, for this very Python."
            if scheme in _BUILT_IN
            else "Install or update the package that provides these URLs.",
        )
    own = f"Run: pip install 'metasync[{extra}]'"
    return UsageError(
        f"{scheme} URLs need the package {error.name}, which is not installed",
        next_step=own if scheme in _BUILT_IN else "Install it; the package that provides these URLs should have.",
    )


def _split_params(scheme: str, query: str, known: frozenset[str]) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """What the workspace wants, and the sorted parameters of the store itself."""
    ours = {"capacity", "name", "role"}
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), errors="surrogateescape", max_num_fields=32
        )
    except ValueError:
        raise UsageError(
            f"the parameters of the {scheme} URL are not in the form name=value",
            next_step="Write ?name=value for the first and &name=value for each further one, quoted in a shell.",
        ) from None
    for key, value in pairs:
        if key not in ours | known:
            if _SECRET.search(key):
                raise _secret_refused(f"the {scheme} URL holds a secret as a parameter")
            import difflib

            nearest = difflib.get_close_matches(key, sorted(ours | known), n=1)
            raise UsageError(
                f"{scheme} URLs have no parameter {key[:40]!r}",
                next_step=f"Did you mean {nearest[0]}?" if nearest else f"Known: {', '.join(sorted(ours | known))}.",
            )
        if key in found or not value:
            raise UsageError(
                f"the parameter {key} of the {scheme} URL needs one value",
                next_step=f"Write {key}= once, with its value behind it.",
            )
        found[key] = _one_form(value)
    own = {key: found.pop(key) for key in ours if key in found}
    return own, tuple(sorted(found.items()))


def _location(scheme: str, host: str, path: str, params: tuple[tuple[str, str], ...], *, double_slash: bool) -> str:
    safe = "/:"
    query = f"?{urlencode(params, safe=safe, errors='surrogateescape', quote_via=quote)}" if params else ""
    quoted = quote(host, safe="@:[]", errors="surrogateescape")
    double_slash = double_slash or path.startswith("//")  # else the path's first part would be the host
    return f"{scheme}:{'//' if double_slash else ''}{quoted}{quote(path, errors='surrogateescape')}{query}"


def _one_form(text: str) -> str:
    """Bytes that are no UTF-8 escaped, all others not. `UsageError` for what is neither text nor bytes."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError("a backend URL holds half a character", next_step="Write it anew, by hand.") from None


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise UsageError(
            f"not a name for a backend: {text[:40]!r}",
            next_step="Names have 1 to 40 of the characters a-z 0-9 . _ -",
        )
    return text


def _role(text: str) -> Literal["storage", "both"]:
    if text == "storage":
        return "storage"
    if text == "both":
        return "both"
    raise UsageError(f"no role is called {text[:40]!r}", next_step="Write role=storage for what holds data only.")


def _secret_refused(what: str) -> UsageError:
    return UsageError(
        f"{what}, and secrets never stand in a URL: shells and logs keep them",
        next_step="Give it by the provider's environment variables or its credentials file.",
    )
