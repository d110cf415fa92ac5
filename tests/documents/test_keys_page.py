"""`docs/design/keys.md` says what the code does: every label, context, message and kind, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from metasync.keys.derive import RecordKind

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/design/keys.md").read_text("utf-8")
LABELLED = {"derive": 1, "_encode_wraps": 1}  # functions, and which argument is a label of HKDF


def modules() -> Iterator[ast.Module]:
    for room in ("keys", "consensus", "members", "store", "objects", "session"):
        for path in sorted((ROOT / "metasync" / room).rglob("*.py")):
            yield ast.parse(path.read_text("utf-8"))


def calls() -> Iterator[tuple[str, ast.Call]]:
    for module in modules():
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                f = node.func
                yield (f.id if isinstance(f, ast.Name) else f.attr if isinstance(f, ast.Attribute) else ""), node


def text_of(node: ast.expr) -> str | None:
    """A label in the source, with `<n>` for what is put into it; None where it is a variable."""
    if isinstance(node, ast.Constant):
        return node.value.decode() if isinstance(node.value, bytes) else str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "<n>" for v in node.values)
    if isinstance(node, ast.BinOp):  # b"..." % kind, b"..." + more
        left = text_of(node.left)
        return left if left is None else re.sub("%[du]", "<n>", left)
    return None


def table(heading: str) -> set[str]:
    """The first column of the table that begins with this heading."""
    rows = PAGE[PAGE.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return {row.split("|")[1].strip().strip("`") for row in rows}


def test_labels_of_hkdf() -> None:
    used = {
        text
        for name, call in calls()
        if name in LABELLED and len(call.args) > LABELLED[name]
        if (text := text_of(call.args[LABELLED[name]])) is not None
    }
    assert used == table("label")


def test_contexts_of_signatures() -> None:
    used = {
        node.value
        for module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch("[a-z ]+ 1", node.value)
    }
    assert used == table("context")


def test_messages_of_keyed_hashes() -> None:
    keyed = [c for name, c in calls() if name == "blake3" and c.args and any(k.arg == "key" for k in c.keywords)]
    blake = {text_of(call.args[0]) for call in keyed}
    page = PAGE[PAGE.index("Keyed BLAKE3, under") :]
    named = set(re.findall(r"^\| `(metasync [^`]+)`", page, re.MULTILINE))
    assert {text for text in blake if text and text.startswith("metasync")} == named
    macs = {
        text
        for module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.BinOp)
        if isinstance(node.left, ast.Constant) and isinstance(node.left.value, bytes)
        if (text := node.left.value.decode("latin-1")) in {kind.name.lower() for kind in RecordKind}
    }
    page = PAGE[PAGE.index("HMAC-SHA256, what") : PAGE.index("## Sealed records")]
    assert macs == set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))


def test_kinds_of_records() -> None:
    text = PAGE[PAGE.index("## Sealed records") : PAGE.index("## What is signed")]
    assert set(re.findall(r"\b[A-Z]{3,}\b", text)) == {kind.name for kind in RecordKind}
