"""Pushes jobs to functions: the worker that servers run for each push endpoint.

It claims jobs, extends their leases and reports their outcomes as every worker does. All servers share its id, so the
limits of an endpoint hold for all of them together; each extends the leases of the jobs that it has sent itself.

Spec: ojs-serverless 2, 7, 8
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

import httpx
import msgspec

from ojster.core.durations import SECOND
from ojster.core.errors import BackendUnavailable, OjsterError, PayloadTooLarge
from ojster.core.ids import new_id
from ojster.core.job import Job
from ojster.core.version import __version__
from ojster.fleet.requirements import NOTHING
from ojster.fleet.workers import Heartbeat
from ojster.insight.receivers import public_address
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.job_json import retry_policy, to_json
from ojster.jobs.messages import Acknowledgement, FailureReport, hand_back
from ojster.jobs.scope import Caller
from ojster.push.answers import Accepted, Completed, Failed, NeverRan, Outcome, delivery_failure, read_answer
from ojster.push.endpoint import PushEndpoint, endpoints_by_worker
from ojster.push.endpoints import TOPIC, Trouble
from ojster.server.delivery.sender import Refused, Sender, Unreachable
from ojster.service import Service
from ojster.worker.heartbeats import beat_for_ever, interval_between

log = logging.getLogger(__name__)

LEASE: Final = 30 * SECOND
"""Lease of a job while its function is called, in microseconds: so long after the death of a server it runs again."""

GRACE: Final = 5.0
"""Time calls get to finish when the server stops, in seconds."""

PAUSE: Final = 1.0
"""Delay before the next try after the database did not answer, in seconds."""

TRIP_AFTER: Final = 5
"""Number of deliveries that fail in a row until an endpoint is suspended. Spec: ojs-serverless 7.2"""

COLD_START_SECONDS: Final = 10.0
"""Time that a function gets in addition when it has not been called for ``COLD_AFTER_SECONDS``, to start.

