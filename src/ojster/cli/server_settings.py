"""The options of `ojster serve` that become the settings of the server."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any, Final

import click

from ojster.cli.options import Command, Duration, LimitedDuration, with_retention
from ojster.core.public_settings import Settings
from ojster.core.tenant import DEFAULT_TENANT, check_tenant

_OPTIONS: Final = (
    click.option("--max-job-bytes", "largest_job", type=click.IntRange(1024), default=1_048_576, show_default=True),
    click.option(
        "--max-workflow-bytes",
        "largest_workflow",
        type=click.IntRange(1024),
        default=268_435_456,
        show_default=True,
        help="Maximum size of the jobs of a workflow in which references were replaced, all together.",
    ),
    click.option(
        "--max-file-bytes",
        "largest_storage",
        type=click.IntRange(1024),
        default=107_374_182_400,
        show_default=True,
        help="Maximum size of all files of a workspace that has no limit of its own.",
    ),
    click.option(
        "--default-lease",
        type=LimitedDuration(),
        default="PT30M",
        show_default=True,
        help="Lease (visibility timeout) of fetched jobs if neither job nor worker sets one.",
    ),
    click.option(
        "--default-timeout",
        type=Duration(),
        default="PT30M",
        show_default=True,
        help="Maximum run time of jobs that set none; 'never' for no limit.",
    ),
    click.option("--heartbeat-timeout", type=LimitedDuration(), default="PT30S", show_default=True),
    click.option(
        "--max-batch",
        "largest_batch",
        type=click.IntRange(min=100),
        default=1_000,
        show_default=True,
        help="Maximum number of jobs in one request.",
    ),
    click.option(
        "--on-exhaustion",
        type=click.Choice(["discard", "dead_letter"]),
        default="discard",
        show_default=True,
        help="What becomes of a job that is not retried any more, if its retry policy does not say it.",
    ),
    click.option(
        "--contributors-cancel",
        type=click.Choice(["all", "own"]),
        default="all",
        show_default=True,
        help="What tokens with the role 'contributor' may cancel, hold, replace and fail.",
    ),
    click.option(
        "--max-generations",
        "most_generations",
        type=click.IntRange(min=1),
        default=100,
        show_default=True,
        help="Maximum number of reactions in a row that create jobs or workflows, against loops.",
    ),
    click.option(
        "--tenants",
        type=click.Choice(["optional", "required"]),
        default="optional",
        show_default=True,
        help="Whether jobs must name a tenant.",
    ),
    click.option(
        "--default-tenant",
        metavar="ID",
        default=DEFAULT_TENANT,
        show_default=True,
        help="Tenant of jobs that name none.",
    ),
    click.option(
        "--max-losses",
        "most_losses",
        type=click.IntRange(min=0),
        default=10,
        show_default=True,
        help="Maximum number of times that the worker of a job may die before the job is given up.",
    ),
)


def with_settings(command: Command) -> Command:
    """Add the options, and pass them to the command as one argument, ``settings``."""

    @functools.wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        own = {name: options.pop(name) for name in Settings.__struct_fields__ if name in options}
        timeout = own.pop("default_timeout")
        settings = Settings(
            **own | {"default_tenant": check_tenant(own["default_tenant"])},
            default_timeout=None if timeout is None else timedelta(microseconds=timeout),
        )
        return command(*args, settings=settings, **options)

    result: Command = with_retention(wrapped)
    for option in reversed(_OPTIONS):
        result = option(result)
    return result
