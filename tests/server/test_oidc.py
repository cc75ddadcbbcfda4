"""Tokens of an OpenID Connect provider, from a provider that these tests run."""

from __future__ import annotations

import asyncio
import base64
import hmac
import time
from collections.abc import AsyncIterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from ojster.audit.entries import AuditQuery
from ojster.core.access import Grant, Role
from ojster.core.errors import BackendUnavailable, InvalidRequest
from ojster.server import oidc
from ojster.server.application import Application
from ojster.server.oidc import OidcSettings, OidcVerifier, read_group
from ojster.service import Service
from tests.conftest import Bench, Http
from tests.serving import listening

pytestmark = pytest.mark.anyio

BASE = "/ojs/v1"


@cache
def private_key(name: str) -> rsa.RSAPrivateKey:
    """Return the key of a name: to make one takes 50 ms and more."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Provider:
    """An identity provider with keys that may change, and faults."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: dict[str, Any] = {}
        self.calls = 0
        self.issuer: str | None = None
        self.broken = False
        self.padding = ""
        self.keys_at = "/keys"
        self.names_algorithms = True
        self.more_keys: list[Any] = []
        self.add("one")

    def add(self, id: str, key: Any = None) -> None:
        self.keys[id] = key or private_key(id)

    async def describe(self, request: Request) -> Response:
        self.calls += 1
        if self.broken:
            return Response("no", 503)
        place = f"{self.url}{self.keys_at}" if self.keys_at.startswith("/") else self.keys_at
        return JSONResponse({"issuer": self.issuer or self.url, "jwks_uri": place, "padding": self.padding})

    async def show_keys(self, request: Request) -> Response:
        shown = []
        for id, key in self.keys.items():
            kind = jwt.algorithms.ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else None
            made = (kind or jwt.algorithms.RSAAlgorithm).to_jwk(key.public_key(), as_dict=True)
            alg = "ES256" if kind else "RS256"
            shown.append({**made, "kid": id, "use": "sig"} | ({"alg": alg} if self.names_algorithms else {}))
        shown.append({"kty": "oct", "k": "c2VjcmV0", "kid": "shared", "use": "sig"})
        return JSONResponse({"keys": shown + self.more_keys})

    def token(self, *, kid: str | None = "one", key: Any = None, algorithm: str = "RS256", **claims: Any) -> str:
        given = {
            "iss": self.url,
            "aud": "ojster",
            "sub": "4711",
            "exp": time.time() + 60,
            "preferred_username": "ada",
            "ojster_roles": ["viewer"],
        } | claims
        body = {name: value for name, value in given.items() if value is not None}
        signer = key or self.keys.get(kid or "one") or next(iter(self.keys.values()))
        return jwt.encode(body, signer, algorithm=algorithm, headers={"kid": kid} if kid else None)


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    made = Provider()
    app = Starlette(
        routes=[
            Route("/.well-known/openid-configuration", made.describe),
            Route("/keys", made.show_keys),
            Route("/moved", lambda _: RedirectResponse(f"{made.url}/keys")),
        ]
    )
    async with listening(app) as made.url:
        yield made


@pytest.fixture
async def http(service: Service, provider: Provider) -> AsyncIterator[Http]:
    groups = {"staff": (Grant(Role.CONTRIBUTOR, "acme"),), "admins": (Grant(Role.OWNER),)}
    settings = OidcSettings(provider.url, "ojster", groups=groups)
    app = Application(service, guarded=True, oidc=settings)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://guarded") as client:
        yield Http(client)


async def status(http: Http, token: str, method: str = "GET", path: str = f"{BASE}/jobs", **more: str) -> int:
    headers = {"Authorization": f"Bearer {token}"} | more
    return (await http(method, path, headers=headers)).status_code


async def test_a_signed_token_has_the_roles_of_its_claim(http: Http, provider: Provider, bench: Bench) -> None:
    token = provider.token()
    assert await status(http, token) == 200
    job = await bench.push()
    assert await status(http, token, "DELETE", f"{BASE}/jobs/{job.id}") == 403
    assert await status(http, provider.token(ojster_roles="owner"), "DELETE", f"{BASE}/jobs/{job.id}") == 200
    (done, denied) = await bench.service.audit.select(AuditQuery(object=job.id))
    assert b'"principal":"ada"' in done.body
    assert (b'"refusal"' in done.body, b'"access.denied"' in denied.body) == (False, True)


async def test_groups_stand_for_roles_in_workspaces(http: Http, provider: Provider) -> None:
    staff = provider.token(ojster_roles=["unknown", "staff"])
    assert await status(http, staff, **{"X-OJS-Tenant": "acme"}) == 200
    assert await status(http, staff, **{"X-OJS-Tenant": "other"}) == 404
    assert await status(http, provider.token(ojster_roles=["admins"]), path=f"{BASE}/admin/tokens") == 200
    own = provider.token(ojster_roles=["viewer@acme:web"])
    assert await status(http, own, **{"X-OJS-Tenant": "acme:web"}) == 200
    assert await status(http, own, **{"X-OJS-Tenant": "acme"}) == 404


