"""Signals that stop, pause and resume a worker or a server, tested with real processes."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from ojster.api.app import App
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.handlers.job_options import request_of
from tests import forked
from tests.postgres import free_port
from tests.waiting import PATIENCE, answers, until


class Processes:
    """Starts servers and workers of the test handlers, each in its own process."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.log = folder / "log"
        self.running: list[forked.Popen] = []
        self.calls = asyncio.Runner()
        self.app = App(url)

    def start(self, *arguments: str) -> forked.Popen:
        with self.log.open("ab") as log:
            process = forked.Popen(
                [sys.executable, "-m", "ojster", *arguments],
                stderr=log,
                stdout=log,
                env=os.environ | {"OJSTER_DATABASE_URL": self.url},
            )
        self.running.append(process)
        return process

    def worker(self, *arguments: str) -> forked.Popen:
        return self.start("worker", "tests.worker.handlers:app", *arguments)

    def push(self, type: str, *args: object) -> str:
        async def run() -> str:
            (pushed,) = await self.app.client().jobs.enqueue([request_of(type, list(args))])
            return pushed.job.id

        return self.calls.run(run())

    def find(self, id: str) -> Job:
        return self.calls.run(self.app.client().jobs.find(id))

    def have_begun(self, *types: str) -> bool:
        """Whether handlers of these types run: a job is active from its claim on, before its handler has begun."""
        said = self.log.read_text()
        return all(f"{type} begins" in said for type in types)

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
        self.calls.run(self.app.aclose())
        self.calls.close()

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, lambda: self.log.read_text()[-3000:])


@pytest.fixture
def processes(tmp_path: Path, shared_url: str) -> Iterator[Processes]:
    made = Processes(tmp_path, shared_url)
    yield made
    made.close()


def test_sigterm_lets_a_job_finish(processes: Processes) -> None:
    worker = processes.worker()
    id = processes.push("sleep", 1.0)
    processes.until(lambda: processes.have_begun("sleep"))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    assert processes.find(id).state == "completed"


def test_sigterm_hands_back_what_takes_longer_than_the_grace_period(processes: Processes) -> None:
    worker = processes.worker("--grace", "0.2")
    id = processes.push("sleep", 60.0)
    processes.until(lambda: processes.have_begun("sleep"))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    job = processes.find(id)
    assert (job.state, job.attempt) == ("available", 0)


