"""The command ``worker``."""

from __future__ import annotations

import asyncio
import difflib
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from ojster.api.app import App
from ojster.api.loading import load_app
from ojster.cli.application import refuse_eager
from ojster.cli.declared import option_of
from ojster.cli.health import touch
from ojster.cli.option_rules import needs, used_options
from ojster.cli.options import CHOSEN_VARIABLE, examples, with_migrate, with_wait
from ojster.cli.signals import LastResort, on_signals
from ojster.cli.supervisor import QUIET_VARIABLE, REPLACE, let_through
from ojster.cli.worker_options import (
    ends_with_parent,
    with_capabilities,
    with_child_limits,
    with_code,
    with_concurrency,
    with_include,
    with_queues,
)
from ojster.cli.worker_processes import Process, with_processes
from ojster.core.tenant import check_tenant
from ojster.core.tuning import tune_interpreter
from ojster.jobs.names import DEFAULT_QUEUE
from ojster.queues.fairness import Sharing
from ojster.sandbox.sandbox import NotConfined, Sandbox
from ojster.storage.database import URL_VARIABLE, located, names_a_database
from ojster.storage.open import wait_for_database
from ojster.storage.urls import url_in_environment
from ojster.worker.children import ChildLimits
from ojster.worker.identity import IdentityTaken
from ojster.worker.recycling import Recycling
from ojster.worker.registration import NoHandlers
from ojster.worker.worker import Worker

MAX_SHOWN_TYPES: Final = 20
"""Maximum number of job types that a worker names when it starts."""


