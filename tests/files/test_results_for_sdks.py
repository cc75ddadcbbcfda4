"""Large results, as the official SDKs read them with their jobs: they cannot follow references to files."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.job import Job
from ojster.files.file import JSON, NewFile
from ojster.files.service import FileService
from ojster.jobs.messages import Acknowledgement
from ojster.server import result_values
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

SDK = {"OJS-Version": "1.0"}
VALUE = {"text": "é" * 40_000, "result_ref": "mine"}
LARGE = msgspec.json.encode(VALUE)


@pytest.fixture
def store_url(tmp_path: Any) -> str:
    return str(tmp_path / "files")


async def complete(bench: Bench, result: bytes = b"", **more: Any) -> Job:
    await bench.push("a", ',"result":{}', **more)
    job = await bench.fetch_one()
    await bench.service.jobs.acknowledge([Acknowledgement(job.id, result)])
    return job


async def shown(http: Http, job: Job, headers: dict[str, str] = SDK) -> dict[str, Any]:
    answer = await http("GET", f"/ojs/v1/jobs/{job.id}", headers=headers)
    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) == len(answer.content)
    read: dict[str, Any] = answer.json()
    return read


async def test_an_sdk_gets_a_large_result_with_its_job_and_others_a_reference(http: Http, bench: Bench) -> None:
    job = await complete(bench, LARGE)
    seen = await shown(http, job)
    assert seen["result"] == seen["job"]["result"] == VALUE
    assert seen["result_size_bytes"] == len(LARGE)
    others = await shown(http, job, {})
    assert others["job"]["result"]["result_ref"].startswith("/ojs/v1/files/")
    assert seen["job"] | {"result": 0, "result_size_bytes": 0} == others["job"] | {"result": 0, "result_size_bytes": 0}
    result = (await http("GET", f"/ojs/v1/jobs/{job.id}/result", headers=SDK)).json()
    assert result["result"] == others["job"]["result"]
    head = await http("HEAD", f"/ojs/v1/jobs/{job.id}", headers=SDK)
    assert (head.status_code, head.content) == (200, b"")


async def test_a_result_beyond_the_limit_or_without_its_file_stays_a_reference(
    http: Http, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await complete(bench, LARGE)
    with monkeypatch.context() as patched:
        patched.setattr(result_values, "MAX_RETURNED_RESULT_BYTES", len(LARGE) - 1)
        assert (await shown(http, job))["job"]["result"].keys() >= {"result_ref", "result_sha256"}
    file = (await shown(http, job, {}))["job"]["result"]["result_ref"].split("/")[-2]
    store = bench.service.files._store
    await store.delete_file(file)
    assert (await shown(http, job))["result"]["result_ref"].endswith(f"/{file}/content")


async def test_what_only_looks_like_a_reference_stays_as_it_is(http: Http, bench: Bench) -> None:
    files: FileService = bench.service.files
    theirs = await files.keep(LARGE, NewFile(content_type="text/plain"))
    made = {"result_ref": f"/ojs/v1/files/{theirs.id}/content", "result_size_bytes": 1}
    for content_type in ("text/plain", JSON):
        value = made | {"result_content_type": content_type, "result_sha256": "0" * 64}
        job = await complete(bench, msgspec.json.encode(value))
        assert (await shown(http, job))["result"] == value
    small = await complete(bench, b'"small"')
    assert (await shown(http, small))["result"] == "small"
