"""An OpenID Connect provider that Authlib runs, with an account for each name."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer, ResourceProtector
from authlib.oauth2.rfc6749 import AuthorizationCodeMixin, ClientMixin, TokenMixin, grants
from authlib.oauth2.rfc6750 import BearerTokenValidator
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core import UserInfo
from authlib.oidc.core.grants import OpenIDCode
from flask import Flask
from joserfc.jwk import RSAKey
from werkzeug.serving import make_server

CLIENT_ID = "ojster"
CLIENT_SECRET = "the-password-of-the-server"


class Client(ClientMixin):
    """The server, as the provider knows it."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def get_client_id(self) -> str:
        return CLIENT_ID

    def get_default_redirect_uri(self) -> str:
        return self._provider.redirect_url

    def get_allowed_scope(self, scope: Collection[str] | str) -> str:
        return scope if isinstance(scope, str) else " ".join(scope)

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri == self._provider.redirect_url

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == self._provider.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == ("none" if self._provider.is_public else "client_secret_basic")

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"


class Code(AuthorizationCodeMixin):
    """A code that the provider has given out, and for whom."""

    def __init__(self, given: Any, user: str) -> None:
        self.code = given.code
        self.user = user
        self.nonce: str = given.payload.data.get("nonce")
        self.redirect_uri: str = given.payload.redirect_uri
        self.scope: str = given.payload.scope
        self.code_challenge = given.payload.data.get("code_challenge")
        self.code_challenge_method = given.payload.data.get("code_challenge_method")

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_nonce(self) -> str:
        return self.nonce

    def get_auth_time(self) -> int:
        return int(time.time())

    def get_acr(self) -> str | None:
        return None

    def get_amr(self) -> list[str] | None:
        return None


class AccessToken(TokenMixin):
    """What opens the endpoint about users."""

    def __init__(self, user: str, scope: str, client: Client) -> None:
        self.user, self.scope, self.client = user, scope, client

    def check_client(self, client: ClientMixin) -> bool:
        return True

    def get_scope(self) -> str:
        return self.scope

    def get_expires_in(self) -> int:
        return 60

    def is_expired(self) -> bool:
        return False

    def is_revoked(self) -> bool:
        return False

    def get_user(self) -> str:
        return self.user

    def get_client(self) -> Client:
        return self.client


@cache
def _key() -> RSAKey:
    """Return the key of all providers: to make one takes 50 ms and more."""
    return RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})


class Provider:
    """The provider.

    Attributes
    ----------
    users:
        The claims of each account.
    user:
        Who sits at the browser; ``None``: somebody who refuses.
    secret:
        The password of the server.
    is_public:
        Whether servers have no password.
    tells_all:
        Whether tokens have all claims, or the endpoint about users has them.
    nonce:
        A nonce that the tokens have instead of the right one.
    """

    def __init__(self) -> None:
        self.url = ""
        self.redirect_url = ""
        self.users: dict[str, dict[str, Any]] = {}
        self.user: str | None = None
        self.secret = CLIENT_SECRET
        self.is_public = False
        self.tells_all = True
        self.nonce: str | None = None
        self.codes: dict[str, Code] = {}
        self.tokens: dict[str, AccessToken] = {}
        self.key = _key()

    def claims_of(self, user: str) -> dict[str, Any]:
        """Return what the provider says of an account."""
        return {"sub": f"id-of-{user}", "preferred_username": user} | self.users[user]


def application(provider: Provider) -> Flask:
    """Return the provider as a Flask application."""

    class CodeGrant(grants.AuthorizationCodeGrant):
        TOKEN_ENDPOINT_AUTH_METHODS: list[str] = ["client_secret_basic", "none"]  # noqa: RUF012

        def save_authorization_code(self, code: str, request: Any) -> None:
            request.code = code
            provider.codes[code] = Code(request, request.user)

        def query_authorization_code(self, code: str, client: ClientMixin) -> Code | None:
            return provider.codes.get(code)

        def delete_authorization_code(self, authorization_code: Code) -> None:
            del provider.codes[authorization_code.code]

        def authenticate_user(self, authorization_code: Code) -> str:
            return authorization_code.user

    class IdToken(OpenIDCode):
        def exists_nonce(self, nonce: str, request: Any) -> bool:
            return False

        def resolve_client_private_key(self, client: Client) -> RSAKey:
            return provider.key

        def get_client_algorithm(self, client: Client) -> str:
            return "RS256"

        def get_client_claims(self, client: Client) -> dict[str, Any]:
            return {"iss": provider.url, "aud": [CLIENT_ID], "exp": int(time.time()) + 60}

        def get_encode_header(self, client: Client) -> dict[str, Any]:
            return {"alg": "RS256", "kid": "one"}

        def generate_user_info(self, user: str, scope: str) -> UserInfo:
            claims = provider.claims_of(user)
            shown = claims if provider.tells_all else {"sub": claims["sub"]}
            return UserInfo(shown | ({"nonce": provider.nonce} if provider.nonce else {}))

    class Validator(BearerTokenValidator):
        def authenticate_token(self, token_string: str) -> AccessToken | None:
            return provider.tokens.get(token_string)

    app = Flask("identity provider")
    app.config["OAUTH2_REFRESH_TOKEN_GENERATOR"] = False

    def save_token(token: dict[str, Any], request: Any) -> None:
        provider.tokens[token["access_token"]] = AccessToken(request.user, token.get("scope", ""), request.client)

    def query_client(id: str) -> Client | None:
        return Client(provider) if id == CLIENT_ID else None

    server = AuthorizationServer(app, query_client=query_client, save_token=save_token)
    server.register_grant(CodeGrant, [IdToken(require_nonce=True), CodeChallenge(required=True)])
    protect = ResourceProtector()
    protect.register_token_validator(Validator())

    @app.get("/.well-known/openid-configuration")
    def describe() -> dict[str, Any]:
        return {
            "issuer": provider.url,
            "jwks_uri": f"{provider.url}/keys",
            "authorization_endpoint": f"{provider.url}/authorize",
            "token_endpoint": f"{provider.url}/token",
            "userinfo_endpoint": f"{provider.url}/userinfo",
        }

    @app.get("/keys")
    def keys() -> dict[str, Any]:
        return {"keys": [provider.key.as_dict(is_private=False)]}

    @app.get("/authorize")
    def authorize() -> Any:
        grant = server.get_consent_grant(end_user=provider.user)
        return server.create_authorization_response(grant_user=provider.user, grant=grant)

    @app.post("/token")
    def token() -> Any:
        return server.create_token_response()

    @app.get("/userinfo")
    def userinfo() -> Any:
        with protect.acquire("openid") as token:
            return provider.claims_of(token.user)

    return app


@contextmanager
def running() -> Iterator[Provider]:
    """Run a provider in a thread."""
    provider = Provider()
    server = make_server("127.0.0.1", 0, application(provider), threaded=True)
    provider.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
