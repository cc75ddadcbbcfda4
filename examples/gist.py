"""A workflow definition that creates and stars a gist, like the example of node-workflow, on a local fake service.

python examples/gist.py           # runs the service, a worker and a workflow, and prints the results
"""

import asyncio
import json
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from ojster import App, Duplicate, JobContext, Retry, Wait, Worker, chain, code, param, result_of
from ojster.sandbox.sandbox import Sandbox

app = App()
GISTS: dict[str, dict[str, Any]] = {}


class Service(BaseHTTPRequestHandler):
    """A fake gist service that keeps gists and their stars in memory."""

    def do_POST(self) -> None:
        """Create a gist."""
        gist = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        id = str(len(GISTS) + 1)
        GISTS[id] = gist | {"id": id, "starred": False}
        self._answer(201, GISTS[id])

    def do_PUT(self) -> None:
        """Star a gist."""
        GISTS[self.path.split("/")[2]]["starred"] = True
        self._answer(204)

    def do_GET(self) -> None:
        """Return a gist, with whether it is starred."""
        self._answer(200, GISTS[self.path.split("/")[2]])

    def _answer(self, status: int, body: object = None) -> None:
        self.send_response(status)
        self.end_headers()
        if body is not None:
            self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


# Tasks that need the network are handlers of a worker.


@app.job("gist.create", retry=Retry(max_attempts=3), timeout=30)
async def create(job: JobContext, service: str, gist: dict[str, Any]) -> str:
    async with httpx.AsyncClient(base_url=service) as client:
        made = (await client.post("/gists", json=gist)).raise_for_status().json()
    await job.anote(f"gist {made['id']} is created")
    await job.properties.aset(gist_id=made["id"])  # for all tasks of this workflow
    return str(made["id"])


@app.job("gist.star", retry=Retry(max_attempts=3), timeout=30)
async def star(job: JobContext, service: str, id: str) -> None:
    async with httpx.AsyncClient(base_url=service) as client:
        (await client.put(f"/gists/{id}/star")).raise_for_status()
    await job.anote(f"gist {id} is starred")


@app.job("gist.confirm")
async def confirm(job: JobContext) -> str:
    if job.resumed is None:
        raise Wait(timeout=3600, again=True)  # suspended until POST /workflows/{id}/resume
    return f"confirmed by {job.resumed['by']}"


# Tasks that only compute can carry their code in the workflow.


COMPOSE = """
def body(job, text):
    name = job.params["name"]
    job["composed"] = True
    return {"description": f"{name}: {len(text)} characters", "files": {name: {"content": text}}}
"""
compose = code(COMPOSE, param("text"), timeout=10, attempts=2)

flow = chain(
    compose.set(id="compose"),
    create.s(param("service"), result_of("compose")).set(id="create"),
    star.s(param("service"), result_of("create")).set(id="star"),
    confirm.s().set(id="confirm"),
)
SCHEMA = {"type": "object", "required": ["service", "name", "text"]}


async def main() -> None:
    service = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{service.server_port}"
    with tempfile.TemporaryDirectory() as folder:
        app.url = f"sqlite:///{folder}/jobs.db"
        worker = Worker(app, code=Sandbox(weak=not sys.platform.startswith("linux")))
        working = asyncio.create_task(worker.run())
        definition = await app.adefine(
            "create-and-star-a-gist", flow, params_schema=SCHEMA, retry=Retry(max_attempts=3)
        )
        print(f"{definition.name}, version {definition.version}, steps {definition.hashes['steps'][:12]}…")
        params = {"service": url, "name": "hello.txt", "text": "Hello, world!"}
        run = await app.astart(definition.name, params=params, target="/gists")
        try:
            await app.astart(definition.name, params=params, target="/gists")
        except Duplicate as refused:
            print(f"a second one is refused: {refused.details['existing_workflow_id'] == run.id}")
        async for info in run.awatch():
            if any(step.on_hold for step in info.walk()):
                await run.aresume({"by": "ada"})
        print(await run.aresult(timeout=30))
        print(await run.anotes(), await run.aproperties())
        print([gist["starred"] for gist in GISTS.values()])
        worker.stop()
        await working
        await app.aclose()
    service.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
