"""Authentication by a bearer token in the ``Authorization`` header.

Spec: ojs-security 6, 7
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ojster.core.access import PREFIX, Access, Operation, Token, split_token
from ojster.core.errors import BackendUnavailable, InvalidRequest, NotFound, OjsterError, TokenExpired, Unauthenticated
from ojster.core.tenant import check_tenant, shown_tenant
from ojster.core.timestamps import format_timestamp
from ojster.jobs.scope import Caller
from ojster.server.oidc import OidcVerifier
from ojster.server.proxies import address_group
from ojster.server.throttle import Throttle
from ojster.service import Service
from ojster.storage.transaction import Transaction
from ojster.tenancy.tenant import Tenant, tenants_by_id
from ojster.tenancy.tokens import MIN_TOKEN_USE_INTERVAL_US, record_token_uses, tokens_by_id

MAX_CACHED_TOKENS: Final = 10_000
"""Maximum number of verified tokens, and of refused ones, that a process caches."""

RECHECK_SECONDS: Final = 0.5
"""Interval at which the token of a stream, or of a request that waits, is checked again."""

MAX_CHECKS: Final = 20
"""Number of slow checks that a token id may ask for in a row; all unknown ids together count as one."""

CHECKS_PER_SECOND: Final = 2.0
"""Number of slow checks that a token id may ask for each second, in the long run."""

MAX_CHECKS_OF_ADDRESS: Final = 200
"""Number of unverified tokens that callers at one address may send in a row."""

CHECKS_PER_SECOND_OF_ADDRESS: Final = 10.0
"""Number of unverified tokens that callers at one address may send each second, in the long run."""

_BEARER: Final = "bearer "


class Credentials(NamedTuple):
    """Who calls, by its own word.

    Parameters
    ----------
    authorization:
        The ``Authorization`` header.
    tenant:
        The workspace that the caller names. ``None``: all workspaces for a token with a global role, otherwise the
        token's only workspace.
    address:
        Returns the address of the caller; empty if it is unknown.
    """

    authorization: str | None
    tenant: str | None
    address: Callable[[], str] = str


class _Known(msgspec.Struct, frozen=True):
    """The tokens and tenants of one configuration version."""

    version: int
    tokens: dict[str, Token]
    tenants: dict[str, Tenant]


class Watch:
    """A context for what may take long: it ends with the refusal of its caller, if there is one meanwhile.

    Parameters
    ----------
    until_refused:
        Waits until the caller is refused, and returns the refusal.
    """

    def __init__(self, until_refused: Callable[[], Coroutine[Any, Any, OjsterError]]) -> None:
        self._until_refused = until_refused
        self._refusal: OjsterError | None = None
        self._watching: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._request = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(RECHECK_SECONDS, self._begin)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
        if self._refusal is not None and isinstance(error, asyncio.CancelledError):
            if self._request is not None:
                self._request.uncancel()
            raise self._refusal from None

    def _begin(self) -> None:
        self._watching = asyncio.create_task(self._wait(), name="ojster-token-watch")

    async def _wait(self) -> None:
        self._refusal = await self._until_refused()
        if self._request is not None:
            self._request.cancel()


class Authenticator:
    """Authenticates callers by their token and limits them to the operations of its roles.

    Parameters
    ----------
    service:
        The service with the tokens.
    oidc:
        Checks the tokens of an OpenID Connect provider; ``None``: they are not accepted.
    """

    def __init__(self, service: Service, oidc: OidcVerifier | None = None) -> None:
        self._service = service
        self._oidc = oidc
        self._known: _Known | None = None
        self._verified: dict[bytes, tuple[str, bytes, int]] = {}
        """Verified tokens, by the SHA-256 of their text: id, slow hash, and end of validity (epoch microseconds)."""
        self._refused: set[bytes] = set()
        """SHA-256 of texts that are no tokens, as long as the tokens are the same."""
        self._checks: dict[tuple[int, bytes], asyncio.Task[Token]] = {}
        """Checks that run, by the version of the tokens and the SHA-256 of the text: all who send it wait for one."""
        self._throttle = Throttle()
        self._use_recorded_at: dict[str, int] = {}

    async def admit(self, caller: Credentials) -> tuple[Service, Access]:
        """Return the service in the caller's tenant scope, and the caller's permissions.

        Raises
        ------
        Unauthenticated
            The token is missing, malformed, revoked or expired.
        NotFound
            The workspace is not public, and the token has no role in it.
        InvalidRequest
            The workspace name is malformed, or it is missing and the token is valid in several workspaces.
        TooManyTokens
            The address, or the token, has sent too many wrong secrets.
        """
        known = await self._look_up()
        token = await self._identify(caller, known)
        place = None if caller.tenant is None else check_tenant(caller.tenant)
        if place is None and not token.is_global:
            place = token.only_tenant
            if place is None:
                raise InvalidRequest("The token is valid in several workspaces. Name one in the header X-OJS-Tenant.")
        operations = _operations(token, place, known)
        if place is not None and not operations:
            raise NotFound(f"There is no workspace {shown_tenant(place)!r}.", resource_type="tenant")
        access = Access(token.name, operations, token.queues)
        return self._service.as_(Caller(place, access)), access

    async def identify(self, caller: Credentials) -> Token:
        """Return the token of a caller, whatever it may do.

        Raises
        ------
        Unauthenticated
            The token is missing, malformed, revoked or expired.
        TooManyTokens
            The address, or the token, has sent too many wrong secrets.
        """
        return await self._identify(caller, await self._look_up())

    async def operations_of(self, token: Token, place: str | None) -> frozenset[Operation]:
        """Return what a token may do in a workspace; ``None``: in all of them."""
        return _operations(token, place, await self._look_up())

    def watch(self, caller: Credentials) -> Watch:
        """Return a context that is cancelled when the caller is no longer admitted, and raises the refusal."""

        async def until_refused() -> OjsterError:
            while True:
                await asyncio.sleep(RECHECK_SECONDS)
                try:
                    await self.admit(caller)
                except BackendUnavailable:
                    continue  # nobody can tell
                except OjsterError as refusal:
                    return refusal

        return Watch(until_refused)

    async def _look_up(self) -> _Known:
        memory = self._service.database.memory
        known = self._known
        if known is None or known.version != memory.version:
            version = memory.version
            tokens, tenants = await self._service.database.read(_read, None)
            self._refused.clear()
            known = self._known = _Known(version, tokens, tenants)
        return known

    async def _identify(self, caller: Credentials, known: _Known) -> Token:
        authorization = caller.authorization
        if authorization is None or not authorization[: len(_BEARER)].lower() == _BEARER:
            raise Unauthenticated(
                "The request has no token. Send a token as 'Authorization: Bearer ojster_…'; "
                "create one with 'ojster tokens create'."
            )
        shown = authorization[len(_BEARER) :].strip()
        if self._oidc is not None and not shown.startswith(f"{PREFIX}_"):
            return await self._oidc.identify(shown)
        now = self._service.database.clock()
        quick = hashlib.sha256(shown.encode()).digest()
        token = None
        if (verified := self._verified.get(quick)) is not None:
            id, slow, until = verified
            token = known.tokens.get(id)
            if token is None or token.hash != slow or now >= until:
                token = None  # revoked, rotated or expired
        if token is None:
            if quick in self._refused:  # it costs nothing, and must not use up what others at the address may send
                raise _invalid()
            token = await asyncio.shield(self._check(caller, shown, quick, known, now))
        if now >= self._use_recorded_at.get(token.id, 0) + MIN_TOKEN_USE_INTERVAL_US:
            self._use_recorded_at[token.id] = now
            await self._service.database.run(record_token_uses, token.id)
        return token

    def _check(self, caller: Credentials, shown: str, quick: bytes, known: _Known, now: int) -> asyncio.Task[Token]:
        """Return the check of a token that is not known to be valid: the one that runs, or a new one."""
        key = (known.version, quick)
        if (check := self._checks.get(key)) is not None:
            return check
        address = address_group(caller.address())
        if address and not self._throttle.allows(
            f"from {address}", MAX_CHECKS_OF_ADDRESS, CHECKS_PER_SECOND_OF_ADDRESS
        ):
            raise TooManyTokens("Too many wrong tokens were sent from this address. Try again in some seconds.")

        def ended(task: asyncio.Task[Token]) -> None:
            del self._checks[key]
            if not task.cancelled():
                task.exception()  # if nobody waits any more, it is no error

        check = self._checks[key] = asyncio.create_task(self._look_at(shown, quick, known, now))
        check.add_done_callback(ended)
        return check

    async def _look_at(self, shown: str, quick: bytes, known: _Known, now: int) -> Token:
        """Check a token that is not known to be valid. The slow hash is computed only if nothing else refuses it."""
        self._verified.pop(quick, None)
        parts = split_token(shown)
        if parts is None:
            raise _invalid()
        id, secret = parts
        token = known.tokens.get(id)
        if token is not None and token.expires_at is not None and token.expires_at <= now:
            raise TokenExpired(
                f"The token {token.id} expired at {format_timestamp(token.expires_at)}. "
                "Create one with 'ojster tokens create'."
            )
        until = None
        if self._throttle.allows(_UNKNOWN if token is None else id, MAX_CHECKS, CHECKS_PER_SECOND):
            # An unknown id takes as long as a known one, so that the time does not tell which ids exist.
            checked = _NO_TOKEN if token is None else token
            until = await asyncio.to_thread(checked.valid_until, secret, now)
        elif token is not None:
            raise TooManyTokens(f"Too many wrong secrets were sent for the token {id}. Try again in some seconds.")
        if token is None or until is None:
            if len(self._refused) >= MAX_CACHED_TOKENS:
                self._refused.clear()
            self._refused.add(quick)
            raise _invalid()
        if len(self._verified) >= MAX_CACHED_TOKENS:
            self._verified.clear()
        self._verified[quick] = (token.id, token.hash, until)
        return token


_UNKNOWN: Final = ""
"""The key of all unknown ids in the throttle."""

_NO_TOKEN: Final = Token("", "", b"", (), 0)


class TooManyTokens(OjsterError):
    """Too many wrong secrets were sent for one token, or from one address."""

    code = "rate_limited"
    status = 429


def _operations(token: Token, place: str | None, known: _Known) -> frozenset[Operation]:
    """Return what a token may do in a workspace: everybody may read one that is public."""
    is_public = place is not None and place in known.tenants and known.tenants[place].public
    return token.operations(place) | ({Operation.INSPECT} if is_public else frozenset())


def _invalid() -> Unauthenticated:
    return Unauthenticated(
        "The token is invalid: malformed, revoked, rotated, or not issued here. Create one with 'ojster tokens create'."
    )


def _read(tx: Transaction, requests: Sequence[None]) -> list[tuple[dict[str, Token], dict[str, Tenant]]]:
    snapshot = dict(tokens_by_id(tx)), dict(tenants_by_id(tx))
    return [snapshot for _ in requests]
