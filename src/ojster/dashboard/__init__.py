"""The dashboard: a web page that shows everything and does everything, through the public API alone.

``ojster serve`` has it under ``/dashboard``. ``asgi`` is for applications that mount it behind their own login. Its
source is in ``dashboard/`` of the repository; what is built from it is in the folder ``assets`` here, and in packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ojster.server.application import Application
from ojster.server.browser_guard import BrowserGuard

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ojster.app import App


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
        if not known:  # opened in the loop that serves it
            known.append(Application(jobs.engine(), guarded=guarded, guard=BrowserGuard(None)))
        await known[0](scope, receive, send)

    return serve
