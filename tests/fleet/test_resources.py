"""Requirements of jobs and capabilities of workers, over HTTP and in Python.

Spec: ojs-ml-resources
"""

from __future__ import annotations

from typing import Any

import pytest

from ojster import App, Worker
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

A100 = {"accelerator": "gpu", "gpu": {"type": "nvidia-a100", "count": 8}, "labels": {"region": "eu"}}
CONFIG = "/ojs/v1/admin/queues/default/config"


async def push(http: Http, status: int = 201, **ml: Any) -> dict[str, Any]:
    body = {"type": "train", "args": []} | {f"ext_ml_{name}": value for name, value in ml.items()}
    response = await http("POST", "/ojs/v1/jobs", body)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def fetch(http: Http, **more: Any) -> list[str]:
    response = await http("POST", "/ojs/v1/workers/fetch", {"queues": ["default"], "count": 9, "worker_id": "w"} | more)
    assert response.status_code == 200, response.text
    return [job["id"] for job in response.json()["jobs"]]


async def test_a_worker_sends_its_capabilities_in_a_fetch_or_a_heartbeat(http: Http) -> None:
    first = (await push(http, gpu_type="nvidia-a100", node_selector={"region": "eu"}))["job"]
    assert (first["state"], first["ext_ml_gpu_type"]) == ("available", "nvidia-a100")
    assert await fetch(http) == await fetch(http, capabilities={}) == []
    assert await fetch(http, capabilities=A100) == [first["id"]]
    second = (await push(http, gpu_count=7))["job"]
    await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "capabilities": A100})
    assert await fetch(http) == [second["id"]]


async def test_invalid_capabilities_and_requirements_are_rejected(http: Http) -> None:
    for path in ("fetch", "heartbeat"):
        body = {"worker_id": "w", "queues": ["default"], "capabilities": {"gpu": "a100"}}
        response = await http("POST", f"/ojs/v1/workers/{path}", body)
        assert (response.status_code, response.json()["error"]["details"]["field"]) == (400, "capabilities.gpu")
    response = await http("POST", "/ojs/v1/workers/fetch", {"queues": ["default"], "capabilities": A100})
    assert (response.status_code, response.json()["error"]["details"]["field"]) == (400, "worker_id")
    assert (await push(http, 400, gpu_count=0, gpu_type="nvidia-t4"))["error"]["code"] == "invalid_request"


async def test_the_rules_of_a_queue_are_set_shown_kept_and_taken_away(http: Http) -> None:
    rules = {"ml_defaults": {"ext_ml_gpu_count": 1}, "ml_limits": {"max_gpu_count": 4, "allowed_gpu_types": ["a", "b"]}}
    response = await http("PUT", CONFIG, rules)
    assert response.json()["configuration"] == rules
    await http("PUT", CONFIG, {"concurrency": 3})
    assert (await http("GET", CONFIG)).json()["configuration"] == rules | {"concurrency": 3}
    assert (await push(http))["job"]["ext_ml_gpu_count"] == 1
    refused = (await push(http, 422, gpu_count=5))["error"]
    assert (refused["code"], refused["details"]["allowed"]) == ("x_resource_limit_exceeded", 4)
    for wrong in (
        {"ml_defaults": {"x": 1}},
        {"ml_limits": {"max_gpus": 1}},
        {"ml_defaults": {"ext_ml_gpu_count": "x"}},
    ):
        assert (await http("PUT", CONFIG, wrong)).status_code == 400
    await http("PUT", CONFIG, {"ml_defaults": None, "ml_limits": None})
    assert (await http("GET", CONFIG)).json()["configuration"] == {"concurrency": 3}
    assert "ext_ml_gpu_count" not in (await push(http, gpu_type="c"))["job"]


