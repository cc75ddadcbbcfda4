"""Several worker processes: they are replaced, started again, and end together."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ojster import App, JobHandle
from ojster.cli.supervisor import ProcessCommand, Supervisor
from ojster.server.counts import SharedCounts, add_up
from tests import forked
from tests.postgres import free_port
from tests.waiting import PATIENCE, answers, until

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

CODE = """
import os, time
from ojster import App
app = App()

@app.job("who")
def who(seconds: float = 0, size: int = 0) -> int:
    bytearray(size << 20)
    time.sleep(seconds)
    return os.getpid()
"""


class Commands:
    """The ``ojster`` command in a folder with an application."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.environment = {"OJSTER_DATABASE_URL": url, "PATH": os.environ["PATH"], "HOME": str(folder)}
        (folder / "mine.py").write_text(CODE)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return forked.run([sys.executable, "-m", "ojster", *arguments], cwd=self.folder, env=self.environment)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[psutil.Popen]:
        process = psutil.Popen([sys.executable, "-m", "ojster", *arguments], cwd=self.folder, env=self.environment)
        try:
            yield process
            family = process.children(recursive=True)
            process.terminate()
            assert process.wait(PATIENCE) == 0
            until(lambda: not any(one.is_running() for one in family))
        finally:
            for one in [*process.children(recursive=True), process] if process.is_running() else []:
                one.kill()


@pytest.fixture
def commands(tmp_path: Path, shared_url: str) -> Commands:
    return Commands(tmp_path, shared_url)


@pytest.fixture
def app(shared_url: str) -> Iterator[App]:
    with App(shared_url) as made:
        yield made


def enqueue(app: App, number: int, *args: float) -> list[JobHandle[int]]:
    if "who" not in app.handlers:

        @app.job("who")
        def who(seconds: float = 0, size: int = 0) -> int:
            return 0

    return app.handlers["who"].enqueue_many([args] * number)


def both_that_run(app: App) -> set[int]:
    """Enqueue jobs until two processes have run some; return the processes."""
    seen: set[int] = set()

    def are_two() -> bool:
        seen.update(handle.result(PATIENCE) for handle in enqueue(app, 2, 0.1))
        return len(seen) == 2

    until(are_two)
    return seen


def test_worker_processes_are_replaced_after_so_many_jobs(commands: Commands, app: App) -> None:
    handles = enqueue(app, 10)
    done = commands.run("worker", "mine:app", "--processes", "2", "--max-jobs", "3", "-c", "1", "--until-empty")
    assert done.returncode == 0, done.stderr
    counted = Counter(handle.result(PATIENCE) for handle in handles)
    assert len(counted) >= 4
    assert max(counted.values()) == 3
    assert "it has run 3 jobs" in done.stderr


def test_a_worker_process_is_replaced_when_it_has_become_too_large(commands: Commands, app: App) -> None:
    before, large, after = enqueue(app, 1)[0], enqueue(app, 1, 0, 400)[0], enqueue(app, 1)[0]
    done = commands.run(*["worker", "mine:app", "--max-memory", "300", "--concurrency", "1", "--until-empty"])
    assert done.returncode == 0, done.stderr
    assert before.result(PATIENCE) == large.result(PATIENCE) != after.result(PATIENCE)


def test_a_worker_process_that_is_killed_is_started_again(commands: Commands, app: App) -> None:
    with commands.running(*["worker", "mine:app", "--processes", "2", "--concurrency", "1"]) as process:
        before = both_that_run(app)
        assert before == {child.pid for child in process.children()}
        killed = min(before)
        os.kill(killed, signal.SIGKILL)
        until(lambda: {child.pid for child in process.children()} - before)
        after = both_that_run(app)
    assert killed not in after


def test_a_command_that_is_wrong_is_not_tried_for_ever(commands: Commands) -> None:
    done = commands.run(*["worker", "no_such_module:app", "--processes", "2"])
    assert done.returncode == 1
    assert "No module 'no_such_module'" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="waits for an end without taking the exit code")
async def test_a_signal_to_a_process_that_has_just_ended_leaves_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.version_info < (3, 12):  # the default there waits in a thread, and takes the exit code at once
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        monkeypatch.setattr(asyncio.get_event_loop_policy(), "_watcher", watcher)
    supervisor = Supervisor([ProcessCommand((sys.executable, "-c", "raise SystemExit(3)"))])
    running = asyncio.create_task(supervisor.run())
    while not supervisor._running and not running.done():
        await asyncio.sleep(0)
    os.waitid(os.P_PID, supervisor._running[0].pid, os.WEXITED | os.WNOWAIT)
    supervisor._pass_on(signal.SIGCONT)
    assert await running == 3


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_health_file_tells_whether_all_workers_are_well(commands: Commands, processes: str) -> None:
    file = commands.folder / "healthy"
    assert "does not exist" in commands.run("healthy", str(file)).stderr
    with commands.running("worker", "mine:app", "--processes", processes, "--health-file", str(file)):
        until(file.exists)
        assert "seconds ago" in commands.run("healthy", str(file)).stdout
        first = file.stat().st_mtime
        until(lambda: file.stat().st_mtime > first)
    assert list(commands.folder.glob("healthy*")) == []
    file.touch()
    os.utime(file, (time.time() - 40, time.time() - 40))
    hung = commands.run("healthy", str(file))
    assert hung.returncode == 1
    assert re.search(r"The last heartbeat was [45]\d seconds ago", hung.stderr), hung.stderr
    assert commands.run("healthy", str(file), "--max-age", "60").returncode == 0


