"""Browsers that log in at an identity provider, which Authlib runs here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest

from ojster.audit.entries import AuditQuery
from ojster.core.access import Grant, Role, Token
from ojster.core.durations import HOUR
from ojster.core.errors import InvalidRequest
from ojster.server import oidc, oidc_login
from ojster.server.application import Application
from ojster.server.oidc import OidcClient, OidcSettings, OidcVerifier
from ojster.server.oidc_login import LoginAttempt
from ojster.server.session import ATTEMPT_COOKIE, COOKIE
from ojster.tenancy.tokens import MAX_SESSIONS
from tests.conftest import Bench
from tests.server.identity_provider import CLIENT_ID, CLIENT_SECRET, Provider, running
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

SESSION = "/ojs/v1/session"
SERVER = "http://127.0.0.1:8080"
OWN_PAGE = {"sec-fetch-site": "same-origin"}
FROM_ELSEWHERE = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")  # the provider is on this machine
    with running() as made:
        made.redirect_url = f"{SERVER}{SESSION}/return"
        made.users = {"ada": {"groups": ["platform"]}, "eve": {"groups": []}, "bob": {"groups": ["shop"]}}
        made.user = "ada"
        yield made


def settings_of(provider: Provider, secret: str = CLIENT_SECRET, public_url: str = SERVER) -> OidcSettings:
    groups = {"platform": (Grant(Role.OWNER),), "shop": (Grant(Role.CONTRIBUTOR, "shop"),)}
    return OidcSettings(provider.url, CLIENT_ID, "groups", groups, OidcClient(CLIENT_ID, public_url, secret))


@pytest.fixture
async def browser(bench: Bench, provider: Provider) -> AsyncIterator[httpx.AsyncClient]:
    app = Application(bench.service, guarded=True, oidc=settings_of(provider))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=SERVER) as made:
        yield made


async def way_back(browser: httpx.AsyncClient, then: str = "") -> str:
    """Begin a login, let the provider decide, and return the address to which it sends the browser."""
    begun = await browser.get(f"{SESSION}/login", params={"then": then}, headers=OWN_PAGE)
    assert begun.status_code == 303, begun.text
    async with httpx.AsyncClient() as elsewhere:
        decided = await elsewhere.get(begun.headers["location"])
    assert decided.status_code == 302, decided.text
    return str(decided.headers["location"])


async def log_in(browser: httpx.AsyncClient, then: str = "") -> httpx.Response:
    return await browser.get(await way_back(browser, then), headers=FROM_ELSEWHERE)


async def test_a_browser_logs_in_at_the_provider_and_gets_the_roles_of_its_groups(
    browser: httpx.AsyncClient, bench: Bench, provider: Provider
) -> None:
    assert (await browser.get(SESSION)).json() | {"provider": urlsplit(provider.url).netloc, "is_known": False} == (
        await browser.get(SESSION)
    ).json()
    back = await log_in(browser, "jobs?state=discarded")
    assert (back.status_code, back.headers["location"]) == (303, f"{SERVER}/dashboard/jobs?state=discarded")
    session, over = back.headers.get_list("set-cookie")
    assert all(word in session for word in (f"{COOKIE}=ojster_", "HttpOnly", "SameSite=Strict"))
    assert over.startswith(f"{ATTEMPT_COOKIE}=; ")
    assert "Max-Age=0" in over
    told = (await browser.get(SESSION, headers=OWN_PAGE)).json()
    assert (told["who"], told["is_global"], "admin" in told["operations"]) == ("ada", True, True)
    (token,) = await bench.service.tokens.all()
    assert (token.name, token.session_of) == ("ada", "oidc:id-of-ada")
    listed = (await browser.get("/ojs/v1/admin/tokens", headers=OWN_PAGE)).json()["tokens"]
    assert [(one["name"], one["is_session"]) for one in listed] == [("ada", True)]
    (entry,) = await bench.service.audit.select(AuditQuery(object=token.id))
    assert b'"principal":"ada"' in entry.body
    assert b"finish_login" in entry.body


async def test_logging_out_revokes_the_token_of_the_session(browser: httpx.AsyncClient, bench: Bench) -> None:
    await log_in(browser)
    cookie = browser.cookies[COOKIE]
    assert (await browser.delete(SESSION, headers=OWN_PAGE)).json()["is_known"] is False
    assert await bench.service.tokens.all() == []
    assert (await browser.get("/ojs/v1/jobs", headers={"authorization": f"Bearer {cookie}"})).status_code == 401


async def test_a_session_ends_by_itself_and_the_next_login_removes_it(browser: httpx.AsyncClient, bench: Bench) -> None:
    await log_in(browser)
    bench.clock.advance(13 * HOUR)
    assert (await browser.get("/ojs/v1/jobs", headers=OWN_PAGE)).status_code == 401
    await log_in(browser)
    assert len(await bench.service.tokens.all()) == 1


async def test_one_caller_has_a_limited_number_of_sessions_and_others_keep_theirs(
    browser: httpx.AsyncClient, bench: Bench, provider: Provider
) -> None:
    provider.user = "bob"
    await log_in(browser)
    provider.user = "ada"
    caller = Token("oidc:id-of-ada", "ada", b"", (Grant(Role.OWNER),), 0)
    for _ in range(MAX_SESSIONS + 2):
        bench.clock.advance(1)
        await bench.service.tokens.begin_session(caller, 3600.0)
    names = [token.name for token in await bench.service.tokens.all()]
    assert (names.count("ada"), names.count("bob")) == (MAX_SESSIONS, 1)


async def test_a_group_may_stand_for_a_role_in_one_workspace(browser: httpx.AsyncClient, provider: Provider) -> None:
    provider.user = "bob"
    await log_in(browser)
    told = (await browser.get(SESSION, headers=OWN_PAGE)).json()
    assert (told["who"], told["tenants"], told["is_global"]) == ("bob", ["shop"], False)


async def test_roles_are_read_from_the_endpoint_about_users_if_the_token_has_none(
    browser: httpx.AsyncClient, provider: Provider
) -> None:
    provider.tells_all = False
    assert (await log_in(browser)).status_code == 303
    assert (await browser.get(SESSION, headers=OWN_PAGE)).json()["who"] == "ada"


async def test_a_server_may_have_no_password_at_the_provider(bench: Bench, provider: Provider) -> None:
    provider.is_public = True
    app = Application(bench.service, guarded=True, oidc=settings_of(provider, secret=""))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=SERVER) as browser:
        assert (await log_in(browser)).status_code == 303


@pytest.mark.parametrize("secret", ["100%41", "a+b c:d/e", "schlüssel €"])
async def test_a_password_at_the_provider_may_have_any_characters(
    bench: Bench, provider: Provider, secret: str
) -> None:
    provider.secret = secret
    app = Application(bench.service, guarded=True, oidc=settings_of(provider, secret))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=SERVER) as browser:
        assert (await log_in(browser)).status_code == 303


async def test_another_server_of_the_installation_may_receive_the_browser(
    browser: httpx.AsyncClient, bench: Bench, provider: Provider
) -> None:
    back = await way_back(browser)
    other = Application(bench.service, guarded=True, oidc=settings_of(provider))
    transport = httpx.ASGITransport(app=other)
    async with httpx.AsyncClient(transport=transport, base_url=SERVER, cookies=browser.cookies) as there:
        assert (await there.get(back, headers=FROM_ELSEWHERE)).status_code == 303


async def test_cookies_are_for_encrypted_connections_if_the_public_address_is(bench: Bench, provider: Provider) -> None:
    settings = settings_of(provider, public_url="https://jobs.example.com")
    app = Application(bench.service, guarded=True, oidc=settings)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=SERVER) as browser:
        begun = await browser.get(f"{SESSION}/login")
    cookie = begun.headers["set-cookie"]
    assert cookie.startswith(f"__Host-{ATTEMPT_COOKIE}=")
    assert "; Secure" in cookie
    assert "SameSite=Lax" in cookie
    asked = parse_qs(urlsplit(begun.headers["location"]).query)
    assert asked["redirect_uri"] == ["https://jobs.example.com/ojs/v1/session/return"]
    assert asked["code_challenge_method"] == ["S256"]


async def refused(answer: httpx.Response, status: int, why: str, bench: Bench) -> None:
    assert (answer.status_code, why in answer.text) == (status, True), answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert COOKIE not in answer.headers.get("set-cookie", "").replace(ATTEMPT_COOKIE, "")
    assert await bench.service.tokens.all() == []
    entries = await bench.service.audit.select(AuditQuery())
    assert b'"auth.refused"' in entries[0].body
    assert b"finish_login" in entries[0].body


async def test_a_caller_without_a_role_gets_no_session(
    browser: httpx.AsyncClient, bench: Bench, provider: Provider
) -> None:
    provider.user = "eve"
    await refused(await log_in(browser), 403, "has no role", bench)


async def test_a_caller_whom_the_provider_refuses_gets_no_session(
    browser: httpx.AsyncClient, bench: Bench, provider: Provider
) -> None:
    provider.user = None
    await refused(await log_in(browser), 401, "The provider has refused the login", bench)


async def test_a_browser_that_began_no_login_gets_no_session(browser: httpx.AsyncClient, bench: Bench) -> None:
    """Else a page of somebody else could log a browser in as somebody else."""
    back = await way_back(browser)
    browser.cookies.clear()
    await refused(await browser.get(back, headers=FROM_ELSEWHERE), 401, "has begun no login", bench)


async def test_a_code_of_another_login_is_of_no_use(browser: httpx.AsyncClient, bench: Bench) -> None:
    """The proof key is in the browser that began, so that who has seen a code cannot use it."""
    stolen = parse_qs(urlsplit(await way_back(browser)).query)["code"][0]
    state = parse_qs(urlsplit(await way_back(browser)).query)["state"][0]
    answer = await browser.get(f"{SESSION}/return", params={"code": stolen, "state": state}, headers=FROM_ELSEWHERE)
    await refused(answer, 503, "does not answer as it should", bench)


async def test_a_code_is_used_once(browser: httpx.AsyncClient, bench: Bench) -> None:
    back = await way_back(browser)
    kept = dict(browser.cookies)
    assert (await browser.get(back, headers=FROM_ELSEWHERE)).status_code == 303
    browser.cookies.update(kept)
    again = await browser.get(back, headers=FROM_ELSEWHERE)
    assert again.status_code in (401, 503)
    assert len(await bench.service.tokens.all()) == 1


async def test_a_token_of_another_login_is_refused(
    browser: httpx.AsyncClient, bench: Bench, provider: Provider
) -> None:
    provider.nonce = "of another login"
    await refused(await log_in(browser), 401, "is for another login", bench)


async def test_an_answer_of_another_provider_is_refused(browser: httpx.AsyncClient, bench: Bench) -> None:
    back = await way_back(browser) + "&iss=https://other.example.com"
    await refused(await browser.get(back, headers=FROM_ELSEWHERE), 401, "another provider", bench)


async def test_a_wrong_password_of_the_server_is_told_as_a_fault(bench: Bench, provider: Provider) -> None:
    app = Application(bench.service, guarded=True, oidc=settings_of(provider, secret="wrong"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=SERVER) as browser:
        await refused(await log_in(browser), 503, "does not answer as it should", bench)


async def test_made_up_codes_let_the_server_ask_the_provider_a_limited_number_of_times(
    browser: httpx.AsyncClient, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc_login, "MAX_RETURNS_OF_ADDRESS", 2)
    monkeypatch.setattr(oidc_login, "RETURNS_PER_SECOND_OF_ADDRESS", 0.0)
    attempt = LoginAttempt("state", "nonce", "verifier", "").pack()
    statuses = []
    for _ in range(3):
        browser.cookies.set(ATTEMPT_COOKIE, attempt)
        statuses.append((await browser.get(f"{SESSION}/return?code=x&state=state")).status_code)
    assert statuses == [503, 503, 429]


async def test_a_provider_that_is_away_is_told_on_a_page(bench: Bench) -> None:
    settings = OidcSettings("http://127.0.0.1:9", CLIENT_ID, client=OidcClient(CLIENT_ID, SERVER))
    app = Application(bench.service, guarded=True, oidc=settings)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=SERVER) as browser:
        answer = await browser.get(f"{SESSION}/login")
    assert (answer.status_code, "cannot be reached" in answer.text) == (503, True)


@pytest.mark.parametrize(
    ("then", "shown"),
    [
        ("jobs?search=a..b", "jobs?search=a..b"),
        ("queues/a(b)@'c", "queues/a(b)@'c"),
        ("https://evil.example.com/@", "https://evil.example.com/@"),  # below the dashboard: no such page
        ("//evil.example.com", ""),
        ("/x", ""),
        ("../../x", ""),
        ("a/..\\..", ""),
        ("jobs\r\nx: y", ""),
        ("é", ""),
        ("x" * 1001, ""),
    ],
)
async def test_a_login_leads_to_pages_of_the_dashboard_alone(browser: httpx.AsyncClient, then: str, shown: str) -> None:
    assert (await log_in(browser, then)).headers["location"] == f"{SERVER}/dashboard/{shown}"


async def test_a_cookie_that_was_made_up_adds_nothing_to_the_answer(browser: httpx.AsyncClient) -> None:
    back = await way_back(browser)
    known = LoginAttempt.unpack(browser.cookies[ATTEMPT_COOKIE])
    assert known is not None
    made_up = msgspec.structs.replace(known, destination="x\r\nX-Injected: yes\r\n\r\n<script>")
    browser.cookies.clear()
    answer = await browser.get(back, headers={"cookie": f"{ATTEMPT_COOKIE}={made_up.pack()}"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"{SERVER}/dashboard/")


async def test_where_connections_are_encrypted_no_neighbouring_name_can_plant_a_cookie(
    bench: Bench, provider: Provider
) -> None:
    provider.redirect_url = "https://jobs.example.com/ojs/v1/session/return"
    settings = settings_of(provider, public_url="HTTPS://jobs.example.com")
    app = Application(bench.service, guarded=True, oidc=settings)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=SERVER) as browser:
        begun = await browser.get(f"{SESSION}/login")
        packed = begun.headers["set-cookie"].partition("=")[2].partition(";")[0]
        planted = {"cookie": f"{ATTEMPT_COOKIE}={packed}"}
        assert (await browser.get(f"{SESSION}/return?code=x&state=y", headers=planted)).status_code == 401
        _, shown = await bench.service.tokens.create("eve", [Grant(Role.VIEWER)])
        for name, expected in ((COOKIE, 401), (f"__Host-{COOKIE}", 200)):
            headers = OWN_PAGE | {"cookie": f"{name}={shown}"}
            assert (await browser.get("/ojs/v1/jobs", headers=headers)).status_code == expected


async def test_nested_roles_are_read_from_the_endpoint_about_users(provider: Provider) -> None:
    settings = OidcSettings(provider.url, CLIENT_ID, "realm_access.roles")
    verifier = OidcVerifier(settings)
    token, more = {"sub": "1", "name": "Ada", "realm_access": {}}, {"sub": "1", "realm_access": {"roles": ["viewer"]}}
    assert not verifier.has_roles(token)
    merged = verifier.with_roles(token, more | {"name": "Eve"})
    assert (merged["name"], verifier.has_roles(merged)) == ("Ada", True)


async def test_a_provider_that_answers_slowly_stops_nobody(
    bench: Bench, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "PROVIDER_TIMEOUT_SECONDS", 0.05)
    async with slow_server() as url:
        app = Application(
            bench.service, guarded=True, oidc=OidcSettings(url, CLIENT_ID, client=OidcClient(CLIENT_ID, SERVER))
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=SERVER) as browser:
            answer = await asyncio.wait_for(browser.get(f"{SESSION}/login"), PATIENCE)
    assert (answer.status_code, "cannot be reached" in answer.text) == (503, True)


@asynccontextmanager
async def slow_server() -> AsyncIterator[str]:
    """A server that sends the beginning of an answer, and never the rest."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):  # the caller may give up at any time
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            await writer.drain()
            await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "document",
    [
        {"authorization_endpoint": "http://["},
        {"authorization_endpoint": "http://jobs.example.com"},
        {"authorization_endpoint": 5},
        {},
    ],
)
async def test_a_provider_that_describes_itself_badly_is_told_as_a_fault(
    browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, document: dict[str, Any]
) -> None:
    async def discover(self: OidcVerifier) -> dict[str, Any]:
        return document

    monkeypatch.setattr(OidcVerifier, "discover", discover)
    answer = await browser.get(f"{SESSION}/login")
    assert (answer.status_code, "no authorization endpoint that can be trusted" in answer.text) == (503, True)


