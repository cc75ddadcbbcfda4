"""Authentication and authorization: every role at every endpoint, in its own and in other workspaces.

Spec: ojs-security
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from ojster.audit.entries import AuditQuery
from ojster.core.access import OPERATIONS, Access, Grant, Operation, Role, Token, hash_secret
from ojster.core.durations import DAY, HOUR
from ojster.core.errors import Forbidden
from ojster.core.json_objects import read_members
from ojster.core.settings import ServiceSettings
from ojster.server import authentication
from ojster.server.answer import Answer
from ojster.server.application import Application
from ojster.server.endpoints import routes_of
from ojster.server.proxies import TrustedProxies
from ojster.server.request import HttpRequest
from ojster.server.route import Route
from tests.conftest import Bench, Http
from tests.tenancy.world import BASE, MARKER, World, call, tries

ROUTES = routes_of()

pytestmark = pytest.mark.anyio


class GuardedServer:
    """A server that requires tokens, and the data behind it."""

    def __init__(self, http: Http, bench: Bench, world: World) -> None:
        self.http = http
        self.bench = bench
        self.world = world

    async def token(self, *grants: Grant, **more: Any) -> dict[str, str]:
        """Create a token with these roles and return the headers that carry it."""
        _, shown = await self.bench.service.tokens.create("somebody", grants, **more)
        return {"Authorization": f"Bearer {shown}"}


@pytest.fixture
async def door(bench: Bench) -> AsyncIterator[GuardedServer]:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=Application(bench.service, max_body_bytes=200_000, trusting=True)),
        base_url="http://open",
    ) as client:
        world = World(Http(client))
        await world.make(bench)
    guarded = Application(bench.service, max_body_bytes=200_000, trusting=True, guarded=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guarded), base_url="http://guarded") as client:
        yield GuardedServer(Http(client), bench, world)


def tried(world: World) -> list[tuple[Any, str, Any]]:
    """Return every endpoint with a path and a body, except streams without a path parameter."""
    found = []
    for route in ROUTES:
        if not route.streams or "{" in route.path:
            path, body = tries(world, route.method, route.path)[0]
            found.append((route, path, body))
    return found


async def test_a_request_without_a_token_reaches_only_public_endpoints(door: GuardedServer) -> None:
    for route, path, body in tried(door.world):
        response = await door.http(route.method, path, body)
        if (route.method, path) == ("POST", f"{BASE}/session"):
            assert response.status_code in (400, 401), "whoever logs in shows a token"
            continue
        if path in (f"{BASE}/session/login", f"{BASE}/session/return"):
            assert response.status_code == 404, "this server has no identity provider"
            continue
        if route.is_public:
            assert response.status_code == 200, path
            continue
        assert response.status_code == 401, f"{route.method} {path}"
        assert response.json()["error"]["code"] == "unauthenticated"
        assert response.headers["www-authenticate"] == "Bearer"
        assert MARKER not in response.text


@pytest.mark.parametrize("role", list(Role))
async def test_a_role_can_do_what_it_allows_in_its_workspace_and_nothing_else(door: GuardedServer, role: Role) -> None:
    headers = await door.token(Grant(role, "acme"))
    checked = 0
    # DELETE requests come last, because they remove what the other requests need.
    for route, path, body in sorted(tried(door.world), key=lambda one: one[0].method == "DELETE"):
        if not route.needs or route.streams:
            continue
        is_allowed = route.is_for_tenants and bool(OPERATIONS[role].intersection(route.needs))
        response = await door.http(route.method, path, body, headers=headers)
        what = f"{role} {route.method} {path}: {response.status_code} {response.text[:200]}"
        if is_allowed and path.endswith(("/pause", "/resume")) and "/queues/" in path:
            assert response.status_code == 403, what  # queues belong to all tenants
            continue
        assert (response.status_code == 403) != is_allowed, what
        assert response.status_code not in (401, 500), what
        checked += 1
    assert checked > 80


@pytest.mark.parametrize("role", [Role.OWNER, Role.WORKER])
async def test_a_token_of_another_workspace_gets_not_found(door: GuardedServer, role: Role) -> None:
    headers = await door.token(Grant(role, "beta"))
    checked = 0
    for route, path, body in tried(door.world):
        if not route.needs or route.streams:
            continue
        checked += 1
        there = await door.http(route.method, path, body, headers=headers | {"X-OJS-Tenant": "acme"})
        assert there.status_code == 404, f"{route.method} {path}: {there.text}"
        assert "workspace" in there.json()["error"]["message"]
        here = await door.http(route.method, path, body, headers=headers)
        assert MARKER not in here.text, f"{route.method} {path}"
        assert here.status_code < 500
    assert checked > 80


async def test_everybody_with_a_token_may_look_at_a_public_workspace(door: GuardedServer) -> None:
    owner, stranger = await door.token(Grant(Role.OWNER)), await door.token(Grant(Role.OWNER, "beta"))
    there = stranger | {"X-OJS-Tenant": "acme"}
    assert (await door.http("GET", f"{BASE}/jobs", headers=there)).status_code == 404
    await call(door.http, "PUT", f"{BASE}/admin/tenants/acme", {"public": True}, owner)
    assert len((await call(door.http, "GET", f"{BASE}/jobs", headers=there))["jobs"]) > 2
    assert (await door.http("POST", f"{BASE}/jobs", {"type": "t", "args": []}, headers=there)).status_code == 403
    assert (await door.http("GET", f"{BASE}/webhooks/subscriptions", headers=there)).status_code == 403
    assert (await door.http("GET", f"{BASE}/jobs", headers={"X-OJS-Tenant": "acme"})).status_code == 401
    assert (await call(door.http, "GET", f"{BASE}/session", headers=there))["operations"] == ["inspect"]
    producer = await door.token(Grant(Role.PRODUCER, "acme"))
    assert len((await call(door.http, "GET", f"{BASE}/jobs", headers=producer))["jobs"]) > 2
    assert (await call(door.http, "GET", f"{BASE}/session", headers=producer))["operations"] == ["enqueue", "inspect"]


async def test_an_owner_of_everything_is_an_operator(door: GuardedServer) -> None:
    headers = await door.token(Grant(Role.OWNER))
    for path in ("/admin/queues", "/admin/tokens", "/admin/tenants", "/jobs", "/webhooks/subscriptions"):
        assert (await door.http("GET", BASE + path, headers=headers)).status_code == 200, path
    assert (await door.http("GET", "/metrics", headers=headers)).status_code == 200
    viewer = await door.token(Grant(Role.VIEWER))
    assert (await door.http("GET", f"{BASE}/admin/tokens", headers=viewer)).status_code == 403
    assert (await door.http("GET", "/metrics", headers=viewer)).status_code == 403
    assert len((await call(door.http, "GET", f"{BASE}/jobs", headers=viewer))["jobs"]) > 2


async def test_a_role_in_a_tenant_is_one_in_its_workspaces(door: GuardedServer) -> None:
    http = door.http
    job = {"type": "t", "args": [1]}
    headers = await door.token(Grant(Role.CONTRIBUTOR, "acme"))
    await call(http, "POST", f"{BASE}/jobs", job, headers | {"X-OJS-Tenant": "acme:web"})
    assert len((await call(http, "GET", f"{BASE}/jobs", headers=headers | {"X-OJS-Tenant": "acme:web"}))["jobs"]) == 1
    inner = await door.token(Grant(Role.VIEWER, "acme:web"))
    assert len((await call(http, "GET", f"{BASE}/jobs", headers=inner))["jobs"]) == 1
    for place in ("acme", "acme:other", "acme:website", "acmeweb"):
        assert (await http("GET", f"{BASE}/jobs", headers=inner | {"X-OJS-Tenant": place})).status_code == 404, place


async def test_a_token_for_several_workspaces_must_name_one(door: GuardedServer) -> None:
    headers = await door.token(Grant(Role.VIEWER, "acme"), Grant(Role.CONTRIBUTOR, "beta"))
    response = await door.http("GET", f"{BASE}/jobs", headers=headers)
    assert response.status_code == 400
    assert "X-OJS-Tenant" in response.json()["error"]["message"]
    job = {"type": "t", "args": []}
    assert (await door.http("POST", f"{BASE}/jobs", job, headers=headers | {"X-OJS-Tenant": "acme"})).status_code == 403
    assert (await door.http("POST", f"{BASE}/jobs", job, headers=headers | {"X-OJS-Tenant": "beta"})).status_code == 201


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic b2pzdGVyOng=",
        "Bearer ojster_x_y",
        "Bearer ojster__",
        "Bearer x",
        "Bearer \u00e9",
    ],
)
async def test_a_malformed_authorization_header_is_refused(door: GuardedServer, header: str) -> None:
    response = await door.http.client.get(f"{BASE}/jobs", headers=[(b"Authorization", header.encode("latin-1"))])
    assert response.status_code == 401


async def test_the_id_of_a_token_is_not_enough(door: GuardedServer) -> None:
    token, shown = await door.bench.service.tokens.create("a", [Grant(Role.VIEWER)])
    other, theirs = await door.bench.service.tokens.create("b", [Grant(Role.OWNER)])
    forged = f"ojster_{other.id}_{shown.split('_', 2)[2]}"
    for bad in (forged, shown[:-1], shown + "x", theirs.replace(other.id, token.id)):
        response = await door.http("GET", f"{BASE}/jobs", headers={"Authorization": f"Bearer {bad}"})
        assert response.status_code == 401, bad


async def test_a_token_expires(door: GuardedServer) -> None:
    now = door.bench.clock.now
    headers = await door.token(Grant(Role.VIEWER), expires_at=now + HOUR)
    assert (await door.http("GET", f"{BASE}/jobs", headers=headers)).status_code == 200
    door.bench.clock.advance(3599)
    assert (await door.http("GET", f"{BASE}/jobs", headers=headers)).status_code == 200
    door.bench.clock.advance(1)
    response = await door.http("GET", f"{BASE}/jobs", headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (401, "token_expired")


async def test_a_revoked_token_is_refused_at_once(door: GuardedServer) -> None:
    token, shown = await door.bench.service.tokens.create("a", [Grant(Role.VIEWER)])
    headers = {"Authorization": f"Bearer {shown}"}
    operator = await door.token(Grant(Role.OWNER))
    assert (await door.http("GET", f"{BASE}/jobs", headers=headers)).status_code == 200
    assert (await call(door.http, "DELETE", f"{BASE}/admin/tokens/{token.id}", headers=operator))["revoked"]
    assert (await door.http("GET", f"{BASE}/jobs", headers=headers)).status_code == 401
    assert (await door.http("DELETE", f"{BASE}/admin/tokens/{token.id}", headers=operator)).status_code == 404


async def test_a_token_is_rotated_without_a_pause(door: GuardedServer) -> None:
    http, operator = door.http, await door.token(Grant(Role.OWNER))
    body = {"name": "ci", "grants": [{"role": "viewer"}]}
    made = (await call(http, "POST", f"{BASE}/admin/tokens", body, operator))["token"]
    rotate = f"{BASE}/admin/tokens/{made['id']}/rotate"
    again = (await call(http, "POST", rotate, {"grace": "PT10M"}, operator))["token"]
    old, new = ({"Authorization": f"Bearer {one['secret']}"} for one in (made, again))
    for headers in (old, new, old):
        assert (await http("GET", f"{BASE}/jobs", headers=headers)).status_code == 200
    door.bench.clock.advance(600)
    assert (await http("GET", f"{BASE}/jobs", headers=old)).status_code == 401
    assert (await http("GET", f"{BASE}/jobs", headers=new)).status_code == 200


async def test_a_secret_is_shown_once_and_kept_nowhere(door: GuardedServer) -> None:
    http, operator = door.http, await door.token(Grant(Role.OWNER))
    body = {"name": "ci", "grants": [{"role": "worker", "tenant": "acme"}], "queues": ["work"], "expires_at": "+P1D"}
    made = (await call(http, "POST", f"{BASE}/admin/tokens", body, operator))["token"]
    secret = made.pop("secret").split("_", 2)[2]
    listed = (await call(http, "GET", f"{BASE}/admin/tokens", headers=operator))["tokens"]
    assert made in listed
    assert secret not in msgspec.json.encode(listed).decode()
    rows = await door.bench.run(lambda tx, requests: [tx.execute("SELECT id, body FROM tokens")], None)
    assert len(rows) == 2
    assert secret.encode() not in b"".join(bytes(body) for _, body in rows)


async def test_it_is_noted_when_a_token_is_used(door: GuardedServer) -> None:
    headers = await door.token(Grant(Role.VIEWER))
    (token,) = await door.bench.service.tokens.all()
    assert token.last_used_at is None
    await call(door.http, "GET", f"{BASE}/jobs", headers=headers)
    (token,) = await door.bench.service.tokens.all()
    assert token.last_used_at == (first := door.bench.clock.now)
    door.bench.clock.advance(60)
    await call(door.http, "GET", f"{BASE}/jobs", headers=headers)
    assert (await door.bench.service.tokens.all())[0].last_used_at == first  # updated at most once an hour
    door.bench.clock.advance(3_600)
    await call(door.http, "GET", f"{BASE}/jobs", headers=headers)
    assert (await door.bench.service.tokens.all())[0].last_used_at == door.bench.clock.now


async def test_a_token_for_some_queues_reaches_no_others(door: GuardedServer) -> None:
    http = door.http
    grants = (Grant(Role.CONTRIBUTOR, "acme"), Grant(Role.WORKER, "acme"))
    headers = await door.token(*grants, queues=("mail", "shop.*"))

    async def push(**more: Any) -> int:
        body = {"type": "t", "args": [], **more}
        return (await http("POST", f"{BASE}/jobs", body, headers=headers)).status_code

    assert await push(options={"queue": "mail"}) == 201
    assert await push(options={"queue": "shop.orders"}) == 201
    for queue in ("default", "mails", "shop"):
        assert await push(options={"queue": queue}) == 403
    chained = {"on_success": [{"action": "enqueue", "job": {"type": "t", "args": []}}]}
    assert await push(options={"queue": "mail"}, event_reactions=chained) == 403
    batch = {"jobs": [{"type": "t", "args": [], "options": {"queue": "mail"}}, {"type": "t", "args": []}]}
    assert (await http("POST", f"{BASE}/jobs/batch", batch, headers=headers)).status_code == 403
    flow = {"type": "chain", "steps": [{"type": "t", "args": []}]}
    assert (await http("POST", f"{BASE}/workflows", flow, headers=headers)).status_code == 403
    cron = {"name": "n", "expression": "@daily", "type": "t"}
    assert (await http("POST", f"{BASE}/cron", cron, headers=headers)).status_code == 403
    for queues, status in ((["mail"], 200), (["mail", "default"], 403)):
        fetched = await http("POST", f"{BASE}/workers/fetch", {"queues": queues}, headers=headers)
        assert fetched.status_code == status


async def test_the_author_of_a_review_is_the_name_of_the_token(door: GuardedServer) -> None:
    headers = await door.token(Grant(Role.OWNER, "acme"))
    flow = {"type": "chain", "steps": [{"type": "gate", "id": "g"}]}
    made = (await call(door.http, "POST", f"{BASE}/workflows", flow, headers))["workflow"]
    body = {"action": "approve", "author": "the queen"}
    path = f"{BASE}/workflows/{made['id']}/steps/g/review"
    steps = (await call(door.http, "POST", path, body, headers))["workflow"]["steps"]
    assert steps[0]["reviews"][0]["author"] == "somebody"


async def test_the_audit_log_says_who_did_what(door: GuardedServer, caplog: pytest.LogCaptureFixture) -> None:
    headers = await door.token(Grant(Role.CONTRIBUTOR, "acme"))
    with caplog.at_level(logging.INFO, logger="ojster.audit"):
        await call(door.http, "DELETE", f"{BASE}/jobs/{door.world.ids['waiting']}", headers=headers)
        await door.http("DELETE", f"{BASE}/dead-letter/{door.world.ids['dead']}", headers=headers)
        await door.http("GET", f"{BASE}/jobs")
        await call(door.http, "GET", f"{BASE}/jobs", headers=headers)
    entries = [msgspec.json.decode(record.getMessage()) for record in caplog.records if record.name == "ojster.audit"]
    said = [(entry["event_type"], entry["outcome"], entry["detail"]["operation"]) for entry in entries]
    assert said == [
        ("access.used", "success", "cancel_job"),
        ("access.denied", "failure", "delete_dead_letter"),
        ("auth.refused", "failure", "list_jobs"),
    ]
    assert [entry["principal"] for entry in entries] == ["somebody", "somebody", "unknown"]
    assert entries[0]["detail"]["id"] == door.world.ids["waiting"]
    assert headers["Authorization"].split("_", 2)[2] not in caplog.text


@pytest.mark.parametrize(
    ("role", "tenant", "status", "written"),
    [
        (None, None, 401, ("auth.refused", "unknown")),
        (Role.VIEWER, None, None, None),
        (Role.VIEWER, "beta", 404, None),
        (Role.VIEWER, "a b", 400, None),
        (Role.PRODUCER, None, 403, ("access.denied", "a")),
    ],
)
async def test_a_websocket_needs_a_token(
    bench: Bench, role: Role | None, tenant: str | None, status: int | None, written: tuple[str, str] | None
) -> None:
    """It is refused as any request is: with the error as body, and an entry in the audit log."""
    headers = [(b"host", b"guarded")]
    if role is not None:
        _, shown = await bench.service.tokens.create("a", [Grant(role, "acme")])
        headers.append((b"authorization", f"Bearer {shown}".encode()))
    if tenant is not None:
        headers.append((b"x-ojs-tenant", tenant.encode()))
    scope: dict[str, Any] = {"type": "websocket", "path": f"{BASE}/ws", "headers": headers, "query_string": b""}
    scope |= {"subprotocols": [], "extensions": {"websocket.http.response": {}}}
    incoming = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await Application(bench.service, guarded=True)(scope, receive, send)
    assert sent[0].get("status") == status
    assert (status is None) == (sent[0]["type"] == "websocket.accept")
    assert status is None or msgspec.json.decode(sent[1]["body"])["error"]["message"]
    entries = [msgspec.json.decode(each.body) for each in await bench.service.audit.select(AuditQuery())]
    told = [(entry["event_type"], entry["principal"], entry["operation"]) for entry in entries]
    assert told == ([] if written is None else [(*written, "follow_by_socket")])


@pytest.mark.parametrize(
    "body",
    [
        {"grants": [{"role": "viewer"}]},
        {"name": "a", "grants": []},
        {"name": "a", "grants": [{"role": "king"}]},
        {"name": "a", "grants": [{"role": "viewer", "tenant": "a b"}]},
        {"name": "a", "grants": [{"role": "viewer"}], "expires_at": "2020-01-01T00:00:00Z"},
        {"name": "a", "grants": [{"role": "viewer"}], "admin": True},
    ],
)
async def test_a_malformed_token_is_refused(http: Http, body: Any) -> None:
    response = await http("POST", f"{BASE}/admin/tokens", body)
    assert response.status_code == 400, response.text


async def test_a_tenant_makes_no_tokens(http: Http) -> None:
    body = {"name": "a", "grants": [{"role": "owner"}]}
    response = await http("POST", f"{BASE}/admin/tokens", body, headers={"X-OJS-Tenant": "acme"})
    assert response.status_code == 403


def test_an_endpoint_that_names_no_operation_is_restricted() -> None:
    needs = {
        (method, path): Route(method, path, nothing, "Server").needs
        for method in ("GET", "POST", "DELETE")
        for path in (f"{BASE}/things", f"{BASE}/admin/things")
    }
    assert needs.pop(("GET", f"{BASE}/things")) == (Operation.INSPECT,)
    assert set(needs.values()) == {(Operation.ADMIN,)}


async def nothing(request: HttpRequest) -> Answer:
    raise NotImplementedError


def test_no_role_that_pushes_gets_jobs() -> None:
    """Credentials of producers, workers and administrators are distinct.

    Spec: ojs-security 6
    """
    for operations in OPERATIONS.values():
        assert not {Operation.ENQUEUE, Operation.DEQUEUE} <= operations
        assert not {Operation.ADMIN, Operation.DEQUEUE} <= operations


def test_access_says_what_is_missing() -> None:
    access = Access("ci", frozenset({Operation.INSPECT}))
    access.need(Operation.INSPECT, Operation.ADMIN)
    with pytest.raises(Forbidden, match="'ci' has no role that allows 'admin'"):
        access.need(Operation.ADMIN)


def test_a_hash_is_of_one_token_and_one_secret() -> None:
    token = Token("a", "n", hash_secret("a", "s"), (Grant(Role.VIEWER),), 0)
    assert token.valid_until("s", 0)
    assert token.valid_until("t", 0) is None
    rotated = msgspec.structs.replace(token, hash=hash_secret("a", "t"), former_hash=token.hash, former_until=DAY)
    assert rotated.valid_until("s", DAY - 1) == DAY
    assert rotated.valid_until("s", DAY) is None


@pytest.mark.parametrize("report", [{}, {"error": {"type": "E", "message": "m"}}, {"then": "queue"}])
async def test_a_worker_names_itself_when_it_reports_on_a_leased_job(
    door: GuardedServer, report: dict[str, Any]
) -> None:
    what = "nack" if "error" in report else "release" if "then" in report else "ack"
    worker = await door.token(Grant(Role.WORKER))
    owner = await door.token(Grant(Role.WORKER), Grant(Role.OWNER))
    cases: list[tuple[dict[str, str], dict[str, str], int]] = [
        (worker, {}, 409),
        (worker, {"worker_id": "w"}, 200),
        (owner, {}, 200),
    ]
    for number, (headers, named, status) in enumerate(cases):
        job = await door.bench.push(queue=f"leased{number}")
        await door.bench.fetch_one(f"leased{number}", worker_id="w")
        path = f"/ojs/v1/jobs/{job.id}/{what}"
        answer = await door.http("POST", path, report | named, headers=headers)
        assert answer.status_code == status, answer.text
        if status == 409:
            assert "Send its 'worker_id'" in answer.text


async def test_a_worker_without_a_name_reports_without_one(door: GuardedServer) -> None:
    job = await door.bench.push(queue="nameless")
    await door.bench.fetch_one("nameless")
    answer = await door.http("POST", f"/ojs/v1/jobs/{job.id}/ack", {}, headers=await door.token(Grant(Role.WORKER)))
    assert answer.status_code == 200, answer.text


async def test_nobody_pushes_to_the_queues_of_the_server_or_fetches_from_them(http: Http) -> None:
    queue = "ojster.webhooks"
    job = {"type": "ojster.webhook", "args": [{}], "options": {"queue": queue}}
    plain = {"type": "a", "args": []}
    tries: list[tuple[str, dict[str, Any]]] = [
        ("/jobs", job),
        ("/jobs/batch", {"jobs": [job]}),
        ("/workflows", {"type": "chain", "steps": [job]}),
        ("/workflows", {"type": "chain", "steps": [plain | {"args": [{"$ref": "params.x"}]}, job], "params": {"x": 1}}),
        ("/cron", {"name": "c", "expression": "@daily", **job}),
        ("/jobs", plain | {"event_reactions": {"on_success": [{"action": "enqueue", "job": job}]}}),
        ("/workers/fetch", {"queues": ["default", queue]}),
    ]
    for path, body in tries:
        answer = await http("POST", f"/ojs/v1{path}", body)
        assert answer.status_code in (400, 403, 422), (path, body, answer.text)
        assert "reserved" in answer.text, (path, answer.text)


def wrong(token: str) -> dict[str, str]:
    """Return the headers of a token with another secret."""
    return {"Authorization": f"Bearer {token[:-4]}wrng"}


async def test_a_flood_of_bad_tokens_costs_little_and_shuts_nobody_out(
    door: GuardedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[str] = []
    real = Token.valid_until

    def counted(self: Token, secret: str, now: int) -> int | None:
        checks.append(self.id)
        return real(self, secret, now)

    monkeypatch.setattr(Token, "valid_until", counted)
    monkeypatch.setattr(authentication, "CHECKS_PER_SECOND", 0.0)
    path = "/ojs/v1/jobs"
    good, known = await door.token(Grant(Role.VIEWER)), await door.token(Grant(Role.VIEWER))
    for number in range(100):
        unknown = {"Authorization": f"Bearer ojster_{number:012x}_secret"}
        assert (await door.http("GET", path, headers=unknown)).status_code == 401
    assert len(checks) == authentication.MAX_CHECKS, "each took as long as one with a known id, until that was too much"
    assert (await door.http("GET", path, headers=good)).status_code == 200, "a good token is not affected"
    checks.clear()
    for _ in range(5):
        assert (await door.http("GET", path, headers=wrong(known["Authorization"][7:]))).status_code == 401
    assert len(checks) == 1, "the same text is checked once"
    for number in range(authentication.MAX_CHECKS + 5):
        last = await door.http("GET", path, headers={"Authorization": f"{known['Authorization']}{number}"})
    assert (last.status_code, "Too many wrong secrets" in last.text) == (429, True)
    assert len(checks) == authentication.MAX_CHECKS
    checks.clear()
    many = authentication.MAX_CHECKS + 5
    shared = await door.token(Grant(Role.VIEWER))  # by all at once, as by workers after a restart of the server
    answers = await asyncio.gather(*[door.http("GET", path, headers=shared) for _ in range(many)])
    assert ({answer.status_code for answer in answers}, len(checks)) == ({200}, 1)


async def test_an_address_sends_so_many_wrong_tokens_and_others_are_not_affected(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "CHECKS_PER_SECOND_OF_ADDRESS", 0.0)
    monkeypatch.setattr(authentication, "MAX_CHECKS_OF_ADDRESS", 5)
    app = Application(bench.service, guarded=True, proxies=TrustedProxies(["127.0.0.1"]))
    _, shown = await bench.service.tokens.create("good", [Grant(Role.VIEWER)])
    _, fresh = await bench.service.tokens.create("fresh", [Grant(Role.VIEWER)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://guarded") as client:

        async def look(token: str, address: str) -> int:
            headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": address}
            return (await client.get(f"{BASE}/jobs", headers=headers)).status_code

        assert await look(shown, "2001:db8::1") == 200
        answers = [await look(f"ojster_{number:012x}_secret", f"2001:db8::{number:x}") for number in range(6)]
        assert answers == [401, 401, 401, 401, 429, 429], "a network is one address, and the good token was one of five"
        assert await look(shown, "2001:db8::1") == 200, "a token that is known to be good is not counted"
        assert await look(fresh, "2001:db8::1") == 429
        assert await look(fresh, "2001:db8:0:1::1") == 200


async def test_a_client_that_repeats_a_revoked_token_shuts_out_nobody_at_its_address(
    door: GuardedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "CHECKS_PER_SECOND_OF_ADDRESS", 0.0)
    monkeypatch.setattr(authentication, "MAX_CHECKS_OF_ADDRESS", 5)
    path = "/ojs/v1/jobs"
    old = wrong((await door.token(Grant(Role.VIEWER)))["Authorization"][7:])
    assert {(await door.http("GET", path, headers=old)).status_code for _ in range(20)} == {401}
    assert (await door.http("GET", path, headers=await door.token(Grant(Role.VIEWER)))).status_code == 200


async def test_an_expired_token_is_refused_before_its_secret_is_checked(
    door: GuardedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired = await door.token(Grant(Role.VIEWER), expires_at=door.bench.clock.now + HOUR)
    door.bench.clock.advance(3601)
    monkeypatch.setattr(Token, "valid_until", lambda self, secret, now: pytest.fail("it was checked"))
    answer = await door.http("GET", "/ojs/v1/jobs", headers=expired)
    assert (answer.status_code, "expired" in answer.text) == (401, True)


@pytest.mark.parametrize("role", [Role.OWNER, Role.CONTRIBUTOR, Role.WORKER, Role.VIEWER])
async def test_a_token_for_some_queues_reaches_no_job_of_others(door: GuardedServer, role: Role) -> None:
    bench = door.bench
    mine, other = await bench.push(queue="shop.mail"), await bench.push(queue="secret")
    held = await bench.fetch_one("secret", worker_id="w")
    token = await door.token(Grant(Role.WORKER), Grant(role), queues=("shop.*",))
    base = f"/ojs/v1/jobs/{other.id}"
    report = {"job_id": held.id, "worker_id": "w", "attempt": 1}
    error = {"type": "E", "message": "no"}
    tries: list[tuple[str, str, Any]] = [
        ("GET", base, None),
        ("GET", f"{base}/result", None),
        ("GET", f"{base}/history", None),
        ("GET", f"{base}/lineage", None),
        ("GET", f"{base}/checkpoint", None),
        ("GET", f"{base}/items", None),
        ("DELETE", base, None),
        ("PATCH", base, {"priority": 5}),
        ("PUT", f"{base}/progress", {"progress": 0.5, "worker_id": "w", "attempt": 1}),
        ("PUT", f"{base}/checkpoint", {"state": {}, "worker_id": "w", "attempt": 1}),
        ("POST", f"/ojs/v1/ojs/v1/checkpoints/{other.id}", {"state": {}}),
        ("GET", f"/ojs/v1/ojs/v1/checkpoints/{other.id}/resume", None),
        ("POST", f"{base}/items", {"name": "x", "data": {}, "worker_id": "w", "attempt": 1}),
        ("POST", "/ojs/v1/files", {"size": 1, "job_id": held.id, "worker_id": "w", "attempt": 1}),
        ("POST", "/ojs/v1/workers/ack", report),
        ("POST", "/ojs/v1/workers/nack", report | {"error": error}),
        ("GET", "/ojs/v1/jobs", None),
        ("GET", "/ojs/v1/jobs?queue=secret", None),
        ("GET", "/ojs/v1/queues/secret/stats", None),
        ("POST", "/ojs/v1/queues/secret/pause", None),
        ("POST", "/ojs/v1/jobs/batch/cancel", {"filter": {"queue": "secret"}}),
        ("POST", "/ojs/v1/jobs/batch/delete", {"filter": {"type": "a"}}),
    ]
    for method, path, body in tries:
        answer = await door.http(method, path, body, headers=token)
        assert answer.status_code in (403, 405), (role, method, path, answer.text)
    await door.http("POST", "/ojs/v1/jobs/batch/cancel", {"job_ids": [other.id], "mode": "partial"}, headers=token)
    found = await bench.find(other)
    assert (found.state, found.priority, found.progress) == ("active", 0, None)
    assert (await door.http("GET", f"/ojs/v1/jobs/{mine.id}", headers=token)).status_code == 200
    assert (await door.http("GET", "/ojs/v1/jobs?queue=shop.mail", headers=token)).status_code == 200


async def test_a_token_for_some_queues_counts_only_their_dead_letters(door: GuardedServer) -> None:
    for queue in ("secret", "shop.mail"):
        await door.bench.push(queue=queue, retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
        await door.bench.fail(await door.bench.fetch_one(queue))
    token = await door.token(Grant(Role.OWNER), queues=("shop.*",))
    answer = await door.http("GET", "/ojs/v1/admin/dead-letter/stats", headers=token)
    shown = answer.json()
    assert (shown["total"], shown["by_queue"]) == (1, {"shop.mail": 1}), answer.text


async def test_a_token_for_some_queues_makes_no_token_for_others(door: GuardedServer) -> None:
    limited = await door.token(Grant(Role.OWNER), queues=("shop.*", "mail"))
    strong, _ = await door.bench.service.tokens.create("strong", [Grant(Role.OWNER)])
    path = "/ojs/v1/admin/tokens"
    for queues, status in (
        ([], 403),
        (["secret"], 403),
        (["shop*"], 403),
        (["*"], 403),
        (["shop.x", "secret"], 403),
        (["shop.*"], 201),
        (["shop.eu.*", "mail"], 201),
    ):
        body = {"name": "new", "grants": [{"role": "viewer", "tenant": "*"}], "queues": queues}
        answer = await door.http("POST", path, body, headers=limited)
        assert answer.status_code == status, (queues, answer.text)
    assert (await door.http("POST", f"{path}/{strong.id}/rotate", headers=limited)).status_code == 403


BODY = "def body(job):\n    return 1\n"
CODE_STEP = {"body": BODY}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/jobs", {"type": "ojster.code", "args": [], "ojster_code": {"body": BODY}}),
        ("POST", "/jobs/batch", {"jobs": [{"type": "ojster.code", "args": [], "ojster_code": {"body": BODY}}]}),
        (
            "POST",
            "/jobs",
            {
                "type": "a",
                "args": [],
                "event_reactions": {
                    "on_success": [
                        {
                            "action": "enqueue",
                            "job": {"type": "ojster.code", "args": [], "ojster_code": {"body": BODY}},
                        }
                    ]
                },
            },
        ),
        ("POST", "/workflows", {"type": "chain", "steps": [CODE_STEP]}),
        ("POST", "/workflows", {"type": "chain", "steps": [{"type": "group", "jobs": [CODE_STEP]}]}),
        ("POST", "/workflows", {"type": "chain", "steps": [{"type": "map", "over": [1], "do": CODE_STEP}]}),
        ("POST", "/workflows", {"type": "chain", "steps": [{"type": "a", "args": []}], "on_error": CODE_STEP}),
        (
            "PUT",
            "/job-types/a",
            {"event_reactions": {"on_success": [{"action": "start-workflow", "workflow": CODE_STEP}]}},
        ),
        (
            "POST",
            "/cron",
            {
                "name": "c",
                "expression": "0 0 * * *",
                "job_template": {"type": "ojster.code", "args": [], "ojster_code": {"body": BODY}},
            },
        ),
    ],
)
async def test_jobs_that_carry_code_need_a_permission_of_their_own(
    door: GuardedServer, method: str, path: str, body: Any
) -> None:
    for role, allowed in ((Role.PRODUCER, False), (Role.CONTRIBUTOR, False), (Role.CODER, True), (Role.OWNER, True)):
        answer = await door.http(method, BASE + path, body, headers=await door.token(Grant(role)))
        assert (answer.status_code == 403) is not allowed, f"{role}: {answer.text}"
        if not allowed:
            assert "coder" in answer.json()["error"]["message"]


async def test_a_worker_appends_no_steps_with_code(door: GuardedServer) -> None:
    owner, worker = await door.token(Grant(Role.OWNER)), await door.token(Grant(Role.WORKER))
    workflow = {
        "type": "chain",
        "steps": [{"type": "a", "args": [{"body": "text", "type": "letter"}, {"body": "text"}]}],
    }
    contributor = await door.token(Grant(Role.CONTRIBUTOR))
    assert (await door.http("POST", f"{BASE}/workflows", workflow, headers=contributor)).status_code == 201
    fetched = await door.http(
        "POST", f"{BASE}/workers/fetch", {"queues": ["default"], "worker_id": "w"}, headers=worker
    )
    (job,) = fetched.json()["jobs"]
    done = {"job_id": job["id"], "worker_id": "w", "append": [CODE_STEP]}
    assert (await door.http("POST", f"{BASE}/workers/ack", done, headers=worker)).status_code == 403
    done["append"] = [{"type": "b", "args": []}]
    assert (await door.http("POST", f"{BASE}/workers/ack", done, headers=worker)).status_code == 200
    definition = {"name": "d", "type": "chain", "steps": [CODE_STEP]}
    assert (await door.http("POST", f"{BASE}/definitions", definition, headers=owner)).status_code == 201
    started = await door.http("POST", f"{BASE}/workflows", {"definition": "d"}, headers=contributor)
    assert started.status_code == 201


async def test_a_token_for_some_queues_retries_no_job_of_others_as_an_administrator(door: GuardedServer) -> None:
    headers = await door.token(Grant(Role.OWNER), queues=("other",))
    everything = await door.token(Grant(Role.OWNER))
    job = await door.bench.push(queue="mail")
    await call(door.http, "DELETE", f"{BASE}/jobs/{job.id}", headers=everything)
    path = f"{BASE}/admin/jobs/{job.id}/retry"
    assert (await door.http("POST", path, {}, headers=headers)).status_code == 403
    assert (await door.http("POST", path, {}, headers=everything)).status_code == 200


SENDS = {"on_creation": [{"action": "notify", "channel": "ops", "to": ["x@example.com"]}]}
STEP = {"type": "t", "args": [], "event_reactions": SENDS}
CHAIN = {"type": "chain", "params": {"a": 1}}
MAKES = {"type": "t", "args": [], "event_reactions": {"on_creation": [{"action": "enqueue", "job": STEP}]}}
STARTS = {"action": "start-workflow", "workflow": {"type": "chain", "steps": [STEP]}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/jobs", STEP),
        ("/jobs", MAKES),
        ("/jobs", {"type": "t", "args": [], "event_reactions": {"on_creation": [STARTS]}}),
        ("/workflows", CHAIN | {"steps": [STEP]}),
        ("/workflows", CHAIN | {"steps": [STEP | {"args": [{"$ref": "params.a"}]}]}),
        ("/workflows", CHAIN | {"steps": [{"type": "map", "over": [1], "do": STEP}]}),
        ("/cron", {"name": "c", "expression": "@every 1s", "job_template": STEP}),
        ("/definitions", {"name": "d", "type": "chain", "steps": [STEP]}),
        ("/job-types/t", {"event_reactions": SENDS}),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
async def test_only_administrators_set_the_recipients_of_notifications(
    door: GuardedServer, path: str, body: dict[str, Any]
) -> None:
    method = "PUT" if path.startswith("/job-types") else "POST"
    refused = await door.http(method, BASE + path, body, headers=await door.token(Grant(Role.CONTRIBUTOR)))
    assert refused.status_code == 403, refused.text
    assert await door.bench.fetch("ojster.notifications", count=5) == []


@pytest.mark.parametrize(
    "step",
    [
        {"type": "t", "args": [], "options": {"queue": "b"}},
        {"type": "t", "args": [], "options": {"queue": "a"}},
        {"type": "t", "args": [], "options": {"queue": "a"}} | {"event_reactions": MAKES["event_reactions"]},
    ],
)
async def test_a_worker_for_some_queues_appends_no_steps(door: GuardedServer, step: dict[str, Any]) -> None:
    steps = {"type": "group", "jobs": [{"type": "t", "args": [], "options": {"queue": "a"}}]}
    await door.bench.service.workflows.create(read_members(msgspec.json.encode(steps)))
    headers = await door.token(Grant(Role.WORKER), queues=["a"])
    fetch = {"queues": ["a"], "worker_id": "w"}
    (job,) = (await door.http("POST", f"{BASE}/workers/fetch", fetch, headers=headers)).json()["jobs"]
    report = {"job_id": job["id"], "worker_id": "w"}
    refused = await door.http("POST", f"{BASE}/workers/ack", report | {"append": [step]}, headers=headers)
    assert refused.status_code == 403, refused.text
    assert (await door.http("POST", f"{BASE}/workers/ack", report, headers=headers)).status_code == 200


@pytest.mark.parametrize("conflict", ["replace", "ignore", "reject"])
async def test_a_token_for_some_queues_learns_nothing_of_unique_jobs_in_others(
    door: GuardedServer, conflict: str
) -> None:
    unique = {"keys": ["type"], "on_conflict": "reject"}
    other = await door.bench.push("pay", "secret", queue="b", unique=unique)
    body = {"type": "pay", "args": [], "options": {"queue": "a", "unique": unique | {"on_conflict": conflict}}}
    refused = await door.http(
        "POST", f"{BASE}/jobs", body, headers=await door.token(Grant(Role.PRODUCER), queues=["a"])
    )
    assert refused.status_code == 409
    assert "secret" not in refused.text
    assert other.id not in refused.text
    assert (await door.bench.find(other)).state == "available"


@pytest.mark.parametrize("engine_settings", [ServiceSettings(contributors_cancel="own")])
async def test_who_cancels_only_its_own_replaces_only_its_own(door: GuardedServer) -> None:
    unique = {"keys": ["type"], "on_conflict": "replace"}
    headers = await door.token(Grant(Role.CONTRIBUTOR))
    body = {"type": "pay", "args": [], "options": {"unique": unique}}
    first = await door.http("POST", f"{BASE}/jobs", body, headers=headers)
    assert first.status_code == 201
    assert (await door.http("POST", f"{BASE}/jobs", body, headers=headers)).status_code == 201
    other = await door.bench.push("pay", "secret", unique=unique)
    refused = await door.http("POST", f"{BASE}/jobs", body, headers=headers)
    assert refused.status_code == 403, refused.text
    assert (await door.bench.find(other)).state == "available"


REPLACING = {"type": "pay", "args": [], "options": {"unique": {"keys": ["type"], "on_conflict": "replace"}}}


@pytest.mark.parametrize("engine_settings", [ServiceSettings(contributors_cancel="own")])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/workflows", {"type": "chain", "steps": [REPLACING]}),
        ("/definitions", {"name": "d", "type": "chain", "steps": [REPLACING]}),
        ("/cron", {"name": "c", "expression": "@every 1s", "job_template": REPLACING}),
        (
            "/jobs",
            {"type": "t", "args": []} | {"event_reactions": {"on_creation": [{"action": "enqueue", "job": REPLACING}]}},
        ),
    ],
)
async def test_who_cancels_only_its_own_has_no_steps_and_reactions_that_replace(
    door: GuardedServer, path: str, body: dict[str, Any]
) -> None:
    refused = await door.http("POST", BASE + path, body, headers=await door.token(Grant(Role.CONTRIBUTOR)))
    assert refused.status_code == 403, refused.text
    allowed = await door.http("POST", BASE + path, body, headers=await door.token(Grant(Role.OWNER)))
    assert allowed.status_code in (200, 201), allowed.text
