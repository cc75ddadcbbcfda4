"""The command ``dev``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import click

from ojster.api.app import App
from ojster.api.loading import load_app
from ojster.cli.application import refuse_eager
from ojster.cli.options import examples, with_port
from ojster.cli.output import console, errors
from ojster.cli.worker_options import with_concurrency, with_include
from ojster.files.open import FILES_VARIABLE
from ojster.storage.database import URL_VARIABLE, names_a_database, without_password
from ojster.storage.open import MEMORY
from ojster.storage.urls import url_in_environment


@click.command(epilog=examples("ojster dev myapp:app", "ojster dev myapp:app --port 9000 --watch src"))
@click.argument("app")
@with_include
@click.option("--database", "--url", metavar="URL", help=f"By default that of APP, or else ${URL_VARIABLE}.")
@with_port
@click.option("--queues", "-q", help="Comma-separated queues; by default all that the handlers name.")
@with_concurrency
@click.option("--watch", "folders", multiple=True, type=click.Path(exists=True), help="Folder to watch; default: here.")
def dev(
    app: str,
    include: tuple[str, ...],
    database: str | None,
    port: int,
    queues: str | None,
    concurrency: int,
    folders: tuple[str, ...],
) -> int:
    """Run a server and a worker of APP; restart the worker when a Python file changes.

    If APP has orchestrators, the server runs them, too, and is restarted as well.
    """
    from watchfiles import PythonFilter, watch

    loaded, code = shared_application(app, include, database)
    environment = os.environ | {URL_VARIABLE: loaded.url}
    ojster = [sys.executable, "-m", "ojster"]
    server_command = [*ojster, "serve", "--database", loaded.url, "--port", str(port)]
    server_command += ["--ends-with-parent", "--migrate", *(["--app", *code] if loaded.orchestrators else [])]
    worker_command = [*ojster, "worker", *code, "--url", loaded.url]
    worker_command += [] if queues is None else ["--queues", queues]
    worker_command += ["--concurrency", str(concurrency), "--grace", "2", "--ends-with-parent", "--migrate"]
    commands = [server_command, worker_command]
    running = [subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) for command in commands]
    with_code = (0, 1) if loaded.orchestrators else (1,)
    may_be_broken = False  # whether a change may have broken the server, which the next change may repair

    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()  # an exception could be lost where nothing can be raised

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    console.print(f"[bold]http://127.0.0.1:{port}/dashboard/[/]  the API is described at /docs")
    try:
        for changes in watch(
            *(folders or (Path.cwd(),)),
            watch_filter=PythonFilter(),
            stop_event=stopping,
            rust_timeout=1000,
            yield_on_timeout=True,
        ):
            if not may_be_broken and running[0].poll() is not None:
                errors.print(f"the server exited with status {running[0].returncode}")
                return 1
            if changes:
                console.print(f"[bold]reload[/]  {Path(next(iter(changes))[1]).name} has changed")
                may_be_broken = 0 in with_code
                for number in with_code:
                    _stop_process(running[number])
                    running[number] = subprocess.Popen(commands[number], env=environment, stdin=subprocess.PIPE)
        console.print("stopping")
    finally:
        for process in reversed(running):
            _stop_process(process)
    return 0


def shared_application(app: str, include: Sequence[str], database: str | None) -> tuple[App, list[str]]:
    """Return an application for a server and a worker, and the arguments that let a command load it.

    Its database is one that processes can share: ``database``, or its own. Its file store is that of the processes
    which are started from now on.
    """
    with url_in_environment(database):
        loaded = load_app(app, include)
    refuse_eager(loaded)
    if database is not None:
        loaded.choose_url(database)
    loaded.check_url()
    url = loaded.url
    if not names_a_database(url):
        raise click.UsageError(
            f"{without_password(url)} is a server, and this command starts one of its own. Start 'ojster worker', or "
            "name a database with --database."
        )
    if url == MEMORY:
        raise click.UsageError(
            f"{url} is a database in memory, which a server and a worker cannot share. Name a file with --database."
        )
    if loaded.files is not None:
        os.environ[FILES_VARIABLE] = loaded.files
    return loaded, [app, *(part for module in include for part in ("--include", module))]


def _stop_process(process: subprocess.Popen[bytes]) -> None:
    """Stop a process with SIGTERM; kill it after 10 seconds."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
