"""The application for workers of Django's tasks: ``ojster worker ojster.django.worker:app``.

``manage.py ojster worker`` names it. It imports the modules ``tasks`` of all installed applications. Tasks in other
modules are known to a worker if something imports them.
"""

from __future__ import annotations

import django
from django.utils.module_loading import autodiscover_modules

django.setup()

from ojster.django.backend import backends  # noqa: E402  (Django must be set up before)

autodiscover_modules("tasks")

if not (_backends := backends()):
    raise RuntimeError("No backend in TASKS is 'ojster.django.backend.OjsterBackend'. Name one in Django's settings.")

app = _backends[0].app
"""The application of the first backend."""
