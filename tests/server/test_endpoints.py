"""Every endpoint of the HTTP binding: requests and responses."""

from __future__ import annotations

import asyncio
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import ojster.server
from ojster.core.ids import new_id
from ojster.handlers.tracing import CARRIED
from ojster.insight import readiness
from ojster.server import api_page
from ojster.server.application import Application
from ojster.server.endpoints import routes_of
from ojster.service import Service
from tests.conftest import MEDIA_TYPE, Bench, Clock, Http
from tests.events.test_streams import forget_oldest
from tests.waiting import PATIENCE

ROUTES = routes_of()

SERVER = Path(ojster.server.__file__).parent
HEADERS_READ = re.compile(r'\.header\(b"([a-z-]+)"\)')
SENT_BY_BROWSERS = {"accept-encoding", "origin"}
"""Headers that pages cannot set."""

pytestmark = pytest.mark.anyio


async def test_an_enqueued_job_is_created_and_can_be_found(http: Http) -> None:
    response = await http("POST", "/ojs/v1/jobs", {"type": "email.send", "args": ["a", 1], "options": {"queue": "q"}})
    assert response.status_code == 201
    job = response.json()["job"]
    assert response.headers["location"] == f"/ojs/v1/jobs/{job['id']}"
    assert (await http("GET", response.headers["location"])).json() == {"job": job}


async def test_every_response_has_the_standard_headers(http: Http) -> None:
    for response in (
        await http("POST", "/ojs/v1/jobs", {"type": "a", "args": []}),
        await http("POST", "/ojs/v1/jobs", b"{"),
        await http("GET", "/ojs/v1/health"),
        await http("GET", "/ojs/v1/nowhere"),
        await http("PATCH", "/ojs/v1/jobs"),
    ):
        assert response.headers["content-type"] == MEDIA_TYPE
        assert response.headers["ojs-version"] == "1.0"
        assert response.headers["x-request-id"].startswith("req_")


async def test_a_request_id_is_echoed_and_stands_in_errors(http: Http) -> None:
    response = await http("GET", f"/ojs/v1/jobs/{new_id()}", headers={"X-Request-Id": "req_mine"})
    assert response.headers["x-request-id"] == response.json()["error"]["request_id"] == "req_mine"


@pytest.mark.parametrize("bad", ["x" * 201, "a\tb", "caf\u00e9".encode().decode("latin-1")])
async def test_a_request_id_that_would_do_harm_is_replaced(http: Http, bad: str) -> None:
    response = await http("GET", "/ojs/v1/health", headers={"X-Request-Id": bad.encode("latin-1")})
    assert response.headers["x-request-id"].startswith("req_")


async def test_another_version_is_refused(http: Http) -> None:
    response = await http("GET", "/ojs/v1/health", headers={"OJS-Version": "2.0"})
    assert (response.status_code, response.json()["error"]["code"]) == (422, "unsupported")
    assert (await http("GET", "/ojs/v1/health", headers={"OJS-Version": "1.0"})).status_code == 200


async def test_a_batch_is_enqueued_in_order(http: Http) -> None:
    jobs = [{"type": "a", "args": [n]} for n in range(5)]
    response = await http("POST", "/ojs/v1/jobs/batch", {"jobs": jobs})
    assert response.status_code == 201
    assert [job["args"] for job in response.json()["jobs"]] == [[n] for n in range(5)]
    assert response.json()["count"] == 5


async def test_a_batch_with_a_bad_job_is_refused_whole_and_the_job_named(http: Http) -> None:
    response = await http("POST", "/ojs/v1/jobs/batch", {"jobs": [{"type": "a", "args": []}, {"args": []}]})
    assert response.status_code == 400
    assert response.json()["error"]["details"]["index"] == 1
    assert await http.fetch() == []


async def test_batches_have_bounds(http: Http) -> None:
    assert (await http("POST", "/ojs/v1/jobs/batch", {"jobs": []})).status_code == 400
    many = [{"type": "a", "args": []}] * 1001
    response = await http("POST", "/ojs/v1/jobs/batch", {"jobs": many})
    assert (response.status_code, response.json()["error"]["details"]["limit"]) == (413, 1000)


