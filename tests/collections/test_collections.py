"""Collections: items with unique names, promises, lookups, and items that jobs add."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.collections.items import Item, Matching, NewItem, Where, read_lookup
from ojster.core.errors import Conflict, InvalidRequest, InvalidWorkflow, NotFound, PayloadTooLarge, PromiseBroken
from ojster.core.json_objects import read_members
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.scope import Caller
from tests.conftest import Http, request
from tests.workflows.bench import WorkflowBench, batch, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio

RELEASES = Where("releases")


def lookup(of: Any) -> dict[str, Any]:
    return {"$lookup": of}


def many(**wanted: Any) -> dict[str, Any]:
    return lookup({"collection": "internal", **wanted})


def named(name: str, data: Any) -> dict[str, Any]:
    """An item, as a lookup of one finds it."""
    return {"name": name, "category": None, "data": data}


async def add(flow: WorkflowBench, name: str, data: Any = None, **more: Any) -> Item:
    return await flow.service.collections.add(RELEASES, NewItem(name, msgspec.json.encode(data), **more))


async def internal(flow: WorkflowBench, **more: Any) -> dict[str, Any]:
    items = await flow.service.collections.items(Where(workflow_id=flow.id), **more)
    return {item.name: msgspec.json.decode(item.data) for item in items if item.kind == "data"}


async def push(flow: WorkflowBench, **body: Any) -> str:
    raw = msgspec.json.encode({"type": "t", "args": [], **body})
    (pushed,) = await flow.service.jobs.enqueue([read_members(raw)])
    return pushed.job.id


# Named collections


async def test_an_item_is_there_under_its_name_until_it_is_removed_and_then_in_the_history(flow: WorkflowBench) -> None:
    service = flow.service
    await service.collections.create("releases", "what we ship")
    made = await add(flow, "1.0", {"file": "a"}, category="app")
    assert (made.name, made.category, made.kind, made.removed_at) == ("1.0", "app", "data", None)
    with pytest.raises(Conflict, match="has an item"):
        await add(flow, "1.0")
    await add(flow, "1.0", {"file": "b"}, replace=True)
    await service.collections.remove(RELEASES, "1.0")
    assert await service.collections.items(RELEASES) == []
    history = await service.collections.items(RELEASES, history=True)
    assert [msgspec.json.decode(item.data) for item in history] == [{"file": "a"}, {"file": "b"}]
    assert all(item.removed_at is not None for item in history)
    await add(flow, "1.0", {"file": "c"})
    (collection,) = await service.collections.all()
    assert (collection.name, collection.items, collection.description) == ("releases", 1, "what we ship")


async def test_missing_collections_and_items_are_not_found(flow: WorkflowBench) -> None:
    for call in (
        add(flow, "x"),
        flow.service.collections.items(RELEASES),
        flow.service.collections.remove(RELEASES, "x"),
        flow.service.collections.delete("releases"),
        flow.service.collections.items(Where(workflow_id="019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f")),
    ):
        with pytest.raises(NotFound):
            await call
    await flow.service.collections.create("releases")
    with pytest.raises(NotFound, match="'releases' has no item 'x'"):
        await flow.service.collections.remove(RELEASES, "x")
    with pytest.raises(Conflict):
        await flow.service.collections.create("releases")


async def test_a_collection_with_items_is_deleted_only_by_force(flow: WorkflowBench) -> None:
    await flow.service.collections.create("releases")
    await add(flow, "x")
    with pytest.raises(Conflict, match="holds 1 items"):
        await flow.service.collections.delete("releases")
    await flow.service.collections.delete("releases", force=True)
    await flow.service.collections.create("releases")
    assert await flow.service.collections.items(RELEASES, history=True) == []


async def test_collections_are_each_tenants_own(flow: WorkflowBench) -> None:
    acme, beta = flow.service.as_(Caller("acme")), flow.service.as_(Caller("beta"))
    await acme.collections.create("releases")
    await acme.collections.add(RELEASES, NewItem("x", b"1"))
    assert await beta.collections.all() == []
    with pytest.raises(NotFound):
        await beta.collections.items(RELEASES)
    await beta.collections.create("releases")
    assert await beta.collections.items(RELEASES) == []


@pytest.mark.parametrize("name", ["", "internal", "1st", "a b", "/tenant/acme/x", "a/b", "é", "a" * 129])
async def test_s73_what_is_no_name_of_a_collection_is_refused(flow: WorkflowBench, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await flow.service.collections.create(name)


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", "a" * 256])
async def test_s73_what_is_no_name_of_an_item_is_refused(flow: WorkflowBench, name: str) -> None:
    await flow.service.collections.create("releases")
    with pytest.raises(InvalidRequest):
        await add(flow, name)


async def test_too_much_data_is_refused(flow: WorkflowBench) -> None:
    await flow.service.collections.create("releases")
    with pytest.raises(PayloadTooLarge):
        await add(flow, "x", "a" * 65_536)


async def test_items_are_found_by_name_category_and_data_in_their_order(flow: WorkflowBench) -> None:
    await flow.service.collections.create("releases")
    for name, category, data in (
        ("b-2", "x", {"k": 1}),
        ("b-1", "y", {"k": 1, "l": [2]}),
        ("a-1", "x", {"k": 2}),
        ("c", "x", 3),
    ):
        await add(flow, name, data, category=category)

    async def names(**wanted: Any) -> list[str]:
        return [item.name for item in await flow.service.collections.items(RELEASES, Matching(**wanted))]

    assert await names() == ["b-2", "b-1", "a-1", "c"]
    assert await names(name_startswith="b-") == ["b-2", "b-1"]
    assert await names(name_endswith="-1") == ["b-1", "a-1"]
    assert await names(name_contains="-") == ["b-2", "b-1", "a-1"]
    assert await names(category="x", data={"k": 1}) == ["b-2"]
    assert await names(data={"l": [2]}) == ["b-1"]
    assert await names(data={"l": None}) == []
    assert await names(data_startswith={"k": "1"}) == []
    assert await names(name="c") == ["c"]
    assert await names(name="d") == []


@pytest.mark.parametrize(
    ("condition", "matching"),
    [
        ({"data_startswith": {"version": "2."}}, ["a", "b"]),
        ({"data_startswith": {"version": ""}}, ["a", "b", "c"]),
        ({"data_endswith": {"version": ".1"}}, ["b", "c"]),
        ({"data_contains": {"version": "rc"}}, ["a"]),
        ({"data_startswith": {"version": "2."}, "data_endswith": {"version": ".1"}}, ["b"]),
        ({"data_startswith": {"version": "2."}, "data": {"arch": "arm64"}}, ["a"]),
        ({"data_startswith": {"version": "2.", "arch": "x"}}, ["b"]),
        ({"data_startswith": {"none": ""}}, []),
    ],
    ids=str,
)
async def test_items_are_found_by_parts_of_strings_in_their_data(
    flow: WorkflowBench, http: Http, condition: dict[str, Any], matching: list[str]
) -> None:
    await flow.service.collections.create("releases")
    for name, data in (
        ("a", {"version": "2.0-rc", "arch": "arm64"}),
        ("b", {"version": "2.1", "arch": "x86"}),
        ("c", {"version": "1.1"}),
        ("d", {"version": 2}),
        ("e", "2."),
    ):
        await add(flow, name, data)
    query = {name: msgspec.json.encode(value).decode() for name, value in condition.items()}
    listed = (await http("GET", "/ojs/v1/collections/releases/items", params=query)).json()["items"]
    assert [item["name"] for item in listed] == matching
    await push(flow, args=[lookup({"collection": "releases", **condition})])
    (job,) = await flow.fetch()
    assert [item["name"] for item in job.args[0]] == matching


@pytest.mark.parametrize("value", ["3", '{"k": 1}', "["])
async def test_a_condition_on_data_that_is_no_object_of_strings_is_refused(http: Http, value: str) -> None:
    await http("POST", "/ojs/v1/collections", {"name": "releases"})
    answer = await http("GET", "/ojs/v1/collections/releases/items", params={"data_startswith": value})
    assert answer.status_code == 400, answer.text


async def test_a_list_of_lookups_has_each_item_once(flow: WorkflowBench) -> None:
    await flow.service.collections.create("releases")
    for name in ("a", "b"):
        await add(flow, name, name)
    await push(flow, args=[lookup(["releases/b", {"collection": "releases"}, "releases/a"])])
    (job,) = await flow.fetch()
    assert [item["name"] for item in job.args[0]] == ["b", "a"]


# Items that jobs add


async def test_s54_a_reaction_to_the_creation_of_a_job_adds_data(flow: WorkflowBench) -> None:
    await flow.service.collections.create("releases")
    action = {"action": "collect", "collection": "releases", "name": "{job.args.0}_{job.args.1}", "data": {"v": 1}}
    id = await push(flow, args=["hello", "1.0-1"], event_reactions={"on_creation": [action]})
    (item,) = await flow.service.collections.items(RELEASES)
    assert (item.name, msgspec.json.decode(item.data)) == ("hello_1.0-1", {"v": 1})
    assert (item.job_id, item.created_by) == (id, f"job {id}")


async def test_s56_what_a_job_collects_takes_the_place_of_what_has_its_name(flow: WorkflowBench) -> None:
    await flow.service.collections.create("releases")
    await add(flow, "x-2", "old")
    await add(flow, "y", "other")
    actions = [
        {"action": "collect", "collection": "releases", "name": "x-{job.result.n}", "category": "c"},
        {"action": "collect", "collection": "releases", "name": "z", "data": {"of": {"$ref": "job.id"}}},
    ]
    id = await push(flow, event_reactions={"on_success": actions})
    await flow.ack(await flow.fetch_one(), b'{"n":2}')
    items = {item.name: msgspec.json.decode(item.data) for item in await flow.service.collections.items(RELEASES)}
    assert items == {"y": "other", "x-2": {"n": 2}, "z": {"of": id}}
    history = await flow.service.collections.items(RELEASES, Matching("x-2"), history=True)
    assert [item.removed_at is None for item in history] == [False, True]


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ({"name": "x", "collection": "former"}, "no collection 'former'"),
        ({"name": "x", "collection": "internal"}, "Only jobs of workflows"),
        ({"name": "{job.result.missing}", "collection": "releases"}, "leads nowhere"),
        ({"name": "{job.result}", "collection": "releases"}, "A name cannot be made of"),
        ({"name": "a/{job.type}", "collection": "releases"}, "The item name"),
        ({"name": "taken", "collection": "releases", "replace": False}, "has an item 'taken'"),
        ({"name": "x", "collection": "releases", "data": {"$ref": "params.x"}}, "does not lead to the job"),
    ],
)
async def test_s57_a_failed_reaction_is_recorded_and_undoes_nothing(
    flow: WorkflowBench, action: dict[str, Any], why: str
) -> None:
    await flow.service.collections.create("releases")
    await flow.service.collections.create("former")
    await add(flow, "taken")
    id = await push(flow, event_reactions={"on_success": [{"action": "collect", **action}]})
    await flow.service.collections.delete("former")
    done = await flow.ack(await flow.fetch_one(), b'{"n":2}')
    assert done.state == "completed"
    assert len(await flow.service.collections.items(RELEASES)) == 1
    (failure,) = [entry for entry in await flow.service.jobs.history(id) if entry.type == "job.reaction_failed"]
    assert why in failure.data["error"]


@pytest.mark.parametrize("way", ["job", "batch", "workflow", "job type"])
async def test_a_collection_that_does_not_exist_is_refused_where_an_item_for_it_is_declared(
    http: Http, way: str
) -> None:
    def declared(collection: str) -> tuple[str, str, Any]:
        actions = [{"action": "collect", "name": "x", "collection": collection}]
        step = {"type": "a", "args": [], "event_reactions": {"on_failure": actions}}
        match way:
            case "job":
                return "POST", "/ojs/v1/jobs", step
            case "batch":
                return "POST", "/ojs/v1/jobs/batch", {"jobs": [{"type": "a", "args": []}, step]}
            case "workflow":
                return "POST", "/ojs/v1/workflows", chain(job("b"), group(step))
        return "PUT", "/ojs/v1/job-types/a", {"event_reactions": step["event_reactions"]}

    refused = await http(*declared("nowhere"))
    assert refused.status_code == 400, refused.text
    message = refused.json()["error"]["message"]
    assert "There is no collection 'nowhere'" in message
    assert "ojster collections create nowhere" in message
    await http("POST", "/ojs/v1/collections", {"name": "somewhere"})
    accepted = await http(*declared("somewhere"))
    assert accepted.status_code in (200, 201), accepted.text


async def test_w13_an_output_is_recorded_before_a_dependant_can_start(flow: WorkflowBench) -> None:
    step = job("a", provides=["out"])
    await flow.create(chain(step, job("b", lookup("internal/out"))))
    assert await flow.work(results={"a": {"v": 1}}) == ["a", "b"]
    assert flow.arguments["b"] == [{"name": "out", "category": None, "data": {"v": 1}}]


# Promises and lookups


async def test_s72_to_s74_dependencies_follow_from_what_is_looked_up(flow: WorkflowBench) -> None:
    await flow.create(
        graph(
            job("check", many(name_startswith="build-"), id="check"),
            job("one", id="one", provides=["build-1"]),
            group(job("two", provides=[{"name": "build-2", "category": "x"}]), job("none"), id="others"),
            job("alone", id="alone"),
        )
    )
    promised = await flow.service.collections.items(Where(workflow_id=flow.id))
    assert [(item.name, item.kind, item.created_by) for item in promised] == [
        ("build-1", "promise", "step one"),
        ("build-2", "promise", "step others.0"),
    ]
    assert (await flow.states())["check"] == "waiting"
    order = await flow.work(results={"one": 1, "two": 2})
    assert sorted(order) == ["alone", "check", "none", "one", "two"]
    assert order.index("check") > max(order.index("one"), order.index("two"))
    (given,) = flow.arguments["check"]
    assert sorted((item["name"], item["data"]) for item in given) == [("build-1", 1), ("build-2", 2)]
    assert (await flow.look()).state == "completed"
    assert await internal(flow) == {"build-1": 1, "build-2": 2}


async def test_a_single_item_orders_steps_in_other_containers(flow: WorkflowBench) -> None:
    await flow.create(
        graph(
            graph(job("b", lookup("internal/x"), id="b"), id="late"),
            graph(job("a", id="a", provides=["x"]), id="early"),
        )
    )
    assert await flow.work() == ["a", "b"]


async def test_a_step_waits_for_who_promised_and_for_nobody_else_in_their_containers(flow: WorkflowBench) -> None:
    """Also if the containers need each other's items, which is no cycle of steps."""
    await flow.create(
        graph(
            chain(job("a1", provides=["a"]), job("a2", lookup("internal/b")), id="one"),
            chain(job("b1", provides=["b"]), job("b2", lookup("internal/a")), id="two"),
        )
    )
    order = await flow.work(results={"a1": "A", "b1": "B"})
    assert sorted(order[:2]) == ["a1", "b1"]
    assert (flow.arguments["a2"], flow.arguments["b2"]) == ([named("b", "B")], [named("a", "A")])
    info = await flow.look()
    assert info.state == "completed"
    assert [step.depends_on for step in info.walk() if step.path in ("one.1", "two.1")] == [["two.0"], ["one.0"]]


