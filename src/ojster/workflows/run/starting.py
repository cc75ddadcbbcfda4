"""Workflows that the server starts from a stored request: those of reactions and of cron jobs."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.errors import NotFound, OjsterError, PayloadTooLarge
from ojster.core.json_objects import Members, without_nulls
from ojster.core.tenant import NOBODY, qualify
from ojster.storage.transaction import Held, Later, Transaction
from ojster.workflows.definition import from_definition, read_start
from ojster.workflows.definitions import find
from ojster.workflows.orchestrator_request import ORCHESTRATOR_MEMBER, expand
from ojster.workflows.plan.defaults import add_defaults
from ojster.workflows.plan.nested_definitions import with_nested
from ojster.workflows.plan.request import read_workflow
from ojster.workflows.plan.values import NewWorkflow
from ojster.workflows.run.creation import create

MAX_NODES_STARTED: Final = 1_000
"""Maximum number of nodes of a workflow that the server starts: one transaction creates them, and others wait."""


class Starter(msgspec.Struct, frozen=True):
    """The tenant and the creator of a workflow that the server starts, and the cron job that it belongs to.

    Parameters
    ----------
    tenant:
        The tenant of the workflow; ``None``: the one that its metadata names.
    otherwise:
        The tenant if its metadata names none, either.
    created_by:
        The name of its creator's token, if it is known.
    cron_name, turn_line:
        See ``NewWorkflow``.
    """

    tenant: str | None
    otherwise: str = ""
    created_by: str | None = None
    cron_name: str | None = None
    turn_line: int = 0


def check_size(new: NewWorkflow) -> None:
    """Check that the server can create a workflow in one transaction.

    Raises
    ------
    PayloadTooLarge
        It has more than ``MAX_NODES_STARTED`` nodes.
    """
    if (nodes := len(new.plan.nodes)) > MAX_NODES_STARTED:
        raise PayloadTooLarge(
            f"The workflow has {nodes} steps and containers; cron jobs and reactions start at most "
            f"{MAX_NODES_STARTED}. Make it smaller, for example with a map, or start it with a request.",
            limit=MAX_NODES_STARTED,
        )


def start_workflow(tx: Transaction, members: Members, by: Starter) -> NewWorkflow:
    """Start the workflow that a request describes, with steps or from a definition; return it.

    No enqueue middleware runs: what it changes cannot be awaited in a transaction.

    Raises
    ------
    OjsterError
        It is refused. The caller undoes what was changed so far.
    Held
        Another transaction is in the way. It can be tried again.
    """
    members = without_nulls(members)  # as for a request to a server
    own, start = members, None
    whose = by.tenant or NOBODY
    if ORCHESTRATOR_MEMBER in members:
        members, _, _ = expand(members)
    if "definition" in members:
        start = read_start(members)
        definition = find(tx, qualify(whose, start.definition), start.definition_version)
        if definition is None:
            raise NotFound(f"There is no definition {start.definition!r}.", resource_type="definition")
        members, start = from_definition(definition, start, members)
    members = with_nested(tx, members, whose)
    largest = tx.settings.largest_job
    new = read_workflow(members, tx.now, largest=largest, tenant=by.tenant, otherwise=by.otherwise)
    check_size(new)
    if start is not None:
        new = msgspec.structs.replace(new, **start.of(new.params, own, new.tenant))
    new.created_by, new.cron_name, new.turn_line = by.created_by, by.cron_name, by.turn_line
    add_defaults(tx, new.plan, new.tenant)
    (created,) = create(tx, [new])
    if isinstance(created, Later):
        raise Held(created.message)
    if isinstance(created, OjsterError):
        raise created
    return new
