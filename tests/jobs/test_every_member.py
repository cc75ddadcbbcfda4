"""Every member of a request has an effect, is refused, or brings a warning; unknown ones are kept, and null is absence.

Spec: ojs-json-format 14.2, 14.3
"""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec
import pytest

from ojster.agents import attributes as agents
from ojster.client.client import HttpClient
from ojster.core.json_objects import read_members
from ojster.core.parsing import without_nulls
from ojster.fleet import ml_resources as ml
from ojster.jobs.attributes import OF_WORKFLOWS, readers
from ojster.jobs.new_job import NewJob, read_job, warnings_of
from ojster.jobs.options_wire import AT_TOP, OptionsBody
from ojster.jobs.policy_wire import RetryPolicyBody, UniquePolicyBody
from ojster.jobs.rate_limit_wire import RateLimitBody
from ojster.server.application import Application
from ojster.server.endpoints import routes_of
from ojster.workflows import definition
from ojster.workflows.plan import request as plan
from ojster.workflows.plan.rules import CHILDREN, NODE_MEMBERS, OF_STEPS
from tests.client.in_memory import InMemoryTransport, connect, to
from tests.conftest import Bench, Http, request

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000_000_000
BASE = "/ojs/v1"

OPTIONS: dict[str, Any] = {
    "queue": "mail",
    "priority": 5,
    "timeout": 5,
    "timeout_ms": 5,
    "total_timeout": 5,
    "total_timeout_ms": 5,
    "enqueue_ttl": 5,
    "enqueue_ttl_ms": 5,
    "visibility_timeout": 5,
    "visibility_timeout_ms": 5,
    "scheduled_at": "+PT1H",
    "delay_until": "+PT1H",
    "expires_at": "+PT1H",
    "retry": {"max_attempts": 7},
    "unique": {"keys": ["type"]},
    "grace_period": 5,
    "heartbeat_timeout": 5,
    "result_ttl": 5,
    "result_size_limit": 5,
    "tags": ["x"],
    "pending": True,
    "rate_limit": {"key": "k", "concurrency": 1},
    "retry_policy": {"max_attempts": 7},
    "max_attempts": 7,
    "metadata": {"c": 1},
}
"""Each option with a value that is not its default."""

POLICIES: dict[str, dict[str, Any]] = {
    "retry": {
        "max_attempts": 7,
        "initial_interval": "PT2S",
        "backoff_coefficient": 3.0,
        "max_interval": "PT6M",
        "jitter": False,
        "non_retryable_errors": ["x"],
        "on_exhaustion": "dead_letter",
        "backoff_strategy": "linear",
    },
    "unique": {
        "keys": ["queue"],
        "args_keys": ["a"],
        "meta_keys": ["a"],
        "period": "PT1H",
        "period_ms": 5,
        "states": ["active"],
        "on_conflict": "replace",
        "key": ["args"],
        "within": "PT1H",
    },
    "rate_limit": {"key": "k", "concurrency": 1, "rate": {"limit": 1, "period": "PT1S"},
        "throttle": {"limit": 1, "period": "PT1S"}, "on_limit": "drop", "max_per_second": 5},
}  # fmt: skip
"""Each member of a policy with a value that is not its default."""

ROOTS: dict[str, dict[str, Any]] = {"rate_limit": {"key": "other"}}
"""What a policy must have beside the member."""

ATTRIBUTE_VALUES: dict[str, tuple[str, Any]] = {
    "ojster_code": ("ojster.code", {"body": "def body(job):\n    return 1\n"}),
    "expiration_delay": ("a", "PT1H"),
    "event_reactions": ("a", {"on_success": [{"action": "enqueue", "job": {"type": "b", "args": []}}]}),
    "ojster_wait": ("ojster.wait", {"delay": "PT1H"}),
    "requires": ("a", ["gpu"]),
    "schema": ("a", "urn:ojs:schema:a:v1"),
    "version": ("a", "2"),
}
"""Each attribute, with a type of job that may have it."""


def read(body: dict[str, Any]) -> NewJob:
    return read_job(
        read_members(msgspec.json.encode({"type": "a", "args": [{"a": 1, "b": 2}], "meta": {"a": 1, "b": 2}} | body)),
        NOW,
        largest=100_000,
    )


