"""The place of the dashboard in Django's admin."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """A model without a table."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar = [
        migrations.CreateModel(
            name="Dashboard",
            fields=[("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False))],
            options={
                "verbose_name": "dashboard",
                "verbose_name_plural": "Dashboard",
                "managed": False,
                "default_permissions": (),
            },
        )
    ]
