"""How are servers and workers started from the command line?"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, get_args

import click
import msgspec
from rich.logging import RichHandler

from ojster.app import DEFAULT_URL, URL_VARIABLE, App, load_app
from ojster.cli.options import Command, Duration, examples, with_migrate, with_retention
from ojster.cli.output import console, errors
from ojster.core.errors import InvalidRequest
from ojster.core.settings import Retention, Settings
from ojster.core.tenant import DEFAULT_TENANT, check_tenant
from ojster.core.tuning import be_quick
from ojster.fleet.requirements import read_provided
from ojster.queues.fairness import Sharing, Strategy
from ojster.sandbox.sandbox import DEFAULT_MODULES, NotConfined, Sandbox
from ojster.storage.database import without_password
from ojster.worker.identity import IdentityTaken
from ojster.worker.worker import DEFAULT_CONCURRENCY, DEFAULT_GRACE, DEFAULT_LEASE, Worker
from ojster.workflows.commands import parameter

LOG_LEVELS = ("debug", "info", "warning", "error")
STRATEGIES: Final = get_args(Strategy)


def ends_with_parent(command: Command) -> Command:
    """Give a command the hidden option to stop, as if by SIGTERM, when its parent has died, however that was."""

    def watch(context: click.Context, option: click.Parameter, wanted: bool) -> None:
        def wait() -> None:
            sys.stdin.buffer.read()  # ends when the parent does, who holds the other end of this pipe
            os.kill(os.getpid(), signal.SIGTERM)

        if wanted:
            threading.Thread(target=wait, name="ojster-parent", daemon=True).start()

    option = click.option("--ends-with-parent", is_flag=True, hidden=True, expose_value=False, callback=watch)
    return option(command)


@click.command(
    epilog=examples(
        "ojster serve --database sqlite:///jobs.db",
        "ojster serve --database postgresql://jobs@db.example.com/shop --migrate",
        "ojster serve --host 0.0.0.0 --port 9000 --cors https://dashboard.example.com",
        "ojster serve --auth required          # and then: ojster tokens create …",
        "ojster serve --keep-completed P7D --keep-dead-letters never",
        "ojster serve --database postgresql://jobs@db.example.com/shop --files s3://shop-jobs/files",
    )
)
@click.option(
    "--database",
    envvar=URL_VARIABLE,
    default=DEFAULT_URL,
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help="The database: sqlite:///jobs.db, or postgresql://user@host/name as libpq understands it.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="The port to listen at.")
@click.option(
    "--auth",
    type=click.Choice(["required", "off"]),
    help="Whether callers need a token (ojster tokens); by default only if others than this machine can call.",
)
@click.option("--cors", multiple=True, metavar="ORIGIN", help="Let browsers use it from there; repeatable.")
@click.option("--max-job-bytes", type=click.IntRange(1024), default=1_048_576, show_default=True)
@click.option("--default-lease", type=Duration(), default="PT30M", show_default=True, help="Visibility timeout.")
@click.option("--default-timeout", type=Duration(), default="PT30M", show_default=True, help="How long jobs may run.")
@click.option("--heartbeat-timeout", type=Duration(), default="PT30S", show_default=True)
@with_retention
@click.option(
    "--max-batch",
    type=click.IntRange(min=100),
    default=1_000,
    show_default=True,
    help="About how many jobs one request may be.",
)
@click.option(
    "--synchronous",
    type=click.Choice(["FULL", "NORMAL"]),
    default="FULL",
    show_default=True,
    help="FULL survives a power loss, NORMAL only a crash of this process, and is faster.",
)
@click.option(
    "--tenants",
    type=click.Choice(["optional", "required"]),
    default="optional",
    show_default=True,
    help="Whether jobs must say whose they are.",
)
@click.option("--default-tenant", metavar="ID", default=DEFAULT_TENANT, show_default=True, help="Of jobs that do not.")
@click.option(
    "--tenant-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="OJSTER_TENANT_FILE",
    show_envvar=True,
    help="A JSON object {ID: what it may do} for tenants of whom nothing is said yet.",
)
@with_migrate
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True)
@click.option(
    "--trust-webhooks",
    is_flag=True,
    help="Deliver events over plain HTTP too, and to addresses that are not public.",
)
@click.option(
    "--smtp",
    envvar="OJSTER_SMTP",
    show_envvar=True,
    metavar="URL",
    help="Who takes the e-mail that jobs want to be sent: smtps://user:password@mail.example.com:465.",
)
@click.option(
    "--files",
    envvar="OJSTER_FILES",
    show_envvar=True,
    metavar="WHERE",
    help="Where files and large results are kept: a directory, or s3://bucket/prefix; by default beside the database "
    "if that is a file, else nowhere.",
)
@click.option("--app", metavar="MODULE:APP", help="The application whose orchestrators this server runs.")
@click.option("--conformance-hooks", is_flag=True, help="Two hooks that only the conformance suite wants.")
@ends_with_parent
def serve(
    database: str,
    host: str,
    port: int,
    auth: Literal["required", "off"] | None,
    cors: tuple[str, ...],
    max_job_bytes: int,
    default_lease: int | None,
    default_timeout: int | None,
    heartbeat_timeout: int | None,
    retention: Retention,
    max_batch: int,
    tenants: Literal["optional", "required"],
    default_tenant: str,
    tenant_file: Path | None,
    synchronous: str,
    migrate: bool,
    log_level: str,
    trust_webhooks: bool,
    smtp: str | None,
    files: str | None,
    app: str | None,
    conformance_hooks: bool,
) -> None:
    """Serve jobs over HTTP, as Open Job Spec 1.0 says.

    Stop it with SIGTERM or SIGINT: it answers what is under way, at most 25 seconds. Durations are ISO 8601.
    """
    if not default_lease or not heartbeat_timeout:
        raise click.UsageError("--default-lease and --heartbeat-timeout must be longer than zero.")
    settings = Settings(
        default_lease=default_lease,
        default_timeout=default_timeout,
        heartbeat_timeout=heartbeat_timeout,
        largest_job=max_job_bytes,
        largest_batch=max_batch,
        tenants=tenants,
        default_tenant=check_tenant(default_tenant),
        retention=retention,
    )
    _log_to_console(log_level)
    # The server's libraries take a while to be imported, for which no other command should have to wait.
    from ojster.server.run import serve as serve_forever
    from ojster.tenancy.routes import read_tenants

    serve_forever(
        database,
        host=host,
        port=port,
        guarded=None if auth is None else auth == "required",
        settings=settings,
        synchronous=synchronous,
        migrate=migrate,
        cors_origins=cors,
        log_level=log_level,
        hooks=conformance_hooks,
        trusting=trust_webhooks,
        smtp=smtp,
        files=files,
        app=None if app is None else load_app(app),
        tenants=read_tenants(tenant_file.read_bytes()) if tenant_file else (),
    )


class Capabilities(click.ParamType[dict[str, Any]]):
    """What a worker provides, as JSON, or as the name of a file behind an ``@``."""

    name = "capabilities"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Return what is said; fail if it is nothing that a worker can provide."""
        try:
            raw = Path(value[1:]).read_bytes() if value.startswith("@") else value
            given: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
            read_provided(given)
        except OSError as error:
            self.fail(f"{value[1:]}: {error.strerror}", param, ctx)
        except msgspec.MsgspecError as error:
            self.fail(f"This is no JSON object: {error}", param, ctx)
        except InvalidRequest as error:
            self.fail(error.message, param, ctx)
        return given


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
@click.option("--url", "-u", envvar=URL_VARIABLE, show_envvar=True, metavar="URL", help="Instead of the app's own URL.")
@click.option(
    "--queues",
    "-q",
    default="default",
    show_default=True,
    help="Separated by commas, the first first; or with weights.",
)
@click.option("--strategy", type=click.Choice(STRATEGIES), help="How queues share the worker; by default strictly.")
@click.option("--pool", metavar="NAME", help="The pool of workers that it is of.")
@click.option("--tenant", metavar="ID", help="Run only this tenant's jobs; by default those of all, in turn.")
@click.option("--concurrency", "-c", type=click.IntRange(1), default=DEFAULT_CONCURRENCY, show_default=True)
@click.option("--grace", type=float, default=DEFAULT_GRACE, show_default=True, help="Seconds to finish on SIGTERM.")
@click.option("--lease", type=float, default=DEFAULT_LEASE, show_default=True, help="Seconds until lost jobs rerun.")
@click.option("--label", multiple=True, help="Shown to operators; repeatable.")
@click.option(
    "--capabilities",
    type=Capabilities(),
    metavar="JSON",
    help="What it provides for jobs that need GPUs, memory, …: a JSON object, or @ and a file with one.",
)
@click.option(
    "--code-tasks",
    type=click.Choice(["confined", "weak"]),
    help="Run jobs that carry their code: only if the platform can confine it, or (weak) although it cannot.",
)
@click.option(
    "--code-module",
    "code_modules",
    multiple=True,
    metavar="NAME",
    help="What such code may import, instead of the usual.",
)
@click.option("--code-value", "code_values", multiple=True, metavar="NAME=JSON", help="What else such code sees.")
@click.option(
    "--identity",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file with the worker's id: after a restart, what it held before is given back at once.",
)
@click.option(
    "--provide",
    "provided",
    multiple=True,
    metavar="NAME=VALUE",
    help="Something that it provides for jobs that require it; the same as a label in --capabilities.",
)
@click.option("--until-empty", is_flag=True, help="Stop when there is no job to be had.")
@with_migrate
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True)
@ends_with_parent
def worker(
    app: str | None,
    url: str | None,
    queues: str,
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
    until_empty: bool,
    migrate: bool,
    log_level: str,
) -> None:
    """Run the jobs of APP, which is given as MODULE:NAME, or, without it, only jobs that carry their code.

    SIGTERM: finish within the grace period, hand back the rest. SIGINT: hand back at once. SIGTSTP: fetch no more.
    SIGCONT: fetch again.
    """
    _log_to_console(log_level)
    if url is not None:
        os.environ[URL_VARIABLE] = url
    if app is None and (code_tasks is None or url is None):
        raise click.UsageError("Without an APP, a worker needs --url and --code-tasks.")
    loaded = App(url or "") if app is None else load_app(app)
    if url is not None:
        loaded.url = url
    loaded.migrate = loaded.migrate or migrate
    if tenant is not None:
        loaded.tenant = check_tenant(tenant)
    names, sharing = _shared(queues, strategy)
    if provided:
        given = capabilities or {}
        capabilities = given | {"labels": given.get("labels", {}) | dict(map(parameter, provided))}
    sandbox = None
    if code_tasks is not None:
        values = dict(map(parameter, code_values))
        sandbox = Sandbox(code_modules or DEFAULT_MODULES, values=values, weak=code_tasks == "weak")
    elif code_modules or code_values:
        raise click.UsageError("--code-module and --code-value are of no use without --code-tasks.")
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
            capabilities=capabilities,
            code=sandbox,
            identity=identity,
        )
    except (IdentityTaken, OSError) as error:
        raise click.ClickException(str(error)) from None
    be_quick()
    try:
        _run_loop(lambda: _work(one, until_empty))
    except NotConfined as error:
        message = f"Jobs that carry code cannot be confined here: {error}. --code-tasks weak runs them all the same."
        raise click.ClickException(message) from None


