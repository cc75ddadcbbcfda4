"""How the attributes of agents' tasks are read and shown."""

from __future__ import annotations

from ojster.agents.attributes import ATTRIBUTES, FINAL_ERRORS, SYSTEM_MANAGED, decode_state, is_agent_task, read_agent
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.jobs.attributes import AttributeReader, Attributes


class Reader(AttributeReader):
    """Reads ``ext_agent_*``. Spec: ojs-ai-agents."""

    names = ATTRIBUTES
    set_by_server = SYSTEM_MANAGED
    final_errors = FINAL_ERRORS

    def read(self, type: str, args: bytes, members: Members, attributes: Attributes) -> None:
        """Read the task of an agent."""
        if is_agent_task(members):
            attributes.values["agents"] = read_agent(members)

    def show(self, job: Job) -> bytes:
        """Return what the server keeps about the task."""
        return b"" if job.agent is None else decode_state(job.agent).to_json()
