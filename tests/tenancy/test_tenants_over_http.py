"""Tenant isolation over HTTP: no endpoint lets a tenant read, use or change the data of another.

Spec: ojs-multi-tenancy
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from ojster.server.application import Application
from ojster.server.endpoints import routes_of
from tests.conftest import Bench, Http
from tests.tenancy.world import ACME, BASE, BETA, MARKER, World, call, tries
from tests.waiting import PATIENCE

ROUTES = routes_of()

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(bench: Bench) -> Any:
    application = Application(bench.service, max_body_bytes=200_000, trusting=True)
    transport = httpx.ASGITransport(app=application)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        made = World(Http(client))
        await made.make(bench)
        yield made


def is_put_by_name(path: str) -> bool:
    """Whether a tenant may create its own object under the name in the path."""
    return "/schemas" in path or "/job-types" in path


@pytest.mark.parametrize("tenant", ["beta", "_default"])
async def test_no_endpoint_reads_or_changes_data_of_another_tenant(world: World, tenant: str) -> None:
    before = await world.seen()
    assert msgspec.json.encode(before).count(MARKER.encode()) > 10
    tried = set()
    for route in ROUTES:
        for path, body in tries(world, route.method, route.path):
            if route.path in (f"{BASE}/events/stream", f"{BASE}/events/changes"):
                tried.add((route.method, route.path))
                continue  # endless response; test_streams covers it
            response = await world.http(route.method, path, body, headers={"X-OJS-Tenant": tenant})
            what = f"{route.method} {path} for {tenant}: {response.status_code} {response.text}"
            assert response.status_code < 500, what
            assert MARKER not in response.text, what
            assert "{" not in path, what
            if not route.is_for_tenants:
                assert response.status_code == 403, what
            elif (
                "{" in route.path and not route.path.endswith(("/pause", "/resume")) and not is_put_by_name(route.path)
            ):
                # An earlier request may have created the tenant's own object with this name.
                may_be_own = any(
                    part in route.path for part in ("/workers/{id}", "/rate-limits/{key}", "/channels/", "/push/")
                )
                assert response.status_code == 404 or (may_be_own and response.status_code in (200, 201)), what
            tried.add((route.method, route.path))
    after = await world.seen()
    for path, was in before.items():
        assert after[path] == was, path
    assert tried == {(route.method, route.path) for route in ROUTES}


NAMES = {"nightly", "work", "stripe", "typed", "w-acme", "ops", "hoard", "plan", "fn"}
"""Names of acme's in the requests of ``tries``."""


@pytest.mark.parametrize("tenant", ["beta", "_default"])
async def test_the_stored_name_of_another_tenants_object_leads_nowhere(world: World, tenant: str) -> None:
    before, tried = await world.seen(), 0
    stored = {name: f"/tenant/acme/{name}" for name in NAMES}
    plan = {"definition": stored["plan"]}
    beat = {"worker_id": stored["w-acme"], "active_jobs": [world.ids["active"]], "state": "quiet"}
    requests: list[tuple[str, str, Any]] = [
        ("POST", f"{BASE}/workflows", plan),
        ("POST", f"{BASE}/workflows", {"type": "chain", "steps": [plan]}),
        ("POST", f"{BASE}/workers/heartbeat", beat),
    ]
    for route in ROUTES:
        if route.is_for_tenants and not route.streams:
            for path, body in tries(world, route.method, route.path):
                parts = [quote(stored[part], safe="") if part in stored else part for part in path.split("/")]
                if parts != path.split("/"):
                    requests.append((route.method, "/".join(parts), body))
    for method, path, body in requests:
        answer = await world.http(method, path, body, headers={"X-OJS-Tenant": tenant})
        what = f"{method} {path} for {tenant}: {answer.status_code} {answer.text}"
        assert MARKER not in answer.text, what
        is_refused = answer.status_code in (400, 403, 404)
        assert is_refused or "/workers/" in path or path.endswith("/versions"), what
        tried += 1
    assert tried > 40
    created = {
        "type": "t",
        "args": [],
        "event_reactions": {"on_creation": [{"action": "start-workflow", "workflow": plan}]},
    }
    await call(world.http, "POST", f"{BASE}/jobs", created, {"X-OJS-Tenant": tenant})
    listed = await call(world.http, "GET", f"{BASE}/workflows", headers={"X-OJS-Tenant": tenant})
    assert listed["workflows"] == []
    assert await world.seen() == before


