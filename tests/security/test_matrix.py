"""Every endpoint with every role, workspace and state of a token, as the tables of routes and permissions say.

A new endpoint is in these tests by itself. Requests have empty bodies: who may call is decided before they are read.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping

import httpx
import pytest

from ojster.core.access import OPERATIONS, Grant, Role
from ojster.core.durations import HOUR
from ojster.core.ids import new_id
from ojster.server import authentication
from ojster.server.application import Application
from ojster.server.endpoints import routes_of
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

ROUTES = routes_of()
GUARDED = [route for route in ROUTES if route.needs]

PLACES = [
    # workspace of the token, workspace that the request names, whether the token reaches it
    (None, None, True),
    (None, "acme", True),
    ("acme", None, True),
    ("acme", "acme", True),
    ("acme", "acme:web", True),
    ("acme:web", "acme", False),
    ("acme", "beta", False),
    ("acme", "acmeweb", False),
]


@pytest.fixture
async def http(bench: Bench) -> AsyncIterator[Http]:
    guarded = Application(bench.service, max_body_bytes=200_000, trusting=True, guarded=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guarded), base_url="http://guarded") as client:
        yield Http(client)


def path_of(path: str) -> str:
    """Return a path with names for its parameters of things that do not exist."""
    return path.replace("{id}", new_id()).replace("{", "no-").replace("}", "")


async def headers_of(bench: Bench, *grants: Grant) -> dict[str, str]:
    _, shown = await bench.service.tokens.create("somebody", grants)
    return {"Authorization": f"Bearer {shown}"}


def test_the_matrix_has_all_endpoints() -> None:
    assert len(GUARDED) > 180
    assert {route.path for route in ROUTES} - {route.path for route in GUARDED} <= {
        *("/", "/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css"),
        *("/health", "/ready", "/openapi.json", "/ojs/manifest", "/ojs/v1/health", "/ojs/v1/session"),
        *("/ojs/v1/session/login", "/ojs/v1/session/return"),
    }


@pytest.mark.parametrize("role", list(Role))
async def test_an_endpoint_asks_for_the_role_and_the_workspace(bench: Bench, http: Http, role: Role) -> None:
    tokens = {granted: await headers_of(bench, Grant(role, granted)) for granted in {place[0] for place in PLACES}}
    for (granted, named, is_reached), route in itertools.product(PLACES, GUARDED):
        if route.streams:
            continue  # a stream that is granted has no end; the next test has those that are refused
        headers = tokens[granted] if named is None else tokens[granted] | {"X-OJS-Tenant": named}
        answer = await http(route.method, path_of(route.path), {}, headers=headers)
        what = f"{role} of {granted} in {named}: {route.method} {route.path}: {answer.status_code} {answer.text[:200]}"
        assert answer.status_code not in (401, 500), what
        if not is_reached:
            assert answer.status_code == 404, what
            assert "workspace" in answer.text, what
            continue
        place = named or granted
        is_allowed = bool(OPERATIONS[role] & set(route.needs)) and (place is None or route.is_for_tenants)
        if is_allowed:
            assert answer.status_code != 403 or "workspace" in answer.text or "tenant" in answer.text, what
        else:
            assert answer.status_code == 403, what


async def test_a_stream_is_refused_like_any_endpoint(bench: Bench, http: Http) -> None:
    streams = [route for route in GUARDED if route.streams]
    assert streams
    for role, route in itertools.product(Role, streams):
        if OPERATIONS[role] & set(route.needs):
            continue
        headers = await headers_of(bench, Grant(role))
        answer = await http(route.method, path_of(route.path), None, headers=headers)
        assert answer.status_code == 403, f"{role} {route.method} {route.path}"


async def bad_tokens(bench: Bench) -> Mapping[str, str | None]:
    """Return invalid credentials, by what is wrong with them."""
    everything = [Grant(role) for role in Role]
    tokens = bench.service.tokens
    good, shown = await tokens.create("good", everything)
    _, expired = await tokens.create("expired", everything, expires_at=bench.clock.now + HOUR)
    gone, revoked = await tokens.create("revoked", everything)
    await tokens.revoke(gone.id)
    turned, rotated = await tokens.create("rotated", everything)
    await tokens.rotate(turned.id, grace=0)
    bench.clock.advance(3_600)
    return {
        "none": None,
        "empty": "Bearer ",
        "another scheme": f"Basic {shown}",
        "malformed": "Bearer no-token",
        "a wrong secret": f"Bearer ojster_{good.id}_{'x' * 43}",
        "an unknown id": f"Bearer ojster_{new_id()}_{'x' * 43}",
        "expired": f"Bearer {expired}",
        "revoked": f"Bearer {revoked}",
        "replaced by another": f"Bearer {rotated}",
    }


async def test_no_endpoint_takes_a_bad_token(bench: Bench, http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "MAX_CHECKS_OF_ADDRESS", 1_000_000)  # all come from one address
    for wrong, credentials in (await bad_tokens(bench)).items():
        headers = {} if credentials is None else {"Authorization": credentials}
        for route in GUARDED:
            answer = await http(route.method, path_of(route.path), {}, headers=headers)
            what = f"{wrong}: {route.method} {route.path}: {answer.status_code} {answer.text[:200]}"
            assert answer.status_code == 401, what
            assert answer.headers["www-authenticate"].startswith("Bearer"), what


@pytest.mark.parametrize("role", list(Role))
async def test_a_token_for_some_queues_never_makes_one_for_others(bench: Bench, http: Http, role: Role) -> None:
    _, shown = await bench.service.tokens.create("limited", [Grant(role)], queues=("mail",))
    headers = {"Authorization": f"Bearer {shown}"}
    for queues in ([], ["default"], ["mail", "default"], ["*"]):
        body = {"name": "more", "grants": [{"role": role.value}], "queues": queues}
        answer = await http("POST", "/ojs/v1/admin/tokens", body, headers=headers)
        assert answer.status_code in (400, 403), f"{role} {queues}: {answer.text}"