async def test_a_job_goes_through_its_life(http: Http) -> None:
    job = await http.push()
    (fetched,) = await http.fetch(worker_id="w")
    assert (fetched["id"], fetched["state"], fetched["attempt"]) == (job["id"], "active", 1)
    ack = await http("POST", "/ojs/v1/workers/ack", {"job_id": job["id"], "result": {"ok": True}, "worker_id": "w"})
    assert ack.json()["state"] == ack.json()["job"]["state"] == "completed"
    assert ack.json()["acknowledged"] is True
    assert (await http("GET", f"/ojs/v1/jobs/{job['id']}")).json()["job"]["result"] == {"ok": True}


async def test_a_failure_says_when_the_next_attempt_is(http: Http) -> None:
    job = await http.push(options={"retry": {"initial_interval": "PT2S", "jitter": False}})
    await http.fetch()
    error = {"code": "handler_error", "message": "no", "details": {"error_class": "SmtpError"}}
    answer = (await http("POST", "/ojs/v1/workers/nack", {"job_id": job["id"], "error": error})).json()
    assert (answer["state"], answer["retry_delay_ms"], answer["max_attempts"]) == ("retryable", 2000, 3)
    found = (await http("GET", f"/ojs/v1/jobs/{job['id']}")).json()["job"]
    assert found["error"]["type"] == "SmtpError"
    assert found["next_attempt_at"] == answer["next_attempt_at"]


async def test_a_failure_without_a_reason_is_refused(http: Http) -> None:
    job = await http.push()
    await http.fetch()
    response = await http("POST", "/ojs/v1/workers/nack", {"job_id": job["id"]})
    assert (response.status_code, response.json()["error"]["details"]["field"]) == (400, "error")


async def test_batches_of_outcomes_are_answered_one_by_one(http: Http) -> None:
    ids = [(await http.push())["id"] for _ in range(3)]
    await http.fetch(count=3)
    missing = new_id()
    acks = [{"job_id": ids[0]}, {"job_id": missing}]
    results = (await http("POST", "/ojs/v1/workers/ack/batch", {"acks": acks})).json()["results"]
    assert results[0]["state"] == "completed"
    assert results[1]["error"]["code"] == "not_found"
    nacks = [{"job_id": ids[1], "requeue": True}, {"job_id": ids[2], "error": {"code": "X", "message": "m"}}]
    results = (await http("POST", "/ojs/v1/workers/nack/batch", {"nacks": nacks})).json()["results"]
    assert [result["state"] for result in results] == ["available", "retryable"]


async def test_a_fetch_waits_if_it_is_asked_to(http: Http) -> None:
    waiting = asyncio.create_task(http.fetch(wait_ms=60_000))
    await asyncio.sleep(0.02)
    job = await http.push()
    assert [found["id"] for found in await asyncio.wait_for(waiting, PATIENCE)] == [job["id"]]


async def test_a_caller_may_wait_for_the_end_of_a_job(http: Http) -> None:
    job = await http.push()
    await http.fetch()
    waiting = asyncio.create_task(http("GET", f"/ojs/v1/jobs/{job['id']}?wait_ms=60000"))
    await asyncio.sleep(0.02)
    await http("POST", "/ojs/v1/workers/ack", {"job_id": job["id"]})
    assert (await asyncio.wait_for(waiting, PATIENCE)).json()["job"]["state"] == "completed"