async def test_a_tenant_sees_its_own(world: World) -> None:
    http = world.http
    listed = (await call(http, "GET", f"{BASE}/jobs"))["jobs"]
    assert {job["meta"]["tenant_id"] for job in listed} == {"acme"}
    assert "worker_id" in (await call(http, "GET", f"{BASE}/jobs/{world.ids['active']}"))["job"]
    assert (await call(http, "GET", f"{BASE}/jobs/{world.ids['active']}"))["job"]["worker_id"] == "w-acme"
    assert [one["worker_id"] for one in (await call(http, "GET", f"{BASE}/workers"))["workers"]] == ["w-acme"]
    assert [one["name"] for one in (await call(http, "GET", f"{BASE}/cron"))["crons"]] == ["nightly"]
    assert [one["key"] for one in (await call(http, "GET", f"{BASE}/rate-limits"))["items"]] == ["stripe"]
    assert [one["type"] for one in (await call(http, "GET", f"{BASE}/schemas"))["schemas"]] == ["typed"]
    assert (await call(http, "GET", f"{BASE}/workflows"))["pagination"]["total"] == 1
    queues = {one["name"] for one in (await call(http, "GET", f"{BASE}/queues"))["queues"]}
    assert queues >= {"default", "work", "grave"}
    assert (await call(http, "GET", f"{BASE}/queues/grave"))["queue"]["discarded"] == 1
    assert (await call(http, "GET", f"{BASE}/dead-letter/stats"))["total"] == 1
    assert (await call(http, "POST", f"{BASE}/jobs/{world.ids['active']}/ack", {"worker_id": "w-acme"}))["acknowledged"]
    done = await call(http, "POST", f"{BASE}/jobs/batch/cancel", {"filter": {"type": "t"}})
    assert done["summary"]["succeeded"] > 0


@pytest.mark.parametrize("tenant", ["beta", "_default"])
async def test_others_see_nothing_in_lists_and_numbers(world: World, tenant: str) -> None:
    http, view = world.http, {"X-OJS-Tenant": tenant}
    for path, name in (
        ("/jobs", "jobs"),
        ("/workflows", "workflows"),
        ("/queues", "queues"),
        ("/workers", "workers"),
        ("/cron", "crons"),
        ("/rate-limits", "items"),
        ("/collections", "collections"),
        ("/channels", "channels"),
        ("/push/endpoints", "endpoints"),
        ("/schemas", "schemas"),
        ("/dead-letter", "jobs"),
        ("/webhooks/subscriptions", "subscriptions"),
        ("/webhooks/deliveries", "deliveries"),
        ("/events", "events"),
    ):
        assert (await call(http, "GET", BASE + path, headers=view))[name] == [], path
    assert (await call(http, "GET", f"{BASE}/dead-letter/stats", headers=view))["total"] == 0
    for path in ("", "/stats", "/events"):
        assert (await http("GET", f"{BASE}/queues/work{path}", headers=view)).status_code == 404
    await call(http, "POST", f"{BASE}/jobs", {"type": "t", "args": [], "options": {"queue": "work"}}, view)
    assert (await call(http, "GET", f"{BASE}/queues/work", headers=view))["stats"]["depth"] == 1
    assert [one["name"] for one in (await call(http, "GET", f"{BASE}/queues", headers=view))["queues"]] == ["work"]


async def test_operators_see_all_objects_with_their_tenant(world: World) -> None:
    http = world.http
    (worker,) = (await call(http, "GET", f"{BASE}/workers", headers={}))["workers"]
    assert (worker["worker_id"], worker["tenant_id"]) == ("w-acme", "acme")
    (cron,) = (await call(http, "GET", f"{BASE}/cron", headers={}))["crons"]
    assert (cron["name"], cron["tenant_id"]) == ("nightly", "acme")
    assert (await call(http, "GET", f"{BASE}/jobs/{world.ids['dead']}", headers={}))["job"]["state"] == "discarded"


async def test_the_same_names_are_each_tenants_own(http: Http, bench: Bench) -> None:
    views: list[dict[str, str]] = [ACME, BETA, {}]
    for headers in views:
        body: dict[str, Any] = {"name": "nightly", "expression": "@every 10s", "type": "t"}
        assert (await http("POST", f"{BASE}/cron", body, headers=headers)).status_code == 201
    await bench.run_due(11)
    jobs = (await call(http, "GET", f"{BASE}/jobs", headers={}))["jobs"]
    assert sorted(job["meta"].get("tenant_id", "") for job in jobs) == ["", "acme", "beta"]
    assert {(job["cron_name"], job["meta"]["cron_name"]) for job in jobs} == {("nightly", "nightly")}
    key = {"Idempotency-Key": "k"}
    body = {"mode": "partial", "jobs": [{"type": "t", "args": []}]}
    for headers in (ACME, BETA):
        made = await http("POST", f"{BASE}/jobs/batch", body, headers=headers | key)
        assert made.json()["jobs"][0]["meta"]["tenant_id"] == headers["X-OJS-Tenant"]


