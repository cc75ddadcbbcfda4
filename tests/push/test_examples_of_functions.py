"""The examples of functions run jobs that a server pushes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ojster.server.delivery.push import PushWorker
from ojster.server.delivery.sender import Sender
from tests.conftest import Bench, shown
from tests.push.functions import SECRET, put, until
from tests.serving import listening

pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "push"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_of_push_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_application(handler: Any) -> Starlette:
    """Return what calls a handler as a function service does."""

    async def call(request: Request) -> Response:
        event = {"headers": dict(request.headers), "body": (await request.body()).decode()}
        answer = handler(event, None)
        return Response(answer["body"], answer["statusCode"])

    return Starlette(routes=[Route("/jobs", call, methods=["POST"])])


@pytest.mark.parametrize(
    ("name", "type", "args", "result", "wrong"),
    [
        ("with_fastapi", "email.send", ["ada", "Hi"], {"sent": "Hi to ada"}, ["ada"]),
        ("function", "add", [1, 2], 3, ["x"]),
    ],
)
async def test_an_example_completes_and_fails_jobs_and_refuses_a_wrong_secret(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, type: str, args: list[Any], result: Any, wrong: list[Any]
) -> None:
    monkeypatch.setenv("OJSTER_PUSH_SECRET", SECRET)
    module = load(name)
    pusher = PushWorker(bench.service, Sender(trusting=True))
    pusher.start()
    async with listening(module.web if name == "with_fastapi" else as_application(module.handler)) as url:
        await put(bench.service, f"{url}/jobs")
        good, bad = await bench.push(type, *args), await bench.push(type, *wrong)

        async def both_end() -> bool:
            return {(await bench.find(job)).state for job in (good, bad)} == {"completed", "discarded"}

        await until(both_end)
        assert shown(await bench.find(good))["result"] == result
        assert shown(await bench.find(bad))["error"]["type"] == "TypeError"
        monkeypatch.setenv("OJSTER_PUSH_SECRET", "another secret of another")
        waiting = await bench.push(type, *args)

        async def is_given_back() -> bool:
            is_off = (await bench.service.push.find("fn")).state == "disabled"
            return is_off and (await bench.find(waiting)).state == "available"

        await until(is_given_back)
        assert (await bench.find(waiting)).attempt == 0
        await pusher.stop()
