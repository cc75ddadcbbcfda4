"""Local steps whose record is written in one transaction with what their functions write to the application's tables.

The lease of the flow's job is checked in that transaction, under the lock of the job: a worker that has lost it writes
nothing. So what is recorded and what is written happen together, and once.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
)
from functools import partial
from typing import Any, Final, Literal

from msgspec import Raw, Struct, structs

from ojster.capabilities import all_extensions
from ojster.core.errors import BackendUnavailable, Conflict, InvalidRequest, OjsterError
from ojster.core.values import to_json
from ojster.handlers.context import JobContext
from ojster.handlers.flow_calls import OuterCalls
from ojster.handlers.flow_errors import run_again
from ojster.handlers.flow_events import FlowEvents
from ojster.handlers.flow_saying import as_record
from ojster.handlers.flow_threads import StepThreads
from ojster.handlers.outcomes import MAX_RESULT_BYTES
from ojster.handlers.raised import Raised, original
from ojster.jobs.extension import install
from ojster.storage.transaction import Transaction
from ojster.workflows.flow import FlowRecord, NewRecord, Seen, Turn
from ojster.workflows.run.flow_turns import take_turns

ATTEMPTS: Final = 5
"""How often a step is called that collides with other transactions."""

PAUSE_SECONDS: Final = 0.02
"""Pause before a step is called again, in seconds; it doubles each time."""

_COLLISIONS: Final = ("40001", "40P01")
"""SQLSTATEs of a serialization failure and a deadlock: PostgreSQL has rolled back the transaction."""

_OUTAGES: Final = ("08", "57P", "53")
"""Beginnings of the SQLSTATEs of a lost connection, a server that stops, and one without resources."""


class Recorded(Struct, frozen=True):
    """How a step in a transaction of the application has ended: with a record that is on disk, or not at all.

    Parameters
    ----------
    record:
        The record.
    failure:
        How the attempt of the flow ends instead; nothing is recorded.
    ends:
        What others have ended for the flow, if it is to be cancelled.
    """

    record: FlowRecord | None = None
    failure: BaseException | None = None
    ends: Sequence[FlowRecord] = ()


class StepCommits(FlowEvents):
    """The part of the run of a flow that waits for the commits of steps in transactions."""

    context: JobContext
    threads: StepThreads
    is_closed: bool
    _calls: OuterCalls
    _outer: asyncio.AbstractEventLoop
    _steps: dict[str, asyncio.Task[None]]
    _unstarted: dict[str, tuple[NewRecord, Callable[[], Awaitable[Any]]]]
    _finish: Callable[[Any], None]
    _take_in: Callable[[FlowRecord], None]
    _take_in_all: Callable[[Sequence[FlowRecord]], None]
    _pump: Callable[[], None]

    def now_after(self, record: NewRecord) -> int:
        """Return the time at which a step has ended."""
        return max(self._now, record.asked_at)

    def hold(self, record: NewRecord) -> bool:
        """Give the function no event until ``release``; return whether it still waits for the step."""
        self._pump()  # what is due already comes before the end of the step, such as a timeout
        if (task := self._steps.get(record.key)) is None or self.is_closed:
            return False
        self._calls.running.add(task)
        return True

    def end_of(self, record: NewRecord) -> Seen | None:
        """Return when a held step ends, with its place before whatever comes now; ``None``: nothing else can come.

        Otherwise an end that becomes known meanwhile, or a timer, would come first, and the function could give up what
        is written.
        """
        timer = self.loop.next_timer
        if timer is None and len(self._waiting) == 1:
            return None
        self._past.place += 1
        at = self._now if timer is None else min(self._now, timer - 1)
        return Seen(record.key, self._past.place, max(at, record.asked_at))

    def release(self, record: NewRecord) -> None:
        """Give the function events again."""
        if (task := self._steps.get(record.key)) is not None:
            self._calls.running.discard(task)
            self._outer.call_soon(self._pump)

    def _end_transaction(self, record: NewRecord, ended: Recorded) -> None:
        if ended.record is None:
            self._finish(Raised(ended.failure or AssertionError("a step in a transaction has no record")))
            return
        if self._steps.pop(record.key, None) is not None:
            self._take_in(ended.record)
        self._take_in_all(ended.ends)

    def _must_begin(self) -> bool:
        """Return whether the beginning of the flow, which its first turn says, must be on disk before steps begin."""
        has_begun = self._past.has_begun or self.loop.now == self.loop.began_at
        return not has_begun and any(isinstance(step, StepInTransaction) for _, step in self._unstarted.values())


class _NobodyWaits(Exception):
    """The function no longer waits for the step, or its flow has left the worker."""


class StepInTransaction:
    """A local step with ``in_transaction=``.

    Parameters
    ----------
    execution:
        The run of the flow.
    record:
        What the flow asks for.
    where:
        ``True``, or what opens a connection: see ``Flow.step``.
    function:
        Takes the connection.
    """

    def __init__(self, execution: StepCommits, record: NewRecord, where: Any, function: partial[Any]) -> None:
        self._execution = execution
        self._asked = record
        self._where = where
        self._function = function
        self._waits = inspect.iscoroutinefunction(function.func)
        self._loop: asyncio.AbstractEventLoop
        self._began: object = None
        self._ends: Sequence[FlowRecord] = ()
        self._seen: tuple[Seen, ...] = ()
        self._phase: Literal["opens", "runs", "lost", "commits"] = "opens"

    def _call(self, connection: Any) -> Any:
        return self._function.func(connection, *self._function.args, **self._function.keywords)

    async def __call__(self) -> Recorded:
        """Run the step.

        Returns
        -------
        Recorded
            Its record; or how the attempt of the flow ends, because the step cannot run, or may have been recorded.

        Raises
        ------
        BaseException
            What the function has raised, or why the database refuses what it has written. Nothing was written.
        """
        self._loop = asyncio.get_running_loop()
        for attempt in range(1, ATTEMPTS + 1):
            self._phase = "opens"
            try:
                new = await self._once()
                record = as_record(new, new.result)
                for end in self._seen:
                    record = structs.replace(record, place=end.place, seen_at=end.at)
                return Recorded(record, ends=self._ends)
            except BaseException as raised:
                error = original(raised)
                if attempt == ATTEMPTS or not _collides(error):
                    if (failure := self._failure_of(error)) is not None:
                        return Recorded(failure=failure)
                    raise
            finally:
                self._execution.release(self._asked)
            await asyncio.sleep(PAUSE_SECONDS * 2**attempt * random.random())  # two that collided go on one by one
        raise AssertionError("the last attempt returns or raises")

    def _failure_of(self, error: BaseException) -> BaseException | None:
        """Return how the attempt of the flow ends after an error that is not one of the step itself; else ``None``."""
        if self._phase == "runs" or isinstance(error, asyncio.CancelledError | _NobodyWaits):
            return None
        if isinstance(error, Conflict | BackendUnavailable):
            return run_again(self._execution.context.job, error)
        if self._phase == "lost" or _is_outage(error):  # what was committed is in the records when the flow runs again
            return run_again(self._execution.context.job, BackendUnavailable(f"The connection of a step: {error}"))
        is_refused = self._phase == "opens" or isinstance(error, OjsterError) or not isinstance(error, Exception)
        return error if is_refused else None

    async def _once(self) -> NewRecord:
        database: Any = getattr(self._execution.context.client, "database", None)
        if database is None:
            raise InvalidRequest(
                f"The step {self._asked.name!r} has in_transaction=, and its worker talks to a server over HTTP. Run "
                "the flow in a worker with the URL of the database."
            )
        if database.kind == "sqlite":
            return await self._in_file(database)
        if self._waits:
            async with await _opened_later(self._where, database) as connection:
                return await self._beside(connection, database)
        return await self._execution.threads.call(partial(self._in_thread, database))

    # SQLite

    async def _in_file(self, database: Any) -> NewRecord:
        from ojster.storage.sqlite.step_connection import StepConnection

        if self._where is not True:
            raise InvalidRequest(
                f"The step {self._asked.name!r} has in_transaction={self._where!r}, and the jobs are in SQLite. A "
                " connection of your own would lock its only writer while the function runs, or leads to another "
                "file. Pass in_transaction=True: the function gets a connection to this file."
            )
        with database.reading() as lane:
            connection = StepConnection(lane)
            self._phase = "runs"
            if self._waits:
                value = await self._call(connection)
            else:
                value = await self._execution.threads.call(partial(self._call, connection))
            new = self._outcome(value)
        turn = await self._admitted(new)

        def commit() -> None:
            with database.transaction_of_caller() as tx:
                self._ends = _record(tx, turn)
                connection.write(tx)

        await self._execution.threads.call(commit)
        return turn.records[0]

    # PostgreSQL

    def _in_thread(self, database: Any) -> NewRecord:
        from ojster.storage.postgres.caller_transaction import executes, run_in_caller_transaction

        with _opened(self._where, database) as connection:
            execute = executes(connection)
            run_in_caller_transaction(execute, self._look, database.settings, database.url)
            self._phase = "runs"
            try:
                new = self._outcome(self._call(connection))
            except Exception as error:
                if _is_outage(error):
                    with self._noting_loss():
                        run_in_caller_transaction(execute, _began, database.settings, database.url)
                raise
            turn = asyncio.run_coroutine_threadsafe(self._admitted(new), self._loop).result()
            run_in_caller_transaction(execute, partial(self._record_beside, turn), database.settings, database.url)
        return turn.records[0]

    async def _beside(self, connection: Any, database: Any) -> NewRecord:
        from ojster.storage.postgres.caller_transaction import run_in_caller_transaction_async

        await run_in_caller_transaction_async(connection, self._look, database.settings, database.url)
        self._phase = "runs"
        try:
            new = self._outcome(await self._call(connection))
        except Exception as error:
            if _is_outage(error):
                with self._noting_loss():
                    await run_in_caller_transaction_async(connection, _began, database.settings, database.url)
            raise
        turn = await self._admitted(new)
        record = partial(self._record_beside, turn)
        await run_in_caller_transaction_async(connection, record, database.settings, database.url)
        return turn.records[0]

    # Both

    def _look(self, tx: Transaction) -> None:
        """Refuse a connection that leads to another database, before the function writes to it."""
        if not tx.find_jobs([self._execution.context.job.id]):
            raise InvalidRequest(
                f"The connection of the step {self._asked.name!r} leads to a database without the job of this flow. "
                "in_transaction= has to lead to the database of the App."
            )
        self._began = _began(tx)

    @contextmanager
    def _noting_loss(self) -> Iterator[None]:
        """Note that the connection is lost if it does not answer, after an error of the function.

        The function may have lost a connection of its own, too, and this one lives: then the error is that of the step.
        """
        try:
            yield
        except Exception as answer:
            if _is_outage(answer) or not _sqlstate(answer):
                self._phase = "lost"

    def _record_beside(self, turn: Turn, tx: Transaction) -> None:
        if _began(tx) != self._began:
            raise InvalidRequest(
                f"The function of the step {self._asked.name!r} has ended the transaction. What it has written until "
                "then is written without a record of the step. Leave the commit to the end of the step."
            )
        self._ends = _record(tx, turn)

    def _outcome(self, value: Any) -> NewRecord:
        result = self._execution.codecs.encode_value(to_json(value))
        if len(result) > MAX_RESULT_BYTES:  # a file would be stored in a transaction of its own
            raise ValueError(
                f"The result of the step {self._asked.name!r} takes {len(result)} bytes; in a transaction of the "
                f"application, at most {MAX_RESULT_BYTES} are allowed. Return less, or leave in_transaction= out."
            )
        return structs.replace(self._asked, result=Raw(result))

    async def _admitted(self, new: NewRecord) -> Turn:
        """Return what is to be recorded. From here on the function gets no event: it cannot give up the step."""
        if not self._execution.hold(self._asked):
            raise _NobodyWaits
        self._phase = "commits"
        end = self._execution.end_of(new)
        new = structs.replace(new, ended_at=self._execution.now_after(new) if end is None else end.at)
        self._seen = () if end is None else (end,)
        context = self._execution.context
        job = context.job
        turn = Turn(
            job.id, context.worker_id, job.attempt, job.started_at, (new,), self._seen, ended=self._execution.last_end
        )
        return await context.client.flows.admit(turn)


def _record(tx: Transaction, turn: Turn) -> Sequence[FlowRecord]:
    """Record the outcome of a step; return what others have ended for the flow, if it is to be cancelled.

    Raises
    ------
    OjsterError
        The worker has lost the lease of the job, or the step is recorded already.
    """
    if tx.memory.is_callers:
        install(tx.memory, all_extensions())
    (answer,) = take_turns(tx, [turn])
    if isinstance(answer, OjsterError):
        raise answer
    return answer.records


def _began(tx: Transaction) -> object:
    """Return when the transaction on a connection began, which tells it from others."""
    return tx.execute("SELECT CAST(now() AS text)")


def _opened(where: Any, database: Any) -> AbstractContextManager[Any]:
    """Open a connection with a transaction that the end of the block commits.

    Raises
    ------
    TypeError
        ``where`` does not open one.
    """
    if hasattr(where, "in_atomic_block"):
        return _atomic(where.alias)
    opened = _connected(database.conninfo) if where is True else _open(where)
    if hasattr(opened, "__enter__"):
        block: AbstractContextManager[Any] = opened
        return block
    if inspect.iscoroutine(opened):
        opened.close()
    raise _not_opened(where, "plain function", "a connection in a block: with …")


async def _opened_later(where: Any, database: Any) -> AbstractAsyncContextManager[Any]:
    """Open an asynchronous connection. See ``_opened``."""
    opened = _connected_later(database.conninfo) if where is True else _open(where)
    if inspect.iscoroutine(opened):
        opened = await opened
    if hasattr(opened, "__aenter__"):
        block: AbstractAsyncContextManager[Any] = opened
        return block
    raise _not_opened(where, "coroutine function", "an asynchronous connection in a block: async with …")


def _open(where: Any) -> Any:
    if hasattr(where, "begin") and not hasattr(where, "commit"):  # an engine, or a maker of sessions
        return where.begin()
    if hasattr(where, "getconn"):  # a pool of psycopg
        return where.connection()
    return where() if callable(where) and not hasattr(where, "commit") else None  # a connection commits itself


@contextmanager
def _connected(conninfo: str) -> Iterator[Any]:
    import psycopg

    # In this block the function cannot commit by itself. Behind a pooler, prepared statements would outlive it.
    with closing(psycopg.connect(conninfo, prepare_threshold=None)) as connection, connection.transaction():
        yield connection


@asynccontextmanager
async def _connected_later(conninfo: str) -> AsyncIterator[Any]:
    import psycopg

    connection = await psycopg.AsyncConnection.connect(conninfo, prepare_threshold=None)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@contextmanager
def _atomic(alias: str) -> Iterator[Any]:
    """Yield Django's connection of this thread, in a transaction."""
    from django.db import connections, transaction

    connection = connections[alias]
    try:
        with transaction.atomic(using=alias):
            yield connection
    finally:
        connection.close()  # the thread serves other applications, too


