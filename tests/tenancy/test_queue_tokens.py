"""A token that is limited to certain queues changes and reads nothing of others, whatever its role."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from ojster.core.access import Grant, Role
from ojster.core.json_objects import read_members
from ojster.queues.wire import PoolBody
from ojster.server.application import Application
from ojster.tenancy.wire import TenantBody
from tests.conftest import Http
from tests.tenancy.test_access import ROUTES, GuardedServer, door  # noqa: F401
from tests.tenancy.world import ACME, BASE, MARKER, tries

pytestmark = pytest.mark.anyio

QUEUES = ("mine", "shop.*")


async def seen(door: GuardedServer) -> Any:  # noqa: F811
    """Return the objects of ``acme``, the queues and the tenants, as an owner of everything reads them."""
    owner = await door.token(Grant(Role.OWNER), Grant(Role.WORKER))

    async def http(method: str, path: str, body: Any = None, headers: Mapping[str, str] = owner) -> Any:
        return await door.http(method, path, body, headers=owner | dict(headers))

    door.world.http = cast("Http", http)
    service = door.bench.service
    return await door.world.seen(), await service.queues.overviews(), await service.tenants.all()


async def limited(door: GuardedServer) -> dict[str, str]:  # noqa: F811
    return await door.token(Grant(Role.OWNER), Grant(Role.WORKER), queues=QUEUES)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/queues", {"name": "other"}),
        ("DELETE", "/queues/grave", None),
        ("DELETE", "/queues/default", {"strategy": "discard"}),
        ("DELETE", "/queues/default", {"strategy": "move", "target_queue": "mine"}),
        ("DELETE", "/queues/mine", {"strategy": "move", "target_queue": "default"}),
        ("PUT", "/queues/default/config", {"concurrency": 1}),
        ("PUT", "/admin/queues/default/config", {"concurrency": 1}),
        ("PUT", "/admin/queues/default/rate-limit", {"concurrency": 1}),
        ("POST", "/admin/queues/default/config/preview", {"concurrency": 1}),
        ("GET", "/admin/queues/default/config", None),
        ("GET", "/queues/default/config", None),
        ("POST", "/queues/default/pause", {}),
        ("POST", "/queues/default/resume", {}),
        ("POST", "/admin/queues/default/pause", {}),
        ("POST", "/admin/queues/default/resume", {}),
        ("DELETE", "/admin/queues/grave/jobs", {"confirm": True, "states": ["discarded"]}),
    ],
)
async def test_a_token_for_some_queues_changes_no_other_queue(
    door: GuardedServer,  # noqa: F811
    method: str,
    path: str,
    body: Any,
) -> None:
    await door.bench.service.queues.create("mine")
    before = await seen(door)
    answer = await door.http(method, BASE + path, body, headers=await limited(door))
    assert answer.status_code == 403, answer.text
    assert await seen(door) == before
    allowed = await door.http(method, BASE + path, body, headers=await door.token(Grant(Role.OWNER)))
    assert allowed.status_code < 400, allowed.text


async def test_a_token_for_some_queues_manages_those(door: GuardedServer) -> None:  # noqa: F811
    headers = await limited(door)
    for method, path, body in (
        ("POST", "/queues", {"name": "shop.mail"}),
        ("PUT", "/queues/shop.mail/config", {"concurrency": 1}),
        ("PUT", "/admin/queues/shop.mail/rate-limit", {"concurrency": 2}),
        ("POST", "/admin/queues/shop.mail/config/preview", {"concurrency": 3}),
        ("GET", "/queues/shop.mail/config", None),
        ("POST", "/jobs", {"type": "t", "args": [], "options": {"queue": "shop.mail"}}),
        ("DELETE", "/queues/shop.mail", {"strategy": "move", "target_queue": "mine"}),
    ):
        answer = await door.http(method, BASE + path, body, headers=headers)
        assert answer.status_code < 300, (method, path, answer.text)
    listed = await door.http("GET", f"{BASE}/jobs?queue=mine", headers=headers)
    assert len(listed.json()["jobs"]) == 1


async def test_a_token_for_some_queues_lists_those(door: GuardedServer) -> None:  # noqa: F811
    headers = await limited(door)
    for name in ("mine", "shop.eu"):
        await door.bench.service.queues.create(name)
    listed = (await door.http("GET", f"{BASE}/queues", headers=headers)).json()["queues"]
    assert [queue["name"] for queue in listed] == ["mine", "shop.eu"]
    everything = (await door.http("GET", f"{BASE}/queues", headers=await door.token(Grant(Role.OWNER)))).json()[
        "queues"
    ]
    assert len(everything) > len(listed)


FOR_ALL_QUEUES: list[tuple[str, str, Any]] = [
    ("PATCH", "/cron/nightly", {"enabled": False}),
    ("DELETE", "/cron/nightly", None),
    ("GET", "/cron", None),
    ("GET", "/cron/nightly", None),
    ("GET", "/cron/nightly/misses", None),
    ("POST", "/cron/nightly/trigger", {}),
    ("POST", "/definitions", {"name": "own", "type": "chain", "steps": [{"type": "a", "args": []}]}),
    ("PUT", "/definitions/plan", {"type": "chain", "steps": [{"type": "b", "args": []}]}),
    ("DELETE", "/definitions/plan", None),
    ("GET", "/definitions", None),
    ("GET", "/definitions/plan", None),
    ("GET", "/definitions/plan/versions/1", None),
    ("PUT", "/admin/tenants/acme", {"limits": {"max_concurrency": 1}}),
    ("PUT", "/admin/tenants/acme/limits", {"max_concurrency": 1}),
    ("DELETE", "/admin/tenants/acme", None),
    ("GET", "/admin/tenants/acme/jobs", None),
    ("GET", "/rate-limits", None),
    ("GET", "/rate-limits/stripe", None),
    ("PUT", "/rate-limits/stripe", {"concurrency": 1}),
    ("DELETE", "/rate-limits/stripe", None),
    ("PUT", "/admin/pools/all", {"queues": ["mine", "work"], "concurrency": 1}),
    ("DELETE", "/admin/pools/shared", None),
    ("POST", "/webhooks/subscriptions", {"url": "https://203.0.113.1/hook", "events": ["job.*"]}),
    (
        "POST",
        "/webhooks/subscriptions",
        {"url": "https://203.0.113.1/hook", "events": ["job.*"], "filter": {"queues": ["mine", "work"]}},
    ),
    ("PUT", "/channels/ops", {"method": "email", "from": "b@example.com", "to": ["b@example.com"]}),
    ("DELETE", "/channels/ops", None),
    ("POST", "/schemas", {"job_type": "typed", "version": 2, "schema": {"type": "array"}}),
    ("DELETE", "/schemas/typed/1", None),
    ("POST", "/workers/w-acme/directive", {"directive": "terminate"}),
    ("PATCH", "/admin/worker-rules/w", {"enabled": False}),
    ("DELETE", "/workers/w-acme", None),
    ("POST", "/admin/prune", {}),
    ("DELETE", "/admin/tokens/{token}", None),
    ("POST", "/admin/tokens/{token}/rotate", {}),
    ("POST", "/collections", {"name": "own"}),
    ("PATCH", "/collections/hoard", {"shared": True}),
    ("DELETE", "/collections/hoard?force=true", None),
    ("POST", "/collections/hoard/items", {"name": "gem", "replace": True}),
    ("DELETE", "/collections/hoard/items/gem", None),
    ("POST", "/workflows/{workflow}/items", {"name": "gem", "replace": True}),
    ("DELETE", "/workflows/{workflow}/items/gem", None),
    ("POST", "/workflows/{workflow}/properties", {"set": {"x": 1}}),
    ("POST", "/workflows/{workflow}/info", {"note": 1}),
    ("GET", "/workflows", None),
    ("GET", "/workflow-export", None),
    ("GET", "/workflow-export?format=csv", None),
    ("GET", "/workflows/{workflow}/export", None),
    ("GET", "/workflows/{begin}", None),
    ("GET", "/files", None),
    ("GET", "/tasks/runs", None),
    ("GET", "/tasks/statistics", None),
    ("GET", "/events", None),
    ("GET", "/events?page=1", None),
    ("GET", "/events?queues=mine,work", None),
]
"""Requests about what has jobs in any queue, or rules them."""


@pytest.mark.parametrize(("method", "path", "body"), FOR_ALL_QUEUES)
async def test_a_token_for_some_queues_changes_and_reads_nothing_of_all(
    door: GuardedServer,  # noqa: F811
    method: str,
    path: str,
    body: Any,
) -> None:
    service, ids = door.bench.service, door.world.ids
    ids["token"] = (await service.tokens.create("other", [Grant(Role.VIEWER)]))[0].id
    await service.pools.put("shared", PoolBody(["work"]))
    ids["begin"] = ids["workflow"][:-1]
    for name, id in ids.items():
        path = path.replace(f"{{{name}}}", id)
    await service.tenants.put("acme", TenantBody(public=True))
    before = await seen(door)
    place = {} if "/admin/" in path else ACME
    answer = await door.http(method, BASE + path, body, headers=await limited(door) | place)
    assert answer.status_code == 403, answer.text
    assert await seen(door) == before
    allowed = await door.http(method, BASE + path, body, headers=await door.token(Grant(Role.OWNER)) | place)
    assert allowed.status_code < 400, allowed.text


async def test_a_token_for_some_queues_lists_the_jobs_that_a_tenant_has_in_them(door: GuardedServer) -> None:  # noqa: F811
    job = await door.bench.push(queue="mine", meta={"tenant_id": "acme"})
    headers = await limited(door)
    listed = await door.http("GET", f"{BASE}/admin/tenants/acme/jobs?queue=mine", headers=headers)
    assert [one["id"] for one in listed.json()["items"]] == [job.id]
    for queue in ("", "?queue=work"):
        refused = await door.http("GET", f"{BASE}/admin/tenants/acme/jobs{queue}", headers=headers)
        assert refused.status_code == 403, refused.text


async def test_who_may_not_configure_a_queue_of_its_token_is_told_that(door: GuardedServer) -> None:  # noqa: F811
    headers = await door.token(Grant(Role.VIEWER), queues=("mine",))
    path, body = f"{BASE}/admin/queues/mine/config/preview", {"concurrency": 1}
    assert (await door.http("POST", path, body, headers=headers)).status_code == 200
    refused = await door.http("PUT", f"{BASE}/queues/mine/config", body, headers=headers)
    assert (refused.status_code, "no role that allows 'admin'" in refused.text) == (403, True), refused.text


async def test_a_token_for_some_queues_learns_no_ids_of_jobs_in_others(door: GuardedServer) -> None:  # noqa: F811
    begin = (await door.bench.push(queue="secret")).id[:8]
    assert (await door.bench.push(queue="secret")).id[:8] == begin, "both have the same time"
    refused = await door.http("GET", f"{BASE}/jobs/{begin}", headers=await limited(door))
    assert refused.status_code == 409, refused.text
    assert "Give more characters." in refused.text
    assert "such as" not in refused.text
    whole = await door.http("GET", f"{BASE}/jobs/{begin}", headers=await door.token(Grant(Role.OWNER)))
    assert whole.status_code == 409
    assert "such as" in whole.text


async def test_a_token_for_some_queues_has_webhooks_for_their_events(door: GuardedServer) -> None:  # noqa: F811
    headers, path = await limited(door), f"{BASE}/webhooks/subscriptions"
    body = {"url": "https://203.0.113.1/hook", "events": ["job.*"], "filter": {"queues": ["mine", "shop.eu"]}}
    mine = await door.http("POST", path, body, headers=headers | ACME)
    assert mine.status_code == 201, mine.text
    listed = await door.http("GET", path, headers=headers | ACME)
    assert [one["id"] for one in listed.json()["subscriptions"]] == [mine.json()["id"]]
    for queues in ([], ["mine", "work"]):
        change = {"filter": {"queues": queues}}
        refused = await door.http("PATCH", f"{path}/{mine.json()['id']}", change, headers=headers | ACME)
        assert refused.status_code == 403, refused.text
    other = f"{path}/{door.world.ids['subscription']}"
    before = await seen(door)
    for method, at, changed in (
        ("GET", other, None),
        ("PATCH", other, {"active": False}),
        ("PUT", other, {"active": False}),
        ("POST", f"{other}/rotate-secret", {}),
        ("POST", f"{other}/test", {}),
        ("DELETE", other, None),
    ):
        refused = await door.http(method, at, changed, headers=headers | ACME)
        assert refused.status_code == 404, (method, at, refused.text)
    assert await seen(door) == before
    assert (await door.http("DELETE", f"{path}/{mine.json()['id']}", headers=headers | ACME)).status_code == 200


async def test_a_worker_for_some_queues_leaves_with_jobs_of_these_alone(door: GuardedServer) -> None:  # noqa: F811
    headers = await door.token(Grant(Role.WORKER), queues=QUEUES)
    job = await door.bench.push(queue="mine")
    fetch = {"queues": ["mine"], "worker_id": "w"}
    fetched = await door.http("POST", f"{BASE}/workers/fetch", fetch, headers=headers)
    assert [one["id"] for one in fetched.json()["jobs"]] == [job.id]
    refused = await door.http("DELETE", f"{BASE}/workers/w-acme", headers=headers | ACME)
    assert refused.status_code == 403, refused.text
    assert (await door.http("DELETE", f"{BASE}/workers/w", headers=headers)).status_code == 200
    assert (await door.bench.find(job)).state == "available"


async def test_a_token_for_some_queues_changes_workflows_for_its_own_jobs_alone(door: GuardedServer) -> None:  # noqa: F811
    bench, headers = door.bench, await limited(door)
    steps = [{"type": "a", "args": [], "options": {"queue": queue}} for queue in ("mine", "work")]
    group = msgspec.json.encode({"type": "group", "jobs": steps})
    workflow = await bench.service.workflows.create(read_members(group))
    other = await bench.service.workflows.create(read_members(group))
    mine, foreign = await bench.fetch_one("mine", worker_id="w"), await bench.fetch_one("work", worker_id="w")
    assert mine.workflow == foreign.workflow
    changes: list[tuple[str, str, Any]] = [
        ("POST", "/properties", {"set": {"x": 1}}),
        ("POST", "/items", {"name": "gem", "data": 1}),
        ("DELETE", "/items/gem", None),
    ]
    for method, path, body in changes:
        for id, job, status in (
            (workflow.id, None, 403),
            (workflow.id, foreign.id, 403),
            (other.id, mine.id, 409),
            (workflow.id, mine.id, 200),
        ):
            by = {} if job is None else {"job_id": job}
            lease = {"worker_id": "w", "attempt": 1} if job is not None and body else {}
            at, sent = f"{BASE}/workflows/{id}{path}", None if body is None else body | lease
            if path == "/properties":
                sent = body | by | lease
            elif by:
                at += f"?job_id={job}"
            answer = await door.http(method, at, sent, headers=headers)
            assert (answer.status_code if answer.status_code >= 300 else 200) == status, (method, at, answer.text)
    taken = {"name": "gem", "data": 2, "worker_id": "another", "attempt": 1}
    lost = await door.http("POST", f"{BASE}/workflows/{workflow.id}/items?job_id={mine.id}", taken, headers=headers)
    assert lost.status_code == 409, lost.text


async def test_a_token_for_some_queues_follows_no_events_of_others(door: GuardedServer) -> None:  # noqa: F811
    await door.bench.service.queues.create("mine")
    headers = await limited(door)
    for path in ("/events/stream", "/events/stream?channel=all", "/events/stream?channel=queue:work"):
        refused = await door.http("GET", BASE + path, headers=headers)
        assert refused.status_code == 403, (path, refused.text)
    raw = [(b"host", b"guarded"), (b"authorization", headers["Authorization"].encode())]
    scope = {"type": "websocket", "path": f"{BASE}/ws", "headers": raw, "query_string": b"", "subprotocols": []}
    channels = ["all", "queue:work", f"job:{door.world.ids['active']}", "queue:mine"]
    orders = [msgspec.json.encode({"action": "subscribe", "channel": channel}).decode() for channel in channels]
    incoming: list[Any] = [{"type": "websocket.connect"}]
    incoming += [{"type": "websocket.receive", "text": order} for order in orders]
    incoming.append({"type": "websocket.disconnect", "code": 1000})
    answers: list[tuple[str, str | None]] = []

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        if message["type"] == "websocket.send":
            told = msgspec.json.decode(message["text"])
            answers.append((told["channel"], told.get("code")))

    await Application(door.bench.service, guarded=True)(scope, receive, send)
    assert answers == [*((channel, "permission_denied") for channel in channels[:3]), ("queue:mine", None)]


FILTER = {"filter": {"type": "t"}, "confirm": True}
BODIES: dict[str, Any] = {
    "POST /admin/jobs/bulk/retry": FILTER,
    "POST /admin/jobs/bulk/cancel": FILTER,
    "POST /admin/jobs/bulk/delete": FILTER,
    "POST /admin/dead-letter/retry": FILTER,
    "DELETE /admin/dead-letter": FILTER,
    "PUT /admin/schemas/{type}/{version}": {"schema": {"type": "array"}},
    "PUT /job-types/{type}": {"options": {"priority": 1}},
    "PUT /admin/tenants/{id}": {"limits": {"max_concurrency": 1}},
    "PUT /admin/tenants/{id}/limits": {"max_concurrency": 1},
    "POST /admin/tokens": {"name": "x", "grants": [{"role": "viewer"}]},
    "PATCH /admin/worker-rules/{id}": {"enabled": False},
    "POST /queues": {"name": "other"},
    "DELETE /queues/{name}": {"strategy": "discard"},
    "PUT /queues/{name}/config": {"concurrency": 1},
    "PUT /admin/queues/{name}/config": {"concurrency": 1},
    "PUT /admin/queues/{name}/rate-limit": {"concurrency": 1},
    "POST /admin/queues/{name}/config/preview": {"concurrency": 1},
    "DELETE /admin/queues/{name}/jobs": {"confirm": True, "states": ["discarded"]},
    "PUT /admin/pools/{name}": {"queues": ["work"]},
    "POST /broadcasts": {"name": "x", "key": "y"},
    "POST /definitions": {"name": "own", "type": "chain", "steps": [{"type": "a", "args": []}]},
    "POST /admin/system/maintenance": {"enabled": True},
    **{
        f"POST /workflows/{action}": {"filter": {"type": "chain"}}
        for action in ("cancel", "retry", "fork", "hold", "release", "delete")
    },
    "POST /workflows/pin": {"filter": {"type": "chain"}, "flow": "f", "version": "2"},
}
"""Bodies of requests that the world of the tenants does not have, because no tenant may make them."""

REFUSED_ONE_BY_ONE = re.compile("/jobs/(batch|bulk)|/workers/(ack|nack|release)/batch")
"""Requests about several jobs, whose answers say what became of each."""

ALLOWED = {
    *("POST /workers/heartbeat", "POST /workers/beat"),  # about the worker itself; see below
    "POST /jobs/results",  # reads
    "PATCH /files/{id}",  # an upload goes on, by its id
    *("DELETE /schemas/{type}", "DELETE /admin/schemas/{type}"),  # by a URI alone
}
"""Requests that change something and are not refused."""

READABLE = {
    *("/schemas", "/admin/schemas", "/schemas/{type}", "/schemas/{type}/{version}", "/signatures", "/channels"),
    *("/collections", "/collections/{name}/items", "/collections/{name}/items/{item}"),
    "/workflows/{id}",
    *(f"/workflows/{{id}}/{part}" for part in ("status", "properties", "info", "items", "items/{item}")),
    *("/files/{id}", "/files/{id}/content"),
    "/admin/audit/export",
}
"""What such tokens read that is of no queue, or that is known by its id alone; owners see the whole audit log."""


async def test_no_endpoint_lets_a_token_for_some_queues_change_or_read_the_jobs_of_others(
    door: GuardedServer,  # noqa: F811
) -> None:
    headers, ids = await limited(door), door.world.ids
    bodies = BODIES | {"POST /workers/progress": {"job_id": ids["active"], "progress": 1}}
    before, read = await seen(door), set()
    for route in ROUTES:
        place = route.path.removeprefix(BASE)
        if not route.needs or route.streams:
            continue
        for path, usual in tries(door.world, route.method, route.path):
            path = path.replace(f"/tenants/{ids['active']}", "/tenants/acme")
            body = bodies.get(f"{route.method} {place}", usual)
            answer = await door.http(route.method, path, body, headers=headers | (ACME if route.is_for_tenants else {}))
            what = f"{route.method} {path}: {answer.status_code} {answer.text}"
            assert answer.status_code not in (401, 500), what
            if MARKER in answer.text:
                read.add(place)
            if route.method == "GET" or f"{route.method} {place}" in ALLOWED:
                continue
            if REFUSED_ONE_BY_ONE.search(place):
                assert "permission_denied" in answer.text, what
            else:
                assert answer.status_code in (403, 404), what
    assert read == READABLE
    after = await seen(door)
    for objects in (*before[0].keys(), 1, 2):
        if objects != "/workers":
            was, now = (one[0][objects] if isinstance(objects, str) else one[objects] for one in (before, after))
            assert now == was, objects


async def test_a_heartbeat_extends_no_lease_in_another_queue(door: GuardedServer) -> None:  # noqa: F811
    headers, id = await limited(door), door.world.ids["active"]
    mine = await door.bench.push(queue="mine", meta={"tenant_id": "acme"})
    fetch = {"queues": ["mine"], "worker_id": "w-acme"}
    assert (await door.http("POST", f"{BASE}/workers/fetch", fetch, headers=headers | ACME)).status_code == 200
    beat = {"worker_id": "w-acme", "active_jobs": [id, mine.id], "visibility_timeout_ms": 7_200_000}
    answer = (await door.http("POST", f"{BASE}/workers/heartbeat", beat, headers=headers | ACME)).json()
    assert (answer["jobs_extended"], answer["jobs_lost"]) == ([mine.id], [id])
