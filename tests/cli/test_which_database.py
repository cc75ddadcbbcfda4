"""One rule says which database a program, a worker and each command use."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import ojster.cli
from ojster import App, InvalidRequest
from ojster.cli.main import cli
from ojster.storage.database import URL_VARIABLE, are_same
from tests import forked
from tests.waiting import PATIENCE

PROGRAM = """
import os, subprocess, sys
from ojster import App
app = App({url})
@app.job("which", process={process})
def which() -> str:
    return str(os.environ.get("OJSTER_DATABASE_URL"))
@app.job("child", process=True)
def child() -> str:
    which.enqueue()
    script = "import os; print(os.environ.get('OJSTER_DATABASE_URL'))"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip()
if __name__ == "__main__":
    print(which.enqueue().id)
"""


class Folder:
    """Runs a program and commands in a folder of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, url: str | None, *, process: bool = False) -> None:
        (self.path / "shop.py").write_text(PROGRAM.format(url="" if url is None else repr(url), process=process))

    def __call__(self, *arguments: str, variable: str | None) -> tuple[int, str]:
        environment = {name: value for name, value in os.environ.items() if name != URL_VARIABLE}
        if variable is not None:
            environment[URL_VARIABLE] = variable
        ended = forked.run([sys.executable, *arguments], cwd=self.path, env=environment)
        return ended.returncode, ended.stdout + ended.stderr

    def files(self) -> list[str]:
        return sorted(file.name for file in self.path.glob("*.db"))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


WORKER = ("-m", "ojster", "worker", "shop:app", "--until-empty")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "variable", "option", "used"),
    [
        (None, None, None, "ojster.db"),
        (None, "sqlite:///env.db", None, "env.db"),
        ("sqlite:///code.db", None, None, "code.db"),
        ("sqlite:///code.db", "sqlite:///code.db", None, "code.db"),
        ("sqlite:///code.db", "sqlite:///env.db", "sqlite:///option.db", "option.db"),
        ("sqlite:///code.db", "sqlite:///env.db", None, None),
    ],
)
def test_a_program_a_worker_and_a_command_use_the_same_database_or_say_that_they_would_not(
    folder: Folder, written: str | None, variable: str | None, option: str | None, used: str | None
) -> None:
    folder.write(written)
    chosen = () if option is None else ("--url", option)
    if option is None:
        code, said = folder("shop.py", variable=variable)
        assert (code == 0) == (used is not None), said
    code, said = folder(*WORKER, *chosen, variable=variable)
    assert (code == 0) == (used is not None), said
    if used is None:
        words = " ".join(said.split())
        assert "The program names sqlite:///code.db, and $OJSTER_DATABASE_URL names sqlite:///env.db" in words
        assert "to use the variable, or unset it" in words
    assert folder.files() == ([] if used is None else [used])


def test_what_the_program_and_the_environment_name_is_compared_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(URL_VARIABLE, "postgresql://ada:secret@db/jobs")
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    with pytest.raises(InvalidRequest, match=r"postgresql://ada:.*@db/jobs") as refusal:
        app.service()
    assert "secret" not in str(refusal.value)
    app.choose_url(app.url)
    app.service()
    app.close()
    with App("sqlite:///:memory:") as memory:
        memory.service()


def test_a_relative_and_an_absolute_path_may_name_the_same_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert are_same("sqlite:///jobs.db", f"sqlite:///{tmp_path}/jobs.db")
    assert not are_same("sqlite:///jobs.db", "sqlite:///other.db")
    assert not are_same("sqlite:///jobs.db", "postgresql://db/jobs")


@pytest.mark.slow
@pytest.mark.parametrize("named", ["--url", URL_VARIABLE])
def test_child_processes_of_handlers_enqueue_but_do_not_pass_on_the_url(folder: Folder, named: str) -> None:
    folder.write(None, process=True)
    url = f"sqlite:///{folder.path}/jobs.db"
    app = App()
    app.choose_url(url)
    handle = app.job_type("child").enqueue()
    option = (named, url) if named == "--url" else ()
    code, said = folder(*WORKER, *option, variable=None if option else url)
    assert code == 0, said
    assert handle.result(PATIENCE) == "None"
    jobs = app._event_loop_thread.call(app.service().jobs.select())
    assert sorted((job.type, job.state, job.result) for job in jobs.jobs) == [
        ("child", "completed", b'"None"'),
        ("which", "completed", b'"None"'),
    ]
    app.close()


def test_commands_use_the_database_also_where_applications_are_eager(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if ":memory:" in url:
        pytest.skip("each command has a database in memory of its own")
    monkeypatch.setenv("OJSTER_EAGER", "1")
    for command in (
        "push mail 1",
        "queues pause mail",
        "cron add nightly @daily mail",
        "tokens create ci --role owner",
        "jobs cancel --queue default --yes",
    ):
        done = CliRunner().invoke(cli, [*command.split(), "--url", url])
        assert done.exit_code == 0, done.output
    monkeypatch.delenv("OJSTER_EAGER")
    for listing, name in (
        ("jobs list --state cancelled", "mail"),
        ("queues list", "paused"),
        ("cron list", "nightly"),
        ("tokens list", "ci"),
    ):
        assert name in CliRunner().invoke(cli, [*listing.split(), "--url", url]).output


def test_no_application_of_a_command_asks_the_environment_whether_it_is_eager() -> None:
    for path in Path(ojster.cli.__path__[0]).rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "App":
                assert "eager" in {keyword.arg for keyword in call.keywords}, f"{path.name}:{call.lineno}"
