"""What agents add to the life of a job."""

from __future__ import annotations

from collections.abc import Sequence

from ojster.agents.attributes import OutputSchemaViolation, check_output, decode_state
from ojster.agents.budgets import begin_task
from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.jobs.extension import Extension, lock_with
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.new_job import NewJob
from ojster.jobs.transitions import fail_attempt
from ojster.storage.transaction import Transaction


class AgentExtension(Extension):
    """Agents' tasks: their budgets, and the shape of their results."""

    def admit(self, tx: Transaction, new: Sequence[NewJob], jobs: Sequence[Job]) -> None:
        """Begin the tasks of agents."""
        for new_job, job in zip(new, jobs, strict=True):
            if (agent := new_job.values.get("agents")) is not None:
                begin_task(tx, job, agent)

    def refuse_result(self, tx: Transaction, job: Job, report: Acknowledgement) -> OjsterError | None:
        """Fail an attempt whose result does not have the agreed shape."""
        if job.agent is None or report.result_file is not None:
            return None
        return _check_output(tx, job, report.result)


def _check_output(tx: Transaction, job: Job, result: bytes | None) -> OutputSchemaViolation | None:
    """Fail the attempt if the result violates the output schema of the job; return the error.

    Spec: ojs-ai-agents 2.4
    """
    assert job.agent is not None
    if not decode_state(job.agent).checks_output:
        return None
    tx.load_envelopes([job])
    problems = check_output(job.envelope, result)
    if not problems:
        return None
    message = "The result does not match the output schema of the job: " + "; ".join(problems)
    lock_with(tx, [job])
    fail_attempt(
        tx,
        job,
        Failure(OutputSchemaViolation.code, message, OutputSchemaViolation.code, details={"violations": problems}),
    )
    return OutputSchemaViolation(message, job_id=job.id, current_state=job.state, violations=problems)