async def test_a_step_starts_although_others_beside_its_producer_still_run(flow: WorkflowBench) -> None:
    early = group(job("fast", provides=["x"]), job("slow"), id="early")
    await flow.create(graph(early, group(job("b", lookup("internal/x")), job("free"), id="late")))
    started = {one.type: one for one in await flow.take(3)}
    assert sorted(started) == ["fast", "free", "slow"]
    await flow.ack(started["fast"])
    assert [one.type for one in await flow.take()] == ["b"]


@pytest.mark.parametrize(
    "early",
    [
        chain(job("a", provides=["x"]), job("last")),
        chain(graph(job("a", provides=["x"], id="a"), id="deep"), job("last")),
    ],
)
async def test_who_waits_for_an_item_of_a_container_that_never_starts_goes_on(
    flow: WorkflowBench, early: dict[str, Any]
) -> None:
    early = early | {"id": "early", "depends_on": ["first"], "when": "failed"}
    late = chain(job("free"), job("b", lookup("internal/x")), job("c"), id="late")
    await flow.create(graph(job("first", id="first"), early, late))
    assert sorted(await flow.work()) == ["first", "free"]
    states = await flow.states()
    assert (states["early"], states["late.1"], states["late.2"]) == ("skipped", "failed", "cancelled")
    assert b"early" in bytes(msgspec.json.encode((await flow.step("late.1")).error))
    await flow.retry_step("late.1")
    assert await flow.state() == "failed"


