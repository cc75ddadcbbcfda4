"""Logging in at an OpenID Connect provider: a browser goes there, and comes back with a code that stands for a caller.

It is the authorization code flow with a proof key (PKCE), a state and a nonce. What has to be remembered meanwhile is
in a cookie of the browser, so that any server of an installation can receive it again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

import httpx
import msgspec

from ojster.core.access import Token
from ojster.core.errors import BackendUnavailable, InvalidRequest, OjsterError, Unauthenticated
from ojster.core.printable import printable
from ojster.server.oidc import (
    PROVIDER_TIMEOUT_SECONDS,
    OidcClient,
    OidcSettings,
    OidcVerifier,
    get_json,
    is_safe,
    read_json,
)
from ojster.server.proxies import address_group
from ojster.server.throttle import Throttle

log = logging.getLogger(__name__)

SECRET_BYTES: Final = 32
"""Number of random bytes in a state, a nonce and a proof key."""

MAX_RETURNS: Final = 200
"""Number of browsers in a row that may come back with a code: the server asks the provider about each."""

RETURNS_PER_SECOND: Final = 20.0
"""Number of browsers that may come back each second, in the long run."""

MAX_RETURNS_OF_ADDRESS: Final = 60
"""Number of browsers at one address that may come back in a row."""

RETURNS_PER_SECOND_OF_ADDRESS: Final = 2.0
"""Number of browsers at one address that may come back each second, in the long run."""

MAX_DESTINATION_CHARS: Final = 1_000
"""Maximum length of the address of a page to go to after the login, in characters."""

_DESTINATION: Final = re.compile(r"(?!/)[!-~]*")
"""Addresses of pages, relative to the dashboard: without spaces, control characters and what is not ASCII."""


def checked_destination(text: str) -> str:
    """Return the address of a page, relative to the dashboard; the overview if it is none."""
    is_page = len(text) <= MAX_DESTINATION_CHARS and _DESTINATION.fullmatch(text) is not None and "\\" not in text
    return text if is_page and ".." not in text.partition("?")[0].split("/") else ""


class LoginAttempt(msgspec.Struct, frozen=True, array_like=True):
    """A login that has begun.

    Parameters
    ----------
    state:
        What the provider must send back with the browser.
    nonce:
        What the provider must write into the token.
    verifier:
        What shows the provider that the code is for this server.
    destination:
        The page to go to, relative to the dashboard.
    """

    state: str
    nonce: str
    verifier: str
    destination: str

    def pack(self) -> str:
        """Return it as the value of a cookie."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @staticmethod
    def unpack(text: str) -> LoginAttempt | None:
        """Return what is in a cookie; ``None``: nothing that was packed."""
        try:
            return _decode_attempt(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except (binascii.Error, ValueError):  # DecodeError is a ValueError
            return None


_decode_attempt: Final = msgspec.json.Decoder(LoginAttempt).decode


class OidcLogin:
    """Sends browsers to a provider, and learns who comes back.

    Parameters
    ----------
    settings:
        The provider; its ``client`` says what the server is there.
    verifier:
        Checks the provider's tokens.

    Raises
    ------
    InvalidRequest
        The settings have no client, or the library for OAuth is not installed.
    """

    def __init__(self, settings: OidcSettings, verifier: OidcVerifier) -> None:
        try:
            import authlib.oauth2  # noqa: F401  (it is used at logins alone)
        except ImportError:
            raise InvalidRequest("Logging in at a provider needs a library: pip install 'ojster[oidc]'") from None
        if settings.client is None:
            raise InvalidRequest("The settings of the provider lack a client, so that browsers cannot log in.")
        self.client: OidcClient = settings.client
        self._issuer = settings.issuer
        self._verifier = verifier
        self._throttle = Throttle()

    @property
    def host(self) -> str:
        """The host of the provider, as people know it."""
        return urlsplit(self._issuer).netloc

    async def begin(self, destination: str) -> tuple[str, LoginAttempt]:
        """Return the provider's address to which a browser has to go, and what has to be known when it is back.

        Raises
        ------
        BackendUnavailable
            The provider cannot be reached.
        """
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        document = await self._verifier.discover()
        attempt = LoginAttempt(_new_secret(), _new_secret(), _new_secret(), checked_destination(destination))
        url = prepare_grant_uri(
            _endpoint(document, "authorization_endpoint"),
            client_id=self.client.id,
            response_type="code",
            redirect_uri=self.client.redirect_url,
            scope=self.client.scope,
            state=attempt.state,
            nonce=attempt.nonce,
            code_challenge=create_s256_code_challenge(attempt.verifier),
            code_challenge_method="S256",
        )
        return str(url), attempt

    async def finish(self, query: bytes, attempt: LoginAttempt | None, address: str) -> Token:
        """Return who has logged in, as a token that is not stored.

        Parameters
        ----------
        query:
            What the provider has added to the address of this server.
        attempt:
            What the browser remembers; ``None``: nothing.
        address:
            The address of the browser; empty if unknown.

        Raises
        ------
        Unauthenticated
            The browser has begun no login, or another one, or the provider refuses.
        Forbidden
            The caller has no role.
        BackendUnavailable
            The provider does not answer as it should.
        TooManyLogins
            Too many browsers have come back, from this address or at all.
        """
        answer = dict(parse_qsl(query.decode("latin-1")))
        if attempt is None or not hmac.compare_digest(answer.get("state", "").encode(), attempt.state.encode()):
            raise Unauthenticated("This browser has begun no login, or another one since. Log in again.")
        if answer.get("iss", self._issuer) != self._issuer:
            raise Unauthenticated("The answer comes from another provider. Log in again.")
        if "error" in answer or "code" not in answer:
            why = printable((answer.get("error_description") or answer.get("error") or "no reason given")[:200])
            raise Unauthenticated(f"The provider has refused the login: {why}.")
        self._limit(address)
        try:
            return await self._caller(answer["code"], attempt)
        except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError, TimeoutError, ValueError) as error:
            log.warning("cannot finish a login at %s: %s", self._issuer, str(error) or type(error).__name__)
            raise BackendUnavailable("The identity provider does not answer as it should. Log in again.") from None

    def _limit(self, address: str) -> None:
        """Refuse a browser if the provider would be asked too often: whoever makes up a code costs a call to it."""
        group = address_group(address)
        allows = self._throttle.allows
        if (group and not allows(group, MAX_RETURNS_OF_ADDRESS, RETURNS_PER_SECOND_OF_ADDRESS)) or not allows(
            "", MAX_RETURNS, RETURNS_PER_SECOND
        ):
            raise TooManyLogins("Too many logins are tried. Try again in some seconds.")

    async def _caller(self, code: str, attempt: LoginAttempt) -> Token:
        document = await self._verifier.discover()
        async with asyncio.timeout(PROVIDER_TIMEOUT_SECONDS), httpx.AsyncClient() as http:
            answer = await self._exchange(http, document, code, attempt)
            claims = await self._verifier.claims(str(answer.get("id_token", "")), self.client.id)
            if claims.get("nonce") != attempt.nonce:
                raise Unauthenticated("The provider's token is for another login. Log in again.")
            if not self._verifier.has_roles(claims) and "userinfo_endpoint" in document:
                token = {"Authorization": f"Bearer {answer.get('access_token', '')}"}
                more = await get_json(http, _endpoint(document, "userinfo_endpoint"), token)
                if more.get("sub") == claims["sub"]:  # OpenID Connect Core 5.3.2
                    claims = self._verifier.with_roles(claims, more)
        return self._verifier.token_of(claims)

    async def _exchange(
        self, http: httpx.AsyncClient, document: Mapping[str, Any], code: str, attempt: LoginAttempt
    ) -> dict[str, Any]:
        """Return what the provider gives for a code."""
        from authlib.oauth2.auth import ClientAuth
        from authlib.oauth2.rfc6749.parameters import prepare_token_request

        url = _endpoint(document, "token_endpoint")
        known = document.get("token_endpoint_auth_methods_supported")
        is_basic = not isinstance(known, list) or not known or "client_secret_basic" in known
        method = "client_secret_basic" if is_basic else "client_secret_post"
        id, secret = self.client.id, self.client.secret
        if is_basic and secret:  # RFC 6749, 2.3.1, which the library leaves to its caller
            id, secret = quote(id, safe=""), quote(secret, safe="")
        body = prepare_token_request(
            "authorization_code", code=code, redirect_uri=self.client.redirect_url, code_verifier=attempt.verifier
        )
        auth = ClientAuth(id, secret, method if secret else "none")
        kind = {"Content-Type": "application/x-www-form-urlencoded", "Accept-Encoding": "identity"}
        uri, headers, content = auth.prepare("POST", url, kind, body)
        return await read_json(http.stream("POST", uri, headers=headers, content=content), url)


class TooManyLogins(OjsterError):
    """Browsers come back from the provider more often than the server asks it."""

    code = "rate_limited"
    status = 429


def _new_secret() -> str:
    return secrets.token_urlsafe(SECRET_BYTES)


def _endpoint(document: Mapping[str, Any], name: str) -> str:
    url = str(document.get(name, ""))
    if not is_safe(url):
        raise BackendUnavailable(f"The identity provider has no {name.replace('_', ' ')} that can be trusted.")
    return url
