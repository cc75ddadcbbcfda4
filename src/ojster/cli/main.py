"""The ``ojster`` command."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from ojster.capabilities import CAPABILITIES
from ojster.cli import backup, demo, maintenance, run, serve
from ojster.cli.options import examples, with_exit_codes
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

    Exit codes: 0 success, 1 refused or failed, 2 wrong usage, 3 not found, 4 conflict, 5 unavailable.
    """


def _commands() -> Iterator[click.Command]:
    """Yield the commands: those that start something, those of the capabilities, and those for the database."""
    yield from (serve.serve, run.worker, run.dev, demo.demo)
    for capability in CAPABILITIES:
        for command in capability.commands:
            module, _, name = command.partition(":")
            yield getattr(capability.module(module), name)
    yield from (maintenance.migrate, maintenance.doctor, maintenance.prune, backup.backup, backup.restore)


for command in _commands():
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
