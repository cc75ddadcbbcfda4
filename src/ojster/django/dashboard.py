"""The dashboard in a Django project: a view that shows it to whoever may see it.

``ojster.django.urls`` has the view for superusers::

    urlpatterns = [path("ops/", include("ojster.django.urls"))]  # at /ops/dashboard/
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from io import BytesIO
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.urls import NoReverseMatch, is_valid_path, reverse
from django.views.decorators.csrf import csrf_exempt

from ojster.core.errors import Forbidden
from ojster.dashboard import WsgiApp, wsgi

API: Final = "ojs/"
"""How the addresses begin that the pages ask, below the prefix of the dashboard."""


def dashboard_for(may_see: Callable[[Any], bool], *, backend: str | None = None) -> Callable[..., HttpResponseBase]:
    """Return a view that shows the dashboard.

    Whoever may see it may do everything. The dashboard protects itself from requests of other sites, so that the view
    is exempt from Django's check.

    Parameters
    ----------
    may_see:
        Returns whether a user may see it. Others are sent to the login of the project, or of its admin.
    backend:
        The alias in ``TASKS`` whose jobs to show; by default the first one of Ojster.

    Examples
    --------
    In ``storage/urls.py``::

        operations = dashboard_for(lambda user: user.groups.filter(name="operators").exists())
        urlpatterns = [path("ops/<path:path>", operations)]
    """

    def view(request: HttpRequest, path: str = "") -> HttpResponseBase:
        if not may_see(request.user):
            return _refuse(request, path)
        return _answer(_site(backend), request, path)

    exempt: Callable[..., HttpResponseBase] = csrf_exempt(view)
    return exempt


def _refuse(request: HttpRequest, path: str) -> HttpResponseBase:
    if not path.startswith(API) and not request.user.is_authenticated:
        return redirect_to_login(request.get_full_path(), _login())
    refusal = Forbidden("You may not see the jobs, or your login has ended. Log in to this site as somebody who may.")
    return JsonResponse({"error": refusal.to_wire("")}, status=refusal.status)


def _login() -> str | None:
    """Return the address of the admin's login if the project has no other one; ``None``: what ``LOGIN_URL`` says."""
    if settings.is_overridden("LOGIN_URL") or is_valid_path(settings.LOGIN_URL):
        return None
    try:
        address: str = reverse("admin:login")
    except NoReverseMatch:
        return None
    return address


@cache
def _site(alias: str | None) -> WsgiApp:
    from ojster.django.backend import backends

    for backend in backends():
        if alias in (None, backend.alias):
            return wsgi(backend.app)
    named = "" if alias is None else f" named {alias!r}"
    raise ImproperlyConfigured(f"TASKS has no backend of Ojster{named}, whose jobs a dashboard could show.")


def _answer(site: WsgiApp, request: HttpRequest, path: str) -> HttpResponse:
    prefix = request.path.removesuffix(path).rstrip("/")
    environ = {name: value for name, value in request.META.items() if isinstance(value, str)} | {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": prefix.encode().decode("latin-1"),
        "PATH_INFO": f"/{path}".encode().decode("latin-1"),
        "CONTENT_LENGTH": str(len(request.body)),
        "SERVER_NAME": request.META.get("SERVER_NAME") or "localhost",
        "SERVER_PORT": request.META.get("SERVER_PORT") or "80",
        "SERVER_PROTOCOL": request.META.get("SERVER_PROTOCOL") or "HTTP/1.1",
        "wsgi.input": BytesIO(request.body),
        "wsgi.url_scheme": request.scheme,
    }
    response = HttpResponse()

    def start(status: str, headers: list[tuple[str, str]], error: Any = None) -> None:
        response.status_code = int(status.split()[0])
        for name, value in headers:
            response[name] = value

    response.content = b"".join(site(environ, start))
    return response
