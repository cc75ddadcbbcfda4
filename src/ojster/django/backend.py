"""The backend: Django's tasks are jobs, and their results are read from the jobs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property, partial
from inspect import iscoroutinefunction
from pathlib import Path
from traceback import format_exception
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections, transaction
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules, import_string

from ojster.api.app import App
from ojster.core.errors import InvalidRequest, NotFound
from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.core.values import to_json
from ojster.django.tasks_api import BaseTaskBackend, InvalidTask, TaskResultDoesNotExist, base, signals, tasks
from ojster.handlers.context import JobContext
from ojster.handlers.job_info import JobInfo, info_of
from ojster.handlers.job_options import JobOptions, Retry, request_of
from ojster.handlers.provision import calling_thread
from ojster.jobs.names import TYPE_PATTERN, check_queue_name

OPTIONS: Final = frozenset({"url", "database", "eager", "max_attempts", "timeout", "token"})
"""The options of the backend in ``TASKS``."""

LIBPQ_OPTIONS: Final = frozenset(
    {
        "application_name", "channel_binding", "connect_timeout", "gssencmode", "keepalives", "keepalives_count",
        "keepalives_idle", "keepalives_interval", "options", "passfile", "require_auth", "service", "sslcert", "sslcrl",
        "sslkey", "sslmode", "sslnegotiation", "sslrootcert", "target_session_attrs", "tcp_user_timeout",
    }
)  # fmt: skip
"""Options of Django's connection that the connection of the jobs needs, too."""

_STATUSES: Final[dict[str, str]] = {
    JobState.ACTIVE: "RUNNING",
    JobState.COMPLETED: "SUCCESSFUL",
    JobState.DISCARDED: "FAILED",
    JobState.CANCELLED: "FAILED",
}


