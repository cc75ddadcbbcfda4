"""``replay``: runs today's function of a flow with the records of a run, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from ojster.api.flows import FlowType
from ojster.core.job import Job
from ojster.core.values import to_json
from ojster.handlers.codec import Codecs
from ojster.handlers.flow import Flow
from ojster.handlers.flow_errors import FlowChanged
from ojster.handlers.flow_execution import FlowExecution
from ojster.handlers.flow_export import ExportedFlow
from ojster.handlers.flow_run import arguments_of
from ojster.handlers.flow_updates import listen
from ojster.handlers.outcomes import Reported
from ojster.handlers.provision import Threads, provided, use_threads
from ojster.testing.fake_context import FakeContext
from ojster.workflows.flow import RECEIVING, FlowRecords, NewRecord, Turn

R = TypeVar("R")

_ASKED: Final = ("step", "run", *RECEIVING)
"""The kinds of records that a function asks for each time."""


def replay(flow: FlowType[..., R], file: str | Path) -> R | None:
    """Run today's function of a flow with the records that a run has left, in this thread, without a server.

    Jobs and local steps do not run: what they have returned comes from the records. So a test in CI finds out whether
    new code still fits a run of production, and a debugger stops in the function where the run has been.

    Parameters
    ----------
    flow:
        The declared flow.
    file:
        What ``ojster flows export ID`` has written.

    Returns
    -------
    Any
        What the function returns; ``None`` if the records end before the function does, as those of a running flow.

    Raises
    ------
    FlowChanged
        The function asks for something else than what is recorded. The message says what differs.
    ValueError
        The file has another flow.
    Exception
        What the function raises; ``asyncio.CancelledError`` if the run was cancelled.

    Examples
    --------
    >>> from ojster import App, Flow
    >>> from ojster.testing import replay
    >>> app = App("sqlite:///:memory:")
    >>> @app.flow("order.fulfil")
    ... async def fulfil(flow: Flow, number: int) -> str: ...
    >>> def test_a_run_of_last_week_fits_the_new_code():
    ...     assert replay(fulfil, "tests/flows/order-7.json") == "receipt-7"
    """
    result: R | None = asyncio.run(_replay(flow, msgspec.json.decode(Path(file).read_bytes(), type=ExportedFlow)))
    return result


async def areplay(flow: FlowType[..., R], file: str | Path) -> R | None:
    """Run today's function of a flow with the records of a run. See ``replay``."""
    content = await asyncio.to_thread(Path(file).read_bytes)
    result: R | None = await _replay(flow, msgspec.json.decode(content, type=ExportedFlow))
    return result


async def _replay(flow: FlowType[..., Any], exported: ExportedFlow) -> Any:
    if exported.type != flow.type:
        raise ValueError(f"The file has a run of the flow {exported.type!r}, not of {flow.type!r}. Replay that one.")
    server = _Recording(exported)
    execution = _Replay(_context(exported, server), server, flow.app.codecs)
    threads = Threads(1)
    use_threads(threads)
    try:
        async with AsyncExitStack() as stack:
            needs: Mapping[str, Any] = {}
            if flow.needs is not None:
                needs = await stack.enter_async_context(provided(flow.needs, execution.context.job))
            function: Any = flow.function.__wrapped__  # type: ignore[attr-defined]
            view = execution.loop.flow = Flow(execution)
            view._declared = flow
            args, named = flow.types.convert(flow.app.codecs.decode(exported.args, exported.meta))
            own: Sequence[Any] = args
            others: Mapping[str, Any] = {**named, **needs}
            if execution.args is not None:
                own, others = arguments_of(flow, execution.args, others)
            call = function(view, *own, **others)
            result = await execution.run(call, *(listen(update, view, execution) for update in flow._updates.values()))
    except _RecordsEnd:
        return None
    except Reported:
        raise asyncio.CancelledError("The run was cancelled.") from None
    finally:
        threads.shut_down()
    if server.left and exported.has_ended:
        raise server.changed(())
    return result


class _RecordsEnd(Exception):
    """The function has come to the end of its records."""


class _Recording:
    """The records of a run, in the place of a server.

    Attributes
    ----------
    left:
        The records that the function has not asked for, by key.
    """

    def __init__(self, exported: ExportedFlow) -> None:
        self.exported = exported
        in_order = sorted(exported.records, key=lambda record: (record.asked_at, len(record.key), record.key))
        self.left = {record.key: record for record in in_order if record.kind in _ASKED}

    async def turn(self, turn: Turn) -> FlowRecords:
        """Compare what a function asks for with what was recorded.

        Raises
        ------
        FlowChanged
            It asks for something else.
        """
        new = [record for record in turn.records if record.kind in _ASKED]
        if turn.restarts:
            raise _RecordsEnd
        if turn.was_cancelled:
            return msgspec.structs.replace(self.exported.known, suspended=True)
        if not new and not turn.suspends:
            return msgspec.structs.replace(self.exported.known, records=[])
        if self.left or self.exported.has_ended:
            raise self.changed(new)
        raise _RecordsEnd

    def changed(self, new: tuple[NewRecord, ...] | list[NewRecord]) -> FlowChanged:
        """Return the error that says what the function asks for, and what was recorded in its place."""
        asked = ", ".join(f"{record.kind} {record.key!r}" for record in new)
        recorded = ", ".join(f"{record.kind} {record.key!r}" for record in list(self.left.values())[:_SHOWN])
        end = "The run has ended there" if self.exported.has_ended else "Nothing more is recorded"
        return FlowChanged(
            f"The function of {self.exported.type} {f'asks for {asked}' if asked else 'asks for nothing more'}. "
            + (f"The run has recorded {recorded} instead." if recorded else f"{end}.")
            + " Keep what is recorded for runs that have begun: flow.patched(…) tells them from new ones."
        )


_SHOWN: Final = 10
"""Maximum number of records that an error shows."""


class _Replay(FlowExecution):
    """A run of a function that does nothing: local steps do not run, and time stands still."""

    def __init__(self, context: FakeContext, server: _Recording, codecs: Codecs) -> None:
        super().__init__(context, server.exported.known, codecs)
        self._server = server

    @property
    def _now(self) -> int:
        return self._server.exported.exported_at

    async def ask(self, record: NewRecord, step: Callable[[], Awaitable[Any]] | None = None) -> Raw:
        """Return the result that is recorded."""
        self._server.left.pop(record.key, None)
        return await super().ask(record)


def _context(exported: ExportedFlow, server: _Recording) -> FakeContext:
    context = FakeContext(exported.type)
    context.job = Job(
        seq=1,
        id=exported.job_id,
        type=exported.type,
        queue="default",
        state="active",
        priority=0,
        attempt=1,
        max_attempts=1,
        created_at=exported.exported_at,
        envelope=to_json({"args": exported.args}),
        node=exported.flow,
    )
    client: Any = SimpleNamespace(flows=server)
    context._client = client
    return context
