"""Runs the function of a flow: gives it what is recorded, records what it asks for, and lets it wait without a worker.

The function runs in a loop of its own (``FlowLoop``). When every task of it waits, the next event is given to it: the
end of a record, or a timer, whichever came first. When there is none, what is new is sent to the server; unless a local
step runs, the flow then leaves the worker. Each event is given alone, and its order is recorded wherever another could
have come before it, so that the function takes the same way whenever it runs again.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ojster.core.errors import Forbidden, InvalidRequest, OjsterError, PayloadTooLarge
from ojster.core.values import to_json
from ojster.handlers.codec import Codecs
from ojster.handlers.context import JobContext
from ojster.handlers.flow_calls import OuterCalls
from ojster.handlers.flow_errors import FlowChanged, RecordFailed, Restarted, change_of, described, run_again
from ojster.handlers.flow_keys import FlowKeys
from ojster.handlers.flow_loop import FlowLoop, Never, NotInFlow
from ojster.handlers.flow_past import FlowPast
from ojster.handlers.flow_position import code_version, position_of
from ojster.handlers.flow_saying import as_record, clock, counts, is_given_up, say, small_enough
from ojster.handlers.flow_threads import StepThreads
from ojster.handlers.outcomes import Reported
from ojster.handlers.raised import Raised, value_of
from ojster.workflows.flow import (
    BEGIN,
    CANCELLATION,
    TOLD,
    FlowPosition,
    FlowRecord,
    FlowRecords,
    NewRecord,
    Seen,
    Turn,
)

T = TypeVar("T")

POLL_SECONDS: Final = 1.0
"""Pause between looks for ends while a local step runs and something else is awaited, in seconds."""

_UNPLACED: Final = 1 << 62


class FlowExecution:
    """One run of the function of a flow, from its start to the point where it waits or ends.

    Parameters
    ----------
    context:
        The job that runs it.
    records:
        The records of the flow.
    codecs:
        Encode what the flow records; none by default.
    """

    def __init__(self, context: JobContext, records: FlowRecords, codecs: Codecs | None = None) -> None:
        self.context = context
        self.codecs = codecs or Codecs(())
        self.workflow_id = records.workflow_id
        self._version = records.version
        self._outer = asyncio.get_running_loop()
        self._offset = records.now - clock()
        self._past = FlowPast(records, self.codecs)
        self.seed, self.args = self._past.seed, self._past.args
        self.restarts_with: Raw | None = None
        self._records = self._past.records
        self.state: Any = None
        """What the function of the flow shares with the handlers of its updates."""
        self.expected: dict[str, Any] = {}  # types of awaited messages, and handlers of awaited updates
        self.keys = FlowKeys()
        self.loop = FlowLoop(self._past.began_at, self.keys.note_task)  # type: ignore[abstract]  # what is missing raises an error
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._due: list[tuple[int, int, bool, str]] = []
        """Ends that the function waits for: place, time, whether it is the cancellation, key."""
        self.is_replaying = len(self._records) > 0
        """Whether the function does again what it has done before."""
        self._asked: set[str] = set()
        self._unplaced: list[tuple[str, int]] = []
        """Ends that the function has got when it waited for nothing else, with the times."""
        self._calls = OuterCalls(context.job, self._finish, self._pump)
        self._begin = self._calls.begin
        self._unstarted: dict[str, tuple[NewRecord, Callable[[], Awaitable[Any]]]] = {}
        """Local steps that begin when the order of the ends that the function has got is on disk."""
        self._steps: dict[str, asyncio.Task[None]] = {}
        self.threads = StepThreads(context)
        self._new: dict[str, NewRecord] = {}
        self._seen: list[Seen] = []
        self._said: set[str] = set()
        """Keys of the records that are on their way to the server."""
        self._given_up: list[str] = []
        self._writing: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._main: asyncio.Task[Any] | None = None
        self._finished: asyncio.Future[Any] = self._outer.create_future()
        self._failure: BaseException | None = None
        self._woken_at = context.job.enqueued_at or 0
        """When the flow was made to run: what ended before was known when it ran last."""
        self._never = Never()
        self.is_closed = False
        if CANCELLATION in self._records:
            self._make_due(self._records[CANCELLATION])

    # The owner

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
        self._outer.call_soon(self._pump)
        try:
            return value_of(await self._finished)
        finally:
            self._close()

    def _close(self) -> None:
        self.is_closed = True
        self.threads.leave()
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
        """Return whether the function takes the new way at a changed place: there is a mark, or nothing behind it."""
        self._check_open()
        key = self.keys.mark_of(id)
        if key in self._records:
            self._past.unreached -= 1
        elif self._past.unreached == 0:
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
        result: Raw | UnsetType = UNSET
        error: Raw | UnsetType = UNSET
        try:
            result = Raw(small_enough(record.name, self.codecs.encode_value(to_json(await step()))))
        except BaseException as raised:  # also one that is no Exception: it ends the step, and not the worker
            if record.key not in self._steps or self.is_closed:  # nobody waits for it any more
                return
            error = Raw(to_json(described(raised)))
        ended_at = max(self._now, record.asked_at)
        self._new[record.key] = msgspec.structs.replace(record, result=result, error=error, ended_at=ended_at)
        if is_alone:
            await self._take_turn(suspends=False)
        else:
            self._outer.call_soon(self._pump)

    # Events

    @property
    def _now(self) -> int:
        """The time of the server, as far as it is known here."""
        return clock() + self._offset

    def _make_due(self, record: FlowRecord) -> None:
        if not is_given_up(record):
            at = record.seen_at if record.seen_at is not None else record.ended_at
            is_cancellation = record.key == CANCELLATION
            # A cancellation that was not seen comes last of all that is known: more may follow from the others.
            place = _UNPLACED + is_cancellation if record.place is None else record.place
            heapq.heappush(self._due, (place, at or 0, is_cancellation, record.key))

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

    def _give_next(self) -> bool:
        """Give the function its next event; return whether there was one."""
        while self._due and self._due[0][3] not in self._waiting and not self._due[0][2]:
            heapq.heappop(self._due)  # no longer awaited
        timer = self.loop.next_timer
        if not self._due:
            if timer is None or timer > self._now:
                return False
            self._fire(timer)
            return True
        place, ended_at, is_cancellation, key = self._due[0]
        is_clear = len(self._waiting) == 1 and timer is None and not is_cancellation
        at = max(ended_at, self.loop.now + 1)  # later than all before, so that it is clear what was seen before what
        was_clear = timer is None and not is_cancellation and self._past.has_one_of(self._waiting)
        if place >= _UNPLACED and not is_clear and not was_clear:
            at = max(at, self._past.latest)
        if timer is not None and timer <= at:
            self._fire(timer)
            return True
        heapq.heappop(self._due)
        self._give(key, at, is_placed=place < _UNPLACED, is_clear=is_clear)
        return True

    def _fire(self, timer: int) -> None:
        self.is_replaying = self.is_replaying and (timer < self._woken_at and self._past.known > 0)
        self.loop.fire()

    def _give(self, key: str, at: int, *, is_placed: bool, is_clear: bool) -> None:
        record = self._records[key]
        is_old = is_placed or (record.ended_at or 0) < self._woken_at
        self.is_replaying = self.is_replaying and is_old
        self._past.known -= 1
        if key == CANCELLATION and not is_placed:  # it may come at any time, so that the order of all others counts
            for earlier, seen_at in self._unplaced:
                self._note_place(earlier, seen_at)
            self._unplaced = []
        if is_placed or (is_clear and at == record.ended_at):
            self._unplaced += [] if is_placed else [(key, at)]
        else:
            self._note_place(key, at)
        self.loop.now = at
        if key == CANCELLATION:
            assert self._main is not None
            self._main.cancel()
            return
        future = self._waiting.pop(key)
        if not future.done():
            future.set_result(record)

    def _note_place(self, key: str, at: int) -> None:
        self._past.place += 1
        self._seen.append(Seen(key, self._past.place, at))

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
        if self._unstarted and (self._seen or self._given_up or has_chunks):
            # After a crash the function could take another way, while the steps have run. So that is recorded first.
            # Readers of a stream get what was appended before a step, which may take long, before what it appends.
            self._write(suspends=False)
            return
        timer = self.loop.next_timer
        is_alone = len(self._waiting) == 1 and timer is None and not self._new and not self._given_up
        for key, (record, step) in self._unstarted.items():
            self._steps[key] = self._begin(self._run_step(record, step, is_alone=is_alone))
        self._unstarted = {}
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

    def _position(self) -> FlowPosition:
        return position_of(self._code, self.loop, self.keys, self._waiting, self._records, self.expected)

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
            len(self._past.ended),
            was_cancelled,
            restarts=restarts,
            position=self._position() if suspends else None,
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
        self._past.ended |= {key for key in given_up if key in self._records and self._records[key].kind != "step"}
        if answer.suspended or restarts:
            self._finish(Raised(Restarted() if restarts else Reported()))
            return
        self._version = answer.version
        self._offset = max(self._offset, answer.now - clock())
        for key, record in sent.items():
            if record.kind == "step" and self._steps.pop(key, None) is not None:
                self._take_in(as_record(record))
        for ended in answer.records:
            known = self._records.get(ended.key)
            if ended.key not in self._past.ended and (known is None or known.ended_at is None):
                self._take_in(ended)
        self._pump()

    def _take_in(self, record: FlowRecord) -> None:
        """Take in the end of a record, which is on disk."""
        self._records[record.key] = record
        if counts(record):
            self._past.ended.add(record.key)
        if record.key in self._waiting or record.key == CANCELLATION:
            self._make_due(record)