def told(job: NewJob) -> dict[str, Any]:
    """Return all that a job has, except its id and what it shows of its options."""
    fields = msgspec.structs.asdict(job)
    meta = json.loads(fields.pop("envelope"))["meta"]
    return {name: value for name, value in fields.items() if name not in ("id", "warnings")} | {"meta": meta}


def test_the_tables_have_every_member() -> None:
    assert OPTIONS.keys() == set(OptionsBody.__struct_fields__)
    bodies = {"retry": RetryPolicyBody, "unique": UniquePolicyBody, "rate_limit": RateLimitBody}
    assert {name: set(body.__struct_fields__) for name, body in bodies.items()} == {
        name: set(members) for name, members in POLICIES.items()
    }
    assert {name for name in readers().names if name not in ATTRIBUTE_VALUES} == agents.ATTRIBUTES | ml.ATTRIBUTES
    assert OF_WORKFLOWS <= NODE_MEMBERS | CHILDREN


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("place", ["options", "top"])
def test_every_option_has_an_effect(name: str, place: str) -> None:
    if place == "top" and name not in AT_TOP:
        pytest.skip("this is no option at the top")
    job = read({name: OPTIONS[name]} if place == "top" else {"options": {name: OPTIONS[name]}})
    assert job.warnings == ()
    if name == "tags":
        assert json.loads(job.envelope)["tags"] == ["x"], "tags are for filters"
    else:
        assert told(job) != told(read({}))


@pytest.mark.parametrize("name", [f"{policy}.{name}" for policy, members in POLICIES.items() for name in members])
def test_every_member_of_a_policy_has_an_effect(name: str) -> None:
    policy, member = name.split(".")
    others: dict[str, Any] = ROOTS.get(policy, {})
    if member == "meta_keys":
        others = {"keys": ["meta"], "meta_keys": ["b"]}
    elif member == "args_keys":
        others = {"keys": ["args"], "args_keys": ["b"]}
    elif member == "max_per_second":
        others = {}  # beside a key, it brings a warning
    given = {"options": {policy: others | {member: POLICIES[policy][member]}}}
    before = {"options": {policy: others}} if others or policy == "unique" else {}
    with_it, without = read(given), read(before)
    assert with_it.warnings == ()
    envelopes = [json.loads(job.envelope) for job in (with_it, without)]
    if policy == "retry" and member != "max_attempts":  # read again from the envelope when an attempt fails
        assert envelopes[0]["retry"] == {member: POLICIES[policy][member]}
    else:
        assert told(with_it) != told(without)


@pytest.mark.parametrize("name", ["options.prioriy", "retry.max_atempts", "unique.kees", "rate_limit.concurency"])
def test_a_misspelt_option_is_kept_and_brings_a_warning(name: str) -> None:
    policy, member = name.split(".")
    rooted: dict[str, dict[str, Any]] = {"unique": {"keys": ["type"]}, "rate_limit": {"key": "k", "concurrency": 1}}
    others = rooted.get(policy, {})
    job = read({"options": {member: 5} if policy == "options" else {policy: others | {member: 5}}})
    assert len(job.warnings) == 1
    assert member in job.warnings[0]
    envelope = json.loads(job.envelope)
    assert envelope[policy][member] == 5


@pytest.mark.parametrize("name", sorted(readers().names | OF_WORKFLOWS))
def test_a_member_among_the_options_is_kept_and_brings_a_warning(name: str) -> None:
    job = read({"options": {name: 5}})
    assert json.loads(job.envelope)["options"] == {name: 5}
    assert job.warnings == (f"The option {name!r} has no effect; put it beside the 'options', not into them.",)


@pytest.mark.parametrize("name", sorted({*AT_TOP, *readers().names, "options", "meta"}))
def test_a_misspelt_member_is_kept_and_brings_a_warning(name: str) -> None:
    for misspelt in (name[:-1], name + "x"):
        if len(misspelt) < 4:
            continue
        job = read({misspelt: 5})
        assert json.loads(job.envelope)[misspelt] == 5
        assert [f"{misspelt!r}" in warning for warning in job.warnings] == [True]


@pytest.mark.parametrize("name", sorted(OF_WORKFLOWS))
def test_a_member_of_steps_brings_a_warning_in_a_job_alone(name: str) -> None:
    job = read({name: True})
    assert json.loads(job.envelope)[name] is True
    assert job.warnings == (f"The member {name!r} has an effect only in steps of workflows.",)