def test_sigint_hands_back_at_once(processes: Processes) -> None:
    worker = processes.worker()
    id = processes.push("sleep", 60.0)
    processes.until(lambda: processes.have_begun("sleep"))
    worker.send_signal(signal.SIGINT)
    assert worker.wait(PATIENCE) == 0
    assert processes.find(id).state == "available"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grace", "numbers"),
    [("0.2", [signal.SIGTERM]), ("300", [signal.SIGINT]), ("300", [signal.SIGTERM, signal.SIGTERM])],
)
def test_a_worker_ends_although_a_handler_does_not(
    processes: Processes, grace: str, numbers: list[signal.Signals]
) -> None:
    """What has stopped is handed back. What still runs is not: its job is lost with the process."""
    worker = processes.worker("--grace", grace)
    stubborn = [processes.push(type) for type in ("endless", "endless.thread")]
    others = [processes.push(type, 60.0) for type in ("sleep", "sleep.thread")]
    ids = (*stubborn, *others)
    processes.until(lambda: all(processes.find(id).state == "active" for id in ids))
    processes.until(lambda: processes.have_begun("endless", "endless.thread"))
    for number in numbers:
        worker.send_signal(number)
        processes.until(lambda: "the state terminate" in processes.log.read_text())  # else two would count as one
    assert worker.wait(PATIENCE) == 0
    jobs = [processes.find(id) for id in ids]
    assert [(job.state, job.attempt) for job in jobs] == [("active", 1)] * 2 + [("available", 0)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_after_the_grace_period_ends_a_worker_with_a_blocked_event_loop(
    processes: Processes, number: signal.Signals
) -> None:
    worker = processes.worker("--grace", "0.1")
    id = processes.push("endless.block")
    processes.until(lambda: processes.have_begun("endless.block"))
    worker.send_signal(number)
    time.sleep(2)  # the grace period; a process whose event loop is blocked says nothing
    assert worker.poll() is None
    worker.send_signal(number)
    assert worker.wait(PATIENCE) == -number
    assert processes.find(id).state == "active"


def test_a_server_that_was_away_for_longer_than_a_lease_costs_no_attempt(processes: Processes) -> None:
    port = str(free_port())
    server = processes.start("serve", "--port", port, "--migrate")
    processes.worker("--url", f"http://127.0.0.1:{port}", "--lease", "2")
    id = processes.push("sleep", 2.0)
    processes.until(lambda: processes.have_begun("sleep"))
    server.kill()
    server.wait()
    time.sleep(4)  # the job ends, and its lease too
    processes.start("serve", "--port", port)
    processes.until(lambda: processes.find(id).state not in ("active", "available", "retryable"))
    job = processes.find(id)
    assert (job.state, job.attempt, job.losses) == ("completed", 1, 0), processes.log.read_text()[-2000:]


def test_sigtstp_pauses_and_sigcont_resumes(processes: Processes) -> None:
    worker = processes.worker()
    first = processes.push("echo", 1)
    processes.until(lambda: processes.find(first).state == "completed")
    worker.send_signal(signal.SIGTSTP)
    processes.until(lambda: "the state quiet" in processes.log.read_text())
    second = processes.push("echo", 2)
    time.sleep(0.3)
    assert processes.find(second).state == "available"
    worker.send_signal(signal.SIGCONT)
    processes.until(lambda: processes.find(second).state == "completed")


def test_a_job_that_kills_its_worker_does_not_take_its_neighbors_along(processes: Processes, tmp_path: Path) -> None:
    """After the first death they run alone, one by one, and only the guilty one dies again."""
    innocent = [processes.push("innocent", number) for number in range(3)]
    guilty = processes.push("abort")
    innocent += [processes.push("innocent", number) for number in range(3, 6)]
    deaths = 0
    while any(processes.find(id).state != "completed" for id in innocent):
        worker = processes.worker("--identity", str(tmp_path / "identity"), "--concurrency", "8")
        processes.until(
            lambda worker=worker: (
                worker.poll() is not None  # type: ignore[misc]
                or all(processes.find(id).state == "completed" for id in innocent)
            )
        )
        if worker.poll() is None:
            break
        deaths += 1
        assert deaths < 8, processes.log.read_text()[-3000:]
    found = [processes.find(id) for id in innocent]
    assert {(job.state, job.losses) for job in found} == {("completed", 1)}
    assert processes.find(guilty).losses >= 2


def test_the_job_of_a_killed_worker_runs_again_on_another(processes: Processes) -> None:
    first = processes.worker("--lease", "1")
    id = processes.push("sleep", 1.5)
    processes.until(lambda: processes.have_begun("sleep"))
    first.kill()
    processes.worker("--lease", "1")
    processes.until(lambda: processes.find(id).state == "completed")
    job = processes.find(id)
    assert job.attempt == 2
    assert b"visibility_timeout" in (job.errors or b"")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
def test_children_and_what_they_have_started_die_with_their_worker(
    processes: Processes, tmp_path: Path, number: signal.Signals
) -> None:
    """A job that goes on after its worker's death would overlap with its next attempt."""
    path = tmp_path / "pids"
    worker = processes.worker("--grace", "0.1")
    processes.push("orphan", str(path))
    processes.until(lambda: path.exists() and path.read_text().count(" ") == 1)
    pids = [int(pid) for pid in path.read_text().split()]
    worker.send_signal(number)
    processes.until(lambda: worker.poll() is not None)
    processes.until(lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_stopping_server_answers_parked_fetches_at_once(processes: Processes) -> None:
    port = free_port()
    server = processes.start("serve", "--database", processes.url, "--port", str(port))
    url = f"http://127.0.0.1:{port}/ojs/v1"

    processes.until(lambda: answers(f"{url}/health"))
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as waiting:
        waiting.request("POST", "/ojs/v1/workers/fetch", '{"queues": ["q"], "wait_ms": 60000}')
        assert answers(f"{url}/health")  # the server has read what was sent before
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
        assert json.loads(waiting.getresponse().read()) == {"jobs": []}


def test_s88_a_restarted_worker_gives_back_at_once_what_it_held_when_it_was_killed(
    processes: Processes, tmp_path: Path
) -> None:
    identity = tmp_path / "identity"
    options = ("--identity", str(identity), "--lease", "600")
    first = processes.worker(*options)
    processes.until(lambda: identity.exists() and identity.read_text().strip() != "")
    second = processes.worker(*options)
    assert second.wait(PATIENCE) == 1  # another worker has this identity
    assert "Another worker runs with the identity" in processes.log.read_text()
    id = processes.push("sleep", 1.0)
    processes.until(lambda: processes.find(id).state == "active")
    holder = processes.find(id).worker_id
    assert identity.read_text().strip() == holder
    first.send_signal(signal.SIGKILL)
    first.wait()
    processes.worker(*options)
    processes.until(lambda: processes.find(id).state == "completed")
    found = processes.find(id)
    assert (found.worker_id, found.attempt) == (holder, 2)  # long before its lease of ten minutes expires


def test_a_file_that_holds_no_identity_is_refused(processes: Processes, tmp_path: Path) -> None:
    identity = tmp_path / "identity"
    identity.write_text("not an identity\nat all")
    assert processes.worker("--identity", str(identity)).wait(PATIENCE) == 1
    assert "not a worker id" in processes.log.read_text()
    assert processes.worker("--identity", str(tmp_path / "no" / "such")).wait(PATIENCE) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux confines code")
def test_a_worker_without_an_application_runs_only_code(processes: Processes) -> None:
    assert processes.start("worker", "--url", processes.url).wait(PATIENCE) == 2
    processes.start("worker", "--url", processes.url, "--code-tasks", "confined", "--code-value", "answer=42")
    plain = processes.push("echo", 1)
    request = b'{"type":"ojster.code","args":[1],"ojster_code":{"body":"def body(job, n): return answer + n"}}'

    async def push() -> str:
        app = App(processes.url)
        (pushed,) = await app.client().jobs.enqueue([read_members(request)])
        await app.aclose()
        return pushed.job.id

    id = asyncio.run(push())
    processes.until(lambda: processes.find(id).state == "completed")
    assert processes.find(id).result == b"43"
    assert "confined by" in processes.log.read_text()
    assert processes.find(plain).state != "completed"