async def test_heartbeats_take_both_shapes_of_the_specification(http: Http) -> None:
    job = await http.push()
    await http.fetch(worker_id="w")
    for body in ({"active_jobs": [job["id"]]}, {"active_jobs": 1, "active_job_ids": [job["id"]]}):
        answer = (await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w"} | body)).json()
        assert (answer["state"], answer["jobs_extended"]) == ("running", [job["id"]])
    (worker,) = (await http("GET", "/ojs/v1/workers")).json()["workers"]
    assert (worker["worker_id"], worker["active_jobs"]) == ("w", 1)
    assert (await http("POST", "/ojs/v1/workers/w/directive", {"directive": "quiet"})).status_code == 200
    assert (await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w"})).json()["state"] == "quiet"
    assert (await http("DELETE", "/ojs/v1/workers/w")).json()["removed"] is True


async def test_cancel_and_activate_tell_the_state_before(http: Http) -> None:
    job = await http.push(options={"pending": True})
    activated = (await http("POST", f"/ojs/v1/jobs/{job['id']}/activate")).json()["job"]
    assert (activated["state"], activated["previous_state"]) == ("available", "pending")
    cancelled = (await http("DELETE", f"/ojs/v1/jobs/{job['id']}")).json()["job"]
    assert (cancelled["state"], cancelled["previous_state"]) == ("cancelled", "available")
    assert (await http("DELETE", f"/ojs/v1/jobs/{job['id']}")).json()["error"]["code"] == "conflict"
    assert (await http("POST", f"/ojs/v1/jobs/{job['id']}/activate")).status_code == 409


async def test_queues_are_listed_counted_paused_and_resumed(http: Http) -> None:
    await http.push(options={"queue": "q"})
    assert [queue["name"] for queue in (await http("GET", "/ojs/v1/queues")).json()["queues"]] == ["q"]
    paused = (await http("POST", "/ojs/v1/queues/q/pause")).json()
    assert (paused["queue"]["paused"], paused["status"]) == (True, "paused")
    stats = (await http("GET", "/ojs/v1/queues/q/stats")).json()
    assert (stats["queue"]["available"], stats["stats"]["depth"], stats["status"]) == (1, 1, "paused")
    assert (await http("POST", "/ojs/v1/queues/q/resume")).json()["queue"]["paused"] is False
    assert (await http("GET", "/ojs/v1/queues/none/stats")).status_code == 404
    assert (await http("POST", "/ojs/v1/queues/BAD/pause")).status_code == 400


async def test_dead_letters_are_paged(http: Http) -> None:
    for n in range(5):
        await http.push(args=[n], options={"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}})
    for job in await http.fetch(count=5):
        await http("POST", "/ojs/v1/workers/nack", {"job_id": job["id"], "error": {"code": "X", "message": "m"}})
    seen: list[Any] = []
    cursor = ""
    for _ in range(3):
        page = (await http("GET", f"/ojs/v1/dead-letter?limit=2{cursor}")).json()
        assert page["pagination"]["total"] == 5
        seen += [job["args"][0] for job in page["jobs"]]
        if not page["pagination"]["has_more"]:
            break
        cursor = f"&cursor={page['pagination']['next_cursor']}"
    assert seen == [4, 3, 2, 1, 0]
    id = page["jobs"][0]["id"]
    assert (await http("POST", f"/ojs/v1/dead-letter/{id}/retry")).json()["job"]["state"] == "available"
    assert (await http("DELETE", f"/ojs/v1/dead-letter/{id}")).status_code == 409
    assert (await http("GET", "/ojs/v1/dead-letter?limit=1&offset=1")).json()["pagination"]["total"] == 4


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=-1", "offset=-1", "cursor=!!", "cursor=-5", "limit=1e3"]
)
async def test_a_page_that_makes_no_sense_is_refused(http: Http, query: str) -> None:
    assert (await http("GET", f"/ojs/v1/dead-letter?{query}")).status_code == 400


async def test_cron_jobs_take_both_shapes_of_the_specification(http: Http) -> None:
    template = {"type": "r", "args": [1], "options": {"queue": "q", "meta": {"k": 1}}}
    nested = {"name": "one", "expression": "*/5 * * * *", "timezone": "Asia/Tokyo", "job_template": template}
    flat = {"name": "two", "cron": "@daily", **template}
    for body in (nested, flat):
        response = await http("POST", "/ojs/v1/cron", body)
        assert response.status_code == 201
        cron = response.json()["cron"]
        assert cron == response.json()["cron_job"]
        assert (cron["type"], cron["args"], cron["meta"], cron["enabled"]) == ("r", [1], {"k": 1}, True)
    assert (await http("POST", "/ojs/v1/cron", flat)).status_code == 200, "registering again updates"
    listed = (await http("GET", "/ojs/v1/cron")).json()
    assert [cron["name"] for cron in listed["crons"]] == ["one", "two"]
    page = (await http("GET", "/ojs/v1/cron?limit=1&offset=1")).json()
    assert ([cron["name"] for cron in page["crons"]], page["count"], page["pagination"]["has_more"]) == (
        ["two"],
        2,
        False,
    )
    refused = await http("PATCH", "/ojs/v1/cron/one", {"enabled": False, "expression": "@hourly"})
    assert (refused.status_code, "`expression`" in refused.json()["error"]["message"]) == (400, True)
    disabled = (await http("PATCH", "/ojs/v1/cron/one", {"enabled": False})).json()["cron"]
    assert (disabled["enabled"], disabled["next_run_at"]) == (False, None)
    assert (await http("GET", "/ojs/v1/cron?enabled=true")).json()["count"] == 1
    assert (await http("GET", "/ojs/v1/cron/one")).json()["cron"]["name"] == "one"
    assert (await http("DELETE", "/ojs/v1/cron/one")).json()["deleted"] is True
    assert (await http("GET", "/ojs/v1/cron/one")).status_code == 404


@pytest.mark.parametrize(
    "change",
    [
        {"expression": "nonsense"},
        {"expression": None},
        {"name": "Bad Name"},
        {"timezone": "EST"},
        {"overlap_policy": "explode"},
        {"job_template": None},
        {"job_template": {"type": "BAD"}},
        {"job_template": {"type": "a", "options": {"priority": 1000}}},
    ],
)
async def test_a_cron_job_that_could_not_run_is_refused(http: Http, change: dict[str, Any]) -> None:
    body = {"name": "c", "expression": "@daily", "job_template": {"type": "a"}} | change
    response = await http("POST", "/ojs/v1/cron", {name: value for name, value in body.items() if value is not None})
    assert response.status_code in (400, 422)
    assert response.json()["error"]["message"]


async def test_progress_is_put_and_got(http: Http) -> None:
    job = await http.push()
    await http.fetch(worker_id="w")
    path = f"/ojs/v1/jobs/{job['id']}/progress"
    nothing = (await http("GET", path)).json()
    assert (nothing["progress"], nothing["data"]) == (None, None)
    assert (await http("PUT", path, {"progress": 0.25, "message": "a quarter"})).json()["progress"] == 0.25
    assert (await http("GET", path)).json()["message"] == "a quarter"
    assert (await http("PUT", path, {"progress": "half"})).status_code == 400


async def test_events_can_be_polled(http: Http) -> None:
    await http.push(options={"queue": "q"})
    await http.fetch("q")
    page = (await http("GET", "/ojs/v1/events?queues=q&limit=1")).json()
    assert [event["type"] for event in page["events"]] == ["job.enqueued"]
    assert page["has_more"] is True
    rest = (await http("GET", f"/ojs/v1/events?queues=q&after={page['cursor']}")).json()
    assert [event["type"] for event in rest["events"]] == ["job.started"]
    assert (await http("GET", "/ojs/v1/events?after=evt_x")).status_code == 400


async def test_a_page_of_events_says_that_some_are_missing(http: Http, bench: Bench) -> None:
    await http.push()
    whole = (await http("GET", "/ojs/v1/events")).json()
    assert "gap" not in whole
    assert "gap" not in (await http("GET", f"/ojs/v1/events?after={whole['cursor']}")).json()
    beyond = (await http("GET", "/ojs/v1/events?after=evt_999999999999999")).json()
    assert (beyond["gap"], beyond["events"]) == (True, [])
    await http.push()
    rest = (await http("GET", f"/ojs/v1/events?after={beyond['cursor']}")).json()
    assert ("gap" not in rest, [event["type"] for event in rest["events"]]) == (True, ["job.enqueued"])
    for _ in range(3):
        await http.push()
    await bench.service.events.last()
    await bench.run(forget_oldest, 3)
    late = (await http("GET", f"/ojs/v1/events?after={whole['cursor']}")).json()
    assert (late["gap"], len(late["events"]), late["cursor"]) == (True, 1, late["events"][-1]["id"])
    assert "gap" not in (await http("GET", "/ojs/v1/events?recent=true")).json()
    assert "gap" not in (await http("GET", "/ojs/v1/events")).json()


async def test_the_manifest_tells_the_truth(http: Http) -> None:
    manifest = (await http("GET", "/ojs/manifest")).json()
    assert (manifest["specversion"], manifest["implementation"]["name"]) == ("1.0", "ojster")
    assert {type(value) for value in manifest["capabilities"].values()} == {bool}
    details = manifest["capability_details"]
    assert details["workflows"]["types"] == ["chain", "group", "batch", "saga", "graph", "map"]
    assert details["unique_jobs"]["strength"] == "strong"
    known = manifest["extension_details"]
    assert manifest["extensions"] == [one["name"] for one in (*known["official"], *known["experimental"])]
    assert manifest["conformance_level"] == 4
    for name, error in (
        (known["official"][0]["uri"], None),
        (f"{known['official'][0]['uri']}, {known['experimental'][0]['uri']}", None),
        ("urn:ojs:ext:experimental:teleportation", "EXTENSION_NOT_SUPPORTED"),
    ):
        headers = {"OJS-Requires-Extension": name}
        answer = await http("POST", "/ojs/v1/jobs", {"type": "a", "args": []}, headers=headers)
        if error is None:
            assert answer.status_code == 201
        else:
            shown = answer.json()["error"]
            assert (answer.status_code, shown["code"], shown["details"]) == (422, error, {"extension": name})


async def test_health_tells_when_the_database_is_gone(http: Http, service: Service) -> None:
    assert (await http("GET", "/ojs/v1/health")).json()["backend"]["status"] == "ok"
    service.database.close()
    response = await http("GET", "/ojs/v1/health")
    assert (response.status_code, response.json()["status"]) == (503, "degraded")
    response = await http("POST", "/ojs/v1/jobs", {"type": "a", "args": []})
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


async def test_prometheus_sees_jobs_and_requests(http: Http, clock: Clock) -> None:
    await http.push(options={"queue": "q"})
    response = await http("GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert 'ojs_queue_depth{queue="q",state="available"} 1.0' in response.text
    assert 'ojs_http_requests_total{endpoint="enqueue",status="201"} 1.0' in response.text


async def test_each_operation_has_an_id_of_its_own(http: Http) -> None:
    paths = (await http("GET", "/openapi.json")).json()["paths"]
    ids = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)


async def test_the_openapi_document_describes_every_route(http: Http) -> None:
    described = (await http("GET", "/openapi.json")).json()
    assert described["openapi"] == "3.1.0"
    for route in ROUTES:
        operation = described["paths"][route.path][route.method.lower()]
        assert operation["summary"], route.path
        assert str(route.status) in operation["responses"]
    names = described["components"]["schemas"]
    text = str(described)
    for reference in set(text.split("#/components/schemas/")[1:]):
        assert reference.split("'")[0] in names


async def test_the_openapi_document_says_how_a_token_is_sent_to_a_server_that_wants_one(http: Http) -> None:
    described = (await http("GET", "/openapi.json")).json()
    assert described["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    assert described["security"] == [{"token": []}, {}]


async def test_the_openapi_document_names_the_items_of_each_array_and_the_type_of_each_boolean(http: Http) -> None:
    """Generators of clients drop a type that lacks them, and with it calls such as the enqueueing of a job."""

    def parts(part: Any) -> Iterator[dict[str, Any]]:
        if isinstance(part, dict):
            yield part
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            yield from parts(inner)

    schemas = list(parts((await http("GET", "/openapi.json")).json()["components"]["schemas"]))
    arrays = [schema for schema in schemas if schema.get("type") == "array"]
    assert [schema for schema in arrays if not schema.keys() & {"items", "prefixItems"}] == []
    assert {schema.get("type") for schema in schemas if schema.get("enum") == [True]} == {"boolean"}


async def test_the_openapi_document_says_of_each_member_what_the_docstring_of_its_type_says(http: Http) -> None:
    schemas = (await http("GET", "/openapi.json")).json()["components"]["schemas"]
    assert schemas["Bound"]["properties"]["max_depth"]["description"] == "Maximum number of waiting jobs."
    assert not [name for name, schema in schemas.items() if "\n---" in schema.get("description", "")]


async def test_the_page_for_people_loads_a_viewer_from_this_server_alone(http: Http) -> None:
    page = (await http("GET", "/docs")).text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert loaded == ["/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/docs/start.js"]
    for path in loaded:
        answer = await http("GET", path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/css" if path.endswith(".css") else "text/javascript")
    script = (await http("GET", "/docs/start.js")).text
    assert "/openapi.json" in script
    assert "validatorUrl: null" in script  # else Swagger UI sends the address to its makers


async def test_without_the_viewer_the_page_for_people_says_how_to_build_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_page, "has_viewer", lambda: False)
    app = Application(service)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        page = await client.get("/docs")
        assert "make dashboard" in page.text
        assert "/openapi.json" in page.text
        assert (await client.get("/docs/swagger-ui.css")).status_code == 404


async def test_browsers_are_kept_out_unless_their_origin_is_allowed(http: Http, service: Service) -> None:
    headers = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in (await http("OPTIONS", "/ojs/v1/jobs", headers=headers)).headers
    app = Application(service, cors_origins=["https://a.example"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        allowed = await client.options("/ojs/v1/jobs", headers=headers)
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        assert allowed.headers["access-control-max-age"] == "86400"
        other = await client.options("/ojs/v1/jobs", headers=headers | {"Origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers
        plain = await client.get("/ojs/v1/health", headers={"Origin": "https://a.example"})
        assert "X-Request-Id" in plain.headers["access-control-expose-headers"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
async def test_pages_of_an_allowed_origin_may_send_each_header_that_the_server_reads(
    service: Service, method: str
) -> None:
    read = set(HEADERS_READ.findall("".join(file.read_text() for file in SERVER.rglob("*.py"))))
    assert {"idempotency-key", "upload-offset", "if-none-match", "last-event-id"} <= read
    sent = sorted(read - SENT_BY_BROWSERS) + list(CARRIED)
    headers = {"Origin": "https://a.example", "Access-Control-Request-Method": method}
    app = Application(service, cors_origins=["https://a.example"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        asked = headers | {"Access-Control-Request-Headers": ", ".join(sent)}
        assert (await client.options("/ojs/v1/jobs", headers=asked)).status_code == 200


async def test_a_job_can_be_ended_under_its_own_path(http: Http) -> None:
    job = await http.push()
    await http.fetch(worker_id="w")
    refused = await http("POST", f"/ojs/v1/jobs/{job['id']}/ack", {"worker_id": "other"})
    assert refused.status_code == 409
    failed = await http("POST", f"/ojs/v1/jobs/{job['id']}/nack", {"worker_id": "w", "requeue": True})
    assert failed.json()["job"]["state"] == "available"
    await http.fetch(worker_id="w")
    done = await http("POST", f"/ojs/v1/jobs/{job['id']}/ack", {"worker_id": "w", "result": [1]})
    assert done.json()["job"]["state"] == "completed"
    assert (await http("GET", f"/ojs/v1/jobs/{job['id']}")).json()["job"]["result"] == [1]


@pytest.mark.parametrize("state", ["quiet", "drain", "draining", "shutting_down", "terminate"])
async def test_a_worker_that_is_to_stop_gets_no_jobs(http: Http, state: str) -> None:
    await http.push()
    beat = await http("POST", "/ojs/v1/workers/beat", {"worker_id": "w", "state": state, "active_jobs": 0})
    assert beat.json()["acknowledged"] is True
    assert await http.fetch(worker_id="w") == []
    health = await http("GET", "/ojs/v1/workers/w/health")
    assert (health.status_code, health.json()["state"]) == (503, state)
    await http("POST", "/ojs/v1/workers/beat", {"worker_id": "w", "state": "running"})
    assert (await http("GET", "/ojs/v1/workers/w/health")).status_code == 200
    assert len(await http.fetch(worker_id="w")) == 1
    assert (await http("GET", "/ojs/v1/workers/nobody/health")).status_code == 404


async def test_a_worker_that_an_operator_has_quieted_gets_no_jobs_at_once(http: Http) -> None:
    await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w"})
    await http.push()
    await http("POST", "/ojs/v1/workers/w/directive", {"directive": "quiet"})
    assert await http.fetch(worker_id="w") == []
    assert len(await http.fetch(worker_id="another")) == 1


async def test_progress_beyond_the_end_is_the_end(http: Http) -> None:
    job = await http.push()
    await http.fetch()
    for given, kept in ((-3, 0.0), (0.25, 0.25), (1.5, 1.0)):
        answer = await http("PUT", f"/ojs/v1/jobs/{job['id']}/progress", {"progress": given})
        assert (answer.status_code, answer.json()["progress"]) == (200, kept)


async def test_browsers_are_told_to_run_nothing_that_is_no_page_of_the_server(http: Http) -> None:
    page = await http("GET", "/docs")
    metrics = await http("GET", "/metrics")
    script = await http("GET", "/docs/start.js")
    shown = await http("GET", "/ojs/v1/jobs")
    missing, nowhere = await http("GET", "/ojs/v1/workflows/nothing"), await http("GET", "/nowhere")
    for answer in (page, metrics, script, shown, missing, nowhere):
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
    for answer in (page, metrics, script):
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "sandbox" in metrics.headers["content-security-policy"]


async def test_a_server_that_stops_is_not_ready(http: Http, service: Service) -> None:
    assert (await http("GET", "/ready")).json()["status"] == "ready"
    assert (await http("GET", "/health")).json()["status"] == "ok"
    service.drain()
    assert (await http("GET", "/ready")).status_code == 503


async def test_a_server_whose_disk_is_full_is_not_ready(http: Http, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not url.startswith("sqlite"):
        pytest.skip("the files of PostgreSQL belong to another process; see tests/storage/test_failover.py")
    monkeypatch.setattr(readiness, "MAX_AGE_SECONDS", -1.0)
    assert (await http("GET", "/ready")).status_code == 200
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limit[1]))  # no file can grow any more
    try:
        answer = await http("GET", "/ready")
        health = await http("GET", "/health")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (answer.status_code, answer.json()["status"]) == (503, "not_ready")
    assert "full" in answer.json()["reason"] or "disk I/O" in answer.json()["reason"]
    assert health.status_code == 200, "it can still be read"
    assert (await http("GET", "/ready")).json() == {"status": "ready"}


async def test_checkpoints_are_shown_with_and_without_a_wrapper(http: Http) -> None:
    job = await http.push()
    path = f"/ojs/v1/jobs/{job['id']}/checkpoint"
    assert (await http("GET", path)).status_code == 404
    assert (await http("POST", path, {"state": None})).json()["checkpoint"]["sequence"] == 1
    assert (await http("GET", path)).json()["state"] is None
    assert (await http("PUT", path, {})).status_code == 400
    assert (await http("DELETE", path)).json() == {"deleted": True, "existed": True, "job_id": job["id"]}


async def test_a_parked_fetch_of_a_quiet_worker_does_not_block_others(http: Http) -> None:
    await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "quiet", "state": "quiet"})
    one = asyncio.create_task(http.fetch(worker_id="quiet", wait_ms=5_000))
    await asyncio.sleep(0.02)
    other = asyncio.create_task(http.fetch(worker_id="other", wait_ms=60_000))
    await asyncio.sleep(0.02)
    job = await http.push()
    async with asyncio.timeout(PATIENCE):
        assert [fetched["id"] for fetched in await other] == [job["id"]]
        assert await one == []


async def test_a_dead_letter_is_run_again_with_other_arguments_and_options(http: Http) -> None:
    retry = {"max_attempts": 1, "on_exhaustion": "dead_letter", "initial_interval": "PT9S"}
    for _ in range(2):
        job = await http.push(args=[1], meta={"a": 1, "b": 1}, options={"queue": "bills", "retry": retry})
        await http.fetch("bills")
        error = {"type": "Broken", "message": "no"}
        await http("POST", "/ojs/v1/workers/nack", {"job_id": job["id"], "error": error})
    path = f"/ojs/v1/dead-letter/{job['id']}/retry"
    wrong: list[dict[str, Any]] = [{"queue": "No Queue"}, {"retry": {"max_attempts": -1}}, {"args": 5}]
    for override in wrong:
        assert (await http("POST", path, {"override": override})).status_code in (400, 422)
    wanted: dict[str, Any] = {
        "args": [2],
        "queue": "bills.again",
        "meta": {"b": 2, "c": 3},
        "retry": {"max_attempts": 4},
    }
    again = (await http("POST", path, {"override": wanted})).json()["job"]
    assert (again["id"], again["args"], again["queue"], again["state"]) == (job["id"], [2], "bills.again", "available")
    assert (again["meta"], again["max_attempts"], again["attempt"]) == ({"a": 1, "b": 2, "c": 3}, 4, 0)
    assert again["retry"] == retry | {"max_attempts": 4}
    assert (await http("GET", "/ojs/v1/queues/bills.again")).json()["queue"]["available"] == 1
    assert (await http("GET", "/ojs/v1/queues/bills")).json()["queue"]["discarded"] == 1
    (fetched,) = await http.fetch("bills.again")
    assert (fetched["id"], fetched["args"]) == (job["id"], [2])