class OjsterBackend(BaseTaskBackend):
    """A backend for ``TASKS``.

    ``OPTIONS`` may have

    * ``url``: the database or server of the jobs. By default they are in Django's own database if that is PostgreSQL,
      and beside it, in a file whose name ends in ``.jobs``, if it is SQLite.
    * ``database``: the alias of Django's database, ``"default"`` by default.
    * ``max_attempts``: how often a task is tried, 3 by default; ``timeout``: maximum run time of an attempt in seconds,
      the server's default by default; ``token``: for a server that requires one;
    * ``eager``: whether tasks run where they are enqueued, for development: see ``App.eager``.

    A task that is enqueued in a transaction of Django is enqueued with it: in the same transaction if the jobs are in
    the same database, or else after the commit.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        if unknown := sorted(self.options.keys() - OPTIONS):
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]['OPTIONS'] has the unknown option {unknown[0]!r}. Use {', '.join(sorted(OPTIONS))}."
            )
        self.database: str = self.options.get("database", "default")
        queues = params.get("QUEUES") or [tasks.DEFAULT_TASK_QUEUE_NAME]
        self.queue_names: list[str] = list(dict.fromkeys(queues))
        """The queues in ``TASKS``, in that order, in which workers serve them."""
        self._paths: dict[str, str] = {}

    # The application with the jobs

    @property
    def url(self) -> str:
        """The URL of the jobs. Tests have other databases than settings, so it is asked for each time."""
        url: str | None = self.options.get("url")
        return url or _url_beside(connections[self.database].settings_dict)

    @property
    def shares_database(self) -> bool:
        """Whether jobs can be written in a transaction of Django."""
        return "url" not in self.options and connections[self.database].vendor == "postgresql"

    @cached_property
    def _app(self) -> App:
        self._known_url = self.url
        app = App(token=self.options.get("token"), eager=self.options.get("eager"))
        app.choose_url(self._known_url)
        app.thread_middleware.append(_in_thread)
        app.execution_middleware.append(partial(_on_loop, app))
        app.task_of = _task_of
        app.waiting_for_commit = sync_to_async(self._waiting_for_commit)
        return app

    @property
    def app(self) -> App:
        """The application with the jobs, and with a handler for each task that was imported."""
        app, url = self._app, self.url
        if app.is_eager:
            return app
        if app.url == self._known_url != url and not app.under_test:  # Django has other databases in tests
            app.close()
            app.url = self._known_url = url
        return app

    # Tasks

    def validate_task(self, task: Any) -> None:
        """Check a task, and register its handler."""
        super().validate_task(task)
        try:
            check_queue_name(task.queue_name)
        except InvalidRequest as error:
            raise InvalidTask(error.message) from None
        self._register(task)

    def _register(self, task: Any) -> None:
        """Let workers have a handler for a task."""
        path = _path_of(task.func)
        type = job_type_of(path)
        known = self._paths.setdefault(type, path)
        if known != path:
            raise InvalidTask(f"The tasks {known} and {path} have the same job type {type!r}. Rename one of them.")
        if type not in self._app.handlers:
            declare = self._app.job(type, queue=task.queue_name)
            declare(_async_handler(self, path) if iscoroutinefunction(task.func) else _handler(self, path))

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task, with the transaction of Django if there is one."""
        self.validate_task(task)
        result = base.TaskResult(
            task=task, id="", status=base.TaskResultStatus.READY, enqueued_at=_shown_time(datetime.now(UTC)),
            started_at=None, finished_at=None, last_attempted_at=None, args=list(args), kwargs=dict(kwargs),
            backend=self.alias, errors=[], worker_ids=[],
        )  # fmt: skip
        options = JobOptions(
            queue=task.queue_name,
            priority=task.priority,
            scheduled_at=_with_zone(task.run_after),
            timeout=self.options.get("timeout"),
            retry=Retry(max_attempts=self.options.get("max_attempts", 3)),
        )
        members = request_of(job_type_of(_path_of(task.func)), [result.args, result.kwargs], options)
        object.__setattr__(result, "id", msgspec.json.decode(members["id"]))
        app, connection = self.app, connections[self.database]
        in_memory = app.under_test or app.is_eager
        if not connection.in_atomic_block or (in_memory and _is_committed(connection)):
            self._push(app, members, result)
        elif self.shares_database and not in_memory:
            app._enqueue_in(connection, [members])
            signals.task_enqueued.send(type(self), task_result=result)
        else:
            transaction.on_commit(partial(self._push, app, members, result), using=self.database)
        return result

    def _push(self, app: App, members: dict[str, msgspec.Raw], result: Any) -> None:
        app._event_loop_thread.call(app.client().jobs.enqueue([members]))
        signals.task_enqueued.send(type(self), task_result=result)

    def _waiting_for_commit(self) -> list[str]:
        """Return the ids of tasks that are to be enqueued after a commit, with those that a test has let through."""
        callbacks = [callback for _, callback, *_ in connections[self.database].run_on_commit]
        ours = [callback for callback in callbacks if isinstance(callback, partial) and callback.func == self._push]
        return [callback.args[-1].id for callback in ours]

    def get_result(self, result_id: str) -> Any:
        """Return the result of a task."""
        try:
            job = self.app.find(result_id).info
        except (NotFound, InvalidRequest):
            raise TaskResultDoesNotExist(result_id) from None
        if job.type not in self._paths:
            autodiscover_modules("tasks")
        if job.type not in self._paths or len(job.args) != 2:
            raise TaskResultDoesNotExist(f"The job {result_id} is of no task that is known here.")
        return self.result_of(job)

    def result_of(self, job: JobInfo) -> Any:
        """Return the result of a task as Django shows it."""
        task = import_string(self._paths[job.type])  # what a job names itself is not imported
        run_after = _shown_time(job.next_at) if job.state == JobState.SCHEDULED else None
        result = base.TaskResult(
            task=task.using(priority=job.priority, queue_name=job.queue, run_after=run_after, backend=self.alias),
            id=job.id,
            status=base.TaskResultStatus(_STATUSES.get(job.state, "READY")),
            enqueued_at=_shown_time(job.created_at),
            started_at=_shown_time(job.started_at),
            finished_at=_shown_time(job.finished_at),
            last_attempted_at=_shown_time(job.started_at),
            args=job.args[0],
            kwargs=job.args[1],
            backend=self.alias,
            errors=[_error_of(error) for error in job.errors],
            worker_ids=[job.worker_id or ""] * job.attempt,
        )
        object.__setattr__(result, "_return_value", job.result)
        return result

    def check(self, **more: Any) -> Iterable[checks.CheckMessage]:
        """Check the settings; called by ``manage.py check``."""
        from django.apps import apps

        if not apps.is_installed("ojster.django"):
            yield checks.Warning(
                "'ojster.django' is not in INSTALLED_APPS.",
                hint="Add it, for 'manage.py ojster' and so that 'manage.py migrate' creates the tables of the jobs.",
                id="ojster.W001",
            )
        for queue in sorted(self.queues):
            try:
                check_queue_name(queue)
            except InvalidRequest as error:
                yield checks.Error(f"TASKS[{self.alias!r}]['QUEUES']: {error.message}", id="ojster.E001")
        try:
            self.app  # noqa: B018  (it checks the URL)
        except (InvalidRequest, ImproperlyConfigured) as error:
            yield checks.Error(f"TASKS[{self.alias!r}]: {error}", id="ojster.E002")


