"""Callers with a token of an OpenID Connect provider: JSON Web Tokens that the provider has signed.

The keys come from the provider's discovery document. They are read again when a token names an unknown key, or when
they are ``MAX_TRUST_SECONDS`` old, so that the provider may add and withdraw keys at any time. They are kept if the
provider cannot be reached.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx
import msgspec

from ojster.core.access import EVERYWHERE, Grant, Role, Token, read_grant
from ojster.core.errors import BackendUnavailable, Forbidden, InvalidRequest, OjsterError, TokenExpired, Unauthenticated
from ojster.core.printable import printable

if TYPE_CHECKING:
    import jwt

log = logging.getLogger(__name__)

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Accepted signatures: only those that a public key checks."""

DEFAULT_ROLES_CLAIM: Final = "ojster_roles"
"""Name of the claim with the roles of a caller."""

LEEWAY_SECONDS: Final = 30.0
"""Difference of clocks that is tolerated, in seconds."""

MAX_TRUST_SECONDS: Final = 300.0
"""Age at which keys are read again, and the tokens that they have signed are checked again, in seconds: a withdrawn key
counts no longer."""

MAX_CACHED_TOKENS: Final = 10_000
"""Maximum number of checked tokens that a process remembers."""

MAX_NAME_CHARS: Final = 255
"""Maximum length of the name of a caller, in characters; longer ones are cut."""

REFRESH_SECONDS: Final = 30.0
"""Minimum time between two reads of the provider's keys, in seconds."""

RETRY_SECONDS: Final = 2.0
"""Minimum time between two attempts to read keys while none is known, in seconds."""

MAX_ANSWER_BYTES: Final = 262_144
"""Maximum size of an answer of the provider, in bytes."""

