"""The Django application: ``manage.py migrate`` creates the tables of the jobs, too."""

from __future__ import annotations

from typing import Any

from django import VERSION
from django.apps import AppConfig, apps
from django.core import checks
from django.db.models.signals import post_migrate


class OjsterConfig(AppConfig):
    """The application ``ojster.django``, for ``INSTALLED_APPS``."""

    name = "ojster.django"
    label = "ojster"
    verbose_name = "Ojster"

    def ready(self) -> None:
        """Create or update the tables of the jobs after the migrations of a database; check the settings."""
        post_migrate.connect(_migrate, sender=self)
        if VERSION < (6, 0) and not apps.is_installed("django_tasks"):  # otherwise these check all backends
            checks.register(_check)


def _check(**more: Any) -> list[checks.CheckMessage]:
    from ojster.django.backend import backends

    return [message for backend in backends() for message in backend.check()]


def _migrate(using: str, verbosity: int = 1, **more: Any) -> None:
    from ojster.django.backend import backends
    from ojster.storage.database import POSTGRES
    from ojster.storage.open import migrate_database

    for backend in backends():
        if backend.database != using or not backend.url.startswith(POSTGRES):
            continue  # a file is migrated when it is opened, the database of a server by the server
        version = migrate_database(backend.url)
        if verbosity > 1:
            print(f"  The tables of the jobs have the version {version}.")
