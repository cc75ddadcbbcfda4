"""Jobs in FastAPI: a lifespan, and a router that tells of jobs. Needs ``ojster[fastapi]``.

Handlers enqueue with ``await send.aenqueue(…)``; nothing else is needed for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from inspect import signature
from typing import Any, Final

import msgspec
from fastapi import APIRouter, FastAPI, HTTPException
from fastapi.params import Depends
from fastapi.responses import Response, StreamingResponse

from ojster.api.app import App
from ojster.core.errors import Conflict, NotFound
from ojster.core.job import Job
from ojster.core.states import FINISHED
from ojster.core.values import check_options
from ojster.handlers.job_info import info_of
from ojster.jobs.queries import whole_job_id
from ojster.worker.worker import Worker

LOOK_SECONDS: Final = 1.0
"""Longest time between two looks at a job that is followed, in seconds."""

MAX_FOLLOW_SECONDS: Final = 300.0
"""Time after which a followed stream ends, in seconds; browsers then connect again by themselves."""

_SHOWN: Final = (
    *("id", "type", "queue", "state", "attempt", "max_attempts", "progress", "message", "result", "error"),
    *("created_at", "started_at", "finished_at", "next_at"),
)


def lifespan(jobs: App, *, worker: bool = False, **options: Any) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return a lifespan for FastAPI or Starlette: it disconnects the jobs' application at the end.

    Parameters
    ----------
    jobs:
        The application.
    worker:
        Whether a worker runs in the same process, for small installations. The default is false: run ``ojster worker``.
    options:
        Options of that worker; see ``Worker``.

    Returns
    -------
    Callable
        What ``FastAPI(lifespan=…)`` takes. Call it in a lifespan of your own to have both:
        ``async with lifespan(jobs)(app): …``.

    Raises
    ------
    TypeError
        The worker has no such option, or ``worker`` is false.

    Examples
    --------
    >>> from fastapi import FastAPI
    >>> from ojster import App
    >>> from ojster.fastapi import job_router, lifespan
    >>> jobs = App("sqlite:///jobs.db")
    >>> app = FastAPI(lifespan=lifespan(jobs))
    >>> app.include_router(job_router(jobs), prefix="/jobs")
    """
    check_options(options, tuple(signature(Worker).parameters)[1:])
    if options and not worker:
        raise TypeError(f"The option {min(options)!r} is one of a worker, which does not run here. Add worker=True.")

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        worker_here = Worker(jobs, **options) if worker and not jobs.is_eager else None
        task = None if worker_here is None else asyncio.create_task(worker_here.run(), name="ojster-worker")
        try:
            yield
        finally:
            if worker_here is not None and task is not None:
                worker_here.stop()
                await task
            await jobs.aclose()

    return running


def job_router(jobs: App, *, types: Collection[str] | None = None, dependencies: Sequence[Depends] = ()) -> APIRouter:
    """Return a router that tells of jobs by their id: for a page that waits for one.

    ``GET /{id}`` returns the job: state, progress, result, error, times. ``GET /{id}/events`` sends the same as
    server-sent events named ``job``, at each change until it has finished. ``DELETE /{id}`` cancels it.

    Whoever may call it sees and cancels jobs whose id he knows; protect it with ``dependencies``.

    Parameters
    ----------
    jobs:
        The application.
    types:
        Job types that it tells of; all by default.
    dependencies:
        Dependencies of FastAPI for all its paths, such as a check of the user; none by default.
    """
    router = APIRouter(dependencies=list(dependencies), tags=["jobs"])

    find = partial(_find, jobs, types)

    @router.get("/{id}")
    async def show(id: str) -> Response:
        """Return a job: its state, progress, result or error, and times."""
        return Response(_encoded(await find(id)), media_type="application/json")

    @router.get("/{id}/events")
    async def follow(id: str) -> Response:
        """Send a job as server-sent events, at each change until it has finished."""
        job = await find(id)

        async def changes() -> AsyncIterator[bytes]:
            told, current = b"", job
            deadline = time.monotonic() + MAX_FOLLOW_SECONDS
            while True:
                if (shown := _encoded(current)) != told:
                    told = shown
                    yield b"event: job\ndata: %b\n\n" % shown
                if current.state in FINISHED or time.monotonic() > deadline:
                    return
                current = await find(id, LOOK_SECONDS)

        return StreamingResponse(changes(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    @router.delete("/{id}", status_code=204)
    async def cancel(id: str) -> None:
        """Cancel a job."""
        await find(id)
        try:
            await jobs.client().jobs.cancel(id)
        except Conflict as error:
            raise HTTPException(409, error.message) from None

    return router


def _encoded(job: Job) -> bytes:
    shown = info_of(job)
    return msgspec.json.encode({name: getattr(shown, name) for name in _SHOWN})


async def _find(jobs: App, types: Collection[str] | None, id: str, wait: float = 0.0) -> Job:
    """Return a job of some types (``None``: of all), after ``wait`` seconds unless it has finished."""
    absent = HTTPException(404, f"There is no job {id[:80]}.")
    try:
        id = whole_job_id(id)
        job = await jobs.client().jobs.wait_for(id, wait) if wait else await jobs.client().jobs.find(id)
    except NotFound:
        raise absent from None
    if types is not None and job.type not in types:
        raise absent
    return job
