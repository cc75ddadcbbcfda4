"""Flows that begin anew in the same run."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import msgspec
from msgspec import Raw

from ojster.core.values import to_json
from ojster.handlers.flow_execution import FlowExecution
from ojster.handlers.job_type import JobType
from ojster.handlers.outcomes import MAX_RESULT_BYTES


class Restarts:
    """The part of ``Flow`` with which a function begins anew."""

    _execution: FlowExecution
    _declared: JobType[Any, Any] | None = None

    async def restart(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Begin the function anew, in the same run: what it has done before is forgotten. For flows that never end.

        The run keeps its id, the messages that it has not received, and what it has published. What it still waits for
        is cancelled; an update that is being handled is handled again. The call never returns, and code in ``finally``
        around it must not await: call it where nothing is left to be cleaned up or undone.

        Parameters
        ----------
        args, kwargs:
            Arguments of the function, without the ``Flow``.

        Raises
        ------
        TypeError
            The function does not take these arguments, or they are no JSON values.
        ValueError
            They take more than 1 MiB.
        RuntimeError
            It is asked outside of the function of the flow, such as by the handler of an update.

        Examples
        --------
        >>> async def account(flow, balance):
        ...     for _ in range(100):
        ...         balance += await flow.receive("booking", int)
        ...         flow.publish(balance)
        ...     await flow.restart(balance)
        """
        execution = self._execution
        if not execution.is_closed:
            if self._declared is None or asyncio._get_running_loop() is not execution.loop:
                raise RuntimeError(
                    "The flow cannot be restarted here: in a step, or by the handler of an update, which would come "
                    "again. Let its function do it: await flow.restart(…)."
                )
            codecs, plain = self._declared.app.codecs, self._declared.encoded_args(args, kwargs)
            encoded = to_json(codecs.encode_list(msgspec.json.decode(plain)))
            if len(encoded) > MAX_RESULT_BYTES:
                raise ValueError(f"The arguments take {len(encoded)} bytes; at most {MAX_RESULT_BYTES} are allowed.")
            execution.restarts_with = Raw(encoded)
            await execution.loop.create_future()
        await execution.never()
        raise AssertionError
