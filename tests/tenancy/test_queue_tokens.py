"""A token that is limited to certain queues changes and reads nothing of others, whatever its role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from ojster.core.access import Grant, Role
from ojster.tenancy.wire import TenantBody
from tests.conftest import Http
from tests.tenancy.test_access import GuardedServer, door  # noqa: F401
from tests.tenancy.world import ACME, BASE

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
]
"""Requests about what has jobs in any queue, or rules them."""


@pytest.mark.parametrize(("method", "path", "body"), FOR_ALL_QUEUES)
async def test_a_token_for_some_queues_changes_and_reads_nothing_of_all(
    door: GuardedServer,  # noqa: F811
    method: str,
    path: str,
    body: Any,
) -> None:
    for name, id in door.world.ids.items():
        path = path.replace(f"{{{name}}}", id)
    await door.bench.service.tenants.put("acme", TenantBody(public=True))
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
