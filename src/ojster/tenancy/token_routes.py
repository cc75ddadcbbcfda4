"""Who is let in, and for what? (ojs-security.md sections 6, 7 and 12.3)"""

from __future__ import annotations

from typing import Final

from ojster.core.durations import DAY, parse_duration
from ojster.core.timestamps import parse_moment
from ojster.server import wire
from ojster.server.request import Answer, Exchange, encode
from ojster.server.route import BASE, Route
from ojster.tenancy.access import read_grant, shown_token

DEFAULT_GRACE: Final = DAY
"""For how long the former secret of a token is good yet (ojs-security.md section 12.5)."""


async def create_token(exchange: Exchange) -> Answer:
    """Make a token. What callers are to send is in this answer, and never shown again."""
    body = await exchange.read(wire.TOKEN)
    engine = exchange.engine
    expires_at = None if body.expires_at is None else parse_moment(body.expires_at, engine.database.clock())
    grants = [read_grant(one.role, one.tenant) for one in body.grants]
    token, secret = await engine.create_token(body.name, grants, body.queues, expires_at)
    return Answer(encode({"token": shown_token(token) | {"secret": secret}}), 201)


async def list_tokens(exchange: Exchange) -> Answer:
    """List the tokens, the oldest first: for what they are, and when each was used last, to the hour."""
    return Answer(encode({"tokens": [shown_token(token) for token in await exchange.engine.tokens()]}))


async def rotate_token(exchange: Exchange) -> Answer:
    """Give a token another secret, which is in this answer only; the present one is good for ``grace`` yet."""
    raw = await exchange.optional_body()
    body = exchange.decode(raw, wire.TOKEN_ROTATION) if raw else wire.TokenRotationBody()
    grace = DEFAULT_GRACE if body.grace is None else parse_duration(body.grace)
    token, secret = await exchange.engine.rotate_token(exchange.path["id"], grace)
    return Answer(encode({"token": shown_token(token) | {"secret": secret}}))


async def revoke_token(exchange: Exchange) -> Answer:
    """Let a token be worth nothing from now on."""
    return Answer(
        encode({"token": shown_token(await exchange.engine.revoke_token(exchange.path["id"])), "revoked": True})
    )


_TOKENS: Final = f"{BASE}/admin/tokens"

ROUTES: Final = (
    Route("POST", _TOKENS, create_token, "Operators", wire.TokenBody, status=201),
    Route("GET", _TOKENS, list_tokens, "Operators"),
    Route("POST", f"{_TOKENS}/{{id}}/rotate", rotate_token, "Operators", wire.TokenRotationBody, may_be_empty=True),
    Route("DELETE", f"{_TOKENS}/{{id}}", revoke_token, "Operators"),
)