def test_a_server_and_workers_run_as_one_service(commands: Commands, app: App) -> None:
    port = free_port()
    health = f"http://127.0.0.1:{port}/ojs/v1/health"
    with commands.running("run", "mine:app", "--port", str(port)) as process:
        until(lambda: answers(health))
        ready = commands.run("healthy", f"http://127.0.0.1:{port}")
        assert (ready.returncode, '"ready"' in ready.stdout) == (0, True), ready.stderr
        (handle,) = enqueue(app, 1)
        worker = handle.result(PATIENCE)
        (server,) = [child for child in process.children() if child.pid != worker]
        server.kill()
        until(lambda: not answers(health))
        until(lambda: answers(health))
        assert enqueue(app, 1)[0].result(PATIENCE) == worker
    gone = commands.run("healthy", f"http://127.0.0.1:{port}")
    assert (gone.returncode, "does not answer" in gone.stderr) == (1, True)


def test_workers_that_are_quiet_stay_quiet_when_they_are_replaced(commands: Commands, app: App) -> None:
    with commands.running(*["worker", "mine:app", "--processes", "2", "--concurrency", "1", "--"]) as process:
        until(lambda: len(process.children()) == 2)
        process.send_signal(signal.SIGTSTP)  # before they can heed it
        before = process.children()
        until(lambda: states_of_workers(app) == ["quiet", "quiet"])
        for one in before:
            one.kill()
        until(lambda: not any(one.is_running() for one in before) and len(process.children()) == 2)
        until(lambda: states_of_workers(app).count("quiet") >= 4)
        (second,) = enqueue(app, 1)
        with pytest.raises(TimeoutError):
            second.result(1)
        process.send_signal(signal.SIGCONT)
        second.result(PATIENCE)


def states_of_workers(app: App) -> list[str]:
    async def look() -> list[str]:
        async with App(app.url) as own:
            return [worker.state for worker in await own.client().fleet.all()]

    return asyncio.run(look())


def test_a_health_file_without_a_folder_is_refused_at_once(commands: Commands) -> None:
    done = commands.run(*["worker", "mine:app", "--health-file", "/no/such/folder/healthy"])
    assert (done.returncode, "there is no folder /no/such/folder" in done.stderr) == (2, True)


def test_a_service_runs_orchestrators_and_shows_no_password(commands: Commands, app: App) -> None:
    (commands.folder / "mine.py").write_text(
        CODE + "\nfrom ojster import Orchestrator\n\n@app.orchestrator()\nclass Layout(Orchestrator): ...\n"
    )
    port = free_port()
    with commands.running("run", "mine:app", "--port", str(port)) as process:
        until(lambda: len(process.children()) == 2)
        lines = [child.cmdline() for child in process.children()]
        assert sorted("--app" in line for line in lines) == [False, True]
        (worker,) = [line for line in lines if "worker" in line]
        assert not any("://" in word for word in worker)
        until(lambda: answers(f"http://127.0.0.1:{port}/ojs/v1/health"))


@pytest.mark.parametrize("command", ["run", "dev"])
def test_the_server_of_a_service_starts_orchestrators_of_included_modules(commands: Commands, command: str) -> None:
    (commands.folder / "more.py").write_text(
        "from mine import app, who\nfrom ojster import Orchestrator\n\n"
        '@app.orchestrator("nightly")\nclass Nightly(Orchestrator):\n'
        '    def populate(self): self.ensure("one", who.s())\n'
    )
    url = f"http://127.0.0.1:{free_port()}"
    with commands.running(command, "mine:app", "--include", "more", "--port", url.rpartition(":")[2]):
        until(lambda: answers(f"{url}/ojs/v1/health"))
        started = httpx.post(f"{url}/ojs/v1/workflows", json={"orchestrator": "nightly"}, timeout=PATIENCE)
        assert started.status_code == 201, started.text
        run = f"{url}/ojs/v1/workflows/{started.json()['workflow']['id']}"
        until(lambda: httpx.get(run, timeout=PATIENCE).json()["workflow"]["state"] == "completed")


@pytest.mark.parametrize("command", ["run", "dev"])
def test_the_server_of_a_service_keeps_files_where_the_application_does(commands: Commands, command: str) -> None:
    (commands.folder / "filed.py").write_text(
        "import mine\nfrom ojster import App\n\n"
        'app = App(mine.app.url, files="store")\n\n@app.job("file")\ndef file(): ...\n'
    )
    url = f"http://127.0.0.1:{free_port()}"
    with commands.running(command, "filed:app", "--port", url.rpartition(":")[2]):
        until(lambda: answers(f"{url}/ojs/v1/health"))
        stored = httpx.put(f"{url}/ojs/v1/files", content=b"text", timeout=PATIENCE)
        assert stored.is_success, stored.text
    assert list((commands.folder / "store").iterdir())


