"""The steps in the container of a step, as the orchestrator that it runs sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from msgspec import Raw
from msgspec.structs import replace

from ojster.client.file_transfer import restore_json
from ojster.client.interface import Client
from ojster.core.states import UNFINISHED, JobState
from ojster.handlers.context import JobContext
from ojster.workflows.read.info import StepInfo
from ojster.workflows.read.step_pages import MOST_STEPS, StepFilter, StepRow


async def steps_around(job: JobContext, workflow_id: str, place: str) -> list[StepInfo]:
    """Return the steps of the container in which the step of a job is, with their results.

    Parameters
    ----------
    job, workflow_id, place:
        The job, its workflow, and the path of its step.
    """
    container = place.rpartition(".")[0]
    workflow = await job.client.workflows.show(workflow_id)
    shown = workflow.walk()
    steps = [step for step in shown if _is_in(container, step)]
    if workflow.steps_omitted:  # a server shows those of a large workflow in pages, without their results
        rows = [row async for row in _all_rows(job.client, workflow_id) if _is_in(container, row)]
        results = await _results(job.client, [row.job_id for row in rows if row.job_id and row.state == "completed"])
        steps = [_step_of(index, row, results) for index, row in enumerate(rows)]
    for step in steps:
        if isinstance(step.result, Raw):
            step.result = Raw(await restore_json(job.client, bytes(step.result), job.id))
    return steps


def _is_in(container: str, step: StepInfo | StepRow) -> bool:
    return step.path.rpartition(".")[0] == container


async def _all_rows(client: Client, workflow_id: str) -> AsyncIterator[StepRow]:
    after: int | None = 0
    while after is not None:
        page = await client.workflows.steps(StepFilter(workflow_id, after=after, limit=MOST_STEPS))
        for row in page.steps:
            yield row
        after = page.next_after


async def _results(client: Client, job_ids: Sequence[str]) -> dict[str, Raw]:
    """Return the results of jobs, by id."""
    results: dict[str, Raw] = {}
    waiting = list(job_ids)
    while waiting:
        answer = await client.jobs.results(waiting[:MOST_STEPS])
        results |= {id: shown.result for id, shown in answer.results.items()}
        waiting = [*(answer.omitted or ()), *waiting[MOST_STEPS:]]
    return results


def _step_of(index: int, row: StepRow, results: dict[str, Raw]) -> StepInfo:
    """Return a step of a page as workflows show it."""
    waits = row.state == "active" and row.job_state in UNFINISHED - {JobState.ACTIVE}
    state = "pending" if waits else row.state
    step = StepInfo(index, row.path, row.type, state, row.id, row.display_name, row.job_id, row.queue, row.attempt)
    known = results.get(row.job_id or "")
    return replace(step, error=row.error, **({} if known is None else {"result": known}))
