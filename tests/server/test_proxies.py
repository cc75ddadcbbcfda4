"""The address of a caller is what trusted proxies say, and nobody else."""

from __future__ import annotations

import httpx
import pytest

from ojster.audit.entries import AuditQuery
from ojster.core.errors import InvalidRequest
from ojster.server.application import Application
from ojster.server.proxies import TrustedProxies
from tests.conftest import Bench


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "address"),
    [
        ([], "192.0.2.1", None, "192.0.2.1"),
        ([], "192.0.2.1", "203.0.113.9", "192.0.2.1"),
        (["10.0.0.0/8"], "192.0.2.1", "203.0.113.9", "192.0.2.1"),
        (["10.0.0.0/8"], "10.1.2.3", "203.0.113.9", "203.0.113.9"),
        (["10.0.0.0/8"], "10.1.2.3", "198.51.100.7, 203.0.113.9", "203.0.113.9"),
        (["10.0.0.0/8"], "10.1.2.3", "203.0.113.9, 10.9.9.9", "203.0.113.9"),
        (["10.0.0.0/8"], "10.1.2.3", "10.9.9.9", "10.9.9.9"),
        (["10.0.0.0/8"], "10.1.2.3", "203.0.113.9, made up", "10.1.2.3"),
        (["10.0.0.0/8"], "10.1.2.3", "", "10.1.2.3"),
        (["10.0.0.0/8"], "10.1.2.3", None, "10.1.2.3"),
        (["2001:db8::1"], "2001:db8::1", "2001:db8:0::7", "2001:db8::7"),
        (["*"], "192.0.2.1", "198.51.100.7, 203.0.113.9", "198.51.100.7"),
        (["10.0.0.5"], "", "203.0.113.9", ""),
    ],
)
def test_the_last_address_that_no_trusted_proxy_has_is_the_callers(
    trusted: list[str], peer: str, forwarded: str | None, address: str
) -> None:
    assert TrustedProxies(trusted).address_of(peer, forwarded) == address


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no address of a proxy"):
        TrustedProxies(["proxy.example.com"])


@pytest.mark.anyio
@pytest.mark.parametrize(("trusted", "address"), [(["127.0.0.1"], "203.0.113.9"), ([], "127.0.0.1")])
async def test_the_audit_log_has_the_address_that_the_proxy_tells(
    bench: Bench, trusted: list[str], address: str
) -> None:
    app = Application(bench.service, proxies=TrustedProxies(trusted))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://proxied") as client:
        job = await bench.push()
        await client.delete(f"/ojs/v1/jobs/{job.id}", headers={"X-Forwarded-For": "203.0.113.9"})
    (entry,) = await bench.service.audit.select(AuditQuery())
    assert f'"source_ip":"{address}"'.encode() in entry.body
