"""The JSON of bulk operations on workflows."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ojster.core.calls import Arguments
from ojster.core.ids import new_id
from ojster.core.shown_errors import error_of
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.core.wire import Count, Identifier, Json, Timestamp
from ojster.jobs.filters import filter_members
from ojster.jobs.sweeps import Sweep
from ojster.workflows.read.selection import WorkflowConditions


class BulkWorkflowsBody(Arguments):
    """The workflows of a bulk operation: all that match ``filter``.

    With ``dry_run``, nothing is changed, and the answer says what would be done.
    """

    filter: dict[str, Json]
    dry_run: bool = False
    idempotency_key: str | None = None

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        """Return the body for the arguments of a call. Its key makes it safe to send it again."""
        own = {name: arguments.pop(name) for name in cls.__struct_fields__ if name in arguments}
        return cls(filter=filter_members(WorkflowConditions(**arguments)), idempotency_key=new_id(), **own)


class CancelWorkflowsBody(BulkWorkflowsBody):
    """The workflows to cancel: all that match ``filter``. With ``stop_active``, their active jobs are cancelled, too.

    With ``dry_run``, nothing is changed, and the answer says what would be done.
    """

    stop_active: bool = False


class ForkWorkflowsBody(BulkWorkflowsBody):
    """The workflows to run again, from ``from_step`` on, or from their start: all that match ``filter``.

    With ``dry_run``, nothing is changed, and the answer says what would be done.
    """

    from_step: str | None = None


class PinWorkflowsBody(BulkWorkflowsBody, kw_only=True):
    """The version to which the flows with the name ``flow`` are pinned, in all workflows that match ``filter``.

    With ``from_version``, only those are that are pinned to it. With ``dry_run``, nothing is changed, and the answer
    says what would be done.
    """

    flow: Identifier
    version: Identifier
    from_version: Identifier | None = None


class BulkWorkflowBody(Struct):
    """The outcome of one workflow: ``error`` says why it was not changed."""

    workflow_id: str
    error: dict[str, Json] | UnsetType = UNSET


class BulkWorkflowsAnswer(Struct):
    """The outcome of an operation on all workflows that match a filter, with the first 1,000 of them.

    After a dry run, it is what the outcome would be. Its workflows that are finished were so before ``as_of``.
    """

    action: str
    matched: Count
    succeeded: Count
    failed: Count
    items: list[BulkWorkflowBody]
    dry_run: Literal[True] | UnsetType = UNSET
    as_of: Timestamp | UnsetType = UNSET

    @classmethod
    def of(cls, sweep: Sweep) -> Self:
        items = [BulkWorkflowBody(id, UNSET if error is None else error.to_wire()) for id, error in sweep.items]
        shown = cls(sweep.action, sweep.matched, sweep.succeeded, sweep.failed, items)
        if sweep.as_of is not None:
            shown.dry_run, shown.as_of = True, format_timestamp(sweep.as_of)
        return shown

    def value(self) -> Sweep:
        sweep = Sweep(self.action, None if self.as_of is UNSET else parse_timestamp(self.as_of))
        sweep.matched, sweep.succeeded = self.matched, self.succeeded
        for item in self.items:
            sweep.items.append((item.workflow_id, None if item.error is UNSET else error_of(item.error)))
        return sweep


BULK_WORKFLOWS: Final = msgspec.json.Decoder(BulkWorkflowsBody)

PIN_WORKFLOWS: Final = msgspec.json.Decoder(PinWorkflowsBody)

FORK_WORKFLOWS: Final = msgspec.json.Decoder(ForkWorkflowsBody)

CANCEL_WORKFLOWS: Final = msgspec.json.Decoder(CancelWorkflowsBody)