def _not_opened(where: Any, kind: str, wanted: str) -> TypeError:
    return TypeError(
        f"in_transaction={where!r} does not open {wanted}, as a {kind} needs it. Pass True, an engine or a maker of "
        "sessions of SQLAlchemy, a pool of psycopg, Django's connection, or a function that returns such a block."
    )


def _collides(error: BaseException) -> bool:
    """Return whether a transaction was rolled back because of others, so that it may succeed when it runs again."""
    from ojster.storage.sqlite.step_connection import Outdated

    return isinstance(error, Outdated) or _sqlstate(error) in _COLLISIONS


def _is_outage(error: BaseException) -> bool:
    return isinstance(error, OSError) or _sqlstate(error).startswith(_OUTAGES) or _is_lost(error)


def _is_lost(error: BaseException) -> bool:
    """Return whether a driver, perhaps behind SQLAlchemy or Django, has lost a connection, or cannot make one."""
    for cause in _causes(error):
        kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(cause).__mro__}
        of_psycopg = ("psycopg", "OperationalError") in kinds and not getattr(cause, "sqlstate", None)
        if of_psycopg or (("asyncpg", "InterfaceError") in kinds and "connection is closed" in str(cause)):
            return True
    return False


def _sqlstate(error: BaseException) -> str:
    return next((state for cause in _causes(error) if (state := getattr(cause, "sqlstate", None))), "")


def _causes(error: BaseException) -> Sequence[BaseException | None]:
    return error, error.__cause__, getattr(error, "orig", None)