def _task_of(named: Any) -> tuple[str, Callable[..., Any], bool] | None:
    """Return what a ``JobTester`` must know of a task."""
    if not isinstance(named, base.Task):
        return None
    return job_type_of(_path_of(named.func)), named.func, named.takes_context


def _is_committed(connection: Any) -> bool:
    """Return whether all open transactions are those in which a ``TestCase`` wraps tests, and never commits."""
    return all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def backends() -> list[OjsterBackend]:
    """Return the backends in ``TASKS`` that are of this class."""
    return [backend for backend in tasks.task_backends.all() if isinstance(backend, OjsterBackend)]


def _path_of(named: Any) -> str:
    """Return the path by which Django imports a function or class."""
    return f"{named.__module__}.{named.__qualname__}"


def job_type_of(path: str) -> str:
    """Return the job type of a task: the path of its function, with other characters than a type may have replaced.

    >>> job_type_of("shop.tasks.send_mail"), job_type_of("Shop.tasks._send")
    ('shop.tasks.send_mail', 'shop.tasks.x_send')
    """
    parts = [re.sub(r"[^a-z0-9_]", "_", part.lower()) for part in path.split(".")]
    type = ".".join(part if part[:1].isalpha() else f"x{part}" for part in parts)
    assert TYPE_PATTERN.fullmatch(type), type
    return type


def _url_beside(database: Mapping[str, Any]) -> str:
    """Return the URL of jobs in or beside a database of Django."""
    engine, name = database["ENGINE"], str(database["NAME"])
    if engine.endswith((".postgresql", ".postgis")):
        user, password = quote(database["USER"] or "", safe=""), quote(database["PASSWORD"] or "", safe="")
        login = f"{user}:{password}@" if password else f"{user}@" if user else ""
        more = {"host": database["HOST"], "port": database["PORT"]}
        more |= {name: value for name, value in database.get("OPTIONS", {}).items() if name in LIBPQ_OPTIONS}
        query = urlencode({name: value for name, value in more.items() if value not in (None, "")})
        return f"postgresql://{login}/{quote(name, safe='')}" + (f"?{query}" if query else "")
    if engine.endswith((".sqlite3", ".spatialite")):
        if name == ":memory:" or "mode=memory" in name:
            return "sqlite:///:memory:"
        return f"sqlite:///{Path(name).absolute()}.jobs"
    raise ImproperlyConfigured(
        f"The database engine {engine!r} cannot hold jobs. Name another database or a server in "
        "TASKS[…]['OPTIONS']['url']."
    )


# Handlers


FAILURES: Final = (Exception, SystemExit)
"""What a task fails with; a result that JSON cannot represent is a ``TypeError``."""


