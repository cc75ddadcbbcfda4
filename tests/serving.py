"""Servers in the event loop of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from ojster.server.application import Application
from ojster.server.fast_path import QuickHttpProtocol
from ojster.service import Service


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """Run an ASGI application on a free port; yield its URL, and stop it at the end."""
    async with _running(uvicorn.Config(app, port=0, log_level="critical")) as (_, port):
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def serving(service: Service, *, port: int = 0, **more: Any) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """Run a server on a port, by default a free one; yield the server and its port, and stop the server at the end."""
    application = Application(service, **more)
    config = uvicorn.Config(
        application,
        port=port,
        log_level="error",
        http=QuickHttpProtocol,
        ws="websockets-sansio",
        lifespan="off",
        proxy_headers=False,
    )
    async with _running(config) as made:
        try:
            yield made
        finally:  # also if the test has failed: the server waits for all connections
            await application.drain()


@asynccontextmanager
async def _running(config: uvicorn.Config) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield server, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await running
