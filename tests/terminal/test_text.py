"""Words that all commands print alike."""

from __future__ import annotations

import pytest

from metasync.reports.service import DaemonState, Problem, WorkspaceState
from metasync.terminal.text import daemon_text
from metasync.terminal.text.phrases import sentence


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("check the network", "Check the network"),
        ("metasync check", "metasync check"),
        ("metasync rebalance moves them", "metasync rebalance moves them"),
        ("metasyncs are many", "Metasyncs are many"),
        ("", ""),
    ],
)
def test_a_sentence_has_a_capital_and_a_command_has_none(text: str, printed: str) -> None:
    assert sentence(text) == printed


def test_names_are_spelled_as_they_are() -> None:
    assert sentence("nas: the folder is not there") == "nas: the folder is not there"
    for kind, text in (("conflict", "my file: changed here and elsewhere"), ("unplaced", "big one.bin: no room")):
        problem = Problem("key", kind, text, "", 0.0)  # type: ignore[arg-type]
        state = WorkspaceState("/w", "w", "in step", 0.0, problems=(problem,))
        assert daemon_text.workspace(state, 0.0)[1].startswith(text)


def test_a_question_ends_what_is_said_of_a_problem() -> None:
    for text, printed in (
        ("no route to it", "No route to it, since 00:00."),
        ("is the drive mounted?", "Is the drive mounted? (since 00:00)."),
    ):
        state = WorkspaceState("/w", "w", "in step", 0.0, problems=(Problem("key", "backend", text, "", 0.0),))
        said = daemon_text.workspace(state, 0.0)[1]
        assert said[: said.index("since")] == printed[: printed.index("since")], said
        assert said.endswith(").") == text.endswith("?"), said


def test_the_daemon_says_that_a_broker_tells_it_of_news() -> None:
    for has_broker, lines in ((None, 0), (False, 0), (True, 1)):
        state = DaemonState(1, "1", 0.0, (WorkspaceState("/w", "w", "in step", 0.0, has_broker=has_broker),))
        assert daemon_text.status(state, 0.0).count("  Its broker tells it of news.") == lines
