"""What all commands share: ``--url``, ``--json``, retention options, and exit codes for scripts."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from ojster.api.app import App
from ojster.cli.output import print_json
from ojster.client.interface import Client
from ojster.core.durations import parse_duration
from ojster.core.errors import BackendUnavailable, InvalidRequest
from ojster.core.public_settings import Retention, Settings
from ojster.core.timestamps import parse_timestamp, system_clock
from ojster.jobs.failure import Failure
from ojster.storage.database import URL_VARIABLE
from ojster.storage.urls import DEFAULT_URL

R = TypeVar("R")

CHOSEN_VARIABLE: Final = "OJSTER_URL_IS_CHOSEN"
"""Set for a worker whose database was chosen by the command that started it, and is in the environment: its password
must not be in the list of processes."""

MOST_FILES: Final = 20
"""Maximum number of files that are looked into, for one that the caller may mean."""

Command = Callable[..., Any]


class Duration(click.ParamType[int | None]):
    """An ISO 8601 duration, in microseconds; ``never`` is ``None``."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the duration in microseconds, or ``None`` for ``never``."""
        if value is None or isinstance(value, int):
            return value
        if value == "never":
            return None
        try:
            return parse_duration(str(value))
        except InvalidRequest as error:
            self.fail(error.message, param, ctx)


class LimitedDuration(click.ParamType[timedelta]):
    """An ISO 8601 duration that is longer than zero and not ``never``."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Return the duration."""
        if isinstance(value, timedelta):
            return value
        microseconds = Duration().convert(value, param, ctx)
        if not microseconds:
            self.fail(f"{value} is no limit. Use a duration that is longer than zero, such as PT30S.", param, ctx)
        return timedelta(microseconds=microseconds)


class PointInTime(click.ParamType[int]):
    """A time: RFC 3339, or a duration before now such as ``-PT1H``, in microseconds since the epoch."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time."""
        if isinstance(value, int):
            return value
        text = str(value)
        try:
            return system_clock() - parse_duration(text[1:]) if text.startswith("-") else parse_timestamp(text)
        except InvalidRequest as error:
            self.fail(error.message, param, ctx)


def with_url(command: Command) -> Command:
    """Add the option ``--url``: the database or server."""
    return click.option(
        "--url",
        "-u",
        envvar=URL_VARIABLE,
        default=DEFAULT_URL,
        show_default=True,
        show_envvar=True,
        metavar="URL",
        help="Database (sqlite:///jobs.db, postgresql://user@host/name) or server (http://127.0.0.1:8080) "
        "with the jobs.",
    )(command)


def with_migrate(command: Command) -> Command:
    """Add the option ``--migrate``."""
    return click.option(
        "--migrate",
        is_flag=True,
        envvar="OJSTER_MIGRATE",
        show_envvar=True,
        help="Migrate a PostgreSQL schema first; SQLite files are always migrated.",
    )(command)


WAIT_SECONDS: Final = 60.0
"""Default time that a server or a worker waits for its database at the start, in seconds."""


def with_wait(command: Command) -> Command:
    """Add the option ``--wait-for-database``, as the argument ``wait``."""
    return click.option(
        "--wait-for-database",
        "wait",
        type=click.FloatRange(0),
        default=WAIT_SECONDS,
        show_default=True,
        metavar="SECONDS",
        help="If the database is away or locked at the start, wait for it so long at most.",
    )(command)


def with_json(command: Command) -> Command:
    """Add the option ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")(command)


def examples(*lines: str) -> str:
    """Return a help epilog with examples."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _span(microseconds: int | None) -> timedelta | None:
    return None if microseconds is None else timedelta(microseconds=microseconds)


def with_retention(command: Command) -> Command:
    """Add the retention options, and pass them to the command as one argument, ``retention``."""

    @functools.wraps(command)
    def wrapped(
        *args: Any,
        keep_completed: int | None,
        keep_cancelled: int | None,
        keep_discarded: int | None,
        keep_dead_letters: int | None,
        most_dead_letters: int,
        keep_audit: int | None,
        **kwargs: Any,
    ) -> Any:
        retention = Retention(
            completed=_span(keep_completed),
            cancelled=_span(keep_cancelled),
            discarded=_span(keep_discarded),
            dead_letter=_span(keep_dead_letters),
            most_dead_letters=most_dead_letters or None,
            audit=_span(keep_audit),
        )
        return command(*args, retention=retention, **kwargs)

    most = click.option(
        "--most-dead-letters",
        type=click.IntRange(min=0),
        default=10_000,
        show_default=True,
        help="Maximum number of dead letters; the oldest are deleted first. 0 keeps all.",
    )
    result: Command = most(wrapped)
    for name, default in (
        ("audit", "P365D"),
        ("dead-letters", "P90D"),
        ("discarded", "P7D"),
        ("cancelled", "P1D"),
        ("completed", "P1D"),
    ):
        result = click.option(f"--keep-{name}", type=Duration(), default=default, show_default=True)(result)
    return result


def ask(
    url: str,
    question: Callable[[Client], Awaitable[R]],
    *,
    makes: bool = False,
    settings: Settings = Settings(),  # noqa: B008  (it is frozen)
) -> R:
    """Connect, run ``question`` with the client, disconnect, and return the result.

    A SQLite file that does not exist is created only if ``makes`` is true.
    """
    path = Path(url.removeprefix("sqlite:///"))
    if not makes and url.startswith("sqlite:///") and path.name != ":memory:" and not path.exists():
        raise BackendUnavailable(f"There is no database file {path}. {_what_to_do(path.parent)}")

    async def run() -> R:
        app = App(settings=settings)
        app.choose_url(url)
        try:
            return await question(app.client())
        finally:
            await app.aclose()

    return asyncio.run(run())


def _what_to_do(folder: Path) -> str:
    from ojster.storage.sqlite.database import has_jobs  # not for commands that ask a server

    others = [str(file) for file in sorted(folder.glob("*.db"))[:MOST_FILES] if has_jobs(file)]
    if not others:
        return "Check --url, or push a job to create it."
    return f"There is {' and '.join(others)}: use --url sqlite:///{others[0]}, or set {URL_VARIABLE}."


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