async def test_a_schema_binds_only_its_tenants_jobs(http: Http) -> None:
    schema = {"job_type": "typed", "version": 1, "mode": "strict", "schema": {"type": "array", "maxItems": 0}}
    await call(http, "POST", f"{BASE}/schemas", schema)
    job = {"type": "typed", "args": [1]}
    assert (await http("POST", f"{BASE}/jobs", job, headers=ACME)).status_code == 422
    assert (await http("POST", f"{BASE}/jobs", job, headers=BETA)).status_code == 201
    assert (await http("POST", f"{BASE}/jobs", job)).status_code == 201


async def test_a_tenant_lists_webhook_deliveries_only_of_its_own_jobs(world: World, bench: Bench) -> None:
    http = world.http
    await call(http, "POST", f"{BASE}/jobs", {"type": "t", "args": []}, headers=BETA)
    deliveries = (await call(http, "GET", f"{BASE}/webhooks/deliveries"))["deliveries"]
    assert deliveries
    for delivery in deliveries:
        shown = await call(http, "GET", f"{BASE}/webhooks/deliveries/{delivery['id']}")
        assert shown["event"]["data"]["tenant_id"] == "acme"


async def test_a_tenant_cannot_forge_deliveries(world: World) -> None:
    for queue in ("ojster.webhooks", "ojster.other"):
        forged = {"type": "ojster.webhook", "args": [world.ids["subscription"], {}], "options": {"queue": queue}}
        assert (await world.http("POST", f"{BASE}/jobs", forged, headers=BETA)).status_code == 403


