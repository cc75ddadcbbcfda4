"""Jobs as Django tasks: a backend of ``django.tasks``, and ``manage.py ojster``. Needs ``ojster[django]``.

Settings::

    INSTALLED_APPS = [..., "ojster.django"]
    TASKS = {"default": {"BACKEND": "ojster.django.backend.OjsterBackend"}}

Django 6 has ``django.tasks``; with Django 5.2, the package ``django-tasks`` has the same.
"""
