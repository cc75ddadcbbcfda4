"""What is the ``ojster`` command?"""

from __future__ import annotations

import sys

import click

from ojster.cli import (
    care,
    channels,
    collections,
    cron,
    dead_letter,
    definitions,
    demo,
    files,
    jobs,
    queues,
    run,
    tasks,
    tokens,
    workers,
    workflows,
)
from ojster.cli.common import examples, exits_well
from ojster.version import __version__


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

    Exit codes: 0 done, 1 refused or failed, 2 wrong use, 3 not found, 4 conflict, 5 not reachable.
    """


for command in (
    run.serve,
    run.worker,
    run.dev,
    demo.demo,
    jobs.push,
    jobs.jobs,
    workflows.workflows,
    definitions.definitions,
    queues.queues,
    cron.cron,
    dead_letter.dead_letter,
    workers.workers,
    tokens.tokens,
    collections.collections,
    files.files,
    tasks.tasks,
    channels.channels,
    care.migrate,
    care.doctor,
    care.prune,
):
    cli.add_command(command)


@exits_well
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
