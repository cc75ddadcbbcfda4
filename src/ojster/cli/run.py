"""The commands ``serve``, ``worker`` and ``dev``."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, get_args

import click
import msgspec

from ojster.app import URL_VARIABLE, App
from ojster.cli.logs import log_to_console, with_logging
from ojster.cli.options import Command, examples, with_migrate, with_wait
from ojster.cli.output import console, errors
from ojster.core.errors import InvalidRequest
from ojster.core.tenant import check_tenant
from ojster.core.tuning import tune_interpreter
from ojster.fleet.requirements import read_provided
from ojster.loading import load_app
from ojster.queues.fairness import Sharing, Strategy
from ojster.sandbox.sandbox import DEFAULT_MODULES, NotConfined, Sandbox
from ojster.storage.database import names_a_database, without_password
from ojster.storage.open import wait_for_database
from ojster.worker.children import ChildLimits
from ojster.worker.identity import IdentityTaken
from ojster.worker.registration import NoHandlers
from ojster.worker.worker import DEFAULT_CONCURRENCY, DEFAULT_GRACE, DEFAULT_LEASE, Worker
from ojster.workflows.commands import parameter

STRATEGIES: Final = get_args(Strategy)


def ends_with_parent(command: Command) -> Command:
    """Add a hidden option that stops the process, as SIGTERM does, when its parent process dies."""

    def watch(context: click.Context, option: click.Parameter, wanted: bool) -> None:
        def wait() -> None:
            while os.read(0, 1024):  # ends when the parent dies, which holds the other end of this pipe
                pass
            os.kill(os.getpid(), signal.SIGTERM)

        if wanted:
            threading.Thread(target=wait, name="ojster-parent", daemon=True).start()

    option = click.option("--ends-with-parent", is_flag=True, hidden=True, expose_value=False, callback=watch)
    return option(command)


class Capabilities(click.ParamType[dict[str, Any]]):
    """Capabilities of a worker: JSON, or ``@`` and the name of a file with JSON."""

    name = "capabilities"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Return the capabilities; fail if they are malformed."""
        try:
            raw = Path(value[1:]).read_bytes() if value.startswith("@") else value
            given: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
            read_provided(given)
        except OSError as error:
            self.fail(f"{value[1:]}: {error.strerror}", param, ctx)
        except msgspec.MsgspecError as error:
            self.fail(f"Give a JSON object, or @FILE: {error}", param, ctx)
        except InvalidRequest as error:
            self.fail(error.message, param, ctx)
        return given


def _with_child_limits(function: Command) -> Command:
    """Add the options that say when child processes are replaced, as the argument ``children``."""

    @functools.wraps(function)
    def limited(*args: Any, max_jobs_per_child: int | None, max_memory_per_child: int | None, **more: Any) -> Any:
        bytes_of_child = None if max_memory_per_child is None else max_memory_per_child << 20
        children = ChildLimits(max_jobs=max_jobs_per_child, max_memory=bytes_of_child)
        return function(*args, children=children, **more)

    limited = click.option(
        "--max-jobs-per-child",
        type=click.IntRange(1),
        help="Replace a child process (handlers with process=True) after so many jobs.",
    )(limited)
    return click.option(
        "--max-memory-per-child",
        type=click.IntRange(1),
        metavar="MIB",
        help="Replace a child process after a job that has made it larger than this.",
    )(limited)


