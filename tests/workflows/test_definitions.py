"""Workflow definitions: versions, snapshots, parameters and exclusive targets."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ojster.core.errors import Conflict, Duplicate, InvalidRequest, InvalidWorkflow, NotFound
from ojster.core.json_objects import Members, read_members
from ojster.core.refusals import SchemaViolation
from ojster.jobs.scope import Caller
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.workflows.definitions import DefinitionDeletion, Named
from tests.conftest import Bench, Clock

pytestmark = pytest.mark.anyio

STEPS = [{"type": "create", "args": [{"$ref": "params.what"}]}, {"type": "star", "args": []}]
BODY = {"type": "chain", "steps": STEPS, "on_error": {"type": "mend", "args": []}, "timeout": 100}
SCHEMA = {"type": "object", "required": ["what"], "properties": {"what": {"type": "string"}}}


def members(**body: Any) -> Members:
    return read_members(msgspec.json.encode(body))


async def define(bench: Bench, **more: Any) -> Any:
    return await bench.service.definitions.create("gist", members(**BODY | more))


async def start(bench: Bench, **more: Any) -> str:
    info = await bench.service.workflows.create(members(**{"definition": "gist", "params": {"what": "x"}} | more))
    return info.id


async def finish(bench: Bench) -> list[str]:
    done = []
    while jobs := await bench.fetch():
        done.append(jobs[0].type)
        await bench.ack(jobs[0])
    return done


async def test_a_workflow_is_a_snapshot_of_the_version_that_it_was_started_from(bench: Bench) -> None:
    await define(bench)
    first = await start(bench)
    changed = await bench.service.definitions.update("gist", members(**BODY | {"steps": STEPS[1:]}))
    assert changed.version == 2
    second, third = await start(bench), await start(bench, definition_version=1)
    infos = [await bench.service.workflows.show(id) for id in (first, second, third)]
    assert [(info.definition, info.definition_version) for info in infos] == [("gist", 1), ("gist", 2), ("gist", 1)]
    assert sorted(await finish(bench)) == ["create", "create", "star", "star", "star"]
    assert [(await bench.service.workflows.show(info.id)).state for info in infos] == ["completed"] * 3


async def test_metadata_of_a_definition_is_that_of_its_workflows(bench: Bench) -> None:
    await define(bench, metadata={"team": "web", "cost": 1})
    plain, own = await start(bench), await start(bench, metadata={"cost": 2})
    alike = await start(bench, meta={"cost": 3})
    for workflow, cost in ((plain, 1), (own, 2), (alike, 3)):
        info = await bench.service.workflows.show(workflow)
        assert (info.metadata["team"], info.metadata["cost"]) == ("web", cost)
    with pytest.raises(InvalidRequest, match="'metadata' of a definition must be a JSON object"):
        await bench.service.definitions.update("gist", members(**BODY, metadata=[1]))


async def test_a_version_is_made_only_by_a_change_and_its_hashes_tell_which(bench: Bench) -> None:
    one = await define(bench)
    reordered = dict(reversed(BODY.items()))
    assert (await bench.service.definitions.update("gist", members(**reordered))).version == 1
    two = await bench.service.definitions.update("gist", members(**BODY | {"on_error": {"type": "other", "args": []}}))
    assert (two.version, one.hashes["steps"] == two.hashes["steps"]) == (2, True)
    assert one.hashes["on_error"] != two.hashes["on_error"]
    assert len(one.hashes["steps"]) == 64
    assert (await bench.service.definitions.find(Named("gist", 1))).hashes == one.hashes
    assert [known.version for known in await bench.service.definitions.all()] == [2]


async def test_parameters_must_look_as_the_definition_says(bench: Bench) -> None:
    await define(bench, params_schema=SCHEMA)
    with pytest.raises(SchemaViolation, match=r"params\.what"):
        await start(bench, params={"what": 3})
    with pytest.raises(SchemaViolation):
        await start(bench, params={})
    await start(bench)


@pytest.mark.parametrize(
    ("name", "body", "refusal"),
    [
        ("No/Name", BODY, InvalidRequest),
        ("x" * 129, BODY, InvalidRequest),
        ("gist", BODY | {"params": {}}, InvalidRequest),
        ("gist", BODY | {"target": "x"}, InvalidRequest),
        ("gist", BODY | {"params_schema": {"type": "nothing"}}, InvalidRequest),
        ("gist", {"type": "chain"}, InvalidWorkflow),
        ("gist", BODY | {"steps": [{"type": "NO TYPE", "args": []}]}, InvalidWorkflow),
        ("gist", BODY | {"colour": "red"}, InvalidWorkflow),
    ],
)
async def test_what_is_no_definition_is_refused(
    bench: Bench, name: str, body: dict[str, Any], refusal: type[Exception]
) -> None:
    with pytest.raises(refusal):
        await bench.service.definitions.create(name, members(**body))
    assert await bench.service.definitions.all() == []


async def test_a_workflow_says_nothing_that_its_definition_says(bench: Bench) -> None:
    await define(bench)
    for wrong in ({"steps": STEPS}, {"timeout": 3}, {"target": ""}, {"target": 3}, {"definition_version": "one"}):
        with pytest.raises(InvalidRequest):
            await start(bench, **wrong)
    for missing in ({"definition_version": 2}, {"definition": "other"}):
        with pytest.raises(NotFound):
            await start(bench, **missing)
    with pytest.raises(InvalidWorkflow):
        await bench.service.workflows.create(members(**BODY, target="x"))


async def test_there_is_one_unfinished_workflow_of_a_definition_a_target_and_parameters(bench: Bench) -> None:
    await define(bench)
    await bench.service.definitions.create("other", members(**BODY))
    id = await start(bench, target="/gists")
    with pytest.raises(Duplicate) as refused:
        await start(bench, target="/gists")
    assert refused.value.details["existing_workflow_id"] == id
    for different in ({"target": "/gists/1"}, {"params": {"what": "y"}}, {"definition": "other"}):
        await start(bench, **{"target": "/gists"} | different)
    await start(bench)
    await start(bench)
    await bench.service.workflows.cancel(id)
    again = await start(bench, target="/gists")
    with pytest.raises(Duplicate, match="cannot be retried"):
        await bench.service.workflows.retry(id)
    await finish(bench)
    assert (await bench.service.workflows.show(again)).state == "completed"
    await bench.service.workflows.retry(id)


async def test_parameters_that_are_written_differently_are_the_same(bench: Bench) -> None:
    await bench.service.definitions.create("d", members(**BODY))
    first, *same = (
        b'{"n":1,"list":[1e2,{"x":-0.0}],"text":"1.0"}',
        b'{"list":[100,{"x":0}],"text":"1.0","n":1.0}',
        b'{"text":"1.0", "n":10e-1, "list":[100.0,{"x":0}]}',
    )
    request = {"definition": msgspec.Raw(b'"d"'), "target": msgspec.Raw(b'"t"')}
    await bench.service.workflows.create(request | {"params": msgspec.Raw(first)})
    for params in same:
        with pytest.raises(Duplicate):
            await bench.service.workflows.create(request | {"params": msgspec.Raw(params)})
    for other in (b'{"n":1.5}', b'{"n":"1"}', b'{"n":true}'):
        await bench.service.workflows.create(request | {"params": msgspec.Raw(other)})


async def test_one_of_fifty_gets_the_target(shared_url: str) -> None:
    benches = [Bench(Service(open_database(shared_url)), Clock()) for _ in range(3)]
    await define(benches[0])

    async def one(bench: Bench) -> bool:
        try:
            await start(bench, target="t")
        except Duplicate:
            return False
        return True

    assert sum(await asyncio.gather(*[one(benches[number % 3]) for number in range(50)])) == 1
    for bench in benches:
        await bench.service.close()


async def test_a_definition_is_deleted_when_nothing_of_it_runs_or_when_that_is_wanted(bench: Bench) -> None:
    await define(bench)
    id = await start(bench)
    with pytest.raises(Conflict, match="1 unfinished workflows"):
        await bench.service.definitions.delete(DefinitionDeletion("gist"))
    await bench.service.definitions.delete(DefinitionDeletion("gist", force=True))
    with pytest.raises(NotFound):
        await bench.service.definitions.find(Named("gist"))
    assert await finish(bench) == ["create", "star"]
    assert (await bench.service.workflows.show(id)).definition == "gist"
    assert (await define(bench)).version == 1
    with pytest.raises(Duplicate):
        await define(bench)


async def test_definitions_of_tenants_are_their_own(bench: Bench) -> None:
    acme, other = bench.service.as_(Caller("acme")), bench.service.as_(Caller("other"))
    await acme.definitions.create("gist", members(**BODY))
    assert [one.version for one in await other.definitions.all()] == []
    with pytest.raises(NotFound):
        await other.workflows.create(members(definition="gist", target="t"))
    await other.definitions.create("gist", members(**BODY))
    for service in (acme, other):
        await service.workflows.create(members(definition="gist", target="t", params={"what": "x"}))
    with pytest.raises(Duplicate):
        await acme.workflows.create(members(definition="gist", target="t", params={"what": "x"}))


async def test_a_definition_has_the_name_that_its_tenant_gave(bench: Bench) -> None:
    acme = bench.service.as_(Caller("acme"))
    made = await acme.definitions.create("gist", members(**BODY, params_schema=SCHEMA))
    changed = await acme.definitions.update("gist", members(**BODY | {"steps": STEPS[1:]}, params_schema=SCHEMA))
    found = await acme.definitions.find(Named("gist"))
    assert [one.name for one in (made, changed, found, *await acme.definitions.all())] == ["gist"] * 4
    with pytest.raises(SchemaViolation, match="do not match the definition 'gist'"):
        await acme.workflows.create(members(definition="gist"))