async def test_a_failed_producer_cancels_who_waits_for_it_and_a_retry_brings_both_back(flow: WorkflowBench) -> None:
    await flow.create(
        graph(
            chain(job("a", provides=["x"]), job("a2"), id="early"),
            chain(job("free"), job("b", lookup("internal/x")), job("c"), id="late"),
            job("d", id="d", depends_on=["late"]),
        )
    )
    await flow.work("a")
    info = await flow.look()
    assert info.state == "failed"
    states = {step.type: step.state for step in info.walk()}
    assert (states["a"], states["a2"], states["b"], states["c"], states["d"]) == ("failed", *["cancelled"] * 4)
    await flow.retry_step("early.0")
    assert await flow.work(results={"a": 1}) == ["a", "a2", "b", "c", "d"]
    assert flow.arguments["b"] == [named("x", 1)]
    assert (await flow.look()).state == "completed"


async def test_the_result_of_a_graph_is_that_of_the_steps_that_no_step_in_it_follows(flow: WorkflowBench) -> None:
    await flow.create(
        graph(
            graph(job("a", id="a", provides=["x"]), job("z", id="z"), id="early"),
            graph(job("b", lookup("internal/x"), id="b"), id="late"),
            job("end", ref("steps.early.result"), id="end"),
        )
    )
    await flow.work(results={"a": 1, "b": 2, "z": 3, "end": 4})
    assert flow.arguments["end"] == [{"a": 1, "z": 3}]
    assert msgspec.json.decode((await flow.look()).result or b"") == {"late": {"b": 2}, "end": 4}