@click.command(
    epilog=examples(
        "ojster worker myapp:app",
        "ojster worker myapp:app --queues critical,default --concurrency 50",
        "ojster worker myapp:app --queues critical=5,default=2,low=1",
        "ojster worker myapp:app --tenant acme",
        """ojster worker myapp:app --capabilities '{"gpu": {"type": "nvidia-t4"}, "labels": {"region": "eu"}}'""",
        "ojster worker myapp:app --url http://127.0.0.1:8080",
        "ojster worker myapp:app --provide region=eu --provide memory_mb=8192",
        "ojster worker myapp:app --identity /var/lib/ojster/worker-1",
        "ojster worker --url http://127.0.0.1:8080 --code-tasks confined",
    )
)
@click.argument("app", required=False)
@click.option(
    "--url", "-u", envvar=URL_VARIABLE, show_envvar=True, metavar="URL", help="Database or server; default: the App's."
)
@click.option(
    "--queues",
    "-q",
    help="Comma-separated queues, the most important first; or NAME=WEIGHT. By default 'default' and all that the "
    "handlers name, in turn.",
)
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    help="Order in which queues are served; by default weighted if --queues has weights, otherwise strict.",
)
@click.option("--pool", metavar="NAME", help="Pool of the worker.")
@click.option("--tenant", metavar="ID", help="Run only this tenant's jobs; by default all tenants', round-robin.")
@click.option("--concurrency", "-c", type=click.IntRange(1), default=DEFAULT_CONCURRENCY, show_default=True)
@click.option(
    "--grace",
    type=float,
    default=DEFAULT_GRACE,
    show_default=True,
    help="Time, in seconds, running jobs get to finish after SIGTERM before they are handed back.",
)
@click.option(
    "--lease",
    type=float,
    default=DEFAULT_LEASE,
    show_default=True,
    help="Lease of a job, in seconds; after a crash of the worker, the job runs again when it expires.",
)
@click.option("--label", multiple=True, help="Label shown to operators; repeatable.")
@click.option(
    "--capabilities",
    type=Capabilities(),
    metavar="JSON",
    help="Capabilities for jobs that require GPUs, memory, …: a JSON object, or @FILE.",
)
@click.option(
    "--code-tasks",
    type=click.Choice(["confined", "weak"]),
    help="Run jobs that carry their code: only if the platform can confine it, or (weak) even if it cannot.",
)
@click.option(
    "--code-module",
    "code_modules",
    multiple=True,
    metavar="NAME",
    help="Module that such code may import, instead of the default modules; repeatable.",
)
@click.option(
    "--code-value", "code_values", multiple=True, metavar="NAME=JSON", help="Value for such code; repeatable."
)
@click.option(
    "--identity",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the worker's id. After a restart, the worker hands back the jobs it held before at once.",
)
@click.option(
    "--provide",
    "provided",
    multiple=True,
    metavar="NAME=VALUE",
    help="Capability for jobs that require it, as a label in --capabilities; repeatable.",
)
@_with_child_limits
@click.option("--until-empty", is_flag=True, help="Stop when no job is available.")
@with_migrate
@with_wait
@with_logging
@ends_with_parent
def worker(
    app: str | None,
    url: str | None,
    queues: str | None,
    strategy: Strategy | None,
    pool: str | None,
    tenant: str | None,
    concurrency: int,
    grace: float,
    lease: float,
    label: tuple[str, ...],
    capabilities: dict[str, Any] | None,
    code_tasks: Literal["confined", "weak"] | None,
    code_modules: tuple[str, ...],
    code_values: tuple[str, ...],
    identity: Path | None,
    provided: tuple[str, ...],
    children: ChildLimits,
    until_empty: bool,
    migrate: bool,
    wait: float,
    log_level: str,
    log_format: str,
) -> None:
    """Run the jobs of APP, given as MODULE:NAME. Without APP, run only jobs that carry their code.

    SIGTERM: finish within the grace period, hand back the rest. SIGINT: hand back at once. SIGTSTP: fetch no more.
    SIGCONT: fetch again.
    """
    log_to_console(log_level, log_format)
    if app is None and (code_tasks is None or url is None):
        raise click.UsageError("Without an APP, a worker needs --url and --code-tasks.")
    loaded = _application(app, url, tenant, migrate)
    names, sharing = _parse_queues(queues, strategy)
    try:
        one = Worker(
            loaded,
            queues=names,
            concurrency=concurrency,
            grace=grace,
            lease=lease,
            labels=label,
            sharing=sharing,
            pool=pool,
            capabilities=_with_labels(capabilities, provided),
            code=_sandbox(code_tasks, code_modules, code_values),
            identity=identity,
            children=children,
        )
    except (IdentityTaken, OSError, TypeError) as error:
        raise click.ClickException(str(error)) from None
    tune_interpreter()
    wait_for_database(loaded.url, wait)
    try:
        _run_loop(lambda: _work(one, until_empty))
    except NoHandlers:
        looked = "--code-tasks" if app is None else app
        message = (
            f"{looked} declares no job handlers, so that a worker would get no job. Declare functions with "
            "@app.job(...), and import the modules that declare them in the module of the application."
        )
        raise click.ClickException(message) from None
    except NotConfined as error:
        message = f"Jobs that carry code cannot be confined here: {error}. Use --code-tasks weak to run them anyway."
        raise click.ClickException(message) from None