@pytest.mark.parametrize("name", ["", "a b", "/acme", "é", "*", "-a", "a" * 129])
async def test_an_invalid_tenant_header_is_refused(http: Http, name: str) -> None:
    headers = [(b"X-OJS-Tenant", name.encode("latin-1"))]
    response = await http.client.get(f"{BASE}/jobs", headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_request"


async def test_a_parked_fetch_gets_the_next_job_of_its_tenant(http: Http) -> None:
    async def wait(headers: dict[str, str]) -> list[Any]:
        body = {"queues": ["default"], "wait_ms": 60_000}
        jobs: list[Any] = (await call(http, "POST", f"{BASE}/workers/fetch", body, headers))["jobs"]
        return jobs

    default = {"X-OJS-Tenant": "_default"}
    waiting = {name: asyncio.create_task(wait(headers)) for name, headers in (("a", ACME), ("b", BETA), ("d", default))}
    await asyncio.sleep(0.1)
    for name, headers in (("b", BETA), ("d", {}), ("a", ACME)):
        await call(http, "POST", f"{BASE}/jobs", {"type": name, "args": []}, headers)
        (job,) = await asyncio.wait_for(waiting.pop(name), PATIENCE)
        assert job["type"] == name
        assert not any(task.done() for task in waiting.values())


# Tenant configuration by operators

TENANTS = f"{BASE}/admin/tenants"


async def test_a_tenant_is_made_shown_changed_and_forgotten(http: Http, bench: Bench) -> None:
    limits = {"max_concurrency": 20, "max_queue_depth": 50, "max_enqueue_rate": {"limit": 1000, "period": "PT1M"}}
    made = await http("PUT", f"{TENANTS}/acme", {"tenant_id": "acme", "limits": limits, "fairness_weight": 10})
    assert made.status_code == 201
    assert made.json()["limits"] == limits
    assert (made.json()["tenant_id"], made.json()["fairness_weight"], made.json()["quota"]) == ("acme", 10, "hard")
    await call(http, "POST", f"{BASE}/jobs", {"type": "t", "args": []})
    shown = await call(http, "GET", f"{TENANTS}/acme", headers={})
    counts = {"total": 1, "available": 1, "completed_24h": 0, "failed_24h": 0}
    assert (shown["jobs"], shown["queues"]) == (counts, {"default": {"available": 1}})
    changed = await call(http, "PUT", f"{TENANTS}/acme/limits", {"max_concurrency": 5, "reason": "incident"}, {})
    assert changed["limits"] == limits | {"max_concurrency": 5}
    lifted = await call(http, "PUT", f"{TENANTS}/acme/limits", {"max_queue_depth": None}, {})
    assert "max_queue_depth" not in lifted["limits"]
    stats = await call(http, "GET", f"{TENANTS}/acme/stats", headers={})
    assert (stats["total_jobs"], stats["jobs"]["available"], stats["jobs"]["completed_24h"]) == (1, 1, 0)
    assert stats["limits"] == {"max_concurrency": {"limit": 5, "current": 0}}
    assert stats["fairness"] == {"weight": 10, "effective_share": 1.0, "actual_share": 0.0}
    assert (await call(http, "GET", f"{TENANTS}/acme/jobs?state=available", headers={}))["pagination"]["total"] == 1
    assert [one["tenant_id"] for one in (await call(http, "GET", TENANTS, headers={}))["items"]] == ["acme"]
    assert (await call(http, "DELETE", f"{TENANTS}/acme", headers={}))["deleted"]
    assert (await call(http, "GET", f"{TENANTS}/acme", headers={}))["configured"] is False
    assert (await http("DELETE", f"{TENANTS}/acme")).status_code == 404
    assert (await http("GET", f"{TENANTS}/unknown")).status_code == 404
    assert {"tenant.created", "tenant.changed", "tenant.deleted"} <= set(await bench.events())


async def test_a_limit_is_told_as_the_specification_has_it(http: Http) -> None:
    await http("PUT", f"{TENANTS}/acme", {"limits": {"max_queue_depth": 1}})
    await call(http, "POST", f"{BASE}/jobs", {"type": "t", "args": []})
    refused = await http("POST", f"{BASE}/jobs", {"type": "t", "args": []}, headers=ACME)
    assert refused.status_code == 429
    assert refused.headers["retry-after"].isdigit()
    error = refused.json()["error"]
    assert error["code"] == "TENANT_LIMIT_EXCEEDED"
    assert (error["tenant_id"], error["limit"], error["current"], error["maximum"]) == ("acme", "max_queue_depth", 1, 1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/acme", {"fairness_weight": 0}),
        ("/acme", {"quota": "elastic"}),
        ("/acme", {"limits": {"max_concurrency": -1}}),
        ("/acme", {"limits": {"max_enqueue_rate": {"limit": 5}}}),
        ("/acme/limits", {}),
        ("/acme/limits", {"reason": "none"}),
        ("/_default", {"limits": {"max_concurrency": 5}}),
        ("/a b", {}),
    ],
)
async def test_an_invalid_tenant_configuration_is_refused(http: Http, path: str, body: dict[str, Any]) -> None:
    assert (await http("PUT", f"{TENANTS}{path}", body)).status_code == 400


async def test_metrics_are_told_by_tenant(http: Http) -> None:
    await call(http, "POST", f"{BASE}/jobs", {"type": "t", "args": []})
    text = (await http("GET", "/metrics")).text
    assert 'ojs_tenant_queue_depth{queue="default",tenant_id="acme"} 1.0' in text
    assert 'ojs_tenant_fairness_share{tenant_id="acme"}' in text
    assert (await http("GET", "/metrics", headers=ACME)).status_code == 403


async def test_what_a_tenant_did_in_the_last_day_is_counted_wherever_the_tenant_is_shown(
    http: Http, bench: Bench
) -> None:
    done = {"acme": (3, 1), "beta": (0, 2), "_default": (1, 0)}
    for tenant, (completed, failed) in done.items():
        for number in range(completed + failed):
            await bench.push(meta={} if tenant == "_default" else {"tenant_id": tenant})
            job = await bench.fetch_one()
            await (bench.ack(job) if number < completed else bench.fail(job, retryable=False))

    async def shown() -> dict[str, list[tuple[int, int]]]:
        views: dict[str, list[Any]] = {
            one["tenant_id"]: [one] for one in (await call(http, "GET", TENANTS, headers={}))["items"]
        }
        for tenant, of_tenant in views.items():
            of_tenant += [await call(http, "GET", f"{TENANTS}/{tenant}{rest}", headers={}) for rest in ("", "/stats")]
        return {
            tenant: [(one["jobs"]["completed_24h"], one["jobs"]["failed_24h"]) for one in views[tenant]]
            for tenant in views
        }

    assert await shown() == {tenant: [numbers] * 3 for tenant, numbers in done.items()}
    bench.clock.advance(25 * 3_600)
    assert await shown() == {tenant: [(0, 0)] * 3 for tenant in done}
