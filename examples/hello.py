"""The shortest complete program: declare a job, enqueue it, run it, and read its result.

python examples/hello.py
"""

import asyncio
import tempfile

from ojster import App, Worker


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = App(f"sqlite:///{folder}/jobs.db")

        @app.job("greet", retry=5)
        async def greet(name: str) -> str:
            return f"Hello, {name}!"

        handle = await greet.aenqueue("Ada")
        await Worker(app).run(until_empty=True)
        print(await handle.aresult(timeout=5))
        await app.aclose()


if __name__ == "__main__":
    asyncio.run(main())