def _with_labels(capabilities: dict[str, Any] | None, provided: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the capabilities of a worker with those of ``--provide``."""
    if not provided:
        return capabilities
    given = capabilities or {}
    return given | {"labels": given.get("labels", {}) | dict(map(parameter, provided))}


def _application(app: str | None, url: str | None, tenant: str | None, migrate: bool) -> App:
    """Return the application whose jobs the worker runs; an empty one if it only runs code."""
    if url is not None:
        os.environ[URL_VARIABLE] = url
    loaded = App(url or "") if app is None else load_app(app)
    if url is not None:
        loaded.url = url
    loaded.migrate = loaded.migrate or migrate
    if tenant is not None:
        loaded.tenant = check_tenant(tenant)
    return loaded


def _sandbox(
    code_tasks: Literal["confined", "weak"] | None, modules: tuple[str, ...], values: tuple[str, ...]
) -> Sandbox | None:
    """Return the sandbox for jobs that carry their code; ``None`` if the worker does not run them."""
    if code_tasks is None:
        if modules or values:
            raise click.UsageError("--code-module and --code-value require --code-tasks.")
        return None
    return Sandbox(modules or DEFAULT_MODULES, values=dict(map(parameter, values)), weak=code_tasks == "weak")


def _parse_queues(queues: str | None, strategy: Strategy | None) -> tuple[list[str] | None, Sharing | None]:
    """Parse ``--queues`` and ``--strategy`` into queue names and a ``Sharing``; ``None``: the worker's defaults."""
    if queues is None:
        return None, None if strategy is None else Sharing(strategy)
    weights: dict[str, int | None] = {}
    for part in filter(None, (part.strip() for part in queues.split(","))):
        name, _, weight = part.partition("=")
        if weight and not (weight.isdecimal() and int(weight)):
            raise click.UsageError(f"--queues: the weight {weight!r} of {name!r} is invalid. Use an integer from 1.")
        weights[name.strip()] = int(weight) if weight else None
    if not weights:
        raise click.UsageError("--queues is empty. Name at least one queue.")
    given = {name: weight for name, weight in weights.items() if weight is not None}
    if given and strategy not in (None, "weighted"):
        raise click.UsageError(f"--queues has weights, but --strategy {strategy} does not use them. Remove one.")
    if strategy is None:
        strategy = "weighted" if given else "strict"
    return list(weights), Sharing(strategy, tuple(sorted(given.items())))


async def _work(one: Worker, until_empty: bool) -> None:
    loop = asyncio.get_running_loop()
    log = logging.getLogger("ojster")
    for number, order in (
        (signal.SIGTERM, one.stop),
        (signal.SIGINT, lambda: one.stop(grace=0)),
        (signal.SIGTSTP, one.quiet),
        (signal.SIGCONT, one.resume),
    ):
        loop.add_signal_handler(number, order)
    log.info(
        "worker %s started: %d job types, %s, concurrency %d, queues %s",
        one.id,
        len(one.app.handlers),
        without_password(one.app.url),
        one.concurrency,
        ", ".join(one.queues),
    )
    try:
        await one.run(until_empty=until_empty)
    finally:
        await one.app.aclose()
    log.info("worker %s stopped after %d jobs", one.id, one.processed)
    if one.abandoned:  # Python would wait for these threads; their jobs are already handed back
        log.warning("%d handler threads did not stop in time and end with the process", one.abandoned)
        logging.shutdown()
        os._exit(0)


def _run_loop(main: Callable[[], object]) -> None:
    if sys.platform == "win32":
        asyncio.run(main())  # type: ignore[arg-type]  # a coroutine function
    else:
        import uvloop

        uvloop.run(main())  # type: ignore[arg-type]  # a coroutine function


@click.command(epilog=examples("ojster dev myapp:app", "ojster dev myapp:app --port 9000 --watch src"))
@click.argument("app")
@click.option(
    "--database", envvar=URL_VARIABLE, default=None, show_envvar=True, metavar="URL", help="By default that of APP."
)
@click.option("--port", type=int, default=8080, show_default=True)
@click.option("--queues", "-q", help="Comma-separated queues; by default all that the handlers name.")
@click.option("--concurrency", "-c", type=click.IntRange(1), default=DEFAULT_CONCURRENCY, show_default=True)
@click.option("--watch", "folders", multiple=True, type=click.Path(exists=True), help="Folder to watch; default: here.")
def dev(
    app: str, database: str | None, port: int, queues: str | None, concurrency: int, folders: tuple[str, ...]
) -> int:
    """Run a server and a worker of APP; restart the worker when a Python file changes."""
    from watchfiles import PythonFilter, watch

    database = database or _database_of(app)
    environment = os.environ | {URL_VARIABLE: database}
    server_command = [sys.executable, "-m", "ojster", "serve", "--database", database, "--port", str(port)]
    server_command += ["--ends-with-parent", "--migrate"]
    worker_command = [sys.executable, "-m", "ojster", "worker", app, "--url", database]
    worker_command += [] if queues is None else ["--queues", queues]
    worker_command += ["--concurrency", str(concurrency), "--grace", "2", "--ends-with-parent", "--migrate"]
    server = subprocess.Popen(server_command, env=environment, stdin=subprocess.PIPE)
    one = subprocess.Popen(worker_command, env=environment, stdin=subprocess.PIPE)

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    console.print(f"[bold]http://127.0.0.1:{port}[/]  the API is described at /docs")
    try:
        for changes in watch(
            *(folders or (Path.cwd(),)), watch_filter=PythonFilter(), rust_timeout=1000, yield_on_timeout=True
        ):
            if server.poll() is not None:
                errors.print(f"the server exited with status {server.returncode}")
                return 1
            if changes:
                console.print(f"[bold]reload[/]  {Path(next(iter(changes))[1]).name} has changed")
                _stop_process(one)
                one = subprocess.Popen(worker_command, env=environment, stdin=subprocess.PIPE)
    except KeyboardInterrupt:
        console.print("stopping")
    finally:
        _stop_process(one)
        _stop_process(server)
    return 0


def _database_of(app: str) -> str:
    """Return the URL of an application's database, which a server and a worker can share."""
    url = load_app(app).url
    if not names_a_database(url):
        raise click.UsageError(
            f"{app} uses the server {without_password(url)}, and 'ojster dev' starts one of its own. "
            "Start 'ojster worker', or name a database with --database."
        )
    if url.endswith(":memory:"):
        raise click.UsageError(
            f"{app} uses a database in memory, which a server and a worker cannot share. Name one with --database."
        )
    return url


def _stop_process(process: subprocess.Popen[bytes]) -> None:
    """Stop a process with SIGTERM; kill it after 10 seconds."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
