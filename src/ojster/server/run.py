"""Start and shutdown of the HTTP server on uvicorn. The shutdown answers parked long polls first."""

from __future__ import annotations

import importlib.util
import ipaddress
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvicorn

from ojster.core.errors import InvalidRequest
from ojster.core.public_settings import Settings, in_microseconds
from ojster.core.tuning import tune_interpreter
from ojster.files.open import store_for
from ojster.handlers.register import HandlerRegister
from ojster.jobs.middleware import in_use
from ojster.server.application import Application
from ojster.server.browser_guard import LOOPBACK_HOSTS, BrowserGuard
from ojster.server.counts import SharedCounts
from ojster.server.dashboard_page import is_built
from ojster.server.delivery.mail import read_smtp
from ojster.server.fast_path import MAX_CONNECTIONS, QuickHttpProtocol
from ojster.server.oidc import OidcSettings
from ojster.server.port import check_port
from ojster.server.proxies import TrustedProxies
from ojster.server.tls import TlsFiles, TlsRenewal
from ojster.server.triggers import Triggers
from ojster.server.unix_socket import listen_at
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.tenancy.tenants import TenantChange
from ojster.worker.worker import Worker
from ojster.workflows.orchestrator_request import queue_of

GRACE: Final = 25
"""Time requests in progress get to finish after a stop signal, in seconds."""

TICKS_BETWEEN_CHECKS: Final = 50
"""Number of tenths of a second between looks at the files of a certificate."""

OTHER_FILES: Final = 200
"""Number of files that a server needs beside its connections."""

MAX_WEBSOCKET_MESSAGE_BYTES: Final = 65_536
"""Maximum size of a message from a WebSocket client, in bytes. Clients send only short commands."""


def has_websockets() -> bool:
    """Whether WebSocket is available: the extra ``websocket`` is installed."""
    return importlib.util.find_spec("websockets") is not None


log = logging.getLogger("ojster")


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, application: Application, renewal: TlsRenewal | None) -> None:
        super().__init__(config)
        self._application = application
        self._renewal = renewal

    async def on_tick(self, counter: int) -> bool:
        """Look now and then whether there is a new certificate; called ten times a second."""
        if self._renewal is not None and counter % TICKS_BETWEEN_CHECKS == 0:
            self._renewal.check()
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where a browser finds the dashboard; a supervisor that has opened the sockets says it."""
        await super().startup(sockets)
        if self.started and sockets is None:
            port = self.servers[0].sockets[0].getsockname()[1]
            tell_of_dashboard(self.config.host, port, is_tls=self.config.is_ssl)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM and exit with status 0; uvicorn would raise the signal again."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._application.drain()
        await super().shutdown(sockets)


def dashboard_address(host: str, port: int, *, is_tls: bool) -> str:
    """Return the address of the dashboard of a server that listens at a host; this machine's for all hosts."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"{'https' if is_tls else 'http'}://{shown}:{port}/dashboard/"


def tell_of_dashboard(host: str, port: int, *, is_tls: bool) -> None:
    """Log the address of the dashboard, if it was built."""
    if is_built():
        log.info("dashboard: %s", dashboard_address(host, port, is_tls=is_tls))


