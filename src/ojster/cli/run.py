"""The command ``run``."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from ojster.cli.declared import PROCESSES
from ojster.cli.dev import shared_application
from ojster.cli.logs import log_to_console, with_logging
from ojster.cli.options import CHOSEN_VARIABLE, WAIT_SECONDS, examples, with_port
from ojster.cli.supervisor import ProcessCommand, Supervisor
from ojster.cli.worker_options import ends_with_parent, with_concurrency, with_include
from ojster.storage.database import URL_VARIABLE


@click.command(
    epilog=examples(
        "ojster run myapp:app",
        "ojster run myapp:app --processes 4 --host 0.0.0.0 --auth required",
        "ojster run myapp:app --database postgresql://jobs@db/jobs",
    )
)
@click.argument("app")
@with_include
@click.option("--database", "--url", metavar="URL", help=f"By default that of APP, or else ${URL_VARIABLE}.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@with_port
@click.option("--auth", type=click.Choice(["required", "off"]), help="As of 'ojster serve'.")
@click.option("--processes", type=PROCESSES, default=1, show_default=True, help="Number of worker processes.")
@click.option("--queues", "-q", help="Comma-separated queues; by default all that the handlers name.")
@with_concurrency
@with_logging
@ends_with_parent
def run(
    app: str,
    include: tuple[str, ...],
    database: str | None,
    host: str,
    port: int,
    auth: str | None,
    processes: int,
    queues: str | None,
    concurrency: int,
    log_level: str,
    log_format: str,
) -> int:
    """Run a server and workers of APP as one service, for small installations.

    What fails is started again. SIGTERM stops all in good order. For more options, start 'ojster serve' and
    'ojster worker' as services of their own.
    """
    log_to_console(log_level, log_format)
    loaded, code = shared_application(app, include, database)
    os.environ[URL_VARIABLE] = loaded.url
    os.environ[CHOSEN_VARIABLE] = "1"
    ojster = [sys.executable, "-m", "ojster"]
    logs = ["--log-level", log_level, "--log-format", log_format, "--migrate", "--ends-with-parent"]
    server = [*ojster, "serve", "--host", host, "--port", str(port), *logs]
    server += [] if auth is None else ["--auth", auth]
    server += ["--app", *code] if loaded.orchestrators else []
    worker = [*ojster, "worker", *code, "--concurrency", str(concurrency), *logs]
    worker += [] if queues is None else ["--queues", queues]
    commands = [ProcessCommand(tuple(server), is_endless=True), *[ProcessCommand(tuple(worker))] * processes]
    return asyncio.run(Supervisor(commands, wait=WAIT_SECONDS).run())
