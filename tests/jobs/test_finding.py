"""Finding jobs by what people know of them: in lists, in their facets, for bulk operations, and over the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import read_members
from ojster.insight.calls import ListConditions
from ojster.jobs import pages, search
from ojster.jobs.bulk import Action
from ojster.jobs.claim_policy import Claim
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.filters import filter_of, joined_values
from ojster.jobs.queries import SORTS, JobPage, Page
from ojster.jobs.scope import Caller
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

V1 = "/ojs/v1"


async def push(bench: Bench, raw: str) -> None:
    """Push a job whose request has exactly these bytes."""
    await bench.service.jobs.enqueue([read_members(raw.encode())])


async def scene(bench: Bench) -> None:
    """Jobs of the types ``a`` to ``i``, most of which differ in what they contain."""
    await push(bench, """{"type":"a","args":[{"order_id":42,"items":[{"sku":"A-7"},{"sku":"B-1"}]}]}""")
    await push(bench, """{"type":"b","args":[{"order_id":"42"}],"meta":{"customer":{"id":17},"a.b":true}}""")
    await push(bench, """{"type":"c","args":[{"order_id":42.0}],"options":{"tags":["vip","new"]}}""")
    await push(bench, """{"type":"d","args":["first",{"order_id":420}],"options":{"tags":["a,b"]}}""")
    await push(bench, r"""{"type":"e","args":[{"name":"caf\u00e9 \u0022x\u0022","\u006fk":true}]}""")
    await push(
        bench, """{"type":"f","args":[{"name":"café \\"x\\"","path":"C:\\\\new","empty":""}],"meta":{"n":null}}"""
    )
    await push(bench, """{"type":"g","args":[],"options":{"queue":"q","priority":9,"retry":{"max_attempts":1}}}""")
    await push(
        bench,
        """{"type":"h","args":[{"huge":1e999,"order_id":7}],"options":{"queue":"q","priority":5,"retry":{"max_attempts":1}}}""",
    )
    await bench.fail(await bench.fetch_one("q", worker_id="host:1"), "CardError", message="Card 4711 EXPIRED: no/way")
    await bench.fail(await bench.fetch_one("q", worker_id="host:1"), "App\\\\Error,x", message="größer als 5")


FOUND: list[tuple[dict[str, str], str]] = [
    ({"where": "args.order_id=42"}, "ab"),
    ({"where": "args.0.order_id=42"}, "ab"),
    ({"where": "args.1.order_id=420"}, "d"),
    ({"where": "args.0=first"}, "d"),
    ({"where": "args.order_id=42.0"}, "c"),
    ({"where": "args.items.sku=A-7"}, "a"),
    ({"where": "args.items.1.sku=A-7"}, ""),
    ({"where": "meta.customer.id=17"}, "b"),
    ({"where": "meta.a.b=true"}, "b"),
    ({"where": "args.order_id=42,meta.customer.id=17"}, "b"),
    ({"where": "args.ok=true"}, "e"),
    ({"where": 'args.name=café "x"'}, "ef"),
    ({"where": r"args.path=C:\\new"}, "f"),
    ({"where": r"args.path=C:\new"}, "f"),
    ({"where": "args.empty="}, "f"),
    ({"where": "meta.n=null"}, "f"),
    ({"where": "args.customer=17"}, ""),
    ({"where": "args.order_id="}, ""),
    ({"tag": "vip"}, "c"),
    ({"tag": "vi"}, ""),
    ({"tag": r"a\,b,new"}, "cd"),
    ({"tag": "a,b"}, ""),
    ({"error_text": "card 4711 expired"}, "g"),
    ({"error_text": "carderror"}, "g"),
    ({"error_text": "no/way"}, "g"),
    ({"error_text": "GRÖSSER"}, ""),
    ({"error_text": "GRÖßER ALS"}, "h"),
    ({"error_text": "handler_error"}, ""),
    ({"error_type": r"App\\\\Error\,x"}, "h"),
    ({"error_type": "CardError,Other"}, "g"),
    ({"worker": "host:1"}, "gh"),
    ({"worker": "host:2,host:1", "queue": "q", "type": "h,a"}, "h"),
    ({"state": "discarded,retryable", "error_text": "a"}, "gh"),
    ({"queue": "q,default", "type": "a,g"}, "ag"),
]


async def listed(bench: Bench, query: Mapping[str, str], **page: Any) -> tuple[str, JobPage]:
    """Return the types of the jobs in a page of a list, and the page."""
    sort, ascending = SORTS[page.pop("sort", "newest")]
    found = await bench.service.jobs.select(
        filter_of(query), Page(**page, sort=sort, ascending=ascending, is_bounded=True)
    )
    return "".join(job.type for job in found.jobs), found


@pytest.mark.parametrize("part", [1, 200])
async def test_lists_facets_and_bulk_operations_find_the_same_jobs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """Whether a statement reads one candidate or many."""
    monkeypatch.setattr(search, "FIRST_PART", part)
    monkeypatch.setattr(search, "LARGEST_PART", part)
    await scene(bench)
    service = bench.service
    for query, expected in FOUND:
        types, page = await listed(bench, query)
        assert "".join(sorted(types)) == expected, query
        assert (page.total, page.is_complete, page.examined) == (len(expected), True, None), query
        facets = (await service.insight.facets(msgspec.convert(query, ListConditions))).facets
        counted = "type" if "type" not in query else "queue"
        assert sum(one.jobs for one in facets[counted]) == len(expected), query
        ended = [job for job in page.jobs if job.state == "discarded"]
        if "state" not in query:
            swept = await service.bulk.sweep(Action.DELETE, filter_of(query), dry_run=True)
            assert [id for id, _ in swept.items] == sorted(job.id for job in ended), query
    chosen = filter_of({"state": "available", "where": "args.order_id=42"})
    foreseen = await service.bulk.sweep(Action.CANCEL, chosen, dry_run=True)
    assert (foreseen.matched, foreseen.succeeded) == (2, 2)
    assert (await service.bulk.sweep(Action.CANCEL, chosen)).succeeded == 2
    assert (await listed(bench, {"state": "cancelled"}))[0] == "ba"


@pytest.mark.parametrize("value", ["a,b", "\\", "a\\,b\\", ",", "\\\\,", "App\\Error"])
async def test_a_value_with_commas_and_backslashes_is_found_by_the_one_rule(bench: Bench, value: str) -> None:
    await bench.push("a", tags=[value], meta={"path": value})
    await bench.push("b", tags=["a", "b", ""], meta={"path": "a"})
    for query in ({"tag": joined_values([value])}, {"where": joined_values([f"meta.path={value}"])}):
        assert (await listed(bench, query))[0] == "a"
        swept = await bench.service.bulk.sweep(Action.CANCEL, filter_of(query), dry_run=True)
        assert swept.matched == 1


async def test_steps_are_found_by_their_workflow(bench: Bench) -> None:
    chain = {"type": "chain", "steps": [{"type": "a", "args": []}, {"type": "b", "args": []}]}
    body = read_members(msgspec.json.encode(chain))
    ids = [(await bench.service.workflows.create(body)).id for _ in range(2)]
    await bench.push("c")
    await bench.ack(await bench.fetch_one())
    assert (await listed(bench, {"workflow": ids[0]}))[0] == "ba"
    assert sorted((await listed(bench, {"workflow": ",".join(ids), "state": "available"}))[0]) == ["a", "b"]
    facets = (await bench.service.insight.facets(ListConditions(workflow=ids[1]))).facets
    assert [(one.value, one.jobs) for one in facets["type"]] == [("a", 1)]


async def test_a_tenant_finds_its_own_jobs_by_the_names_that_it_uses(bench: Bench) -> None:
    service = bench.service
    contents = {"tags": ["vip"], "meta": {"tenant_id": "acme", "n": 1}}
    own = await bench.push("a", {"order_id": 42}, **contents)
    await bench.push("b", {"order_id": 42}, tags=["vip"], meta={"n": 1})
    acme, other = service.as_(Caller("acme")), service.as_(Caller("other"))
    await acme.jobs.fetch(Claim(("default",), worker_id="w1"))
    for chosen in (
        JobFilter(where=("args.order_id=42",)),
        JobFilter(tag="vip"),
        JobFilter(where=("meta.n=1",)),
        JobFilter(worker="w1"),
        JobFilter(id=own.id[-8:]),
    ):
        assert [job.id for job in (await acme.jobs.select(chosen)).jobs] == [own.id], chosen
        assert (await other.jobs.select(chosen)).total == 0, chosen
        assert (await other.bulk.sweep(Action.CANCEL, chosen, dry_run=True)).matched == 0, chosen
    assert (await service.jobs.select(JobFilter(worker="w1"))).total == 1, "whoever sees all finds workers of any"


async def test_a_search_looks_at_the_newest_jobs_and_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_SEARCHED", 10)
    for number in range(24):
        await bench.push("ab"[number % 2], {"n": number % 3}, tags=["x"])
    for sort, expected in (("newest", "baba" * 2), ("oldest", "abab" * 2)):
        seen = ""
        before, is_first = None, True
        while is_first or before is not None:
            types, page = await listed(bench, {"where": "args.n=0"}, limit=3, before=before, sort=sort)
            assert page.is_complete is False
            assert page.examined is not None
            assert (page.examined, page.total >= 3) == (10, True) or not is_first
            seen += types
            before, is_first = page.next_before, False
        assert seen == expected, sort
    types, page = await listed(bench, {"where": "args.n=0"}, sort="changed")
    assert (types, page.total, page.examined) == ("bab", 3, 10), "other orders are those of the newest jobs"
    monkeypatch.setattr(pages, "ENOUGH_COMPARED", 4)
    monkeypatch.setattr(search, "FIRST_PART", 2)
    monkeypatch.setattr(search, "LARGEST_PART", 2)
    types, page = await listed(bench, {"tag": "x"}, limit=2)
    assert (types, page.total, page.is_complete, page.examined) == ("ba", 4, False, 4), "a full page ends the search"
    types, page = await listed(bench, {"tag": "x", "state": "active"})
    assert (types, page.is_complete, page.examined) == ("", True, None), "there are few of them"


async def test_lists_are_sorted_and_paged_in_each_order(bench: Bench) -> None:
    for type, priority in zip("abcde", (0, 9, 5, 9, -3), strict=True):
        await bench.push(type, queue=f"q{type}", priority=priority, tags=["x"])
        bench.clock.advance(1)
    await bench.fail(await bench.fetch_one("qc"))
    bench.clock.advance(1)
    await bench.ack(await bench.fetch_one("qa"))
    orders = {"newest": "edcba", "oldest": "abcde", "priority": "dbcae", "changed": "acedb", "attempts": "caedb"}
    assert orders.keys() == SORTS.keys()
    for sort, expected in orders.items():
        for query in ({}, {"tag": "x"}):
            seen, page = await listed(bench, query, sort=sort, limit=3)
            is_by_arrival = sort in ("newest", "oldest")
            place = {"before": page.next_before} if is_by_arrival else {"offset": 3}
            seen += (await listed(bench, query, sort=sort, limit=3, **place))[0]
            assert (seen, page.total) == (expected, 5), (sort, query)


async def test_a_server_lists_what_is_asked_for_page_by_page(
    http: Http, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        await bench.push("abcde"[number], {"n": number}, priority=number % 2, tags=["x"])

    async def read(query: str) -> str:
        seen, cursor = "", ""
        while True:
            answer = (await http("GET", f"{V1}/jobs?{query}&limit=2{cursor}")).json()
            seen += "".join(job["type"] for job in answer["jobs"])
            if not answer["pagination"]["has_more"]:
                return seen
            cursor = f"&cursor={answer['pagination']['next_cursor']}"

    for query, expected in (
        ("tag=x", "edcba"),
        ("sort=priority", "dbeca"),
        ("tag=x&sort=priority", "dbeca"),
        ("sort=oldest", "abcde"),
        ("where=args.n%3D3", "d"),
        ("type=a,c&tag=x,y&sort=oldest", "ac"),
    ):
        assert await read(query) == expected, query
    monkeypatch.setattr(pages, "MAX_SEARCHED", 3)
    position = (await http("GET", f"{V1}/jobs?tag=x")).json()["pagination"]
    assert (position["total"], position["is_complete"], position["examined"], position["has_more"]) == (
        3,
        False,
        3,
        True,
    )
    assert await read("tag=x") == "edcba"
    for query, field, message in (
        ("tag=x&offset=2", "offset", "A search has no offset. Go on with its 'next_cursor'."),
        ("sort=size", "sort", "Unknown order 'size'. Use newest, oldest, priority, changed, attempts."),
        ("wrker=w", "wrker", "This endpoint has no query parameter 'wrker'. Did you mean 'worker'? It has"),
        (
            "state=active&state=retryable",
            "state",
            "The query parameter 'state' occurs with several values. Send it once",
        ),
        ("where=order_id%3D42", "where", "must be like 'args.order_id=42'"),
    ):
        error = (await http("GET", f"{V1}/jobs?{query}")).json()["error"]
        assert (error["code"], error["details"]["field"]) == ("invalid_request", field)
        assert message in error["message"]
    counted = (await http("GET", f"{V1}/job-facets?where=args.n%3D3&type=a")).json()
    assert [(one["value"], one["jobs"]) for one in counted["facets"]["type"]] == [("d", 1)]
    body = {"filter": {"where": "args.n=3,meta.m=1"}, "dry_run": True}
    assert (await http("POST", f"{V1}/jobs/bulk/cancel", body)).json()["total_matched"] == 0


async def test_the_end_of_an_id_that_lists_print_finds_the_job(bench: Bench) -> None:
    wanted, _ = await bench.push("a"), await bench.push("b")
    for text in (wanted.id[-12:], "…" + wanted.id[-8:].upper(), wanted.id):
        assert (await listed(bench, {"id": text}))[0] == "a", text


def test_a_condition_of_another_form_is_refused_in_python_too() -> None:
    with pytest.raises(InvalidRequest, match="must be like"):
        JobFilter(where=("order_id=42",))
