"""``crash_everywhere``: a flow whose worker dies at each place where it may die."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET

from ojster.api.flows import FlowRun, FlowType
from ojster.core.job import Job
from ojster.core.values import to_json
from ojster.handlers.context import JobContext
from ojster.handlers.outcomes import Released, Reported
from ojster.jobs.messages import Release
from ojster.testing.expected_call import shown_call
from ojster.testing.tester import JobTester
from ojster.workflows.flow import FlowRecord, FlowRecords, Turn
from ojster.workflows.read.run_errors import WorkflowCancelled, WorkflowFailed

R = TypeVar("R")

Script = Callable[[FlowRun[R], JobTester], object]
"""What happens to a run from outside."""

When = Literal["before", "after"]

_SHOWN: Final = 400
"""How much of a value the message of a failure shows, in characters."""

_MISSING: Final = object()


def crash_everywhere(
    flow: FlowType[..., R],
    /,
    *args: Any,
    script: Script[R] | None = None,
    effects: Callable[[], object] | None = None,
) -> R:
    """Run a flow once for each place where its worker may die, and assert that it does the same as without a crash.

    The worker dies before and after each call in which it tells the server what the flow has done, and before it
    reports the end of the function. Then another one goes on. Each run has a database in memory of its own, in which
    time jumps. Compared are the result or the error, what the flow has recorded, the jobs that were enqueued, and
    ``effects``. What differs between two runs without a crash, such as times and random ids, is not compared.

    Local steps run at least once, also here: give ``effects`` that do not count how often, or let the step be
    idempotent. The function blocks; in an asynchronous test, run it in a thread (``asyncio.to_thread``).

    Parameters
    ----------
    flow:
        The declared flow.
    args:
        The arguments of its function, by position.
    script:
        Called in each run with the started flow and the ``JobTester``, before anything runs: sends messages, moves the
        clock, cancels the flow, clears what an earlier run has left. By default nothing. Afterwards the flow runs to
        its end.
    effects:
        Returns what the jobs and steps have done outside of Ojster, such as the list of payments. Called at the end of
        each run.

    Returns
    -------
    Any
        The result of the flow.

    Raises
    ------
    AssertionError
        A run with a crash differs, or does not end. The message says where the worker died, and what differs.
    WorkflowFailed, WorkflowCancelled
        The flow fails or is cancelled, in the same way wherever its worker dies.

    Examples
    --------
    >>> from ojster import App, Flow
    >>> from ojster.testing import crash_everywhere
    >>> app = App("sqlite:///:memory:")
    >>> charged: list[int] = []
    >>> @app.job("card.charge")
    ... def charge(total: int) -> str:
    ...     charged.append(total)
    ...     return f"receipt for {total}"
    >>> @app.flow("order")
    ... async def order(flow: Flow, total: int) -> str:
    ...     receipt = await flow.run(charge, total)
    ...     return receipt if await flow.receive("approval", bool) else "refused"
    >>> def approve(run, jobs):
    ...     charged.clear()
    ...     run.send("approval", True)
    >>> crash_everywhere(order, 42, script=approve, effects=lambda: charged)
    'receipt for 42'
    """
    __tracebackhide__ = True
    at = datetime.now(UTC)

    def run(crash: tuple[int, When] | None = None) -> _Run:
        return _run(_Plan(flow, args, script, effects, at), crash)

    first, second = run(), run()
    expected = {name: value for name, value in first.seen.items() if second.seen.get(name, _MISSING) == value}
    varying = (first.seen.keys() | second.seen.keys()) - expected.keys()
    for number, place in enumerate(first.places):
        for when in place.when:
            try:
                crashed = run((number, when))
            except AssertionError as error:
                raise AssertionError(f"{flow.type} whose worker dies {when} {place.what}: {error}") from None
            names = sorted((expected.keys() | crashed.seen.keys()) - varying)
            differences = [
                f"\n  {name}: {_shown(expected, name)}; with the crash {_shown(crashed.seen, name)}"
                for name in names
                if expected.get(name, _MISSING) != crashed.seen.get(name, _MISSING)
            ]
            if differences:
                raise AssertionError(
                    f"{flow.type} does something else if its worker dies {when} {place.what}:{''.join(differences)}"
                )
    if isinstance(first.outcome, Exception):
        raise first.outcome
    result: R = first.outcome
    return result


class _Plan(msgspec.Struct, frozen=True):
    flow: FlowType[..., Any]
    args: tuple[Any, ...]
    script: Script[Any] | None
    effects: Callable[[], object] | None
    at: datetime


class _Place(msgspec.Struct, frozen=True):
    """A place where a worker may die: what it does there, and whether before or after that."""

    what: str
    when: tuple[When, ...]


class _Run(msgspec.Struct, frozen=True):
    """One run: its places, its result or error, and everything that is compared, by name."""

    places: list[_Place]
    outcome: Any
    seen: dict[str, Any]


class WorkerDies(Released):
    """The worker of a flow dies: what the flow has not recorded is lost, and another worker goes on."""

    def release(self, job_id: str, worker_id: str, attempt: int) -> Release:
        """Return what the server does with the job of a dead worker."""
        return Release(job_id, worker_id, attempt)


class DyingWorkers:
    """The calls that workers make for flows. At one of them, a worker dies.

    Parameters
    ----------
    flows:
        The types of the flows.
    crash:
        The number of the call, from 0, and when; ``None``: none dies.

    Attributes
    ----------
    places:
        The calls that were made.
    """

    def __init__(self, flows: Collection[str], crash: tuple[int, When] | None) -> None:
        self._flows = flows
        self._crash = crash
        self.places: list[_Place] = []

    @contextmanager
    def at_work(self, tester: JobTester) -> Iterator[None]:
        """Let the workers of a tester be these."""
        flows: Any = tester._scoped.flows
        turn = flows.turn
        flows.turn = partial(self._turn, turn)
        middleware = tester.app.execution_middleware
        middleware.prepend(self._execute)
        try:
            yield
        finally:
            flows.turn = turn
            middleware.remove(self._execute)

    async def _turn(self, call: Callable[[Turn], Awaitable[FlowRecords]], turn: Turn) -> FlowRecords:
        """Make a call in which a worker says what its flow has done."""
        number = self._arrive(_described(turn), ("before", "after"))
        answer = await call(turn)
        if answer.suspended:  # the flow has left its worker, whose death changes nothing any more
            self.places[number] = msgspec.structs.replace(self.places[number], when=("before",))
        elif self._crash == (number, "after"):
            raise WorkerDies
        return answer

    async def _execute(self, context: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Run a job. Before the end of a flow is reported, its worker may die."""
        error: Exception | None = None
        result = None
        try:
            result = await call_next()
        except (Released, Reported):
            raise
        except Exception as raised:
            error = raised
        if context.job.type in self._flows:
            self._arrive(f"it reports that the function of {context.job.type} has ended", ("before",))
        if error is not None:
            raise error
        return result

    def _arrive(self, what: str, when: tuple[When, ...]) -> int:
        number = len(self.places)
        self.places.append(_Place(what, when))
        if self._crash == (number, "before"):
            raise WorkerDies
        return number


