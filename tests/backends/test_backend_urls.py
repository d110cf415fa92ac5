"""Backend URLs: what they mean, what is refused, and that no refusal repeats a secret."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasync.backends import memory, registry
from metasync.backends.api import BackendUrl
from metasync.backends.memory import MemoryBackend
from metasync.backends.registry import open_backend, parse_bytes, parse_url, schemes
from metasync.config import CAPACITY_BYTES_MAX
from metasync.errors import RefusedError, UsageError


def test_a_folder() -> None:
    url = parse_url("file:///media/my%20stick/sync")
    assert (url.scheme, url.host, url.path, url.params) == ("file", "", "/media/my stick/sync", ())
    assert (url.name, url.capacity_bytes, url.role) == (None, None, "both")
    assert url.location == "file:///media/my%20stick/sync"


@given(st.binary(max_size=40).filter(lambda b: not {0, 10} & set(b) and b".." not in b))
def test_a_path_is_bytes(path: bytes) -> None:
    """What the file system calls a folder need not be UTF-8, in the URL as it is or escaped."""
    plain = "file:///x/" + os.fsdecode(path)
    escaped = "file:///x/" + "".join(f"%{b:02x}" for b in path)
    if not {ord(c) for c in "#?%"} & set(path) and plain == plain.strip():
        assert os.fsencode(parse_url(plain).path) == b"/x/" + path
    url = parse_url(escaped)
    assert os.fsencode(url.path) == b"/x/" + path
    assert parse_url(url.location).path == url.path
    assert url.location.isascii()


@pytest.mark.parametrize("text", ["file:///\ud800", "s3://b\ud800/x", "memory:a?name=\udfff"])
def test_half_a_character_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_url(text)


def test_an_escaped_colon_hides_no_password() -> None:
    with pytest.raises(UsageError, match="password"):
        parse_url("s3://user%3Ahunter2@bucket/x")


def test_an_amount_fits_the_config() -> None:
    assert parse_bytes(str(1 << 63)) == CAPACITY_BYTES_MAX
    for text in (str((1 << 63) + 1), "9223373TB", "99999999999999999999PB"):
        with pytest.raises(UsageError, match="not an amount"):
            parse_bytes(text)


def test_a_bucket_with_everything() -> None:
    url = parse_url(
        "s3://bucket/some/prefix?region=eu-central-1&capacity=15GiB&endpoint=http://127.0.0.1:9000&name=work-box&role=storage"
    )
    assert (url.host, url.path) == ("bucket", "/some/prefix")
    assert url.params == (("endpoint", "http://127.0.0.1:9000"), ("region", "eu-central-1"))
    assert (url.name, url.capacity_bytes, url.role) == ("work-box", 15 << 30, "storage")
    assert url.location == "s3://bucket/some/prefix?endpoint=http://127.0.0.1:9000&region=eu-central-1"
    assert parse_url(url.location).params == url.params


@pytest.mark.parametrize(
    "text",
    [
        "file:///a",
        "file:///a%3Fb%23c%25/ä",
        "file:/%2F/a/b",
        "file:///a%26role=storage",
        "file:///a&b",
        "memory://x",
        "s3://bucket",
        "s3://bucket/p?endpoint=https://[::1]:9000/s3&profile=a%20b&server=minio&virtual=1",
        "azure://container/a/b?account=name&endpoint=http://127.0.0.1:10000/name",
        "gcs://bucket.example.org/p?endpoint=http://127.0.0.1:4443",
    ],
)
def test_the_location_is_the_same_store(text: str) -> None:
    url = parse_url(text)
    again = parse_url(url.location)
    assert again == url
    assert (
        parse_url(url.location + ("&" if "?" in url.location else "?") + "name=x&capacity=1GB").location == url.location
    )


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40))
def test_any_folder_name_survives(name: str) -> None:
    from urllib.parse import quote

    if {".", ".."} & set(name.split("/")) or not name.strip("/"):
        return
    url = parse_url(f"file:///{quote(name)}")
    assert url.path == f"/{name}"
    assert parse_url(url.location) == url


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1", 1),
        ("1000000", 1_000_000),
        ("7B", 7),
        ("15GiB", 15 << 30),
        ("15gib", 15 << 30),
        ("2 TB", 2 * 10**12),
        ("1.5KiB", 1536),
        ("3kb", 3000),
        ("4MB", 4_000_000),
        ("5MiB", 5 << 20),
        ("1PiB", 1 << 50),
    ],
)
def test_amounts(text: str, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize(
    "text", ["", "GiB", "15 G", "15GiBs", "-1", "0", "0.1B", "1e9", "1/2", "\N{FULLWIDTH DIGIT ONE}GiB", "9" * 30]
)
def test_no_amounts(text: str) -> None:
    with pytest.raises(UsageError, match="GiB"):
        parse_bytes(text)


def test_parameters_may_come_without_a_question_mark() -> None:
    assert parse_url("file:///a&b&role=storage&name=x") == parse_url("file:///a%26b?role=storage&name=x")
    assert parse_url("s3://bucket/p&capacity=1GB") == parse_url("s3://bucket/p?capacity=1GB")
    assert parse_url("file:///a%26role=storage").path == "/a&role=storage"


REFUSED = {
    "": "file:///media",
    "/media/stick": "file:///media",
    "relative": "file:///media",
    "file:relative": "three slashes",
    "file:./x": "three slashes",
    "file://host/x": "three slashes",
    "file://~/x": "three slashes",
    "file:///": "folder of its own",
    "file:///a/../b": "three slashes",
    "file:///a#b": "%23",
    "file:///a%00b": "control character",
    "sftp://%1bbob@host/x": "control character",
    "s3://bucket?endpoint=http://10.%0a0.0.1": "control character",
    "gcs://bucket?endpoint=%00http://host": "control character",
    "fil:///a": "Did you mean file",
    "files:///a": "Did you mean file",
    "s4://bucket": "Did you mean s3",
    "quux://x": "onedrive, s3, sftp, ",
    "swfit://box": "Did you mean swift? Write swift://container/prefix?auth=https://host:5000/v3.",
    "wedbav://h/x": "Did you mean webdav? Write webdav://user@host/path.",
    "azur://c": "Did you mean azure? Write azure://container/prefix?account=NAME.",
    "gcz://b": "Did you mean gcs? Write gcs://bucket/prefix.",
    "sfpt://h": "Did you mean sftp? Write sftp://user@host/path.",
    "S3s://b": "Did you mean s3? Write s3://bucket/prefix.",
    "gcp://b": "Write gcs://bucket/prefix.",
    "az://c": "Write azure://container/prefix?account=NAME.",
    "abfs://c": "Write azure://",
    "abfss://c@a": "Write azure://",
    "https://h/dav": "Write webdav://user@host/path for WebDAV, s3://bucket/prefix?endpoint=https://host for S3.",
    "HTTP://h": "Write webdav://user@host/path for WebDAV",
    "dav://h": "Write webdav://user@host/path.",
    "davs://h": "Write webdav://user@host/path.",
    "nextcloud://h": "Write webdav://",
    "ssh://h/x": "Write sftp://user@host/path.",
    "scp://h/x": "Write sftp://user@host/path.",
    "anna@host:/srv/x": "For a server with SSH write sftp://user@host/path.",
    "anna@host:x": "sftp://user@host/path",
    "C:\\Users\\anna": "For a folder write file:///absolute/path.",
    "d:/backup": "For a folder write file:///absolute/path.",
    "file:///.": "folder of its own",
    "openstack://c": "Write swift://",
    "minio://b": "Write s3://bucket/prefix?endpoint=https://host:9000.",
    "wasabi://b": "s3://bucket/prefix?endpoint=https://s3.REGION.wasabisys.com",
    "r2://b": "s3://bucket/prefix?endpoint=https://ACCOUNT.r2.cloudflarestorage.com",
    "b2://b": "backblazeb2.com",
    "smb://h/share": "file:///path/of/the/folder, after mounting the share",
    "ftp://h": "no backend for FTP",
    "folder:/x": "Write file:///absolute/path.",
    "memory://": "memory://NAME",
    "memory://a/b": "memory://NAME",
    "s3://": "s3://bucket/prefix",
    "s3://b": "s3://bucket/prefix",
    "s3:bucket": "s3://bucket/prefix",
    "s3://bucket/a/../b": "plain prefix",
    "s3://bucket/a//b": "plain prefix",
    "s3://bucket?region=EU West": "eu-central-1",
    "s3://bucket?endpoint=127.0.0.1:9000": "https://host:port",
    "s3://bucket?endpoint=ftp://x": "https://host:port",
    "s3://bucket?endpoint=http://x:port": "https://host:port",
    "s3://bucket?endpoint=http://ho%20st": "https://host:port",
    f"s3://bucket/{'p' * 513}": "plain prefix",
    "s3://bucket?endpoint=https://h%5C.amazonaws.com": "https://host:port",
    "s3://bucket?endpoint=https://m%C3%BCnchen.example": "https://host:port",
    "s3://bucket?endpoint=https://host/a%20b": "https://host:port",
    "gcs://bucket?endpoint=https://h%25.googleapis.com": "https://host:port",
    "s3://bucket?endpoin=http://x": "Did you mean endpoint",
    "s3://bucket?server=mini": "no S3 server is called",
    "s3://bucket?virtual=yes": "virtual=1",
    "azure://": "azure://container/prefix?account=NAME",
    "azure://Container?account=name": "azure://container",
    "azure://con--tainer?account=name": "azure://container",
    "azure://container": "names a storage account",
    "azure://container?account=UPPER": "names a storage account",
    "azure://container/a/../b?account=name": "plain prefix",
    "azure://container?account=name&endpoint=here": "https://host:port",
    "azure://container?acount=name": "Did you mean account",
    "azur://container": "Did you mean azure",
    "gcs://": "gcs://bucket/prefix",
    "gcs://Bucket": "gcs://bucket/prefix",
    "gcs://bucket/a//b": "plain prefix",
    "gcs://bucket?endpoint=https://x/?a=b": "https://host:port",
    "file:///a?region=x": "no parameter",
    "sftp://host/a&name=b?capacity=1GB": "%26 for a & that belongs to a name",
    "file:///a&role=storage&b": "in the form name=value",
    "file:///a?name=Work": "a-z",
    "file:///a?name=" + "x" * 41: "1 to 40",
    "file:///a?name=": "one value",
    "file:///a?name=a&name=b": "one value",
    "file:///a?name": "name=value",
    "file:///a?role=voter": "role=storage",
    "file:///a?capacity=many": "15GiB",
    "file:///" + "a" * 5000: "4096",
}


@pytest.mark.parametrize(("text", "said"), REFUSED.items(), ids=lambda text: text[:30])
def test_refused_with_the_right_form(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(text)
    assert said in str(caught.value)
    assert caught.value.next_step


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIAEXAMPLE:hunter2@bucket/prefix",
        "s3://bucket?secret=hunter2",
        "s3://bucket?secret_access_key=hunter2",
        "s3://bucket?key=hunter2",
        "s3://bucket?access-key=hunter2",
        "s3://bucket?Password=hunter2",
        "s3://bucket?X-Amz-Signature=hunter2",
        "s3://bucket?session_token=hunter2",
        "s3://bucket?endpoint=http://user:hunter2@host",
        "s3://bucket?endpoint=http://host/?key=hunter2",
        "s3://hunter2@bucket",
        "s3://user:hunter2@",
        "azure://container?account=name&key=hunter2",
        "azure://container?account=name&sig=hunter2",
        "azure://container?account=name&sas_token=hunter2",
        "azure://name:hunter2@container?account=name",
        "azure://container?account=name&endpoint=https://name.blob.core.windows.net?sig=hunter2",
        "gcs://bucket?bearer_token=hunter2",
        "gcs://bucket?endpoint=https://user:hunter2@host",
        "ftp://user:hunter2@host",
        "file://user:hunter2@host/x",
        "file:///x?passwd=hunter2",
        "user:hunter2@host",
        "gs://user:hunter2@bucket",
        "https://user:hunter2@host/dav",
        "swfit://hunter2@x?token=hunter2",
        "user:hunter2@host:/srv",
        "s3://bucket?hunter2",
    ],
)
def test_secrets_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(text)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value)
    assert caught.value.next_step


def test_no_sdk_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys; from metasync.backends.registry import open_backend, parse_url;"
        "parse_url('s3://bucket/x'); parse_url('azure://container?account=name'); parse_url('gcs://bucket');"
        "open_backend(parse_url('memory://x'), create_root=True);"
        "print(sorted({'http.client', 'requests', 'paramiko', 'importlib.metadata'} & sys.modules.keys()))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_a_package_that_is_broken_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """As after an update of the system, or of Python."""
    (tmp_path / "paramiko.py").write_text("raise ImportError('libssl.so.1.1: cannot open shared object file')")
    code = (
        "import sys\n"
        "from metasync.backends.registry import open_backend, parse_url\n"
        "from metasync.errors import UsageError\n"
        "try:\n"
        "    open_backend(parse_url(sys.argv[1]))\n"
        "except UsageError as error:\n"
        "    print(error.message, error.next_step)\n"
    )
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "METASYNC_KEYRING": "off", "HOME": str(tmp_path)}
    root = pathlib.Path(registry.__file__).parents[2]
    env = {**os.environ, **keys, "PYTHONPATH": f"{tmp_path}:{root}"}
    said = subprocess.run(
        [sys.executable, "-c", code, "sftp://host/x"], capture_output=True, text=True, check=True, env=env
    ).stdout
    assert "sftp URLs need a package, which is installed but cannot be loaded: libssl.so.1.1" in said
    assert "Install the packages of metasync[sftp] anew" in said


def _points(monkeypatch: pytest.MonkeyPatch, *points: importlib.metadata.EntryPoint) -> None:
    def entry_points(*, group: str, name: str = "") -> list[importlib.metadata.EntryPoint]:
        return [p for p in points if group == registry.GROUP and name in {"", p.name}]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


def test_forms_that_are_recommended_are_right() -> None:
    """For every scheme that is there: the URL which is offered is one of its own."""
    for scheme, form in registry._FORMS.items():
        if scheme in registry._BUILT_IN:
            assert parse_url(form.replace("NAME", "name")).scheme == scheme
    for form in registry._OTHER_NAMES.values():
        scheme = form.partition(":")[0]
        assert scheme in registry._FORMS
        if scheme in registry._BUILT_IN and " " not in form:
            parse_url(form.replace("REGION", "eu-1").replace("ACCOUNT", "me").replace("NAME", "name"))


def test_a_missing_extra_is_told_also_where_its_module_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._BUILT_IN, "dav+http", "package_that_is_missing.inside:Class")
    with pytest.raises(UsageError, match="need the package package_that_is_missing") as caught:
        parse_url("dav+http://h/x")
    assert caught.value.next_step == "Run: pip install 'metasync[dav]'"


@pytest.mark.parametrize("target", ["nowhere_at_all:X", "metasync.backends.memory:Missing", "broken_syntax:X"])
def test_a_package_that_does_not_load_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, target: str
) -> None:
    (tmp_path / "broken_syntax.py").write_text("def")
    monkeypatch.syspath_prepend(str(tmp_path))
    _points(monkeypatch, importlib.metadata.EntryPoint("quux", target, registry.GROUP))
    with pytest.raises(UsageError, match=f"what provides quux URLs .{target}. cannot be loaded"):
        parse_url("quux://x")


def test_what_another_package_misses_is_no_extra_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Needy(MemoryBackend):
        @classmethod
        def open(cls, url: BackendUrl, *, create_root: bool) -> MemoryBackend:
            raise ModuleNotFoundError("No module named 'grpc'", name="grpc")

    monkeypatch.setattr(memory, "Needy", Needy, raising=False)
    _points(monkeypatch, importlib.metadata.EntryPoint("quux", "metasync.backends.memory:Needy", registry.GROUP))
    with pytest.raises(UsageError, match="need the package grpc") as caught:
        open_backend(parse_url("quux://x"))
    assert "metasync[" not in caught.value.next_step


def test_schemes_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    _points(
        monkeypatch, importlib.metadata.EntryPoint("mem2", "metasync.backends.memory:MemoryBackend", registry.GROUP)
    )
    assert parse_url("mem2://x").scheme == "mem2"
    assert schemes() == tuple(sorted({*registry._BUILT_IN, "mem2"}))
    with pytest.raises(UsageError, match="Did you mean mem2"):
        parse_url("mem3://x")


def test_the_table_holds_what_the_package_declares() -> None:
    import tomllib
    from pathlib import Path

    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    declared = pyproject["project"]["entry-points"][registry.GROUP]
    assert declared == registry._BUILT_IN


@pytest.mark.parametrize("profile", ["", "?profile=other"])
def test_no_credentials_is_said_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: object, profile: str) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{tmp_path}/none")
    with pytest.raises(RefusedError, match="AWS_ACCESS_KEY_ID"):
        open_backend(parse_url(f"s3://bucket/x{profile}"))
