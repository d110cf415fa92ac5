"""Reports, states and events as JSON values, and back by their types. Pure.

A dataclass is an object of its fields, a path a text whose bytes that are no UTF-8 are lone surrogates (PEP 383), as
`os.fsdecode` has them. A field that is missing has its default, and one that is not known is passed over: daemon and
command may be of two versions. Whatever else is not of its type is a `FormatError`.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from metasync.errors import FormatError

T = TypeVar("T")
INFINITE: Final = "inf"  # JSON has no word for it: a pause until it is ended


def encode(x: Any) -> Any:
    """The JSON value of a report or a state."""
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {f.name: encode(getattr(x, f.name)) for f in dataclasses.fields(x)}
    if isinstance(x, bytes):
        return x.decode("utf-8", "surrogateescape")
    if isinstance(x, Mapping):
        return {str(key): encode(value) for key, value in x.items()}
    if isinstance(x, Sequence) and not isinstance(x, str):  # or what is equal to one, on disk
        return [encode(value) for value in x]
    return INFINITE if x == math.inf else x


def decode(kind: type[T], value: Any) -> T:
    """The value of this type. `FormatError` if it is none."""
    return typing.cast(T, _decode(kind, value))


def _decode(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        return _record(typing.cast(type, kind), value)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _one_of(inner, value)
    if origin is typing.Literal:
        return _checked(value, isinstance(value, str | int) and value in inner)
    if origin is tuple or (isinstance(origin, type) and issubclass(origin, Sequence)):
        if origin is tuple and inner[-1] is not Ellipsis:
            _checked(value, isinstance(value, list) and len(value) == len(inner))
            return tuple(_decode(k, v) for k, v in zip(inner, value, strict=True))
        return tuple(_decode(inner[0], v) for v in _checked(value, isinstance(value, list)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {k: _decode(inner[1], v) for k, v in _checked(value, isinstance(value, dict)).items()}
    return _plain(kind, value)


def _record(kind: type, value: Any) -> Any:
    _checked(value, isinstance(value, dict))
    hints = _hints(kind)
    try:
        return kind(**{name: _decode(hint, value[name]) for name, hint in hints.items() if name in value})
    except TypeError as e:  # a field without a default is missing
        raise FormatError(f"no {kind.__name__}: a field is missing") from e


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def _one_of(kinds: Sequence[Any], value: Any) -> Any:
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        try:
            return _decode(kind, value)
        except FormatError:
            continue
    return _checked(value, good=False)


def _plain(kind: Any, value: Any) -> Any:
    if kind is bytes:
        try:
            return _checked(value, isinstance(value, str)).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as e:
            raise FormatError("a path with a character that no path has") from e
    if kind is float:
        if value == INFINITE:
            return math.inf
        return float(
            _checked(value, isinstance(value, int | float) and not isinstance(value, bool) and _is_real(value))
        )
    if kind is int:
        return _checked(value, isinstance(value, int) and not isinstance(value, bool))
    if kind is type(None):
        return _checked(value, value is None)
    return _checked(value, kind in (str, bool) and isinstance(value, kind))


def _is_real(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that is too large
        return False


def _checked(value: Any, good: bool) -> Any:
    if not good:
        raise FormatError(f"not what was expected: {str(value)[:80]!r}")
    return value