async def test_a_callback_that_needs_an_item_is_not_called_because_of_who_promised_it(flow: WorkflowBench) -> None:
    await flow.create(
        graph(
            chain(job("a", provides=["x"]), job("a2"), id="early"),
            batch(job("j"), on_failure=job("sorry", lookup("internal/x")), on_success=job("good")) | {"id": "late"},
        )
    )
    order = await flow.work()
    assert order.index("j") > order.index("a")
    assert "sorry" not in order
    assert "good" in order


@pytest.mark.parametrize(
    "steps",
    [
        graph(
            chain(job("a", lookup("internal/y")), job("x", provides=["x"]), id="one"),
            chain(job("b", lookup("internal/x")), job("y", provides=["y"]), id="two"),
        ),
        graph(
            chain(job("a", lookup("internal/y")), id="one"),
            chain(job("y", provides=["y"]), id="two", depends_on=["one"]),
        ),
    ],
)
async def test_steps_that_wait_for_each_other_through_their_containers_are_refused(
    flow: WorkflowBench, steps: Any
) -> None:
    with pytest.raises(InvalidWorkflow, match="wait for each other"):
        await flow.create(steps)


async def test_items_without_a_promise_are_looked_up(flow: WorkflowBench) -> None:
    await flow.service.collections.create("releases")
    await add(flow, "1.0", {"file": "a"}, category="app")
    await flow.create(chain(job("a", lookup("releases/1.0"), lookup({"collection": "releases", "category": "app"}))))
    await flow.work()
    item = {"name": "1.0", "category": "app", "data": {"file": "a"}}
    assert flow.arguments["a"] == [item, [item]]


