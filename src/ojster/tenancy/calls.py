"""Calls about tokens, as a service, a server and its client have them.

Spec: ojs-security 6, 7, 12.3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ojster.core.access import Grant, Token
from ojster.core.calls import Call, Calls
from ojster.core.durations import DAY
from ojster.tenancy.wire import RevokedTokenAnswer, TokenAnswer, TokenBody, TokenRotationBody, TokensAnswer

DEFAULT_GRACE: Final = DAY
"""Default time that a token's previous secret stays valid after a rotation, in microseconds: one day.

Spec: ojs-security 12.5
"""

_TAG: Final = "Operators"
_ALL: Final = "/admin/tokens"


class TokenCalls(Calls):
    """Calls about tokens."""

    @Call("POST", _ALL, "create_token", _TAG, TokenAnswer, body=TokenBody, status=201)
    async def create(
        self, name: str, grants: Sequence[Grant], queues: Sequence[str] = (), expires_at: int | None = None
    ) -> tuple[Token, str]:
        """Create a token. Only this answer contains the secret that callers send."""

    @Call("GET", _ALL, "list_tokens", _TAG, TokensAnswer)
    async def all(self) -> list[Token]:
        """List the tokens, oldest first, with their grants and the time of last use, accurate to the hour."""

    @Call("POST", f"{_ALL}/{{id}}/rotate", "rotate_token", _TAG, TokenAnswer, body=TokenRotationBody, may_be_empty=True)
    async def rotate(self, token_id: str, grace: int = DEFAULT_GRACE) -> tuple[Token, str]:
        """Give a token a new secret, shown only in this answer. The old one stays valid for ``grace``
        (default one day).
        """

    @Call("DELETE", f"{_ALL}/{{id}}", "revoke_token", _TAG, RevokedTokenAnswer)
    async def revoke(self, token_id: str) -> Token:
        """Revoke a token."""
