"""The options of `ojster serve` that name an OpenID Connect provider."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import click

from ojster.cli.declared import Command, together
from ojster.cli.option_rules import needs

if TYPE_CHECKING:
    from ojster.core.access import Grant
    from ojster.server.oidc import OidcSettings

_with_options: Final = together(
    click.option(
        "--oidc-issuer",
        metavar="URL",
        help="Accept tokens of this OpenID Connect provider, too: https://login.example.com. Needs ojster[oidc].",
    ),
    click.option(
        "--oidc-audience",
        metavar="NAME",
        help="What the tokens of the provider have in 'aud'; by default the client id.",
    ),
    click.option(
        "--oidc-roles-claim",
        metavar="CLAIM",
        default="ojster_roles",
        show_default=True,
        help="Claim with the roles: viewer, owner@acme, … or with groups; realm_access.roles names a nested one.",
    ),
    click.option(
        "--oidc-group",
        "oidc_groups",
        multiple=True,
        metavar="GROUP=ROLE[@WORKSPACE]",
        help="Role of those who have this value in the claim; repeatable.",
    ),
    click.option(
        "--oidc-client-id",
        metavar="NAME",
        help="Let browsers log in at the provider, which knows this server by that name. Needs --public-url.",
    ),
    click.option(
        "--oidc-client-secret",
        envvar="OJSTER_OIDC_CLIENT_SECRET",
        show_envvar=True,
        metavar="SECRET",
        help="The password of this server at the provider; better in the variable, where other users do not see it.",
    ),
    click.option(
        "--oidc-scope",
        metavar="NAMES",
        default="openid profile email",
        show_default=True,
        help="What the provider is asked to tell of those who log in; some providers need 'groups'.",
    ),
    click.option(
        "--public-url",
        metavar="URL",
        help="Address at which browsers reach this server: https://jobs.example.com. The provider must allow "
        "URL/ojs/v1/session/return.",
    ),
    needs("oidc_issuer", "oidc_audience", "oidc_roles_claim", "oidc_groups", "oidc_client_id"),
    needs("oidc_client_id", "oidc_client_secret", "oidc_scope", "public_url"),
)


def with_provider(command: Command) -> Command:
    """Add the options, and pass them to the command as one argument, ``oidc``: the provider, or ``None``."""

    @functools.wraps(command)
    def wrapped(
        *args: Any,
        oidc_issuer: str | None,
        oidc_audience: str | None,
        oidc_roles_claim: str,
        oidc_groups: tuple[str, ...],
        oidc_client_id: str | None,
        oidc_client_secret: str | None,
        oidc_scope: str,
        public_url: str | None,
        **options: Any,
    ) -> Any:
        from ojster.server.oidc import OidcClient, OidcSettings  # here, because its libraries slow down other commands

        if oidc_client_id is not None and public_url is None:
            raise click.UsageError("--oidc-client-id needs --public-url, to which the provider sends browsers back.")
        if oidc_issuer is not None and options["auth"] == "off":
            raise click.UsageError("--oidc-issuer accepts tokens, and --auth off asks for none.")
        oidc: OidcSettings | None = None
        if oidc_issuer is not None:
            client = None
            if oidc_client_id is not None and public_url is not None:
                client = OidcClient(oidc_client_id, public_url, oidc_client_secret or "", oidc_scope)
            audience = oidc_audience or oidc_client_id or ""
            oidc = OidcSettings(oidc_issuer, audience, oidc_roles_claim, _grants_of(oidc_groups), client)
        return command(*args, oidc=oidc, **options)

    return _with_options(wrapped)


def _grants_of(groups: tuple[str, ...]) -> dict[str, tuple[Grant, ...]]:
    from ojster.server.oidc import read_group

    grants_of: dict[str, tuple[Grant, ...]] = {}
    for text in groups:
        group, grant = read_group(text)
        grants_of[group] = (*grants_of.get(group, ()), grant)
    return grants_of
