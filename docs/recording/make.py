"""Records a session in a terminal as session.svg beside this file: real commands, in a terminal of 100 columns.

    python docs/recording/make.py      (`make recording`)

Lines appear one after the other, as fast as a person reads. Who asked for less motion sees them all at once. The
picture fetches nothing, and needs no script.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

TARGET = Path(__file__).with_name("session.svg")
COLUMNS = 100
TYPED_S, LINE_S, REST_S = 0.5, 0.08, 0.6  # a command before it answers; each line; a look at the answer
SESSION = """
metasync init photos --name photos --device-name laptop --backend file:///mnt/a --backend file:///mnt/b --backend file:///mnt/c
cd photos; cp ~/pictures/* .
metasync push -m "the beach"
metasync clone ~/desk --name photos --device-name desk --backend file:///mnt/a --backend file:///mnt/b --backend file:///mnt/c
echo "wine" >> ~/desk/list.txt; metasync -C ~/desk push -m "wine"
sed -i "s/^milk/oat milk/" list.txt; metasync push -m "oat milk"
cat list.txt
rm -r /mnt/b    # one store is lost
metasync status
metasync log
"""
HIDDEN = re.compile(r"^  [a-z]+( [a-z]+){11}$")  # nobody shall think that a recovery phrase may be shown

# Rich's own template fetches a font from the net: this one takes what the reader has.
PICTURE = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>A session of MetaSync in a terminal</title>
<style>
text {{ font: {char_height}px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre }}
@keyframes shown {{ from {{ visibility: hidden }} to {{ visibility: visible }} }}
@media (prefers-reduced-motion: no-preference) {{ .l {{ animation: shown .01s backwards }} }}
{styles}
</style>
<rect width="100%" height="100%" rx="8" fill="#191919"/>
<g transform="translate(12, 24)">
{matrix}
</g>
</svg>
"""


def run(command: str, folder: Path, home: Path) -> tuple[str, Path]:
    """What a command shows in a terminal, and the folder in which it leaves the shell."""
    environment = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "METASYNC_PASSPHRASE": "seven quiet herons by the mill",
        "METASYNC_KEYRING": "off",
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
    }
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read() -> None:
        try:
            while piece := os.read(ours, 1 << 16):
                shown.extend(piece)
        except OSError:  # the terminal was closed
            return

    reader = threading.Thread(target=read)
    reader.start()
    left = home / ".left"
    command = command.replace("/mnt/", f"{home}/mnt/")
    words = ["bash", "-c", f'set -e; {command}\npwd > "$HOME/.left"']
    done = subprocess.run(words, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, check=False)
    os.close(theirs)
    reader.join()
    os.close(ours)
    if done.returncode not in (0, 4):  # 4: copies are missing, as they should be after a store was lost
        raise SystemExit(f"{command}: exit code {done.returncode}\n{shown.decode()}")
    return shown.decode("utf-8"), Path(left.read_text().strip()) if done.returncode == 0 else folder


def lines_of(shown: str, home: Path) -> Iterator[str]:
    """The lines that stay on the screen: a bar was drawn over, and ends in nothing."""
    for line in shown.replace("\r\n", "\n").rstrip("\n").split("\n"):
        last = re.split(r"\r|\x1b\[2K", line)[-1]
        last = re.sub(r"\x1b\[[0-9;?]*[A-HJKSThl]", "", last)
        last = HIDDEN.sub("  (twelve words, for your eyes only)", last)
        yield last.replace(f"{home}/mnt", "/mnt").replace(str(home), "~")


def recorded() -> tuple[Text, list[float]]:
    """The session, and when each of its lines appears, in seconds."""
    text, times, now = Text(), [], 0.5
    with tempfile.TemporaryDirectory() as top:
        home = Path(top).resolve()
        for name in ("pictures", "mnt"):
            (home / name).mkdir()
        (home / "pictures/list.txt").write_text("milk\nbread\nolives\n")
        (home / "pictures/beach.jpg").write_bytes(os.urandom(300_000))
        folder = home
        for command in SESSION.strip().splitlines():
            shown, folder = run(command, folder, home)
            lines = [Text.assemble(("$ ", "bold green"), (command, "bold"))]
            lines += [Text.from_ansi(line) for line in lines_of(shown, home)] if shown.strip() else []
            for number, line in enumerate([*lines, Text("")]):
                wrapped = line.wrap(Console(width=COLUMNS), COLUMNS) if line.plain else [line]
                for row in wrapped:
                    text.append_text(row).append("\n")
                    times.append(now)
                now += TYPED_S if number == 0 else LINE_S
            now += REST_S
    return text, times


def main() -> None:
    """Writes the picture."""
    text, times = recorded()

    def delayed(found: re.Match[str]) -> str:
        at_s = times[min(int(found[4]), len(times) - 1)]
        return f'{found[1]}l {found[2]}{found[3]} style="animation-delay:{at_s:.2f}s"'

    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, color_system="truecolor", force_terminal=True)
        console.print(text, end="")
    svg = console.export_svg(title="", theme=DIMMED_MONOKAI, code_format=PICTURE)
    svg = re.sub(r'(<text class=")([^"]*)("[^>]*?) clip-path="url\(#[^)]*-line-(\d+)\)"', delayed, svg)
    TARGET.write_text(svg, "utf-8")
    print(f"{TARGET.name}: {len(times)} lines, {times[-1]:.0f} s")


if __name__ == "__main__":
    main()
