"""Named arguments of jobs: one JSON object after the positional ones."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

import msgspec
import pytest

from ojster import App, Depends, Flow, Gzip, JobContext, JobFailed, Provided, chain, group, result_of
from ojster.handlers.arguments import InvalidArguments
from ojster.handlers.named_arguments import CallArguments, NamedParameters
from ojster.testing import JobTester
from tests.waiting import PATIENCE

app = App("sqlite:///unused.db", codecs=[Gzip()])
plain = App("sqlite:///unused.db")


def suffix() -> str:
    return "!"


@app.job
def send(
    job: JobContext, to: str, copies: int = 1, *, on: date, urgent: bool = False, end: str = Depends(suffix)
) -> list[Any]:
    return [to, copies, on.isoformat(), urgent, end]


@app.job(process=True)
def optional(value: Any = None, *, factor: int = 2, **more: date) -> list[Any]:
    return [value, factor, {name: day.year for name, day in more.items()}]


@app.job
async def spread(*numbers: int, sign: int = 1, end: Annotated[str, Depends(suffix)] = Provided) -> str:
    return f"{sign * sum(numbers)}{end}"


@plain.job
def total(*, values: list[int], factor: int = 1) -> int:
    return sum(values) * factor


@plain.job
def number(value: int) -> int:
    return value


@plain.flow()
async def order(flow: Flow, name: str, *, left: int, note: str = "none") -> list[Any]:
    if left:
        await flow.restart(name, left=left - 1)
    return [name, left, note]


def test_named_arguments_are_one_object_which_handlers_get_by_name() -> None:
    with app.eager():
        sent = send.enqueue("ada", on=date(2027, 1, 31))
        assert app.codecs.decode(sent.job.args, sent.job.meta) == ["ada", 1, {"on": "2027-01-31"}]
        assert sent.result(timeout=PATIENCE) == ["ada", 1, "2027-01-31", False, "!"]
        many = send.enqueue_many([{"to": "ada", "on": date(2027, 1, 1), "urgent": True}])
        assert [handle.result(timeout=PATIENCE) for handle in many] == [["ada", 1, "2027-01-01", True, "!"]]
        assert optional.enqueue({"factor": 3}).result(timeout=PATIENCE) == [{"factor": 3}, 2, {}]
        named = optional.enqueue(factor=3, birth=date(1815, 12, 10))
        assert named.result(timeout=PATIENCE) == [None, 3, {"birth": 1815}]
        assert spread.enqueue(1, 2, sign=-1).result(timeout=PATIENCE) == "-3!"
        assert spread.enqueue(1, 2).result(timeout=PATIENCE) == "3!"


def test_steps_and_flows_have_them_too() -> None:
    with plain.eager():
        run = plain.start(
            chain(group(number.s(2), number.s(3)).set(id="all"), total.s(values=result_of("all"), factor=10))
        )
        assert run.result(timeout=PATIENCE) == 50
        assert order.start("ada", left=2, note="first").result(timeout=PATIENCE) == ["ada", 0, "none"]
        elsewhere = plain.job_type("of.another.program")
        jobs = [elsewhere.enqueue(1, name="ada"), elsewhere.enqueue(1)]
        assert [job.info.args for job in jobs] == [[1, {"name": "ada"}], [1]]


def test_a_test_names_them_in_any_way() -> None:
    with JobTester(app) as jobs:
        send.enqueue("ada", on=date(2027, 1, 31))
        jobs.assert_enqueued(send, to="ada", on=date(2027, 1, 31), urgent=False)
        jobs.refute_enqueued(send, "ada", on=date(2027, 1, 30))


def test_wrong_ones_are_refused_where_they_are_written_and_where_they_are_read() -> None:
    with pytest.raises(TypeError, match=r"missing a required .*'on'.* The job is send"):
        send.enqueue("ada")
    with pytest.raises(InvalidArguments, match=r"Invalid RFC3339 encoded date.* - at `on`"):
        send.enqueue("ada", on="tomorrow")
    with pytest.raises(TypeError, match=r"'queue'.*set before: \.using\(queue=…\)"):
        send.enqueue("ada", on=date(2027, 1, 31), queue="mail")
    for args, why in (
        (["ada", 1, 2], "the argument after the 2 positional ones must be the object"),
        (["ada", 1, {"on": "2027-01-31"}, 3], "must be the object of the named arguments, and the last"),
    ):
        with pytest.raises(InvalidArguments, match=why):
            send.types.convert(args)
    with pytest.raises(InvalidArguments, match="object of the named arguments is missing"):
        spread.types.convert([])
    with JobTester(plain) as jobs:  # another program has sent a name that the handler does not have
        plain.job_type("total").using(retry=1)
        wrong = plain._event_loop_thread.call(
            plain.client().jobs.enqueue(
                [{"type": msgspec.Raw(b'"total"'), "args": msgspec.Raw(b'[{"values": [1], "fctor": 2}]')}]
            )
        )
        with pytest.raises(JobFailed, match="unexpected keyword argument 'fctor'"):
            jobs.drain()
        assert wrong


def test_what_is_joined_can_be_divided_again() -> None:
    for handler in (send, optional, spread, total):
        parameters = handler.types.named
        assert isinstance(parameters, NamedParameters)
        least = 2 if handler is send else 1 if handler is optional else 0
        positional = [{"a": 1}] * least
        for named in ({}, {"x": 1}):
            arguments = CallArguments(positional, named)
            assert parameters.divided(parameters.joined(arguments)) == arguments
