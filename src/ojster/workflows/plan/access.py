"""What a caller that is limited to some queues may add to a workflow."""

from __future__ import annotations

from msgspec import UNSET

from ojster.core.access import Access
from ojster.core.job_flags import REACTIONS
from ojster.core.json_objects import read_members
from ojster.jobs.contents import objects_in, replaces_others
from ojster.jobs.options_wire import queue_of
from ojster.workflows.node import Kind
from ojster.workflows.plan.values import Plan


def check_kinds(plan: Plan, access: Access | None) -> None:
    """Check that a plan has nothing whose jobs are not known yet, before the defaults of job types are added.

    Containers, such as maps and definitions, and reactions make jobs of their own later, and a unique key may replace
    jobs of any queue. The defaults of a job type are an owner's, and may have both.

    Raises
    ------
    Forbidden
        The caller is limited to some queues, and these jobs could be in any.
    """
    if access is None or not access.queues:
        return
    if any(node.kind != Kind.JOB for node in plan.nodes):
        access.need_all_queues("A step that is not a single job")
    for spec in plan.specs:
        if spec.request is not UNSET:
            if REACTIONS in read_members(spec.request, "The step"):
                access.need_all_queues("A reaction")
            if replaces_others(objects_in(spec.request)):
                access.need_all_queues("A step that replaces jobs with its unique key")


def check_queues(plan: Plan, access: Access | None) -> None:
    """Check that a caller may enqueue the jobs of a plan, to which the defaults of their types were added.

    Raises
    ------
    Forbidden
        The caller is limited to other queues.
    """
    if access is None or not access.queues:
        return
    for spec in plan.specs:
        if spec.request is not UNSET:
            access.check_queue(queue_of(read_members(spec.request, "The step")))
