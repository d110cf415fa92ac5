"""What documents promise about themselves: their examples run, and what they list is all that there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "docs" / "library.md"


def test_the_examples_of_the_library_page_print_what_it_says(tmp_path: Path) -> None:
    """One program, from top to bottom; the comment behind each `print` is the line that it prints."""
    program = "".join(re.findall(r"```python\n(.*?)```", LIBRARY.read_text("utf-8"), re.DOTALL))
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "METASYNC_KEYRING": "off", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(promised) > 10
    assert [line for line in done.stdout.splitlines() if not line.startswith(("note:", "warning:"))] == promised


def test_every_schema_is_listed() -> None:
    listed = set(re.findall(r"\(json/([\w-]+\.schema\.json)\)", (ROOT / "docs/reference/json.md").read_text("utf-8")))
    assert listed == {path.name for path in (ROOT / "docs/reference/json").iterdir()}
