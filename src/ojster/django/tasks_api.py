"""The names of ``django.tasks``, or of the package ``django-tasks`` where Django is older than 6."""

from __future__ import annotations

try:
    import django.tasks as tasks
    from django.tasks import base, signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
except ImportError:
    try:
        import django_tasks as tasks
    except ImportError as error:
        raise ImportError(f"Django before 6 needs django-tasks ({error}). Run: pip install 'ojster[django]'") from None
    from django_tasks import base, exceptions, signals
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.exceptions import TaskResultDoesNotExist

    # Versions after 0.12 have the name of Django.
    InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError

__all__ = ["BaseTaskBackend", "InvalidTask", "TaskResultDoesNotExist", "base", "signals", "tasks"]
