"""What callers learn while the database is away, and when they are to ask again."""

from __future__ import annotations

import httpx
import pytest

from ojster.core.errors import BackendUnavailable
from ojster.server.application import Application
from ojster.server.request import OUTAGE
from tests.conftest import Bench

pytestmark = pytest.mark.anyio

SECRET = "postgresql://jobs@db.internal/shop?schema=secret"
ASKED = ("/health", "/ojs/v1/health", "/ready", "/ojs/v1/ping", "/ojs/v1/jobs", "/ojs/v1/queues", "/metrics")


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("path", ASKED)
async def test_only_where_callers_need_no_token_do_they_learn_why_the_database_is_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, path: str, guarded: bool
) -> None:
    async def away(*_: object) -> None:
        raise BackendUnavailable(f"The database {SECRET} cannot be used: connection refused.")

    for name in ("run", "read", "survey", "remembered"):
        monkeypatch.setattr(bench.service.database, name, away)
    transport = httpx.ASGITransport(app=Application(bench.service, guarded=guarded))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get(path, headers={"Authorization": "Bearer ojster_a_b"} if guarded else {})
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"
    assert (SECRET in answer.text) != guarded
    assert (OUTAGE in answer.text) == guarded


async def test_a_server_that_stops_says_when_to_ask_again(bench: Bench) -> None:
    bench.service.database.draining = True
    transport = httpx.ASGITransport(app=Application(bench.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get("/ready")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
