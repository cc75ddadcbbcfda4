"""File stores of each kind: directories, and buckets on an S3-compatible server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from ojster.core.ids import new_id
from ojster.files import service as streams
from ojster.files.open import open_store
from ojster.files.store import FileStore
from ojster.service import Service
from ojster.storage.database import Database

PIECE = 1000
"""Size of a file piece in these tests, in bytes."""


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of an S3-compatible server."""
    from moto.server import ThreadedMotoServer  # its import takes a quarter of a second of each test process

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_url(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket, with its credentials in the environment."""
    bucket = f"files-{new_id()}"
    assert httpx.put(f"{s3_server}/{bucket}").is_success
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://{bucket}/some/prefix"


@pytest.fixture(params=["directory", "s3"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "files")
    return str(request.getfixturevalue("s3_url"))


@pytest.fixture
def store(store_url: str) -> FileStore:
    return open_store(store_url)


@pytest.fixture
def url(shared_url: str) -> str:
    return shared_url


@pytest.fixture
async def service(database: Database, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    """A service with a file store and small file pieces."""
    monkeypatch.setattr(streams, "CHUNK_BYTES", PIECE)
    made = Service(database, store=store)
    yield made
    await made.maintenance.stop()
