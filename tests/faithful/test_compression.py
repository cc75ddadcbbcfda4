"""Compressed requests: accepted within the limits for what they hold."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.conftest import Http

pytestmark = pytest.mark.anyio

LIMIT = 200_000
"""Maximum size of a request of the server in the tests, in bytes."""


def body(size: int) -> bytes:
    return json.dumps({"type": "a", "args": ["x" * size]}).encode()


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "x-gzip"])
async def test_a_compressed_job_is_enqueued(http: Http, encoding: str) -> None:
    raw = gzip.compress(body(10_000))
    answer = await http("POST", "/ojs/v1/jobs", raw, headers={"Content-Encoding": encoding})
    assert answer.status_code == 201, answer.text
    (job,) = await http.fetch()
    assert job["args"] == ["x" * 10_000]


async def test_what_a_request_holds_is_limited(http: Http) -> None:
    raw = gzip.compress(body(100_000_000))
    assert len(raw) < LIMIT
    answer = await http("POST", "/ojs/v1/jobs", raw, headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize(
    ("raw", "encoding", "status"),
    [
        (body(1), "identity", 201),
        (body(1), "gzip", 400),
        (gzip.compress(body(1))[:-4], "gzip", 400),
        (gzip.compress(body(1)) + b"more", "gzip", 400),
        (gzip.compress(body(1)) * 2, "gzip", 400),
        (gzip.compress(gzip.compress(body(1))), "gzip, gzip", 400),
        (body(1), "zstd", 400),
        (b"", "gzip", 400),
    ],
    ids=["plain", "not compressed", "cut", "more after it", "two in a row", "twice", "unknown", "empty"],
)
async def test_malformed_and_unknown_compression_is_refused(http: Http, raw: bytes, encoding: str, status: int) -> None:
    answer = await http("POST", "/ojs/v1/jobs", raw, headers={"Content-Encoding": encoding})
    assert answer.status_code == status, answer.text
