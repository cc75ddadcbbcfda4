"""What events add to the life of a job."""

from __future__ import annotations

from ojster.core.errors import InvalidRequest, OjsterError
from ojster.core.job import Job
from ojster.core.tenant import qualify
from ojster.events import notifications
from ojster.events.erased_deliveries import erase_deliveries
from ojster.events.reaction_rules import RetryWithDelays, delays_of, reactions_of
from ojster.events.reactions import react
from ojster.events.webhooks import push_deliveries
from ojster.jobs.extension import Erasure, Extension
from ojster.jobs.new_job import NewJob
from ojster.storage.transaction import Transaction


class EventExtension(Extension):
    """Reactions, among them retries, and deliveries to webhooks."""

    def check(self, tx: Transaction, new: NewJob) -> None:
        """Check the channels that a job notifies.

        Raises
        ------
        InvalidRequest
            A channel does not exist.
        """
        if not (notices := new.values.get("events", ())):
            return
        names = sorted({notice.channel for notice in notices})
        definitions = notifications.find_channels(tx, [qualify(new.tenant, name) for name in names])
        missing = [
            name for name, definition in zip(names, definitions, strict=True) if isinstance(definition, OjsterError)
        ]
        if missing:
            raise InvalidRequest(f"There is no channel {missing[0]!r}.", field="event_reactions")

    def finish(self, tx: Transaction) -> None:
        """Carry out reactions, then push deliveries of the events."""
        react(tx)
        push_deliveries(tx)

    def erase(self, tx: Transaction, erasure: Erasure) -> int | None:
        """Delete deliveries and notifications about what was deleted on request."""
        return erase_deliveries(tx, erasure)

    def last_retry(self, job: Job) -> int | None:
        """Return the next of the delays of a ``retry-with-delays`` reaction, in microseconds."""
        for action in reactions_of(job.envelope).get("on_failure", ()):
            if isinstance(action, RetryWithDelays):
                delays = delays_of(action)
                used = job.counted_attempts - max(1, job.max_attempts)
                return delays[used] if used < len(delays) else None
        return None