async def test_what_is_looked_up_may_be_known_only_when_the_step_starts(flow: WorkflowBench) -> None:
    await flow.service.collections.create("releases")
    await add(flow, "2.0", "two")
    wanted = lookup({"collection": "releases", "name": ref("steps.0.result.version")})
    await flow.create(chain(job("a"), job("b", wanted)))
    await flow.work(results={"a": {"version": "2.0"}})
    assert [item["data"] for item in flow.arguments["b"][0]] == ["two"]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("internal/none", "'internal' has no item 'none'"),
        ("nowhere/x", "'nowhere' has no item 'x'"),
        (["internal/none", {"collection": "internal"}], "has no item 'none'"),
    ],
)
async def test_s102_what_is_not_there_fails_the_step(flow: WorkflowBench, wanted: Any, why: str) -> None:
    await flow.create(chain(job("a", lookup(wanted))))
    step = await flow.step("0")
    assert step.state == "failed"
    assert isinstance(step.error, msgspec.Raw)
    error = msgspec.json.decode(step.error)
    assert why in error["message"]
    assert error["code"] == "unresolvable_reference"


async def test_s102_a_promise_is_not_yet_there(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", allow_failure=True, provides=["x"]), job("b", lookup("internal/x"))))
    await flow.work("a")
    assert (await flow.states())["1"] == "failed"


@pytest.mark.parametrize(
    "wanted",
    [
        3,
        "",
        "x",
        "/x",
        "internal/",
        {"name": "x"},
        {"collection": "internal", "name": "x", "name_startswith": "y"},
        {"collection": "internal", "name": "x", "name_contains": "y"},
        {"collection": "internal", "kind": "x"},
        {"collection": "a b"},
        [["internal/x"], 3],
    ],
)
async def test_s102_a_malformed_lookup_is_refused_when_the_workflow_is_made(flow: WorkflowBench, wanted: Any) -> None:
    with pytest.raises(InvalidWorkflow):
        await flow.create(chain(job("a", lookup(wanted))))


def test_s102_lookups_of_a_list_are_put_together_in_its_order() -> None:
    lookups, single = read_lookup(b'["internal/a",{"collection":"internal","category":"c"},["internal/b"]]')
    assert not single
    assert [one.name or one.category for one in lookups] == ["a", "c", "b"]


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (group(job("a", provides=["x"]), job("b", lookup("internal/x"))), "runs at the same time"),
        (chain(job("b", lookup("internal/x")), job("a", provides=["x"])), "comes later"),
        (
            graph(
                job("a", lookup("internal/y"), id="a", provides=["x"]),
                job("b", lookup("internal/x"), id="b", provides=["y"]),
            ),
            "wait for each other",
        ),
        (chain(job("a", provides=["a/b"])), "The item name"),
        (chain(job("a", provides=["a", "a"])), "a name twice"),
        (chain(job("a", provides="a")), "malformed"),
        (chain(job("a", provides=[{"name": "a", "kind": "promise"}])), "malformed"),
        (chain({"type": "gate", "provides": ["a"]}), "Only a job"),
        (chain(group(job("a"), provides=["a"])), "Only a job"),
    ],
)
async def test_what_cannot_be_promised_or_found_is_refused(flow: WorkflowBench, steps: Any, why: str) -> None:
    with pytest.raises(InvalidWorkflow, match=why):
        await flow.create(steps)