def _described(turn: Turn) -> str:
    """Return what a worker says of its flow in a call."""
    said = [f"records {record.kind} {record.key!r}" for record in turn.records if record.kind != "begin"]
    said += [f"gives up {key!r}" for key in turn.cancelled]
    said += ["records the order of what has ended"] if turn.seen else []
    said += ["says that the flow waits"] if turn.suspends else []
    said += ["says that the flow was cancelled"] if turn.was_cancelled else []
    return f"it {', '.join(said) or 'asks what has ended'}"


def _run(plan: _Plan, crash: tuple[int, When] | None) -> _Run:
    """Run a flow in a new database; a worker dies at a place."""
    flow = plan.flow
    app: Any = flow.app
    flows = {type for type, handler in app.root.handlers.items() if isinstance(handler, FlowType)}
    workers = DyingWorkers(flows, crash)
    with JobTester(app, at=plan.at) as tester, workers.at_work(tester):
        run = flow.start(*plan.args)
        if plan.script is not None:
            plan.script(run, tester)
        tester.finish(run)
        try:
            outcome: Any = run.result()
        except (WorkflowFailed, WorkflowCancelled) as error:
            outcome = error
        jobs = tester.all()
        records = {job.id: tester._wait(tester._scoped.flows.records(job.id)) for job in jobs if job.type in flows}
    seen: dict[str, Any] = {"the state": run.state, "the outcome": _compared(outcome)}
    if plan.effects is not None:
        effects = copy.deepcopy(plan.effects())
        members = effects.items() if isinstance(effects, Mapping) else [(None, effects)]
        seen |= {"the effects" if name is None else f"the effect {name!r}": effect for name, effect in members}
    return _Run(workers.places, outcome, seen | _seen_of_jobs(jobs) | _seen_of_records(jobs, records))


def _compared(outcome: Any) -> Any:
    return repr(outcome) if isinstance(outcome, Exception) else to_json(outcome).decode()


def _seen_of_jobs(jobs: Sequence[Job]) -> dict[str, Any]:
    """Return how many jobs of each type there are, and their arguments and outcomes in any order."""
    calls: dict[str, list[str]] = {}
    for job in jobs:
        result = "" if job.result is None else f" with {job.result.decode()}"
        calls.setdefault(job.type, []).append(f"{shown_call(job.type, (job.args, {}))} {job.state}{result}")
    numbers = {f"the number of jobs {type}": len(calls_of_type) for type, calls_of_type in calls.items()}
    return numbers | {f"the jobs {type}": sorted(calls_of_type) for type, calls_of_type in calls.items()}


def _seen_of_records(jobs: Sequence[Job], records: Mapping[str, FlowRecords]) -> dict[str, Any]:
    """Return what the flow has recorded under each key, and what flows inside it have recorded, in any order."""
    first, *inside = [job for job in jobs if job.id in records]
    seen: dict[str, Any] = {}
    for record in records[first.id].records:
        seen[f"the record {record.key!r}"] = f"{record.kind} {record.name!r}, asked for with {record.input}"
        seen[f"the end of {record.key!r}"] = _end_of(record)
    for job in inside:
        of_type = seen.setdefault(f"the records of flows {job.type}", [])
        of_type.append(sorted((record.key, record.kind, _end_of(record)) for record in records[job.id].records))
        of_type.sort()
    return seen


def _end_of(record: FlowRecord) -> str:
    if record.error is not UNSET:
        error = msgspec.json.decode(record.error)
        return f"the error {error.get('error') or {name: error[name] for name in error if name != 'backtrace'}}"
    return "none" if record.result is UNSET else bytes(record.result).decode()


def _shown(seen: Mapping[str, Any], name: str) -> str:
    if name not in seen:
        return "there is none"
    text = seen[name] if isinstance(seen[name], str) else repr(seen[name])
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
