"""The dashboard on WSGI servers: the same pages and calls, without streams, in each process."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.serving import make_server
from werkzeug.test import create_environ
from werkzeug.wrappers import Response

from ojster.api.app import App
from ojster.dashboard import MAX_BODY_BYTES, WsgiApp, wsgi
from tests.browser import needs_browser
from tests.dashboard.conftest import BUILT, Watched
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from playwright.async_api import Page


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[App]:
    with App(f"sqlite:///{tmp_path}/jobs.db") as made:
        yield made


@pytest.fixture
def site(jobs: App) -> Iterator[str]:
    """The address of a site on a WSGI server with threads, which has the dashboard below ``/ops``."""
    outer = DispatcherMiddleware(Response("the shop"), {"/ops": wsgi(jobs)})
    server = make_server("127.0.0.1", 0, outer, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


def test_the_site_and_the_dashboard_are_side_by_side(site: str) -> None:
    assert httpx.get(f"{site}/").text == "the shop"
    assert httpx.get(f"{site}/ops/ojs/v1/session").json()["is_known"] is True
    assert httpx.get(f"{site}/ops/nowhere").status_code == 404


@BUILT
def test_pages_find_their_files(site: str) -> None:
    page = httpx.get(f"{site}/ops/dashboard/jobs/x")
    assert (page.status_code, '<base href="../">' in page.text) == (200, True)
    assert httpx.get(f"{site}/ops/dashboard").headers["location"] == "dashboard/"


def test_many_callers_push_and_read_at_once(site: str, jobs: App) -> None:
    def push(number: int) -> str:
        answer = httpx.post(f"{site}/ops/ojs/v1/jobs", json={"type": "x", "args": ["a" * 50_000, number]})
        assert answer.status_code == 201, answer.text
        id: str = answer.json()["job"]["id"]
        assert httpx.get(f"{site}/ops/ojs/v1/jobs/{id}").json()["job"]["args"][1] == number
        return id

    with ThreadPoolExecutor(8) as callers:
        ids = set(callers.map(push, range(40)))
    assert len(ids) == 40
    assert {handle.id for handle in map(jobs.find, ids)} == ids, "the application has the same jobs"


def test_a_slash_in_a_name_is_part_of_it(site: str) -> None:
    answer = httpx.get(f"{site}/ops/ojs/v1/job-types/a%2Fb")
    assert (answer.status_code, "a/b" in answer.text) == (404, True), "one name, not two segments of a path"


@pytest.mark.parametrize("path", ["events/changes", "events/stream"])
def test_a_stream_is_refused_because_it_would_keep_a_thread(site: str, path: str) -> None:
    answer = httpx.get(f"{site}/ops/ojs/v1/{path}", timeout=PATIENCE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unsupported")


def test_pages_of_other_sites_are_refused(site: str) -> None:
    answer = httpx.post(
        f"{site}/ops/ojs/v1/jobs", json={"type": "x", "args": []}, headers={"Origin": "http://evil.example"}
    )
    assert answer.status_code == 403


def test_tokens_can_be_asked_for(jobs: App) -> None:
    transport = httpx.WSGITransport(app=wsgi(jobs, guarded=True))
    with httpx.Client(transport=transport, base_url="http://x") as client:
        assert client.get("/ojs/v1/jobs").status_code == 401


def asked(site: WsgiApp, **environ: Any) -> tuple[str, bytes]:
    """Call a WSGI application as a server does; return its status and body."""
    told: list[str] = []
    made = create_environ("/ojs/v1/session") | environ
    body = b"".join(site(made, lambda status, headers, error=None: told.append(status)))
    return told[0], body


def test_a_body_that_ends_too_early_is_refused(jobs: App) -> None:
    """The thread would wait for the rest for ever."""
    status, body = asked(
        wsgi(jobs),
        REQUEST_METHOD="POST",
        CONTENT_LENGTH="100",
        **{"wsgi.input": io.BytesIO(b"{}"), "CONTENT_TYPE": "a"},
    )
    assert (status[:3], body) == ("400", b"The request ended before its body was complete.")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"CONTENT_LENGTH": str(MAX_BODY_BYTES + 1)}, "413"),
        ({"CONTENT_LENGTH": "many"}, "400"),
        ({"PATH_INFO": "/ojs/v1/jobs/\xff"}, "400"),
        ({"QUERY_STRING": "type=\xfc"}, "400"),
        ({"REQUEST_METHOD": "HEAD"}, "200"),
    ],
)
def test_malformed_requests_are_refused_and_heads_answered(jobs: App, environ: dict[str, str], expected: str) -> None:
    assert asked(wsgi(jobs), **environ)[0][:3] == expected


def test_the_path_that_another_program_has_changed_counts(jobs: App) -> None:
    changed = {"PATH_INFO": "/ojs/v1/session", "REQUEST_URI": "/ojs/v1/queues%2f?x=%2f"}
    status, body = asked(wsgi(jobs), **changed)
    assert (status[:3], b'"is_known":true' in body) == ("200", True)


FORKED = """
import os, sys
import httpx
from ojster import App
from ojster.dashboard import wsgi
app = wsgi(App(sys.argv[1]))
def ask():
    with httpx.Client(transport=httpx.WSGITransport(app=app), base_url="http://x") as client:
        return client.get("/dashboard").status_code
child = 0
if sys.argv[2] == "after": assert ask() == 307
child = os.fork()
assert ask() == 307
if child: sys.exit(os.waitpid(child, 0)[1])
os._exit(0)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_each_process_of_a_server_that_forks_has_a_thread_of_its_own(tmp_path: Path, when: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, f"sqlite:///{tmp_path}/jobs.db", when]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


@BUILT
@needs_browser
@pytest.mark.anyio
@pytest.mark.slow
async def test_the_page_reads_again_every_few_seconds(site: str, jobs: App, watched: Watched, page: Page) -> None:
    watched.expected = ("Failed to load resource: the server responded with a status of 422",)
    await page.clock.install()
    await page.goto(f"{site}/ops/dashboard/jobs")
    await page.get_by_text("Every 5 s").wait_for()
    httpx.post(f"{site}/ops/ojs/v1/jobs", json={"type": "mail.send", "args": []})
    await page.clock.run_for(6_000)
    await page.get_by_role("row").filter(has_text="mail.send").wait_for()
    await page.route("**/ping", lambda route: None)
    await page.clock.run_for(18_000)
    await page.get_by_text("No answer", exact=True).wait_for()
    await page.unroute("**/ping")
    await page.clock.run_for(18_000)
    await page.get_by_text("Every 5 s").wait_for()