@pytest.mark.parametrize("name", ["colour", "x_custom", "traceparent", "parent_id", "customer"])
def test_other_unknown_members_are_kept_without_a_warning(name: str) -> None:
    job = read({name: {"a": None}, "options": {name: None}})
    envelope = json.loads(job.envelope)
    assert (envelope[name], envelope["options"]) == ({"a": None}, {name: None})
    assert job.warnings == ()


@pytest.mark.parametrize("name", sorted({*AT_TOP, *readers().names, "id", "meta", "options", "specversion"}))
def test_null_counts_as_absent(name: str) -> None:
    plain = read({"meta": {}} if name == "meta" else {})
    bodies = [{name: None}] + ([{"options": {name: None}}] if name in AT_TOP else [])
    for body in bodies:
        job = read(body)
        assert told(job) == told(plain)
        assert json.loads(job.envelope).keys() == json.loads(plain.envelope).keys()


@pytest.mark.parametrize("name", [f"{policy}.{name}" for policy, members in POLICIES.items() for name in members])
def test_null_counts_as_absent_in_policies(name: str) -> None:
    policy, member = name.split(".")
    others: dict[str, Any] = {"rate_limit": {"key": "k", "concurrency": 1}}.get(policy, {})
    others = {other: value for other, value in others.items() if other != member}
    if policy == "rate_limit" and "key" not in others:
        others = {}
    assert told(read({"options": {policy: others | {member: None}}})) == told(read({"options": {policy: others}}))


def test_null_counts_as_absent_in_attributes_of_resources() -> None:
    for name in ("ext_ml_gpu_count", "ext_ml_timeout_seconds", "ext_agent_model", "ext_agent_token_budget"):
        assert told(read({name: None})) == told(read({}))


BODIES = sorted(
    {route.body for route in routes_of() if isinstance(route.body, type) and issubclass(route.body, msgspec.Struct)},
    key=lambda body: body.__name__,
)


@pytest.mark.parametrize("body", BODIES, ids=[body.__name__ for body in BODIES])
def test_null_counts_as_absent_in_every_member_that_a_request_may_leave_out(body: type[msgspec.Struct]) -> None:
    optional = [field for field in msgspec.structs.fields(body) if not field.required]
    for field in optional:
        raw = msgspec.json.encode({field.encode_name: None})
        left = without_nulls(raw, body)
        try:
            msgspec.convert({}, body)
        except msgspec.ValidationError:
            required = "missing required"
            with pytest.raises(msgspec.ValidationError, match=required):
                msgspec.json.decode(left, type=body)
        else:
            msgspec.json.decode(left, type=body)


WORKFLOW_MEMBERS = sorted(
    plan.MEMBERS | definition.OF_DEFINITIONS | {"callbacks", "failure_policy", "over", "do", "orchestrator"}
)
STEP_MEMBERS = sorted(OF_STEPS - {"type"})


@pytest.mark.parametrize("name", [*WORKFLOW_MEMBERS, *(f"steps.{name}" for name in STEP_MEMBERS)])
async def test_null_counts_as_absent_in_workflows_and_steps(bench: Bench, name: str) -> None:
    where, _, member = name.rpartition(".")
    step: dict[str, Any] = {"type": "a", "args": []} | ({member: None} if where else {})
    wire = {"steps": [step, {"type": "b", "args": []}], "type": "chain"} | ({} if where else {member: None})
    wire["type"] = wire["type"] or "chain"
    new = await bench.service.workflows.prepare(read_members(msgspec.json.encode(wire)))
    plain = {"type": "chain", "steps": [{"type": "a", "args": []}, {"type": "b", "args": []}]}
    expected = await bench.service.workflows.prepare(read_members(msgspec.json.encode(plain)))
    shown = [msgspec.to_builtins((one.plan.nodes, one.timeout, one.params, one.metadata)) for one in (new, expected)]
    assert shown[0] == shown[1]
    assert new.unknown == []


@pytest.mark.parametrize("name", sorted(agents.ATTRIBUTES | ml.ATTRIBUTES))
def test_an_attribute_of_an_extension_is_no_mistake(name: str) -> None:
    assert not warnings_of({name: msgspec.Raw(b"null")})