PROVIDER_TIMEOUT_SECONDS: Final = 5.0
"""Maximum time that an answer of the provider takes, in seconds."""

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class OidcClient(msgspec.Struct, frozen=True):
    """What a server is at its OpenID Connect provider, so that browsers can log in there.

    Parameters
    ----------
    id:
        The name by which the provider knows the server.
    public_url:
        The address at which browsers reach the server: ``https://jobs.example.com``. The provider must allow
        ``redirect_url``.
    secret:
        Its password at the provider; empty: the provider asks for none.
    scope:
        What the provider is asked to tell, separated by spaces.

    Raises
    ------
    InvalidRequest
        The address has no ``https``, or the name is empty.
    """

    id: str
    public_url: str
    secret: str = ""
    scope: str = "openid profile email"

    def __post_init__(self) -> None:
        if not self.id:
            raise InvalidRequest("The client id is missing: the name by which the provider knows this server.")
        if not is_safe(self.public_url):
            raise InvalidRequest(
                f"{self.public_url[:100]!r} is no public address. Use one such as https://jobs.example.com."
            )

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach the server over encrypted connections."""
        return urlsplit(self.public_url).scheme == "https"

    @property
    def redirect_url(self) -> str:
        """The address to which the provider sends browsers back."""
        return f"{self.public_url.rstrip('/')}/ojs/v1/session/return"


class OidcSettings(msgspec.Struct, frozen=True):
    """What a server accepts from an OpenID Connect provider.

    Parameters
    ----------
    issuer:
        The address of the provider, as in the claim ``iss``: ``https://login.example.com``.
    audience:
        What the claim ``aud`` of tokens for this server contains.
    roles_claim:
        The claim with the roles, with dots between the names of nested ones: ``realm_access.roles``. A claim of exactly
        this name comes first: ``https://jobs.example.com/roles``.
    groups:
        The roles of those who have a certain value in that claim, such as the name of a group.
    client:
        What the server is at the provider; ``None``: browsers cannot log in there.

    Raises
    ------
    InvalidRequest
        The issuer is no address with ``https``, or the audience is empty.
    """

    issuer: str
    audience: str
    roles_claim: str = DEFAULT_ROLES_CLAIM
    groups: Mapping[str, tuple[Grant, ...]] = {}
    client: OidcClient | None = None

    def __post_init__(self) -> None:
        if not is_safe(self.issuer):
            raise InvalidRequest(
                f"{self.issuer[:100]!r} is no issuer. Use an address such as https://login.example.com."
            )
        if not self.audience:
            raise InvalidRequest("The audience is missing: the value of 'aud' in tokens for this server.")


def is_safe(url: str) -> bool:
    """Return whether nobody on the way can change what comes from an address."""
    try:
        parts = urlsplit(url)
        has_place = bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as "http://[" and "http://a:65536"
        return False
    return has_place and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK))


def read_group(text: str) -> tuple[str, Grant]:
    """Return the name of a group and its role, from ``GROUP=ROLE`` or ``GROUP=ROLE@WORKSPACE``.

    Raises
    ------
    InvalidRequest
        It has another form, or the role or the workspace does not exist.
    """
    group, sign, grant = text.rpartition("=")
    if not sign or not group:
        raise InvalidRequest(f"{text[:80]!r} must be GROUP=ROLE or GROUP=ROLE@WORKSPACE.")
    return group, _grant_of(grant)


def _grant_of(text: str) -> Grant:
    role, _, tenant = text.partition("@")
    if role not in set(Role):
        raise InvalidRequest(f"{role[:40]!r} is no role. Use one of {', '.join(Role)}.")
    return read_grant(role, tenant or EVERYWHERE)


class OidcVerifier:
    """Checks the tokens of a provider.

    Parameters
    ----------
    settings:
        The provider, and what it may say.

    Raises
    ------
    InvalidRequest
        The library for JSON Web Tokens is not installed.
    """

    def __init__(self, settings: OidcSettings) -> None:
        try:
            import jwt
        except ImportError:
            raise InvalidRequest("OpenID Connect needs a library: pip install 'ojster[oidc]'") from None
        self._jwt = jwt
        self._settings = settings
        self._keys: dict[tuple[str | None, str], jwt.PyJWK] = {}
        """The provider's keys, by id and algorithm."""
        self._read_at = self._refreshed_at = float("-inf")
        """When the keys were read, and when that was last tried."""
        self._refreshing = asyncio.Lock()
        self._known: dict[bytes, tuple[Token, float]] = {}
        """Checked tokens, by the SHA-256 of their text, and when each is checked again."""
        self.document: dict[str, Any] = {}
        """What the provider says of itself, as last read."""

    async def identify(self, text: str) -> Token:
        """Return what a token allows, as a token of this server.

        Raises
        ------
        Unauthenticated
            The provider has not signed it, or not for this server.
        TokenExpired
            It has expired.
        Forbidden
            It has no role.
        BackendUnavailable
            The provider's keys are not known, and it cannot be reached.
        """
        quick = hashlib.sha256(text.encode()).digest()
        known = self._known.get(quick)
        if known is not None and time.time() < known[1]:
            return known[0]
        claims = await self.claims(text, self._settings.audience)
        token = self.token_of(claims)
        if len(self._known) >= MAX_CACHED_TOKENS:
            self._known.clear()
        self._known[quick] = (token, min(int(claims["exp"]), time.time() + self._fresh_seconds))
        return token

    async def claims(self, text: str, audience: str) -> dict[str, Any]:
        """Return what the provider says in a token for ``audience``. Raises as ``identify`` does."""
        try:
            header = self._jwt.get_unverified_header(text)
            if header.get("alg") not in ALGORITHMS:
                raise _refused("its signature is of a kind that is not accepted")
            key = await self._key(header.get("kid"), header["alg"])
            claims: dict[str, Any] = self._jwt.decode(
                text,
                key,
                algorithms=list(ALGORITHMS),
                audience=audience,
                issuer=self._settings.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            return claims
        except self._jwt.ExpiredSignatureError:
            raise TokenExpired("The token has expired. Ask the provider for a new one.") from None
        except self._jwt.PyJWTError as error:
            raise _refused(str(error)) from None

    async def _key(self, id: str | None, algorithm: str) -> jwt.PyJWK:
        key = self._find(id, algorithm)
        if key is None or (self._fresh_seconds <= 0 and not self._refreshing.locked()):
            await self._refresh_unless(lambda: self._fresh_seconds > 0 and self._find(id, algorithm) is not None)
            key = self._find(id, algorithm)
        if not self._keys:
            raise BackendUnavailable("The identity provider cannot be reached, so that nobody can check the token.")
        if key is None:
            raise _refused("the provider has no such key")
        return key

    @property
    def _fresh_seconds(self) -> float:
        """Time until the keys have to be read again; at most 0: they are too old."""
        return self._read_at + MAX_TRUST_SECONDS - time.monotonic()

    def _find(self, id: str | None, algorithm: str) -> jwt.PyJWK | None:
        if id is None:
            fitting = [key for (_, known), key in self._keys.items() if known == algorithm]
            if len(fitting) == 1:
                return fitting[0]
        return self._keys.get((id, algorithm))

    async def discover(self) -> Mapping[str, Any]:
        """Return what the provider says of itself.

        Raises
        ------
        BackendUnavailable
            It cannot be reached, and never was.
        """
        if not self.document:
            await self._refresh_unless(lambda: bool(self.document))
        if not self.document:
            raise BackendUnavailable("The identity provider cannot be reached. Try again in some seconds.")
        return self.document

    async def _refresh_unless(self, is_known: Callable[[], bool]) -> None:
        async with self._refreshing:
            if not is_known() and time.monotonic() >= self._refreshed_at + REFRESH_SECONDS:
                await self._refresh()

    async def _refresh(self) -> None:
        """Read the provider's keys; if that fails, those that are known stay."""
        self._refreshed_at = time.monotonic()
        issuer = self._settings.issuer
        try:
            async with asyncio.timeout(PROVIDER_TIMEOUT_SECONDS), httpx.AsyncClient() as client:
                document = await get_json(client, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
                if document.get("issuer") != issuer:
                    raise ValueError(f"it calls itself {document.get('issuer')!r:.100}")
                place = str(document.get("jwks_uri", ""))
                if not is_safe(place):
                    raise ValueError(f"its keys are at {place!r:.100}")
                keys = (await get_json(client, place)).get("keys", [])
            self.document = document
            self._keys = self._usable(keys)
            self._read_at = time.monotonic()
        except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError, TimeoutError, ValueError, TypeError) as error:
            log.warning("cannot read the keys of %s: %s", issuer, str(error) or type(error).__name__)
            if not self._keys:  # those who waited meanwhile do not try again one after the other
                self._refreshed_at = time.monotonic() - REFRESH_SECONDS + RETRY_SECONDS

    def _usable(self, keys: Any) -> dict[tuple[str | None, str], jwt.PyJWK]:
        """Return keys by id and algorithm; one that names no algorithm is for all of its kind.

        Spec: RFC 7517, 4.4
        """
        usable = {}
        for key in keys if isinstance(keys, list) else ():
            if not isinstance(key, dict) or (key.get("use") or "sig") != "sig":
                continue
            for algorithm in ALGORITHMS:
                if (key.get("alg") or algorithm) == algorithm and isinstance(key.get("kid"), str | None):
                    try:
                        usable[key.get("kid"), algorithm] = self._jwt.PyJWK.from_dict(key, algorithm)
                    except (self._jwt.PyJWTError, ValueError, TypeError) as error:  # PyJWT 2.10 lets through the latter
                        log.debug("a key of the provider is of no use: %s", error)
        return usable

    def has_roles(self, claims: dict[str, Any]) -> bool:
        """Return whether the provider says anything about the roles of a caller."""
        return self._roles_in(claims) is not None

    def with_roles(self, claims: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
        """Return the claims of a token with those of the endpoint about users, and with the roles that this tells."""
        outermost = self._way_to_roles(more)[0]
        return more | {name: value for name, value in claims.items() if name != outermost or name not in more}

    def _roles_in(self, claims: dict[str, Any]) -> Any:
        value: Any = claims
        for name in self._way_to_roles(claims):
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def _way_to_roles(self, claims: dict[str, Any]) -> Sequence[str]:
        claim = self._settings.roles_claim
        return (claim,) if claim in claims else claim.split(".")

    def token_of(self, claims: dict[str, Any]) -> Token:
        """Return what a caller with these claims may do, as a token of this server.

        Raises
        ------
        Forbidden
            It has no role.
        """
        value = self._roles_in(claims)
        names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        grants = [grant for name in names if isinstance(name, str) for grant in self._grants(name)]
        who = next((str(claims[name]) for name in _NAMES if claims.get(name)), str(claims["sub"]))
        who = printable(who[:MAX_NAME_CHARS])
        if not grants:
            raise Forbidden(
                f"The token of {who!r:.100} has no role: its claim {self._settings.roles_claim!r} names none."
            )
        id = printable(f"oidc:{claims['sub']}"[:MAX_NAME_CHARS])
        return Token(id, who, b"", tuple(dict.fromkeys(grants)), 0)

    def _grants(self, name: str) -> tuple[Grant, ...]:
        if name in self._settings.groups:
            return self._settings.groups[name]
        if name.partition("@")[0] in set(Role):
            try:
                return (_grant_of(name),)
            except OjsterError:
                log.warning("a token has the role %r, whose workspace cannot exist", name[:100])
        return ()


_NAMES: Final = ("preferred_username", "email", "name")
"""Claims with the name of a caller, the best first."""


async def get_json(client: httpx.AsyncClient, url: str, headers: Mapping[str, str] = {}) -> dict[str, Any]:
    """Return a JSON object of the provider, of at most ``MAX_ANSWER_BYTES``."""
    return await read_json(client.stream("GET", url, headers={"Accept-Encoding": "identity", **headers}), url)


async def read_json(call: AbstractAsyncContextManager[httpx.Response], url: str) -> dict[str, Any]:
    """Return the JSON object that a call is answered with, of at most ``MAX_ANSWER_BYTES``."""
    async with call as answer:
        answer.raise_for_status()
        body = b""
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > MAX_ANSWER_BYTES:
                raise ValueError(f"the answer of {url} is too long")
    return msgspec.json.decode(body, type=dict[str, Any])


def _refused(why: str) -> Unauthenticated:
    return Unauthenticated(f"The token is not accepted: {why}.")
