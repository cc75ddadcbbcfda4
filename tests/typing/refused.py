"""Wrong uses of the public API, each of which both checkers must refuse on its line. Never run."""

from __future__ import annotations

from ojster import App, JobContext, JobHandle

app = App("sqlite:///jobs.db")


@app.job("email.send")
async def send(to: str, copies: int = 0) -> bool:
    return bool(to) and copies >= 0


@app.job()
def double(job: JobContext, number: int) -> int:
    return 2 * number


@app.job
def named(to: str, *, copies: int, urgent: bool = False) -> str:
    return to


@app.job
def bare(text: str) -> int:
    return len(text)


async def misuse() -> None:
    bare.enqueue(7)  # wrong: an argument of another type
    bare.enqueue()  # wrong: a missing argument
    named.enqueue("a")  # wrong: a missing named argument
    named.enqueue("a", copies="2")  # wrong: a named argument of another type
    named.enqueue("a", 2)  # wrong: an argument by place that has a name alone
    send.enqueue(7)  # wrong: an argument of another type
    send.enqueue()  # wrong: a missing argument
    send.enqueue("a", 1, 2)  # wrong: one argument too many
    send.enqueue("a", copys=1)  # wrong: an unknown name
    await send.aenqueue(None)  # wrong: None is no text
    double.enqueue("3")  # wrong: the context is not counted, so the first argument is a number
    double.s("3")  # wrong: the same in a workflow
    send.using(priorty=5)  # wrong: an unknown option
    send.using(priority="high")  # wrong: an option of another type
    result: str = double.enqueue(3).result()  # wrong: the result is a number
    handle: JobHandle[str] = double.enqueue(3)  # wrong: so is that of the handle
    number: str = await double.enqueue(3).aresult()  # wrong: the same where it is awaited
    print(result, handle, number)
    run = app.start(double.s(3))
    app.start(double.s(3), timeot=3)  # wrong: an option that does not exist
    app.start(double.s(3), on_error="double")  # wrong: no step
    run.result(timeout="long")  # wrong: no number of seconds
    run.cancel(True)  # wrong: an argument that has a name alone
    run.approve()  # wrong: a missing step
    await run.refresh()  # wrong: the plain method returns no coroutine
    text: str = run.refresh()  # wrong: it returns the workflow
    print(text)


@app.job(queu="mail")  # wrong: an unknown option of a declaration
def report(name: str) -> None:
    print(name)
