"""Tasks of Django: the example with its tests, and its commands and transactions on both databases."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import psycopg
import pytest
from django.core.management.base import CommandParser

from ojster.cli.main import cli
from ojster.django.backend import _url_beside
from ojster.django.management.commands.ojster import Command
from ojster.storage.postgres.url import parse_postgres_url
from tests import forked

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "django"

Manage = Callable[..., str]

ENQUEUE = """
import json
from django.db import transaction
from shop.models import Order
from shop.tasks import ship, tell
ids = {}
with transaction.atomic():
    Order.objects.create(number=1)
    ids["kept"] = ship.enqueue(1).id
    ids["told"] = tell.enqueue(1, name="Ada").id
try:
    with transaction.atomic():
        ids["lost"] = ship.enqueue(2).id
        raise KeyError
except KeyError:
    pass
ids["failing"] = ship.enqueue(-1).id
print(json.dumps(ids))
"""

RESULTS = """
import json, sys
from shop.models import Order
from ojster.django.tasks_api import tasks, TaskResultDoesNotExist
from tests import forked
found = {}
for name, id in IDS.items():
    try:
        result = tasks.default_task_backend.get_result(id)
    except TaskResultDoesNotExist:
        found[name] = None
        continue
    errors = [error.exception_class_path for error in result.errors]
    found[name] = [result.status, result.attempts, result._return_value, errors]
found["shipped"] = Order.objects.exclude(shipped_at=None).count()
print(json.dumps(found))
"""

EAGER = """

class Eager(TestCase):
    def test_tasks_run_where_they_are_enqueued_after_the_commit(self):
        backend = OjsterBackend("default", {"QUEUES": ["default", "mail"], "OPTIONS": {"eager": True}})
        Order.objects.create(number=8)
        shipped = backend.enqueue(ship, [8], {})
        assert backend.get_result(shipped.id).return_value == "order 8 is shipped"
        assert Order.objects.get(number=8).shipped_at
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            told = backend.enqueue(tell, [8], {"name": "Ada"})
            with self.assertRaises(TaskResultDoesNotExist):
                backend.get_result(told.id)
        assert backend.get_result(told.id).return_value == {"told": "Ada", "attempt": 1}
        with self.assertRaises(TaskResultDoesNotExist):  # the beginning of an id is easy to guess
            backend.get_result(told.id[:-1])
        backend.app.close()
"""

EAGER_IMPORTS = """
from django.db import transaction
from ojster.django.backend import OjsterBackend
from ojster.django.tasks_api import TaskResultDoesNotExist
from shop.tasks import tell
"""


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The environment of the shop, for SQLite or for a new database of PostgreSQL."""
    if request.param == "sqlite":
        yield {}
        return
    parsed = parse_postgres_url(request.getfixturevalue("postgres_url"))
    name = f"shop_{uuid4().hex[:12]}"
    with psycopg.connect(parsed.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        info = connection.info
        yield {
            "DATABASE_NAME": name,
            "DATABASE_HOST": info.host,
            "DATABASE_PORT": str(info.port),
            "DATABASE_USER": info.user,
        }
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def manage(settings: dict[str, str], tmp_path: Path) -> Manage:
    """Run a command of ``manage.py`` in a copy of the example, with a database of its own; return what it prints."""
    shutil.copytree(EXAMPLE, tmp_path / "shop", ignore=shutil.ignore_patterns("*.sqlite3*"))
    env = os.environ | settings

    def run(*command: str) -> str:
        done = forked.run([sys.executable, "manage.py", *command], cwd=tmp_path / "shop", env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_tests_of_the_example_and_of_the_documentation_pass(manage: Manage, tmp_path: Path) -> None:
    page = (EXAMPLE.parent.parent / "docs" / "frameworks.md").read_text()
    (documented,) = re.findall(r"```python\n(from django.test import .*?)```", page, re.DOTALL)
    imports = "from shop.models import Order\nfrom shop.tasks import ship\n"
    (tmp_path / "shop" / "shop" / "test_documented.py").write_text(imports + EAGER_IMPORTS + documented + EAGER)
    manage("test")


def test_tasks_are_enqueued_with_their_transaction_and_run_by_a_worker(manage: Manage) -> None:
    manage("migrate")
    ids = json.loads(manage("shell", "-v", "0", "-c", ENQUEUE))
    manage("ojster", "worker", "--until-empty")
    found: dict[str, Any] = json.loads(manage("shell", "-v", "0", "-c", f"IDS = {ids}\n{RESULTS}"))
    assert found["kept"] == ["SUCCESSFUL", 1, "order 1 is shipped", []]
    assert found["told"] == ["SUCCESSFUL", 1, {"told": "Ada", "attempt": 1}, []]
    assert (found["lost"], found["shipped"]) == (None, 1)
    assert found["failing"] == ["READY", 1, None, ["shop.tasks.OutOfStock"]]
    listed = json.loads(manage("ojster", "jobs", "list", "--json"))
    assert listed["total"] == 3


@pytest.mark.parametrize(
    ("settings_of_tasks", "said"),
    [
        ({"QUEUES": ["default", "mail", "Mail Queue"]}, "ojster.E001"),
        ({"OPTIONS": {"url": "mysql://jobs"}}, "neither a database"),
        ({"OPTIONS": {"uri": "sqlite:///jobs.db"}}, "unknown option 'uri'"),
    ],
)
def test_wrong_settings_are_named(settings_of_tasks: dict[str, Any], said: str, tmp_path: Path) -> None:
    backend = {"BACKEND": "ojster.django.backend.OjsterBackend"} | settings_of_tasks
    (tmp_path / "wrong.py").write_text(f"from shop.settings import *\nTASKS = {{'default': {backend!r}}}\n")
    env = os.environ | {"PYTHONPATH": f"{EXAMPLE}:{tmp_path}", "DJANGO_SETTINGS_MODULE": "wrong"}
    command = [sys.executable, "-m", "django", "check"]
    done = forked.run(command, env=env)
    assert done.returncode != 0
    assert said in done.stderr


def test_the_connection_of_the_jobs_is_as_safe_as_django_s() -> None:
    given = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "USER": "ada", "PASSWORD": "a/b"}
    given |= {"HOST": "db", "PORT": ""}
    url = _url_beside(given | {"OPTIONS": {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem", "pool": True}})
    assert url == "postgresql://ada:a%2Fb@/shop?host=db&sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem"


def test_django_without_tasks_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("django.tasks", "django_tasks"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "ojster.django.tasks_api", raising=False)
    with pytest.raises(ImportError, match=r"needs django-tasks .* Run: pip install 'ojster\[django\]'"):
        importlib.import_module("ojster.django.tasks_api")


def test_the_help_of_the_command_names_commands_of_ojster() -> None:
    parser = CommandParser()
    Command().add_arguments(parser)
    (action,) = [action for action in parser._actions if action.dest == "command"]
    named = re.findall(r"manage\.py ojster ([a-z-]+)", Command.help)
    named += re.split(r", | or ", str(action.help).partition("such as ")[2])
    assert len(named) == 6
    assert set(named) <= set(cli.list_commands(click.Context(cli)))
