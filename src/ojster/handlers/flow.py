"""What the function of a flow gets: durable steps, jobs, messages, time and compensation."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from typing import Any, Final, ParamSpec, TypeVar, overload

import msgspec
from msgspec import Raw

from ojster.client.file_transfer import restore
from ojster.core.references import may_hold_references
from ojster.core.values import Seconds, to_json, to_millis
from ojster.files.file import may_refer, referred_file
from ojster.handlers.arguments import HandlerTypes
from ojster.handlers.compensation import Compensation
from ojster.handlers.context import JobContext
from ojster.handlers.flow_errors import RecordFailed, job_error, step_error
from ojster.handlers.flow_execution import FlowExecution
from ojster.handlers.flow_keys import shortened, without_options
from ojster.handlers.flow_messages import Messages
from ojster.handlers.flow_patches import Patches
from ojster.handlers.flow_restart import Restarts
from ojster.handlers.flow_transactions import StepInTransaction
from ojster.handlers.job_type import JobType
from ojster.workflows.declaration import Step
from ojster.workflows.declared_results import converted
from ojster.workflows.flow import MAX_KEY_LENGTH, NewRecord
from ojster.workflows.placeholders import element
from ojster.workflows.read.shapes import in_python, shape_of_wire

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_NAMES: Final = ("id", "name", "type", "definition")
"""Members of a step, one of which names it; the first that it has."""

MAP_STEPS_AT_ONCE: Final = 5
"""Maximum number of steps in which ``Flow.map`` has jobs at a time, if their number is limited."""

MAX_ITEMS_OF_STEP: Final = 1_000
"""Maximum number of items of one of these steps."""


class Flow(Messages, Patches, Restarts):
    """A running flow, as its function sees it: the first argument.

    Ordinary asyncio works in the function: ``gather``, ``TaskGroup``, ``timeout``, ``sleep``, ``try`` and ``finally``.
    After a crash, a deploy or a wait it runs again from its start, and what it has awaited comes back at once.
    Everything that is not awaited through this object must therefore come out the same each time: take the time from
    ``now``, random numbers from ``random``, and do input and output in steps.

    Parameters
    ----------
    execution:
        The run of the function.
    key:
        The key of the next thing that it is asked for; ``None``: by its place.

    Examples
    --------
    >>> import asyncio
    >>> from ojster import App, Flow, Worker
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("price.quote")
    ... def quote(carrier: str) -> int:
    ...     return len(carrier)
    >>> @app.flow("price.best")
    ... async def best(flow: Flow, carriers: list[str]) -> int:
    ...     quotes = await asyncio.gather(*(flow.run(quote, carrier) for carrier in carriers))
    ...     return await flow.step("best", min, quotes)
    >>> async def main() -> None:
    ...     run = await best.astart(["north", "sea"])
    ...     await Worker(app).run(until_empty=True)
    ...     print(await run.aresult())
    ...     await app.aclose()
    >>> asyncio.run(main())
    3
    """

    def __init__(self, execution: FlowExecution, key: str | None = None) -> None:
        self._execution = execution
        self._key = key

    @property
    def id(self) -> str:
        """The id of the workflow that the flow is, or is a part of."""
        return self._execution.workflow_id

    @property
    def job(self) -> JobContext:
        """The job that runs the function at the moment."""
        return self._execution.context

    @property
    def is_replaying(self) -> bool:
        """Whether the function does again what it has done before."""
        return self._execution.is_replaying

    @property
    def now(self) -> datetime:
        """The time of the flow: that of the last event that it has got, the same each time it runs."""
        return datetime.fromtimestamp(self._execution.loop.now / 1e6, UTC)

    @cached_property
    def random(self) -> random.Random:
        """Random numbers that are the same each time the flow runs. Not for secrets."""
        return random.Random(self._execution.seed)

    def uuid(self) -> uuid.UUID:
        """Return a random UUID, the same each time the flow runs.

        Returns
        -------
        uuid.UUID
            The UUID, of version 4.
        """
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is silent while the function does again what it has done before."""
        return _FlowLog(self._execution)

    def keyed(self, key: str) -> Flow:
        """Return the flow with a key for what it is asked for.

        By default, the key is the name with its number in the task that asks, such as ``quote#2``. A key of one's own
        keeps a step's record when steps are added before it or exchanged.

        Parameters
        ----------
        key:
            Unique in the flow, at most 500 characters.

        Returns
        -------
        Flow
            The same flow.

        Raises
        ------
        ValueError
            The key is empty or too long.
        """
        if not 0 < len(key) <= MAX_KEY_LENGTH:
            raise ValueError(f"A key has 1 to {MAX_KEY_LENGTH} characters, not {len(key)}.")
        keyed = Flow(self._execution, key)
        keyed.__dict__["random"] = self.random
        return keyed

    @overload
    def run(self, what: JobType[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...

    @overload
    def run(self, what: Step[T], /) -> Coroutine[Any, Any, T]: ...

    def run(self, what: JobType[Any, Any] | Step, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Run a job, another flow, or a workflow of declared steps, and return its result.

        Any worker may run it, in any language. If the function is cancelled meanwhile, such as by
        ``asyncio.timeout``, it is cancelled.

        Parameters
        ----------
        what:
            A declared job or flow, if need be with changed options (``charge.using(queue="cards")``), or steps.
        args, kwargs:
            The arguments of the job.

        Returns
        -------
        Any
            The result, converted as the annotations of the handler say.

        Raises
        ------
        JobFailed, JobCancelled
            It has failed after all its attempts, or was cancelled.
        TypeError
            The handler does not take these arguments.
        """
        if self._execution.is_closed:
            return self._execution.never()
        step = what.with_data(args, kwargs) if isinstance(what, JobType) else what.whole
        wire = step.wire
        name = what.type if isinstance(what, JobType) else str(next(filter(None, map(wire.get, _NAMES))))
        key = self._execution.key_of(name, self._key)
        added = Raw(to_json({**wire, "allow_failure": True, "display_name": key}))
        asked: Any = without_options(wire) if not isinstance(what, JobType) else [what.type, wire.get("args")]
        if isinstance(what, JobType) and (what.app.codecs or "args" not in wire):  # encoded, or those of a flow
            asked[1] = Raw(what.encoded_args(args, kwargs))
        return self._run(what, self._record(key, "run", name, self._digest(asked), added))

    async def map(self, what: JobType[..., R], items: Iterable[Any], /, *, concurrency: int | None = None) -> list[R]:
        """Run a job for each item, and return the results in the order of the items.

        It is one step: a map, whose jobs start and end without the flow. With ``concurrency``, it is a step for every
        few items, and the next one begins when one has ended.

        Parameters
        ----------
        what:
            A job that takes an item as its only argument.
        items:
            Any JSON values.
        concurrency:
            Maximum number of its jobs that wait or run at the same time; ``None``, the default: all do.

        Returns
        -------
        list
            The results, converted as the annotations of the handler say.

        Raises
        ------
        JobFailed, JobCancelled
            A job has failed after all its attempts, or was cancelled.
        TypeError
            An item is no JSON value; or the application has codecs, and the server cannot read an item.
        ValueError
            An item has a ``$ref``, which a map would resolve; or ``concurrency`` is less than 1.
        """
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency is at least 1, not {concurrency}.")
        if what.app.codecs:
            raise TypeError(
                "A map hands out its items on the server, which cannot read what codecs encode. Run "
                f"{what.type} for each: asyncio.gather(*(flow.run(job, item) for item in items))."
            )
        items = list(items)
        if may_hold_references(to_json(items)):
            raise ValueError(f"An item for {what.type} has a '$ref', which a map would resolve. Run the job for each.")
        if concurrency is None:
            results = await self.run(_map_of(what, items))
        elif self._execution.is_closed:
            results = await self._execution.never()
        else:
            key = self._execution.key_of(what.type, self._key)
            results = await self._window(what, items, key, concurrency)
        return [what.types.convert_result(result) for result in results]

    async def _window(self, what: JobType[Any, Any], items: list[Any], key: str, concurrency: int) -> list[Any]:
        """Return the results of jobs, at most ``concurrency`` of which are there at a time, without conversion.

        A step has a part of them, so that a long list needs few records; some steps at a time let jobs begin while the
        last ones of a step still run.
        """
        steps = min(concurrency, MAP_STEPS_AT_ONCE)
        size = min(concurrency // steps, MAX_ITEMS_OF_STEP)
        results: list[Any] = [None] * len(items)
        starts = iter(range(0, len(items), size))

        async def run_parts() -> None:
            for start in starts:
                end = min(start + size, len(items))
                part = Flow(self._execution, shortened(f"{key}[{start}:{end}]"))
                results[start:end] = await part.run(_map_of(what, items[start:end]))

        tasks = [asyncio.create_task(run_parts()) for _ in range(steps)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return results

    async def _run(self, what: JobType[Any, Any] | Step, record: NewRecord) -> Any:
        try:
            result = await self._execution.ask(record)
        except RecordFailed as failed:
            raise job_error(record.name, failed.error) from None
        restored = await self._restored(result)
        if isinstance(what, JobType):
            return what.types.convert_result(restored)
        return converted(in_python(shape_of_wire(what.whole.wire), restored), what.whole.convert)

    @overload
    def step(
        self, name: str, function: Callable[..., Awaitable[T]], /, *args: Any, in_transaction: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def step(
        self, name: str, function: Callable[..., T], /, *args: Any, in_transaction: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    async def step(self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...

    def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, in_transaction: Any = None, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        """Call a function here, in this worker, and record what it returns: a local step.

        It runs at least once. When its result is on disk, it is returned, and it never runs again. A plain function
        runs in a thread.

        Parameters
        ----------
        name:
            Name of the step.
        function, args, kwargs:
            The function and its arguments.
        in_transaction:
            Write the record in one transaction with what the function writes to tables of the application in the
            database of its jobs: both happen exactly once. The function gets the connection as its first argument.
            ``True``: a connection that Ojster opens. With PostgreSQL also what opens one of your own, in a
            transaction: an engine or a maker of sessions of SQLAlchemy, a pool of psycopg, Django's ``connection``, or
            a function that returns a context manager; asynchronous ones for coroutine functions. The function may be
            called again if the transaction collides with others. By default there is no such transaction.

        Returns
        -------
        Any
            Its result, from JSON as its return annotation says.

        Raises
        ------
        Exception
            What it has raised, if the exception can be made again from its message; otherwise ``StepFailed``. With
            ``in_transaction``, also what the database says of its writes.
        TypeError
            Its result is not a JSON value.
        """
        if self._execution.is_closed:
            return self._execution.never()
        key = self._execution.key_of(name, self._key)
        record = self._record(key, "step", name, self._digest([args, kwargs]))
        types, is_async = _result_types(name, function)
        types.resolve()
        call = partial(function, *args, **kwargs)
        if in_transaction is not None:
            return self._step(record, types, StepInTransaction(self._execution, record, in_transaction, call))
        return self._step(record, types, call if is_async else partial(self._in_thread, call))

    async def _step(self, record: NewRecord, types: HandlerTypes, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        try:
            result = await self._execution.ask(record, call)
        except RecordFailed as failed:
            raise step_error(record.name, failed.error) from None
        value = msgspec.json.decode(result)
        if may_refer(bytes(result)) and referred_file(value) is not None:
            value = await self._execution.outside(restore(self.job.client, value, self.job.id))
        return types.convert_result(self._execution.codecs.decode_value(value))

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        done = await self._execution.threads.call(call)
        return await done if inspect.isawaitable(done) else done

    async def sleep(self, duration: Seconds) -> None:
        """Wait, without a worker. ``asyncio.sleep`` does the same.

        Parameters
        ----------
        duration:
            In seconds, or as a ``timedelta``.

        Raises
        ------
        ValueError
            It is negative, or longer than 100 years.
        """
        if self._execution.is_closed:
            await self._execution.never()
        await asyncio.sleep(to_millis(duration) / 1000)

    def compensation(self) -> Compensation:
        """Undo what an ``async with`` block has done if it fails or is cancelled, the last first.

        Returns
        -------
        Compensation
            The block; tell it what to undo.

        Examples
        --------
        >>> async def order(flow, charge, refund, ship):
        ...     async with flow.compensation() as undo:
        ...         await undo.run(charge, 42, undo=refund)
        ...         await flow.run(ship, 42)
        """
        return Compensation(Flow(self._execution))

    async def _restored(self, result: Raw) -> Any:
        """Return a result; one that is kept as a file is read in a step, because the function cannot do it itself."""
        value = msgspec.json.decode(result)
        if not may_refer(bytes(result)):
            return value
        return await self._execution.outside(restore(self.job.client, value, self.job.id))


def _map_of(what: JobType[Any, Any], items: list[Any]) -> Step:
    return Step({"type": "map", "name": what.type, "over": items, "as": "item", "do": what.s(element()).wire})


class _FlowLog(logging.LoggerAdapter[logging.Logger]):
    """A logger of a flow that is silent while its function does again what it has done before."""

    def __init__(self, execution: FlowExecution) -> None:
        logger = logging.getLogger(f"ojster.flow.{execution.context.job.type}")
        super().__init__(logger, {"workflow_id": execution.workflow_id})
        self._execution = execution

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  (the name in ``logging``)
        """Return whether a message of a level is logged."""
        return not self._execution.is_replaying and super().isEnabledFor(level)


def _result_types(name: str, function: Callable[..., Any]) -> tuple[HandlerTypes, bool]:
    """Return what the result of a function becomes, and whether it is a coroutine function."""
    plain = getattr(function, "__func__", function)
    if inspect.isfunction(plain) and plain.__closure__ is None:
        return _remembered_types(name, plain, int(inspect.ismethod(function)))
    return _read_types(name, function, 0)  # remembered, it would keep what it refers to, such as the flow that runs it


def _read_types(name: str, function: Callable[..., Any], skipped: int) -> tuple[HandlerTypes, bool]:
    try:
        signature = inspect.signature(function)
    except ValueError:  # such as min
        signature = inspect.Signature()
    return HandlerTypes(name, function, signature, skipped), inspect.iscoroutinefunction(function)


_remembered_types: Final = lru_cache(512)(_read_types)
