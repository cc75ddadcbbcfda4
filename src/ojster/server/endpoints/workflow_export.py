"""Endpoints that export the history of a workflow, and a list of workflows."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from ojster.core.csv_text import Row
from ojster.server.answer import Answer, encode
from ojster.server.endpoints.workflows import conditions_in
from ojster.server.export import FORMAT, exported, format_of
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route
from ojster.workflows.filters import WORKFLOW_FILTER_PARAMETERS
from ojster.workflows.read.rows import STEP_ROW, WORKFLOW_ROW, step_row, workflow_row
from ojster.workflows.read.selection import WorkflowFilter
from ojster.workflows.read.step_pages import MOST_STEPS, StepFilter

WORKFLOWS_PER_PAGE: Final = 200
"""Number of workflows that are read at once."""


async def export_workflow(request: HttpRequest) -> Answer:
    """Export the history of a workflow of any size as a file: ``format`` is ``csv`` or ``json``.

    CSV has a line for each step: when it was enqueued, started and ended, how, why, and who decided. JSON also has the
    ``workflow``, and the ``notes`` on it and its jobs.
    """
    service, id = request.service, request.path["id"]
    service.scope.need_all_queues("The export of a workflow")
    format = format_of(request.query)
    workflow = await service.workflows.show(id, steps=False)
    around = (b"", b"")
    if format == "json":
        notes = await service.notes.of_workflow(workflow.id)
        around = (b'{"workflow":%b,"notes":%b,"steps":[' % (encode(workflow), encode(notes)), b"]}")
    return await exported(format, f"workflow-{workflow.id}", STEP_ROW, _steps(request, workflow.id), around)


async def _steps(request: HttpRequest, id: str) -> AsyncGenerator[list[Row], None]:
    after: int | None = 0
    while after is not None:
        page = await request.service.workflows.steps(StepFilter(id, after=after, limit=MOST_STEPS))
        yield [step_row(step) for step in page.steps]
        after = page.next_after


async def export_workflows(request: HttpRequest) -> Answer:
    """Export all workflows that match, the newest first and without their steps, as a file of ``csv`` or ``json``.

    The conditions are those of the list of workflows.
    """
    request.service.scope.need_all_queues("A list of workflows")  # before the answer begins
    filter = WorkflowFilter(**msgspec.structs.asdict(conditions_in(request.query)), limit=WORKFLOWS_PER_PAGE)
    return await exported(format_of(request.query), "workflows", WORKFLOW_ROW, _workflows(request, filter))


async def _workflows(request: HttpRequest, filter: WorkflowFilter) -> AsyncGenerator[list[Row], None]:
    before = None
    while True:
        page = await request.service.workflows.select(msgspec.structs.replace(filter, before=before))
        yield [workflow_row(workflow) for workflow in page.workflows]
        if page.next_before is None:
            return
        before = page.next_before


ROUTES: Final = (
    Route("GET", f"{BASE}/workflows/{{id}}/export", export_workflow, "Workflows", query=FORMAT, exports=True),
    Route(
        "GET",
        f"{BASE}/workflow-export",
        export_workflows,
        "Workflows",
        query=(*WORKFLOW_FILTER_PARAMETERS, *FORMAT),
        exports=True,
    ),
)