async def test_own_tokens_are_still_accepted(http: Http, bench: Bench) -> None:
    _, shown = await bench.service.tokens.create("ci", [Grant(Role.VIEWER)])
    assert await status(http, shown) == 200


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ({"aud": "another"}, 401),
        ({"aud": None}, 401),
        ({"iss": "https://evil.example.com"}, 401),
        ({"sub": None}, 401),
        ({"exp": None}, 401),
        ({"exp": 1_000_000_000}, 401),
        ({"exp": 10**400}, 200),
        ({"nbf": 4_000_000_000}, 401),
        ({"kid": "unknown"}, 401),
        ({"ojster_roles": None}, 403),
        ({"ojster_roles": []}, 403),
        ({"ojster_roles": ["emperor"]}, 403),
        ({"ojster_roles": ["owner@../x"]}, 403),
        ({"ojster_roles": {"owner": True}}, 403),
        ({"ojster_roles": [["owner"], 7, None]}, 403),
    ],
)
async def test_what_the_provider_did_not_say_opens_nothing(
    http: Http, provider: Provider, claims: dict[str, Any], code: int
) -> None:
    assert await status(http, provider.token(**claims)) == code


async def test_signatures_of_others_and_weak_ones_are_refused(http: Http, provider: Provider) -> None:
    assert await status(http, provider.token()) == 200
    stranger = private_key("a stranger's")
    assert await status(http, provider.token(key=stranger)) == 401
    pem = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    public = provider.keys["one"].public_key().public_bytes(*pem)
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT","kid":"one"}').rstrip(b"=")
    body = provider.token().split(".")[1].encode()
    mac = base64.urlsafe_b64encode(hmac.digest(public, head + b"." + body, "sha256")).rstrip(b"=")
    assert await status(http, b".".join([head, body, mac]).decode()) == 401
    assert await status(http, provider.token(kid="shared", key=b"secret" * 8, algorithm="HS256")) == 401
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=") + b"." + body + b"."
    assert await status(http, unsigned.decode()) == 401
    for rubbish in ("x", "a.b.c", "..", "eyJhbGciOiJSUzI1NiJ9.e30."):
        assert await status(http, rubbish) == 401


async def test_an_elliptic_key_without_an_id_is_found_if_it_is_the_only_one(http: Http, provider: Provider) -> None:
    provider.keys = {"e": ec.generate_private_key(ec.SECP256R1())}
    assert await status(http, provider.token(kid=None, algorithm="ES256")) == 200


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
async def test_a_key_that_names_no_algorithm_is_for_all_of_its_kind(
    http: Http, provider: Provider, algorithm: str
) -> None:
    provider.names_algorithms = False
    assert await status(http, provider.token(algorithm=algorithm)) == 200
    provider.names_algorithms = True
    provider.add("two")  # its algorithm is RS256
    assert await status(http, provider.token(kid="two", algorithm=algorithm)) == 401


async def test_keys_that_nobody_can_use_do_no_harm_to_others(http: Http, provider: Provider) -> None:
    key = jwt.algorithms.RSAAlgorithm.to_jwk(private_key("one").public_key(), as_dict=True) | {"kid": "strange"}
    whole: tuple[dict[str, Any], ...] = ({"alg": "none"}, {"alg": ["RS256"]}, {"alg": "RSA-OAEP"}, {"alg": 7})
    wrong = ({"kid": ["one"]}, {"kid": 1}, {"use": ["sig"]}, {"kty": ["RSA"]}, {"kty": "EC"}, {"n": "!"}, {"e": "AA"})
    bare = {"kty": "RSA", "kid": "bare"}
    provider.more_keys = [*(key | member for member in (*whole, *wrong)), None, "key", {}, bare]
    assert await status(http, provider.token()) == 200
    for kid in ("strange", "bare"):
        assert await status(http, provider.token(kid=kid, key=private_key("one"))) == 401


