"""What all commands share: ``--url``, ``--json``, retention options, and exit codes for scripts."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from ojster.api.app import App
from ojster.cli.declared import PLACE, Command, Seconds, micros_of, option_of, together
from ojster.cli.output import print_json
from ojster.cli.signals import interruptible
from ojster.client.interface import Client
from ojster.core.errors import BackendUnavailable
from ojster.core.public_settings import Retention, Settings
from ojster.jobs.failure import Failure
from ojster.storage.database import SQLITE, URL_VARIABLE
from ojster.storage.open import MEMORY
from ojster.storage.urls import DEFAULT_URL

R = TypeVar("R")

CHOSEN_VARIABLE: Final = "OJSTER_URL_IS_CHOSEN"
"""Set for a worker whose database was chosen by the command that started it, and is in the environment: its password
must not be in the list of processes."""

MOST_FILES: Final = 20
"""Maximum number of files that are looked into, for one that the caller may mean."""


with_url: Final = click.option(
    "--url",
    "-u",
    envvar=URL_VARIABLE,
    default=DEFAULT_URL,
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help="Database (sqlite:///jobs.db, postgresql://user@host/name) or server (http://127.0.0.1:8080) with the jobs.",
)

with_port: Final = click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0: one that is free.",
)

with_migrate: Final = click.option(
    "--migrate",
    is_flag=True,
    envvar="OJSTER_MIGRATE",
    show_envvar=True,
    help="Migrate a PostgreSQL schema first; SQLite files are always migrated.",
)

WAIT_SECONDS: Final = 60.0
"""Default time that a server or a worker waits for its database at the start, in seconds."""

with_wait: Final = click.option(
    "--wait-for-database",
    "wait",
    type=Seconds(0),
    default=WAIT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="If the database is away or locked at the start, wait for it so long at most.",
)

with_json: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def examples(*lines: str) -> str:
    """Return a help epilog with examples."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


_RETENTION_OPTIONS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "dead_letter": ("--keep-dead-letters", {}),
    "most_dead_letters": (
        "--most-dead-letters",
        {
            "type": PLACE,
            "help": "Maximum number of dead letters; the oldest are deleted first. 0 keeps all.",
        },
    ),
}
"""Options of retention that are not called as their field is, or are written in another way."""


def with_retention(command: Command) -> Command:
    """Add an option for each part of the retention, and pass them to the command as one argument, ``retention``."""

    @functools.wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        own = {name: options.pop(name) for name in Retention.__struct_fields__}
        own["most_dead_letters"] = own["most_dead_letters"] or None
        return command(*args, retention=Retention(**own), **options)

    named = {name: _RETENTION_OPTIONS.get(name, (f"--keep-{name}", {})) for name in Retention.__struct_fields__}
    return together(*(option_of(Retention, name, flag, **more) for name, (flag, more) in named.items()))(wrapped)


_TENANT: Final = "ojster.tenant"


def ask_as(tenant: str | None) -> None:
    """Let the running command ask as a tenant; ``None``: as nobody, for all tenants."""
    click.get_current_context().meta[_TENANT] = tenant


def ask(
    url: str,
    question: Callable[[Client], Awaitable[R]],
    *,
    makes: bool = False,
    settings: Settings = Settings(),  # noqa: B008  (it is frozen)
    tenant: str | None = None,
) -> R:
    """Connect, run ``question`` with the client, disconnect, and return the result.

    A SQLite file that does not exist is created only if ``makes`` is true. ``tenant``: as of ``App``; ``None``: as
    ``ask_as`` says.
    """
    context = click.get_current_context(silent=True)
    if tenant is None and context is not None:
        tenant = context.meta.get(_TENANT)
    path = Path(url.removeprefix(SQLITE))
    if not makes and url.startswith(SQLITE) and url != MEMORY and not path.exists():
        raise BackendUnavailable(f"There is no database file {path}. {_what_to_do(path.parent)}")

    async def run() -> R:
        app = App(settings=settings, tenant=tenant, eager=False)
        app.choose_url(url)
        with interruptible():
            try:
                return await question(app.client())
            finally:
                await app.aclose()

    return asyncio.run(run())


def moment_at(url: str, moment: int | timedelta, *, makes: bool = False) -> int:
    """Return a time in microseconds since the epoch; a duration counts back from now.

    Now is the time of the database, by which its jobs were created: the clock of this machine may be wrong, and a
    deletion would then take what is newer.
    """
    if isinstance(moment, int):
        return moment
    return ask(url, lambda client: client.insight.time(), makes=makes) - micros_of(moment)


def _what_to_do(folder: Path) -> str:
    from ojster.storage.sqlite.database import has_jobs  # not for commands that ask a server

    others = [str(file) for file in sorted(folder.glob("*.db"))[:MOST_FILES] if has_jobs(file)]
    if not others:
        return "Check --url, or push a job to create it."
    return f"There is {' and '.join(others)}: use --url sqlite:///{others[0]}, or set {URL_VARIABLE}."


def confirm(question: str) -> None:
    """Ask a question, and end the command unless somebody answers with yes.

    Raises
    ------
    ClickException
        The command runs in no terminal, such as in a script.
    """
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        raise click.ClickException("Nothing was changed: nobody answered with yes. In a script, use --yes.") from None


def done(message: str, as_json: bool, value: Any) -> None:
    """Print ``message``, or ``value`` as JSON."""
    if as_json:
        print_json(value)
    else:
        click.echo(message)


def read_file(file: Path) -> dict[str, Any]:
    """Return the object in a JSON or YAML file; '-' is the standard input."""
    text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    try:
        wire = msgspec.yaml.decode(text)  # JSON is YAML
    except msgspec.DecodeError as error:
        raise click.UsageError(f"{file} is neither JSON nor YAML: {error}") from None
    if not isinstance(wire, dict):
        raise click.UsageError(f"{file} must be an object, with a 'type' and 'steps' or 'jobs'.")
    return wire


def parameter(text: str) -> tuple[str, Any]:
    """Return the name and the value of ``NAME=VALUE``; the value is JSON, otherwise a string."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"Give NAME=VALUE, not {text!r}.")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


def parameters(texts: Sequence[str]) -> dict[str, Any]:
    """Return the values by their names in several ``NAME=VALUE``."""
    values: dict[str, Any] = {}
    for name, value in map(parameter, texts):
        if name in values:
            raise click.UsageError(f"{name!r} is given twice. Leave one of them out.")
        values[name] = value
    return values


def json_array(text: str | None) -> list[Any]:
    """Return the arguments in ``--args``; without it none."""
    try:
        return msgspec.json.decode(text or "[]", type=list[Any])
    except msgspec.DecodeError:
        raise click.UsageError(f"--args must be a JSON array, such as '[42]', not {text!r}.") from None


def resumption(result: str | None, error: str | None) -> tuple[bytes | None, Failure | None]:
    """Return the result or the failure to resume a job with."""
    if error is not None:
        if result is not None:
            raise click.UsageError("Give either --result or --error.")
        return None, Failure("ResumedWithError", error, "resumed_with_error", retryable=False)
    return (None if result is None else msgspec.json.encode(parameter(f"x={result}")[1])), None
