"""The dashboard: a web page that shows everything and does everything, through the public API alone.

``ojster serve`` has it under ``/dashboard``. ``asgi`` and ``wsgi`` are for applications that mount it behind their own
login; ``ojster.flask.dashboard`` and ``ojster.django.urls`` do so in their frameworks. Its source is in ``dashboard/``
of the repository; what is built from it is in the folder ``assets`` here, and in packages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from starlette.responses import JSONResponse
from starlette.routing import compile_path

from ojster.capabilities import CAPABILITIES
from ojster.core.errors import InvalidRequest, OjsterError, PayloadTooLarge, Unsupported
from ojster.core.refusals import size_details
from ojster.server.application import Application
from ojster.server.browser_guard import BrowserGuard
from ojster.server.endpoints import routes_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ojster.api.app import App

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""An application that a WSGI server calls."""


def asgi(jobs: App, *, guarded: bool = False) -> ASGIApp:
    """Return the dashboard and the API that it needs, as an ASGI application to mount in another one.

    It runs no maintenance: leave that to ``ojster serve``, ``ojster dev`` or a worker on the same database. Pages of
    other origins are refused.

    Parameters
    ----------
    jobs:
        The application whose jobs to show. It must use a database, not a server.
    guarded:
        Whether callers need a token of Ojster. By default everybody who reaches it may do everything, so that the
        application must ask for its own login before.

    Raises
    ------
    InvalidRequest
        At the first request: the application uses a server, which has a dashboard of its own.

    Examples
    --------
    >>> from starlette.applications import Starlette
    >>> from starlette.routing import Mount
    >>> from ojster import App
    >>> from ojster.dashboard import asgi
    >>> site = Starlette(routes=[Mount("/ops", asgi(App("sqlite:///jobs.db")))])  # at /ops/dashboard/
    """
    known: list[Application] = []

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        service = jobs.service()
        if not known or known[0].service is not service:  # such as one in memory, for a test
            known[:] = [Application(service, guarded=guarded, guard=BrowserGuard(None))]
        await known[0](scope, receive, send)

    return serve


def wsgi(jobs: App, *, guarded: bool = False) -> WsgiApp:
    """Return the dashboard and the API that it needs, as a WSGI application to mount in another one.

    It is that of ``asgi``, which runs in a thread of each process. Streams are refused, because each would keep a
    thread of the server busy; the page reads again every five seconds instead. Needs ``ojster[wsgi]``.

    Parameters
    ----------
    jobs:
        The application whose jobs to show. It must use a database, not a server.
    guarded:
        Whether callers need a token of Ojster, as for ``asgi``.

    Raises
    ------
    InvalidRequest
        The library that runs ASGI applications on WSGI servers is not installed.

    Examples
    --------
    >>> from ojster import App
    >>> from ojster.dashboard import wsgi
    >>> from werkzeug.middleware.dispatcher import DispatcherMiddleware
    >>> def shop(environ, start_response):
    ...     start_response("200 OK", [])
    ...     return [b"Welcome"]
    >>> site = DispatcherMiddleware(shop, {"/ops": wsgi(App("sqlite:///jobs.db"))})  # at /ops/dashboard/
    """
    try:
        from a2wsgi import ASGIMiddleware
    except ImportError:
        raise InvalidRequest("On WSGI, the dashboard needs a library: pip install 'ojster[wsgi]'") from None
    app = _without_streams(asgi(jobs, guarded=guarded))
    running: dict[int, WsgiApp] = {}

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if (refusal := _prepare(environ)) is not None:
            text = str(refusal).encode()
            start_response(f"{refusal.status} Refused", [("Content-Type", "text/plain; charset=utf-8")])
            return [text]
        # Each process has a thread of its own: those of the process that it was forked from do not run in it.
        process = os.getpid()
        site = running.get(process)
        if site is None:
            made: Any = ASGIMiddleware(app)
            site = running.setdefault(process, made)  # several threads may begin at once
        answer = site(environ, start_response)
        # Whoever asks for the head alone may not read the answer, which would wait for that.
        return [b"".join(answer)] if environ["REQUEST_METHOD"] == "HEAD" else answer

    return serve


MAX_BODY_BYTES: Final = 67_108_864
"""Maximum size of a request on WSGI, which is read before it is handled."""


def _prepare(environ: dict[str, Any]) -> OjsterError | None:
    """Read the body of a request; return why it is refused, if it is."""
    written = environ.get("CONTENT_LENGTH") or "0"
    length = int(written) if written.isdecimal() else -1
    if length > MAX_BODY_BYTES:
        message = f"The request has {length} bytes; at most {MAX_BODY_BYTES} are allowed here."
        return PayloadTooLarge(message, **size_details(MAX_BODY_BYTES, length, "body"))
    body = b""
    while len(body) < length and (piece := environ["wsgi.input"].read(length - len(body))):
        body += piece
    environ["wsgi.input"] = BytesIO(body)
    try:
        environ["PATH_INFO"].encode("latin-1").decode()
        environ.get("QUERY_STRING", "").encode("ascii")
    except UnicodeError:
        return InvalidRequest("The address of the request is not UTF-8.")
    return InvalidRequest("The request ended before its body was complete.") if len(body) != length else None


_STREAMS: Final = tuple(compile_path(route.path)[0] for route in routes_of(CAPABILITIES) if route.streams)
"""Patterns of paths whose answers have no end."""


def _without_streams(app: Any) -> Any:
    """Return an application for WSGI: streams are refused, and encoded slashes are read as they were sent."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        environ = scope["wsgi_environ"]
        own_path = scope["path"].removeprefix(scope["root_path"])
        if any(pattern.match(own_path) for pattern in _STREAMS):
            refusal = Unsupported("This server cannot stream, because it speaks WSGI. Ask again instead.")
            await JSONResponse({"error": refusal.to_wire("")}, refusal.status)(scope, receive, send)
            return
        sent = environ.get("REQUEST_URI") or environ.get("RAW_URI") or ""
        if unquote(sent.partition("?")[0]) == scope["path"]:  # else another program has changed the path since
            scope["raw_path"] = sent.encode("latin-1")
        await app(scope, receive, send)

    return serve
