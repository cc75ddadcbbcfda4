"""The JSON of requests and answers about workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ojster.core.calls import Arguments
from ojster.core.declared_options import Places, described_by
from ojster.core.parsing import refuse_unknown
from ojster.core.wire import FromWorker, Identifier, JobTypes, Json, Milliseconds
from ojster.fleet.requirements import idle_capabilities
from ojster.fleet.worker_rule import WorkerRule, read_rule_members


class HandlerBody(Struct):
    """The versions of a job type that a worker handles: ``2.0``, ``>=1.0 <3.0``, or ``*`` for all."""

    type: str
    versions: str = "*"


CodeVersion = Annotated[str, Meta(min_length=1, max_length=100, description="Charts mark when a new one comes.")]
"""Version, or digest, of the code that a worker runs."""


class HeartbeatBody(FromWorker, Struct):
    """The heartbeat of a worker. ``active_jobs`` is a list of job ids, or their number beside ``active_job_ids``."""

    worker_id: Identifier
    active_jobs: list[str] | int = []
    active_job_ids: list[str] = []
    attempts: Annotated[dict[str, int], Meta(description="Attempts of active jobs, by id; old ones are lost.")] = {}
    job_id: Annotated[str | None, Meta(description="One active job, instead of a list of them.")] = None
    visibility_timeout_ms: Milliseconds | None = None
    state: Literal["running", "quiet", "drain", "draining", "shutting_down", "terminate"] = "running"
    hostname: str | None = None
    pid: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    queues: list[str] = []
    labels: list[str] = []
    concurrency: Places | None = None
    pool: Identifier | None = None
    handlers: list[HandlerBody] = []
    job_types: JobTypes | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=60_000, description="Wait for something to tell the worker.")] = 0
    capabilities: dict[str, Json] = {}
    code_version: CodeVersion | None = None

    def idle(self) -> list[str]:
        """Warn of capabilities that no job can require."""
        return idle_capabilities(self.capabilities)


class DirectiveBody(Arguments):
    """A directive for a worker."""

    directive: Annotated[str, Meta(pattern="^(running|quiet|terminate)$")]


@described_by(WorkerRule)
class WorkerRuleBody(Arguments, forbid_unknown_fields=True):
    """An operator's rule for a worker; missing members stay unchanged.

    Parameters
    ----------
    provides:
        Facts that replace those that it reports, merged by member; null: the worker does not provide it.
    allowed_types, denied_types:
        The job types that it accepts; ``payment.*`` for all with a prefix.
    """

    enabled: bool | UnsetType = UNSET
    provides: dict[str, str | int | float | bool | None] | UnsetType = UNSET
    allowed_types: list[str] | UnsetType | None = UNSET
    denied_types: list[str] | UnsetType = UNSET
    reason: Annotated[str, Meta(max_length=1_000)] | UnsetType | None = UNSET

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> Self:
        names = {name: name for name in cls.__struct_fields__} | {"allowed": "allowed_types", "denied": "denied_types"}
        for name in members:
            refuse_unknown("member", name, names)
        return cls(**{names[name]: value for name, value in members.items()})

    def arguments(self, now: int) -> Mapping[str, Any]:
        changed = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not UNSET}
        return {"members": read_rule_members(changed)}


HEARTBEAT: Final = msgspec.json.Decoder(HeartbeatBody)
