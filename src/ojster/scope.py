"""Whose view of the database is it? What all calls have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Any, Self, TypeVar

from ojster.core.errors import Forbidden, InvalidRequest, OjsterError
from ojster.core.tenant import NOBODY, qualify
from ojster.files.store import FileStore
from ojster.files.streams import Hashes
from ojster.fleet.workers import Heartbeat, Pulse
from ojster.jobs import queries
from ojster.jobs.schemas import Catalogue
from ojster.storage.database import Database
from ojster.storage.dispatcher import Operation
from ojster.storage.transaction import Transaction
from ojster.tenancy.access import Access
from ojster.workflows.orchestrator_request import MEMBER as ORCHESTRATOR

A = TypeVar("A")

R = TypeVar("R")


JobRequest = dict[str, Any]

Enqueue = Callable[[JobRequest], Awaitable[JobRequest]]

EnqueueMiddleware = Callable[[JobRequest, Enqueue], Awaitable[JobRequest]]
"""Wraps every push (ojs-middleware.md): gets the enqueue request and ``next``; may change it, or raise to refuse it."""

Directive = Callable[[Heartbeat, Pulse], Awaitable[str | None]]
"""Has a say in what a worker is told with its heartbeat: ``running``, ``quiet``, ``terminate``, or nothing."""


class _Life:
    """What all views of an engine have in common."""

    def __init__(self) -> None:
        self.draining = False
        self.catalogue: tuple[int, Catalogue | None] = (0, None)
        self.followed_at = 0
        self.hashes = Hashes()


class View:
    """What all calls have in common: the database, and whose view of it this is.

    Parameters
    ----------
    database:
        An open database; ``close`` closes it.
    middleware:
        Wraps every push, the first outermost.
    directives:
        Asked in turn what a worker is to be told; the first that has an answer wins.
    store:
        Where the bytes of files are kept; ``None``: there are no files.

    Attributes
    ----------
    tenant:
        Whose view it is: it sees and makes only what is theirs; ``None``: it sees all, and what it makes is nobody's
        unless it says whose it is.
    access:
        What the caller may do whose view it is; ``None``: everything.
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
        """Checks the name of an orchestrator, and parameters for it; raises ``InvalidRequest``."""
        self.database = database
        self.middleware = list(middleware)
        self.directives = list(directives)
        self.tenant: str | None = None
        self.access: Access | None = None
        self._chores: list[asyncio.Task[None]] = []
        self._life = _Life()

    @property
    def hashes(self) -> Hashes:
        """How far the hashes of uploads have come in this process."""
        return self._life.hashes

    def of(self, tenant: str) -> Self:
        """Return the engine as a tenant sees it (ojs-multi-tenancy.md); the empty string: what is nobody's."""
        view = copy(self)
        view.tenant = tenant
        return view

    def by(self, access: Access) -> Self:
        """Return the engine as somebody may use it (ojs-security.md section 7)."""
        view = copy(self)
        view.access = access
        return view

    def named(self, name: str) -> str:
        """Return under which name something is kept that its tenant calls so."""
        return qualify(self.tenant or NOBODY, name)

    def sees(self, tenant: str) -> bool:
        """Whether what is this tenant's is to be seen."""
        return self.tenant is None or self.tenant == tenant

    def for_all(self, what: str) -> None:
        """Let only those do something that concerns all tenants who are none of them.

        Raises
        ------
        Forbidden
            It is the view of a tenant.
        """
        if self.tenant is not None:
            raise Forbidden(f"{what} concerns all tenants, and is not for one of them.")

    async def check_jobs(self, ids: Sequence[str]) -> list[OjsterError | None]:
        """Return for each id whether there is no such job, as far as the tenant is concerned."""
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
        """The name of who uses it, if that is known."""
        return None if self.access is None else self.access.who

    @property
    def draining(self) -> bool:
        """Whether nobody is to wait any more."""
        return self._life.draining

    async def do(self, operation: Operation[A, R | OjsterError], argument: A) -> R:
        """Run a transaction function that needs nothing of this module, and return its result, or raise its refusal."""
        return accepted(await self.database.run(operation, argument))

    async def look(self, operation: Operation[A, R | OjsterError], argument: A) -> R:
        """Run a transaction function that only reads, as ``do`` does."""
        return accepted(await self.database.read(operation, argument))


def _no_orchestrator(name: str, params: Any) -> None:
    raise InvalidRequest(
        f"There is no orchestrator {name!r:.80} here: ojster serve --app MODULE:APP says where they are.",
        field=ORCHESTRATOR,
    )


def accepted(result: R | OjsterError) -> R:
    """Return a result, or raise it if it is a refusal."""
    if isinstance(result, OjsterError):
        raise result
    return result


def answer(tx: Transaction, requests: Sequence[None]) -> list[None]:
    """Ask the database for nothing but an answer."""
    tx.execute("SELECT 1")
    return list(requests)
