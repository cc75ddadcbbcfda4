"""The `ojster serve` command."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

import click

from ojster.app import DEFAULT_URL, URL_VARIABLE
from ojster.cli.options import Duration, LimitedDuration, examples, with_migrate, with_retention
from ojster.cli.run import LOG_LEVELS, ends_with_parent, log_to_console
from ojster.core.tenant import DEFAULT_TENANT, check_tenant
from ojster.loading import load_app, load_plugin
from ojster.settings import Retention, Settings


@click.command(
    epilog=examples(
        "ojster serve --database sqlite:///jobs.db",
        "ojster serve --database postgresql://jobs@db.example.com/shop --migrate",
        "ojster serve --host 0.0.0.0 --port 9000 --cors https://dashboard.example.com",
        "ojster serve --auth required          # and then: ojster tokens create …",
        "ojster serve --keep-completed P7D --keep-dead-letters never",
        "ojster serve --database postgresql://jobs@db.example.com/shop --files s3://shop-jobs/files",
    )
)
@click.option(
    "--database",
    envvar=URL_VARIABLE,
    default=DEFAULT_URL,
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help="Database: sqlite:///jobs.db, or postgresql://user@host/name in libpq's format.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port to listen on.")
@click.option(
    "--auth",
    type=click.Choice(["required", "off"]),
    help="Require a token of callers (ojster tokens); by default only if --host is no loopback address.",
)
@click.option("--cors", multiple=True, metavar="ORIGIN", help="Allow browsers on this origin; repeatable.")
@click.option("--max-job-bytes", type=click.IntRange(1024), default=1_048_576, show_default=True)
@click.option(
    "--default-lease",
    type=LimitedDuration(),
    default="PT30M",
    show_default=True,
    help="Lease (visibility timeout) of fetched jobs if neither job nor worker sets one.",
)
@click.option(
    "--default-timeout",
    type=Duration(),
    default="PT30M",
    show_default=True,
    help="Maximum run time of jobs that set none; 'never' for no limit.",
)
@click.option("--heartbeat-timeout", type=LimitedDuration(), default="PT30S", show_default=True)
@with_retention
@click.option(
    "--max-batch",
    type=click.IntRange(min=100),
    default=1_000,
    show_default=True,
    help="Maximum number of jobs in one request.",
)
@click.option(
    "--on-exhaustion",
    type=click.Choice(["discard", "dead_letter"]),
    default="discard",
    show_default=True,
    help="What becomes of a job that is not retried any more, if its retry policy does not say it.",
)
@click.option(
    "--contributors-cancel",
    type=click.Choice(["all", "own"]),
    default="all",
    show_default=True,
    help="What tokens with the role 'contributor' may cancel.",
)
@click.option(
    "--max-generations",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Maximum number of reactions in a row that create jobs or workflows, against loops.",
)
@click.option(
    "--synchronous",
    type=click.Choice(["FULL", "NORMAL"]),
    default="FULL",
    show_default=True,
    help="FULL survives a power loss. NORMAL is faster, but a power loss (SQLite) or a crash (PostgreSQL) may lose the "
    "last commits.",
)
@click.option(
    "--tenants",
    type=click.Choice(["optional", "required"]),
    default="optional",
    show_default=True,
    help="Whether jobs must name a tenant.",
)
@click.option(
    "--default-tenant", metavar="ID", default=DEFAULT_TENANT, show_default=True, help="Tenant of jobs that name none."
)
@click.option(
    "--tenant-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="OJSTER_TENANT_FILE",
    show_envvar=True,
    help="File with a JSON object {ID: settings}, for tenants without settings.",
)
@with_migrate
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True)
@click.option(
    "--trust-webhooks",
    is_flag=True,
    help="Allow webhooks over plain HTTP and to addresses that are not public.",
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
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="MODULE:FUNCTION",
    help="Call FUNCTION(service) before the server starts, to add middleware or directives. Repeatable.",
)
@ends_with_parent
def serve(
    database: str,
    host: str,
    port: int,
    auth: Literal["required", "off"] | None,
    cors: tuple[str, ...],
    max_job_bytes: int,
    default_lease: timedelta,
    default_timeout: int | None,
    heartbeat_timeout: timedelta,
    retention: Retention,
    max_batch: int,
    max_generations: int,
    on_exhaustion: Literal["discard", "dead_letter"],
    contributors_cancel: Literal["all", "own"],
    tenants: Literal["optional", "required"],
    default_tenant: str,
    tenant_file: Path | None,
    synchronous: str,
    migrate: bool,
    log_level: str,
    trust_webhooks: bool,
    smtp: str | None,
    files: str | None,
    app: str | None,
    plugins: tuple[str, ...],
) -> None:
    """Serve jobs over HTTP, according to Open Job Spec 1.0.

    SIGTERM or SIGINT stops it: it answers open requests first, for at most 25 seconds. Durations are ISO 8601.
    """
    log_to_console(log_level)
    from ojster.server.run import serve as serve_forever  # here, because its libraries would slow down other commands
    from ojster.tenancy.routes import read_tenants

    serve_forever(
        database,
        host=host,
        port=port,
        guarded=None if auth is None else auth == "required",
        settings=Settings(
            default_lease=default_lease,
            default_timeout=None if default_timeout is None else timedelta(microseconds=default_timeout),
            heartbeat_timeout=heartbeat_timeout,
            largest_job=max_job_bytes,
            largest_batch=max_batch,
            most_generations=max_generations,
            on_exhaustion=on_exhaustion,
            contributors_cancel=contributors_cancel,
            tenants=tenants,
            default_tenant=check_tenant(default_tenant),
            retention=retention,
        ),
        synchronous=synchronous,
        migrate=migrate,
        cors_origins=cors,
        log_level=log_level,
        plugins=[load_plugin(plugin) for plugin in plugins],
        trusting=trust_webhooks,
        smtp=smtp,
        files=files,
        app=None if app is None else load_app(app),
        tenants=read_tenants(tenant_file.read_bytes()) if tenant_file else (),
    )
