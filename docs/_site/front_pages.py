"""Puts README, CONTRIBUTING and CHANGELOG, which lie outside docs/, into the site, with their links set right."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the root's pages to the pages below docs/."""
    root = Path(config.config_file_path).parent
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=moved((root / source).read_text("utf-8"))))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Has links from below docs/ to the root's pages lead to where these are in the site."""
    names = "|".join(map(re.escape, PAGES))
    return re.sub(rf"\]\(((?:\.\./)*)\.\./({names})(?=[)#])", lambda found: f"]({found[1]}{PAGES[found[2]]}", markdown)


def moved(text: str) -> str:
    """The text with its links as they are seen from docs/, and the root's pages under their names in the site."""
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(r"\]\((\w+\.md)(?=[)#])", lambda found: f"]({PAGES.get(found[1], found[1])}", text)