async def test_a_request_with_nulls_is_answered_as_one_without(http: Http) -> None:
    await http.push(type="a")
    fetch = {"queues": ["default"], "count": None, "wait_ms": None, "weights": None, "worker_id": None}
    (job,) = (await http("POST", f"{BASE}/workers/fetch", fetch)).json()["jobs"]
    ack = {"acks": [{"job_id": job["id"], "append": None, "result": None, "attempt": None}], "fetch": None}
    answer = await http("POST", f"{BASE}/workers/ack/batch", ack)
    assert [result["state"] for result in answer.json()["results"]] == ["completed"]


async def test_the_answer_to_a_push_has_the_warnings(http: Http) -> None:
    job = {"type": "a", "args": [], "prioriy": 5, "depends_on": ["x"]}
    answer = await http("POST", f"{BASE}/jobs", job)
    assert answer.status_code == 201
    assert len(answer.json()["warnings"]) == 2
    assert answer.json()["job"]["prioriy"] == 5
    for path, body in (("batch", {}), ("batch", {"mode": "partial"}), ("bulk", {})):
        many = await http("POST", f"{BASE}/jobs/{path}", {"jobs": [{"type": "a", "args": []}, job]} | body)
        assert [warning[:24] for warning in many.json()["warnings"]] == ["The job at index 1: The "] * 2
    assert "warnings" not in (await http("POST", f"{BASE}/jobs", {"type": "a", "args": []})).json()


async def test_a_workflow_with_unknown_members_is_created_with_warnings(http: Http) -> None:
    inner = {"type": "chain", "colour": "red", "steps": [{"type": "a", "args": []}]}
    batch = {"type": "batch", "jobs": [inner], "callbacks": {"on_complete": inner, "on_end": inner}, "on_eror": 5}
    answer = await http("POST", f"{BASE}/workflows", batch)
    assert answer.status_code == 201, answer.text
    places = [warning.partition(":")[0] for warning in answer.json()["warnings"]]
    assert sorted(places) == [
        "$.callbacks.on_complete.colour",
        "$.callbacks.on_end",
        "$.jobs[0].colour",
        "$.on_eror",
    ]
    definition = await http("POST", f"{BASE}/definitions", batch | {"name": "d"})
    assert (definition.status_code, "on_eror" in definition.text) == (400, True)
    nested = {"name": "d", "type": "chain", "steps": [inner]}
    definition = await http("POST", f"{BASE}/definitions", nested)
    assert (definition.status_code, "colour" in definition.text) == (400, True)


@pytest.mark.parametrize("way", ["database", "alone", "together"])
async def test_python_logs_the_warnings(bench: Bench, caplog: pytest.LogCaptureFixture, way: str) -> None:
    client: Any = bench.service
    if way != "database":
        client = HttpClient("http://test")
        connect(client, InMemoryTransport(to(Application(bench.service))))
    jobs = [request("t", prioriy=5) for _ in range(2 if way == "together" else 1)]
    with caplog.at_level(logging.WARNING, "ojster"):
        await client.jobs.enqueue(jobs)
    assert caplog.text.count("did you mean 'priority'?") == len(jobs)
    if way != "database":
        await client.close()


@pytest.mark.parametrize("path", ["jobs", "workflows"])
async def test_a_repeated_request_with_an_idempotency_key_changes_nothing(http: Http, path: str) -> None:
    job = {"type": "a", "args": [1]}
    body: dict[str, Any] = job if path == "jobs" else {"type": "chain", "steps": [job]}
    headers = {"Idempotency-Key": "order-42"}
    first = await http("POST", f"{BASE}/{path}", body, headers=headers)
    again = await http("POST", f"{BASE}/{path}", body, headers=headers)
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()
    other = await http("POST", f"{BASE}/{path}", body | {"meta": {"a": 1}}, headers=headers)
    assert other.status_code == 409
    assert (await http("POST", f"{BASE}/{path}", body, headers={"Idempotency-Key": "x" * 300})).status_code == 400
    assert len((await http("GET", f"{BASE}/jobs")).json()["jobs"]) == 1


async def test_a_refused_push_does_not_use_up_its_idempotency_key(http: Http) -> None:
    headers = {"Idempotency-Key": "order-43"}
    unique = {"type": "a", "args": [], "unique": {"keys": ["type"]}}
    (await http("POST", f"{BASE}/jobs", unique))
    assert (await http("POST", f"{BASE}/jobs", unique, headers=headers)).status_code == 409
    (job,) = await http.fetch()
    await http("POST", f"{BASE}/workers/ack", {"job_id": job["id"]})
    assert (await http("POST", f"{BASE}/jobs", unique, headers=headers)).status_code == 201