def _is_loopback(host: str) -> bool:
    """Whether a server that listens at a host is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    url: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    settings: Settings = Settings(),  # noqa: B008  (it is frozen)
    synchronous: str = "FULL",
    migrate: bool = False,
    cors_origins: Sequence[str] = (),
    log_level: str = "info",
    plugins: Sequence[Callable[[Service], object]] = (),
    trusting: bool = False,
    tenants: Sequence[TenantChange] = (),
    guarded: bool | None = None,
    smtp: str | None = None,
    files: str | None = None,
    app: HandlerRegister | None = None,
    allowed_hosts: Sequence[str] = (),
    unix_socket: Path | None = None,
    max_connections: int = MAX_CONNECTIONS,
    tls: TlsFiles | None = None,
    trusted_proxies: Sequence[str] = (),
    oidc: OidcSettings | None = None,
    listeners: Sequence[socket.socket] = (),
    shared_counts: SharedCounts | None = None,
    triggers: Triggers = Triggers(),  # noqa: B008  (it is frozen)
) -> None:
    """Serve a database over HTTP until SIGINT or SIGTERM.

    Parameters
    ----------
    url:
        The database, such as ``sqlite:///jobs.db`` or ``postgresql://user@host/name``.
    migrate:
        Migrate the tables of a PostgreSQL database first.
    plugins:
        Called in turn with the service before it serves; they may add middleware and directives.
    trusting:
        Whether webhooks may use plain HTTP and non-public addresses.
    tenants:
        Initial settings of tenants. Tenants that already have settings keep them.
    guarded:
        Whether callers need a token. ``None``: if ``host`` is not a loopback address, or ``oidc`` is given.
    smtp:
        The mail server, such as ``smtps://user:password@mail.example.com:465``.
    files:
        The file store (see ``ojster.files.open.store_for``).
    app:
        The application with the orchestrators that this server runs.
    allowed_hosts:
        Further names by which the server may be called. They matter if callers need no token.
    unix_socket:
        Listen at this path instead of ``host`` and ``port``; only programs of the same user can call.
    max_connections:
        Maximum number of connections; beyond it, idle ones are closed.
    tls:
        Speak TLS with these certificates, which are read again when they change. ``None``: speak plain HTTP.
    trusted_proxies:
        Addresses and networks of proxies whose ``X-Forwarded-For`` counts.
    oidc:
        The OpenID Connect provider whose tokens are accepted, too. Callers then need a token.
    listeners:
        Accept connections from these sockets, which this process shares with others, instead of opening its own.
    shared_counts:
        What these processes count together.
    triggers:
        What makes jobs of CloudEvents.

    Raises
    ------
    BackendUnavailable
        The database cannot be opened, or the port is in use.
    InvalidRequest
        The database cannot be opened, ``host`` is none of this machine, ``smtp`` or ``trusted_proxies`` is malformed,
        ``tls`` cannot be used, ``cors_origins`` are all although callers need a token, or ``app`` has no orchestrators.
    Conflict
        Another server listens at ``unix_socket``.
    """
    mail_server = None if smtp is None else read_smtp(smtp)
    context = None if tls is None else tls.context()
    proxies = TrustedProxies(trusted_proxies)
    is_local = unix_socket is not None or _is_loopback(host)
    guarded = _is_guarded(guarded, host, cors_origins, is_local=is_local, has_provider=oidc is not None)
    tune_interpreter()
    own = [] if listeners else _own_socket(host, port, unix_socket)
    database = open_database(url, in_microseconds(settings), synchronous=synchronous, migrate=migrate)
    service = Service(database, store=store_for(url, files))
    for plugin in plugins:
        plugin(service)
    application = Application(
        service,
        cors_origins=cors_origins,
        trusting=trusting,
        tenants=tenants,
        guarded=guarded,
        guard=None if guarded or unix_socket is not None else BrowserGuard(_names(host, allowed_hosts), cors_origins),
        smtp=mail_server,
        worker=None if app is None else _worker_of(app, service, url),
        proxies=proxies,
        oidc=oidc,
        shared_counts=shared_counts,
        triggers=triggers,
    )
    config = _listening(application, host, port, log_level, max_connections, context)
    server = _Server(config, application, None if tls is None or context is None else TlsRenewal(tls, context))
    try:
        with in_use(service.middleware):
            server.run(sockets=[*listeners, *own] or None)
    finally:
        if unix_socket is not None and own:
            unix_socket.unlink(missing_ok=True)


def _is_guarded(wanted: bool | None, host: str, origins: Sequence[str], *, is_local: bool, has_provider: bool) -> bool:
    """Return whether callers need a token, and warn if strangers do not.

    Raises
    ------
    InvalidRequest
        They need one, although pages of all origins may call.

    Spec: ojs-http-binding 20.3
    """
    guarded = not is_local or has_provider if wanted is None else wanted
    if guarded and "*" in origins:
        raise InvalidRequest(
            "A server that requires tokens does not let pages of all origins call it (--cors *). Name the origins."
        )
    if not guarded and not is_local:
        log.warning("authentication is off (--auth): any client that reaches %s has full access", host)
    return guarded


def _own_socket(host: str, port: int, path: Path | None) -> list[socket.socket]:
    """Return the socket in the file system; of a port, only check that uvicorn can open it."""
    if path is not None:
        return [listen_at(path)]
    check_port(host, port)
    return []


def _names(host: str, allowed: Sequence[str]) -> set[str] | None:
    """Return the names by which a server without tokens may be called; ``None``: any."""
    if _is_loopback(host):
        return {*LOOPBACK_HOSTS, host, *allowed}
    return {host, *allowed} if allowed else None


def _worker_of(app: HandlerRegister, service: Service, url: str) -> Worker:
    """Return the worker that runs the orchestrators of an application inside the server."""
    app.work_on(service, url)
    if not app.orchestrators:
        raise InvalidRequest("The application has no orchestrators to run. Add one, or leave out the application.")
    return Worker(app, queues=tuple(map(queue_of, app.orchestrators)))


def _most_connections(wanted: int) -> int:
    """Return how many connections this process may have; let it open more files if it needs them."""
    if sys.platform == "win32":  # it has no such limit
        return wanted
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted + OTHER_FILES if most == resource.RLIM_INFINITY else min(wanted + OTHER_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, resource.getrlimit(resource.RLIMIT_NOFILE)[0]), most))
    if files < wanted + OTHER_FILES:
        log.warning("this process may open %d files, so that it takes %d connections", files, files - OTHER_FILES)
    return max(files - OTHER_FILES, 1)


def _listening(
    application: Application,
    host: str,
    port: int,
    log_level: str,
    max_connections: int,
    context: ssl.SSLContext | None,
) -> uvicorn.Config:
    limited = type("Protocol", (QuickHttpProtocol,), {"max_connections": _most_connections(max_connections)})
    return uvicorn.Config(
        application,
        host=host,
        port=port,
        log_level=log_level,
        access_log=False,
        log_config=None if logging.getLogger().handlers else uvicorn.config.LOGGING_CONFIG,
        http=limited,
        ssl_context_factory=None if context is None else lambda config, default: context,
        ws="websockets-sansio" if has_websockets() else "none",
        ws_max_size=MAX_WEBSOCKET_MESSAGE_BYTES,
        ws_ping_interval=20.0,
        ws_ping_timeout=10.0,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=75,
    )
