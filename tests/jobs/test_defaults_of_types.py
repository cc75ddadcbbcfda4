"""The defaults of a job type: what they may say, and what a job gets of them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ojster.core.errors import Forbidden, InvalidRequest, NotFound
from ojster.core.json_objects import Members
from ojster.jobs.job_types import MAX_DEFAULTS_BYTES, Defaults, JobTypeDefaults, read_defaults, with_defaults
from tests.conftest import START, Bench, request


def members(**given: Any) -> Members:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in given.items()}


def plain(of: Members) -> dict[str, Any]:
    return {name: json.loads(bytes(raw)) for name, raw in of.items()}


def applied(defaults: dict[str, Any], **given: Any) -> dict[str, Any]:
    return plain(Defaults(members(**defaults)).apply(members(**given)))


QUEUE = {"queue": "mail", "priority": 5}

APPLIED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({}, {"args": []}, {"args": []}),
    ({"options": QUEUE}, {}, {"options": QUEUE}),
    ({"options": QUEUE}, {"options": None}, {"options": QUEUE}),
    ({"options": QUEUE}, {"options": {}}, {"options": QUEUE}),
    ({"options": QUEUE}, {"options": QUEUE}, {"options": QUEUE}),
    ({"options": QUEUE}, {"options": {"queue": "web"}}, {"options": {"queue": "web", "priority": 5}}),
    ({"options": QUEUE}, {"options": {"tags": ["x"]}}, {"options": QUEUE | {"tags": ["x"]}}),
    ({"options": QUEUE}, {"queue": "web"}, {"queue": "web", "options": {"priority": 5}}),
    ({"options": {}}, {"options": {"queue": "web"}}, {"options": {"queue": "web"}}),
    ({"options": {}}, {}, {}),
    ({"meta": {"a": 1}}, {}, {"meta": {"a": 1}}),
    ({"meta": {"a": 1}}, {"meta": None}, {"meta": {"a": 1}}),
    ({"meta": {"a": 1, "b": 2}}, {"meta": {"a": 3}}, {"meta": {"a": 3, "b": 2}}),
    ({"meta": {"a": 1}}, {"meta": 5}, {"meta": 5}),
    ({"meta": {}}, {"meta": {"a": 3}}, {"meta": {"a": 3}}),
    ({"reactions": [1]}, {}, {"reactions": [1]}),
    ({"reactions": [1]}, {"reactions": []}, {"reactions": []}),
]


@pytest.mark.parametrize(("defaults", "given", "expected"), APPLIED, ids=[str(n) for n in range(len(APPLIED))])
def test_a_job_gets_what_its_request_leaves_out(
    defaults: dict[str, Any], given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert applied(defaults, **given) == expected


@pytest.mark.parametrize(
    "alike",
    [
        ("retry", "retry_policy", "max_attempts"),
        ("timeout", "timeout_ms"),
        ("total_timeout", "total_timeout_ms"),
        ("enqueue_ttl", "enqueue_ttl_ms"),
        ("visibility_timeout", "visibility_timeout_ms"),
        ("scheduled_at", "delay_until"),
    ],
)
def test_an_option_under_one_name_replaces_the_default_under_another(alike: tuple[str, ...]) -> None:
    for default in alike:
        for given in alike:
            options = applied({"options": {default: 1, "queue": "mail"}}, options={given: 2})["options"]
            assert options == {given: 2, "queue": "mail"}


def test_an_option_at_the_top_replaces_the_default_under_another_name() -> None:
    found = applied({"options": {"timeout_ms": 1, "queue": "mail"}}, timeout=2)
    assert found == {"timeout": 2, "options": {"queue": "mail"}}


def test_defaults_are_found_by_the_type_without_its_version() -> None:
    known = {"a": Defaults(members(meta={"k": 1})), "acme/a": Defaults(members(meta={"k": 2}))}

    def meta(**given: Any) -> Any:
        return plain(with_defaults(known, members(**given))).get("meta")

    assert meta(type="a") == meta(type="a@2") == {"k": 1}
    assert (meta(type="b"), meta(), meta(type="a", meta={"k": 3})) == (None, None, {"k": 3})
    assert with_defaults({}, members(type="a")) == members(type="a")


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("a@2", {}, "type", "The job type 'a@2' is invalid"),
    ("A", {}, "type", "The job type 'A' is invalid"),
    *(("a", {name: 1}, name, f"{name!r} belongs to a single job.") for name in ("id", "args", "version", "schema")),
    ("a", {"specversion": "1.0", "args": []}, "args", "'args' belongs to a single job. Leave it out."),
    ("a", {"meta": {"tenant_id": "x"}}, "meta.tenant_id", "'meta.tenant_id' belongs to a single job."),
    ("a", {"options": {"scheduled_at": "2030-01-01T00:00:00Z"}}, "options.scheduled_at", "must be relative"),
    ("a", {"options": {"expires_at": "2030-01-01T00:00:00Z"}}, "options.expires_at", "such as '+PT5M'."),
    ("a", {"options": {"priority": 101}}, "options.priority", "must be an integer"),
    ("a", {"scheduled_at": "2030-01-01T00:00:00Z"}, "options.scheduled_at", "must be relative"),
]


@pytest.mark.parametrize(("type", "given", "field", "reason"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_what_concerns_one_job_is_no_default(type: str, given: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_defaults(type, members(**given), largest=1_000_000)
    assert refused.value.details["field"] == field
    assert reason in refused.value.message


def test_defaults_are_kept_as_they_were_given() -> None:
    given = {"options": {"scheduled_at": "+PT5M", "queue": "mail"}, "meta": {"k": 1}}
    found, job = read_defaults("a", members(type="a", **given), largest=1_000_000)
    assert (found.type, json.loads(found.body), found.updated_at) == ("a", given, 0)
    assert (job.type, job.queue) == ("a", "mail")


def test_defaults_take_at_most_64_kib() -> None:
    empty = len('{"meta":{"k":""}}')
    read_defaults("a", members(meta={"k": "x" * (MAX_DEFAULTS_BYTES - empty)}), largest=1_000_000)
    with pytest.raises(InvalidRequest, match="The defaults take 65537 bytes; at most 65536 are allowed"):
        read_defaults("a", members(meta={"k": "x" * (MAX_DEFAULTS_BYTES - empty + 1)}), largest=1_000_000)


def test_defaults_name_no_queue_of_the_server() -> None:
    with pytest.raises(Forbidden, match="reserved"):
        read_defaults("a", members(options={"queue": "ojster.x"}), largest=1_000_000)


@pytest.mark.anyio
async def test_defaults_are_put_listed_and_deleted(bench: Bench) -> None:
    service = bench.service.job_types
    first = await service.put("b", members(options=QUEUE))
    assert first == JobTypeDefaults("b", b'{"options":{"queue":"mail","priority":5}}', START)
    await service.put("a", members(meta={"k": 1}))
    bench.clock.advance(1)
    assert await service.put("b", members(options=QUEUE)) == first
    assert (await service.put("a", members(meta={"k": 2}))).updated_at == START + 1_000_000
    assert [(one.type, one.updated_at) for one in await service.all()] == [("a", START + 1_000_000), ("b", START)]
    assert await service.find("b") == first
    (pushed,) = await bench.service.jobs.enqueue([request("b")])
    assert (pushed.job.queue, pushed.job.priority) == ("mail", 5)
    await service.delete("b")
    for call in (service.find("b"), service.delete("b")):
        with pytest.raises(NotFound, match="The job type 'b' has no defaults") as missing:
            await call
        assert missing.value.details == {"resource_type": "job_type", "resource_id": "b"}
    (pushed,) = await bench.service.jobs.enqueue([request("b")])
    assert pushed.job.queue == "default"
