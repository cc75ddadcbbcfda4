"""Calls about tokens, made to a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from ojster.client.connection import (
    RemoteCapability,
)
from ojster.core.access import Grant, Token, read_shown_token, shown_grants
from ojster.core.durations import format_duration
from ojster.core.timestamps import format_timestamp


class RemoteTokens(RemoteCapability):
    """Calls about tokens."""

    async def create(
        self, name: str, grants: Sequence[Grant], queues: Sequence[str] = (), expires_at: int | None = None
    ) -> tuple[Token, str]:
        """Create a token; return it with its secret, which cannot be retrieved later."""
        body: dict[str, Any] = {"name": name, "grants": shown_grants(grants), "queues": queues}
        if expires_at is not None:
            body["expires_at"] = format_timestamp(expires_at)
        return _token_with_secret((await self._connection.call("POST", "/admin/tokens", body))["token"])

    async def rotate(self, token_id: str, grace: int) -> tuple[Token, str]:
        """Give a token a new secret; the old secret stays valid for ``grace`` microseconds."""
        path = f"/admin/tokens/{quote(token_id, safe='')}/rotate"
        return _token_with_secret(
            (await self._connection.call("POST", path, {"grace": format_duration(grace)}))["token"]
        )

    async def revoke(self, token_id: str) -> Token:
        """Revoke a token."""
        answer = await self._connection.call("DELETE", f"/admin/tokens/{quote(token_id, safe='')}")
        return read_shown_token(msgspec.json.decode(answer["token"]))

    async def all(self) -> list[Token]:
        """Return all tokens."""
        answer = await self._connection.call("GET", "/admin/tokens")
        return [read_shown_token(shown) for shown in msgspec.json.decode(answer["tokens"])]


def _token_with_secret(raw: msgspec.Raw) -> tuple[Token, str]:
    shown = msgspec.json.decode(raw)
    return read_shown_token(shown), shown["secret"]
