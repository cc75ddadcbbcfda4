"""The ``ojster`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

import click

from ojster.capabilities import CAPABILITIES, CommandPlace
from ojster.core.errors import OjsterError
from ojster.version import __version__

OWN: Final = (
    CommandPlace("serve", "serve:serve", "Serve jobs over HTTP."),
    CommandPlace("worker", "worker:worker", "Run the jobs of an application."),
    CommandPlace("run", "run:run", "Run a server and workers of an application together."),
    CommandPlace("healthy", "health:healthy", "Check that a worker is well, for probes."),
    CommandPlace("dev", "dev:dev", "Run a server and a worker that reload."),
    CommandPlace("top", "top:top", "Show queues, workers and running jobs live."),
    CommandPlace("demo", "demo:demo", "Run a set of jobs on a new database, and show them live."),
    CommandPlace("completion", "completion:completion", "Complete commands and options in the shell."),
    CommandPlace("mcp", "mcp:mcp", "Let an assistant look at the jobs (Model Context Protocol)."),
    CommandPlace("migrate", "maintenance:migrate", "Migrate the database schema to the current version."),
    CommandPlace("doctor", "maintenance:doctor", "Check the health and the speed of the database or the server."),
    CommandPlace("bench", "bench:bench", "Measure what this installation can do."),
    CommandPlace("prune", "maintenance:prune", "Delete what is past its retention now."),
    CommandPlace("backup", "backup:backup", "Save a SQLite database and its files."),
    CommandPlace("restore", "backup:restore", "Restore a backup as a new SQLite database."),
)
"""The commands that belong to no capability."""

COMMANDS: Final = {one.name: (f"ojster.cli.{one.place}", one.summary) for one in OWN} | {
    one.name: (f"ojster.{capability.name}.{one.place}", one.summary)
    for capability in CAPABILITIES
    for one in capability.commands
}
"""The place and the summary of each command, by name."""

GROUPS: Final = {
    one.name: tuple(one.commands.split()) for capability in CAPABILITIES for one in capability.commands if one.commands
}
"""The names of the commands of each group, by name."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  ojster demo                          # see it work
  ojster dev myapp:app                 # a server and a worker that reload
  ojster serve --database sqlite:///jobs.db
  ojster worker myapp:app --concurrency 50
  ojster push email.send '"ada@example.com"' --queue email
  ojster workflows start nightly.yaml --watch""",
)
@click.version_option(__version__, prog_name="ojster")
def cli() -> None:
    """Durable jobs for Python, and for every language through Open Job Spec.

    Exit codes: 0 success, 1 refused or failed, 2 wrong usage, 3 not found, 4 conflict, 5 unavailable.
    """


def _explained(error: click.NoSuchCommand) -> click.UsageError:
    """Return the error for an unknown command with what may be meant: the same command of a group, or a like name."""
    context, name = error.ctx, error.command_name
    if context is None or not isinstance(context.command, click.Group):
        return error
    meant = [f"{group} {name}" for group, commands in GROUPS.items() if name in commands]
    meant += [name] if name in COMMANDS else []
    if not meant:
        before = context.command_path.partition(" ")[2]
        near = get_close_matches(name, context.command.list_commands(context))
        meant = [f"{before} {one}".strip() for one in near]
    program = context.find_root().info_name
    hint = " or ".join(repr(f"{program} {one}") for one in meant)
    return click.UsageError(f"{error.message} Did you mean {hint}?" if hint else error.message, context)


def _run(arguments: Sequence[str] | None, name: str) -> int:
    try:
        result: Any = cli(arguments, prog_name=name, standalone_mode=False)
    except OjsterError as error:
        from ojster.cli.exit_codes import report  # here, because its libraries would slow down help

        return report(error)
    except click.NoSuchCommand as error:
        raise _explained(error) from None
    except KeyboardInterrupt:
        return 130
    return result if isinstance(result, int) else 0


def main(arguments: Sequence[str] | None = None, name: str = "ojster") -> None:
    """Run a command, and exit with its code.

    Parameters
    ----------
    arguments:
        The command with its arguments; ``None``, the default: those of the process.
    name:
        The name of the program, for help.
    """
    try:
        sys.exit(_run(arguments, name))
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
