"""The page of limits: each value is that of the code, and each limit does what the page says."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import pytest

from ojster.core import json_objects, property_values, schema_cost, wire
from ojster.core.settings import ServiceSettings
from ojster.events import reaction_rules
from ojster.jobs import checkpoints, code, filters, job_types, names, new_job, queries, rate_limit_wire, signatures
from ojster.schedules import cron_expression
from ojster.server.application import Application
from ojster.service import Service
from ojster.workflows import definition, locks
from ojster.workflows.plan import conditions, members, reader
from ojster.workflows.plan import request as plan
from tests.conftest import Http

pytestmark = pytest.mark.anyio

PAGE: Final = Path(__file__).parent.parent / "docs" / "limits.md"

Request = tuple[str, str, Any]
Probe = tuple[int, Callable[[int], Request]]
"""A limit, and a request that is as large as a number says."""

JOB: Final = {"type": "a", "args": []}
SIZE_OF_JOB: Final = 200
"""More than what a job without arguments takes."""


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def containers(levels: int) -> Any:
    step: Any = JOB
    for _ in range(levels):
        step = {"type": "chain", "steps": [step]}
    return step


def workflow(**members: Any) -> Request:
    return "POST", "/workflows", {"type": "chain", "steps": [JOB]} | members


def started(**members: Any) -> Request:
    return "POST", "/workflows", {"definition": "known"} | members


def schema(parts: int) -> Request:
    return "POST", "/schemas", {"job_type": "s", "version": parts, "schema": {"enum": list(range(parts - 2))}}


def reactions(number: int) -> dict[str, Any]:
    return {"on_success": [{"action": "enqueue", "job": JOB}] * number}


def cron(length: int) -> str:
    pairs, odd = divmod(length - len("0 0  * *"), 2)
    return f"0 0 {'1,' * (pairs - 1)}{'1,1' if odd else '10'} * *"


def definition_of(size: int) -> dict[str, Any]:
    steps = [{"type": "a", "args": ["x" * (size // 2)]}, {"type": "a", "args": [""]}]
    wire = {"steps": steps, "type": "chain"}
    steps[1]["args"] = ["x" * (size - len(msgspec.json.encode(wire)))]
    return wire


SETTINGS: Final = ServiceSettings()

PROBES: Final[dict[str, Probe]] = {
    "job": (SETTINGS.largest_job, lambda n: ("POST", "/jobs", {"type": "a", "args": ["x" * (n - SIZE_OF_JOB)]})),
    "metadata of a job": (
        new_job.MAX_META_BYTES,
        lambda n: ("POST", "/jobs", JOB | {"meta": {"x": "x" * (n - 8)}}),
    ),
    "jobs in one request": (SETTINGS.largest_batch, lambda n: ("POST", "/jobs/batch", {"jobs": [JOB] * n})),
    "job type": (names.MAX_TYPE_LENGTH, lambda n: ("POST", "/jobs", JOB | {"type": "a" * n})),
    "queue name": (names.MAX_QUEUE_NAME_LENGTH, lambda n: ("POST", "/jobs", JOB | {"options": {"queue": "q" * n}})),
    "depth of JSON": (
        json_objects.MAX_NESTING_DEPTH,
        lambda n: ("POST", "/workers/heartbeat", {"worker_id": "w", "unknown": nested(n - 1)}),
    ),
    "depth of a value": (
        json_objects.MAX_VALUE_DEPTH,
        lambda n: ("POST", "/jobs", {"type": "a", "args": nested(n)}),
    ),
    "rate limit key": (
        rate_limit_wire.LONGEST_KEY,
        lambda n: ("POST", "/jobs", JOB | {"options": {"rate_limit": {"key": "k" * n, "concurrency": 1}}}),
    ),
    "reactions to an event": (
        reaction_rules.MAX_ACTIONS,
        lambda n: ("POST", "/jobs", JOB | {"event_reactions": reactions(n)}),
    ),
    "code of a job": (
        code.LARGEST_BODY,
        lambda n: (
            "POST",
            "/jobs",
            {
                "type": "ojster.code",
                "args": [],
                "ojster_code": {"body": "def body(job):\n    return 1\n#".ljust(n, "x")},
            },
        ),
    ),
    "defaults of a job type": (
        job_types.MAX_DEFAULTS_BYTES,
        lambda n: ("PUT", "/job-types/a", {"meta": {"x": "x" * (n - 17)}}),
    ),
    "arguments of a job type, as a worker announces them": (
        signatures.MAX_SIGNATURE_BYTES,
        lambda n: ("PUT", "/signatures", {"signatures": [{"type": "a", "schema": {"x": "x" * (n - 8)}}]}),
    ),
    "job types whose arguments a worker announces": (
        signatures.MAX_SIGNATURES,
        lambda n: ("PUT", "/signatures", {"signatures": [{"type": f"t{i}", "schema": {}} for i in range(n)]}),
    ),
    "parts of a schema": (schema_cost.MAX_PARTS, schema),
    "parameters of a workflow": (plan.MAX_PARAMS_BYTES, lambda n: workflow(params={"x": "x" * (n - 8)})),
    "unknown members of a workflow or a container": (
        members.MAX_OTHERS_BYTES,
        lambda n: workflow(**{"x-more": "x" * (n - 13)}),
    ),
    "depth of containers": (reader.MAX_LEVELS, lambda n: ("POST", "/workflows", containers(n))),
    "condition": (
        conditions.LONGEST_CONDITION,
        lambda n: workflow(steps=[JOB | {"if": "params.x == '".ljust(n - 1, "x") + "'"}]),
    ),
    "definition": (definition.LARGEST_DEFINITION, lambda n: ("PUT", "/definitions/known", definition_of(n))),
    "target": (definition.LONGEST_TARGET, lambda n: started(target="t" * n)),
    "lock": (locks.MAX_LOCK_LENGTH, lambda n: started(target=f"t{n}", locks="l" * n)),
    "properties of a workflow": (
        property_values.MAX_PROPERTIES,
        lambda n: workflow(properties={f"p{number}": 1 for number in range(n)}),
    ),
    "property": (
        property_values.MAX_PROPERTY_BYTES,
        lambda n: workflow(properties={"p": "x" * (n - 2)}),
    ),
    "cron expression": (
        cron_expression.LONGEST_EXPRESSION,
        lambda n: ("POST", "/cron", {"name": "c", "expression": cron(n), "type": "a"}),
    ),
    "job types of a worker": (
        wire.MAX_JOB_TYPES,
        lambda n: ("POST", "/workers/heartbeat", {"worker_id": "w", "job_types": [f"t{i}" for i in range(n)]}),
    ),
    "checkpoint": (
        checkpoints.MAX_CHECKPOINT_BYTES,
        lambda n: ("PUT", "/jobs/{job}/checkpoint", {"state": "x" * (n - 2)}),
    ),
    "values of a condition of a filter": (
        filters.MAX_VALUES,
        lambda n: ("POST", "/jobs/bulk/cancel", {"filter": {"tag": [f"t{i}" for i in range(n)]}, "dry_run": True}),
    ),
    "value of a condition of a filter": (
        filters.MAX_TEXT,
        lambda n: ("POST", "/jobs/bulk/cancel", {"filter": {"tag": "t" * n}, "dry_run": True}),
    ),
}


def rows() -> dict[str, tuple[int, int]]:
    """Return the value and the status in each row of the page, by the name of the limit."""
    found = {}
    for line in PAGE.read_text().partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and (status := re.match(r"(\d{3})\b", cells[3])):
            found[cells[0]] = (number(cells[1]), int(status[1]))
    return found


def number(text: str) -> int:
    amount, _, unit = text.replace(",", "").partition(" ")
    return int(amount) * {"KiB": 1 << 10, "MiB": 1 << 20}.get(unit, 1)


def test_the_page_and_the_code_have_the_same_limits() -> None:
    assert {name: value for name, (value, _) in rows().items()} == {name: value for name, (value, _) in PROBES.items()}


@pytest.fixture
async def server(service: Service) -> AsyncIterator[Http]:
    transport = httpx.ASGITransport(app=Application(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Http(client)


@pytest.mark.parametrize("name", PROBES)
async def test_what_is_at_the_limit_is_accepted_and_what_is_beyond_refused(server: Http, name: str) -> None:
    await server("POST", "/ojs/v1/definitions", {"name": "known", "type": "chain", "steps": [JOB]})
    await server.push()
    (job,) = await server.fetch()
    limit, request_of = PROBES[name]
    _, status = rows()[name]
    for size, expected in ((limit, range(200, 300)), (limit + 1, range(status, status + 1))):
        size += SIZE_OF_JOB if name == "job" and size > limit else 0
        method, path, body = request_of(size)
        answer = await server(method, "/ojs/v1" + path.format(job=job["id"]), msgspec.json.encode(body))
        assert answer.status_code in expected, f"{size}: {answer.text[:500]}"


async def test_a_page_has_at_most_so_many_entries(server: Http) -> None:
    answer = await server("GET", "/ojs/v1/jobs?limit=100000")
    assert answer.json()["pagination"]["limit"] == queries.LARGEST_PAGE
    assert f"at most {queries.LARGEST_PAGE} entries" in PAGE.read_text()
