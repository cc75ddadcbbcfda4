"""A workflow that a program extends while it runs: the builds decide the tests, and the tests decide the report.

python examples/orchestrate.py        # runs the workflow with its own worker and prints the result
"""

import asyncio
import tempfile
from typing import Any

import msgspec

from ojster import App, Orchestrator, Worker, found

app = App()


@app.job("build")
async def build(package: str) -> dict[str, object]:
    return {"package": package, "tests": 2 if package == "core" else 1}


@app.job("test")
async def test(package: str, number: int) -> bool:
    return (package, number) != ("core", 1)


@app.job("tell")
async def tell(words: str | list[Any]) -> str | list[Any]:
    return words


class Packages(msgspec.Struct):
    names: list[str]


@app.orchestrator("nightly")
class Nightly(Orchestrator):
    params: Packages

    def validate(self) -> None:
        if not self.params.names:
            raise ValueError("there is nothing to build")

    def populate(self) -> None:
        builds = [self.ensure(f"build-{name}", build.s(name), provides=[name]) for name in self.params.names]
        self.ensure("count", tell.s(found({"collection": "internal"})))
        self.callback("tests", after=builds)

    def callback_tests(self) -> None:
        """Add as many tests for each package as its build reported."""
        tests = [
            self.ensure(f"test-{name}-{number}", test.s(name, number))
            for name in self.params.names
            for number in range(self.children[f"build-{name}"].result["tests"])
        ]
        self.callback("judge", after=tests)

    def callback_judge(self) -> None:
        failed = [child.id for child in self.children.values() if child.result is False]
        self.ensure("report", tell.s(f"failed: {', '.join(failed)}" if failed else "all is well"))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app.url = f"sqlite:///{folder}/jobs.db"
        worker = Worker(app)
        working = asyncio.create_task(worker.run())
        run = await app.astart(Nightly, params={"names": ["core", "docs"]})
        result = await run.aresult()
        print([step.label for step in run.info.walk()])
        print(result["report"])
        worker.stop()
        await working
        await app.aclose()


if __name__ == "__main__":
    asyncio.run(main())
