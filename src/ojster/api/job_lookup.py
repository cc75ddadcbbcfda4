"""Jobs and job types of an application, by their ids and names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, cast

import msgspec

from ojster.client.event_loop_thread import InEventLoopThread
from ojster.client.interface import Client
from ojster.client.plain_methods import plain
from ojster.handlers.job_handle import HandleOwner, JobHandle
from ojster.handlers.job_options import JobOptions, JobOptionsDict, with_changes
from ojster.handlers.job_type import JobType
from ojster.jobs.names import read_type
from ojster.jobs.queries import whole_job_id


class RemoteJobType(JobType[..., Any]):
    """A job type whose handler is elsewhere, so that its parameters are not known here."""

    def encoded_args(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Return arguments as JSON: those with names as one object, which is the last."""
        return super().encoded_args([*args, dict(kwargs)] if kwargs else args, {})


class JobLookup(InEventLoopThread):
    """The part of ``App`` that finds jobs, and job types whose handlers may be elsewhere."""

    handlers: dict[str, JobType[Any, Any]]

    def client(self) -> Client:
        """Return the client for the running event loop."""
        raise NotImplementedError

    def job_type(self, type: str, **options: Unpack[JobOptionsDict]) -> JobType[..., Any]:
        """Return a job type by its name, also if its handler is elsewhere: in another program, or another language.

        Parameters
        ----------
        type:
            Job type, such as ``email.send``.
        options:
            Options of its jobs; see ``JobOptions``.

        Returns
        -------
        JobType
            The type. If its handler is not declared here, named arguments become one object, which is the last
            argument, and results are plain JSON values.

        Raises
        ------
        InvalidRequest
            The type or an option is malformed.

        Examples
        --------
        >>> from ojster import App
        >>> app = App("sqlite:///:memory:")
        >>> app.job_type("email.send", queue="mail").enqueue("ada@example.com").state
        'available'
        >>> app.close()
        """
        name = read_type(msgspec.json.encode(type))
        known = self.handlers.get(name)
        if known is not None:
            return known.using(**options)

        def elsewhere(*args: Any) -> Any:
            raise TypeError(f"The handler of {name!r} is not declared in this application.")

        return RemoteJobType(cast("HandleOwner", self), name, elsewhere, with_changes(JobOptions(), options), False)

    async def afind(self, job_id: str) -> JobHandle[Any]:
        """Return the handle of an existing job.

        Parameters
        ----------
        job_id:
            Id of the job; the beginning of an id, which is easy to guess, finds none.

        Returns
        -------
        JobHandle
            The handle of the job.

        Raises
        ------
        NotFound
            The job does not exist.
        """
        job = await self.client().jobs.find(whole_job_id(job_id))
        declared = self.handlers.get(job.type)
        return JobHandle(cast("HandleOwner", self), job, None if declared is None else declared.types)

    find = plain(afind)