async def test_a_handler_says_what_it_needs_and_its_worker_what_it_provides(shared_url: str, bench: Bench) -> None:
    app, seen = App(shared_url), list[str]()

    @app.job("train", resources={"gpu_type": "nvidia-a100", "memory_gb": 8})
    def train(name: str) -> None:
        seen.append(name)

    await train.aenqueue("large")
    await train.using(resources=None).aenqueue("small")
    await Worker(app).run(until_empty=True)
    assert seen == ["small"]
    worker = Worker(app, capabilities=A100 | {"memory_gb": 64})
    await worker.run(until_empty=True)
    assert seen == ["small", "large"]
    await app.aclose()


async def test_jobs_of_cron_say_all_that_their_template_says_and_keep_to_the_rules(http: Http, bench: Bench) -> None:
    await http("PUT", CONFIG, {"ml_defaults": {"ext_ml_gpu_count": 2}, "ml_limits": {"max_gpu_count": 4}})
    template = {"type": "train", "args": [], "version": "2.0", "ext_ml_gpu_type": "nvidia-a100"}
    cron = {"name": "nightly", "expression": "* * * * *", "overlap_policy": "allow"}
    response = await http("POST", "/ojs/v1/cron", cron | {"job_template": template})
    assert response.status_code == 201, response.text
    await bench.run_due(after=61)
    (job,) = (await http("GET", "/ojs/v1/jobs")).json()["jobs"]
    assert (job["version"], job["ext_ml_gpu_type"], job["ext_ml_gpu_count"]) == ("2.0", "nvidia-a100", 2)
    refused = await http("POST", "/ojs/v1/cron", cron | {"job_template": template | {"ext_ml_gpu_count": 5}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "x_resource_limit_exceeded")


TRAIN: dict[str, Any] = {"type": "train", "args": []}
CHAIN: dict[str, Any] = {"type": "chain", "steps": [TRAIN]}
FIRST: dict[str, Any] = {"type": "first", "args": []}
EVERY_MINUTE: dict[str, Any] = {"name": "c", "expression": "@every 60s"}

MADE_BY_THE_SERVER: dict[str, tuple[str, dict[str, Any]]] = {
    "a job of a cron job": ("/cron", EVERY_MINUTE | {"job_template": TRAIN}),
    "a step of a cron job": ("/cron", EVERY_MINUTE | {"workflow": CHAIN}),
    "a job of a reaction": (
        "/jobs",
        FIRST | {"event_reactions": {"on_success": [{"action": "enqueue", "job": TRAIN}]}},
    ),
    "a step of a reaction": (
        "/jobs",
        FIRST | {"event_reactions": {"on_success": [{"action": "start-workflow", "workflow": CHAIN}]}},
    ),
    "an element of a map": ("/workflows", {"type": "map", "over": [1], "do": TRAIN}),
    "an appended step": ("/workflows", {"type": "chain", "steps": [FIRST]}),
}


@pytest.mark.parametrize("kind", MADE_BY_THE_SERVER)
async def test_what_the_server_makes_has_the_defaults_of_its_queue(http: Http, bench: Bench, kind: str) -> None:
    await http("PUT", CONFIG, {"ml_defaults": {"ext_ml_gpu_count": 2}})
    path, body = MADE_BY_THE_SERVER[kind]
    response = await http("POST", f"/ojs/v1{path}", body | {"ext_ml_gpu_count": 0} if path == "/jobs" else body)
    assert response.status_code == 201, response.text
    await bench.run_due(after=61)
    for job in (await http("GET", "/ojs/v1/jobs?type=first")).json()["jobs"]:
        able = {"worker_id": "w", "queues": ["default"], "capabilities": A100}
        await http("POST", "/ojs/v1/workers/fetch", able)
        steps = {"append": [TRAIN]} if kind == "an appended step" else {}
        done = {"job_id": job["id"], "worker_id": "w"} | steps
        assert (await http("POST", "/ojs/v1/workers/ack", done)).status_code == 200
    (train,) = (await http("GET", "/ojs/v1/jobs?type=train")).json()["jobs"]
    shown = (await http("GET", f"/ojs/v1/jobs/{train['id']}")).json()["job"]
    assert shown["ext_ml_gpu_count"] == 2
