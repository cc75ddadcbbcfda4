"""What events add to the life of a job."""

from __future__ import annotations

from ojster.core.job import Job
from ojster.events.reaction_rules import RetryWithDelays, delays_of, reactions_of
from ojster.events.reactions import react
from ojster.events.webhooks import push_deliveries
from ojster.jobs.extension import Extension
from ojster.storage.transaction import Transaction


class EventExtension(Extension):
    """Reactions, among them retries, and deliveries to webhooks."""

    def finish(self, tx: Transaction) -> None:
        """Carry out reactions, then push deliveries of the events."""
        react(tx)
        push_deliveries(tx)

    def last_retry(self, job: Job) -> int | None:
        """Return the next of the delays of a ``retry-with-delays`` reaction, in microseconds."""
        for action in reactions_of(job.envelope).get("on_failure", ()):
            if isinstance(action, RetryWithDelays):
                delays = delays_of(action)
                used = job.attempt - job.max_attempts
                return delays[used] if used < len(delays) else None
        return None
