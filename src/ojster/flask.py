"""Jobs in Flask: handlers in the application's context, ``flask ojster`` for workers, a blueprint with the dashboard.

Needs ``ojster[flask]``.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from io import BytesIO
from typing import Any, Final

import click
from flask import Blueprint, Flask, current_app, request
from flask.cli import AppGroup, ScriptInfo, with_appcontext
from werkzeug.wrappers import Response

from ojster.api.app import App
from ojster.cli.logs import log_to_console
from ojster.cli.worker import run_worker
from ojster.cli.worker_options import with_concurrency, with_queues
from ojster.cli.worker_processes import Process
from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.dashboard import wsgi
from ojster.handlers.context import JobContext
from ojster.queues.fairness import Sharing
from ojster.storage.urls import known_url
from ojster.worker.registration import NoHandlers
from ojster.worker.worker import Worker

NAME: Final = "ojster"
"""Name of the extension in ``Flask.extensions``."""


class Ojster:
    """The extension: it connects the jobs of an application with Flask.

    ``OJSTER_DATABASE_URL`` in the configuration of Flask, if it is set, names the database or server of the jobs.
    Handlers run in an application context of their own, so that ``current_app`` and extensions such as Flask-SQLAlchemy
    work in them; with ``flask ojster worker`` also in child processes.

    Parameters
    ----------
    jobs:
        The application with the jobs.
    app:
        The Flask application; by default ``init_app`` gets it later.

    Examples
    --------
    >>> from flask import Flask, current_app
    >>> from ojster import App
    >>> from ojster.flask import Ojster
    >>> jobs = App("sqlite:///:memory:")
    >>> @jobs.job("report.build")
    ... def build() -> str:
    ...     return current_app.name
    >>> app = Flask("shop")
    >>> extension = Ojster(jobs, app)
    >>> app.extensions["ojster"] is extension
    True
    >>> jobs.close()
    """

    def __init__(self, jobs: App, app: Flask | None = None) -> None:
        self.jobs = jobs
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Connect the jobs with a Flask application.

        Raises
        ------
        RuntimeError
            They are connected already: the handlers would run in two contexts.
        InvalidRequest
            The URL in the configuration is neither a database nor a server.
        """
        if getattr(self, "_app", app) is not app or NAME in app.extensions:
            raise RuntimeError("These jobs are already connected with a Flask application.")
        self._app = app
        app.extensions[NAME] = self
        if url := app.config.get("OJSTER_DATABASE_URL"):
            self.jobs.url = self.jobs._written = known_url(url)
        self.jobs.thread_middleware.append(self._in_thread)
        self.jobs.execution_middleware.append(self._on_loop)
        app.cli.add_command(commands)

    def _in_thread(self, job: Job, call_next: Callable[[], Any]) -> Any:
        with self._app.app_context():
            return call_next()

    async def _on_loop(self, context: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        handler = self.jobs.handlers.get(context.job.type)
        if handler is None or not handler.is_async:  # a plain handler gets a context in its thread
            return await call_next()
        with self._app.app_context():
            return await call_next()


def dashboard(jobs: App, *, guarded: bool = False) -> Blueprint:
    """Return a blueprint with the dashboard, which is at ``dashboard/`` below its prefix.

    Everybody who reaches it may do everything, so give it a ``before_request`` that asks for your own login. It
    protects itself from requests of other sites; exempt it from the check of an extension such as Flask-WTF.

    Parameters
    ----------
    jobs:
        The application with the jobs. It must use a database, not a server.
    guarded:
        Whether callers need a token of Ojster instead of your login.

    Examples
    --------
    >>> from flask import Flask, abort, session
    >>> from ojster import App
    >>> from ojster.flask import dashboard
    >>> def only_staff() -> None:
    ...     if not session.get("is_staff"):
    ...         abort(403)
    >>> operations = dashboard(App("sqlite:///jobs.db"))
    >>> _ = operations.before_request(only_staff)
    >>> app = Flask("shop")
    >>> app.register_blueprint(operations, url_prefix="/ops")  # at /ops/dashboard/
    """
    blueprint = Blueprint("ojster_dashboard", __name__)
    site = wsgi(jobs, guarded=guarded)

    def serve(path: str = "") -> Response:
        shown = f"/{path}"
        prefix = request.path.removesuffix(shown).encode().decode("latin-1")
        own = {
            "SCRIPT_NAME": request.environ.get("SCRIPT_NAME", "") + prefix,
            "PATH_INFO": request.environ["PATH_INFO"].removeprefix(prefix),
        }
        body = request.get_data()  # what has asked for the login may have read it
        own |= {"wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        return Response.from_app(site, request.environ | own)

    for rule in ("/", "/<path:path>"):
        blueprint.add_url_rule(rule, "serve", serve, methods=_METHODS)
    return blueprint


def _load() -> None:
    """Load the Flask application in a child process of ``flask ojster worker``, as ``flask`` did."""
    ScriptInfo(os.environ["FLASK_APP"]).load_app()


_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

commands = AppGroup(NAME, help="Run jobs.")


@commands.command("worker")
@with_queues
@with_concurrency
@click.option("--until-empty", is_flag=True, help="Stop when no job is available.")
@with_appcontext
def worker(queues: list[str] | None, sharing: Sharing | None, concurrency: int, until_empty: bool) -> None:
    """Run a worker of the application's jobs. 'ojster worker' has more options."""
    log_to_console("info")
    extension: Ojster = current_app.extensions[NAME]
    script = click.get_current_context().ensure_object(ScriptInfo)
    if script.create_app is None:
        os.environ["FLASK_APP"] = script.app_import_path or ""
        extension.jobs.child_setup = f"{__name__}:{_load.__name__}"
    worker = Worker(extension.jobs, queues=queues, sharing=sharing, concurrency=concurrency)
    try:
        code = run_worker(worker, Process(), until_empty=until_empty)
    except (OjsterError, NoHandlers) as error:
        raise click.ClickException(str(error)) from None
    raise SystemExit(code)
