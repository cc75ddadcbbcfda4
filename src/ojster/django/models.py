"""A model without a table, so that Django's admin has a place for the dashboard. Jobs are in tables of their own."""

from __future__ import annotations

from django.db import models


class Dashboard(models.Model):
    """The dashboard of the jobs."""

    class Meta:
        """It has no table, and nobody can add or change it."""

        managed = False
        default_permissions = ()
        verbose_name = "dashboard"
        verbose_name_plural = "Dashboard"
