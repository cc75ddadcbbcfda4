"""A program that needs no database and no server: what can be tried on every system (``python tests/in_memory.py``)."""

from ojster import App, chain, result_of
from ojster.testing import JobTester

app = App("sqlite:///:memory:")


@app.job("add")
def add(a: int, b: int) -> int:
    return a + b


def main() -> None:
    """Run a job and a workflow; print their results."""
    with JobTester(app) as jobs:
        handle = add.enqueue(1, 2)
        run = app.start(chain(add.s(3, 4), add.s(result_of(0), 5)))
        jobs.drain()
        print(handle.result(), run.result())


if __name__ == "__main__":
    main()
