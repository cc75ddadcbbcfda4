"""Calls about tokens, made to a server."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from ojster.client.connection import RemoteCapability
from ojster.core.access import Grant, Token
from ojster.core.durations import format_duration
from ojster.core.timestamps import format_timestamp
from ojster.tenancy.wire import (
    RevokedTokenAnswer,
    TokenAnswer,
    TokenBody,
    TokenRotationBody,
    TokensAnswer,
    read_token,
    show_grants,
)


class RemoteTokens(RemoteCapability):
    """Calls about tokens."""

    async def create(
        self, name: str, grants: Sequence[Grant], queues: Sequence[str] = (), expires_at: int | None = None
    ) -> tuple[Token, str]:
        """Create a token; return it with its secret, which cannot be retrieved later."""
        body = TokenBody(
            name,
            show_grants(grants),
            list(queues),
            None if expires_at is None else format_timestamp(expires_at),
        )
        return _with_secret(await self._connection.ask(TokenAnswer, "POST", "/admin/tokens", body))

    async def rotate(self, token_id: str, grace: int) -> tuple[Token, str]:
        """Give a token a new secret; the old secret stays valid for ``grace`` microseconds."""
        path = f"/admin/tokens/{quote(token_id, safe='')}/rotate"
        body = TokenRotationBody(format_duration(grace))
        return _with_secret(await self._connection.ask(TokenAnswer, "POST", path, body))

    async def revoke(self, token_id: str) -> Token:
        """Revoke a token."""
        path = f"/admin/tokens/{quote(token_id, safe='')}"
        return read_token((await self._connection.ask(RevokedTokenAnswer, "DELETE", path)).token)

    async def all(self) -> list[Token]:
        """Return all tokens."""
        answer = await self._connection.ask(TokensAnswer, "GET", "/admin/tokens")
        return [read_token(shown) for shown in answer.tokens]


def _with_secret(answer: TokenAnswer) -> tuple[Token, str]:
    return read_token(answer.token), answer.token.secret or ""
