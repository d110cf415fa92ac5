"""The program: `python -m metasync`, and the console script. Loads the command line with Ctrl-C provided for."""

import gc

from metasync.terminal import interrupt


def main() -> None:
    """Runs the command in `sys.argv`, and exits with its code."""
    interrupt.note_early()
    gc.disable()  # a look for circles among modules, which stay, takes a tenth of the time that loading them takes
    from metasync.cli import main as run

    gc.enable()
    run()


if __name__ == "__main__":
    main()
