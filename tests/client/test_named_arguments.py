"""Named arguments of jobs: one JSON object after the positional ones."""

from __future__ import annotations

import inspect
from datetime import date
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster import App, Depends, Flow, Gzip, JobContext, JobFailed, Provided, chain, group, result_of
from ojster.handlers.arguments import HandlerTypes, InvalidArguments
from ojster.handlers.handler_signature import HandlerSignature
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


@app.job
def optional_end(*, end: str = Depends(suffix), **more: int) -> str:
    return end


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


@st.composite
def handlers(draw: st.DrawFn) -> str:
    """Return the parameters of a handler."""
    required, optional = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    shown = [name if place < required else f"{name}=0" for place, name in enumerate("abde"[: required + optional])]
    has_positional: bool = draw(st.booleans())
    if shown and has_positional:
        shown.insert(draw(st.integers(1, len(shown))), "/")
    takes_rest: bool = draw(st.booleans())
    named: list[str] = draw(st.sampled_from([[], ["c"], ["c=0"], ["c", "x=0"], ["c=0", "x=0"]]))
    shown += ["*rest"] if takes_rest else ["*"] if named else []
    takes_any: bool = draw(st.booleans())
    return ", ".join([*shown, *named, *(["**more"] if takes_any else [])])


values = st.sampled_from([1, {}, {"c": 1}, {"x": 2}, {"c": 3, "x": 4}, {"q": 5}, [{"c": 6}], None])
named_values = st.dictionaries(st.sampled_from(["a", "b", "c", "d", "x", "q"]), values, max_size=4)


@given(shown=handlers(), args=st.lists(values, max_size=5), named=named_values)
def test_a_handler_gets_what_a_plain_call_gets_or_the_call_is_refused(
    shown: str, args: list[Any], named: dict[str, Any]
) -> None:
    program: dict[str, Any] = {}
    exec(f"def handler({shown}): return locals()", program)
    handler = program["handler"]
    signature = inspect.signature(handler)
    declared, types = HandlerSignature("it", signature), HandlerTypes("it", handler, signature, 0)
    try:
        plainly = handler(*args, **named)
    except TypeError:
        with pytest.raises(TypeError, match="The job is it"):
            declared.arguments(args, named)
        return
    try:
        sent = declared.arguments(args, named)
    except TypeError:
        # Only with any number of arguments their end cannot be seen; Signature.bind of old Pythons refuses f(a=1) of
        # f(a=0, /, **more).
        assert "*rest" in shown or ("=0, /" in shown and "**more" in shown)
        return
    positional, by_name = types.convert(msgspec.json.decode(msgspec.json.encode(sent)))
    assert handler(*positional, **by_name) == plainly


def wrapper(*args: Any, **named: Any) -> list[Any]:
    return [args, named]


def test_what_other_programs_and_older_versions_have_sent_keeps_its_meaning_or_is_refused() -> None:
    wrapped = App("sqlite:///unused.db").job("wrapped")(wrapper)
    sent: list[Any]
    for sent in ([1, 2, 3], [], [1, {"x": 1}], [{}]):
        assert wrapped.types.convert(sent) == (sent, {})
    with pytest.raises(TypeError, match=r"'x' cannot be stored by its name.*Declare it after \*args"):
        wrapped.enqueue(1, x=1)
    for sent in ([1, 2], [], [1, {"x": 1}], [1, {"sign": 1, "x": 1}], [1, {}]):
        assert spread.types.named.divided(sent) == (sent, {})
    assert spread.types.convert([1, {"sign": -1}]) == ((1,), {"sign": -1})
    assert total.types.named.divided([{"values": [1]}]) == ([], {"values": [1]})
    # ``copies`` is newer than this job.
    with pytest.raises(InvalidArguments, match=r"names of parameters \(on\), but there are only 2 arguments"):
        send.types.convert(["ada", {"on": "2027-01-31"}])


def test_a_dict_that_looks_like_named_arguments_stays_a_positional_one() -> None:
    with plain.eager():
        held = plain.job("hold")(hold)
        assert held.enqueue({"note": "x"}).info.args == [{"note": "x"}, {}]
        assert held.enqueue({"note": "x"}).result(timeout=PATIENCE) == [{"note": "x"}, ""]
        run = plain.start(chain(held.s({"note": "x"}).set(id="first"), held.s(result_of("first")[0])))
        assert run.result(timeout=PATIENCE) == [{"note": "x"}, ""]
        several = plain.job("several")(several_values)
        with pytest.raises(TypeError, match=r"for the named ones\. Pass one of these by name, too: note"):
            several.enqueue(1, {"note": "x"})
        with pytest.raises(TypeError, match="would be taken for the named ones"):
            several.s(result_of("first")[0])
        assert several.enqueue(1, {"note": "x"}, note="y").result(timeout=PATIENCE) == [1, {"note": "x"}, "y"]


def hold(value: Any = None, *, note: str = "") -> list[Any]:
    return [value, note]


def several_values(*values: Any, note: str = "") -> list[Any]:
    return [*values, note]


def test_an_error_names_the_argument_that_cannot_be_stored() -> None:
    with pytest.raises(TypeError, match="the argument 'urgent' cannot be stored as JSON"):
        send.enqueue("ada", on=date(2027, 1, 31), urgent=object())
    with pytest.raises(TypeError, match="the argument 'numbers' cannot be stored as JSON"):
        spread.enqueue(1, object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"'end' has Depends\(…\), which gives its value"):
        optional_end.enqueue(end="?")
