"""Endpoints for access tokens.

Spec: ojs-security 6, 7, 12.3
"""

from __future__ import annotations

from typing import Final

from ojster.core.access import read_grant
from ojster.core.durations import DAY, parse_duration
from ojster.core.timestamps import parse_moment
from ojster.server.answer import Answer, encode
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route
from ojster.tenancy.wire import (
    TOKEN,
    TOKEN_ROTATION,
    RevokedTokenAnswer,
    TokenAnswer,
    TokenBody,
    TokenRotationBody,
    TokensAnswer,
    show_token,
)

DEFAULT_GRACE: Final = DAY
"""Default time that a token's previous secret stays valid after a rotation, in microseconds: one day.

Spec: ojs-security 12.5
"""


async def create_token(request: HttpRequest) -> Answer:
    """Create a token. Only this answer contains the secret that callers send."""
    body = await request.read(TOKEN)
    service = request.service
    expires_at = None if body.expires_at is None else parse_moment(body.expires_at, service.database.clock())
    grants = [read_grant(one.role, one.tenant) for one in body.grants]
    token, secret = await service.tokens.create(body.name, grants, body.queues, expires_at)
    return Answer(encode(TokenAnswer(show_token(token, secret))), 201)


async def list_tokens(request: HttpRequest) -> Answer:
    """List the tokens, oldest first, with their grants and the time of last use, accurate to the hour."""
    return Answer(encode(TokensAnswer([show_token(token) for token in await request.service.tokens.all()])))


async def rotate_token(request: HttpRequest) -> Answer:
    """Give a token a new secret, shown only in this answer. The old one stays valid for ``grace`` (default one day)."""
    raw = await request.optional_body()
    body = request.decode(raw, TOKEN_ROTATION) if raw else TokenRotationBody()
    grace = DEFAULT_GRACE if body.grace is None else parse_duration(body.grace)
    token, secret = await request.service.tokens.rotate(request.path["id"], grace)
    return Answer(encode(TokenAnswer(show_token(token, secret))))


async def revoke_token(request: HttpRequest) -> Answer:
    """Revoke a token."""
    token = await request.service.tokens.revoke(request.path["id"])
    return Answer(encode(RevokedTokenAnswer(show_token(token))))


_TOKENS: Final = f"{BASE}/admin/tokens"

ROUTES: Final = (
    Route("POST", _TOKENS, create_token, "Operators", TokenBody, TokenAnswer, status=201),
    Route("GET", _TOKENS, list_tokens, "Operators", answer=TokensAnswer),
    Route(
        "POST", f"{_TOKENS}/{{id}}/rotate", rotate_token, "Operators", TokenRotationBody, TokenAnswer, may_be_empty=True
    ),
    Route("DELETE", f"{_TOKENS}/{{id}}", revoke_token, "Operators", answer=RevokedTokenAnswer),
)
