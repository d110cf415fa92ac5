"""A clone begins anew where the keys were changed while it joined, and for no other reason."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from metasync.errors import ExcludedError, NoQuorumError
from metasync.members.clone import JOINS_MAX, clone

SHUT = ExcludedError("the keys were changed")


class Joining:
    """What becomes of each try: an error, or the report. `calls`: what was done, in order."""

    def __init__(self, *outcomes: Any, may_again: bool = True) -> None:
        self.outcomes, self.may = list(outcomes), may_again
        self.calls: list[Any] = []

    def begin(self, is_again: bool) -> Any:
        self.calls.append("begin anew" if is_again else "begin")
        return self

    def configure(self, key: str, value: str) -> None:
        self.calls.append((key, value))

    def close(self) -> None:
        self.calls.append("close")

    def bring(self, _: Any) -> Any:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def clone(self) -> Any:
        return clone(self.begin, self.bring, {"limit.up": "1M"}, lambda: self.may)


TRY = ("limit.up", "1M")


def test_it_begins_anew_when_the_keys_were_changed_meanwhile() -> None:
    joining = Joining(SHUT, "report")
    assert joining.clone() == "report"
    assert joining.calls == ["begin", TRY, "close", "begin anew", TRY]


@pytest.mark.parametrize("error", [NoQuorumError("away"), KeyboardInterrupt()])
def test_it_ends_with_any_other_error(error: BaseException) -> None:
    joining = Joining(error, "report")
    with pytest.raises(type(error)):
        joining.clone()
    assert joining.calls == ["begin", TRY, "close"]


def test_it_ends_where_it_may_not_begin_anew() -> None:
    joining = Joining(SHUT, "report", may_again=False)
    with pytest.raises(ExcludedError):
        joining.clone()
    assert joining.calls == ["begin", TRY, "close"]


def test_it_ends_with_why_where_that_helps_nothing() -> None:
    joining = Joining(*[SHUT] * JOINS_MAX)
    with pytest.raises(ExcludedError):
        joining.clone()
    assert joining.calls.count("close") == JOINS_MAX


def test_what_brings_the_files_is_loaded_while_the_passphrase_is_stretched() -> None:
    """In a process of its own: here it is loaded already."""
    program = (
        "import sys\n"
        "from metasync.workspace import Workspace, cloning\n"
        "assert cloning.clone\n"
        "from metasync.members import clone_passphrase\n"
        "assert 'metasync.checkout.checkout' not in sys.modules\n"
        "clone_passphrase._load()\n"
        "assert 'metasync.checkout.checkout' in sys.modules\n"
        "assert 'metasync.sync.first_checkout' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
