"""Wrong declarations and options are refused where they are written, with what to write instead."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from ojster import (
    App,
    Flow,
    InvalidRequest,
    JobContext,
    Orchestrator,
    RateLimit,
    RateLimited,
    Retry,
    Snooze,
    Unique,
    Wait,
    wait,
)
from ojster.schedules.cron import Cron


@pytest.fixture
def app() -> Iterator[App]:
    with App("sqlite:///:memory:") as made:
        yield made


def generator(number: int) -> Iterator[int]:
    yield number


async def async_generator(number: int) -> AsyncIterator[int]:
    yield number


class GeneratorClass:
    def run(self) -> Iterator[int]:
        yield 1


class AsyncGeneratorClass:
    async def run(self) -> AsyncIterator[int]:
        yield 1


class Mailer:
    def send(self, to: str) -> None: ...

    @classmethod
    def made(cls) -> None: ...

    async def later(self) -> None: ...


def context_later(to: str, job: JobContext) -> None: ...


HANDLERS: list[tuple[Any, str]] = [
    (generator, "generator is a generator function.* Return a value instead"),
    (async_generator, "async_generator is a generator function.* Return a value instead"),
    (GeneratorClass, "run of GeneratorClass is a generator. Return a value"),
    (AsyncGeneratorClass, "run of AsyncGeneratorClass is a generator. Return a value"),
    (Mailer.send, "Mailer.send is a method.* Declare a function, or the class Mailer"),
    (Mailer.later, "Mailer.later is a method"),
    (Mailer.__dict__["made"], "not <classmethod"),
    (context_later, "'job' is a JobContext.* Move it to the first place, before 'to'"),
    (5, "declares a function or a class .* not 5"),
]


@pytest.mark.parametrize(("handler", "why"), HANDLERS)
def test_what_cannot_be_a_handler_is_refused_when_it_is_declared(app: App, handler: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        app.job("it")(handler)
    assert not app.handlers


def test_a_flow_is_declared_without_parentheses_as_a_job_is(app: App) -> None:
    @app.flow
    async def order(flow: Flow, number: int) -> None: ...

    assert app.handlers == {"order": order}
    assert order.start(7).info.name == "order"
    with pytest.raises(TypeError, match="a flow is a coroutine function"):
        app.flow(generator)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="The 'type' attribute must be a string, not a number"):
        app.flow(5)(order)  # type: ignore[call-overload]


def test_an_orchestrator_is_declared_without_parentheses_as_a_job_is(app: App) -> None:
    @app.orchestrator
    class Release(Orchestrator): ...

    assert (app.orchestrators, Release.name) == ({"release": Release}, "release")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("delay", r"Enqueue a job with enqueue\(…\), with options: using\(delay=60\)"),
        ("send", "Enqueue a job with enqueue"),
        ("defer_async", "await aenqueue"),
        ("configure", "using"),
        ("si", r"is s\(…\)"),
    ],
)
def test_a_method_of_tasks_in_another_queue_is_refused_with_its_name_here(app: App, name: str, what: str) -> None:
    send = app.job("mail.send")(lambda to: None)
    with pytest.raises(AttributeError, match=f"'DeclaredJob' object has no attribute '{name}'. .*{what}"):
        getattr(send, name)
    assert not hasattr(send, name)
    assert repr(send) == "<DeclaredJob mail.send>"


def test_a_flow_and_an_application_say_what_their_methods_are_called(app: App) -> None:
    @app.flow("order")
    async def order(flow: Flow) -> None: ...

    with pytest.raises(AttributeError, match=r"'FlowType' object has no attribute 'delay'. Start a flow with start\("):
        order.delay  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"'App' object has no attribute 'task'. Declare a job with @app\.job"):
        app.task  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"attribute 'send_task'. .*app\.job_type\('send'\)\.enqueue"):
        app.send_task  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"attribute 'no_such_thing'$"):
        app.no_such_thing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("option", "what"),
    [
        ("eta", "Set scheduled_at"),  # and no "Did you mean 'meta'?"
        ("schedule_in", "Set delay"),
        ("countdown", "Set delay"),
        ("name", r"The job type comes first: @app\.job\('email.send'\)"),
        ("bind", "Take a JobContext as the first parameter"),
        ("max_retries", r"retry=Retry\(max_attempts=…\)"),
        ("queueing_lock", r"unique=Unique\(…\)"),
        ("priorty", "Did you mean 'priority'?"),
    ],
)
def test_an_option_of_another_queue_is_refused_with_what_it_is_here(app: App, option: str, what: str) -> None:
    options: Any = {option: 1}
    with pytest.raises(TypeError, match=f"There is no option '{option}'. .*{what}"):
        app.job("mail.send", **options)(lambda to: None)
    with pytest.raises(TypeError, match=f"There is no option '{option}'. .*{what}"):
        app.job_type("mail.send").using(**options)


def test_a_function_without_a_name_that_can_be_a_type_is_refused_with_how_to_give_one(app: App) -> None:
    def sendEmail() -> None: ...  # noqa: N802

    with pytest.raises(
        InvalidRequest, match=r"'sendEmail' is invalid.* Or give the job a type .*@app\.job\('email.send'\)"
    ):
        app.job(sendEmail)
    with pytest.raises(TypeError, match=r"<lambda>.* has no name, so its job type must be given"):
        app.job(lambda: None)


def test_in_a_shell_the_same_declaration_replaces_the_one_before(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def declare(result: int) -> Any:
        @app.cron("@daily")
        @app.job("report")
        def report() -> int:
            return result

        @app.orchestrator("release")
        class Release(Orchestrator): ...

        @app.flow("order")
        async def order(flow: Flow) -> None: ...

        return report, Release, order

    declare(1)
    with pytest.raises(ValueError, match="'report' already has a handler"):
        declare(2)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    report, release, order = declare(2)
    assert (app.handlers["report"], app.handlers["order"], app.orchestrators["release"]) == (report, order, release)
    assert [cron.name for cron in app.crons] == ["report"]
    with pytest.raises(ValueError, match="'report' already has a handler"):
        app.job("report")(lambda: None)


def test_two_cron_jobs_of_one_name_are_refused_because_one_would_never_fire(app: App) -> None:
    with pytest.raises(ValueError, match=r"The cron job 'report' is already declared. Give one of them .* name='…'"):

        @app.cron("@daily")
        @app.cron("@hourly")
        @app.job("report")
        def report() -> None: ...

    app.cron("@daily", definition="backup", target="a")
    with pytest.raises(ValueError, match="The cron job 'backup' is already declared"):
        app.cron("@daily", definition="backup", target="b")


def test_bound_methods_and_functions_with_a_parameter_self_are_handlers(app: App) -> None:
    def send(self: str) -> None: ...

    app.job("bound")(Mailer().send)
    app.job("named")(send)
    assert sorted(app.handlers) == ["bound", "named"]


def test_a_child_process_cannot_use_models_tools_and_a_budget(app: App) -> None:
    def summarize(text: str) -> str:
        return text

    why = "summarize: 'agent' has 'model', 'token_budget', which only a handler with a JobContext can use"
    with pytest.raises(TypeError, match=why):
        app.job("summarize", agent={"model": "large", "token_budget": 5, "role": "r"}, process=True)(summarize)
    checked = app.job("summarize", agent={"output_schema": {"type": "string"}}, process=True)(summarize)
    with pytest.raises(TypeError, match="summarize: 'agent' has 'tools'"):
        checked.using(agent={"tools": []})
    assert app.job("thread", agent={"model": "large"})(summarize).options.agent == {"model": "large"}


def test_decorators_in_the_wrong_order_are_refused(app: App) -> None:
    def report() -> None: ...

    with pytest.raises(TypeError, match=r"Write @app\.cron above @app\.job"):
        app.cron("@daily")(report)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="'report' is a job type already"):
        app.job(app.job(report))
    with pytest.raises(TypeError, match="needs an expression, such as"):
        app.cron(report)  # type: ignore[call-overload]


def test_a_cron_job_without_the_arguments_that_its_handler_needs_is_refused(app: App) -> None:
    @app.job("report.build")
    def build(job: JobContext, month: str, size: int = 5) -> None: ...

    why = r"'month'. The job is report.build\(month: .*str.*, size: .*int.* = 5\). .* follow the expression"
    with pytest.raises(TypeError, match=why):
        app.cron("@daily")(build)
    app.cron("@daily", "May")(build)
    assert [cron.name for cron in app.crons] == ["report.build"]


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required argument: 'to'"),
        (("a", "b", "c"), {}, "too many positional arguments"),
        (("a",), {"too": "b"}, "unexpected keyword argument 'too'"),
        (("a",), {"to": "b"}, "multiple values for argument 'to'"),
        (("a",), {"priority": 5}, "unexpected keyword argument 'priority'"),
    ],
)
@pytest.mark.parametrize("has_context", [False, True])
def test_wrong_arguments_name_the_job_and_its_signature(
    app: App, args: tuple[Any, ...], kwargs: dict[str, Any], why: str, has_context: bool
) -> None:
    def plain(to: str, subject: str = "", *, urgent: bool = False) -> None: ...
    def with_context(job: JobContext, to: str, subject: str = "", *, urgent: bool = False) -> None: ...

    send: Any = app.job("email.send")(with_context if has_context else plain)
    signature = r"The job is email.send\(to: 'str', subject: 'str' = '', \*, urgent: 'bool' = False\)"
    for call in (send.enqueue, send.s):
        with pytest.raises(TypeError, match=f"email.send: .*{why}.*{signature}"):
            call(*args, **kwargs)
    assert send.enqueue(to="ada").job.args == ["ada", ""]


def test_a_step_without_arguments_says_that_results_are_referred_to(app: App) -> None:
    @app.job
    def ship(parcel: str) -> None: ...

    with pytest.raises(TypeError) as raised:
        ship.s()  # type: ignore[call-arg]
    assert "result_of(NAME)" in raised.value.__notes__[0]
    with pytest.raises(TypeError) as raised:
        ship.enqueue()  # type: ignore[call-arg]
    assert not hasattr(raised.value, "__notes__")


DURATIONS: list[Any] = [-1, -0.001, timedelta(seconds=-1), math.nan, math.inf, -math.inf, 1e300, timedelta.max, 1e10]
"""What no duration can be: negative, no number, or longer than 100 years."""

NAMED_DURATIONS: dict[str, Callable[[Any], Any]] = {
    "timeout": lambda span: {"timeout": span},
    "total_timeout": lambda span: {"total_timeout": span},
    "delay": lambda span: {"delay": span},
    "expires_in": lambda span: {"expires_in": span},
    "expiration_delay": lambda span: {"expiration_delay": span},
    "grace_period": lambda span: {"grace_period": span},
    "heartbeat_timeout": lambda span: {"heartbeat_timeout": span},
    "result_ttl": lambda span: {"result_ttl": span},
    "retry.initial_interval": lambda span: {"retry": Retry(initial_interval=span)},
    "retry.max_interval": lambda span: {"retry": Retry(max_interval=span)},
    "unique.period": lambda span: {"unique": Unique(period=span)},
    "rate_limit.rate": lambda span: {"rate_limit": RateLimit(key="k", rate=(1, span))},
    "rate_limit.throttle": lambda span: {"rate_limit": RateLimit(key="k", throttle=(1, span))},
}


@pytest.mark.parametrize("span", DURATIONS)
@pytest.mark.parametrize("name", NAMED_DURATIONS)
def test_a_duration_that_cannot_be_is_refused_with_its_value(app: App, name: str, span: Any) -> None:
    with pytest.raises(ValueError, match="100 years") as refused:
        app.job("it", **NAMED_DURATIONS[name](span))(len)
    assert repr(span) in str(refused.value)


@pytest.mark.parametrize("span", DURATIONS)
@pytest.mark.parametrize("outcome", [Snooze, Wait, RateLimited])
def test_outcomes_refuse_durations_that_cannot_be(outcome: Callable[[Any], Any], span: Any) -> None:
    with pytest.raises(ValueError, match="100 years"):
        outcome(span)


def test_outcomes_take_timedeltas() -> None:
    minute = timedelta(minutes=1)
    assert (Snooze(minute).delay, Wait(minute).timeout, RateLimited(minute).delay) == (60, 60, 60)


def test_a_wait_with_a_negative_delay_is_refused() -> None:
    with pytest.raises(ValueError, match="not -5"):
        wait("pause", delay=-5)


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"unique": True}, "must be a Unique .* Write unique=Unique"),
    ({"unique": "args"}, "must be a Unique"),
    ({"unique": Retry()}, "must be a Unique"),
    ({"retry": "5"}, "must be a Retry .* Write retry=Retry"),
    ({"retry": 2.5}, "must be a Retry"),
    ({"retry": True}, "max_attempts must be an integer.* not True"),
    ({"rate_limit": "stripe"}, "must be a RateLimit .* Write rate_limit=RateLimit"),
    ({"rate_limit": 5}, "must be a RateLimit"),
    ({"retry": Retry(coefficient=math.nan)}, "backoff_coefficient=nan"),
    ({"retry": Retry(coefficient=math.inf)}, "backoff_coefficient=inf"),
    ({"retry": {"backoff_coefficient": math.nan}}, "backoff_coefficient=nan"),
    ({"retry": Retry(backoff="expo")}, "exponential"),  # type: ignore[arg-type]
    ({"unique": Unique(on_conflict="ignroe")}, "ignore"),  # type: ignore[arg-type]
    ({"rate_limit": RateLimit(key="k", on_limit="dorp")}, "drop"),  # type: ignore[arg-type]
    ({"meta": {"x": math.nan}}, "NaN"),
    ({"priority": 1.5}, "priority"),
    ({"tags": "urgent"}, "tags"),
    ({"retrys": 5}, "Did you mean 'retry'"),
]


@pytest.mark.parametrize(("options", "why"), WRONG_OPTIONS)
def test_an_option_of_the_wrong_kind_is_refused(app: App, options: dict[str, Any], why: str) -> None:
    with pytest.raises((TypeError, ValueError, InvalidRequest), match=why):
        app.job("it", **options)(len)
    right = app.job("right")(len)
    with pytest.raises((TypeError, ValueError, InvalidRequest), match=why):
        right.using(**options)


def test_an_overlap_policy_that_does_not_exist_is_refused(app: App) -> None:
    why = "overlap_policy is 'skp', but must be one of skip, allow, cancel_previous, enqueue"
    with pytest.raises(InvalidRequest, match=why):
        app.cron("@daily", overlap_policy="skp")(app.job("report")(lambda: None))  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest, match=why):
        Cron(name="report", expression="@daily", overlap_policy="skp")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"meta_keys": ["order"]}, r"'meta_keys' needs 'meta' in 'keys', which is \['args'\]. Add 'meta'."),
        ({"keys": ["queue"], "args_keys": ["order"]}, r"'args_keys' needs 'args' in 'keys', which is \['queue'\]."),
        ({"keys": [], "args_keys": ["order"]}, "'args_keys' needs 'args'"),
    ],
)
def test_names_that_a_uniqueness_policy_would_not_compare_are_refused(members: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Unique(**members)
    Unique(**members | {"keys": ["args", "meta"]})
