"""Words that all commands print alike."""

from __future__ import annotations

import pytest

from metasync.terminal.text import sentence


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
