"""The dashboard in Django's admin: an entry that leads to it, if the project includes ``ojster.django.urls``."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import NoReverseMatch, reverse

from ojster.django.models import Dashboard
from ojster.django.urls import is_superuser


@admin.register(Dashboard)
class DashboardAdmin(admin.ModelAdmin):
    """An entry for those who may see the dashboard."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the entry is shown."""
        return is_superuser(request.user) and _address() is not None

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the entry may be opened."""
        return self.has_module_permission(request)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody adds a dashboard."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Lead to the dashboard."""
        address = _address()
        if address is None or not is_superuser(request.user):
            raise PermissionDenied
        return HttpResponseRedirect(address)


def _address() -> str | None:
    try:
        address: str = reverse("ojster:dashboard", args=["dashboard/"])
    except NoReverseMatch:
        return None
    return address