async def test_what_the_callback_of_a_batch_looks_up_is_promised_by_its_jobs(flow: WorkflowBench) -> None:
    await flow.create(batch(job("a", provides=["x"]), on_success=job("b", lookup("internal/x"))))
    assert await flow.work() == ["a", "b"]


async def test_a_map_promises_something_for_each_element(flow: WorkflowBench) -> None:
    build = {"type": "build", "args": [{"$ref": "item"}], "provides": ["build-{job.args.0}"]}
    await flow.create(
        graph(
            {"type": "map", "id": "builds", "over": ["a", "b"], "do": build},
            job("check", many(name_startswith="build-"), id="check"),
        )
    )
    assert await flow.work() == ["build", "build", "check"]
    assert sorted(item["name"] for item in flow.arguments["check"][0]) == ["build-a", "build-b"]


async def promised(flow: WorkflowBench) -> set[tuple[str, str, str | None]]:
    items = await flow.service.collections.items(Where(workflow_id=flow.id))
    return {(item.kind, item.name, item.created_by) for item in items if item.kind == "promise"}


async def test_a_promise_with_references_in_its_name_is_listed_until_its_step_has_succeeded(
    flow: WorkflowBench,
) -> None:
    template = "build-{job.result.version}"
    await flow.create(
        chain(
            job("a", id="a", provides=[template, "fixed"]),
            group(job("b", provides=[template]), job("c", provides=[{"name": template, "category": "x"}])),
            job("d", id="d", provides=["{job.type}-{job.id}"]),
        )
    )
    later = {("promise", template, "step 1.0"), ("promise", template, "step 1.1")}
    last = ("promise", "{job.type}-{job.id}", "step d")
    assert await promised(flow) == {*later, last, ("promise", template, "step a"), ("promise", "fixed", "step a")}
    where = Where(workflow_id=flow.id)
    starts = Matching(name_startswith="build-", category="x")
    assert [item.created_by for item in await flow.service.collections.items(where, starts)] == ["step 1.1"]
    (a,) = await flow.take(1)
    await flow.ack(a, b'{"version":"1"}')
    assert await promised(flow) == {*later, last}
    b, c = sorted(await flow.take(2), key=lambda job: job.type)
    await flow.ack(b, b'{"version":"2"}')
    assert await promised(flow) == {("promise", template, "step 1.1"), last}
    await flow.ack(c, b'{"version":"3"}')
    await flow.work()
    assert await promised(flow) == set()
    assert {"build-1", "build-2", "build-3", "fixed"} < (await internal(flow)).keys()