def _handler(backend: OjsterBackend, path: str) -> Callable[..., Any]:
    """Return the handler of a task with a plain function."""

    def run(context: JobContext, args: list[Any], kwargs: dict[str, Any]) -> Any:
        task, result, args = _begin(backend, context, path, args)
        try:
            value = task.func(*args, **kwargs)
            to_json(value)
        except FAILURES as error:
            _end(result, error)
            raise
        _end(result, None)
        return value

    return run


def _async_handler(backend: OjsterBackend, path: str) -> Callable[..., Any]:
    """Return the handler of a task with a coroutine function."""

    async def run(context: JobContext, args: list[Any], kwargs: dict[str, Any]) -> Any:
        task, result, args = await sync_to_async(_begin)(backend, context, path, args)
        try:
            value = await task.func(*args, **kwargs)
            to_json(value)
        except FAILURES as error:
            await sync_to_async(_end)(result, error)
            raise
        await sync_to_async(_end)(result, None)
        return value

    return run


def _begin(backend: OjsterBackend, context: JobContext, path: str, args: list[Any]) -> tuple[Any, Any, list[Any]]:
    """Tell Django that a task begins; return the task, its result until now, and the arguments of its function."""
    task = import_string(path)
    result = backend.result_of(info_of(context.job))
    signals.task_started.send(type(backend), task_result=result)
    return task, result, [base.TaskContext(task_result=result), *args] if task.takes_context else args


def _end(result: Any, error: Exception | SystemExit | None) -> None:
    """Tell Django that a task has ended. The error gets its path as its type, so that its class is found again."""
    status = base.TaskResultStatus.SUCCESSFUL if error is None else base.TaskResultStatus.FAILED
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", _shown_time(datetime.now(UTC)))
    if error is not None:
        path = _path_of(type(error))
        traceback = "".join(format_exception(error))
        result.errors.append(base.TaskError(exception_class_path=path, traceback=traceback))
        if type(error).__module__ != "builtins" and not hasattr(error, "error_type"):
            with suppress(Exception):  # some refuse new attributes
                error.error_type = path  # type: ignore[union-attr]
    signals.task_finished.send(OjsterBackend, task_result=result)


def _with_zone(moment: datetime | None) -> datetime | None:
    return moment if moment is None or timezone.is_aware(moment) else timezone.make_aware(moment)


def _shown_time(moment: datetime | None) -> datetime | None:
    """Return a time as Django wants it: without a time zone if ``USE_TZ`` is false."""
    return moment if moment is None or settings.USE_TZ else timezone.make_naive(moment)


class TaskFailed(Exception):
    """Stands for an exception whose class is not known: the job was cancelled, or failed outside of its function."""


def _error_of(error: Mapping[str, Any]) -> Any:
    """Return the error of an attempt as Django shows it."""
    name = str(error.get("type") or "")
    path = name if "." in name else f"builtins.{name}"
    try:
        is_error = issubclass(import_string(path), BaseException)
    except (ImportError, TypeError):
        is_error = False
    frames = error.get("backtrace") or ()
    begin = ["Traceback (most recent call last):"] if frames else []
    shown = name.removeprefix("builtins.")
    lines = [*begin, *(frame.rstrip("\n") for frame in frames), f"{shown}: {error.get('message')}", ""]
    return base.TaskError(
        exception_class_path=path if is_error else _path_of(TaskFailed),
        traceback="\n".join(lines),
    )


# Connections of Django in workers


def _in_thread(job: Job, call_next: Callable[[], Any]) -> Any:
    """Close connections that have become unusable, before and after a handler, as Django does around a request."""
    if calling_thread.get(None) is not None:  # it is the connection of a test
        return call_next()
    close_old_connections()
    try:
        return call_next()
    finally:
        close_old_connections()


async def _on_loop(app: App, context: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
    handler = app.handlers.get(context.job.type)
    if handler is None or not handler.is_async or calling_thread.get(None) is not None:
        return await call_next()  # a plain handler closes those of its thread
    await sync_to_async(close_old_connections)()
    try:
        return await call_next()
    finally:
        await sync_to_async(close_old_connections)()