async def test_a_new_key_of_the_provider_is_read_when_it_is_used_and_a_flood_reads_it_once(
    http: Http, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await status(http, provider.token()) == 200
    provider.add("two")
    del provider.keys["one"]
    assert await status(http, provider.token(kid="two")) == 401  # the keys were read a moment ago
    calls = provider.calls
    monkeypatch.setattr(oidc, "REFRESH_SECONDS", 0.0)
    assert await status(http, provider.token(kid="two")) == 200
    assert provider.calls == calls + 1
    monkeypatch.setattr(oidc, "REFRESH_SECONDS", 30.0)
    stranger = private_key("a stranger's")
    for number in range(20):
        assert await status(http, provider.token(kid=f"made-up-{number}", key=stranger)) == 401
    assert provider.calls == calls + 1


async def test_a_withdrawn_key_counts_no_longer_when_the_token_is_checked_again(
    http: Http, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "MAX_TRUST_SECONDS", 0.0)
    monkeypatch.setattr(oidc, "REFRESH_SECONDS", 0.0)
    old = provider.token()
    assert await status(http, old) == 200
    provider.add("two")
    del provider.keys["one"]
    assert await status(http, old) == 401, "although nobody has come with the new key"
    assert await status(http, provider.token(kid="two")) == 200


async def test_while_the_provider_is_away_known_keys_stay_and_unknown_ones_are_no_ones_fault(
    http: Http, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "RETRY_SECONDS", 0.0)
    provider.broken = True
    assert await status(http, provider.token()) == 503
    provider.broken = False
    assert await status(http, provider.token()) == 200
    provider.broken = True
    monkeypatch.setattr(oidc, "REFRESH_SECONDS", 0.0)
    assert await status(http, provider.token(sub="2")) == 200
    monkeypatch.setattr(oidc, "MAX_TRUST_SECONDS", 0.0)
    assert await status(http, provider.token(sub="2")) == 200
    assert await status(http, provider.token(kid="unknown")) == 401


async def test_callers_at_the_same_time_wait_once_for_a_provider_that_does_not_answer(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, calls = [0.0], []

    async def wait_in_vain(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
        calls.append(url)
        await asyncio.sleep(0)
        now[0] += oidc.PROVIDER_TIMEOUT_SECONDS
        raise TimeoutError

    monkeypatch.setattr(oidc, "get_json", wait_in_vain)
    monkeypatch.setattr(oidc, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    verifier = OidcVerifier(OidcSettings(provider.url, "ojster"))
    refused = await asyncio.gather(*(verifier.identify(provider.token()) for _ in range(5)), return_exceptions=True)
    assert [type(refusal) for refusal in refused] == [BackendUnavailable] * 5
    assert len(calls) == 1
    now[0] += oidc.RETRY_SECONDS
    with pytest.raises(BackendUnavailable):
        await verifier.discover()
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("fault", "value"),
    [
        ("issuer", "https://evil.example.com"),
        ("padding", "x" * 300_000),
        ("keys_at", "http://192.0.2.1/keys"),
        ("keys_at", "http://127.0.0.1:99999/keys"),
        ("keys_at", "/moved"),
    ],
)
async def test_a_provider_that_is_another_or_says_what_cannot_be_is_not_believed(
    http: Http, provider: Provider, fault: str, value: str
) -> None:
    setattr(provider, fault, value)
    assert await status(http, provider.token()) == 503


async def test_a_checked_token_is_not_checked_again_at_once(
    http: Http, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = provider.token()
    assert await status(http, token) == 200
    monkeypatch.setattr(OidcVerifier, "claims", None)
    assert await status(http, token) == 200


async def test_a_name_with_control_characters_is_shown_without_them(
    http: Http, provider: Provider, bench: Bench
) -> None:
    job = await bench.push()
    token = provider.token(preferred_username="eve\x00\n\x1b[2J", ojster_roles="owner")
    assert await status(http, token, "DELETE", f"{BASE}/jobs/{job.id}") == 200
    (entry,) = await bench.service.audit.select(AuditQuery(object=job.id))
    assert '"principal":"eve\ufffd\ufffd\ufffd[2J"' in entry.body.decode()


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("realm_access.roles", {"realm_access": {"roles": ["worker@acme"]}}),
        ("https://jobs.example.com/roles", {"https://jobs.example.com/roles": ["worker@acme"]}),
        ("a.b", {"a.b": ["worker@acme"], "a": {"b": ["owner"]}}),
    ],
)
async def test_a_nested_claim_is_found_and_one_with_dots_in_its_name(
    provider: Provider, name: str, claims: dict[str, Any]
) -> None:
    verifier = OidcVerifier(OidcSettings(provider.url, "ojster", name))
    token = await verifier.identify(provider.token(**claims))
    assert token.grants == (Grant(Role.WORKER, "acme"),)
    assert verifier.with_roles({"sub": "1", next(iter(claims)): None}, claims | {"sub": "1"}) == claims | {"sub": "1"}


@pytest.mark.parametrize("issuer", ["http://login.example.com", "login.example.com", "", "file:///etc/passwd"])
def test_an_issuer_that_anyone_on_the_way_can_play_is_refused(issuer: str) -> None:
    with pytest.raises(InvalidRequest, match="no issuer"):
        OidcSettings(issuer, "ojster")


def test_an_audience_is_needed() -> None:
    with pytest.raises(InvalidRequest, match="audience"):
        OidcSettings("https://login.example.com", "")


@pytest.mark.parametrize(
    ("text", "group", "grant"),
    [
        ("admins=owner", "admins", Grant(Role.OWNER)),
        ("cn=ops,dc=x=viewer@acme:web", "cn=ops,dc=x", Grant(Role.VIEWER, "acme:web")),
    ],
)
def test_a_group_names_a_role_and_perhaps_a_workspace(text: str, group: str, grant: Grant) -> None:
    assert read_group(text) == (group, grant)


@pytest.mark.parametrize("text", ["admins", "=owner", "admins=", "admins=king", "admins=owner@a/b"])
def test_a_malformed_group_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read_group(text)