async def test_a_map_promises_before_and_after_it_has_elements(flow: WorkflowBench) -> None:
    build = {"type": "build", "args": [{"$ref": "item"}], "provides": ["build-{job.args.0}", "log"]}
    await flow.create(
        chain(
            job("a"),
            {"type": "map", "id": "builds", "over": {"$ref": "steps.0.result"}, "do": build},
            {"type": "map", "id": "none", "over": [], "do": job("x", provides=["x-{job.id}"])},
        ),
    )
    template, none = "build-{job.args.0}", ("promise", "x-{job.id}", "step none")
    assert await promised(flow) == {
        ("promise", template, "step builds"),
        ("promise", "log", "step builds"),
        none,
    }
    (a,) = await flow.take(1)
    await flow.ack(a, b'["x","y"]')
    assert await promised(flow) == {
        ("promise", template, "step builds.0"),
        ("promise", template, "step builds.1"),
        ("promise", "log", "step builds"),
        none,
    }
    await flow.work()
    assert await promised(flow) == set()
    assert sorted(await internal(flow)) == ["build-x", "build-y", "log"]


async def test_s45_what_a_retried_step_brings_takes_the_place_of_its_promise(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", provides=["x"]), job("b", lookup("internal/x"))))
    await flow.work("a")
    assert [item.kind for item in await flow.service.collections.items(Where(workflow_id=flow.id))] == ["promise"]
    await flow.service.workflows.retry(flow.id)
    await flow.work(results={"a": "second"})
    assert await flow.state() == "completed"
    assert await internal(flow) == {"x": "second"}
    assert flow.arguments["b"][0]["data"] == "second"


async def test_s03_all_jobs_of_a_workflow_share_its_collection(flow: WorkflowBench) -> None:
    await flow.create(chain(group(job("a")), job("b")))
    where = Where(workflow_id=flow.id)
    await flow.service.collections.add(where, NewItem("note", b'"by hand"'))
    await flow.work()
    assert await internal(flow) == {"note": "by hand"}


async def test_s98_collection_items_keep_their_creators_from_pruning(flow: WorkflowBench) -> None:
    await flow.service.collections.create("releases")
    action = {"action": "collect", "collection": "releases", "name": "{job.type}"}
    reactions = {"on_success": [action]}
    kept = await push(flow, type="alone", event_reactions=reactions, expiration_delay="PT1S")
    await flow.create(chain(job("a", event_reactions=reactions)) | {"expiration_delay": "PT1S"})
    await flow.work()
    flow.clock.advance(2)
    assert await flow.service.maintenance.prune() == {"jobs": 0, "workflows": 0, "files": 0}
    assert (await flow.service.jobs.find(kept)).state == "completed"
    await flow.service.collections.remove(RELEASES, "alone")
    await flow.service.collections.remove(RELEASES, "a")
    assert await flow.service.maintenance.prune() == {"jobs": 2, "workflows": 1, "files": 0}


async def test_the_collection_of_a_workflow_goes_with_it(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", provides=["x"])) | {"expiration_delay": "PT1S"})
    await flow.work()
    flow.clock.advance(2)
    await flow.service.maintenance.prune()
    rows = await flow.run(lambda tx, requests: [tx.execute("SELECT id FROM collection_items")], None)
    assert rows == []


# Lookups in the arguments of jobs outside workflows


async def test_a_job_is_given_what_its_lookups_find_when_it_is_handed_out(flow: WorkflowBench) -> None:
    service = flow.service
    await service.collections.create("sources")
    args = [
        {"$lookup": "sources/core"},
        {"all": {"$lookup": {"collection": "sources"}}},
        {"$ref": "steps.x.result"},
        1e2,
    ]
    (pushed,) = await service.jobs.enqueue([request("t", *args)])
    await service.collections.add(Where("sources"), NewItem("core", b'{"v":1}'))
    job = await flow.fetch_one()
    shown_item = {"name": "core", "category": None, "data": {"v": 1}}
    assert job.args == [shown_item, {"all": [shown_item]}, {"$ref": "steps.x.result"}, 100.0]
    assert (await flow.find(pushed.job)).args == args, "what was pushed stays what it was"


async def test_a_job_whose_lookup_finds_nothing_fails_and_is_tried_again(flow: WorkflowBench) -> None:
    service = flow.service
    await service.collections.create("sources")
    (pushed,) = await service.jobs.enqueue([request("t", {"$lookup": "sources/core"}, retry={"max_attempts": 2})])
    other = await flow.push("plain")
    assert [job.id for job in await flow.fetch()] == [other.id], "the worker gets something else"
    failed = await flow.find(pushed.job)
    assert (failed.state, failed.attempt) == ("retryable", 1)
    assert failed.error is not None
    assert failed.error["code"] == "unresolvable_reference"
    assert "no item 'core'" in failed.error["message"]
    await service.collections.add(Where("sources"), NewItem("core", b"1"))
    await flow.run_due(60)
    assert (await flow.fetch_one()).args[0]["data"] == 1


async def test_lookups_of_jobs_are_those_of_their_workspace(flow: WorkflowBench) -> None:
    acme = flow.service.as_(Caller("acme"))
    await acme.collections.create("sources")
    await acme.collections.add(Where("sources"), NewItem("core", b'"acmes"'))
    await acme.jobs.enqueue([request("t", {"$lookup": "sources/core"})])
    await flow.service.as_(Caller("beta")).jobs.enqueue([request("t", {"$lookup": "sources/core"})])
    (job,) = await flow.fetch(count=5)
    assert job.args[0]["data"] == "acmes"


@pytest.mark.parametrize("wrong", ["internal/x", "nothing", {"collection": "c", "unknown": 1}, 1])
async def test_a_job_with_a_lookup_that_makes_no_sense_is_refused(flow: WorkflowBench, wrong: Any) -> None:
    with pytest.raises(InvalidRequest):
        await flow.service.jobs.enqueue([request("t", {"$lookup": wrong})])


async def test_lookups_are_not_resolved_recursively(flow: WorkflowBench) -> None:
    """Otherwise a caller that may add items could cause arbitrary lookups."""
    await flow.service.collections.create("c")
    await flow.service.collections.add(Where("c"), NewItem("x", b'{"$lookup":"c/y"}'))
    await flow.create({"type": "chain", "steps": [{"type": "a", "args": [{"$lookup": "c/x"}]}]})
    (job,) = await flow.take()
    assert job.args[0]["data"] == {"$lookup": "c/y"}
    react = {"on_success": [{"action": "enqueue", "job": {"type": "b", "args": [{"$lookup": "c/x"}]}}]}
    body = {"type": "t", "args": [], "event_reactions": react}
    await flow.service.jobs.enqueue([read_members(msgspec.json.encode(body))])
    await flow.ack((await flow.take())[0])
    assert (await flow.take())[0].args[0]["data"] == {"$lookup": "c/y"}


async def test_a_claim_gives_up_on_a_bounded_number_of_jobs(flow: WorkflowBench) -> None:
    await flow.service.collections.create("c")
    await flow.service.jobs.enqueue([request("t", {"$lookup": "c/x"}, retry={"max_attempts": 1}) for _ in range(150)])
    assert await flow.fetch(count=3) == []
    failed = (await flow.service.jobs.select(JobFilter(states=("discarded",)))).total
    assert 100 <= failed < 103


@pytest.mark.parametrize(
    ("provides", "result", "reason"),
    [
        (["x"], b'"%b"' % (b"y" * 70_000), "at most 65536"),
        ([{"name": "x", "data": {"$ref": "job.result.total"}}], b"{}", "leads nowhere|total"),
        (["build-{job.result.name}"], b'{"name":"a/b"}', "The item name"),
        ([{"name": "x", "artifact": {"name": "report"}}], b"1", "no artifact"),
    ],
)
async def test_who_cannot_keep_a_promise_fails_with_the_reason(
    flow: WorkflowBench, provides: Any, result: bytes, reason: str
) -> None:
    await flow.create(chain(job("a", provides=provides, retry={"max_attempts": 2, "jitter": False}), job("b")))
    for attempt in (1, 2):
        (one,) = await flow.take()
        assert one.attempt == attempt
        with pytest.raises(PromiseBroken, match=reason):
            await flow.ack(one, result)
        await flow.run_due(60)
    info = await flow.look()
    assert info.state == "failed"
    failed = await flow.step("0")
    assert isinstance(failed.error, msgspec.Raw)
    assert b'"PromiseBroken"' in bytes(failed.error)
    assert await flow.work() == []


async def test_the_next_attempt_may_keep_the_promise(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", provides=["x"]), job("b", lookup("internal/x"))))
    with pytest.raises(PromiseBroken):
        await flow.ack(await flow.fetch_one(), b'"%b"' % (b"y" * 70_000))
    await flow.run_due(60)
    await flow.ack(await flow.fetch_one(), b"7")
    (b,) = await flow.take()
    assert b.args[0]["data"] == 7


async def test_who_looks_for_what_was_not_provided_learns_who_promised_it(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", id="maker", allow_failure=True, provides=["x"]), job("b", lookup("internal/x"))))
    await flow.give_up(await flow.fetch_one())
    assert await flow.work() == []
    error = (await flow.step("1")).error
    assert isinstance(error, msgspec.Raw)
    assert "The step maker promised it" in bytes(error).decode()