Spec: ojs-serverless 3.4
"""

COLD_AFTER_SECONDS: Final = 300.0

MAX_ANSWER_OVERHEAD_BYTES: Final = 65_536
"""Size allowed for an answer in addition to the largest result, in bytes."""

MAX_WAIT_SECONDS: Final = 30.0
"""Longest wait for jobs in one call, in seconds."""

_NEWS_SECONDS: Final = 60.0
"""Longest wait for news of endpoints, in seconds: a server that has missed some learns it then."""


class PushWorker:
    """Sends jobs to all push endpoints, until it is stopped. Several servers may do so for one database."""

    def __init__(self, service: Service, sender: Sender) -> None:
        self._service = service
        self._sender = sender
        self._running: dict[str, tuple[EndpointWorker, asyncio.Task[None]]] = {}
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to send jobs."""
        self._loop = asyncio.create_task(self._run(), name="ojster-push")

    async def stop(self) -> None:
        """Wait up to ``GRACE`` seconds for calls in progress, and hand back the rest."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        await asyncio.gather(*(self._end(worker, task, GRACE) for worker, task in self._running.values()))
        self._running.clear()
        await self._sender.close()

    async def _run(self) -> None:
        database = self._service.database
        with database.wakeups.waiter(TOPIC) as waiter:
            while not database.draining:
                waiter.arm()
                try:
                    await self._follow({endpoint.id: endpoint for endpoint in await self._service.push.stored()})
                except OjsterError as error:
                    log.warning("cannot read the push endpoints, retrying: %s", error)
                    await asyncio.sleep(PAUSE)
                    continue
                await waiter.wait(_NEWS_SECONDS)

    async def _follow(self, endpoints: dict[str, PushEndpoint]) -> None:
        """Run one worker for each endpoint, with its present settings."""
        for id in self._running.keys() - endpoints.keys():
            worker, task = self._running.pop(id)
            await self._end(worker, task, 0.0)
            await worker.leave()
        for id, endpoint in endpoints.items():
            if id in self._running and self._running[id][0].endpoint.tenant == endpoint.tenant:
                self._running[id][0].change(endpoint)
                continue
            if id in self._running:
                await self._end(*self._running.pop(id), 0.0)
            worker = EndpointWorker(self._service, self._sender, endpoint)
            self._running[id] = worker, asyncio.create_task(worker.run(), name=f"ojster-push-{id}")

    async def _end(self, worker: EndpointWorker, task: asyncio.Task[None], grace: float) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await worker.finish(grace)


class EndpointWorker:
    """Sends jobs to one push endpoint.

    Attributes
    ----------
    endpoint:
        The endpoint, with its present settings.
    """

    def __init__(self, service: Service, sender: Sender, endpoint: PushEndpoint) -> None:
        self._service = service.as_(Caller(endpoint.tenant))
        self._all = service
        self._sender = sender
        self.endpoint = endpoint
        self._changed = asyncio.Event()
        """Set when there may be room, or the settings have changed."""
        self._news = asyncio.Event()
        """Set when a heartbeat is due because the settings have changed."""
        self._patience = service.database.settings.heartbeat_timeout / SECOND
        self._calls: dict[str, tuple[Job, asyncio.Task[None]]] = {}
        """The calls under way, by job id."""
        self._unwanted: set[str] = set()
        """Ids of jobs that were cancelled, or are no longer leased to this worker."""
        self._reporting: set[str] = set()
        """Ids of jobs whose functions have answered."""
        self._directive = "running"
        self._failures = 0
        """Number of deliveries that have failed in a row."""
        self._answered_at: float | None = None

    def change(self, endpoint: PushEndpoint) -> None:
        """Go on with other settings."""
        if endpoint != self.endpoint:
            self.endpoint = endpoint
            self._changed.set()
            self._news.set()

    async def run(self) -> None:
        """Claim jobs and send heartbeats, until it is cancelled."""
        beats = asyncio.create_task(beat_for_ever(self._beat, self._interval, self._news))
        try:
            while not self._service.database.draining:
                self._changed.clear()
                try:
                    await self._send_some()
                except Exception:
                    log.exception("cannot send jobs to the push endpoint %s, retrying", self.endpoint.id)
                    await asyncio.sleep(PAUSE)
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    async def finish(self, grace: float) -> None:
        """Wait up to ``grace`` seconds for calls in progress; hand back the jobs of the rest."""
        tasks = [task for _, task in self._calls.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def leave(self) -> None:
        """Remove the worker of a deleted endpoint, which a last heartbeat may have brought back."""
        await self._service.fleet.leave(self.endpoint.worker_name)

    # Claims

    async def _send_some(self) -> None:
        """Claim jobs, as many as there is room for, and begin to send them; without room, wait for some."""
        endpoint = self.endpoint
        room = endpoint.concurrency - len(self._calls)
        if not endpoint.active or self._directive != "running" or room <= 0:
            await self._changed.wait()
            return
        types = endpoint.job_types or None
        claim = Claim(endpoint.queues, room, endpoint.worker_name, LEASE, provided=NOTHING, types=types)
        fetching = asyncio.create_task(self._service.jobs.fetch(claim, MAX_WAIT_SECONDS))
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait((fetching, changed), return_when=asyncio.FIRST_COMPLETED)
            jobs = await fetching if fetching.done() else []
        except OjsterError as error:
            log.warning("cannot fetch jobs for the push endpoint %s, retrying: %s", endpoint.id, error)
            await asyncio.sleep(PAUSE)
            return
        finally:
            fetching.cancel()  # which gives back what it was about to get
            changed.cancel()
            await asyncio.gather(fetching, changed, return_exceptions=True)
        if jobs and endpoint.worker_id not in await self._all.database.remembered(endpoints_by_worker):
            self._service.jobs.give_back(jobs)  # it was deleted while the claim waited
            return
        for job in jobs:
            self._calls[job.id] = job, asyncio.create_task(self._send(job))

    async def _beat(self, wait: float) -> bool:
        """Extend the leases of the jobs, and stop the calls of those that were cancelled."""
        pulse = await self._service.fleet.beat(self._heartbeat([job for job, _ in self._calls.values()], LEASE), wait)
        self._patience = pulse.timeout / SECOND
        if pulse.directive != self._directive:
            self._directive = pulse.directive
            self._changed.set()
        unwanted = [id for id in (*pulse.cancelled, *pulse.lost) if id in self._calls and id not in self._reporting]
        for id in unwanted:
            self._unwanted.add(id)
            self._calls[id][1].cancel()
        return pulse.woken or bool(unwanted)

    def _heartbeat(self, jobs: Sequence[Job], lease: int | None) -> Heartbeat:
        endpoint = self.endpoint
        attempts = {job.id: job.attempt for job in jobs}
        state = self._directive if endpoint.active or self._directive == "terminate" else "quiet"
        return Heartbeat(
            worker_id=endpoint.worker_name,
            active_jobs=tuple(attempts),
            attempts=attempts,
            lease=lease,
            state=state,
            queues=endpoint.queues,
            labels=("push",),
            concurrency=endpoint.concurrency,
            job_types=endpoint.job_types or None,
        )

    def _interval(self) -> float:
        return interval_between(LEASE / SECOND, self._patience, [job for job, _ in self._calls.values()])

    # One job

    async def _send(self, job: Job) -> None:
        """Send a job to the function, and report what it answers."""
        try:
            began_at = self._service.database.clock()
            outcome = await self._call(job)
            self._reporting.add(job.id)
            try:
                await self._judge(outcome, began_at)  # first, so that what is handed back is not claimed at once
            except OjsterError as error:
                log.warning("cannot note how the push endpoint %s works: %s", self.endpoint.id, error)
            await self._report(job, outcome)
        except asyncio.CancelledError:
            await self._give_up(job)
        except OjsterError as error:
            log.warning("cannot report what became of job %s; it runs again after its lease: %s", job.id, error)
        except Exception:
            log.exception("cannot send job %s; it runs again after its lease", job.id)
        finally:
            self._calls.pop(job.id, None)
            self._reporting.discard(job.id)
            self._unwanted.discard(job.id)
            self._changed.set()

    async def _call(self, job: Job) -> Outcome:
        endpoint, service = self.endpoint, self._service
        delivery_id = f"del_{new_id()}"
        body = b'{"job":%b,"worker_id":%b,"delivery_id":"%b"}' % (
            to_json(job),
            msgspec.json.encode(endpoint.worker_name),
            delivery_id.encode(),
        )
        policy = retry_policy(job)
        window = (endpoint.timeout + policy.max_interval) * max(job.max_attempts, 1)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"OJS-Push/1.0 (ojster/{__version__})",
            "X-OJS-Delivery-ID": delivery_id,
            "X-OJS-Job-ID": job.id,
            "X-OJS-Attempt": str(job.attempt),
            "X-OJS-Idempotency-Window": str(-(-window // SECOND)),
        }
        seconds, largest = endpoint.timeout / SECOND, service.database.settings.largest_job + MAX_ANSWER_OVERHEAD_BYTES
        if self._answered_at is None or time.monotonic() - self._answered_at > COLD_AFTER_SECONDS:
            seconds += COLD_START_SECONDS
        keys = endpoint.keys(service.database.clock())
        outcome = await self._post(endpoint.url, headers, body, keys, seconds, largest)
        if isinstance(outcome, Failed):
            details = (outcome.failure.details or {}) | {"delivery_id": delivery_id}
            failure = msgspec.structs.replace(outcome.failure, details=details)
            outcome = msgspec.structs.replace(outcome, failure=failure)
        return outcome

    async def _post(
        self, url: str, headers: dict[str, str], body: bytes, keys: list[str], seconds: float, largest: int
    ) -> Outcome:
        """Send a request; return what the answer says, or what it says that there is none."""
        try:
            received = await self._sender.post(url, headers, body, keys, seconds=seconds, largest=largest)
        except Refused as refusal:
            return NeverRan(f"it must not be called: {refusal}", is_final=True)
        except Unreachable as error:
            return NeverRan(f"it cannot be reached: {error}")
        except (TimeoutError, httpx.TimeoutException):
            return Failed(delivery_failure("timeout", f"The function did not answer within {seconds:g} s."), True)
        except (httpx.HTTPError, OSError) as error:
            why = str(error) or type(error).__name__
            return Failed(delivery_failure("network", f"The function did not answer: {why}."), True)
        self._answered_at = time.monotonic()
        now = self._service.database.clock()
        return read_answer(received.status, received.headers, received.body, now=now, is_cut=received.is_cut)

    async def _judge(self, outcome: Outcome, began_at: int) -> None:
        """Note whether the endpoint works: it gets fewer jobs if it does not."""
        endpoint, push = self.endpoint, self._all.push
        address = public_address(endpoint.url)
        if isinstance(outcome, NeverRan):
            error = f"{address}: {outcome.error}"
            log.warning("the push endpoint %s takes no jobs: %s", endpoint.id, error)
            await push.note_trouble(Trouble(endpoint.id, error, outcome.wish, outcome.is_final, tuple(self._calls)))
        elif isinstance(outcome, Failed) and outcome.is_trouble:
            self._failures += 1
            if self._failures >= TRIP_AFTER or endpoint.trips:
                error = f"{address}: {outcome.failure.message}"
                await push.note_trouble(Trouble(endpoint.id, error, calls=tuple(self._calls)))
        else:
            self._failures = 0
            if endpoint.trips and began_at >= endpoint.suspended_until:
                await push.recover(endpoint.id)

    async def _report(self, job: Job, outcome: Outcome) -> None:
        """Report an outcome. While the database is away, it is kept."""
        while True:
            try:
                refusal = await self._tell(job, outcome)
            except BackendUnavailable as error:
                log.warning("cannot report the outcome of job %s, retrying: %s", job.id, error)
                await asyncio.sleep(PAUSE)
                continue
            if isinstance(refusal, PayloadTooLarge):
                outcome = Failed(Failure("ResultTooLarge", refusal.message, retryable=False))
                continue
            if refusal is not None:
                log.info("the outcome of job %s does not count: %s", job.id, refusal.message)
            return

    async def _tell(self, job: Job, outcome: Outcome) -> OjsterError | None:
        """Report an outcome; return why it is refused, or ``None``."""
        jobs, worker, attempt, start = self._service.jobs, self.endpoint.worker_name, job.attempt, job.started_at
        match outcome:
            case Completed(result):
                acks = [Acknowledgement(job.id, result, worker, attempt, started_at=start)]
                (told,) = await jobs.acknowledge(acks)
            case Failed(failure):
                (told,) = await jobs.fail([FailureReport(job.id, failure, worker, attempt, started_at=start)])
            case NeverRan():
                (told,) = await jobs.release([hand_back(job, worker)])
            case Accepted():
                # From now on the function extends the lease, and nobody else does.
                self._calls.pop(job.id, None)
                await self._service.fleet.beat(self._heartbeat([job], None))
                return None
        return told if isinstance(told, OjsterError) else None

    async def _give_up(self, job: Job) -> None:
        """Confirm that a cancelled job has stopped, or hand a job back, whose call was ended with the server."""
        worker = self.endpoint.worker_name
        try:
            if job.id in self._unwanted:
                failure = Failure("JobCancelled", "The job was cancelled, or its lease was lost, while it ran.")
                reports = [FailureReport(job.id, failure, worker, job.attempt, started_at=job.started_at)]
                await self._service.jobs.fail(reports)
            else:
                await self._service.jobs.release([hand_back(job, worker)])
        except OjsterError as error:
            log.warning("cannot hand back job %s; it runs again after its lease: %s", job.id, error)
