"""The scope of a call: a database, and the tenant and access of the caller."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from ojster.core.access import Access
from ojster.core.access import Operation as Allowed
from ojster.core.errors import Forbidden, OjsterError, TenantMissing
from ojster.core.json_objects import Members
from ojster.core.printable import refuses_surrogates
from ojster.core.settings import ServiceSettings
from ojster.core.tenant import qualify
from ojster.jobs import queries
from ojster.jobs.authorship import find_creators
from ojster.jobs.contents import carries_code, names_recipients, needs_of_reactions, objects_in, replaces_others
from ojster.jobs.messages import Holder, LeaseReport, unnamed
from ojster.jobs.names import RESERVED_QUEUE_PREFIX, refuse_reserved
from ojster.storage.call import TransactionFunction
from ojster.storage.database import Database

A = TypeVar("A")
R = TypeVar("R")

M = TypeVar("M")
S = TypeVar("S", bound=msgspec.Struct)
W = TypeVar("W", bound=LeaseReport)


class Caller(msgspec.Struct, frozen=True):
    """Who calls.

    Parameters
    ----------
    tenant:
        The tenant whose jobs the caller can read and create; the empty string: only those without a tenant; ``None``:
        all, and what it creates belongs to the tenant that a request names.
    access:
        What the caller may do; ``None``: everything.
    """

    tenant: str | None = None
    access: Access | None = None


ANYONE: Final = Caller()
"""A caller without limits: the process itself."""


def check_owner(settings: ServiceSettings, tenant: str) -> None:
    """Raise ``TenantMissing`` if new jobs need a tenant, and this is none."""
    if not tenant and settings.tenants == "required":
        raise TenantMissing(
            "The tenant is missing. Name it with the header X-OJS-Tenant or in 'meta.tenant_id'.",
            field="meta.tenant_id",
        )


class Scope:
    """A database as one caller can use it.

    Attributes
    ----------
    database:
        The database.
    caller:
        Who calls.
    """

    def __init__(self, database: Database, caller: Caller = ANYONE) -> None:
        self.database = database
        self.caller = caller
        self.tenant = caller.tenant
        self.access = caller.access

    @property
    def who(self) -> str | None:
        """The name of the caller, if it is known."""
        return None if self.access is None else self.access.who

    def named(self, name: str) -> str:
        """Return the stored name of what the tenant calls ``name``. Callers of all tenants use stored names."""
        return name if self.tenant is None else qualify(self.tenant, name)

    def sees(self, tenant: str) -> bool:
        """Return whether the caller can read what belongs to a tenant."""
        return self.tenant is None or self.tenant == tenant

    def covers(self, queue: str) -> bool:
        """Return whether the caller is limited to no queues, or to this one among others."""
        return self.access is None or self.access.covers(queue)

    @property
    def covers_all_queues(self) -> bool:
        """Whether the caller is limited to no queues."""
        return self.access is None or not self.access.queues

    def require_all_tenants(self, what: str) -> None:
        """Raise ``Forbidden`` if the caller is limited to one tenant.

        Parameters
        ----------
        what:
            The operation, for the error message.
        """
        if self.tenant is not None:
            raise Forbidden(f"{what} concerns all tenants. Send the request without a tenant.")

    def need_all_queues(self, what: str) -> None:
        """Raise ``Forbidden`` if the caller is limited to some queues."""
        if self.access is not None:
            self.access.need_all_queues(what)

    def require_all_queues(self, what: str) -> None:
        """Raise ``Forbidden`` if the caller is limited to one tenant, or may see some queues alone.

        Administrators see all queues. ``what``: as in ``require_all_tenants``.
        """
        self.require_all_tenants(what)
        access = self.access
        if access is not None and access.queues and not access.may(Allowed.ADMIN):
            raise Forbidden(
                f"This shows all queues; the token {access.who!r} is limited to {', '.join(access.queues)}."
            )

    def check_tenant(self, tenant: str) -> None:
        """Raise ``TenantMissing`` if new jobs need a tenant, and this is none."""
        check_owner(self.database.settings, tenant)

    def check_new(self, tenant: str, queue: str) -> None:
        """Raise the refusal of a new job: its tenant is missing, or the caller may not push to its queue."""
        self.check_tenant(tenant)
        if self.access is not None:
            self.access.check_queue(queue)
        if queue.startswith(RESERVED_QUEUE_PREFIX):
            refuse_reserved(queue)

    def with_worker(self, message: M) -> M:
        """Return a worker's message with the worker's stored name."""
        worker_id: str | None = getattr(message, "worker_id", None)
        if not worker_id:
            return message
        changed: Any = message
        named: M = msgspec.structs.replace(changed, worker_id=self.named(worker_id))
        return named

    def holder(self, holder: Holder | None) -> Holder | None:
        """Return the holder of a lease with the worker's stored name."""
        return None if holder is None else self.with_worker(holder)

    def of_tenant(self, message: S) -> S:
        """Return a filter, or another message with a ``tenant``, limited to the caller's tenant, if it has one."""
        return message if self.tenant is None else msgspec.structs.replace(message, tenant=self.tenant)

    @property
    def is_limited(self) -> bool:
        """Whether the caller is limited to one tenant, or to some queues."""
        return self.tenant is not None or not self.covers_all_queues

    async def check_jobs(self, ids: Sequence[str]) -> list[OjsterError | None]:
        """Return for each id ``None``, or why the caller may do nothing with the job.

        It is ``NotFound`` if the caller's tenant has no such job, and ``Forbidden`` if the job's queue is another than
        those that the caller is limited to.
        """
        if not self.is_limited or not ids:
            return [None for _ in ids]
        owners = await self.database.read(queries.find_owners, tuple(ids))
        return [self._refuse_job(id, owners.get(id)) for id in ids]

    async def check_reports(
        self, items: Sequence[W], refuse: Callable[[W], OjsterError | None] = lambda _: None
    ) -> tuple[Sequence[W], Sequence[OjsterError | None]]:
        """Return the reports of workers that the caller may make, and for each report why not, or ``None``.

        Whoever does not administer must name the worker of a job that is leased to one. ``refuse`` returns why the
        caller may not make a report, for another reason.
        """
        if self.access is None and not self.is_limited:
            return items, [None] * len(items)
        if self.access is not None and not self.access.may(Allowed.ADMIN):
            items = [item if item.worker_id is not None else unnamed(item) for item in items]
        refusals = [
            refusal or refuse(item)
            for item, refusal in zip(items, await self.check_jobs([item.job_id for item in items]), strict=True)
        ]
        checked = zip(items, refusals, strict=True)
        return [self.with_worker(item) for item, refusal in checked if refusal is None], refusals

    def _refuse_job(self, id: str, owner: tuple[str, str] | None) -> OjsterError | None:
        if owner is None or not self.sees(owner[0]):
            return queries.no_job(id)
        try:
            self.check_queue(owner[1])
        except Forbidden as refusal:
            return refusal
        return None

    def check_contents(self, *requests: Members | bytes) -> None:
        """Raise ``Forbidden`` if one of these requests makes a job that the caller may not make, at any depth.

        Such a job carries code, sets the recipients of a notification, may replace jobs of others, or has a reaction
        that does what the caller itself may not do.
        """
        if (refusal := self.refuse_contents(*requests)) is not None:
            raise refusal

    def refuse_contents(self, *requests: Members | bytes) -> Forbidden | None:
        """Return why the caller may not make the jobs of these requests, as ``check_contents`` has it, or ``None``."""
        if self.access is None:
            return None
        encoded = [request if isinstance(request, bytes) else msgspec.json.encode(request) for request in requests]
        objects = [members for request in encoded for members in objects_in(request)]
        if not self.access.may(Allowed.CODE) and carries_code(objects):
            return Forbidden(
                f"The token {self.who!r} may not push jobs that carry code. Use one with the role 'coder' or 'owner'."
            )
        if not self.access.may(Allowed.ADMIN) and names_recipients(objects):
            return Forbidden(
                f"The token {self.who!r} may not set the recipients of notifications ('to' and 'cc'): it needs "
                "administrator rights. Leave them out, and the channel's are used."
            )
        if self.cancels_only_own and replaces_others(objects):
            return Forbidden(
                f"{self.who!r} may replace only its own jobs; steps, reactions and cron jobs that replace others by "
                "their unique keys might replace any. Use 'reject' or 'ignore'."
            )
        for kind, operations in needs_of_reactions(objects).items():
            if not self.access.operations.intersection(operations):
                names = " or ".join(repr(operation.value) for operation in operations)
                return Forbidden(
                    f"The token {self.who!r} may not declare the reaction {kind!r}: reactions act with the rights of "
                    f"their caller, and it has no role that allows {names} here. Use a token that has one."
                )
        return None

    def check_queue(self, queue: str | Sequence[str] | None) -> None:
        """Raise ``Forbidden`` if the caller is limited to other queues than this one, or these; ``None``: all."""
        if self.access is None or not self.access.queues:
            return
        if queue is None:
            names = ", ".join(self.access.queues)
            raise Forbidden(f"The token {self.who!r} is limited to the queues {names}. Name one of them.")
        for name in (queue,) if isinstance(queue, str) else queue:
            self.access.check_queue(name)

    async def check_job(self, job_id: str) -> None:
        """Raise ``NotFound`` or ``Forbidden`` if the caller may do nothing with a job: see ``check_jobs``."""
        for refusal in await self.check_jobs((job_id,)):
            if refusal is not None:
                raise refusal

    @property
    def cancels_only_own(self) -> bool:
        """Whether the caller may stop only what it has created: cancel, hold, replace, or let it fail."""
        access = self.access
        return (
            access is not None and self.database.settings.contributors_cancel == "own" and not access.may(Allowed.ADMIN)
        )

    async def refuse_cancellation(self, ids: Sequence[str]) -> dict[str, OjsterError | None]:
        """Return for each id of an existing job why the caller may not cancel it, or ``None``."""
        if not self.cancels_only_own or not ids:
            return dict.fromkeys(ids)
        creators = await self.database.read(find_creators, tuple(ids))
        return {id: self.refuse_foreign(f"The job {id}", creators[id]) if id in creators else None for id in ids}

    def refuse_foreign(self, what: str, creator: str | None) -> OjsterError | None:
        """Return why the caller may not cancel what ``creator`` has created, or ``None``."""
        if not self.cancels_only_own or creator == self.who:
            return None
        by = "nobody with a token" if creator is None else repr(creator)
        return Forbidden(f"{what} was created by {by}; {self.who!r} may cancel or hold only its own. Ask an owner.")

    async def do(self, operation: TransactionFunction[A, R | OjsterError], argument: A) -> R:
        """Run a transaction function that may write; return its result, or raise its refusal."""
        return accepted(await self.database.run(operation, argument))

    async def look(self, operation: TransactionFunction[A, R | OjsterError], argument: A) -> R:
        """Run a transaction function that only reads, as ``do`` does."""
        return accepted(await self.database.read(operation, argument))

    async def survey(self, operation: TransactionFunction[A, R | OjsterError], argument: A) -> R:
        """Run a transaction function that only reads, as ``look`` does; it may see what was true a moment ago."""
        return accepted(await self.database.survey(operation, argument))


class CapabilityService:
    """The calls of one capability, in one scope. They refuse text that cannot be stored."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, call in list(vars(cls).items()):
            if inspect.iscoroutinefunction(call) and not name.startswith("_"):
                setattr(cls, name, refuses_surrogates(call))

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.database = scope.database


def accepted(result: R | OjsterError) -> R:
    """Return a result, or raise it if it is a refusal."""
    if isinstance(result, OjsterError):
        raise result
    return result


def merged(refusals: Sequence[OjsterError | None], outcomes: Iterable[R | OjsterError]) -> list[R | OjsterError]:
    """Return the outcome of each report: its refusal, or else the next of the outcomes."""
    others = iter(outcomes)
    return [refusal or next(others) for refusal in refusals]
