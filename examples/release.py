"""A release workflow: build packages in parallel, check and publish them; a retry repeats only the failed build.

python examples/release.py        # runs the workflow with its own worker and prints the result

The builds and the check do not name each other: each build promises an item of the workflow's collection, and the check
looks up all of these items, so it runs after the builds. A reaction of the last job adds the published release to a
collection that outlives the workflow.
"""

import asyncio
import tempfile
from typing import Any

from ojster import App, Graph, Retry, Worker, WorkflowFailed, found, param
from ojster.reactions import OF_JOB, collect

app = App()
broken = {"arm64"}
"""Architectures with a failing build, until ``main`` clears the set."""


@app.job("build", retry=Retry(max_attempts=1))
async def build(arch: str) -> dict[str, object]:
    if arch in broken:
        raise RuntimeError(f"the compiler for {arch} is broken")
    return {"arch": arch, "file": f"app-{arch}.tar.gz"}


@app.job("check")
async def check(builds: list[dict[str, Any]]) -> dict[str, object]:
    return {"files": sorted(str(item["data"]["file"]) for item in builds)}


@app.job(
    "publish",
    reactions={
        "on_success": [
            collect("release-{job.args.0}", collection="releases", category="release", data=OF_JOB["result"]),
        ]
    },
)
async def publish(version: str, checked: dict[str, object]) -> object:
    return checked["data"]


def plan(*archs: str) -> Graph:
    """Return the workflow for these architectures."""
    release = Graph("release")
    for arch in archs:
        release.add(f"build-{arch}", build.s(arch).set(provides=[f"build-{arch}"]))
    all_builds = found({"collection": "internal", "name_startswith": "build-"})
    release.add("check", check.s(all_builds).set(provides=["checked"]))
    release.add("publish", publish.s(param("version"), found("internal/checked")))
    return release


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app.url = f"sqlite:///{folder}/jobs.db"
        client = app.client()
        await client.collections.create("releases", "what was published")
        worker = Worker(app)
        working = asyncio.create_task(worker.run())

        run = await app.astart(plan("amd64", "arm64", "riscv64"), params={"version": "2.0"})
        try:
            await run.aresult()
        except WorkflowFailed as error:
            print(error)
        info = await run.arefresh()
        print({step.label: step.state for step in info.walk()})

        broken.clear()  # the compiler works again
        first = {step.label: step.job_id for step in info.walk()}
        await run.aretry()
        print(await run.aresult())
        again = [step.label for step in (await run.arefresh()).walk() if step.job_id != first[step.label]]
        print("done again, or at last:", again)

        for item in await app.collection("releases").aitems():
            print(item.name, bytes(item.data).decode())
        worker.stop()
        await working
        await app.aclose()


if __name__ == "__main__":
    asyncio.run(main())
