"""Every option and attribute of a job does the same wherever a job is described: alone, in a cron job, in a chain …"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
import pytest

from ojster.core.job import Job
from ojster.jobs.attributes import readers
from ojster.jobs.options_wire import AT_TOP
from tests.conftest import Bench, Http
from tests.jobs.test_every_member import OPTIONS
from tests.options.scenes import BASE, server

pytestmark = pytest.mark.anyio

ENQUEUE_B: Final = {"on_success": [{"action": "enqueue", "job": {"type": "b", "args": []}}]}

ATTRIBUTES: Final[dict[str, Any]] = {
    "meta": {"c": 1},
    "version": "2.0",
    "schema": "urn:ojs:schema:a:v1",
    "requires": {"region": "eu"},
    "expiration_delay": "PT1H",
    "event_reactions": ENQUEUE_B,
    "ext_ml_gpu_count": 1,
    "ext_agent_model": "m",
    "x_custom": 7,
}
"""Attributes beside the options."""

ELSEWHERE: Final = {"ojster_code", "ojster_wait"}
"""Attributes of types of their own: tests/jobs/test_every_member.py has them."""

CASES: Final[dict[str, dict[str, Any]]] = {
    **{f"options.{name}": {"options": {name: value}} for name, value in OPTIONS.items()},
    **{name: {name: OPTIONS[name]} for name in sorted(AT_TOP)},
    **{f"attribute {name}": {name: value} for name, value in ATTRIBUTES.items()},
}

MISSPELT: Final[dict[str, dict[str, Any]]] = {
    "options.prioriy": {"options": {"prioriy": 5}},
    "prioriy": {"prioriy": 5},
    "retry.max_atempts": {"options": {"retry": {"max_atempts": 5}}},
    "ext_ml_gpu_cout": {"ext_ml_gpu_cout": 1},
    "ext_agent_modle": {"ext_agent_modle": "m"},
}
"""Members that look like a mistake, by the name that a warning, or a refusal, has."""

FIRST: Final = {"type": "first", "args": [], "options": {"queue": "begin", "retry": {"max_attempts": 1}}}
"""A job in a queue of its own, which runs before the job that is tried."""

Members = dict[str, Any]
Answer = dict[str, Any]
Place = Callable[["Server", Members], Awaitable[Answer]]


class Refused(Exception):
    """The server has refused a request."""


class Server:
    """A server, and what places do with it."""

    def __init__(self, http: Http, bench: Bench) -> None:
        self._http = http
        self.bench = bench
        self._number = 0

    async def send(self, method: str, path: str, body: Any = None) -> Answer:
        answer = await self._http(method, BASE + path, body)
        if answer.status_code >= 400:
            raise Refused(answer.text)
        content: Answer = answer.json()
        return content

    async def workflow(self, **members: Any) -> Answer:
        return await self.send("POST", "/workflows", members)

    async def succeed(self) -> None:
        await self.bench.ack(await self.bench.fetch_one("begin"), b"1")
        await self.bench.run_all_due()

    async def fail(self) -> None:
        await self.bench.fail(await self.bench.fetch_one("begin"))

    def name(self) -> str:
        self._number += 1
        return f"n{self._number}"

    async def job(self, type: str) -> Job:
        (job,) = (await self.send("GET", f"/jobs?type={type}"))["jobs"]
        return await self.bench.find(job["id"])


async def alone(server: Server, job: Members) -> Answer:
    return await server.send("POST", "/jobs", job)


async def in_bulk(server: Server, job: Members) -> Answer:
    return await server.send("POST", "/jobs/bulk", {"jobs": [job]})


async def in_a_cron_job(server: Server, job: Members) -> Answer:
    return await _cron(server, {"job_template": job})


async def beside_a_cron_expression(server: Server, job: Members) -> Answer:
    return await _cron(server, job)


async def _cron(server: Server, members: Members) -> Answer:
    cron = {"name": server.name(), "expression": "0 0 1 1 *"}
    registered = await server.send("POST", "/cron", cron | members)
    await server.send("POST", f"/cron/{cron['name']}/trigger")
    return registered


async def in_a_chain(server: Server, job: Members) -> Answer:
    return await server.workflow(type="chain", steps=[job])


async def after_another_step(server: Server, job: Members) -> Answer:
    made = await server.workflow(type="chain", steps=[FIRST, job])
    await server.succeed()
    return made


async def for_each_element(server: Server, job: Members) -> Answer:
    return await server.workflow(type="map", over=[1], do=job)


async def as_a_callback(server: Server, job: Members) -> Answer:
    made = await server.workflow(type="batch", jobs=[FIRST], callbacks={"on_complete": job})
    await server.succeed()
    return made


async def as_a_fallback(server: Server, job: Members) -> Answer:
    made = await server.workflow(type="chain", steps=[FIRST | {"fallback": job}])
    await server.fail()
    return made


async def as_a_compensation(server: Server, job: Members) -> Answer:
    made = await server.workflow(type="saga", steps=[FIRST | {"compensate": job}, FIRST])
    await server.succeed()
    await server.fail()
    return made


async def after_an_error(server: Server, job: Members) -> Answer:
    made = await server.workflow(type="chain", steps=[FIRST], on_error=job)
    await server.fail()
    return made


async def in_a_flow(server: Server, job: Members) -> Answer:
    return await server.workflow(type="flow", job=job)


async def added_by_a_job(server: Server, job: Members) -> Answer:
    await server.workflow(type="chain", steps=[FIRST])
    first = await server.bench.fetch_one("begin")
    return await server.send("POST", "/workers/ack", {"job_id": first.id, "append": [job]})


async def in_a_definition(server: Server, job: Members) -> Answer:
    name = server.name()
    await server.send("POST", "/definitions", {"name": name, "type": "chain", "steps": [job]})
    return await server.workflow(definition=name)


async def in_a_workflow_of_a_cron_job(server: Server, job: Members) -> Answer:
    return await _cron(server, {"workflow": {"type": "chain", "steps": [job]}})


async def as_a_reaction(server: Server, job: Members) -> Answer:
    reactions = {"on_success": [{"action": "enqueue", "job": job}]}
    made = await server.send("POST", "/jobs", FIRST | {"event_reactions": reactions})
    await server.succeed()
    return made


async def by_its_type(server: Server, job: Members) -> Answer:
    own = {name: job[name] for name in ("type", "args")}
    put = await server.send("PUT", f"/job-types/{job['type']}", {name: job[name] for name in job.keys() - own.keys()})
    await server.send("POST", "/jobs", own)
    return put


PLACES: Final[list[Place]] = [
    in_bulk,
    in_a_cron_job,
    beside_a_cron_expression,
    in_a_chain,
    after_another_step,
    for_each_element,
    as_a_callback,
    as_a_fallback,
    as_a_compensation,
    after_an_error,
    in_a_flow,
    added_by_a_job,
    in_a_definition,
    in_a_workflow_of_a_cron_job,
    as_a_reaction,
    by_its_type,
]

NOT_IN_WORKFLOWS: Final = {"options.pending", "pending"}
"""Options that a step refuses: ``manual`` holds it back."""

REFUSED: Final[dict[Place, set[str]]] = {
    **dict.fromkeys(PLACES, NOT_IN_WORKFLOWS),
    **{place: set() for place in (in_bulk, in_a_cron_job, beside_a_cron_expression, as_a_reaction)},
    by_its_type: {"attribute schema", "attribute version"},
}
"""What each place refuses: other places have it."""

_OF_THE_PLACE: Final = frozenset({"id", "type", "seq", "node", "cron_name", "shared", "parent_results", "envelope"})
"""What a job has for where it comes from."""

_META_OF_THE_PLACE: Final = ("cron_", "ojster.")

_OWN_MEMBERS: Final = frozenset({"id", "type", "workflow_id", "workflow_step"})


def shown(job: Job) -> Mapping[str, Any]:
    """Return all that a job has, but for what its place gives it. Times count from its creation."""
    envelope = {name: value for name, value in json.loads(job.envelope).items() if name not in _OWN_MEMBERS}
    meta = envelope["meta"]
    envelope["meta"] = {name: meta[name] for name in meta if not name.startswith(_META_OF_THE_PLACE)}
    fields = {name: value for name, value in msgspec.structs.asdict(job).items() if name not in _OF_THE_PLACE}
    fields["unique_key"] = fields["unique_key"] is not None
    return fields | envelope


async def made(place: Place, cases: Mapping[str, Members]) -> dict[str, Mapping[str, Any] | str]:
    """Return what each case makes of a job at a place, or why it is refused; all on one server."""
    jobs: dict[str, Mapping[str, Any] | str] = {}
    async with server() as (http, bench):
        there = Server(http, bench)
        await there.send("POST", "/schemas", {"job_type": "a", "version": 1, "schema": {}})
        for number, (name, members) in enumerate(cases.items()):
            type = f"a{number}"
            try:
                await place(there, {"type": type, "args": [{"a": 1}]} | members)
                jobs[name] = shown(await there.job(type))
            except Refused as refusal:
                jobs[name] = str(refusal)
    return jobs


def test_each_option_and_each_attribute_is_tried() -> None:
    tried = {name for case in CASES.values() for name in (case | case.get("options", {}))}
    assert tried >= AT_TOP | (
        readers().names - ELSEWHERE - {name for name in readers().names if name.startswith("ext_")}
    )
    assert set(OPTIONS) <= {name for case in CASES.values() for name in case.get("options", {})}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
async def test_options_do_the_same_wherever_a_job_is_described(place: Place) -> None:
    expected, jobs = await made(alone, CASES), await made(place, CASES)
    refused = {name for name, job in jobs.items() if isinstance(job, str)}
    assert refused == REFUSED[place], jobs
    assert {name: jobs[name] for name in CASES if name not in refused} == {
        name: expected[name] for name in CASES if name not in refused
    }


@pytest.mark.parametrize(
    "place", [alone, *(place for place in PLACES if place is not added_by_a_job)], ids=lambda place: place.__name__
)
async def test_misspelt_options_bring_a_warning_or_are_refused_wherever_a_job_is_described(place: Place) -> None:
    async with server() as (http, bench):
        there = Server(http, bench)
        for number, (name, members) in enumerate(MISSPELT.items()):
            try:
                said = str((await place(there, {"type": f"a{number}", "args": []} | members)).get("warnings"))
            except Refused as refusal:
                said = str(refusal)
            assert f"'{name.rpartition('.')[2]}'" in said


async def test_a_report_is_not_lost_for_what_a_job_that_it_adds_does_not_use() -> None:
    async with server() as (http, bench):
        answer = await added_by_a_job(
            Server(http, bench), {"type": "b", "args": [], "params": {"x": 1}, "prioritys": 3}
        )
        assert answer["acknowledged"] is True
        assert (await bench.fetch_one()).type == "b"
