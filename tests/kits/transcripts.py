"""Transcripts of the command line: what is typed and what is printed, as text files in tests/cli, run as they stand.

    # a comment
    $ metasync -C docs push -m "first"     a command; $WORK is the transcript's own folder
    Pushed version 1: ...                   what it prints on stdout
    ! warning: ...                          what it prints on stderr
    [exit 4]                                its exit code, if that is not 0

`metasync` runs in this process, `cd` and `export` act on it, all else is bash. What differs from run to run is replaced
(`normal`): times by TIME, ids by ID, space by FREE and USED, sizes of packs by SIZE, the recovery phrase by WORDS. With
METASYNC_TRANSCRIPTS=write in the environment a run writes what it saw: look at the difference before keeping it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jsonschema import Draft202012Validator
from workspace_kit import Ran, run_cli

FOLDER = Path(__file__).parents[1] / "cli"
SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "json"
SCRIPTS = Path(sys.executable).parent  # for a `metasync` in a pipe
ENOUGH_S = 60

_VARYING: tuple[tuple[str, str], ...] = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}", "TIME"),
    (r"(?<= on )\d{4}-\d\d-\d\d(?=\"?}?$)", "DAY"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?", "TIME"),
    (r'("(?:time|mtime|since|seen)_ns": )\d+', r"\1TIME"),
    (r'("(?:free|total|bytes_stored|bytes_read|used)(?:_bytes)?": )\d+', r"\1SIZE"),
    (r'("share": )[\d.]+', r"\1PART"),
    (r'("seconds": )[\d.e-]+', r"\1TIME"),
    (r"\b[0-9a-f]{8,64}\b", "ID"),
    (r"(Cost )[\d,]+ requests, [\d.]+ \w+ up, [\d.]+ \w+ down", r"\1SIZE"),
    (r"met at [\d,]+ of ([\d,]+) names \([\d,]+ across\)", r"met at N of \1 names"),
    (r"\d+ of \d+ writes were killed under way; \d+ of \d+", "N writes were killed under way; N"),
    (r'("(?:requests|up_bytes|down_bytes|met|met_across|reads_beside|under_way)": )\d+', r"\1N"),
    (r"^(  )?([a-z]+ ){11,23}[a-z]+$", r"\1WORDS"),
    (r'(?<="recovery_phrase": ")[a-z ]+', "WORDS"),
    (r"(?<=in words: )([a-z]+ ){5}[a-z]+", "WORDS"),
    (r'(?<="words": ")[a-z ]+', "WORDS"),
    (r"metasync-invitation-[\w-]+", "CODE"),
    (r"file:\S*\.\.\.\S*/(?=\w+$)", "file://$WORK/"),  # a table cuts what is too long for it
    (r"\d+(\.\d+)? (GiB|TiB)", "FREE"),
    (r"(?<=Stored )(\d+ packs?), [\d.]+ \w+,", r"\1, SIZE,"),
    (r"(Still to move.*: \d+ packs?), [\d.]+ \w+", r"\1, SIZE"),
    (r"((?:Would copy|Copied|Would delete|Deleted) \d+ cop\w+) \([\d.]+ \w+\) (to|from) \w+", r"\1 (SIZE) \2 BACKEND"),
    (r"(\d+ packs?), [\d.]+ \w+(?=, (?:would be )?freed)", r"\1, SIZE"),
    (r'("bytes": )\d{3,}', r"\1SIZE"),
    (r'("unused_bytes": )\d+', r"\1SIZE"),
    (r"read \d+ pieces? \([\d.]+ \w+\)", "read PIECES"),
    (r'("pieces_read": )\d+', r"\1N"),
    (r"(read|hold|packs? of) [\d.]+ (B|KiB|MiB)\b", r"\1 SIZE"),
    (r"\b\d+(\.\d+)? ?(s|ms|seconds)\b", "TIME"),
    (r"\b(just now|\d+ (minute|hour)s? ago)", "AGO"),
    (r"(?<=since )(\d\d:\d\d|[A-Z][a-z]+day)\b", "THEN"),
    (r"(?<=\S)  +", "  "),
    (r"(?<=  )[\d.]+ (B|KiB|MiB)(?=  [\d-]+%?  )", "USED"),
)


@dataclass
class Step:
    """One command, with what is printed and how it ends."""

    command: str
    shown: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        return [f"$ {self.command}", *self.shown]


def read(path: Path) -> list[str | Step]:
    """A transcript: comments and empty lines as they are, commands with what follows them."""
    out: list[str | Step] = []
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("$ "):
            out.append(Step(line[2:]))
        elif (not line or line.startswith("# ")) and not (out and isinstance(out[-1], Step) and line == "|"):
            out.append(line)
        else:
            last = next(item for item in reversed(out) if isinstance(item, Step))
            last.shown.append(line)
    return out


def normal(text: str, work: Path) -> list[str]:
    """Printed lines without what differs from run to run. An empty line is shown as `|`.

    What a slow machine tells besides is left out: progress in JSON, whom it waits for, and how long it took.
    """
    lines = []
    for line in text.replace(str(work), "$WORK").splitlines():
        if line.startswith('{"event": "progress"') or re.fullmatch(r"(Took|Sent|Received) .*\.", line):
            continue
        if re.fullmatch(r'(\{"event": "notice".*"text": ")?waiting for .* (\(answering: .*\)|to open)("\})?', line):
            continue
        for pattern, instead in _VARYING:
            line = re.sub(pattern, instead, line)
        lines.append(line.rstrip() or "|")
    return lines


def shown(ran: Ran, work: Path) -> list[str]:
    out = normal(ran.out, work) + [f"! {line}" for line in normal(ran.err, work)]
    return [*out, f"[exit {ran.code}]"] if ran.code else out


class Player:
    """Runs the commands of one transcript in `work`."""

    def __init__(self, work: Path, setenv: Callable[[str, str], None], chdir: Callable[[Path], None]) -> None:
        self.work = work
        self._setenv = setenv
        self._chdir = chdir

    def run(self, command: str) -> Ran:
        words = shlex.split(command.replace("$WORK", str(self.work)), comments=False)
        if words[0] == "metasync" and "|" not in words:
            ran = run_cli(*words[1:])
            if "--json" in words:
                check_document(ran)
            return ran
        if words[0] == "cd":
            self._chdir(Path(words[1]))
            return Ran(0, "", "")
        if words[0] == "export":
            self._setenv(*words[1].split("=", 1))
            return Ran(0, "", "")
        done = subprocess.run(
            ["bash", "-c", command],
            env={**os.environ, "WORK": str(self.work), "PATH": f"{SCRIPTS}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=ENOUGH_S,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)


def check_document(ran: Ran) -> None:
    """What was printed is one JSON document, as its schema says."""
    document = ran.json
    assert document["exit_code"] == ran.code
    path = SCHEMAS / f"{document['command'].replace(' ', '-')}.schema.json"
    if path.is_file():
        Draft202012Validator(json.loads(path.read_text("utf-8"))).validate(document)
    else:
        assert "error" in document, f"no schema for {document['command']!r}"


def play(path: Path, player: Player) -> Iterator[tuple[Step, list[str]]]:
    """Each command with what it really prints."""
    for item in read(path):
        if isinstance(item, Step):
            yield item, shown(player.run(item.command), player.work)


def rewrite(path: Path, seen: list[list[str]]) -> None:
    """Puts what was seen in place of what was expected."""
    lines: list[str] = []
    answers = iter(seen)
    for item in read(path):
        lines += Step(item.command, next(answers)).lines() if isinstance(item, Step) else [item]
    path.write_text("\n".join(lines) + "\n", "utf-8")
