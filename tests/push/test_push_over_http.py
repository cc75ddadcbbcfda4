"""Push endpoints over HTTP: what is accepted, what is refused, and who may see and change them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from ojster.core.access import Grant, Role
from ojster.server.application import Application
from ojster.service import Service
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

ALL = "/ojs/v1/push/endpoints"
URL = "https://203.0.113.1/run"


async def put(http: Http, id: str = "fn", endpoint: str = URL, **members: Any) -> httpx.Response:
    return await http("PUT", f"{ALL}/{id}", {"endpoint": endpoint} | members)


@pytest.fixture
async def http(service: Service) -> AsyncIterator[Http]:
    transport = httpx.ASGITransport(app=Application(service, trusting=True))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Http(client)


@pytest.fixture
async def strict(service: Service) -> AsyncIterator[Http]:
    """A server that calls public addresses alone."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=Application(service)), base_url="http://test"
    ) as client:
        yield Http(client)


async def test_an_endpoint_is_made_as_the_specification_describes_it(http: Http) -> None:
    config = {"max_concurrency": 100, "timeout_ms": 30_000, "signing_secret": "whsec_0123456789"}
    made = (await put(http, job_types=["email.send", "report.generate"], queues=["default"], config=config)).json()
    shown = made["push_endpoint"]
    assert (shown["id"], shown["endpoint"], shown["queues"], shown["state"]) == ("fn", URL, ["default"], "active")
    assert shown["config"] == config | {"rate": None}
    for path in (ALL, f"{ALL}/fn"):
        assert "whsec" not in (await http("GET", path)).text


async def test_the_secret_is_made_if_there_is_none_and_stays_when_the_rest_changes(http: Http, bench: Bench) -> None:
    first = (await put(http)).json()["push_endpoint"]["config"]["signing_secret"]
    again = (await put(http, queues=["other"])).json()["push_endpoint"]["config"]["signing_secret"]
    assert (first.startswith("whsec_"), again) == (True, first)
    rotated = (await http("POST", f"{ALL}/fn/rotate-secret")).json()["push_endpoint"]["config"]["signing_secret"]
    (endpoint,) = await bench.service.push.stored()
    assert endpoint.keys(bench.clock.now) == [rotated, first]
    bench.clock.advance(86_401)
    assert endpoint.keys(bench.clock.now) == [rotated]


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"endpoint": "http://203.0.113.1/run"}, "endpoint"),
        ({"endpoint": "https://127.0.0.1/run"}, "endpoint"),
        ({"endpoint": "https://10.0.0.1/run"}, "endpoint"),
        ({"endpoint": "https://169.254.169.254/latest"}, "endpoint"),
        ({"endpoint": "https://user:password@203.0.113.1/"}, "endpoint"),
        ({"endpoint": "arn:aws:lambda:us-east-1:123456789012:function:fn"}, "endpoint"),
        ({"queues": ["No Queue"]}, "queue"),
        ({"job_types": ["No Type"]}, "type"),
        ({"job_types": ["email.send", "ojster.code"]}, "job_types"),
        ({"job_types": ["ojster.wait"]}, "job_types"),
        ({"config": {"rate": {"limit": 1, "period": "soon"}}}, None),
        ({"config": {"max_concurrency": 0}}, None),
        ({"config": {"timeout_ms": 0}}, None),
        ({"config": {"signing_secret": "short"}}, None),
        ({"config": {"max_concurency": 3}}, None),
        ({"colour": "red"}, None),
        ({"queues": []}, None),
    ],
)
async def test_what_cannot_work_is_refused(
    http: Http, strict: Http, members: dict[str, Any], field: str | None
) -> None:
    refused = await put(strict if field == "endpoint" else http, **members)
    assert refused.status_code in (400, 422), refused.text
    if field is not None:
        assert refused.json()["error"]["details"]["field"] == field
    assert (await http("GET", ALL)).json()["endpoints"] == []


async def test_a_name_must_be_one_and_reserved_queues_are_refused(http: Http) -> None:
    assert (await put(http, "-fn")).status_code == 400
    assert (await put(http, queues=["ojster.webhooks"])).status_code == 403
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume")):
        assert (await http(method, f"{ALL}/nobody{path}")).status_code == 404


async def test_who_is_limited_to_queues_pushes_none_of_others(service: Service) -> None:
    async def client(*grants: Grant, queues: tuple[str, ...] = ()) -> Http:
        _, token = await service.tokens.create(f"t{len(clients)}", list(grants), queues=queues)
        transport = httpx.ASGITransport(app=Application(service, guarded=True, trusting=True))
        headers = {"Authorization": f"Bearer {token}"}
        made = httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)
        clients.append(made)
        return Http(made)

    clients: list[httpx.AsyncClient] = []
    owner, limited = await client(Grant(Role.OWNER)), await client(Grant(Role.OWNER), queues=("mail",))
    worker = await client(Grant(Role.WORKER))
    assert (await put(owner, "all", queues=["other"])).status_code == 200
    assert (await put(limited, "mine", queues=["mail"])).status_code == 200
    assert (await put(limited, "more", queues=["mail", "other"])).status_code == 403
    assert [shown["id"] for shown in (await limited("GET", ALL)).json()["endpoints"]] == ["mine"]
    assert (await limited("DELETE", f"{ALL}/all")).status_code == 404
    assert (await put(limited, "all", queues=["mail"])).status_code == 403
    for method, path in (("GET", ALL), ("GET", f"{ALL}/all"), ("PUT", f"{ALL}/x"), ("POST", f"{ALL}/all/resume")):
        assert (await worker(method, path, {} if method == "PUT" else None)).status_code == 403
    for made in clients:
        await made.aclose()


async def test_a_tenant_takes_no_endpoint_of_all_tenants(http: Http) -> None:
    assert (await put(http)).status_code == 200
    refused = await http("PUT", f"{ALL}/fn", {"endpoint": URL}, headers={"X-OJS-Tenant": "_default"})
    assert refused.status_code == 403
