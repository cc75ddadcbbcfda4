"""Addresses to include in a project: the dashboard, for superusers."""

from __future__ import annotations

from typing import Any

from django.urls import path

from ojster.django.dashboard import dashboard_for


def is_superuser(user: Any) -> bool:
    """Return whether a user may do everything."""
    return bool(user.is_active and user.is_superuser)


_view = dashboard_for(is_superuser)

app_name = "ojster"
urlpatterns = [path("", _view, name="root"), path("<path:path>", _view, name="dashboard")]
