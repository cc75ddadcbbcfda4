"""The dashboard in Django's admin: an entry that leads to it, if the project includes ``ojster.django.urls``.

It is no model: one without a table would break commands that read all models, such as ``dumpdata``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

from ojster.django.urls import is_superuser


def with_dashboard(list_apps: Callable[..., list[dict[str, Any]]]) -> Callable[..., list[dict[str, Any]]]:
    """Return the list of an admin's applications with the dashboard, for those who may see it."""

    @wraps(list_apps)
    def listed(request: HttpRequest, app_label: str | None = None) -> list[dict[str, Any]]:
        apps = list_apps(request, app_label)
        address = _address() if app_label is None and is_superuser(request.user) else None
        return apps if address is None else [*apps, _entry(address)]

    return listed


def _address() -> str | None:
    try:
        address: str = reverse("ojster:dashboard", args=["dashboard/"])
    except NoReverseMatch:
        return None
    return address


def _entry(address: str) -> dict[str, Any]:
    page = {"name": "Dashboard", "object_name": "Dashboard", "admin_url": address, "view_only": True, "perms": {}}
    return {"name": "Ojster", "app_label": "ojster", "app_url": address, "has_module_perms": True, "models": [page]}


admin.site.get_app_list = with_dashboard(admin.site.get_app_list)