def requests_counted(url: str) -> int:
    lines = httpx.get(f"{url}/metrics", timeout=PATIENCE).text.splitlines()
    wanted = 'ojs_http_requests_total{endpoint="enqueue",status="201"} '
    return sum(int(float(line.removeprefix(wanted))) for line in lines if line.startswith(wanted))


def requests_written(folder: Path) -> int:
    """Return how many enqueue requests the processes have noted in their files."""
    (counts,) = folder.glob("ojster-*")
    written = add_up(SharedCounts(counts, 0).others()).get("ojs_http_requests", {})
    return sum(sum(series.buckets) for labels, series in written.items() if labels[0] == "enqueue")


def test_processes_of_a_server_share_a_port_and_their_metrics(commands: Commands) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    commands.environment["TMPDIR"] = str(commands.folder)

    def enqueue_over(connections: int) -> None:
        with ThreadPoolExecutor(connections) as pool:
            job = {"type": "who", "args": []}
            sent = [pool.submit(httpx.post, f"{url}/ojs/v1/jobs", json=job, timeout=PATIENCE) for _ in range(40)]
            assert {one.result().status_code for one in sent} == {201}

    with commands.running("serve", "--port", url.rpartition(":")[2], "--processes", "2") as process:
        until(lambda: answers(f"{url}/ojs/v1/health"))
        enqueue_over(8)
        until(lambda: requests_written(commands.folder) == 40)  # one that is killed loses what it has not written
        before = {child.pid for child in process.children()}
        os.kill(min(before), signal.SIGKILL)
        enqueue_over(4)
        until(lambda: len(process.children()) == 2 and {child.pid for child in process.children()} != before)
        until(lambda: {requests_counted(url) for _ in range(10)} == {80})
    assert list(commands.folder.glob("ojster-*")) == []


def test_a_process_of_a_server_that_ends_by_itself_is_started_again(commands: Commands) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with commands.running("serve", "--port", url.rpartition(":")[2], "--processes", "2") as process:
        until(lambda: answers(f"{url}/ojs/v1/health"))
        ended = process.children()[0]
        ended.terminate()
        until(lambda: len(process.children()) == 2 and ended not in process.children())


def test_a_server_of_several_processes_answers_and_ends_after_ctrl_z(commands: Commands) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with commands.running("serve", "--port", url.rpartition(":")[2], "--processes", "2") as process:
        until(lambda: answers(f"{url}/ojs/v1/health"))
        process.send_signal(signal.SIGTSTP)
        for _ in range(10):
            assert httpx.get(f"{url}/ojs/v1/health", timeout=PATIENCE).status_code == 200


def test_several_processes_at_a_port_in_use_are_refused_once(commands: Commands) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = commands.run("serve", "--port", str(port), "--processes", "3")
    assert (done.returncode, done.stderr.count("is in use by another program")) == (5, 1)


def test_processes_of_a_server_share_a_socket_in_the_file_system(commands: Commands) -> None:
    path = commands.folder / "ojster.sock"
    with commands.running("serve", "--socket", str(path), "--processes", "2") as process:
        until(path.exists)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=PATIENCE) as client:
            assert client.get("http://ojster/ojs/v1/health").status_code == 200
        assert len(process.children()) == 2
    assert not path.exists()


async def test_a_machine_that_cannot_start_a_process_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, tries = asyncio.create_subprocess_exec, 0

    async def fail_once(*words: Any, **more: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await start(*words, **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail_once)
    sleeping = ProcessCommand((sys.executable, "-c", "import sys; sys.stdin.read()"))
    supervisor = Supervisor([sleeping, sleeping])
    running = asyncio.create_task(supervisor.run())
    while len(supervisor._running) < 2:
        await asyncio.sleep(0.01)
    supervisor._pass_on(signal.SIGTERM)
    assert await running == 0
    assert tries == 3


@pytest.mark.parametrize(("wait", "times"), [(0.0, 2), (600.0, 1)])
async def test_a_process_that_waited_for_its_database_in_vain_is_no_reason_to_start_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: float, times: int
) -> None:
    """How long it has run says nothing while it may have waited. Without a wait, the second failure is a success."""
    monkeypatch.setattr("ojster.cli.supervisor.SETTLED_SECONDS", 0.0)
    tries = tmp_path / "tries"
    code = f"import pathlib; p = pathlib.Path({str(tries)!r}); n = len(p.read_text()) if p.exists() else 0; "
    code += "p.write_text('x' * (n + 1)); raise SystemExit(0 if n else 5)"
    ended = await Supervisor([ProcessCommand((sys.executable, "-c", code))], wait=wait).run()
    assert (ended, len(tries.read_text())) == (5 if times == 1 else 0, times)
