"""Box's own description of its API (specs/box/openapi.json, a cut of it), held against requests and answers.

Answers are held to it more strictly than JSON Schema would: a property that is not described is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from http_kit import Answer
from servers.standin import Request

_TYPES: Final[Mapping[str, Any]] = {
    "string": str, "boolean": bool, "integer": int, "number": (int, float), "array": list, "object": dict
}  # fmt: skip
_UPLOADS: Final = "https://upload.box.com/api/2.0"
CODES: Final = frozenset(
    {
        "access_denied_insufficient_permissions", "bad_digest", "file_size_limit_exceeded", "file_size_too_small",
        "folder_not_empty", "item_name_in_use", "item_name_too_long", "name_temporarily_reserved",
        "operation_blocked_temporary", "storage_limit_exceeded", "trashed",
    }
)  # fmt: skip
"""Codes of errors that the schema does not list. Box's guides, or the description's own sentences, name them."""


@dataclass(frozen=True)
class Operation:
    name: str  # get_files_id_content
    method: str
    host: str
    pattern: re.Pattern[str]
    described: Mapping[str, Any]


class Described:
    """What the description says."""

    def __init__(self) -> None:
        doc = json.loads((Path(__file__).parent / "specs" / "box" / "openapi.json").read_text())
        self._schemas: Mapping[str, Any] = doc["components"]["schemas"]
        self.operations = []
        # What has no variables comes first: /files/content is no file.
        for path, methods in sorted(doc["paths"].items(), key=lambda item: item[0].count("{")):
            for method, described in methods.items():
                server = described.get("servers", doc["servers"])[0]["url"]
                parts = urlsplit(_UPLOADS if "{" in server else server)
                pattern = re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(parts.path + path)))
                name = described["operationId"]
                self.operations.append(Operation(name, method.upper(), parts.netloc, pattern, described))

    def find(self, request: Request) -> tuple[Operation, dict[str, str]] | None:
        """The operation, and what stands in the variables of its path."""
        for one in self.operations:
            if one.method == request.method and one.host == request.host and (m := one.pattern.fullmatch(request.path)):
                return one, m.groupdict()
        return None

    def wrong_request(self, operation: Operation, request: Request, form: Mapping[str, Any] | None) -> list[str]:
        """What of a request is not as described. `form`: the parts of a multipart body, JSON taken apart."""
        told = operation.described.get("parameters", ())
        query = {one["name"]: one for one in told if one["in"] == "query"}
        out = [f"no parameter {name}" for name in request.query if name not in query]
        for name, text in request.query.items():
            out += self._wrong_text(query.get(name, {}).get("schema", {}), text, name)
        for one in told:
            given = request.query if one["in"] == "query" else request.headers
            if one.get("required") and one["in"] != "path" and one["name"] not in given:
                out.append(f"{one['name']} is missing")
        if request.query.get("fields"):
            known = self._fields(operation)
            out += [f"no field {name}" for name in request.query["fields"].split(",") if name not in known]
        content = operation.described.get("requestBody", {}).get("content", {})
        kind = request.headers.get("content-type", "").partition(";")[0]
        if not content:
            return out + (["a body"] if request.body else [])
        if kind not in content:
            return [*out, f"a body of type {kind!r}"]
        if kind == "application/json":
            out += self.wrong(content[kind]["schema"], request.json(), "body")
        elif form is not None:
            out += self.wrong(content[kind]["schema"], form, "form")
        return out

    def wrong_answer(self, operation: Operation, answer: Answer) -> list[str]:
        """What of an answer is not as described."""
        responses = operation.described["responses"]
        told = responses.get(str(answer.status), responses["default"] if answer.status >= 400 else None)
        if told is None:
            return [f"no answer {answer.status}"]
        out = [f"no header {name}" for name in told.get("headers", {}) if name not in answer.headers]
        schema = told.get("content", {}).get("application/json", {}).get("schema")
        if schema is None:
            return out + (["a body"] if answer.body else [])
        if not answer.body:
            return out + ([] if answer.status == 401 else ["no body"])
        value = json.loads(answer.body)
        return out + self.wrong(schema, _as_described(value) if answer.status >= 400 else value, operation.name)

    def wrong(self, schema: Mapping[str, Any], value: Any, at: str) -> list[str]:
        """What of a value is not as its schema has it."""
        parts = list(self._parts(schema))
        if value is None:
            return [] if any(part.get("nullable") for part in parts) else [f"{at} is null"]
        choices = [part.get("oneOf", part.get("anyOf")) for part in parts if "oneOf" in part or "anyOf" in part]
        if choices:
            return self._wrong_choice(choices[0], value, at)
        out = []
        for part in parts:
            kind = part.get("type")
            is_bool = isinstance(value, bool) and kind in ("integer", "number")
            if kind is not None and (is_bool or not isinstance(value, _TYPES[kind])):
                return [f"{at} is no {kind}: {value!r}"]
            if "enum" in part and value not in part["enum"]:
                out.append(f"{at} is {value!r}")
            if isinstance(value, str) and not part.get("minLength", 0) <= len(value) <= part.get("maxLength", 1 << 30):
                out.append(f"{at} has {len(value)} letters")
            if "maximum" in part and value > part["maximum"]:
                out.append(f"{at} is {value}")
            if isinstance(value, list) and "items" in part:
                out += [text for n, one in enumerate(value) for text in self.wrong(part["items"], one, f"{at}[{n}]")]
        return out + (self._wrong_object(parts, value, at) if isinstance(value, dict) else [])

    def _wrong_object(self, parts: list[Mapping[str, Any]], value: Mapping[str, Any], at: str) -> list[str]:
        is_open = any("additionalProperties" in part for part in parts)
        out = [f"{at}.{name} is missing" for part in parts for name in part.get("required", ()) if name not in value]
        for name, one in value.items():
            schemas = [part["properties"][name] for part in parts if name in part.get("properties", {})]
            if not schemas and not is_open:
                out.append(f"{at}.{name} is not described")
            if one is None and any(part.get("nullable") for schema in schemas for part in self._parts(schema)):
                continue
            for schema in schemas:
                out += self.wrong(schema, one, f"{at}.{name}")
        return out

    def _wrong_choice(self, choices: list[Mapping[str, Any]], value: Any, at: str) -> list[str]:
        """One of several schemas: by the type that it says, or whichever it fits."""
        if isinstance(value, dict) and "type" in value:
            for one in choices:
                kinds = [
                    part["properties"]["type"] for part in self._parts(one) if "type" in part.get("properties", {})
                ]
                if any(value["type"] in kind.get("enum", ()) for kind in kinds):
                    return self.wrong(one, value, at)
        return min((self.wrong(one, value, at) for one in choices), key=len)

    def _wrong_text(self, schema: Mapping[str, Any], text: str, name: str) -> list[str]:
        kind = schema.get("type")
        if kind == "integer":
            return self.wrong(schema, int(text), name) if text.isascii() and text.isdigit() else [f"{name}={text}"]
        if kind == "boolean":
            return [] if text.lower() in ("true", "false") else [f"{name}={text}"]
        return self.wrong(schema, text, name) if kind == "string" else []

    def _parts(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """A schema, with all that it is made of."""
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        yield schema
        for one in schema.get("allOf", ()):
            yield from self._parts(one)

    def _fields(self, operation: Operation) -> frozenset[str]:
        """The names of what a good answer, or an entry of it, has."""
        told = next(one for status, one in operation.described["responses"].items() if status.startswith("2"))
        return frozenset(self._names(told["content"]["application/json"]["schema"]))

    def _names(self, schema: Mapping[str, Any]) -> Iterator[str]:
        parts = list(self._parts(schema))
        entries = [part["properties"]["entries"]["items"] for part in parts if "entries" in part.get("properties", {})]
        if entries:
            yield from self._names(entries[0])
            return
        for part in parts:
            yield from part.get("properties", ())
            for one in part.get("oneOf", ()):
                yield from self._names(one)


def _as_described(error: Any) -> Any:
    """An error without what the description leaves out: codes of its own, and the one conflict that is no list."""
    out = dict(error)
    if out.get("code") in CODES:
        out["code"] = "conflict"
    conflicts = (out.get("context_info") or {}).get("conflicts")
    if isinstance(conflicts, dict):
        conflicts = [conflicts]
    if conflicts:  # of folders nothing is described
        files = [one for one in conflicts if one["type"] == "file"]
        out["context_info"] = {**out["context_info"], "conflicts": files}
    return out
