"""What a newcomer does wrong ends in a message that says what is wrong, where, and what to do."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ojster.cli.main import COMMANDS, _run, cli
from ojster.cli.worker import _shown_types
from ojster.server.dashboard_page import is_built
from ojster.server.run import dashboard_address
from tests import forked
from tests.postgres import free_port
from tests.waiting import PATIENCE

SHOP = """
from ojster import App
app = App()

@app.job("mail", queue="mail")
def mail(to: str) -> None: ...
"""

CIRCLE = {
    "jobs.py": "from handlers import mail\nfrom ojster import App\napp = App()\n",
    "handlers.py": "from jobs import app\n\ndef mail(): ...\n",
}


class Newcomer:
    """Somebody with an application in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(SHOP)

    def run(self, *command: str, **environment: str) -> tuple[int, str]:
        """Run a command of Python's; return its exit code, and what it said."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "OJSTER_DATABASE_URL": "sqlite:///jobs.db"}
        done = forked.run([sys.executable, *command], cwd=self.folder, env=env | environment)
        return done.returncode, done.stdout + done.stderr

    def ojster(self, *arguments: str, **environment: str) -> tuple[int, str]:
        code, said = self.run("-m", "ojster", *arguments, **environment)
        assert "Traceback" not in said
        return code, said

    def python(self, code: str) -> str:
        """Run a few lines of Python; return the last line that they say."""
        return self.run("-c", code)[1].strip().splitlines()[-1]


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (("jobs", "list", "--url", "sqlit:///x.db"), 1, ("sqlit:///x.db", "neither a database", "sqlite:///")),
        (("jobs", "list", "--url", "postgresql+psycopg://a@b/c"), 1, ("neither a database", "Leave out '+psycopg'")),
        (("jobs", "list", "--url", "sqlite:///no/x.db"), 5, ("no database file", "no/x.db", "Check --url")),
        (("worker",), 2, ("APP is missing", "ojster worker shop.jobs:app")),
        (("worker", "sop:app"), 1, ("No module 'sop'", "Check the name")),
        (("worker", "shop:ap"), 1, ("'shop' has no App named 'ap'", "It has app.")),
        (("worker", "empty"), 1, ("0 Apps", "Create one in", "empty.py")),
        (("worker", "sys:app"), 1, ("'sys' has no App named 'app'", "Create one in sys")),
        (("worker", "jobs:app"), 1, ("import each other in a circle", "jobs.py", "--include")),
        (("worker", "shop", "--include", ""), 1, ("'' is no name of a module", "shop.jobs")),
        (("worker", "shop", "--include", ".*"), 1, ("'' is no name of a module",)),
        (("worker", "shop.py"), 1, ("No module 'shop.py'", "Name the module, not its file: shop.")),
        (("worker", "./sub/shop.py:app"), 1, ("'./sub/shop.py' is no name of a module", "such as sub.shop.")),
        (("worker", ".shop"), 1, ("'.shop' is no name of a module",)),
        (("serve", "--plugin", ":f"), 1, ("'' is no name of a module",)),
        (("serve", "--plugin", "os:getcwd"), 1, ("'os:getcwd' does not take a service",)),
        (("worker", "shop", "--until-empty", "-q", "mial"), 0, ("no handler names the queue 'mial'", "mean 'mail'")),
        (("push", "mail", "x", "--delay", "soon"), 2, ("--delay", "'soon' is not a valid number of seconds")),
        (("jobs", "shwo", "x"), 2, ("No such command 'shwo'", "ojster jobs show")),
        (("wroker",), 2, ("No such command 'wroker'", "Did you mean 'ojster worker' or 'ojster workers'?")),
        (("pause", "mail"), 2, ("No such command 'pause'", "Did you mean 'ojster queues pause' or")),
        (("definitions", "start", "gist"), 2, ("No such command 'start'", "Did you mean 'ojster workflows start'?")),
        (("jobs", "serve"), 2, ("No such command 'serve'", "Did you mean 'ojster serve'?")),
        (("worker", "--concurency", "3"), 2, ("No such option '--concurency'", "mean '--concurrency'?")),
        (("workflows", "start", "day.yml"), 2, ("no file day.yml", "Check the path")),
        (("workflows", "start", "./day.yml"), 2, ("no file day.yml", "Check the path")),
        (("workflows", "start", "shop.py", "--target", "/x"), 2, ("--target", "of a definition", "definitions apply")),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_a_wrong_command_says_what_is_wrong_and_what_to_do(
    newcomer: Newcomer, arguments: tuple[str, ...], code: int, parts: tuple[str, ...]
) -> None:
    (newcomer.folder / "empty.py").write_text("")
    for name, text in CIRCLE.items():
        (newcomer.folder / name).write_text(text)
    found, said = newcomer.ojster(*arguments)
    assert found == code, said
    said = " ".join(said.split())
    for part in parts:
        assert part in said, said


def all_commands(group: click.Group, context: click.Context, *path: str) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(context):
        yield (*path, name)
        if isinstance(command := group.get_command(context, name), click.Group):
            yield from all_commands(command, context, *path, name)


def test_the_commands_of_each_group_are_those_that_are_suggested() -> None:
    groups: dict[str, tuple[str, ...]] = {}
    for group, *command in all_commands(cli, click.Context(cli)):
        groups[group] = (*groups.get(group, ()), *command)
    assert {group: commands for group, commands in groups.items() if commands} == {
        name: tuple(place.commands.split()) for name, place in COMMANDS.items() if place.commands
    }


def test_each_command_that_is_misspelt_is_named() -> None:
    for path in all_commands(cli, click.Context(cli)):
        with pytest.raises(click.UsageError) as refused:
            _run([*path[:-1], f"{path[-1]}x"], "ojster")
        assert f"'ojster {' '.join(path)}'" in refused.value.format_message()


def test_a_worker_names_its_job_types_when_it_starts(newcomer: Newcomer) -> None:
    code, said = newcomer.ojster("worker", "shop", "--until-empty")
    assert (code, "started: job types mail; sqlite:///" in said) == (0, True), said
    assert _shown_types([f"type_{number:02}" for number in range(22)]).endswith(", type_19, 2 more")


@pytest.mark.parametrize(
    ("host", "is_tls", "address"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:8080/dashboard/"),
        ("0.0.0.0", False, "http://127.0.0.1:8080/dashboard/"),
        ("::", True, "https://[::1]:8080/dashboard/"),
        ("::1", False, "http://[::1]:8080/dashboard/"),
        ("jobs.internal", True, "https://jobs.internal:8080/dashboard/"),
    ],
)
def test_the_dashboard_has_an_address_that_a_browser_takes(host: str, is_tls: bool, address: str) -> None:
    assert dashboard_address(host, 8080, is_tls=is_tls) == address


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_server_says_once_where_its_dashboard_is(newcomer: Newcomer, processes: str) -> None:
    command = [sys.executable, "-m", "ojster", "serve", "--port", "0", "--processes", processes]
    if not is_built():
        pytest.skip("the dashboard is not built")
    env = {"PATH": os.environ["PATH"], "HOME": str(newcomer.folder), "OJSTER_DATABASE_URL": "sqlite:///jobs.db"}
    server = subprocess.Popen(command, cwd=newcomer.folder, env=env, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    said = ""
    try:
        for line in server.stderr:
            said += line
            if said.count("Application startup complete") == int(processes) and "dashboard: " in said:
                break
    finally:
        server.terminate()
        said += server.stderr.read()
        server.stderr.close()
        server.wait(PATIENCE)
    (address,) = re.findall("dashboard: (http://127.0.0.1:[0-9]+/dashboard/)\n", said)
    assert not address.endswith(":0/dashboard/")


def test_a_database_that_is_somewhere_else_is_named(newcomer: Newcomer) -> None:
    """The application names its database; the command line knows the variable and ``--url`` alone."""
    (newcomer.folder / "a.db").write_text("no database")
    os.mkfifo(newcomer.folder / "b.db")
    code, said = newcomer.ojster("jobs", "list", OJSTER_DATABASE_URL="")
    assert (code, "Check --url" in said) == (5, True), said
    newcomer.run("-c", "import shop; shop.mail.enqueue('ann')")
    code, said = newcomer.ojster("jobs", "list", OJSTER_DATABASE_URL="")
    assert code == 5
    assert "use --url sqlite:///jobs.db, or set OJSTER_DATABASE_URL" in " ".join(said.split())


def test_a_port_in_use_is_named_with_the_way_out(newcomer: Newcomer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, said = newcomer.ojster("serve", "--port", port)
    assert code == 5
    assert f"The port {port} of 127.0.0.1 is in use" in said
    assert "--port" in said


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("shop.mail.enqueue(object())", ("TypeError: mail", "argument 'to'", "type object", "Pass numbers")),
        ("shop.mail.enqueue(float('nan'))", ("argument 'to'", "NaN")),
        ("shop.mail.enqueue()", ("TypeError", "missing", "'to'")),
        ("shop.mail.enqueue(5)", ("mail", "to", "Expected `str`")),
        ("shop.mail.using(dealy=3)", ("TypeError: There is no option 'dealy'", "mean 'delay'")),
        ("shop.app.job('x', quue='a')(lambda: 1)", ("no option 'quue'", "mean 'queue'")),
        ("shop.app.job('x', zzz=1)(lambda: 1)", ("no option 'zzz'", "The options are queue")),
        ("shop.app.job('mail')(lambda: 1)", ("'mail' already has a handler", "shop.py:5", "Give it another type")),
        (
            "import asyncio\nasync def main(): shop.mail.enqueue('x')\nasyncio.run(main())",
            ("A blocking call in a coroutine", "aenqueue()"),
        ),
        (
            "import asyncio\nasync def main(): shop.app.plain_client().queues.all()\nasyncio.run(main())",
            ("A blocking call in a coroutine", "the calls of client()"),
        ),
        ("from ojster import App\nApp('postgres:/x')", ("neither a database", "postgresql://")),
        ("shop.app.start(shop.mail.s('x'), tiemout=3)", ("no option 'tiemout'", "mean 'timeout'")),
        ("shop.app.start(shop.mail.s('x'), target='/x')", ("no option 'target'", "app.define(…)", "by its name")),
        ("shop.app.start('gist', timeout=3)", ("no option 'timeout'", "pass it to app.define(…)")),
        ("shop.app.start('gist', verison=3)", ("no option 'verison'", "mean 'version'")),
        ("shop.app.define('gist', shop.mail.s('x'), params={})", ("no option 'params'", "pass it to app.start(…)")),
        ("shop.app.define('gist', shop.mail.s('x'), retyr=1)", ("no option 'retyr'", "mean 'retry'")),
        ("from ojster import reactions as r\nr.start('gist', nmae='a')", ("'nmae'", "mean 'name'")),
        (
            "from ojster.fastapi import lifespan as l\nl(shop.app, worker=True, concurency=1)",
            ("'concurency'", "mean 'concurrency'"),
        ),
        ("from ojster.fastapi import lifespan as l\nl(shop.app, grace=1)", ("'grace'", "Add worker=True")),
    ],
)
def test_wrong_python_says_what_is_wrong_and_what_to_do(newcomer: Newcomer, code: str, parts: tuple[str, ...]) -> None:
    said = newcomer.python(f"import shop\n{code}")
    for part in parts:
        assert part in said, said


def test_a_wrong_token_is_refused_with_what_to_do(newcomer: Newcomer) -> None:
    port = free_port()
    server = forked.Popen(
        [sys.executable, "-m", "ojster", "serve", "--port", str(port), "--auth", "required"],
        cwd=newcomer.folder,
        env={"PATH": os.environ["PATH"], "HOME": str(newcomer.folder), "OJSTER_DATABASE_URL": "sqlite:///jobs.db"},
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(20):
            code, said = newcomer.ojster("jobs", "list", "--url", url, OJSTER_TOKEN="wrong")
            if "cannot be reached" not in said:
                break
        assert code not in (0, 5)
        assert "token" in said
        code, said = newcomer.ojster("jobs", "list", "--url", url)
        assert code not in (0, 5)
        assert "ojster tokens create" in said
    finally:
        server.terminate()
        server.wait(PATIENCE)


@pytest.mark.parametrize("url", ["http://", "http://[", "http://a:99999", "http://a:b", "https://a:0", "https://x:y@"])
@pytest.mark.parametrize("command", [("jobs", "list", "--url"), ("worker", "shop:app", "--url"), ("healthy",)])
def test_a_malformed_url_of_a_server_is_refused(newcomer: Newcomer, command: tuple[str, ...], url: str) -> None:
    code, said = newcomer.ojster(*command, url)
    assert code == 1
    assert "as in http://127.0.0.1:8080." in said
    assert "x:y" not in said


@pytest.mark.parametrize("url", ["unix:///", "unix:////"])
@pytest.mark.parametrize("command", [("jobs", "list", "--url"), ("worker", "shop:app", "--url"), ("healthy",)])
def test_the_url_of_a_socket_without_a_path_is_refused(newcomer: Newcomer, command: tuple[str, ...], url: str) -> None:
    code, said = newcomer.ojster(*command, url)
    assert code == 1
    assert f"The URL '{url}' names no socket." in said


def test_the_url_of_a_socket_with_two_slashes_is_no_health_file(newcomer: Newcomer) -> None:
    code, said = newcomer.ojster("healthy", "unix://run/ojster.sock")
    assert (code, "is neither a database" in said) == (1, True)


def test_an_error_of_a_server_does_not_show_the_password_in_its_url(newcomer: Newcomer) -> None:
    for command in (("jobs", "list", "--url"), ("healthy",)):
        code, said = newcomer.ojster(*command, "http://ada:secret@127.0.0.1:1")
        assert code in (1, 5)
        assert "http://ada:***@127.0.0.1:1" in said
        assert "secret" not in said


@pytest.mark.parametrize("url", ["jobs.db", "redis://localhost", "sqlite:/jobs.db", "localhost:8080"])
def test_a_worker_of_a_url_that_is_none_says_so_and_ends(newcomer: Newcomer, url: str) -> None:
    code, said = newcomer.ojster("worker", "shop:app", "--url", url)
    assert code == 1
    assert f"The URL {url!r} is neither a database" in said


@pytest.mark.parametrize(
    "command",
    [
        "jobs list --url",
        "push mail --url",
        "doctor --url",
        "backup x.tar --url",
        "restore x.tar --url",
        "migrate --database",
        "bench --database",
        "serve --database",
        "worker shop:app --until-empty --url",
        "run shop:app --database",
        "dev shop:app --database",
    ],
)
def test_a_url_without_a_file_is_no_database_in_memory(newcomer: Newcomer, command: str) -> None:
    code, said = newcomer.ojster(*command.split(), "sqlite:///")
    assert code == 1
    assert "'sqlite:///' names no file" in said
    code, said = newcomer.ojster(*command.split()[:-1], OJSTER_DATABASE_URL="sqlite:///")
    assert code == 1
    assert "'sqlite:///' names no file" in said


@pytest.mark.parametrize("command", ["serve --processes 2", "run shop:app", "dev shop:app"])
def test_processes_cannot_share_a_database_in_memory(newcomer: Newcomer, command: str) -> None:
    port = str(free_port())
    code, said = newcomer.ojster(*command.split(), "--port", port, "--database", "sqlite:///:memory:")
    assert code == 2
    assert "cannot share" in said


@pytest.mark.parametrize("command", ["ojster worker shop:app", "flask --app shop ojster worker"])
def test_a_worker_of_a_queue_that_cannot_exist_says_so(newcomer: Newcomer, command: str) -> None:
    with (newcomer.folder / "shop.py").open("a") as file:
        file.write(
            "\nfrom flask import Flask\nfrom ojster.flask import Ojster\nsite = Flask('shop')\nOjster(app, site)\n"
        )
    code, said = newcomer.run("-m", *command.split(), "--queues", "High_Prio")
    assert code == 2
    assert "--queues: The queue name 'High_Prio' is invalid" in " ".join(said.split())
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("jobs = App('sqlite:///jobs.db')", "has no job handlers"),
        ("jobs = App('sqlite:///no/folder/jobs.db')\njobs.job('one')(lambda: 1)", "no/folder"),
    ],
)
def test_a_worker_of_flask_says_why_it_cannot_begin(newcomer: Newcomer, code: str, why: str) -> None:
    (newcomer.folder / "site_of_mine.py").write_text(
        "from flask import Flask\nfrom ojster import App\nfrom ojster.flask import Ojster\n"
        f"{code}\nsite = Flask('shop')\nOjster(jobs, site)\n"
    )
    command = ["-m", "flask", "--app", "site_of_mine", "ojster", "worker"]
    ended, said = newcomer.run(*command, OJSTER_DATABASE_URL="")
    assert ended == 1
    assert "Traceback" not in said
    assert why in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize(
    "command", ["--help", "--version", "jobs list", "jobs list --json", "jobs export", "queues list"]
)
def test_output_for_which_there_is_no_room_is_an_error_in_one_line(newcomer: Newcomer, command: str) -> None:
    newcomer.ojster("push", "mail", "ann")
    env = {"PATH": os.environ["PATH"], "HOME": str(newcomer.folder), "OJSTER_DATABASE_URL": "sqlite:///jobs.db"}
    errors = newcomer.folder / "errors"
    with open("/dev/full", "wb") as full, errors.open("wb") as file:
        words = [sys.executable, "-m", "ojster", *command.split()]
        done = subprocess.run(words, cwd=newcomer.folder, env=env, stdout=full, stderr=file, timeout=PATIENCE)
    assert done.returncode == 1
    assert errors.read_text() == "ojster: The output cannot be written: No space left on device. Make room for it.\n"


def test_a_package_that_is_missing_is_named_also_if_the_module_begins_like_it(newcomer: Newcomer) -> None:
    (newcomer.folder / "absent_jobs.py").write_text("import absent\n")
    code, said = newcomer.run("-m", "ojster", "worker", "absent_jobs:app")
    assert code != 0
    assert "No module named 'absent'" in said


def test_a_worker_says_which_file_it_uses(newcomer: Newcomer) -> None:
    _, said = newcomer.ojster("worker", "shop:app", "--until-empty")
    assert f"sqlite:///{newcomer.folder}/jobs.db" in said
