"""The picture of a session in README: it shows the commands that are recorded, and fetches nothing."""

from __future__ import annotations

import html
import re
import runpy
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs/recording"


def test_the_picture_is_of_the_session() -> None:
    svg = (FOLDER / "session.svg").read_text("utf-8")
    shown = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", svg)).replace("\xa0", " ").split())
    session = runpy.run_path(str(FOLDER / "make.py"), run_name="not main")["SESSION"]
    for command in session.strip().splitlines():
        assert " ".join(command.split()) in shown, "make recording"
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|<script", svg)
