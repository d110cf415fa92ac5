"""Makes the command reference (commands.md) and the man pages (man/*.1) beside this file, from the commands themselves.

    python docs/reference/make.py          writes them anew (`make reference`)
    python docs/reference/make.py --check  exits 1 and names the files that are not what the commands say

A help text is paragraphs; one that begins with click's `\\b` keeps its lines. "Example:" heads lines that can be typed.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from metasync import __version__
from metasync.cli import Commands, cli

FOLDER = Path(__file__).parent
EXAMPLE = "Example:"
EXIT_CODES = {
    0: "Done.",
    1: "Failed, or a part of it did: the message says what.",
    2: "The command was wrong, or does not fit the workspace. Nothing was changed.",
    3: "Done; conflicts wait to be resolved.",
    4: "Done; some data have fewer copies than promised.",
    5: "Too few backends answered. What was sent may count: run the command again.",
    6: "The passphrase or the recovery phrase is wrong.",
    7: "Data are damaged or lost, and no copy of them is left.",
    130: "Interrupted. It is safe to run the command again.",
}
ENVIRONMENT = {
    "METASYNC_PASSPHRASE": "The passphrase, which is asked for otherwise.",
    "METASYNC_PASSPHRASE_FILE": "A file whose first line is the passphrase.",
    "METASYNC_PASSPHRASE_COMMAND": "A command that prints the passphrase.",
    "METASYNC_SAFE_DIRECTORY": "Workspaces to use although others own them or write there; : between them, * for all.",
    "METASYNC_PAGER": "The pager for what does not fit the terminal; else PAGER, else less. cat: none.",
    "METASYNC_NEW_PASSPHRASE": "The new passphrase, where a command sets one; also with _FILE and _COMMAND.",
    "METASYNC_KEYRING": "off: keep this device's keys and logins in files, not in the system's keyring.",
    "METASYNC_DROPBOX_CLIENT_ID": "The app by which accounts are linked; likewise ONEDRIVE, BOX, GDRIVE; and _SECRET.",
    "METASYNC_WEBDAV_HOST": "The only server that METASYNC_WEBDAV_PASSWORD goes to; METASYNC_SFTP_HOST likewise.",
    "METASYNC_TRACE": "A file to which every request to a backend is written, or - for stderr.",
    "NO_COLOR": "Print no colours.",
}


@dataclass(frozen=True)
class Page:
    """What the reference says of one command. `words`: as it is typed, with `metasync`."""

    words: str
    usage: str
    summary: str
    paragraphs: list[str]  # the summary's first; one that keeps its lines begins with a newline
    examples: list[str]
    options: list[tuple[str, str]]  # how one is written, and what it does; without those of every command
    below: list[Page]


def option_rows(command: click.Command, ctx: click.Context) -> list[tuple[str, str]]:
    records = [param.get_help_record(ctx) for param in command.get_params(ctx) if isinstance(param, click.Option)]
    return [record for record in records if record is not None]


COMMON = [
    row for row in option_rows(cli, click.Context(cli, help_option_names=["-h", "--help"])) if "--version" not in row[0]
]


def page_of(command: click.Command, words: str, parent: click.Context | None = None) -> Page:
    ctx = click.Context(command, parent, info_name=words.rpartition(" ")[2], help_option_names=["-h", "--help"])
    paragraphs, examples = parts_of(inspect.cleandoc(command.help or ""))
    below: list[Page] = []
    if isinstance(command, click.Group) and not isinstance(command, Commands):
        members = [command.get_command(ctx, name) for name in command.list_commands(ctx)]
        below = [page_of(member, f"{words} {member.name}", ctx) for member in members if member is not None]
    return Page(
        words=words,
        usage=" ".join(command.collect_usage_pieces(ctx)),
        summary=command.get_short_help_str(limit=1000).rstrip("."),
        paragraphs=paragraphs,
        examples=examples,
        options=[row for row in option_rows(command, ctx) if row not in COMMON],
        below=below,
    )


def parts_of(text: str) -> tuple[list[str], list[str]]:
    """The paragraphs of a help text, and the lines under "Example:". What follows these is a paragraph again."""
    paragraphs: list[str] = []
    examples: list[str] = []
    for block in text.split("\n\n"):
        lines = block.strip("\n").splitlines()
        if lines[0] != "\b":
            paragraphs.append(" ".join(line.strip() for line in lines))
        elif lines[1] == EXAMPLE:
            examples += [line.strip() for line in lines[2:] if line.startswith(" ")]
            rest = [line for line in lines[2:] if not line.startswith(" ")]
            paragraphs += [" ".join(rest)] if rest else []
        else:
            paragraphs.append("\n" + "\n".join(lines[1:]))
    return paragraphs, examples


def sections() -> dict[str, list[Page]]:
    """The pages of all commands, by purpose."""
    assert isinstance(cli, Commands)
    ctx = click.Context(cli, info_name="metasync")
    groups = cli.by_purpose(ctx).items()
    return {purpose: [page_of(c, f"metasync {c.name}", ctx) for c in commands] for purpose, commands in groups}


# Markdown


def markdown() -> str:
    lines = ["# Commands", "", "<!-- Made by `make reference` from the commands themselves. -->", ""]
    lines += [
        "`metasync COMMAND --help` shows a command's part of this page; so does `man metasync-COMMAND`.",
        "",
    ]
    for purpose, pages in sections().items():
        lines += [f"**{purpose}**", ""]
        lines += [f"- [{page.words}](#{anchor(page.words)}): {page.summary}." for page in pages] + [""]
    lines += ["## Options of every command", "", *table("option", COMMON)]
    lines += ["`--version` prints the version.", ""]
    lines += ["## Exit codes", "", *table("code", [(str(code), text) for code, text in EXIT_CODES.items()])]
    lines += ["Where several hold: 5, 7, 6, 1, 3, 4, in this order.", ""]
    lines += ["## Environment", "", *table("variable", list(ENVIRONMENT.items()))]
    for pages in sections().values():
        for page in pages:
            lines += markdown_of(page, "##")
    return "\n".join(lines).rstrip("\n") + "\n"


def anchor(words: str) -> str:
    return words.replace(" ", "-")


def table(head: str, rows: list[tuple[str, str]]) -> list[str]:
    cells = [(f"`{left}`".replace("|", "\\|"), right.replace("|", "\\|")) for left, right in rows]
    return [f"| {head} | |", "| --- | --- |", *(f"| {left} | {right} |" for left, right in cells), ""]


def markdown_of(page: Page, heading: str) -> Iterator[str]:
    yield from (f"{heading} {page.words}", "", f"    {page.words} {page.usage}".rstrip(), "")
    for paragraph in page.paragraphs:
        yield from ("```text", paragraph.strip("\n"), "```", "") if paragraph.startswith("\n") else (paragraph, "")
    if page.examples:
        yield from ("```sh", *page.examples, "```", "")
    if page.options:
        yield from table("option", page.options)
    for member in page.below:
        yield from markdown_of(member, heading + "#")


# man pages, with the macros of man(7)


def man_pages() -> dict[str, str]:
    """File name -> page."""
    pages = {"metasync.1": man_main()}
    for page in (page for group in sections().values() for page in group):
        pages[f"{anchor(page.words)}.1"] = "\n".join(man_of(page)) + "\n"
    return pages


def man_main() -> str:
    top = page_of(cli, "metasync")
    lines = [*man_head("metasync", "keeps a folder in step on all your devices"), ".B metasync", roff(top.usage)]
    lines += [".SH DESCRIPTION", *man_text(top.paragraphs)]
    for purpose, pages in sections().items():
        lines.append(f".SS {roff(purpose)}")
        for page in pages:
            lines += [".TP", f".BR {roff(anchor(page.words))} (1)", roff(page.summary + ".")]
    lines += [".SH OPTIONS", "Every command takes these, before or after its name.", *man_rows(COMMON)]
    lines += [*man_rows([("--version", "Show the version and exit.")]), ".SH EXAMPLES", *man_lines(top.examples)]
    lines += [".SH EXIT STATUS", *man_rows([(str(code), text) for code, text in EXIT_CODES.items()])]
    lines += [".PP", "Where several hold: 5, 7, 6, 1, 3, 4, in this order."]
    return "\n".join([*lines, ".SH ENVIRONMENT", *man_rows(list(ENVIRONMENT.items()))]) + "\n"


def man_of(page: Page) -> Iterator[str]:
    yield from man_head(anchor(page.words), page.summary[0].lower() + page.summary[1:])
    yield from (f".B {roff(page.words)}", roff(page.usage), ".SH DESCRIPTION", *man_text(page.paragraphs))
    if page.below:
        yield ".SH COMMANDS"
        for member in page.below:
            yield from (f".SS {roff(member.words)} {roff(member.usage)}", *man_text(member.paragraphs))
            yield from man_rows(member.options)
            if member.examples:
                yield from (".PP", "Example:", *man_lines(member.examples))
    yield from (".SH OPTIONS", *man_rows(page.options), ".PP", "Those of every command are in", ".BR metasync (1).")
    if page.examples:
        yield from (".SH EXAMPLES", *man_lines(page.examples))
    yield from (".SH SEE ALSO", ".BR metasync (1),", "which lists exit status and environment.")


def man_head(name: str, summary: str) -> list[str]:
    title = f'.TH {roff(name.upper())} 1 "" "MetaSync {__version__}" "MetaSync"'
    return ['.\\" Made by `make reference` from the commands themselves.', title, ".SH NAME",
            f"{roff(name)} \\- {roff(summary)}", ".SH SYNOPSIS"]  # fmt: skip


def man_text(paragraphs: list[str]) -> Iterator[str]:
    for paragraph in paragraphs:
        if paragraph.startswith("\n"):
            yield from man_lines(paragraph.strip("\n").splitlines())
        else:
            yield from (".PP", bold(roff(paragraph)))


def man_lines(lines: list[str]) -> list[str]:
    """Lines as they stand, in a fixed-width font."""
    return [".PP", ".RS 4", ".EX", *(roff(line) for line in lines), ".EE", ".RE"]


def man_rows(rows: list[tuple[str, str]]) -> Iterator[str]:
    for left, right in rows:
        yield from (".TP", f"\\fB{roff(left)}\\fR", bold(roff(right)))


def bold(text: str) -> str:
    """What stands in backticks, in bold."""
    return re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)


def roff(text: str) -> str:
    """A line that groff prints as it stands: nothing escapes or is a request, and hyphens can be copied."""
    line = (
        text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha").replace("'", "\\(aq")
    )
    return f"\\&{line}" if line.startswith(".") else line


def main(words: list[str]) -> int:
    made = {"commands.md": markdown(), **{f"man/{name}": text for name, text in man_pages().items()}}
    there = {f"man/{path.name}" for path in (FOLDER / "man").glob("*.1")} | {"commands.md"}
    stale = [n for n in made if not (FOLDER / n).is_file() or (FOLDER / n).read_text("utf-8") != made[n]]
    stale += sorted(there - made.keys())
    if "--check" in words:
        sys.stdout.writelines(f"{name} is not what the commands say\n" for name in stale)
        return bool(stale)
    for name in stale:
        if name in made:
            (FOLDER / name).write_text(made[name], "utf-8")
        else:
            (FOLDER / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
