"""Who is it that calls, and may they? Tokens in the header ``Authorization``. (ojs-security.md sections 6, 7 and 11)"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.errors import InvalidRequest, NotFound, OjsterError, TokenExpired, Unauthenticated
from ojster.core.tenant import check_tenant, shown_tenant
from ojster.core.timestamps import format_timestamp
from ojster.service import Engine
from ojster.storage.transaction import Transaction
from ojster.tenancy.access import Access, Operation, Token, split_token
from ojster.tenancy.tenant import Tenant, tenants_by_id
from ojster.tenancy.tokens import NOTED_EVERY, note_uses, tokens_by_id

MOST_REMEMBERED: Final = 10_000
"""How many tokens a process remembers as good."""

_BEARER: Final = "bearer "

audit_log = logging.getLogger("ojster.audit")


class _Known(msgspec.Struct, frozen=True):
    """The tokens and tenants of one version of what operators have set."""

    version: int
    tokens: dict[str, Token]
    tenants: dict[str, Tenant]


class Doorkeeper:
    """Lets in who has a token, and only for what its roles allow."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: _Known | None = None
        self._good: dict[bytes, tuple[str, bytes, int]] = {}
        """What hashes to these, quickly, was found to be good: of which token, with which slow hash, and until when."""
        self._noted: dict[str, int] = {}

    async def admit(self, authorization: str | None, tenant: str | None) -> tuple[Engine, Access]:
        """Return the engine as the caller sees it, and what he may do.

        Parameters
        ----------
        authorization:
            The header of this name.
        tenant:
            The workspace that the caller names; ``None``: the only one for which the token is, or all of them.

        Raises
        ------
        Unauthenticated
            There is no token, or it is worth nothing.
        NotFound
            The workspace is none that the caller may know of.
        InvalidRequest
            It is not said which of several workspaces is meant.
        """
        known = await self._look_up()
        token = await self._identify(authorization, known)
        place = None if tenant is None else check_tenant(tenant)
        if place is None and not token.is_global:
            place = token.only_tenant
            if place is None:
                raise InvalidRequest("The token is for several workspaces: name one with X-OJS-Tenant.")
        operations = token.operations(place)
        if place is not None:
            if not operations and place in known.tenants and known.tenants[place].public:
                operations = frozenset({Operation.INSPECT})
            if not operations:
                raise NotFound(f"There is no workspace {shown_tenant(place)!r}.", resource_type="tenant")
        engine = self._engine if place is None else self._engine.of(place)
        access = Access(token.name, operations, token.queues)
        return engine.by(access), access

    async def _look_up(self) -> _Known:
        memory = self._engine.database.memory
        known = self._known
        if known is None or known.version != memory.version:
            version = memory.version
            tokens, tenants = await self._engine.database.read(_read, None)
            known = self._known = _Known(version, tokens, tenants)
        return known

    async def _identify(self, authorization: str | None, known: _Known) -> Token:
        if authorization is None or not authorization[: len(_BEARER)].lower() == _BEARER:
            raise Unauthenticated("Send a token: 'Authorization: Bearer ojster_…'. 'ojster tokens create' makes one.")
        shown = authorization[len(_BEARER) :].strip()
        now = self._engine.database.clock()
        quick = hashlib.sha256(shown.encode()).digest()
        token = None
        if (found := self._good.get(quick)) is not None:
            id, slow, until = found
            token = known.tokens.get(id)
            if token is None or token.hash != slow or now >= until:
                token = None  # it was revoked or rotated, or has expired
        if token is None:
            token = await self._look_at(shown, quick, known, now)
        if token.expires_at is not None and token.expires_at <= now:
            raise TokenExpired(f"The token {token.id} has expired at {format_timestamp(token.expires_at)}.")
        if now >= self._noted.get(token.id, 0) + NOTED_EVERY:
            self._noted[token.id] = now
            await self._engine.database.run(note_uses, token.id)
        return token

    async def _look_at(self, shown: str, quick: bytes, known: _Known, now: int) -> Token:
        self._good.pop(quick, None)
        parts = split_token(shown)
        token = None if parts is None else known.tokens.get(parts[0])
        until = None
        if parts is not None and token is not None:
            until = await asyncio.to_thread(token.good_until, parts[1], now)
        if token is None or until is None:
            raise Unauthenticated("The token is worth nothing here: it is malformed, was revoked, or is another's.")
        if len(self._good) >= MOST_REMEMBERED:
            self._good.clear()
        self._good[quick] = (token.id, token.hash, until)
        return token


def _read(tx: Transaction, requests: Sequence[None]) -> list[tuple[dict[str, Token], dict[str, Tenant]]]:
    found = dict(tokens_by_id(tx)), dict(tenants_by_id(tx))
    return [found for _ in requests]


def audit(
    event_type: str,
    engine: Engine,
    *,
    address: str,
    request_id: str,
    refusal: OjsterError | None = None,
    **detail: str,
) -> None:
    """Write an entry of the audit log, which is structured (ojs-security.md section 11)."""
    entry = {
        "timestamp": format_timestamp(engine.database.clock()),
        "event_type": event_type,
        "principal": engine.access.who if engine.access is not None else "unknown",
        "source_ip": address,
        "correlation_id": request_id,
        "outcome": "success" if refusal is None else "failure",
        "detail": detail | ({} if refusal is None else {"refusal": refusal.code}),
    }
    audit_log.info("%s", msgspec.json.encode(entry).decode())
