"""Sessions of browsers: a token in a cookie, and what must be refused."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from ojster.core.access import Grant, Role
from ojster.server.application import Application
from ojster.server.session import COOKIE, token_of
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

SESSION = "/ojs/v1/session"
OWN_PAGE = {"sec-fetch-site": "same-origin"}


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    guarded = Application(bench.service, guarded=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guarded), base_url="http://server") as made:
        yield made


async def token(bench: Bench, role: Role = Role.VIEWER, tenant: str | None = None) -> str:
    _, shown = await bench.service.tokens.create("ada", [Grant(role, tenant)])
    return shown


async def log_in(client: httpx.AsyncClient, shown: str) -> httpx.Response:
    return await client.post(SESSION, json={"token": shown}, headers=OWN_PAGE)


async def test_a_browser_logs_in_asks_and_logs_out(client: httpx.AsyncClient, bench: Bench) -> None:
    assert (await client.get(SESSION)).json()["is_known"] is False
    answer = await log_in(client, await token(bench))
    assert answer.status_code == 200
    assert answer.json() | {"operations": ["inspect"]} == answer.json()
    assert (answer.json()["who"], answer.json()["is_global"]) == ("ada", True)
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in (f"{COOKIE}=ojster_", "HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="))
    assert "Secure" not in cookie, "the page came over plain HTTP"
    assert (await client.get("/ojs/v1/jobs", headers=OWN_PAGE)).status_code == 200
    assert (await client.get(SESSION, headers=OWN_PAGE)).json()["is_known"] is True
    assert (await client.delete(SESSION, headers=OWN_PAGE)).json()["is_known"] is False
    assert (await client.get("/ojs/v1/jobs", headers=OWN_PAGE)).status_code == 401


async def test_the_cookie_is_for_encrypted_connections_if_the_page_came_over_one(
    client: httpx.AsyncClient, bench: Bench
) -> None:
    headers = OWN_PAGE | {"origin": "https://server"}
    answer = await client.post(SESSION, json={"token": await token(bench)}, headers=headers)
    assert "; Secure" in answer.headers["set-cookie"]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_requests_of_other_pages_have_no_session(client: httpx.AsyncClient, bench: Bench, site: str) -> None:
    await log_in(client, await token(bench, Role.OWNER))
    headers = {"sec-fetch-site": site}
    assert (await client.post("/ojs/v1/jobs", json={"type": "x", "args": []}, headers=headers)).status_code == 401
    assert (await client.post(SESSION, json={"token": "ojster_a_b"}, headers=headers)).status_code == 403
    assert (await client.delete(SESSION, headers=headers)).status_code == 403


async def test_without_the_word_of_the_browser_the_origin_counts(client: httpx.AsyncClient, bench: Bench) -> None:
    await log_in(client, await token(bench, Role.OWNER))
    body = {"type": "x", "args": []}
    for origin, status in (("http://server", 201), ("http://server:81", 401), ("http://evil", 401), ("null", 401)):
        answer = await client.post("/ojs/v1/jobs", json=body, headers={"origin": origin})
        assert answer.status_code == status, origin


async def test_a_session_may_do_what_its_token_may(client: httpx.AsyncClient, bench: Bench) -> None:
    shown = (await log_in(client, await token(bench, Role.CONTRIBUTOR, "acme"))).json()
    assert (shown["tenants"], shown["is_global"]) == (["acme"], False)
    assert set(shown["operations"]) == {"cancel", "enqueue", "inspect"}
    assert shown["queues"] == []
    pushed = await client.post("/ojs/v1/jobs", json={"type": "x", "args": []}, headers=OWN_PAGE)
    assert pushed.status_code == 201
    assert (await client.get("/ojs/v1/admin/attention", headers=OWN_PAGE)).status_code == 403


async def test_a_session_says_to_which_queues_its_token_is_limited(client: httpx.AsyncClient, bench: Bench) -> None:
    _, secret = await bench.service.tokens.create("ada", [Grant(Role.VIEWER)], queues=("mail", "shop.*"))
    shown = (await log_in(client, secret)).json()
    assert (shown["queues"], shown["tenants"], shown["is_global"]) == (["mail", "shop.*"], None, False)


async def test_a_revoked_token_ends_its_sessions(client: httpx.AsyncClient, bench: Bench) -> None:
    known, shown = await bench.service.tokens.create("ada", [Grant(Role.VIEWER)])
    await log_in(client, shown)
    await bench.service.tokens.revoke(known.id)
    assert (await client.get("/ojs/v1/jobs", headers=OWN_PAGE)).status_code == 401
    assert (await client.get(SESSION, headers=OWN_PAGE)).json()["is_known"] is False


@pytest.mark.parametrize("wrong", ["ojster_a_b", "nonsense", "a b", "x;Path=/", "x\r\nSet-Cookie: a=b", "ä", ""])
async def test_wrong_tokens_begin_no_session(client: httpx.AsyncClient, wrong: str) -> None:
    answer = await log_in(client, wrong)
    assert answer.status_code in (400, 401, 422), answer.text
    assert "set-cookie" not in answer.headers


async def test_a_header_counts_before_the_cookie(client: httpx.AsyncClient, bench: Bench) -> None:
    await log_in(client, await token(bench))
    wrong = OWN_PAGE | {"authorization": "Bearer ojster_a_b"}
    assert (await client.get("/ojs/v1/jobs", headers=wrong)).status_code == 401


async def test_a_server_without_tokens_has_a_session_for_everybody(http: Http) -> None:
    shown = (await http("GET", SESSION)).json()
    assert (shown["needs_token"], shown["is_known"], shown["is_global"]) == (False, True, True)
    assert "admin" in shown["operations"]


def test_a_cookie_is_found_among_others_and_bounded() -> None:
    own = (b"sec-fetch-site", b"same-origin")
    assert token_of([own, (b"cookie", b"a=b; ojster_session=t; c=d")]) == "t"
    assert token_of([own, (b"cookie", b"a=ojster_session=t")]) is None
    assert token_of([own, (b"cookie", b"ojster_session=" + b"x" * 9_000)]) is None
    assert token_of([(b"cookie", b"ojster_session=t"), (b"origin", b"http://a"), (b"host", b"b")]) is None
