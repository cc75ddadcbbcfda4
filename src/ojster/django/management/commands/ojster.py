"""``manage.py ojster``: the commands of ``ojster``, for the jobs of the backend in ``TASKS``."""

from __future__ import annotations

import argparse
import os
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ojster.cli.main import main
from ojster.django.backend import backends
from ojster.storage.database import URL_VARIABLE

WITH_APP: Final = frozenset({"worker", "run", "dev"})
"""Commands that need the tasks themselves."""

APP: Final = "ojster.django.worker:app"


class Command(BaseCommand):
    """Run a command of ``ojster`` with the database of the tasks."""

    help = "Run workers of the tasks, and inspect them: 'manage.py ojster worker', 'manage.py ojster jobs list'."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Take everything that follows."""
        parser.add_argument("command", help="a command of 'ojster', such as worker, queues, jobs or dead-letter")
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments and options")

    def handle(self, *args: Any, command: str, arguments: list[str], **options: Any) -> None:
        """Run the command."""
        if not (declared := backends()):
            raise CommandError("No backend in TASKS is 'ojster.django.backend.OjsterBackend'.")
        os.environ.setdefault(URL_VARIABLE, declared[0].url)
        if command in WITH_APP:
            arguments = [APP, *arguments]
        if command == "worker" and not any(argument.startswith(("--queues", "-q")) for argument in arguments):
            arguments += ["--queues", ",".join(declared[0].queue_names)]
        main([command, *arguments], "manage.py ojster")
