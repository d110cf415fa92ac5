"""What documents promise about themselves: their examples run, and what they list is all that there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "docs" / "library.md"
_NUMBERS = r"D?\d+(?:\.\d+)*(?:(?:, | and | to )D?\d+(?:\.\d+)*)*"
CITED = re.compile(rf"([\w-]+\.md)`?\)?,? ((?:rule|section)s?)? ?({_NUMBERS})\b")
ELSEWHERE = re.compile(r"\b(?!TLS|HTTP|RFC)[A-Z][A-Z-]{3,} (?:§ ?)?(?:D\d+|\d+\.\d+)\b|§ ?\d+")
PATH = re.compile(r"(?<![\w/.-])(?:metasync|tests)/[\w./-]*\w(?:\.\w+)?")
CITED_TEST = re.compile(r"`(test_\w+)::(\w+)`")
OF_THE_SITE = {"index.md", "contributing.md", "changelog.md"}


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


def test_every_citation_has_its_target() -> None:
    """A cited document is in the repository, and has the rule, section or decision that is cited."""
    pages = {path.name: path.read_text("utf-8") for path in _ours("*.md")}
    missing = []
    cited = 0
    for path, text in _texts():
        for name, kind, numbers in CITED.findall(text):
            where = f"{path.relative_to(ROOT)}: {name}, {kind} {numbers}"
            if name not in pages:
                missing.append(f"{where}: no such document")
                continue
            for number in re.findall(r"D?\d+(?:\.\d+)*", numbers):
                cited += 1
                target = rf"^(?:#+ |\*\*){re.escape(number)}\.? "
                if not re.search(target, pages[name], re.MULTILINE):
                    missing.append(f"{where}: it has no {number}")
        missing += [f"{path.relative_to(ROOT)}: {found}" for found in ELSEWHERE.findall(text)]
    assert not missing, "\n".join(missing)
    assert cited > 100


def test_every_test_that_a_page_cites_is_there() -> None:
    """As `module::test`, modules by their names: no two have the same."""
    modules = {path.stem: path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    cited = {(page, *names) for page in _ours("*.md") for names in CITED_TEST.findall(page.read_text("utf-8"))}
    assert len(cited) > 80
    missing = {
        f"{page.relative_to(ROOT)}: {module}::{test}"
        for page, module, test in cited
        if not re.search(rf"^ *def {test}\(", modules.get(module, ""), re.MULTILINE)
    }
    assert not missing


def test_every_attack_stands_in_the_threat_model() -> None:
    cited = {module for module, _ in CITED_TEST.findall((ROOT / "docs/design/threat-model.md").read_text("utf-8"))}
    assert {path.stem for path in (ROOT / "tests/attacks").glob("test_*.py")} <= cited


def test_every_document_that_is_named_is_there() -> None:
    pages = {path.name for path in _ours("*.md")}
    for path, text in _texts():
        if path.parts[len(ROOT.parts)] != "tests":  # whose files have names like notes.md
            named = {Path(name).name for name in re.findall(r"[\w/.-]*\w\.md\b", text)}
            assert named - pages <= OF_THE_SITE, f"{path}: {named - pages - OF_THE_SITE}"


def test_rules_refer_to_rules() -> None:
    page = (ROOT / "docs/design/consensus.md").read_text("utf-8")
    rules = set(re.findall(r"^### (\d+\.\d+) ", page, re.MULTILINE))
    assert len(rules) > 40
    referred = set(re.findall(r"\brules? (\d+\.\d+)", page))
    assert referred <= rules


def _texts() -> Iterator[tuple[Path, str]]:
    """The texts of the repository that a person reads, each as one line."""
    for path in _ours("*"):
        is_text = path.suffix in (".md", ".py", ".toml", ".yml", ".tla") or path.name == "Makefile"
        if is_text and path != Path(__file__):
            yield path, re.sub(r"\s*\n\s*(?:(?:#:?|--) )?", " ", path.read_text("utf-8"))


def _ours(pattern: str) -> Iterator[Path]:
    """Files of the repository with such a name, and none that was built, or belongs to a virtual environment."""
    for top in sorted(ROOT.iterdir()):
        if top.is_file() and top.match(pattern):
            yield top
        elif top.is_dir() and not top.name.startswith(".") and top.name not in ("build", "dist"):
            yield from (path for path in sorted(top.rglob(pattern)) if path.is_file())


def test_every_room_stands_in_the_table_and_in_the_picture() -> None:
    page = (ROOT / "docs/design/architecture.md").read_text("utf-8")
    picture = page.split("```", 2)[1]
    named = {room for cell in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for room in re.findall(r"`(\w+)`", cell)}
    package = ROOT / "metasync"
    rooms = {path.parent.name for path in package.glob("*/__init__.py")} | {
        path.stem for path in package.glob("[!_]*.py")
    }
    assert rooms <= named, f"not in the table: {rooms - named}"
    assert named & {"past", "membership", "preferences"} <= rooms
    assert not {room for room in rooms if not re.search(rf"\b{room}\b", picture)}


def test_a_word_stands_once_in_the_glossary() -> None:
    page = (ROOT / "docs/design/glossary.md").read_text("utf-8")
    cells = re.findall(r"^\| (?!word |---)(.*?) \|", page, re.MULTILINE)
    words = [re.sub(r" \(.*\)", "", word) for cell in cells for word in cell.split(", ")]
    assert len(words) > 150
    assert not {word for word in words if words.count(word) > 1}


def test_every_path_that_a_page_names_is_there() -> None:
    """`metasync/…` and `tests/…`, of the repository; what an example makes is in other folders."""
    pages = [path for path in _ours("*.md") if path.name != "CHANGELOG.md"]
    named = {(page, path) for page in pages for path in PATH.findall(page.read_text("utf-8")) if "NAME" not in path}
    assert len(named) > 20
    assert not {f"{page.relative_to(ROOT)}: {path}" for page, path in named if not (ROOT / path).exists()}