def _shared(queues: str, strategy: Strategy | None) -> tuple[list[str], Sharing]:
    """Read which queues, with their weights if they have some, and how they share the worker."""
    weights: dict[str, int | None] = {}
    for part in filter(None, (part.strip() for part in queues.split(","))):
        name, _, weight = part.partition("=")
        if weight and not (weight.isdecimal() and int(weight)):
            raise click.UsageError(f"--queues: {weight!r} is no weight of {name!r}, which is 1 or more.")
        weights[name.strip()] = int(weight) if weight else None
    if not weights:
        raise click.UsageError("--queues names no queue.")
    given = {name: weight for name, weight in weights.items() if weight is not None}
    if given and strategy not in (None, "weighted"):
        raise click.UsageError(f"--queues has weights, which --strategy {strategy} does not use.")
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
        "worker %s runs %d types of %s, at most %d at once, queues %s",
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
    log.info("worker %s has run %d jobs and stops", one.id, one.processed)
    if one.abandoned:  # Python would wait for these threads, whose jobs are handed back already
        log.warning("%d threads did not stop when they were asked to, and end with the process", one.abandoned)
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
@click.option("--database", envvar=URL_VARIABLE, default=DEFAULT_URL, show_default=True, metavar="URL")
@click.option("--port", type=int, default=8080, show_default=True)
@click.option("--queues", "-q", default="default", show_default=True)
@click.option("--concurrency", "-c", type=click.IntRange(1), default=DEFAULT_CONCURRENCY, show_default=True)
@click.option("--watch", "folders", multiple=True, type=click.Path(exists=True), help="What to watch; default: here.")
def dev(app: str, database: str, port: int, queues: str, concurrency: int, folders: tuple[str, ...]) -> int:
    """Run a server and a worker of APP; restart the worker when a Python file changes."""
    from watchfiles import PythonFilter, watch

    environment = os.environ | {URL_VARIABLE: database}
    server_command = [sys.executable, "-m", "ojster", "serve", "--database", database, "--port", str(port)]
    server_command += ["--ends-with-parent", "--migrate"]
    worker_command = [sys.executable, "-m", "ojster", "worker", app, "--url", database, "--queues", queues]
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
                errors.print(f"the server has ended with status {server.returncode}")
                return 1
            if changes:
                console.print(f"[bold]reload[/]  {Path(next(iter(changes))[1]).name} has changed")
                _end(one)
                one = subprocess.Popen(worker_command, env=environment, stdin=subprocess.PIPE)
    except KeyboardInterrupt:
        console.print("stopping")
    finally:
        _end(one)
        _end(server)
    return 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process in good order, or, after ten seconds, in bad."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _log_to_console(level: str) -> None:
    handler: logging.Handler
    if errors.is_terminal:
        handler = RichHandler(console=errors, show_path=False, log_time_format="%H:%M:%S")
        layout = "%(message)s"
    else:
        handler = logging.StreamHandler()
        layout = "%(asctime)s %(levelname)s %(name)s %(message)s"
        logging.Formatter.converter = time.gmtime
    handler.setFormatter(logging.Formatter(layout))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
