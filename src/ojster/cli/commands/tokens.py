"""Commands that create, list, rotate and revoke tokens."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import click
import msgspec

from ojster.cli.declared import IsoSpan, micros_of
from ojster.cli.options import ask, done, examples, moment_at, with_json, with_url
from ojster.cli.output import ago, print_json, print_list
from ojster.client.interface import Client
from ojster.core.access import Grant, Role, Token
from ojster.core.declared_options import LEAST_SECONDS
from ojster.core.errors import Conflict
from ojster.core.tenant import check_tenant
from ojster.tenancy.wire import show_grants, show_token


@click.group(
    epilog=examples(
        "ojster tokens create operators --role owner",
        "ojster tokens create shop --role producer --queue 'shop.*' --expires P90D",
        "ojster tokens create fleet --role worker --role producer --tenant acme",
    )
)
def tokens() -> None:
    """Create, list, rotate and revoke the tokens that a server with --auth required accepts.

    Send a token as 'Authorization: Bearer …'; this command and the Python clients read it from OJSTER_TOKEN.
    """


@tokens.command(
    "create",
    epilog=examples(
        "ojster tokens create ci --role contributor --tenant acme:web --expires P30D",
        "ojster tokens create grafana --role viewer --url postgresql://jobs@db.example.com/shop",
    ),
)
@click.argument("name")
@click.option(
    "--role",
    "roles",
    type=click.Choice([role.value for role in Role]),
    multiple=True,
    required=True,
    help="viewer: read; producer: enqueue; worker: fetch jobs and read; contributor: read, enqueue, cancel and retry; "
    "owner: as contributor, and approve, delete and configure. Repeatable.",
)
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    metavar="ID",
    help="Limit the token to this workspace and those inside it (acme: also acme:web); repeatable. By default all.",
)
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Limit it to jobs of this queue ('shop.*'); repeatable."
)
@click.option(
    "--expires",
    type=IsoSpan(least=LEAST_SECONDS),
    metavar="DURATION",
    default=None,
    help="Lifetime of the token; by default unlimited.",
)
@with_url
@with_json
def create_token(
    name: str,
    roles: tuple[str, ...],
    tenants: tuple[str, ...],
    queues: tuple[str, ...],
    expires: timedelta | None,
    url: str,
    as_json: bool,
) -> None:
    """Create the token NAME and print it, only this once: only a hash of it is stored."""
    places: list[str | None] = [check_tenant(tenant) for tenant in tenants]
    grants = [Grant(Role(role), place) for role, place in product(roles, places or [None])]
    expires_at = None if expires is None else moment_at(url, -expires, makes=True)
    made = ask(url, lambda client: client.tokens.create(name, grants, queues, expires_at), makes=True)
    _print_secret(*made, as_json)


@tokens.command("list", epilog=examples("ojster tokens list"))
@with_url
@with_json
def list_tokens(url: str, as_json: bool) -> None:
    """List the tokens with their time of last use, to the hour."""
    tokens = ask(url, lambda client: client.tokens.all())
    print_list(
        as_json,
        {"tokens": [msgspec.to_builtins(show_token(token)) for token in tokens]},
        ("id", "name", "roles", "queues", "created", "expires", "last used"),
        [
            (
                token.id,
                token.name,
                ", ".join(f"{grant.role} in {grant.tenant}" for grant in show_grants(token.grants)),
                ", ".join(token.queues) or "all",
                ago(token.created_at),
                ago(token.expires_at) or "never",
                ago(token.last_used_at) or "never",
            )
            for token in tokens
        ],
        "There are no tokens.",
    )


@tokens.command("rotate", epilog=examples("ojster tokens rotate shop --grace PT1H"))
@click.argument("token", metavar="ID_OR_NAME")
@click.option(
    "--grace",
    type=IsoSpan(takes_never=False),
    default="P1D",
    show_default=True,
    metavar="DURATION",
    help="Time the old secret stays valid; PT0S revokes it at once.",
)
@with_url
@with_json
def rotate_token(token: str, grace: timedelta, url: str, as_json: bool) -> None:
    """Give a token, given as for revoke, a new secret, and print it; the old secret stays valid for --grace."""
    _print_secret(*ask(url, lambda client: _rotate(client, token, micros_of(grace))), as_json)


@tokens.command("revoke", epilog=examples("ojster tokens revoke 4f1c9a0b2d3e", "ojster tokens revoke operators"))
@click.argument("token", metavar="ID_OR_NAME")
@with_url
@with_json
def revoke_token(token: str, url: str, as_json: bool) -> None:
    """Revoke a token at once, given by its id, or by its name if no other token has it."""
    revoked = ask(url, lambda client: _revoke(client, token))
    done(f"The token {revoked.id} ({revoked.name}) is revoked.", as_json, {"id": revoked.id, "revoked": True})


async def _rotate(client: Client, id_or_name: str, grace: int) -> tuple[Token, str]:
    return await client.tokens.rotate(await _id_of(client, id_or_name), grace)


async def _revoke(client: Client, id_or_name: str) -> Token:
    return await client.tokens.revoke(await _id_of(client, id_or_name))


async def _id_of(client: Client, id_or_name: str) -> str:
    known = await client.tokens.all()
    named = [token.id for token in known if token.name == id_or_name]
    if len(named) > 1:
        raise Conflict(f"{len(named)} tokens have the name {id_or_name!r}. Give the id of one: {', '.join(named)}.")
    return named[0] if named else id_or_name


def _print_secret(token: Token, secret: str, as_json: bool) -> None:
    if as_json:
        print_json({"token": msgspec.to_builtins(show_token(token, secret))})
    else:
        click.echo(secret)
        click.echo(f"Save the token {token.id} ({token.name}) now; it is not shown again.", err=True)
