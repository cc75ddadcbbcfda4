"""``ojster completion``: completion of commands and options in the shell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from ojster.cli.main import cli
from ojster.cli.options import examples

VARIABLE: Final = "_OJSTER_COMPLETE"
"""The variable with which the shell asks for completions."""

SHELLS: Final = ("bash", "zsh", "fish")

_FILES: Final = {
    "bash": ".local/share/bash-completion/completions/ojster",
    "zsh": ".zfunc/_ojster",
    "fish": ".config/fish/completions/ojster.fish",
}
"""Where each shell looks for it, in the home directory."""


@click.command(epilog=examples("ojster completion --install", "ojster completion zsh > ~/.zfunc/_ojster"))
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--install", is_flag=True, help="Write it to the place where the shell looks for it.")
def completion(shell: str | None, install: bool) -> None:
    """Print the completion for SHELL, by default the one in $SHELL, or install it."""
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise click.UsageError(f"There is no completion for the shell {shell!r}. Name one of {', '.join(SHELLS)}.")
    kind = get_completion_class(shell)
    assert kind is not None
    source = kind(cli, {}, "ojster", VARIABLE).source()
    if not install:
        click.echo(source)
        return
    file = Path.home() / _FILES[shell]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#compdef ojster\n{source}" if shell == "zsh" else source)
    click.echo(f"{file} is written; new shells complete 'ojster'.")
    if shell == "zsh":
        click.echo("If they do not, add to ~/.zshrc: fpath+=~/.zfunc; autoload -Uz compinit && compinit")
