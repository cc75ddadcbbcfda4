"""The ``ojster`` command."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final, NamedTuple

import click

from ojster.capabilities import CAPABILITIES, Capability
from ojster.core.environment import warn_of_unknown_variables
from ojster.core.errors import OjsterError
from ojster.core.version import __version__


class CommandPlace(NamedTuple):
    """A command: its name, its place below ``ojster.cli`` as ``module:name``, what it does, and its capability, if any.

    A group also has the names of its commands, with spaces between, so that they are suggested without importing it.
    """

    name: str
    place: str
    summary: str
    capability: str | None = None
    commands: str = ""


_ALL: Final = (
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
    CommandPlace("push", "commands.jobs:push", "Enqueue a job.", "jobs"),
    CommandPlace(
        "jobs",
        "commands.jobs:jobs",
        "List, show, cancel, retry, delete jobs, and group failures.",
        "jobs",
        "activate cancel delete explain export failures history info list logs prioritize retry show",
    ),
    CommandPlace(
        "dead-letter",
        "commands.dead_letter:dead_letter",
        "List, retry and delete dead letters.",
        "jobs",
        "delete list retry",
    ),
    CommandPlace(
        "job-types",
        "commands.job_types:job_types",
        "List, show and delete the defaults of job types.",
        "jobs",
        "arguments delete list show",
    ),
    CommandPlace(
        "tokens",
        "commands.tokens:tokens",
        "Create, list, rotate and revoke access tokens.",
        "tenancy",
        "create list revoke rotate",
    ),
    CommandPlace(
        "audit", "commands.audit:audit", "Show, export and check the audit log.", "audit", "export list verify"
    ),
    CommandPlace(
        "workers",
        "commands.workers:workers",
        "List workers, direct them, and override what they report.",
        "fleet",
        "configure disable enable forget list rules tell unrunnable",
    ),
    CommandPlace(
        "queues",
        "commands.queues:queues",
        "List, show, create, set, pause, resume and delete queues.",
        "queues",
        "create delete list pause resume set show unserved waits",
    ),
    CommandPlace("tasks", "commands.tasks:tasks", "Show the recorded runs of tasks.", "insight", "runs statistics"),
    CommandPlace(
        "workflows",
        "commands.workflows:workflows",
        "Start, show, draw, approve, hold, retry and cancel workflows.",
        "workflows",
        "approve cancel delete depend draw export fork hold info list note properties reject release resume retry show "
        "start stats status steps terminate",
    ),
    CommandPlace(
        "flows",
        "commands.flows:flows",
        "Talk to flows, export their runs, check their functions.",
        "workflows",
        "broadcast check export pin published send stream update",
    ),
    CommandPlace(
        "definitions",
        "commands.definitions:definitions",
        "Create, list, show and delete workflow definitions.",
        "workflows",
        "apply delete list show",
    ),
    CommandPlace(
        "collections",
        "commands.collections:collections",
        "Manage collections and their items.",
        "collections",
        "add create delete items list remove set",
    ),
    CommandPlace(
        "files", "commands.files:files", "Upload, download, list and delete files.", "files", "delete get list put"
    ),
    CommandPlace(
        "cron",
        "commands.cron:cron",
        "List, add, run, backfill, enable, disable, remove cron jobs.",
        "schedules",
        "add backfill disable enable list misses prune remove run show",
    ),
    CommandPlace(
        "endpoints",
        "commands.endpoints:endpoints",
        "Manage push endpoints: functions that get jobs from the server.",
        "push",
        "delete list pause resume rotate-secret set",
    ),
    CommandPlace(
        "channels",
        "commands.channels:channels",
        "Manage the channels for notifications: e-mail and webhooks.",
        "events",
        "delete email list webhook",
    ),
)


def commands_of(capabilities: Iterable[Capability]) -> dict[str, CommandPlace]:
    """Return the commands by name: those of the capabilities, and those that belong to none."""
    names = {capability.name for capability in capabilities}
    return {place.name: place for place in _ALL if place.capability is None or place.capability in names}


COMMANDS: Final = commands_of(CAPABILITIES)
"""The commands by name."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].place.partition(":")
        command: click.Command = getattr(import_module(f"ojster.cli.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])


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
    meant = [f"{group} {name}" for group, place in COMMANDS.items() if name in place.commands.split()]
    meant += [name] if name in COMMANDS else []
    if not meant:
        before = context.command_path.partition(" ")[2]
        near = get_close_matches(name, context.command.list_commands(context))
        meant = [f"{before} {close_name}".strip() for close_name in near]
    program = context.find_root().info_name
    hint = " or ".join(repr(f"{program} {command}") for command in meant)
    return click.UsageError(f"{error.message} Did you mean {hint}?" if hint else error.message, context)


def _run(arguments: Sequence[str] | None, name: str) -> int:
    warn_of_unknown_variables(lambda warning: click.echo(f"Warning: {warning}", err=True))
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


_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


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
        code = _run(arguments, name)
        sys.stdout.flush()
        sys.exit(code)
    except click.exceptions.Abort:
        sys.exit(130)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer would fail again at the exit
        click.echo(f"{name}: The output cannot be written: {error.strerror}. Make room for it.", err=True)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