async def test_a_server_without_a_client_has_no_login(bench: Bench, provider: Provider) -> None:
    app = Application(bench.service, guarded=True, oidc=OidcSettings(provider.url, CLIENT_ID))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=SERVER) as browser:
        assert (await browser.get(f"{SESSION}/login")).status_code == 404
        assert (await browser.get(f"{SESSION}/return?code=x&state=y")).status_code == 404
        assert (await browser.get(SESSION)).json()["provider"] is None


@pytest.mark.parametrize("text", ["", "x", "%%%", "W10", "WyJhIl0", "é", "A" * 9000])
async def test_a_cookie_that_was_made_up_is_no_attempt(browser: httpx.AsyncClient, text: str) -> None:
    assert LoginAttempt.unpack(text) is None
    headers = {b"cookie": f"{ATTEMPT_COOKIE}={text}".encode()}
    assert (await browser.get(f"{SESSION}/return?code=x&state=y", headers=headers)).status_code == 401


def test_an_attempt_survives_its_cookie() -> None:
    made = LoginAttempt("a", "b", "c", "jobs/1?x=ü")
    assert LoginAttempt.unpack(made.pack()) == made


@pytest.mark.parametrize(("id", "public_url"), [("", SERVER), ("ojster", "http://jobs.example.com"), ("ojster", "x")])
def test_settings_that_cannot_work_are_refused(id: str, public_url: str) -> None:
    with pytest.raises(InvalidRequest):
        OidcClient(id, public_url)
