"""The package that docs/howto/write-a-backend.md shows, taken from the page and installed in a folder."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

PAGE = "docs/howto/write-a-backend.md"
ROOT = Path(__file__).parents[2]
_FILE = re.compile(r"`([\w./-]+)`:\n\n```\w+\n(.*?)```", re.DOTALL)


def files() -> dict[str, str]:
    """What the page shows, by file name."""
    return dict(_FILE.findall((ROOT / PAGE).read_text("utf-8")))


def install(folder: Path) -> str:
    """Puts the package there as an installer would. -> what goes on PYTHONPATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text)
    project = tomllib.loads(files()["pyproject.toml"])["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in named.items())
        for group, named in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(points)
    return os.pathsep.join([str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
