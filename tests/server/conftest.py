"""The HTTP application, called in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from ojster.engine.engine import Engine
from ojster.server.app import Application

MEDIA_TYPE = "application/openjobspec+json"


class Http:
    """An HTTP client of the application."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        if body is not None and not isinstance(body, bytes):
            more["json"] = body
        elif body is not None:
            more["content"] = body
        headers = {"Content-Type": MEDIA_TYPE} | more.pop("headers", {})
        return await self.client.request(method, path, headers=headers, **more)

    async def push(self, **body: Any) -> dict[str, Any]:
        response = await self("POST", "/ojs/v1/jobs", {"type": "test.job", "args": []} | body)
        assert response.status_code == 201, response.text
        job: dict[str, Any] = response.json()["job"]
        return job

    async def fetch(self, *queues: str, **more: Any) -> list[dict[str, Any]]:
        response = await self("POST", "/ojs/v1/workers/fetch", {"queues": queues or ["default"]} | more)
        assert response.status_code == 200, response.text
        jobs: list[dict[str, Any]] = response.json()["jobs"]
        return jobs


@pytest.fixture(params=["file", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A database of each kind; what the engine does on others is for its own tests to show."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def http(engine: Engine) -> AsyncIterator[Http]:
    transport = httpx.ASGITransport(app=Application(engine, largest_body=200_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Http(client)
