"""Calls about tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ojster.core.access import Grant, Token, covers, hash_secret, join_token, new_id, new_secret
from ojster.core.durations import SECOND
from ojster.core.errors import Forbidden, InvalidRequest
from ojster.jobs.scope import CapabilityService
from ojster.tenancy import tokens
from ojster.tenancy.calls import DEFAULT_GRACE, TokenCalls


class TokenService(CapabilityService, TokenCalls):
    """Calls about tokens."""

    async def create(
        self, name: str, grants: Sequence[Grant], queues: Sequence[str] = (), expires_at: int | None = None
    ) -> tuple[Token, str]:
        """Create a token; return it with its text, which is shown only this once.

        Parameters
        ----------
        queues:
            Queues that the token is limited to, which may end in ``*``; empty: all queues.
        expires_at:
            Expiry of the token, in microseconds since the epoch; ``None``: no expiry.

        Raises
        ------
        InvalidRequest
            The token has no role, or its expiry has passed.

        Spec: ojs-security 12.3
        """
        self.scope.require_all_tenants("Creating a token")
        self._check_queues(queues)
        if not grants:
            raise InvalidRequest("'grants' is empty. Give the token at least one role.", field="grants")
        if expires_at is not None and expires_at <= self.database.clock():
            raise InvalidRequest("'expires_at' is not in the future. Choose a later time.", field="expires_at")
        id, secret = new_id(), new_secret()
        hashed = await asyncio.to_thread(hash_secret, id, secret)
        new = Token(id, name, hashed, tuple(grants), 0, tuple(queues), expires_at)
        return await self.database.run(tokens.create_tokens, new), join_token(id, secret)

    async def begin_session(self, caller: Token, seconds: float) -> tuple[Token, str]:
        """Store a token for the browser of a caller whom an identity provider knows; return it with its text.

        Parameters
        ----------
        caller:
            Who it is, and what it may do.
        seconds:
            Time after which the session ends.
        """
        id, secret = new_id(), new_secret()
        hashed = await asyncio.to_thread(hash_secret, id, secret)
        expires_at = self.database.clock() + int(seconds * SECOND)
        new = Token(id, caller.name, hashed, caller.grants, 0, expires_at=expires_at, session_of=caller.id)
        return await self.database.run(tokens.begin_sessions, new), join_token(id, secret)

    def _check_queues(self, queues: Sequence[str]) -> None:
        """Raise ``Forbidden`` if the caller is limited to some queues, and a token would not be limited to them."""
        own = () if self.scope.access is None else self.scope.access.queues
        if own and not (queues and all(any(covers(mine, queue) for mine in own) for queue in queues)):
            raise Forbidden(
                f"The token {self.scope.who!r} is limited to the queues {', '.join(own)}; it can only make and revoke "
                "tokens that are, too."
            )

    async def _check_token(self, token_id: str) -> None:
        """Raise ``Forbidden`` if a token exists that the caller could not make, because of its queues."""
        for known in await self.all():
            if known.id == token_id:
                self._check_queues(known.queues)

    async def rotate(self, token_id: str, grace: int = DEFAULT_GRACE) -> tuple[Token, str]:
        """Give a token a new secret; the present one stays valid for ``grace`` microseconds.

        Raises
        ------
        NotFound
            The token does not exist.

        Spec: ojs-security 6.4
        """
        self.scope.require_all_tenants("Rotating a token")
        await self._check_token(token_id)
        secret = new_secret()
        hashed = await asyncio.to_thread(hash_secret, token_id, secret)
        token = await self.scope.do(tokens.rotate_tokens, tokens.Rotation(token_id, hashed, grace))
        return token, join_token(token_id, secret)

    async def revoke(self, token_id: str) -> Token:
        """Revoke a token from now on.

        Raises
        ------
        NotFound
            The token does not exist.
        """
        self.scope.require_all_tenants("Revoking a token")
        await self._check_token(token_id)
        return await self.scope.do(tokens.revoke_tokens, token_id)

    async def all(self) -> list[Token]:
        """Return all tokens, the oldest first."""
        self.scope.require_all_tenants("Listing tokens")
        return await self.database.read(tokens.list_tokens, None)
