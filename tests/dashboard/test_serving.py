"""How the files of the dashboard are served."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from ojster.api.app import App
from ojster.dashboard import asgi
from ojster.server import dashboard_page
from tests.conftest import Http
from tests.dashboard.conftest import BUILT

pytestmark = pytest.mark.anyio

LARGEST_LOAD = 250 * 1024
"""Budget of the first load, compressed, in bytes."""


async def page_of(http: Http, path: str) -> str:
    answer = await http("GET", path)
    assert answer.status_code == 200, answer.text
    return answer.text


@BUILT
async def test_every_address_below_is_a_page_that_finds_its_files(http: Http) -> None:
    for path, base in (
        ("", "./"),
        ("jobs", "./"),
        ("jobs/x", "../"),
        ("workflows/x/compare/y", "../../../"),
        ("queues/a%2Fb", "../"),
    ):
        shown = await page_of(http, f"/dashboard/{path}")
        assert f'<base href="{base}">' in shown, path
    answer = await http("GET", "/dashboard")
    assert (answer.status_code, answer.headers["location"]) == (307, "dashboard/")


@BUILT
async def test_the_page_may_load_nothing_from_elsewhere_and_run_no_script_in_its_text(http: Http) -> None:
    answer = await http("GET", "/dashboard/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["cache-control"] == "no-cache"
    assert not re.search(r"<script(?![^>]*src=)", answer.text)
    assert "https://" not in answer.text


@BUILT
async def test_files_are_kept_for_ever_and_come_compressed(http: Http) -> None:
    shown = await page_of(http, "/dashboard/")
    names = re.findall(r'(?:src|href)="\./(assets/[^"]+)"', shown)
    assert len(names) >= 3
    sizes = 0
    for name in names:
        plain = await http("GET", f"/dashboard/{name}", headers={"accept-encoding": "identity"})
        assert plain.status_code == 200
        assert "immutable" in plain.headers["cache-control"]
        packed = await http("GET", f"/dashboard/{name}", headers={"accept-encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == plain.content, "the client has decoded it"
        sizes += len(gzip.compress(plain.content))
    assert sizes <= LARGEST_LOAD


@BUILT
async def test_other_files_are_not_found(http: Http) -> None:
    for name in ("x.js", "..%2findex.html", "../index.html", "index.html", ".js", "x", "%00.js"):
        answer = await http("GET", f"/dashboard/assets/{name}")
        assert answer.status_code == 404 or answer.headers["content-type"].startswith("text/html"), name


async def test_browsers_are_led_from_the_root_to_the_dashboard_and_programs_to_the_description(http: Http) -> None:
    browsers = await http("GET", "/", headers={"accept": "text/html,*/*"})
    programs = await http("GET", "/", headers={"accept": "*/*"})
    assert browsers.headers["location"] == ("dashboard/" if dashboard_page.is_built() else "docs")
    assert programs.headers["location"] == "docs"


async def test_a_server_without_the_built_page_says_how_to_build_it(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard_page, "_page", lambda: None)
    answer = await http("GET", "/dashboard/")
    assert answer.status_code == 503
    assert "make dashboard" in answer.text


@BUILT
@pytest.mark.parametrize("framework", ["starlette", "fastapi"])
async def test_it_is_mounted_below_a_prefix_of_another_application(tmp_path: Path, framework: str) -> None:
    jobs = App(f"sqlite:///{tmp_path}/jobs.db")
    outer: Any
    if framework == "starlette":
        outer = Starlette(routes=[Mount("/ops", asgi(jobs))])
    else:
        outer = FastAPI()
        outer.mount("/ops", asgi(jobs))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=outer), base_url="http://x") as client:
        page = await client.get("/ops/dashboard/jobs/x")
        assert (page.status_code, '<base href="../">' in page.text) == (200, True)
        assert (await client.get("/ops/ojs/v1/session")).json()["is_known"] is True
        pushed = await client.post("/ops/ojs/v1/jobs", json={"type": "x", "args": []})
        assert pushed.status_code == 201
        foreign = await client.post(
            "/ops/ojs/v1/jobs", json={"type": "x", "args": []}, headers={"origin": "http://evil.example"}
        )
        assert foreign.status_code == 403, "pages of others may not use the login of the application"
    await jobs.aclose()


async def test_a_mounted_dashboard_can_ask_for_tokens(tmp_path: Path) -> None:
    jobs = App(f"sqlite:///{tmp_path}/jobs.db")
    outer = Starlette(routes=[Mount("/ops", asgi(jobs, guarded=True))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=outer), base_url="http://x") as client:
        assert (await client.get("/ops/ojs/v1/jobs")).status_code == 401
    await jobs.aclose()
