"""The `ojster serve` command."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click
from click.core import ParameterSource

from ojster.api.app import App
from ojster.api.loading import load_app, load_plugin
from ojster.cli.application import refuse_eager
from ojster.cli.declared import NUMBER, option_of
from ojster.cli.logs import log_to_console, with_logging
from ojster.cli.oidc_options import with_provider
from ojster.cli.option_rules import excludes, needs
from ojster.cli.options import CHOSEN_VARIABLE, examples, with_migrate, with_port, with_wait
from ojster.cli.server_processes import SharedPort, with_server_processes
from ojster.cli.server_settings import with_settings
from ojster.cli.worker_options import ends_with_parent, with_include
from ojster.core.public_settings import Settings
from ojster.storage.database import URL_VARIABLE
from ojster.storage.open import MEMORY, wait_for_database
from ojster.storage.urls import DEFAULT_URL

if TYPE_CHECKING:
    from ojster.server.oidc import OidcSettings
    from ojster.server.tls import TlsFiles
    from ojster.server.triggers import Triggers
    from ojster.tenancy.tenants import TenantChange

Values = tuple[str, ...]

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)

_ORIGIN: Final = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")
_HOST: Final = re.compile(r"[^/:?#@*\s]+|\[?[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f.]*\]?")


def _each_is(pattern: re.Pattern[str], problem: str) -> Callable[[click.Context, click.Parameter, Values], Values]:
    """Return a callback of an option that refuses values without effect: those that do not match a pattern."""

    def check(context: click.Context, option: click.Parameter, values: Values) -> Values:
        for value in values:
            if not pattern.fullmatch(value):
                raise click.BadParameter(f"{value!r} {problem}")
        return values

    return check


@click.command(
    epilog=examples(
        "ojster serve --database sqlite:///jobs.db",
        "ojster serve --database postgresql://jobs@db.example.com/shop --migrate",
        "ojster serve --host 0.0.0.0 --port 9000 --cors https://dashboard.example.com",
        "ojster serve --host 0.0.0.0 --tls-cert server.pem --tls-key server.key",
        "ojster serve --processes 4 --database postgresql://jobs@db.example.com/shop",
        "ojster serve --socket /run/ojster/ojster.sock",
        "ojster serve --auth required          # and then: ojster tokens create …",
        "ojster serve --keep-completed P7D --keep-dead-letters never",
        "ojster serve --database postgresql://jobs@db.example.com/shop --files s3://shop-jobs/files",
    )
)
@click.option(
    "--database",
    "--url",
    envvar=URL_VARIABLE,
    default=DEFAULT_URL,
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help="Database: sqlite:///jobs.db, or postgresql://user@host/name in libpq's format.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@with_port
@click.option(
    "--socket",
    "unix_socket",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Listen at this path instead of --host and --port; only programs of the same user can call. URL: unix:///PATH.",
)
@click.option(
    "--tls-cert", type=_FILE, metavar="FILE", help="Speak TLS with this certificate (PEM), read again when it changes."
)
@click.option(
    "--tls-key", type=_FILE, metavar="FILE", help="Its private key; by default in the file of the certificate."
)
@click.option(
    "--tls-client-ca",
    type=_FILE,
    metavar="FILE",
    help="Authorities of clients' certificates: callers without one are refused.",
)
@click.option(
    "--auth",
    type=click.Choice(["required", "off"]),
    help="Require a token of callers (ojster tokens); by default only if --host is no loopback address.",
)
@click.option(
    "--cors",
    multiple=True,
    metavar="ORIGIN",
    callback=_each_is(_ORIGIN, "is no origin. Write it as browsers do, such as https://shop.example."),
    help="Allow browsers on this origin, such as https://dashboard.example.com; without tokens, also on all (*); "
    "repeatable.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    callback=_each_is(_HOST, "is no name. Write it without scheme and port, such as jobs.example."),
    metavar="NAME",
    help="Further name by which a server without tokens may be called, such as that of a proxy; repeatable.",
)
@click.option(
    "--max-connections",
    type=NUMBER,
    default=10_000,
    show_default=True,
    help="Maximum number of connections; beyond it, idle ones of unknown callers are closed.",
)
@with_settings
@option_of(
    App.__init__,
    "synchronous",
    help="FULL survives a power loss. NORMAL is faster, but a power loss (SQLite) or a crash (PostgreSQL) may lose the "
    "last commits.",
)
@click.option(
    "--tenant-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="OJSTER_TENANT_FILE",
    show_envvar=True,
    help="File with a JSON object {ID: settings}, for tenants without settings.",
)
@click.option(
    "--trigger-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="OJSTER_TRIGGER_FILE",
    show_envvar=True,
    help="File with a JSON object whose filters say which CloudEvents become which jobs.",
)
@with_migrate
@with_wait
@with_logging
@click.option(
    "--trust-webhooks",
    is_flag=True,
    help="Allow webhooks and functions over plain HTTP and at addresses that are not public.",
)
@click.option(
    "--smtp",
    envvar="OJSTER_SMTP",
    show_envvar=True,
    metavar="URL",
    help="SMTP server for e-mail from jobs: smtps://user:password@mail.example.com:465.",
)
@click.option(
    "--files",
    envvar="OJSTER_FILES",
    show_envvar=True,
    metavar="WHERE",
    help="Storage of files and large results: a directory, or s3://bucket/prefix; by default a directory beside a "
    "SQLite file, and none with PostgreSQL.",
)
@click.option("--app", metavar="MODULE:APP", help="Application with the orchestrators that this server runs.")
@with_include
@with_provider
@click.option(
    "--forwarded-allow-ips",
    "trusted_proxies",
    multiple=True,
    metavar="NETWORK",
    help="Proxy whose X-Forwarded-For tells the address of callers, for the audit log: an address, a network such as "
    "10.0.0.0/8, or *. Repeatable.",
)
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="MODULE:FUNCTION",
    help="Call FUNCTION(service) before the server starts, to add middleware or directives. Repeatable.",
)
@with_server_processes
@ends_with_parent
@needs("tls_cert", "tls_key", "tls_client_ca")
@needs("app", "include")
@excludes("unix_socket", "host", "port", "allowed_hosts")
def serve(
    database: str,
    host: str,
    port: int,
    unix_socket: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    auth: Literal["required", "off"] | None,
    cors: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
    max_connections: int,
    settings: Settings,
    tenant_file: Path | None,
    trigger_file: Path | None,
    synchronous: str,
    migrate: bool,
    wait: float,
    log_level: str,
    log_format: str,
    trust_webhooks: bool,
    smtp: str | None,
    files: str | None,
    app: str | None,
    include: tuple[str, ...],
    oidc: OidcSettings | None,
    trusted_proxies: tuple[str, ...],
    plugins: tuple[str, ...],
    shared: SharedPort,
) -> None:
    """Serve jobs over HTTP, according to Open Job Spec 1.0.

    SIGTERM or SIGINT stops it: it answers open requests first, for at most 25 seconds. Durations are ISO 8601.
    """
    log_to_console(log_level, log_format)
    from ojster.server.run import serve as serve_forever  # here, because its libraries would slow down other commands

    loaded, database = _ready(app, include, database, wait, shared)
    serve_forever(
        database,
        host=host,
        port=port,
        unix_socket=unix_socket,
        tls=_certificates(tls_cert, tls_key, tls_client_ca),
        guarded=None if auth is None else auth == "required",
        settings=settings,
        synchronous=synchronous,
        migrate=migrate,
        cors_origins=cors,
        allowed_hosts=allowed_hosts,
        max_connections=max_connections,
        trusted_proxies=trusted_proxies,
        oidc=oidc,
        log_level=log_level,
        plugins=[load_plugin(plugin) for plugin in plugins],
        trusting=trust_webhooks,
        smtp=smtp,
        files=files,
        app=loaded,
        listeners=shared.listeners,
        shared_counts=shared.counts,
        tenants=_tenants(tenant_file),
        triggers=_triggers(trigger_file),
    )


def _ready(
    app: str | None, include: Sequence[str], database: str, wait: float, shared: SharedPort
) -> tuple[App | None, str]:
    """Return the application with the orchestrators, and the database, which may be the App's, when it can be used."""
    loaded = None if app is None else load_app(app, include)
    if loaded is not None:
        refuse_eager(loaded)
    source = click.get_current_context().get_parameter_source("database")
    if loaded is not None and source is not ParameterSource.COMMANDLINE and not os.environ.get(CHOSEN_VARIABLE):
        loaded.check_url()
        database = loaded.url
    if shared.listeners and database == MEMORY:
        raise click.UsageError("Several processes cannot share a database in memory. Name a file with --database.")
    wait_for_database(database, wait)
    return loaded, database


def _tenants(file: Path | None) -> Sequence[TenantChange]:
    """Return the settings of tenants in a file."""
    from ojster.tenancy.tenant_service import read_tenants

    return () if file is None else read_tenants(file.read_bytes())


def _triggers(file: Path | None) -> Triggers:
    """Return the triggers in a file; without it, those that name the type of their job."""
    from ojster.server.triggers import Triggers, read_triggers

    return Triggers() if file is None else read_triggers(file.read_bytes())


def _certificates(cert: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    """Return the certificates that the options name."""
    from ojster.server.tls import TlsFiles

    return None if cert is None else TlsFiles(cert, key, client_ca)
