"""Base of all calls: the database, and the tenant scope and access of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Any, Self, TypeVar

from ojster.core.errors import Forbidden, InvalidRequest, OjsterError
from ojster.core.tenant import NOBODY, qualify
from ojster.files.store import FileStore
from ojster.files.streams import Hashes
from ojster.fleet.workers import Heartbeat, HeartbeatResponse
from ojster.jobs import queries
from ojster.jobs.schemas import Catalogue
from ojster.storage.database import Database
from ojster.storage.dispatcher import Operation
from ojster.storage.transaction import Transaction
from ojster.tenancy.access import Access
from ojster.workflows.orchestrator_request import ORCHESTRATOR_MEMBER as ORCHESTRATOR

A = TypeVar("A")

R = TypeVar("R")


JobRequest = dict[str, Any]

Enqueue = Callable[[JobRequest], Awaitable[JobRequest]]

EnqueueMiddleware = Callable[[JobRequest, Enqueue], Awaitable[JobRequest]]
"""Wraps every push: gets the request and ``next``; may change it, or raise to refuse it. Spec: ojs-middleware"""

Directive = Callable[[Heartbeat, HeartbeatResponse], Awaitable[str | None]]
"""Chooses a worker's directive at a heartbeat: ``running``, ``quiet`` or ``terminate``; ``None``: no choice."""


class _SharedState:
    """State that all views of an engine share."""

    def __init__(self) -> None:
        self.draining = False
        self.catalogue: tuple[int, Catalogue | None] = (0, None)
        self.followed_at = 0
        self.hashes = Hashes()


class View:
    """Base of all calls: the database, limited to the tenant scope and access of a caller.

    Parameters
    ----------
    database:
        An open database; ``close`` closes it.
    middleware:
        Wraps every push, the first outermost.
    directives:
        Called in turn to choose a worker's directive; the first choice wins.
    store:
        File store; ``None``: no files.

    Attributes
    ----------
    tenant:
        Tenant that the calls are limited to; the empty string: what has no tenant; ``None``: all tenants, and a new job
        has no tenant unless it names one.
    access:
        Access of the caller; ``None``: unlimited.
    """

    def __init__(
        self,
        database: Database,
        *,
        middleware: Sequence[EnqueueMiddleware] = (),
        directives: Sequence[Directive] = (),
        store: FileStore | None = None,
    ) -> None:
        self.store = store
        self.check_orchestrator: Callable[[str, Any], None] = _no_orchestrator
        """Checks the name and the parameters of an orchestrator; raises ``InvalidRequest``."""
        self.database = database
        self.middleware = list(middleware)
        self.directives = list(directives)
        self.tenant: str | None = None
        self.access: Access | None = None
        self._chores: list[asyncio.Task[None]] = []
        self._life = _SharedState()

    @property
    def hashes(self) -> Hashes:
        """Running hashes of uploads in this process."""
        return self._life.hashes

    def of(self, tenant: str) -> Self:
        """Return the engine limited to a tenant; the empty string: to what has no tenant.

        Spec: ojs-multi-tenancy
        """
        view = copy(self)
        view.tenant = tenant
        return view

    def by(self, access: Access) -> Self:
        """Return the engine limited to the access of a caller.

        Spec: ojs-security 7
        """
        view = copy(self)
        view.access = access
        return view

    def named(self, name: str) -> str:
        """Return the name qualified with the tenant, as it is stored."""
        return qualify(self.tenant or NOBODY, name)

    def sees(self, tenant: str) -> bool:
        """Whether the tenant scope includes a tenant."""
        return self.tenant is None or self.tenant == tenant

    def for_all(self, what: str) -> None:
        """Raise ``Forbidden`` if the caller is limited to one tenant.

        Parameters
        ----------
        what:
            The operation, as subject of the error message.

        Raises
        ------
        Forbidden
            The caller is limited to one tenant.
        """
        if self.tenant is not None:
            raise Forbidden(f"{what} concerns all tenants. Send the request without a tenant.")

    async def check_jobs(self, ids: Sequence[str]) -> list[OjsterError | None]:
        """Return ``NotFound`` for each id that is no job of the tenant, else ``None``.

        Without a tenant, nothing is checked.
        """
        if self.tenant is None or not ids:
            return [None for _ in ids]
        owners = await self.database.read(queries.find_owners, tuple(ids))
        return [None if owners.get(id) == self.tenant else queries.no_job(id) for id in ids]

    async def _check_job(self, job_id: str) -> None:
        for refusal in await self.check_jobs((job_id,)):
            if refusal is not None:
                raise refusal

    @property
    def who(self) -> str | None:
        """Name of the caller, if known."""
        return None if self.access is None else self.access.who

    @property
    def draining(self) -> bool:
        """Whether calls may no longer wait, because the engine shuts down."""
        return self._life.draining

    async def do(self, operation: Operation[A, R | OjsterError], argument: A) -> R:
        """Run a transaction function for one argument; return its result, or raise its refusal."""
        return accepted(await self.database.run(operation, argument))

    async def look(self, operation: Operation[A, R | OjsterError], argument: A) -> R:
        """Run a transaction function that only reads; return its result, or raise its refusal."""
        return accepted(await self.database.read(operation, argument))


def _no_orchestrator(name: str, params: Any) -> None:
    raise InvalidRequest(
        f"There is no orchestrator {name!r:.80}. Register it with ojster serve --app MODULE:APP.",
        field=ORCHESTRATOR,
    )


def accepted(result: R | OjsterError) -> R:
    """Return a result, or raise it if it is a refusal."""
    if isinstance(result, OjsterError):
        raise result
    return result


def answer(tx: Transaction, requests: Sequence[None]) -> list[None]:
    """Run an empty query, to test whether the database answers."""
    tx.execute("SELECT 1")
    return list(requests)
