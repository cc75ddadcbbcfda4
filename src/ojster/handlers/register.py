"""What an application declares for its workers: handlers, cron jobs, orchestrators, middleware, and its lifespan."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Self, TypeVar, overload

from ojster.client.interface import Client
from ojster.core.declared_options import check_option
from ojster.handlers.code_version import code_version_of
from ojster.handlers.codec import Codec, Codecs
from ojster.handlers.cron_declaration import CronDeclaration, check_free_cron
from ojster.handlers.discovery import import_modules_named
from ojster.handlers.job_decorator import JobDecorator, check_free
from ojster.handlers.job_handle import HandleOwner
from ojster.handlers.job_type import JobType
from ojster.handlers.lifespan import Lifespan
from ojster.handlers.middleware import ExecutionMiddleware, ThreadMiddleware
from ojster.handlers.orchestrator import Orchestrator, Orchestrators
from ojster.jobs.middleware import EnqueueMiddleware, MiddlewareChain
from ojster.jobs.names import check_queue_name
from ojster.jobs.versions import HandledVersions
from ojster.schedules.cron import Cron
from ojster.schedules.cron_expression import OverlapPolicy
from ojster.service import Service
from ojster.workflows.declaration import Step
from ojster.workflows.orchestrator_request import ORCHESTRATE_TYPE, queue_of

O = TypeVar("O", bound=Orchestrator)  # noqa: E741
J = TypeVar("J", bound=JobType[..., Any])


class HandlerRegister(HandleOwner, ABC):
    """What a worker runs for an application; ``ojster.App`` is one.

    Parameters
    ----------
    url:
        The database or server of its jobs.
    codecs:
        Codecs of job arguments.
    """

    def __init__(self, url: str, codecs: Sequence[Codec] = ()) -> None:
        self.url = url
        self._codecs = Codecs(codecs)
        self.handlers: dict[str, JobType[Any, Any]] = {}
        self.crons: list[Cron] = []
        self.orchestrators = Orchestrators()
        self.enqueue_middleware = MiddlewareChain[EnqueueMiddleware]()
        self.execution_middleware = MiddlewareChain[ExecutionMiddleware]()
        self.thread_middleware = MiddlewareChain[ThreadMiddleware]()
        self.lifespan = Lifespan[Self]()
        self.child_setup: str | None = None
        """The function, as ``module:name``, that child processes call before they import handlers."""
        self._included_in: Self | None = None

    @abstractmethod
    def client(self) -> Client:
        """Return the client for the running event loop, created on first use."""

    @abstractmethod
    def work_on(self, service: Service, url: str) -> None:
        """Use the service of a database that is already open."""

    @abstractmethod
    def choose_url(self, url: str) -> None:
        """Use the database or server that was named for this process, whatever else names one."""

    @abstractmethod
    async def aclose(self) -> None:
        """Disconnect. The application can be used again afterwards."""

    @property
    def root(self) -> Self:
        """The application that has included this one, with those around it, or itself."""
        return self if self._included_in is None else self._included_in.root

    @property
    def is_eager(self) -> bool:
        """Whether jobs run in the thread of the caller, before ``enqueue`` returns, and are not kept."""
        return False

    @property
    def codecs(self) -> Codecs:
        """The codecs of job arguments."""
        return self.root._codecs

    @property
    def handled(self) -> tuple[HandledVersions, ...]:
        """The version ranges of handlers that accept only some versions, sorted by job type."""
        declared = sorted(self.handlers.values(), key=lambda handler: handler.type)
        return tuple(handler.handled for handler in declared if handler.handled is not None)

    @cached_property
    def code_version(self) -> str | None:
        """A short digest of the files with its handlers, as they are when it is first asked for; ``None``: no files."""
        return code_version_of(handler.function for handler in self.handlers.values())

    @cached_property
    def job(self) -> JobDecorator:
        """The decorator that declares a function as the handler of a job type, with or without arguments.

        ``@app.job`` takes the function's name as the type; ``@app.job("email.send", retry=5)`` names it and sets
        options of its jobs. Beside ``JobOptions`` it takes ``process`` and ``versions``; see ``JobDecorator``.
        """
        return JobDecorator(self, self.handlers)

    def include(self, other: Self) -> None:
        """Take over what another application declares: handlers, cron jobs, orchestrators and its lifespan.

        So modules need not import the application: each declares its jobs in an ``App()`` of its own, which from then
        on uses the database or server of this one, with its codecs and middleware.

        Parameters
        ----------
        other:
            The application, which has declared all that it will.

        Raises
        ------
        ValueError
            A job type, an orchestrator or a cron job of it is already declared here, or it includes this application or
            is included already. Nothing is taken over.

        Examples
        --------
        >>> from ojster import App
        >>> mail = App()
        >>> @mail.job("email.send")
        ... def send(to: str) -> None: ...
        >>> app = App("sqlite:///:memory:")
        >>> app.include(mail)
        >>> send.enqueue("ada@example.com").state
        'available'
        >>> app.close()
        """
        if other._included_in is not None or self.root is other:
            raise ValueError("An application is included once, and not in itself.")
        check_free_cron({cron.name for cron in other.crons}, self.crons)
        theirs = [handler for type, handler in other.handlers.items() if type != ORCHESTRATE_TYPE]
        for declared in theirs:
            check_free(declared.type, self.handlers, declared.function)
        for kind in other.orchestrators.values():
            self.orchestrators.check_free(kind.name, kind)
        self.handlers.update((declared.type, declared) for declared in theirs)
        for name, kind in other.orchestrators.items():
            self.orchestrator(name)(kind)
        self.crons += other.crons
        self.lifespan.include(other.lifespan, other)
        other._included_in = self

    def discover(self, *packages: str, name: str = "tasks") -> None:
        """Import the modules of packages, and of the packages in them, that declare jobs.

        Parameters
        ----------
        packages:
            Names of packages, such as ``"shop"``.
        name:
            Name of the modules; ``tasks`` by default: ``shop.tasks``, ``shop.mail.tasks``, …

        Raises
        ------
        ImportError
            A package does not exist, or a module cannot be imported.
        """
        for package in packages:
            import_modules_named(name, package)

    @overload
    def orchestrator(self, name: type[O], /) -> type[O]: ...

    @overload
    def orchestrator(self, name: str | None = None) -> Callable[[type[O]], type[O]]: ...

    def orchestrator(self, name: Any = None) -> Any:
        """Declare a class as an orchestrator: it adds steps to a workflow while the workflow runs.

        It runs in workers of this application, and in servers started with it (``ojster serve --app``).

        Parameters
        ----------
        name:
            Name of the orchestrator; by default the class name in lower case.

        Returns
        -------
        Callable
            A decorator that registers the class and returns it. ``@app.orchestrator`` is one, too.

        Raises
        ------
        ValueError
            The name is taken, or ``validate`` is a coroutine function. The decorator raises it.
        InvalidRequest
            The name is malformed. The decorator raises it.
        """
        if isinstance(name, type):
            return self.orchestrator()(name)
        check_option("name", name, str | None)

        def declare(kind: type[O]) -> type[O]:
            kind.name = name or kind.__name__.lower()
            check_queue_name(queue_of(kind.name))
            if inspect.iscoroutinefunction(kind.validate):
                raise ValueError(f"{kind.__name__}.validate must not be a coroutine function; make it a plain method.")
            self.orchestrators.check_free(kind.name, kind)
            if ORCHESTRATE_TYPE not in self.handlers:
                self.job(ORCHESTRATE_TYPE)(self.orchestrators.run)
            self.orchestrators[kind.name] = kind
            return kind

        return declare

    @overload
    def cron(self, expression: str, workflow: Step | type[Orchestrator], /, **options: Any) -> Cron: ...

    @overload
    def cron(self, expression: str, /, *, definition: str, **options: Any) -> Cron: ...

    @overload
    def cron(
        self,
        expression: str,
        /,
        *args: Any,
        name: str | None = None,
        timezone: str = "UTC",
        overlap_policy: OverlapPolicy = "skip",
        description: str | None = None,
    ) -> Callable[[J], J]: ...

    def cron(self, expression: str, /, *args: Any, **options: Any) -> Callable[[J], J] | Cron:
        """Declare a cron job: of a job type or a flow as a decorator, or of a workflow. Workers register it.

        Parameters
        ----------
        expression:
            Schedule, such as ``*/5 * * * *``, ``@daily`` or ``@every 90s``.
        args:
            For a decorator: arguments of each job or flow. Otherwise a workflow, such as ``chain(…)`` or a flow with
            its arguments, ``fulfil.s(42)``; or an orchestrator class.
        name:
            Name of the cron job; by default the job type, the name of the flow, the definition or the workflow, with
            ``-`` instead of ``_``.
        timezone:
            IANA time zone of the expression; ``UTC`` by default.
        overlap_policy:
            What happens if the run before is unfinished; ``skip`` (the default): it starts none; ``allow``: it starts
            one all the same; ``cancel_previous``: it cancels the one before; ``enqueue``: the next one waits for its
            turn.
        description:
            Text for operators; none by default.
        definition:
            Name of the definition from which each workflow is started, in its latest version.
        options:
            Options of each workflow, as of ``App.start``: ``params``, ``target``, ``timeout``, …

        Returns
        -------
        Callable or Cron
            A decorator that returns what it decorates; for a workflow or a definition, the declared cron job.

        Raises
        ------
        InvalidRequest
            The expression, the time zone or the overlap policy is malformed.
        ValueError
            A cron job has this name already. For a decorator, it raises it.
        TypeError
            There is nothing to start, or the job type or the flow does not take these arguments, or an option does not
            exist. The decorator raises it if what it decorates is no job type.

        Examples
        --------
        >>> from ojster import App, chain
        >>> app = App("sqlite:///:memory:")
        >>> @app.cron("0 6 * * *", "eu")
        ... @app.job
        ... def report(region: str) -> None: ...
        >>> app.cron("0 3 * * *", chain(report.s("eu"), report.s("us")), name="nightly").starts
        'chain'
        >>> app.cron("@hourly", definition="sweep", params={"depth": 2}).name
        'sweep'
        """
        if not isinstance(expression, str):
            raise TypeError(f"@app.cron needs an expression, such as @app.cron('0 6 * * *'), not {expression!r}.")
        declare = CronDeclaration(self.crons, expression, args, options)
        return declare.workflow() if declare.is_of_workflow else declare
