"""The ``ojster`` command."""

from __future__ import annotations

import sys

import click

from ojster.cli import demo, maintenance, run
from ojster.cli.options import examples, with_exit_codes
from ojster.collections import commands
from ojster.events import commands as channels
from ojster.files import commands as files
from ojster.fleet import commands as workers
from ojster.insight import commands as tasks
from ojster.jobs import commands as jobs
from ojster.jobs import dead_letter_commands
from ojster.queues import commands as queues
from ojster.schedules import commands as cron
from ojster.tenancy import commands as tokens
from ojster.version import __version__
from ojster.workflows import commands as workflows
from ojster.workflows import definition_commands


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "ojster demo                          # see it work",
        "ojster dev myapp:app                 # a server and a worker that reload",
        "ojster serve --database sqlite:///jobs.db",
        "ojster worker myapp:app --concurrency 50",
        "ojster push email.send '\"ada@example.com\"' --queue email",
        "ojster workflows start nightly.yaml --watch",
    ),
)
@click.version_option(__version__, prog_name="ojster")
def cli() -> None:
    """Durable jobs for Python, and for every language through Open Job Spec.

    Exit codes: 0 success, 1 refused or failed, 2 wrong usage, 3 not found, 4 conflict, 5 unavailable.
    """


for command in (
    run.serve,
    run.worker,
    run.dev,
    demo.demo,
    jobs.push,
    jobs.jobs,
    workflows.workflows,
    definition_commands.definitions,
    queues.queues,
    cron.cron,
    dead_letter_commands.dead_letter,
    workers.workers,
    tokens.tokens,
    commands.collections,
    files.files,
    tasks.tasks,
    channels.channels,
    maintenance.migrate,
    maintenance.doctor,
    maintenance.prune,
):
    cli.add_command(command)


@with_exit_codes
def _run() -> int:
    result = cli(standalone_mode=False)
    return result if isinstance(result, int) else 0


def main() -> None:
    """Run the command, and exit with its code."""
    try:
        sys.exit(_run())
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
