"""`completion`: makes a shell complete commands and options."""

from __future__ import annotations

import click

from metasync.terminal.console import Console, Options, common

VARIABLE = "_METASYNC_COMPLETE"  # as click names it for a program called metasync


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common
@click.pass_obj
def completion(options: Options, shell: str) -> None:
    """Prints tab completion for bash, zsh or fish.

    bash needs version 4.4 or newer. zsh needs `compinit` to have run before.

    \b
    Example:
      echo 'eval "$(metasync completion bash)"' >> ~/.bashrc
      echo 'eval "$(metasync completion zsh)"' >> ~/.zshrc
      metasync completion fish > ~/.config/fish/completions/metasync.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.get_current_context().find_root().command, {}, "metasync", VARIABLE).source()
    Console(options).report("completion", script.splitlines(), {"shell": shell, "script": script})
