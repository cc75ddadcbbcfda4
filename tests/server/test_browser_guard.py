"""Requests that web pages make a browser send to a server without tokens; headers that come twice or late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from ojster.core.access import Grant, Role
from ojster.server.browser_guard import LOOPBACK_HOSTS, BrowserGuard
from ojster.service import Service
from tests.conftest import Bench
from tests.serving import serving
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

JOB = json.dumps({"type": "t", "args": []}).encode()


@pytest.fixture
async def port(service: Service) -> AsyncIterator[int]:
    guard = BrowserGuard({*LOOPBACK_HOSTS, "jobs.example.com"}, ["https://dashboard.example.com"])
    async with serving(service, guard=guard) as (_, number):
        yield number


async def send(port: int, head: str, body: bytes = b"", trailer: bytes = b"") -> tuple[int, str]:
    """Send a request as it is; return the status and the text of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.replace("\n", "\r\n").encode() + b"\r\n" + body + trailer)
    status = await asyncio.wait_for(reader.readline(), PATIENCE)
    rest = b""
    while b"\r\n\r\n" not in rest:
        rest += await asyncio.wait_for(reader.read(65_536), PATIENCE)
    writer.close()
    return int(status.split()[1]), rest.decode()


def push(host: str, **headers: str) -> str:
    lines = [f"{name.replace('_', '-')}: {value}\n" for name, value in headers.items()]
    kind = "Content-Type: application/json\n" + f"Content-Length: {len(JOB)}\n"
    return f"POST /ojs/v1/jobs HTTP/1.1\nHost: {host}\n{kind}{''.join(lines)}"


@pytest.mark.parametrize(
    ("host", "headers", "status"),
    [
        ("localhost", {}, 201),
        ("127.0.0.1:{port}", {}, 201),
        ("[::1]:{port}", {}, 201),
        ("LOCALHOST", {}, 201),
        ("jobs.example.com", {"Origin": "https://jobs.example.com"}, 201),
        ("localhost:{port}", {"Origin": "http://localhost:{port}", "Sec_Fetch_Site": "same-origin"}, 201),
        ("localhost:{port}", {"Origin": "https://dashboard.example.com", "Sec_Fetch_Site": "cross-site"}, 201),
        ("localhost:{port}", {"Sec_Fetch_Site": "none"}, 201),
        ("rebound.example.net", {}, 403),
        ("rebound.example.net", {"Origin": "http://rebound.example.net"}, 403),
        ("localhost.example.net", {}, 403),
        ("localhost@example.net", {}, 403),
        ("example.net/localhost", {}, 403),
        ("", {}, 403),
        ("[", {}, 403),
        ("[localhost]", {}, 403),
        ("localhost:{port}", {"Origin": "http://localhost:3000", "Sec_Fetch_Site": "same-site"}, 403),
        ("localhost:{port}", {"Origin": "null"}, 403),
        ("localhost:{port}", {"Origin": "https://example.net", "Sec_Fetch_Site": "cross-site"}, 403),
        ("localhost:{port}", {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}, 403),
    ],
)
async def test_only_its_own_pages_and_names_reach_a_server_without_tokens(
    bench: Bench, port: int, host: str, headers: dict[str, str], status: int
) -> None:
    filled = {name: value.format(port=port) for name, value in headers.items()}
    answered, text = await send(port, push(host.format(port=port), **filled), JOB)
    assert answered == status, text
    assert await bench.service.jobs.count() == ({} if status == 403 else {"default": {"available": 1}})


async def test_a_link_on_another_site_may_lead_here(port: int) -> None:
    head = f"GET /docs HTTP/1.1\nHost: localhost:{port}\nSec-Fetch-Site: cross-site\nSec-Fetch-Mode: navigate\n"
    assert (await send(port, head))[0] == 200


@pytest.mark.parametrize("path", ["/events/stream", "/jobs", "/queues"])
async def test_pages_of_others_read_nothing(port: int, path: str) -> None:
    head = f"GET /ojs/v1{path} HTTP/1.1\nHost: localhost:{port}\nOrigin: https://example.net\n"
    status, text = await send(port, head)
    assert (status, "may not call this server" in text) == (403, True)


async def test_a_probe_without_a_host_is_no_browser(port: int) -> None:
    assert (await send(port, "GET /health HTTP/1.0\n"))[0] == 200
    assert (await send(port, "GET /health HTTP/1.0\nOrigin: https://example.net\n"))[0] == 403


@pytest.mark.parametrize(("host", "origin"), [("rebound.example.net", None), (None, "https://example.net")])
async def test_nor_do_they_open_a_websocket(port: int, host: str | None, origin: str | None) -> None:
    headers = {} if host is None else {"Host": host}
    with pytest.raises(InvalidStatus):
        await connect(
            f"ws://127.0.0.1:{port}/ojs/v1/ws",
            origin=None if origin is None else Origin(origin),
            additional_headers=headers,
        )


@pytest.mark.parametrize("name", ["Authorization", "Host", "X-OJS-Tenant", "Content-Type", "Origin", "OJS-Version"])
async def test_a_header_that_decides_may_not_come_twice(bench: Bench, port: int, name: str) -> None:
    twice = f"{name}: 1.0\n{name.lower()}: 1.0\n"
    status, text = await send(port, push(f"localhost:{port}") + twice, JOB)
    assert (status, f"{name.lower()!r} occurs twice" in text) == (400, True), text
    assert await bench.service.jobs.count() == {}


async def test_trailers_are_no_headers(service: Service, bench: Bench) -> None:
    """A trailer with a token, or a tenant, has no effect."""
    _, token = await service.tokens.create("boss", [Grant(Role.OWNER)])
    async with serving(service, guarded=True) as (_, port):
        body = b"%x\r\n%b\r\n0\r\n" % (len(JOB), JOB)
        for path in ("jobs", "jobs/bulk"):
            head = (
                f"POST /ojs/v1/{path} HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\nTrailer: Authorization\n"
            )
            kind = "Content-Type: application/json\n"
            status, text = await send(port, head + kind, body, f"Authorization: Bearer {token}\r\n\r\n".encode())
            assert status == 401, text
        with_token = head.replace("bulk", "") + kind + f"Authorization: Bearer {token}\n"
        status, text = await send(port, with_token.replace("jobs/", "jobs"), body, b"X-OJS-Tenant: acme\r\n\r\n")
        assert status == 201, text
        assert "acme" not in text
