"""What other task queues call the methods and options of jobs, for the messages to those who come from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final

_TYPE_FIRST: Final = "The job type comes first: @app.job('email.send')."
_CONTEXT: Final = "Take a JobContext as the first parameter: def send(job: JobContext, …)."
_ATTEMPTS: Final = "Set retry=Retry(max_attempts=…), which counts the first attempt, too."
_TIMEOUT: Final = "Set timeout, in seconds."

OPTIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("name", "actor_name", "task_name"), _TYPE_FIRST),
    **dict.fromkeys(("bind", "pass_context"), _CONTEXT),
    **dict.fromkeys(("max_retries", "max_attempts", "attempts", "retries"), _ATTEMPTS),
    **dict.fromkeys(("time_limit", "soft_time_limit", "job_timeout"), _TIMEOUT),
    **dict.fromkeys(("countdown", "schedule_in"), "Set delay, in seconds or as a timedelta."),
    **dict.fromkeys(("eta", "run_at", "schedule_at"), "Set scheduled_at, a datetime with a time zone."),
    "expires": "Set expires_in or expires_at.",
    "autoretry_for": "Every error is retried. Name those that are not: retry=Retry(give_up_on=[…]).",
    "throws": "Name errors that are not retried: retry=Retry(give_up_on=[…]).",
    "retry_backoff": "Set retry=Retry(initial_interval=…, max_interval=…), in seconds.",
    "default_retry_delay": "Set retry=Retry(initial_interval=…, backoff='constant'), in seconds.",
    "queueing_lock": "Set unique=Unique(…).",
    "lock": "Set rate_limit=RateLimit(key=…, concurrency=1).",
}
"""What to write in the place of an option that another queue has."""

_ENQUEUE: Final = "Enqueue a job with enqueue(…), with options: using(delay=60).enqueue(…)."
_AENQUEUE: Final = "Enqueue a job with await aenqueue(…), with options: await using(delay=60).aenqueue(…)."
_BY_NAME: Final = "Enqueue with the declared job, send.enqueue(…), or by its type, app.job_type('send').enqueue(…)."
_DECLARE: Final = "Declare a job with @app.job."


class SaysOtherNames:
    """An object that says, when it is asked for what another queue calls so, what its own method is called."""

    _other_names: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # a type checker would think that every name exists

        def __getattr__(self, name):
            if (hint := self._other_names.get(name)) is not None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}. {hint}")
            return super().__getattribute__(name)  # raises what it has raised, also an error inside a property


OF_JOB_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("delay", "apply_async", "send", "send_with_options", "defer", "perform_async"), _ENQUEUE),
    **dict.fromkeys(("defer_async", "kiq"), _AENQUEUE),
    "configure": "Set options with using(…).",
    **dict.fromkeys(("si", "signature", "message"), "A step of a workflow is s(…)."),
}
"""What to call in the place of a method of tasks that another queue has."""

OF_FLOWS: Final[Mapping[str, str]] = dict.fromkeys(
    (*OF_JOB_TYPES, "execute", "start_workflow"),
    "Start a flow with start(…) or await astart(…); s(…) makes a step of it.",
)
"""What to call in the place of a method of workflows that another engine has."""

OF_APPLICATIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("task", "actor", "register_task"), _DECLARE),
    **dict.fromkeys(("enqueue", "send_task", "defer", "enqueue_job"), _BY_NAME),
    "periodic": "Schedule a job with @app.cron('0 6 * * *'), above @app.job.",
}
"""What to call in the place of a method of applications that another queue has."""
