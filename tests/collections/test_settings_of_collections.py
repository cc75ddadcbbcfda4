"""Settings of named collections: how long removed items are kept, and who reads a shared collection."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from ojster.collections.items import NewItem, Where
from ojster.core.access import OPERATIONS, Access, Role
from ojster.core.durations import DAY
from ojster.core.errors import InvalidRequest, NotFound
from ojster.core.json_objects import read_members
from ojster.core.tenant import tenants_around
from ojster.jobs.scope import Caller
from ojster.schedules.retention import count_forgettable, forget
from ojster.service import Service
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

RELEASES: Final = Where("releases")
SECONDS_A_DAY: Final = DAY // 1_000_000


def workspace(bench: Bench, tenant: str) -> Service:
    return bench.service.as_(Caller(tenant))


async def names(service: Service, *, history: bool = False) -> list[str]:
    return [item.name for item in await service.collections.items(RELEASES, history=history)]


async def add(service: Service, name: str, data: Any = None) -> None:
    await service.collections.add(RELEASES, NewItem(name, msgspec.json.encode(data), None, True))


async def sweep(bench: Bench) -> int:
    """Delete what is past its retention; return how many rows were announced."""
    announced = (await bench.run(count_forgettable, None))["rows"]
    await bench.run(forget, None)
    return announced


# Retention


async def test_a_collection_forgets_removed_items_after_its_period(bench: Bench) -> None:
    collections = bench.service.collections
    made = await collections.create("releases", keep_removed="P7D")
    await collections.create("others")
    assert made.keep_removed == "P7D"
    await add(bench.service, "a")
    await add(bench.service, "b")
    await add(bench.service, "a")  # replaces the first
    await collections.remove(RELEASES, "b")
    await collections.add(Where("others"), NewItem("x", b"1"))
    await collections.remove(Where("others"), "x")
    bench.clock.advance(6 * SECONDS_A_DAY)
    assert await sweep(bench) == 0
    assert sorted(await names(bench.service, history=True)) == ["a", "a", "b"]
    bench.clock.advance(2 * SECONDS_A_DAY)
    assert await sweep(bench) == 2
    assert await names(bench.service, history=True) == ["a"]
    assert len(await collections.items(Where("others"), history=True)) == 1


async def test_a_changed_period_holds_for_what_was_removed_before(bench: Bench) -> None:
    collections = bench.service.collections
    await collections.create("releases", "what we ship")
    await add(bench.service, "a")
    await collections.remove(RELEASES, "a")
    bench.clock.advance(400 * SECONDS_A_DAY)
    assert await sweep(bench) == 0
    changed = await collections.change("releases", keep_removed="P30D")
    assert (changed.keep_removed, changed.description, changed.shared) == ("P30D", "what we ship", False)
    assert (await collections.change("releases", keep_removed="never")).keep_removed is None
    assert await sweep(bench) == 0
    await collections.change("releases", keep_removed="P30D")
    assert await sweep(bench) == 1


async def test_a_period_is_a_duration_and_a_collection_exists(bench: Bench) -> None:
    with pytest.raises(InvalidRequest, match="'keep_removed' must be an ISO 8601 duration"):
        await bench.service.collections.create("releases", keep_removed="a month")
    with pytest.raises(NotFound):
        await bench.service.collections.change("releases", shared=True)


async def test_settings_are_changed_over_http_and_others_stay(http: Http) -> None:
    path = "/ojs/v1/collections"
    await http("POST", path, {"name": "releases", "description": "d", "shared": True, "keep_removed": "P1D"})
    answer = await http("PATCH", f"{path}/releases", {"shared": False})
    changed = answer.json()["collection"]
    assert (changed["description"], changed["keep_removed"], changed.get("shared", False)) == ("d", "P1D", False)
    answer = await http("PATCH", f"{path}/releases", {"description": None, "keep_removed": None})
    assert {"description", "keep_removed"}.isdisjoint(answer.json()["collection"])
    assert (await http("PATCH", f"{path}/releases", {"share": True})).status_code == 400


# Sharing


@pytest.mark.parametrize(
    ("tenant", "around"),
    [("", []), ("acme", []), ("acme:web", ["acme"]), ("a:b:c", ["a:b", "a"]), ("a:", ["a"])],
)
def test_a_workspace_is_a_part_of_those_before_its_colons(tenant: str, around: list[str]) -> None:
    assert tenants_around(tenant) == around


async def test_workspaces_inside_read_a_shared_collection_and_others_do_not(bench: Bench) -> None:
    parent = workspace(bench, "acme")
    await parent.collections.create("releases")
    await add(parent, "1.0", {"v": 1})
    inside = [workspace(bench, tenant) for tenant in ("acme:web", "acme:web:shop")]
    outside = [workspace(bench, tenant) for tenant in ("acmeweb", "other:web", "web", "")]
    for service in (*inside, *outside):
        with pytest.raises(NotFound):
            await names(service)
    await parent.collections.change("releases", shared=True)
    for service in inside:
        assert await names(service) == ["1.0"]
        assert [(one.name, one.workspace) for one in await service.collections.all()] == [("releases", "acme")]
    for service in outside:
        with pytest.raises(NotFound):
            await names(service)
        assert await service.collections.all() == []


async def test_a_shared_collection_is_changed_by_its_own_workspace_alone(bench: Bench) -> None:
    parent, inside = workspace(bench, "acme"), workspace(bench, "acme:web")
    await parent.collections.create("releases", shared=True)
    await add(parent, "1.0")
    with pytest.raises(NotFound):
        await add(inside, "2.0")
    with pytest.raises(NotFound):
        await inside.collections.remove(RELEASES, "1.0")
    with pytest.raises(NotFound):
        await inside.collections.change("releases", shared=False)
    with pytest.raises(NotFound):
        await inside.collections.delete("releases", force=True)
    collect = {"on_creation": [{"action": "collect", "collection": "releases", "name": "3.0"}]}
    body = {"type": "t", "args": [], "event_reactions": collect}
    with pytest.raises(InvalidRequest, match="no collection 'releases'"):
        await inside.jobs.enqueue([read_members(msgspec.json.encode(body))])
    assert await names(parent) == ["1.0"]


async def test_the_own_collection_comes_before_that_of_the_nearest_workspace_around(bench: Bench) -> None:
    engines = {tenant: workspace(bench, tenant) for tenant in ("a", "a:b", "a:b:c")}
    await engines["a"].collections.create("releases", shared=True)
    await add(engines["a"], "far")
    assert await names(engines["a:b:c"]) == ["far"]
    await engines["a:b"].collections.create("releases")
    await add(engines["a:b"], "near")
    assert await names(engines["a:b:c"]) == ["far"]  # the nearer one is not shared
    await engines["a:b"].collections.change("releases", shared=True)
    assert await names(engines["a:b:c"]) == ["near"]
    await engines["a:b:c"].collections.create("releases")
    assert await names(engines["a:b:c"]) == []
    assert [one.workspace for one in await engines["a:b:c"].collections.all()] == [None]


@pytest.mark.parametrize("lookup", ["releases/1.0", {"collection": "releases", "name_startswith": "1."}], ids=str)
async def test_jobs_look_up_what_is_shared_with_their_workspace(bench: Bench, lookup: Any) -> None:
    parent, inside = workspace(bench, "acme"), workspace(bench, "acme:web")
    await parent.collections.create("releases", shared=True)
    await add(parent, "1.0", {"v": 1})
    step = {"type": "t", "args": [{"$lookup": lookup}]}
    await inside.jobs.enqueue([read_members(msgspec.json.encode(step))])
    await inside.workflows.create(read_members(msgspec.json.encode({"type": "chain", "steps": [step]})))
    for job in await bench.fetch(count=2):
        (item,) = job.args if isinstance(lookup, str) else job.args[0]
        assert item["data"] == {"v": 1}


async def test_a_viewer_of_a_workspace_inside_reads_a_shared_collection(bench: Bench) -> None:
    await workspace(bench, "acme").collections.create("releases", shared=True)
    viewer = bench.service.as_(Caller("acme:web", Access("ada", OPERATIONS[Role.VIEWER])))
    assert await viewer.collections.items(RELEASES) == []
