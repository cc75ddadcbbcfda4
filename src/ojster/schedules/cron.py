"""Cron jobs: their registration and lists. ``ojster.schedules.firing`` fires them.

Spec: ojs-cron
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from ojster.core.errors import Duplicate, Forbidden, InvalidRequest, NotFound, OjsterError
from ojster.core.json_objects import Members, read_members
from ojster.core.parsing import Bounded, PageLimit, PageOffset
from ojster.core.tenant import TENANT_NAMES_RANGE, called, names_of
from ojster.schedules.cron_expression import OVERLAP_POLICIES, CronSchedule, OverlapPolicy
from ojster.schedules.runs import creators_of_unfinished
from ojster.storage.call import for_each
from ojster.storage.transaction import Held, Transaction

CronName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9\-.]*$", max_length=255)]
"""Name of a cron job, as its tenant calls it."""


class Cron(msgspec.Struct, frozen=True, kw_only=True):
    """A cron job, which enqueues jobs or starts workflows. Times are microseconds since the epoch.

    Parameters
    ----------
    name:
        Its name, as its tenant calls it.
    expression:
        Schedule, such as ``*/5 * * * *``, ``@daily`` or ``@every 90s``.
    timezone:
        IANA time zone of the expression; ``UTC`` by default.
    overlap_policy:
        What happens if the run before is unfinished; ``skip`` (the default): it starts none; ``allow``: it starts one
        all the same; ``cancel_previous``: it cancels the one before; ``enqueue``: the next one waits for its turn.
    enabled:
        Whether it starts runs; it does by default.
    description:
        Text for operators; none by default.
    template:
        The enqueue request of its jobs, as JSON.
    workflow:
        The request for a workflow that it starts instead, as JSON: with steps, from a definition, or a flow. It has no
        id.
    last_run_at, next_run_at:
        When it started its last run, and starts the next one; ``None``: it has had none, or has none.
    run_count:
        How many runs it has started.
    created_by:
        The name of the caller that registered it first, if it is known. Its runs are created by the same.
    """

    name: str
    expression: str
    timezone: str = "UTC"
    overlap_policy: OverlapPolicy = "skip"
    enabled: bool = True
    description: str | None = None
    template: bytes = b"{}"
    workflow: bytes | None = None
    created_at: int = 0
    last_run_at: int | None = None
    next_run_at: int | None = None
    run_count: int = 0
    created_by: str | None = None

    def __post_init__(self) -> None:
        if self.overlap_policy not in OVERLAP_POLICIES:
            raise InvalidRequest(
                f"overlap_policy is {self.overlap_policy!r}, but must be one of {', '.join(OVERLAP_POLICIES)}.",
                field="overlap_policy",
            )
        if self.workflow is not None and self.template != b"{}":
            raise InvalidRequest(
                f"The cron job {self.name!r} has the template of a job and a workflow. Leave one of them out.",
                field="workflow",
            )

    @property
    def job_type(self) -> str | None:
        """The type of its jobs, or of the flow that it starts; ``None``: its template names none."""
        members = read_members(self.template, "The template") if self.workflow is None else self._flow
        job_type: str | None = msgspec.json.decode(members.get("type", b"null"))
        return job_type

    @property
    def _flow(self) -> Members:
        """The members of the job of the flow that it starts; empty: it starts none."""
        members = read_members(self.workflow or b"{}", "The workflow")
        return read_members(members["job"], "The flow") if bytes(members.get("type", b"")) == b'"flow"' else {}

    @property
    def starts(self) -> str:
        """What it starts, for people: a job type, or the kind and the name of a workflow."""
        if self.workflow is None:
            return self.job_type or ""
        members = read_members(self.workflow, "The workflow")
        for kind in ("definition", "orchestrator"):
            if kind in members:
                return f"{kind} {msgspec.json.decode(members[kind])}"
        kind = msgspec.json.decode(members.get("type", b'"graph"'))
        name = self.job_type or msgspec.json.decode(members.get("name", b"null"))
        return f"{kind} {name}" if name else str(kind)

    @property
    def schedule(self) -> CronSchedule:
        """Schedule of the cron job."""
        return CronSchedule(self.expression, self.timezone)


COLUMNS: Final = (
    "name, expression, timezone, overlap_policy, enabled, description, template, workflow, created_at, last_run_at, "
    "next_run_at, run_count, created_by"
)


OnConflict = Literal["replace", "reject"]
"""What becomes of a registration if there is a cron job with its name: it replaces that one, or is refused."""


class Registration(msgspec.Struct, frozen=True):
    """A cron job to register.

    ``owns_only``: its creator may change only cron jobs that it has created, and cancel only runs that it has created.
    """

    cron: Cron
    on_conflict: OnConflict = "replace"
    owns_only: bool = False


class Registered(msgspec.Struct, frozen=True):
    """A registered cron job, whether it is new, and whether it is new or differs from the one before.

    ``warnings`` name the members of its template that look misspelt, which have no effect, and days that some of its
    months do not have.
    """

    cron: Cron
    is_new: bool
    is_changed: bool
    warnings: tuple[str, ...] = ()


@for_each
def register(tx: Transaction, registration: Registration) -> Registered | OjsterError:
    """Register or update cron jobs by name.

    An update keeps the history, and also the next run if the schedule is unchanged, so an application may register all
    its cron jobs at every start.

    Spec: ojs-cron 8.1
    """
    cron, caller = registration.cron, registration.cron.created_by
    # A cron job that does not exist has no row to lock: registrations of one name take turns by a key. A known row is
    # locked as well, because a run writes it too: a row that is written back as it was before would run again.
    if tx.lock_keys({"cron:" + cron.name}):
        raise Held(f"Another caller is registering the cron job {cron.name}.")
    known = find(tx, cron.name, tx.for_update)
    if known is not None and registration.on_conflict == "reject":
        name = called(cron.name)
        message = f"There is a cron job {name!r} already. Choose another name, or change that one."
        return Duplicate(message, field="name", resource_id=name)
    next_run_at = cron.schedule.next_after(tx.now) if cron.enabled else None
    if known is None:
        cron = msgspec.structs.replace(cron, created_at=tx.now, next_run_at=next_run_at)
    else:
        unchanged = (known.expression, known.timezone) == (cron.expression, cron.timezone)
        if cron.enabled and unchanged and known.next_run_at is not None:
            next_run_at = known.next_run_at
        cron = msgspec.structs.replace(
            cron,
            created_at=known.created_at,
            created_by=known.created_by,
            last_run_at=known.last_run_at,
            run_count=known.run_count,
            next_run_at=next_run_at,
        )
    if cron != known:
        if registration.owns_only and (refusal := _refuse_foreign(tx, cron, caller)) is not None:
            return refusal
        write(tx, cron)
    return Registered(cron, known is None, cron != known)


def _refuse_foreign(tx: Transaction, cron: Cron, caller: str | None) -> Forbidden | None:
    """Return why a caller may not change a cron job that would stop what others have created, or ``None``."""
    name = called(cron.name)
    if cron.created_by != caller:
        by = "nobody with a token" if cron.created_by is None else repr(cron.created_by)
        return Forbidden(
            f"The cron job {name!r} was created by {by}; {caller!r} may change only its own. Choose another name, or "
            "ask an owner."
        )
    if cron.overlap_policy == "cancel_previous" and creators_of_unfinished(tx, cron.name) - {caller}:
        return Forbidden(
            f"The cron job {name!r} would cancel unfinished runs that others have created; {caller!r} may cancel only "
            "its own. Use another overlap policy, or ask an owner."
        )
    return None


@for_each
def switch(tx: Transaction, order: tuple[str, bool]) -> Cron | OjsterError:
    """Enable or disable cron jobs."""
    name, enabled = order
    # The whole row is written back: a run that fires meanwhile would be undone.
    cron = find(tx, name, tx.for_update)
    if cron is None:
        return no_cron(name)
    next_run_at = cron.schedule.next_after(tx.now) if enabled else None
    cron = msgspec.structs.replace(cron, enabled=enabled, next_run_at=next_run_at)
    write(tx, cron)
    return cron


@for_each
def unregister(tx: Transaction, name: str) -> Cron | OjsterError:
    """Remove cron jobs. The jobs that they enqueued stay."""
    # Wait for a run that fires, so that the answer is the last version.
    cron = find(tx, name, tx.for_update)
    if cron is not None:
        tx.execute("DELETE FROM crons WHERE name = :name", {"name": name})
        tx.execute("DELETE FROM cron_misses WHERE cron_name = :name", {"name": name})
    return cron or no_cron(name)


class CronSelection(Bounded, frozen=True):
    """Cron jobs to list, by name.

    Parameters
    ----------
    tenant:
        Only those of this tenant; ``None``: all.
    enabled:
        Only enabled ones (true) or disabled ones (false); ``None``: both.
    limit, offset:
        The page; without a limit, all of them.
    """

    tenant: str | None = None
    enabled: bool | None = None
    limit: PageLimit | None = None
    offset: PageOffset = 0


@for_each
def list_crons(tx: Transaction, chosen: CronSelection) -> tuple[list[Cron], int]:
    """Return the page of cron jobs that each selection names, and the number of them on all pages."""
    first, end = names_of(chosen.tenant) if chosen.tenant else TENANT_NAMES_RANGE
    of_tenant = "name >= :first AND name < :end"
    whose = "1 = 1" if chosen.tenant is None else of_tenant if chosen.tenant else f"NOT ({of_tenant})"
    matching = f"FROM crons WHERE {whose}"
    if chosen.enabled is not None:
        matching += f" AND enabled = {int(chosen.enabled)}"
    bounds = {"first": first, "end": end}
    ((total,),) = tx.execute(f"SELECT count(*) {matching}", bounds)
    rows = tx.execute(
        f"SELECT {COLUMNS} {matching} ORDER BY name LIMIT :limit OFFSET :offset",
        bounds | {"limit": total if chosen.limit is None else chosen.limit, "offset": chosen.offset},
    )
    return ([cron_of(row) for row in rows], int(total))


def find_cron(tx: Transaction, names: Sequence[str]) -> list[Cron | OjsterError]:
    """Return the cron job of each name."""
    return [find(tx, name) or no_cron(name) for name in names]


def find(tx: Transaction, name: str, lock: str = "") -> Cron | None:
    """Return a cron job by its stored name, if it exists; ``lock``: a clause that locks it."""
    rows = tx.execute(f"SELECT {COLUMNS} FROM crons WHERE name = :name" + lock, {"name": name})
    return cron_of(rows[0]) if rows else None


def write(tx: Transaction, cron: Cron) -> None:
    """Insert a cron job, or change it."""
    tx.execute(
        f"""
        INSERT INTO crons ({COLUMNS})
        VALUES (
            :name, :expression, :timezone, :overlap_policy, :enabled, :description, :template, :workflow,
            :created_at, :last_run_at, :next_run_at, :run_count, :created_by
        )
        ON CONFLICT (name) DO UPDATE SET
            expression = excluded.expression, timezone = excluded.timezone,
            overlap_policy = excluded.overlap_policy, enabled = excluded.enabled,
            description = excluded.description, template = excluded.template, workflow = excluded.workflow,
            last_run_at = excluded.last_run_at, next_run_at = excluded.next_run_at,
            run_count = excluded.run_count
        """,
        msgspec.structs.asdict(cron) | {"enabled": int(cron.enabled)},
    )
    tx.expect(cron.next_run_at)


def cron_of(row: tuple[Any, ...]) -> Cron:
    """Return the cron job in a row with ``COLUMNS``."""
    names = [name.strip() for name in COLUMNS.split(",")]
    fields = dict(zip(names, row, strict=True))
    fields["enabled"] = bool(fields["enabled"])
    return Cron(**fields)


def no_cron(name: str) -> NotFound:
    """Return the refusal for a missing cron job."""
    name = called(name)
    return NotFound(f"There is no cron job {name!r}.", resource_type="cron_job", resource_id=name)
