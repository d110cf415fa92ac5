"""How much a test tries: little in `make test`, which proves, and much in `make test-long`, which explores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def few_and_many(name: str, few: Any, many: Any) -> pytest.MarkDecorator:
    """Runs a test with `few` as the parameter `name`, and in `make test-long` with `many`."""
    return pytest.mark.parametrize(
        name, [pytest.param(few, id="few"), pytest.param(many, id="many", marks=pytest.mark.long)]
    )


def first(few: int, of: Iterable[Any]) -> list[Any]:
    """Parameters, of which all but the first `few` are left to `make test-long`."""
    return [one if at < few else pytest.param(one, marks=pytest.mark.long) for at, one in enumerate(of)]


def examples(count: int) -> int:
    """How many examples a property tries that needs `count` to explore; `make test` tries an eighth of them."""
    return max(10, count * settings.default.max_examples // 200)
