"""Runs the function of a flow: gives it what is recorded, records what it asks for, and lets it wait without a worker.

The function runs in a loop of its own (``FlowLoop``). When every task of it waits, the next event is given to it: the
end of a record, or a timer, whichever came first. When there is none, what is new is sent to the server; unless a local
step runs, the flow then leaves the worker. Each event is given alone, and its order is recorded wherever another could
have come before it, so that the function takes the same way whenever it runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import copy_context
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw

from ojster.core.errors import Forbidden, InvalidRequest, OjsterError, PayloadTooLarge
from ojster.core.values import to_json
from ojster.handlers.codec import Codecs
from ojster.handlers.context import JobContext
from ojster.handlers.flow_calls import OuterCalls
from ojster.handlers.flow_errors import FlowChanged, RecordFailed, Restarted, change_of, described, run_again
from ojster.handlers.flow_loop import Never, NotInFlow
from ojster.handlers.flow_position import code_version, position_of
from ojster.handlers.flow_saying import as_record, clock, file_of, is_given_up, say
from ojster.handlers.flow_threads import StepThreads
from ojster.handlers.flow_transactions import Recorded, StepCommits
from ojster.handlers.outcomes import MAX_RESULT_BYTES, Reported
from ojster.handlers.raised import Raised, value_of
from ojster.workflows.flow import (
    BEGIN,
    CANCELLATION,
    TOLD,
    FlowRecord,
    FlowRecords,
    NewRecord,
    Turn,
)

T = TypeVar("T")

POLL_SECONDS: Final = 1.0
"""Pause between looks for ends while a local step runs and something else is awaited, in seconds."""

_BYTES: Final = 30_000
_BYTES_OF_RECORD: Final = 600
"""Estimates of what a run takes in memory, and what each record adds to it, in bytes."""


class FlowExecution(StepCommits):
    """One run of the function of a flow, from its start to the point where it waits or ends.

    Parameters
    ----------
    context:
        The job that runs it.
    records:
        The records of the flow.
    codecs:
        Encode what the flow records.
    """

    def __init__(self, context: JobContext, records: FlowRecords, codecs: Codecs) -> None:
        super().__init__(records, codecs)
        self.context = context
        self.workflow_id = records.workflow_id
        self._version = records.version
        self._outer = asyncio.get_running_loop()
        self.may_rest = False
        """Whether the run may go on later when the flow has left its worker: its owner then closes it."""
        self.is_resting = False
        self.seed, self.args = self._past.seed, self._past.args
        self.restarts_with: Raw | None = None
        self.state: Any = None
        """What the function of the flow shares with the handlers of its updates."""
        self.expected: dict[str, Any] = {}  # types of awaited messages, and handlers of awaited updates
        self._asked: set[str] = set()
        self._unstarted: dict[str, tuple[NewRecord, Callable[[], Awaitable[Any]]]] = {}
        """Local steps that begin when the order of the ends that the function has got is on disk."""
        self._steps: dict[str, asyncio.Task[None]] = {}
        self._large: dict[str, Raw] = {}
        """Results of local steps that are stored as files, until the function gets them."""
        self._new: dict[str, NewRecord] = {}
        self._said: set[str] = set()
        """Keys of the records that are on their way to the server."""
        self._given_up: list[str] = []
        self._writing: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None
        self._enter()
        self._never = Never()
        self.is_closed = False
        if CANCELLATION in self._records:
            self._make_due(self._records[CANCELLATION])

    async def run(self, function: Coroutine[Any, Any, Any], *beside: Coroutine[Any, Any, Any]) -> Any:
        """Run the function, and others beside it; return its result, or raise what it raises.

        Raises
        ------
        Reported
            The flow waits, or was cancelled: the server knows.
        """
        self._code: Any = getattr(function, "cr_code", None)
        self._main = self.loop.create_task(function)
        for coroutine in beside:
            self.loop.create_task(coroutine)
        return await self._hold()

    async def go_on(self, context: JobContext, records: FlowRecords) -> Any:
        """Go on in a new attempt of the job, with the records that have ended meanwhile; see ``run``."""
        before, self.is_resting = self._around, False
        self.context.__dict__ = context.__dict__  # whoever has kept the context has that of this attempt now
        self._enter()
        self.loop.adopt(before, self._around)
        self._past.new.clear()
        self._version = records.version
        self._offset = records.now - clock()
        self._take_in_all(records.records)
        return await self._hold()

    def _enter(self) -> None:
        """Set up what belongs to the attempt in which the function runs."""
        job = self.context.job
        self._around = copy_context()
        self._calls = OuterCalls(job, self._finish, self._pump)
        self._begin = self._calls.begin
        self.threads = StepThreads(self.context)
        self._finished: asyncio.Future[Any] = self._outer.create_future()
        self._woken_at = job.enqueued_at or 0

    async def _hold(self) -> Any:
        self._outer.call_soon(self._pump)
        try:
            return value_of(await self._finished)
        finally:
            self.threads.leave()
            if not self.is_resting:
                self.close()

    @property
    def awaits_job(self) -> bool:
        """Whether the function waits for a job, or other steps of the graph."""
        return any(key in self._records and self._records[key].kind == "run" for key in self._waiting)

    @property
    def weight(self) -> int:
        """An estimate of the memory that the run takes, in bytes."""
        return _BYTES + _BYTES_OF_RECORD * len(self._asked) + self._received

    def close(self) -> None:
        """End the run where it is."""
        self.is_closed = True
        for task in (*self._calls.running, *self._steps.values(), *([] if self._writing is None else [self._writing])):
            task.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._main is not None and self._main.done() and not self._main.cancelled():
            self._main.exception()  # it is known, also if the flow has failed for another reason
        self.loop.abandon()

    def _finish(self, outcome: Any) -> None:
        if not self._finished.done():
            self._finished.set_result(outcome)

    # What the function asks for

    def key_of(self, name: str, chosen: str | None) -> str:
        """Return the key of what the running task asks for."""
        self._check_open()
        return self.keys.key_of(name, chosen)

    async def never(self) -> Any:
        """Wait for ever: what a function that catches everything gets when its flow has left.

        It needs nothing of its module: Python closes what is left when it ends, and takes down modules before.
        """
        await self._never

    async def ask(self, record: NewRecord, step: Callable[[], Awaitable[Any]] | None = None) -> Raw:
        """Return the result of a record, new or known, when its end is the next event.

        Parameters
        ----------
        record:
            What the function asks for.
        step:
            Runs a local step.

        Raises
        ------
        FlowChanged
            Something else is recorded under its key.
        RecordFailed
            It has failed.
        """
        key = record.key
        if key in self._asked:
            raise self._stop(FlowChanged(f"The key {key!r} is used twice. Give one of them another: flow.keyed(…)."))
        self._asked.add(key)
        known = self._records.get(key)
        if known is not None:
            if (change := change_of(known, record)) is not None:
                raise self._stop(change)
            self._past.unreached -= 1
        else:
            self.is_replaying = False
            self._past.new.add(key)
        future = self._waiting[key] = self.loop.create_future()
        self.loop.unwind(future)
        if known is not None and known.ended_at is not None:
            self._make_due(known)
        elif known is None and step is not None:
            self._unstarted[key] = (record, step)
        elif known is None:
            self._new[key] = record
            self._records[key] = FlowRecord(key, record.kind, record.name, record.asked_at, record.input)
        try:
            ended: FlowRecord = await future
        except asyncio.CancelledError:
            if not self.is_closed:
                self._give_up(key)
            raise
        if ended.error is not UNSET:
            raise RecordFailed(msgspec.json.decode(ended.error))
        return Raw(b"null") if ended.result is UNSET else ended.result

    def mark(self, id: str) -> bool:
        """Return whether the function takes the new way at a changed place: there is a mark, or nothing behind it.

        A sleep leaves no record: a run that came here before it waited last has passed the place, too.
        """
        self._check_open()
        key = self.keys.mark_of(id)
        if key in self._records:
            self._past.unreached -= 1
        elif self._past.unreached == 0 and self.loop.now >= self._past.waited_at:
            self._new[key] = NewRecord(key, "patch", id, self.loop.now)
        else:
            return False
        return True

    def _check_open(self) -> None:
        if asyncio._get_running_loop() is not self.loop:
            raise RuntimeError("A flow can be asked only by its function, not in a local step or another thread.")
        if self._failure is not None:
            raise self._failure

    def _stop(self, failure: BaseException) -> BaseException:
        """Let the flow end with a failure, whatever its function catches."""
        self._failure = self._failure or failure
        return failure

    def _give_up(self, key: str) -> None:
        """Note that the function no longer waits for something."""
        self._waiting.pop(key, None)
        if self._unstarted.pop(key, None) is not None:
            return
        if (step := self._steps.pop(key, None)) is not None:
            step.cancel()
            if self._new.pop(key, None) is None and key in self._said:
                self._given_up.append(key)
        elif self._new.pop(key, None) is not None:
            self._records.pop(key, None)
        elif (known := self._records.get(key)) is not None and not is_given_up(known):
            self._given_up.append(key)

    def tell(self, record: NewRecord) -> None:
        """Say something that the function does not wait for, unless it was said before."""
        self._check_open()
        self._new.pop(record.key, None)
        if (news := self._past.news(record)) is not None:
            self._new[news.key] = news

    async def outside(self, call: Coroutine[Any, Any, T]) -> T:
        """Return the result of a call in the worker's loop. The function gets no event meanwhile."""
        return await self._calls.result_of(call, self.loop.create_future())

    # Local steps

    async def _run_step(self, record: NewRecord, step: Callable[[], Awaitable[Any]], *, is_alone: bool) -> None:
        """Run a local step. If nothing else can happen to the function meanwhile, record its end at once."""
        try:
            value = await step()
        except BaseException as raised:  # also one that is no Exception: it ends the step, and not the worker
            ended = self._failed(record, raised)
        else:
            if isinstance(value, Recorded):
                self._end_transaction(record, value)
                return
            try:
                ended = await self._succeeded(record, value)
            except OjsterError as failure:  # the file store cannot be reached
                self._finish(Raised(run_again(self.context.job, failure)))
                return
        if ended.error is not UNSET and (record.key not in self._steps or self.is_closed):
            return  # nobody waits for it any more
        self._new[record.key] = ended
        if is_alone:
            await self._take_turn(suspends=False)
        else:
            self._outer.call_soon(self._pump)

    async def _succeeded(self, record: NewRecord, value: object) -> NewRecord:
        """Return the record of a local step with its result; a large result is stored as a file.

        Raises
        ------
        OjsterError
            The file cannot be stored at the moment.
        """
        try:
            result = Raw(self.codecs.encode_value(to_json(value)))
            is_small = len(memoryview(result)) <= MAX_RESULT_BYTES
            file = None if is_small else await file_of(self.context, record.name, bytes(result))
        except OjsterError:
            raise
        except Exception as refusal:  # it is not JSON, too large, or a codec fails
            return self._failed(record, refusal)
        ended_at = self.now_after(record)
        if file is None:
            return msgspec.structs.replace(record, result=result, ended_at=ended_at)
        self._large[record.key] = result
        return msgspec.structs.replace(record, result_file=file, ended_at=ended_at)

    def _failed(self, record: NewRecord, error: BaseException) -> NewRecord:
        """Return the record of a local step with its error."""
        return msgspec.structs.replace(record, error=Raw(to_json(described(error))), ended_at=self.now_after(record))

    # Events

    def _pump(self) -> None:
        """Run the function as far as it comes."""
        if self.is_closed or self._finished.done():
            return
        try:
            while True:
                self.loop.run_ready()
                if self._failure is not None:
                    self._finish(Raised(self._failure))
                    return
                if self._calls.running:
                    return
                if self._main is None or self._main.done() or self.restarts_with is not None:
                    self._write_last()
                    return
                if not self._give_next():
                    break
            self._wait()
        except BaseException as error:
            self._finish(Raised(error))

    # The server

    def _wait(self) -> None:
        """Send what is new; leave the worker unless a local step runs."""
        self.is_replaying = False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._writing is not None:
            return
        has_chunks = bool(self._unstarted) and any(record.kind == "chunk" for record in self._new.values())
        if self._unstarted and (self._seen or self._given_up or has_chunks or self._must_begin()):
            # After a crash the function could take another way, while the steps have run. So that is recorded first.
            # Readers of a stream get what was appended before a step, which may take long, before what it appends.
            self._write(suspends=False)
            return
        timer = self.loop.next_timer
        is_alone = len(self._waiting) == 1 and timer is None and not self._new and not self._given_up
        begun, self._unstarted = self._unstarted, {}
        for key, (record, step) in begun.items():
            self._steps[key] = self._begin(self._run_step(record, step, is_alone=is_alone))
        if begun and is_alone:
            return  # nothing is to be said, and nothing else can end
        is_busy = any(key not in self._new for key in self._steps)
        steps_ended = any(record.kind == "step" for record in self._new.values())
        if (self._new or self._given_up) and (is_busy or steps_ended):
            self._write(suspends=False)
        elif not is_busy and not self._waiting and timer is None:
            self._finish(Raised(NotInFlow("Waiting for something that is neither asked of the flow nor a time")))
        elif not is_busy:
            self._write(suspends=True)
        else:
            pauses = [] if timer is None else [max(0, timer - self._now) / 1e6]
            if len(self._waiting) > len(self._steps):
                pauses.append(POLL_SECONDS)
            if pauses:
                self._alarm = self._outer.call_later(min(pauses), self._look)

    def _look(self) -> None:
        """Fire the timers that are due, or ask the server what has ended."""
        self._alarm = None
        timer = self.loop.next_timer
        if (timer is None or timer > self._now) and self._writing is None:
            self._write(suspends=False)
        else:
            self._pump()

    def _write(self, *, suspends: bool) -> None:
        self._writing = self._begin(self._take_turn(suspends=suspends))

    def _write_last(self) -> None:
        """End the flow when nothing is left to be said to the server."""
        assert self._main is not None
        if self.restarts_with is None:
            for task in self.loop.tasks:
                task.cancel()
            self.loop.run_ready()
        self._new = {key: record for key, record in self._new.items() if record.kind in TOLD}  # nobody awaits others
        is_cancelled = self._main.cancelled() and CANCELLATION in self._records
        if self._writing is not None:
            return
        if self.restarts_with is not None:
            self._writing = self._begin(self._take_turn(suspends=False, restarts=True))
        elif is_cancelled or self._given_up or self._new:
            self._writing = self._begin(self._take_turn(suspends=False, was_cancelled=is_cancelled))
        elif self._main.cancelled():
            self._finish(Raised(asyncio.CancelledError("The function of the flow was cancelled.")))
        elif (error := self._main.exception()) is not None:
            self._finish(Raised(error))
        else:
            self._finish(self._main.result())

    async def _take_turn(self, *, suspends: bool, was_cancelled: bool = False, restarts: bool = False) -> None:
        job = self.context.job
        sent, self._new = self._new, {}
        self._said = set(sent)
        self._past.note_told(sent)
        seen, self._seen, given_up, self._given_up = self._seen, [], self._given_up, []
        records = list(sent.values())
        if restarts:
            begin = NewRecord(BEGIN, "begin", "", self.loop.now + 1, code_version(self._code))
            records.append(msgspec.structs.replace(begin, result=self.restarts_with or UNSET))
        elif not self._past.has_begun and (suspends or self.loop.now != self.loop.began_at):
            records.insert(0, NewRecord(BEGIN, "begin", "", self.loop.began_at, code_version(self._code)))
        self._past.has_begun = self._past.has_begun or len(records) > 0
        turn = Turn(
            job.id,
            self.context.worker_id,
            job.attempt,
            job.started_at,
            tuple(records),
            tuple(seen),
            tuple(given_up),
            suspends,
            self.loop.next_timer if suspends else None,
            self._version,
            self._past.last,
            was_cancelled,
            restarts=restarts,
            position=position_of(self._code, self.loop, self.keys, self._waiting, self._records, self.expected)
            if suspends
            else None,
            flow=job.node,
        )
        try:
            answer = await say(self.context.client.flows, turn)
        except (InvalidRequest, PayloadTooLarge, Forbidden) as refusal:  # it would be refused again
            self._finish(Raised(refusal))
            return
        except OjsterError as error:
            self._finish(Raised(run_again(job, error)))
            return
        finally:
            self._writing, self._said = None, set()
        if answer.suspended or restarts:
            self.is_resting = self.may_rest and suspends
            self._finish(Raised(Restarted() if restarts else Reported()))
            return
        self._version = answer.version
        self._offset = max(self._offset, answer.now - clock())
        for key, record in sent.items():
            if record.kind == "step" and self._steps.pop(key, None) is not None:
                self._take_in(as_record(record, self._large.pop(key, record.result)))
        self._take_in_all(answer.records)
        self._pump()

    def _take_in_all(self, ends: Iterable[FlowRecord]) -> None:
        """Take in what others have ended, once each."""
        for ended in sorted(ends, key=lambda end: end.number or 0):
            known = self._records.get(ended.key)
            if known is None or known.ended_at is None:
                self._take_in(ended)
            self._past.last = max(self._past.last, ended.number or 0)

    def _take_in(self, record: FlowRecord) -> None:
        """Take in the end of a record, which is on disk."""
        self._records[record.key] = record
        if record.key in self._waiting or record.key == CANCELLATION:
            self._make_due(record)
