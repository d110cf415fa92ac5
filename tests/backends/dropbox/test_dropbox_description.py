"""Dropbox's own description of its calls (tests/servers/specs/dropbox, a cut of dropbox-api-spec), beside what is used.

The library is made from that description, and the stand-in takes its word. Here both are held against the text.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dropbox import auth, files, users
from servers.dropbox_standin import ROUTES

from metasync.backends._shared.logins.oauth import PROVIDERS
from metasync.backends.dropbox.client import _REFUSED, ConflictError, _of_tags
from metasync.errors import BackendError, FullError, NotFoundError

FOLDER = Path(__file__).parents[2] / "servers" / "specs" / "dropbox"
MODULES = {"files": files, "auth": auth, "users": users}
_BLOCK = re.compile(r"^(route|union_closed|union|struct) +(\S+)(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_MEMBER = re.compile(r"^    ([a-z_]+)(?: |$)", re.MULTILINE)
_ATTRIBUTE = re.compile(r'^        ([a-z_]+) = "?([^"\n]+)"?$', re.MULTILINE)


def blocks(kind: str) -> dict[tuple[str, str], str]:
    """What the description says, by namespace and name."""
    return {
        (space, found[2]): found[3]
        for space in MODULES
        for found in _BLOCK.finditer((FOLDER / f"{space}.stone").read_text())
        if found[1].removesuffix("_closed") == kind
    }


def members(text: str) -> set[str]:
    return set(_MEMBER.findall(re.sub(r'"[^"]*"', "", text))) - {"attrs"}


UNDESCRIBED = {
    "WriteError": {
        "team_folder_insufficient_space", "member_folder_insufficient_space", "upload_traffic_limit_reached"
    }
}  # fmt: skip
"""Tags that the library knows, and this version of the description does not."""

UNIONS, STRUCTS = blocks("union"), blocks("struct")


@pytest.mark.parametrize("path", [path for path in ROUTES if not path.endswith("get_current_account")])
def test_a_route_is_as_described(path: str) -> None:
    route, (_, _, space, name) = ROUTES[path], path.split("/", 3)
    versioned = re.sub(r"_v([0-9]+)$", r":\1", name)
    text = blocks("route")[space, versioned]
    attributes = dict(_ATTRIBUTE.findall(text))
    told = {"host": "api", "style": "rpc", **attributes}
    assert {key: told[key] for key in ("host", "style", "auth")} == route.attrs
    assert attributes.get("allow_app_folder_app") == "true", "an app with a folder of its own is enough"
    if "scope" in attributes:
        assert attributes["scope"] in PROVIDERS["dropbox"].scope.split(), "the login asks for it"


@pytest.mark.parametrize(("space", "name"), UNIONS)
def test_a_union_has_the_tags_that_are_described(space: str, name: str) -> None:
    tags = set(getattr(MODULES[space], name)._tagmap)
    text = UNIONS[space, name]
    assert members(text) <= tags
    if " extends " not in text.split("\n", 1)[0]:
        assert tags - members(text) <= {"other"} | UNDESCRIBED.get(name, set())


@pytest.mark.parametrize(("space", "name"), STRUCTS)
def test_a_struct_has_the_fields_that_are_described(space: str, name: str) -> None:
    assert members(STRUCTS[space, name]) <= getattr(MODULES[space], name)._all_field_names_


def test_each_error_of_a_path_or_a_write_has_words() -> None:
    """No tag of these is told by its bare name, and none as another error than it is."""
    told = {tag: _of_tags("x", ["path", tag]) for name in ("WriteError", "LookupError", "UploadError")
            for tag in members(UNIONS["files", name]) | UNDESCRIBED.get(name, set())}  # fmt: skip
    kinds = {tag: type(error) for tag, error in told.items() if tag not in _REFUSED}
    assert kinds == {
        "conflict": ConflictError, "insufficient_space": FullError, "not_found": NotFoundError,
        "not_folder": NotFoundError, "too_many_write_operations": BackendError,
        # asked again: what arrived was not what was sent, somebody edits it, and what only wraps another
        "content_hash_mismatch": BackendError, "locked": BackendError, "path": BackendError,
        "properties_error": BackendError,
        "team_folder_insufficient_space": FullError, "member_folder_insufficient_space": FullError,
    }  # fmt: skip
    described = {tag for text in UNIONS.values() for tag in members(text)}.union(*UNDESCRIBED.values())
    assert set(_REFUSED) <= described, "words for tags that there are"
