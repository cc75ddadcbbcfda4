"""What a newcomer does wrong ends in a message that says what is wrong, where, and what to do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

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
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "OJSTER_DATABASE_URL": "sqlite:///jobs.db"}
            | environment,
            timeout=60,
        )
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
        (("jobs", "list", "--url", "sqlite:///no/x.db"), 5, ("no database file", "no/x.db", "Check --url")),
        (("jobs", "list", "--url", "http://127.0.0.1:1"), 5, ("127.0.0.1:1", "cannot be reached", "ojster serve")),
        (("worker",), 2, ("APP is missing", "ojster worker shop.jobs:app")),
        (("worker", "sop:app"), 1, ("No module 'sop'", "Check the name")),
        (("worker", "shop:ap"), 1, ("'shop' has no App named 'ap'", "It has app.")),
        (("worker", "empty"), 1, ("0 Apps", "Create one in", "empty.py")),
        (("worker", "sys:app"), 1, ("'sys' has no App named 'app'", "Create one in sys")),
        (("worker", "jobs:app"), 1, ("import each other in a circle", "jobs.py", "--include")),
        (("worker", "shop", "--until-empty", "-q", "mial"), 0, ("no handler names the queue 'mial'", "mean 'mail'")),
        (("push", "mail", "x", "--delay", "soon"), 2, ("--delay", "'soon' is not a valid float")),
        (("jobs", "shwo", "x"), 2, ("No such command 'shwo'", "show")),
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


def test_a_database_that_is_somewhere_else_is_named(newcomer: Newcomer) -> None:
    """The application names its database; the command line knows the variable and ``--url`` alone."""
    (newcomer.folder / "a.db").write_text("no database")
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
        ("from ojster import App\nApp('postgres:/x')", ("neither a database", "postgresql://")),
    ],
)
def test_wrong_python_says_what_is_wrong_and_what_to_do(newcomer: Newcomer, code: str, parts: tuple[str, ...]) -> None:
    said = newcomer.python(f"import shop\n{code}")
    for part in parts:
        assert part in said, said


def test_a_wrong_token_is_refused_with_what_to_do(newcomer: Newcomer) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
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
        server.wait(30)


@pytest.mark.parametrize("url", ["jobs.db", "redis://localhost", "sqlite:/jobs.db", "localhost:8080"])
def test_a_worker_of_a_url_that_is_none_says_so_and_ends(newcomer: Newcomer, url: str) -> None:
    code, said = newcomer.ojster("worker", "shop:app", "--url", url)
    assert code == 1
    assert f"The URL {url!r} is neither a database" in said


def test_a_worker_of_a_queue_that_cannot_exist_says_so(newcomer: Newcomer) -> None:
    code, said = newcomer.ojster("worker", "shop:app", "--queues", "High_Prio")
    assert code == 1
    assert "'High_Prio'" in said


def test_a_package_that_is_missing_is_named_also_if_the_module_begins_like_it(newcomer: Newcomer) -> None:
    (newcomer.folder / "absent_jobs.py").write_text("import absent\n")
    code, said = newcomer.run("-m", "ojster", "worker", "absent_jobs:app")
    assert code != 0
    assert "No module named 'absent'" in said


def test_a_worker_says_which_file_it_uses(newcomer: Newcomer) -> None:
    _, said = newcomer.ojster("worker", "shop:app", "--until-empty")
    assert f"sqlite:///{newcomer.folder}/jobs.db" in said
