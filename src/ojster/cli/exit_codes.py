"""What the commands say of errors, and their exit codes for scripts."""

from __future__ import annotations

import sys
from typing import Final

import click
import msgspec
from rich.markup import escape

from ojster.cli.output import errors
from ojster.core.errors import BackendUnavailable, Conflict, Duplicate, NotFound, OjsterError

EXIT_CODES: Final[tuple[tuple[type[OjsterError], int], ...]] = (
    (NotFound, 3),
    (Conflict, 4),
    (Duplicate, 4),
    (BackendUnavailable, 5),
)
"""Exit codes by error class. Any other error exits with 1, and wrong usage with 2."""


def report(error: OjsterError) -> int:
    """Print a refusal on standard error, and return the exit code."""
    if "--json" in sys.argv:
        click.echo(msgspec.json.encode({"error": error.to_wire()}), err=True)
    else:
        errors.print(f"[bold red]ojster:[/] {escape(click.unstyle(error.message))}", soft_wrap=True)
        for more in error.details.get("validation_errors", [])[1:]:
            words = f"{more['path']}: {more['message']}"
            errors.print(f"  {escape(click.unstyle(words))}", soft_wrap=True)
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)
