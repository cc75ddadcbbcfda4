"""FastAPI and Flask: the examples with their own tests, and what these leave out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastapi
import msgspec
import pytest
from fastapi.testclient import TestClient
from flask import Flask, current_app

from ojster import App, InvalidRequest, JobContext
from ojster.fastapi import job_router
from ojster.flask import Ojster
from ojster.testing import JobTester
from tests import forked
from tests.waiting import PATIENCE

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture
def app(shared_url: str) -> Iterator[App]:
    with App(shared_url) as made:
        yield made


@pytest.mark.parametrize("framework", ["fastapi", "flask", "starlette", "migrating"])
def test_the_tests_of_an_example_pass(framework: str, tmp_path: Path) -> None:
    folder = EXAMPLES / framework
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:logfire",
        "-p",
        "no:pytest_logfire",
        "-c",
        os.devnull,
        f"--rootdir={folder}",
        str(folder),
    ]
    done = forked.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_router_tells_only_of_its_types_and_only_to_whom_it_may(app: App) -> None:
    @app.job("open")
    def open_() -> None: ...

    @app.job("closed")
    def closed() -> None: ...

    def check(key: str = "") -> None:
        if key != "secret":
            raise fastapi.HTTPException(403)

    site = fastapi.FastAPI()
    router = job_router(app, types=["open"], dependencies=[fastapi.Depends(check)])
    site.include_router(router, prefix="/jobs")
    seen, hidden = open_.enqueue().id, closed.enqueue().id
    client = TestClient(site)
    for method, path in (("GET", ""), ("GET", "/events"), ("DELETE", "")):
        assert client.request(method, f"/jobs/{seen}{path}").status_code == 403
        assert client.request(method, f"/jobs/{hidden}{path}?key=secret").status_code == 404
    shown = client.get(f"/jobs/{seen}?key=secret").json()
    assert (shown["state"], shown["attempt"], shown["result"], shown["finished_at"]) == ("available", 0, None, None)
    assert client.delete(f"/jobs/{seen}?key=secret").status_code == 204
    assert client.get(f"/jobs/{seen}?key=secret").json()["state"] == "cancelled"
    (line,) = [line for line in client.get(f"/jobs/{seen}/events?key=secret").text.splitlines() if line[:4] == "data"]
    assert msgspec.json.decode(line.removeprefix("data: "))["state"] == "cancelled"


def test_a_router_tells_of_no_job_by_the_beginning_of_its_id(app: App) -> None:
    @app.job("open")
    def open_() -> None: ...

    site = fastapi.FastAPI()
    site.include_router(job_router(app), prefix="/jobs")
    client = TestClient(site)
    one, _ = (handle.id for handle in open_.enqueue_many([(), ()]))
    for path in (one[:8], one[:-1], f"{one[:-1]}/events"):  # many jobs begin so, or one
        assert client.get(f"/jobs/{path}").status_code == 404
    assert client.delete(f"/jobs/{one[:8]}").status_code == 404
    assert client.get(f"/jobs/{one}").json()["state"] == "available"


def test_each_job_has_a_context_of_flask_of_its_own() -> None:
    jobs = App("sqlite:///unused.db")
    left: list[str] = []

    @jobs.job
    def plain(name: str) -> str:
        assert not hasattr(current_app, "never")
        from flask import g

        g.setdefault("name", name)
        return f"{current_app.name} {g.name}"

    @jobs.job
    async def on_loop(context: JobContext, name: str) -> str:
        return f"{current_app.name} {name}"

    site = Flask("shop")
    Ojster(jobs, site)

    @site.teardown_appcontext
    def tear_down(error: Any) -> None:
        left.append("left")

    with JobTester(jobs) as tester:
        handles = [plain.enqueue("a"), plain.enqueue("b"), on_loop.enqueue("c")]
        tester.drain()
        assert [handle.result() for handle in handles] == ["shop a", "shop b", "shop c"]
    assert left == ["left"] * 3
    with pytest.raises(RuntimeError, match="already connected"):
        Ojster(App(), site)


@pytest.mark.slow
def test_flask_runs_a_worker(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "flask",
        "--app",
        str(EXAMPLES / "flask" / "shop.py"),
        "ojster",
        "worker",
        "--until-empty",
    ]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    push = [sys.executable, "-m", "ojster", "push", "order.ship", "7", "--url", "sqlite:///shop.db"]
    assert forked.run(push, cwd=tmp_path, env=environment).returncode == 0
    done = forked.run(command, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "order.ship completed" in done.stderr


CHILDREN = """
from flask import Flask, current_app
from ojster import App
from ojster.flask import Ojster
jobs = App()
{module}

@jobs.job(process=True, retry=1)
def name() -> str:
    return current_app.name

def create_app(title="shop"):
    app = Flask(title)
    app.config["OJSTER_DATABASE_URL"] = "{url}"
    {factory}
    return app
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "factory"),
    [
        ("extension = Ojster(jobs)", "extension.init_app(app)"),
        ("", "Ojster(jobs, app)"),
    ],
)
@pytest.mark.parametrize(
    ("named", "title"), [("code/kiosk.py", "shop"), ("code/kiosk.py:create_app('other')", "other")]
)
def test_child_processes_of_a_worker_load_the_application_that_flask_has_loaded(
    tmp_path: Path, app: App, module: str, factory: str, named: str, title: str
) -> None:
    (tmp_path / "code").mkdir()
    code = CHILDREN.format(module=module, factory=factory, url=app.url)
    (tmp_path / "code" / "kiosk.py").write_text(code)
    handle = app.job_type("name").enqueue()
    command = [sys.executable, "-m", "flask", "--app", named, "ojster", "worker", "--until-empty"]
    done = forked.run(
        command,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert handle.result(PATIENCE) == title, done.stderr


def test_flask_and_the_environment_name_the_same_database_or_somebody_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Flask("shop")
    url = site.config["OJSTER_DATABASE_URL"] = f"sqlite:///{tmp_path}/config.db"
    with App() as jobs:
        Ojster(jobs, site)
        monkeypatch.setenv("OJSTER_DATABASE_URL", f"sqlite:///{tmp_path}/env.db")
        with pytest.raises(InvalidRequest, match=r"names .*/config.db, and .* names .*/env.db"):
            jobs.service()
        jobs.choose_url(f"sqlite:///{tmp_path}/option.db")
        jobs.service()
    with App() as jobs:
        Ojster(jobs).init_app(Flask("other"))
        jobs.service()
    with App() as jobs:
        monkeypatch.setenv("OJSTER_DATABASE_URL", url)
        site.extensions.clear()
        Ojster(jobs, site)
        jobs.service()
    assert sorted(file.name for file in tmp_path.glob("*.db")) == ["config.db", "env.db", "option.db"]