@click.command(
    epilog=examples(
        "ojster worker myapp:app",
        "ojster worker myapp:app --queues critical,default --concurrency 50",
        "ojster worker myapp:app --queues critical=5,default=2,low=1",
        "ojster worker myapp:app --processes 4 --max-memory 1024 --health-file /run/ojster/healthy",
        "ojster worker myapp:app --include myapp.mail --include 'myapp.shop.*'",
        "ojster worker myapp:app --tenant acme",
        """ojster worker myapp:app --capabilities '{"gpu": {"type": "nvidia-t4"}, "labels": {"region": "eu"}}'""",
        "ojster worker myapp:app --url http://127.0.0.1:8080",
        "ojster worker myapp:app --provide region=eu --provide memory_mb=8192",
        "ojster worker myapp:app --identity /var/lib/ojster/worker-1",
        "ojster worker --url http://127.0.0.1:8080 --code-tasks confined",
    )
)
@click.argument("app", required=False)
@with_include
@click.option(
    "--url", "-u", metavar="URL", help=f"Database or server. [default: that of the App, or else ${URL_VARIABLE}]"
)
@option_of(Worker.__init__, "pool", metavar="NAME")
@click.option("--tenant", metavar="ID", help="Run only this tenant's jobs; by default all tenants', round-robin.")
@with_concurrency
@option_of(
    Worker.__init__,
    "prefetch",
    help="Maximum number of short jobs to fetch before they can begin: as many as end within 50 ms. Those that have "
    "not begun after 250 ms are handed back. 0: none.",
)
@option_of(Worker.__init__, "grace", help="Time running jobs get to finish after SIGTERM before they are handed back.")
@option_of(
    Worker.__init__, "lease", help="Lease of a job; after a crash of the worker, the job runs again when it expires."
)
@click.option("--label", multiple=True, help="Label shown to operators; repeatable.")
@click.option(
    "--identity",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the worker's id. After a restart, the worker hands back the jobs it held before at once.",
)
@with_queues
@with_capabilities
@with_code
@with_child_limits
@with_processes
@click.option("--until-empty", is_flag=True, help="Stop when no job is available.")
@with_migrate
@with_wait
@ends_with_parent
@needs("app", "include")
def worker(
    app: str | None,
    include: tuple[str, ...],
    url: str | None,
    queues: list[str] | None,
    sharing: Sharing | None,
    pool: str | None,
    tenant: str | None,
    concurrency: int,
    prefetch: int,
    grace: float,
    lease: float,
    label: tuple[str, ...],
    capabilities: dict[str, Any] | None,
    code: Sandbox | None,
    identity: Path | None,
    children: ChildLimits,
    process: Process,
    until_empty: bool,
    migrate: bool,
    wait: float,
) -> int:
    """Run the jobs of APP, given as MODULE:NAME. Without APP, run only jobs that carry their code.

    SIGTERM: finish within the grace period, hand back the rest. SIGINT, or a second signal: hand back at once. SIGTSTP:
    fetch no more. SIGCONT: fetch again.
    """
    if url is None and (app is None or os.environ.pop(CHOSEN_VARIABLE, "")):
        url = os.environ.get(URL_VARIABLE) or None
    if app is None and (code is None or url is None):
        raise click.UsageError(
            "The APP is missing, whose jobs the worker runs: name its module, such as 'ojster worker shop.jobs:app'. "
            "A worker without one needs --url and --code-tasks."
        )
    loaded = _application(app, include, url, tenant, migrate)
    try:
        worker = Worker(
            loaded,
            queues=queues,
            concurrency=concurrency,
            prefetch=prefetch,
            grace=grace,
            lease=lease,
            labels=label,
            sharing=sharing,
            pool=pool,
            capabilities=capabilities,
            code=code,
            identity=identity,
            children=children,
        )
    except (IdentityTaken, OSError, TypeError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    wait_for_database(loaded.url, wait)
    try:
        return run_worker(worker, process, until_empty=until_empty)
    except NoHandlers:
        looked = "--code-tasks" if app is None else app
        message = (
            f"{looked} declares no job handlers, so that a worker would get no job. Declare functions with "
            "@app.job(...), and import the modules that declare them in the module of the application."
        )
        raise click.ClickException(message) from None
    except NotConfined as error:
        raise click.ClickException(_why_not_confined(error)) from None


def _why_not_confined(error: NotConfined) -> str:
    if "No module named" in str(error):
        return f"Jobs that carry code need more packages ({error}). Run: pip install 'ojster[code]'"
    return f"Jobs that carry code cannot be confined here: {error}. --code-tasks weak runs them anyway."


def _application(app: str | None, include: Sequence[str], url: str | None, tenant: str | None, migrate: bool) -> App:
    """Return the application whose jobs the worker runs; an empty one if it only runs code."""
    with url_in_environment(url):
        loaded = App(eager=False) if app is None else load_app(app, include)
    if url is not None:
        loaded.choose_url(url)
    loaded.check_url()
    if not names_a_database(loaded.url) and (idle := used_options("wait")):
        raise click.UsageError(f"{idle[0]} has no effect on a server: a worker waits until its server answers.")
    loaded.migrate = loaded.migrate or migrate
    if tenant is not None:
        loaded.tenant = check_tenant(tenant)
    return loaded


def run_worker(worker: Worker, process: Process, *, until_empty: bool) -> int:
    """Run a worker as a process of its own, with its signals; return the exit code.

    Raises
    ------
    UsageError
        The application is eager.
    """
    refuse_eager(worker.app)
    tune_interpreter()
    return _run_loop(lambda: _work(worker, process, until_empty))


async def _work(worker: Worker, process: Process, until_empty: bool) -> int:
    recycling = Recycling(worker, process.limits)
    worker.on_end = lambda *_: recycling.count()
    if process.health is not None:
        worker.on_beat = partial(touch, process.health)
    log = logging.getLogger("ojster")
    last_resort = LastResort(worker.grace)
    orders = {
        "SIGTERM": lambda: worker.stop(0 if last_resort.is_urgent else None),
        "SIGBREAK": worker.stop,  # Windows
        "SIGINT": lambda: worker.stop(grace=0),
        "SIGTSTP": worker.quiet,
        "SIGCONT": worker.resume,
    }
    on_signals(asyncio.get_running_loop(), orders)
    last_resort.listen()
    let_through()
    if os.environ.pop(QUIET_VARIABLE, None):
        worker.quiet()
    log.info(
        "worker %s started: job types %s; %s, concurrency %d, queues %s",
        worker.id,
        _shown_types(worker.job_types),
        located(worker.app.url),
        worker.concurrency,
        ", ".join(worker.queues),
    )
    named = {declared.options.queue or DEFAULT_QUEUE for declared in worker.app.handlers.values()}
    for queue in set(worker.queues) - named:
        if meant := difflib.get_close_matches(queue, named, 1, 0.7):
            log.warning("no handler names the queue %r; did you mean %r?", queue, meant[0])
    try:
        await worker.run(until_empty=until_empty)
    finally:
        await worker.app.aclose()
        if process.health is not None:
            process.health.unlink(missing_ok=True)
    log.info("worker %s stopped after %d jobs", worker.id, worker.processed)
    if worker.abandoned:  # Python would wait for these handlers
        logging.shutdown()
        os._exit(REPLACE if recycling.reached else 0)
    return REPLACE if recycling.reached else 0


def _shown_types(types: Sequence[str]) -> str:
    """Return job types as the log names them: the first ones, and the number of the others."""
    shown = [*types[:MAX_SHOWN_TYPES], *([f"{len(types) - MAX_SHOWN_TYPES} more"] if types[MAX_SHOWN_TYPES:] else [])]
    return ", ".join(shown) or "none"


def _run_loop(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    if sys.platform == "win32":
        return asyncio.run(main())
    import uvloop

    return uvloop.run(main())
