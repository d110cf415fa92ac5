"""The program: `python -m metasync`, and the console script. Loads the command line with Ctrl-C provided for."""

from metasync.terminal import interrupt


def main() -> None:
    """Runs the command in `sys.argv`, and exits with its code."""
    interrupt.note_early()
    from metasync.cli import main as run

    run()


if __name__ == "__main__":
    main()
