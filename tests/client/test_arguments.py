"""Arguments and results are what the annotations of a handler say."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster import App, JobContext, Worker, chain, found
from ojster.core.json_objects import read_members
from ojster.handlers.arguments import InvalidArguments
from ojster.handlers.outcomes import JobFailed
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from tests.waiting import PATIENCE
from tests.worker import handlers

if TYPE_CHECKING:
    from fractions import Fraction

pytestmark = pytest.mark.anyio


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    item: UUID
    price: Decimal
    tags: set[str] = field(default_factory=set)


class Size(NamedTuple):
    width: int
    height: int


class Options(TypedDict, total=False):
    gift: bool
    until: date


class Parcel(msgspec.Struct):
    number: int
    lines: list[Line]


@attrs.define
class Address:
    street: str


class Customer(pydantic.BaseModel, strict=True, populate_by_name=True):
    name: str = pydantic.Field(alias="fullName")
    born: date
    friends: list[Customer] = []


MOMENT = datetime(2026, 11, 23, 12, 30, 0, 250, tzinfo=UTC)
LINE = Line(UUID(int=7), Decimal("9.90"), {"new"})
ANNA = Customer(fullName="Anna", born=date(2000, 2, 29), friends=[Customer(fullName="Ben", born=date(1999, 1, 1))])


@pytest.fixture
def app() -> App:
    return App("sqlite:///:memory:")


async def round_trip(app: App, annotation: Any, value: Any) -> tuple[Any, Any]:
    """Return what a handler gets for an argument, and the result of a job that returns it."""
    got: list[Any] = []

    def handler(value: Any) -> Any:
        got.append(value)
        return value

    handler.__annotations__ = {"value": annotation, "return": annotation}
    job = app.job("echo")(handler)
    handle = await job.aenqueue(value)
    await Worker(app).run(until_empty=True)
    result = await handle.aresult()
    found = await (await app.afind(handle.id)).aresult()
    assert (found, type(found)) == (result, type(result))
    await app.aclose()
    return got[0], result


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (datetime, MOMENT),
        (date, date(2026, 2, 28)),
        (timedelta, timedelta(days=2, microseconds=5)),
        (UUID, UUID(int=1)),
        (Decimal, Decimal("0.10")),
        (Colour, Colour.RED),
        (bytes, b"\x00\xff"),
        (Line, LINE),
        (Size, Size(2, 3)),
        (Options, {"gift": True, "until": date(2026, 12, 24)}),
        (Parcel, Parcel(1, [LINE])),
        (Address, Address("Main Street")),
        (Customer, ANNA),
        (dict[UUID, list[Parcel]], {UUID(int=3): [Parcel(1, [LINE]), Parcel(2, [])]}),
        (list[Customer | None], [ANNA, None]),
        (Mapping[str, Sequence[date]], {"holidays": [date(2026, 12, 25)]}),
        (tuple[Colour, frozenset[int]], (Colour.RED, frozenset({1, 2}))),
        ("Annotated[int, msgspec.Meta(ge=1)]", 5),
        ("list[Line]", [LINE]),
    ],
    ids=lambda value: str(getattr(value, "__name__", "")) or None,
)
async def test_a_handler_gets_what_was_given(app: App, annotation: Any, value: Any) -> None:
    for seen in await round_trip(app, annotation, value):
        assert (seen, type(seen)) == (value, type(value))


async def test_without_annotations_a_handler_gets_plain_json(app: App) -> None:
    for annotation in (Any, object, "Any"):
        got, result = await round_trip(App("sqlite:///:memory:"), annotation, {"at": MOMENT, "tags": (1, 2)})
        assert got == result == {"at": "2026-11-23T12:30:00.000250Z", "tags": [1, 2]}


def order(
    context: JobContext, line: Line, count: Annotated[int, msgspec.Meta(ge=1)], day: date | None = None, *sizes: Size
) -> Customer:
    return ANNA


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("x", 1), ("`line`", "`object`", "`str`")),
        ((Line("x", Decimal(1)), 1), ("`line.item`", "UUID")),  # type: ignore[arg-type]
        ((LINE, 0), ("`count`", ">= 1")),
        ((LINE, 1, 5), ("`day`", "`int`")),
        ((LINE, 1, None, Size(1, 2), (1, "2")), ("`int`", "[4][1]")),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path_when_it_is_enqueued(
    app: App, args: tuple[Any, ...], words: tuple[str, ...]
) -> None:
    job = app.job("order")(order)
    with pytest.raises(InvalidArguments, match="order") as refused:
        job.enqueue(*args)
    assert all(word in str(refused.value) for word in words), refused.value
    job.enqueue(LINE, 1)
    job.enqueue(LINE, 1, None, Size(1, 2))
    app.close()


def test_values_that_the_server_puts_in_are_not_checked_before(app: App) -> None:
    job = app.job("order")(order)
    job.s({"$ref": "params.line"}, 1)  # type: ignore[arg-type]
    job.s(found("internal/line"), 1)
    app.close()


def test_an_argument_whose_default_is_none_may_be_none(app: App) -> None:
    def handler(day: Any = None) -> None: ...

    handler.__annotations__["day"] = date
    job = app.job("it")(handler)
    assert job.types.convert([None]).positional == (None,)
    job.enqueue(None)
    job.enqueue()
    app.close()


def test_errors_of_pydantic_name_the_field(app: App) -> None:
    @app.job
    def greet(customers: list[Customer]) -> None: ...

    with pytest.raises(InvalidArguments) as refused:
        greet.enqueue([{"fullName": 5, "born": "2000-01-01"}])  # type: ignore[list-item]
    assert str(refused.value).endswith("fullName: Input should be a valid string - at `customers[0]`.")
    app.close()


async def test_arguments_of_other_programs_are_checked_when_the_job_runs(app: App) -> None:
    @app.job("double")
    async def double(number: int, by: Decimal) -> Decimal:
        return number * by

    once = b'"options":{"retry":{"max_attempts":1}}'
    requests = [b'{"type":"double","args":[2,"1.5"]}', b'{"type":"double","args":[2,[]],%b}' % once]
    good, bad = await app.client().jobs.enqueue(list(map(read_members, requests)))
    await Worker(app).run(until_empty=True)
    assert await (await app.afind(good.job.id)).aresult() == Decimal(3)
    with pytest.raises(JobFailed) as failed:
        await (await app.afind(bad.job.id)).aresult()
    assert failed.value.error["type"].endswith("InvalidArguments")
    assert "at `by`" in failed.value.error["message"]
    await app.aclose()


async def test_results_that_steps_refer_to_are_converted_for_the_next_step(app: App) -> None:
    @app.job
    def parcel() -> Parcel:
        return Parcel(4, [LINE])

    @app.job
    def lines_of(parcel: Parcel) -> list[Line]:
        return parcel.lines

    first = parcel.s()
    run = await app.astart(chain(first, lines_of.s({"$ref": "steps.0.result"})))  # type: ignore[arg-type]
    await Worker(app).run(until_empty=True)
    await run.arefresh()
    (last,) = [step for step in run.info.walk() if step.path == "1"]
    assert (last.state, msgspec.json.decode(msgspec.json.encode(last.result), type=list[Line])) == ("completed", [LINE])
    await app.aclose()


async def test_handlers_in_child_processes_get_what_was_given(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers.app, "url", shared_url)
    point = handlers.Point(1, MOMENT)
    handle = await handlers.move.aenqueue(point, timedelta(hours=1))
    await Worker(handlers.app).run(until_empty=True)
    assert await handle.aresult(timeout=PATIENCE) == handlers.Point(2, MOMENT + timedelta(hours=1))
    await handlers.app.aclose()


def unresolvable(number: Fraction) -> None: ...


def two_classes(either: Line | Address) -> None: ...


def unknown(call: Callable[[], None]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "why"), [(unresolvable, "TYPE_CHECKING"), (two_classes, "JSON cannot be converted")]
)
def test_annotations_that_cannot_be_used_are_refused_before_any_job_runs(
    app: App, handler: Callable[..., Any], why: str
) -> None:
    job = app.job("it")(handler)
    with pytest.raises(TypeError, match=why):
        job.enqueue(1)
    with pytest.raises(TypeError, match=why):
        Worker(app)
    app.close()


def test_a_value_of_a_class_that_json_does_not_have_is_refused(app: App) -> None:
    job = app.job("it")(unknown)
    with pytest.raises(TypeError):
        job.enqueue(print)
    with pytest.raises(InvalidArguments, match="Callable"):
        job.enqueue(1)  # type: ignore[arg-type]
    app.close()


async def test_a_result_stays_json_if_its_annotation_cannot_be_used(app: App) -> None:
    @app.job
    def either() -> Line | Address:
        return Address("Main Street")

    handle = await either.aenqueue()
    await Worker(app).run(until_empty=True)
    assert await handle.aresult() == {"street": "Main Street"}  # type: ignore[comparison-overlap]
    await app.aclose()


async def test_a_result_of_another_worker_that_contradicts_the_annotation_is_an_error_for_the_caller(app: App) -> None:
    @app.job
    def which() -> int:
        return 7

    handle = await which.aenqueue()
    (job,) = await app.client().jobs.fetch(Claim(("default",), 1, "other"))
    await app.client().jobs.acknowledge([Acknowledgement(job.id, b'"seven"', "other")])
    with pytest.raises(TypeError, match="return annotation says: Expected `int`, got `str`"):
        await handle.aresult()
    await app.aclose()


@given(st.lists(st.builds(Line, st.uuids(), st.decimals(allow_nan=False, allow_infinity=False), st.sets(st.text()))))
def test_any_value_survives_the_way_through_json(lines: list[Line]) -> None:
    def handler(lines: list[Line]) -> None: ...

    handler.__annotations__ = {"lines": list[Line]}
    job = App("sqlite:///:memory:").job("it")(handler)
    (back,) = job.types.convert(msgspec.json.decode(job.request((lines,), {})["args"])).positional
    assert back == lines
