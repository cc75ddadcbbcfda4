"""Options of applications, workers and settings are checked where a program sets them, by their declaration."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final, get_args

import pytest

from ojster import (
    App,
    ChildLimits,
    InvalidRequest,
    JobOptions,
    Retention,
    Retry,
    Run,
    Settings,
    Sharing,
    Worker,
    chain,
    code,
    gate,
    reactions,
)
from ojster.core import declared_options
from ojster.core.declared_options import Option, bounds_of, options_of
from ojster.core.durations import SECOND
from ojster.core.public_settings import in_microseconds
from ojster.jobs.claim_policy import Claim
from ojster.jobs.options import PRIORITIES
from ojster.jobs.options_wire import _WHOLE, OptionsBody
from ojster.jobs.retry import DEFAULT_RETRY
from ojster.middleware import timeouts
from ojster.testing import FakeContext

pytestmark = pytest.mark.anyio

URL: Final = "sqlite:///:memory:"


@pytest.fixture
def app() -> Iterator[App]:
    with App(URL) as made:
        made.job("one")(lambda: None)
        yield made


CHECKED: Final[dict[str, tuple[Any, Callable[..., Any]]]] = {
    "App": (App.__init__, lambda app, **options: App(**{"url": URL} | options)),
    "Worker": (Worker.__init__, Worker),
    "Settings": (Settings, lambda app, **options: Settings(**options)),
    "Retention": (Retention, lambda app, **options: Retention(**options)),
    "ChildLimits": (ChildLimits, lambda app, **options: ChildLimits(**options)),
}
"""Declarations of options, and the call that sets them."""

OF_PYTHON: Final = {"App": {"codecs"}, "Worker": {"app", "code", "identity"}}
"""Options of types that only Python has: what uses them refuses others."""


def checked_options() -> Iterator[tuple[str, Option]]:
    for name, (declaration, _) in CHECKED.items():
        for option in options_of(declaration).values():
            if option.name not in OF_PYTHON.get(name, ()):
                yield name, option


@pytest.mark.parametrize("name", CHECKED)
def test_each_option_refuses_a_value_of_another_type(app: App, name: str) -> None:
    declaration, call = CHECKED[name]
    for option in options_of(declaration).values():
        if option.name in OF_PYTHON.get(name, ()):
            assert not declared_options._is_data(option.kind)
            continue
        with pytest.raises(TypeError, match=f"'{option.name}' is <object"):
            call(app, **{option.name: object()})


WRONG: Final[list[tuple[str, dict[str, Any], str]]] = [
    ("App", {"synchronous": "normal"}, "Use one of FULL, NORMAL"),
    ("App", {"migrate": "no"}, "Expected `bool`"),
    ("App", {"settings": None}, "'settings' is None, but must be Settings"),
    ("App", {"token": 5}, "'token' is 5"),
    ("Worker", {"queues": []}, "'queues' is empty. Name at least one queue"),
    ("Worker", {"queues": "mail"}, "'queues' is 'mail': Expected `array"),
    ("Worker", {"queues": ["A B"]}, "The queue name 'A B' is invalid"),
    ("Worker", {"concurrency": 0}, "'concurrency' is 0: Expected `int` >= 1"),
    ("Worker", {"concurrency": 2.5}, "'concurrency' is 2.5: Expected `int`"),
    ("Worker", {"concurrency": True}, "'concurrency' is True: Expected `int`"),
    ("Worker", {"grace": -1}, "'grace' is -1: Expected `float` >= 0"),
    ("Worker", {"grace": float("nan")}, "'grace' is nan"),
    ("Worker", {"grace": float("inf")}, "'grace' is inf"),
    ("Worker", {"grace": "25"}, "'grace' is '25': Expected `float"),
    ("Worker", {"lease": 0}, "'lease' is 0: Expected `float` >= 0.001"),
    ("Worker", {"lease": timedelta(0)}, "Expected `float` >= 0.001"),
    ("Worker", {"labels": "gpu"}, "'labels' is 'gpu': Expected `array`"),
    ("Worker", {"pool": ""}, "'pool' is ''"),
    ("Worker", {"prefetch": -1}, "'prefetch' is -1: Expected `int` >= 0"),
    ("Worker", {"children": {"max_jobs": 3}}, "must be ChildLimits or None"),
    ("Worker", {"sharing": "weighted"}, "must be Sharing or None"),
    ("Worker", {"sharing": Sharing("weihted")}, "Use one of strict, round-robin, weighted, least-loaded"),  # type: ignore[arg-type]
    ("Worker", {"sharing": Sharing("weighted", (("default", 0.0),))}, "'weights' is"),
    ("Worker", {"sharing": Sharing("strict", (("default", 2),))}, "no effect with the strategy 'strict'"),
    ("Worker", {"sharing": Sharing("weighted", (("mial", 2),))}, "The weight of the queue 'mial' has no effect"),
    ("Worker", {"sharing": Sharing(least_share=2)}, "'least_share' is 2"),
    ("Worker", {"sharing": Sharing(rotation=0)}, "'rotation' is 0"),
    ("Settings", {"default_lease": 0}, "'default_lease' is 0"),
    ("Settings", {"default_lease": None}, "'default_lease' is None"),
    ("Settings", {"default_timeout": 0}, "'default_timeout' is 0"),
    ("Settings", {"heartbeat_timeout": -1}, "'heartbeat_timeout' is -1"),
    ("Settings", {"heartbeat_timeout": "PT30S"}, "'heartbeat_timeout' is 'PT30S'"),
    ("Settings", {"largest_job": 10}, "'largest_job' is 10: Expected `int` >= 1024"),
    ("Settings", {"largest_batch": 10}, "'largest_batch' is 10: Expected `int` >= 100"),
    ("Settings", {"largest_batch": 10**12}, "'largest_batch' is 1000000000000: Expected `int` <= 1000000"),
    ("Settings", {"largest_job": 10**12}, "Expected `int` <= 1000000000"),
    ("Settings", {"most_losses": 10**12}, "Expected `int` <= 1000000000"),
    ("Worker", {"concurrency": 10**12}, "'concurrency' is 1000000000000: Expected `int` <= 1000000"),
    ("Settings", {"most_generations": 0}, "'most_generations' is 0"),
    ("Settings", {"most_losses": -1}, "'most_losses' is -1"),
    ("Settings", {"tenants": "require"}, "Use one of optional, required"),
    ("Settings", {"default_tenant": "A B"}, "The tenant id 'A B' is invalid"),
    ("Settings", {"retention": {}}, "'retention' is {}, but must be Retention"),
    ("Retention", {"completed": -1}, "'completed' is -1"),
    ("Retention", {"audit": timedelta(-1)}, "'audit' is datetime.timedelta"),
    ("Retention", {"most_dead_letters": 0}, "'most_dead_letters' is 0"),
    ("ChildLimits", {"max_jobs": 0}, "'max_jobs' is 0"),
    ("ChildLimits", {"max_memory": -1}, "'max_memory' is -1"),
]


@pytest.mark.parametrize(("name", "options", "message"), WRONG, ids=[f"{name} {o}"[:50] for name, o, _ in WRONG])
def test_a_wrong_option_is_refused_with_its_name_and_its_value(
    app: App, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError, InvalidRequest), match=re.escape(message)):
        CHECKED[name][1](app, **options)


def test_each_number_has_an_upper_bound() -> None:
    numbers = [(name, option) for name, option in checked_options() if int in (option.kind, *_types_in(option.kind))]
    assert len(numbers) > 8
    assert [(name, option.name) for name, option in numbers if "le" not in bounds_of(option.kind)] == []


def _types_in(kind: Any) -> list[Any]:
    return [part for inner in get_args(kind) for part in (inner, *_types_in(inner))]


CALLS: Final[list[tuple[str, Callable[[App], object], str]]] = [
    ("a timeout that is no number", lambda app: _handle(app).result(timeout=math.nan), "'timeout' is nan"),
    ("a negative timeout", lambda app: _handle(app).result(-1), "'timeout' is -1"),
    ("a timeout of a workflow", lambda app: _run(app).result(math.nan), "'timeout' is nan"),
    ("a flag that is a text", lambda app: _run(app).cancel(stop_active="no"), "'stop_active' is 'no'"),  # type: ignore[arg-type]
    ("notes that are a number", lambda app: _run(app).approve("g", 5), "'notes' is 5"),  # type: ignore[arg-type]
    ("a step that is a number", lambda app: _run(app).send("m", step=5), "'step' is 5"),  # type: ignore[arg-type]
    ("recipients in a text", lambda app: reactions.notify("c", to="a@b.org"), "'to' is 'a@b.org'"),
    ("a category that is a number", lambda app: reactions.collect("n", category=5), "'category' is 5"),  # type: ignore[arg-type]
    ("modules in a text", lambda app: code("def body(job): ...", modules="math"), "'modules' is 'math'"),
    ("a negative time limit", lambda app: timeouts({"a": -1}), "'seconds' is {'a': -1}"),
    ("an attempt before the first", lambda app: FakeContext(attempt=0), "'attempt' is 0"),
    ("a process that is a text", lambda app: app.job("p", process="no"), "'process' is 'no'"),  # type: ignore[call-overload]
    ("an orchestrator that is a number", lambda app: app.orchestrator(5), "'name' is 5"),  # type: ignore[call-overload]
]
"""Calls with a value that an option does not take, and what is said of it."""


def _handle(app: App) -> Any:
    return app.handlers["one"].enqueue()


def _run(app: App) -> Run:
    return app.start(chain(gate(id="g")))


@pytest.mark.parametrize(("call", "message"), [call[1:] for call in CALLS], ids=[call[0] for call in CALLS])
def test_a_call_names_the_option_that_is_wrong(app: App, call: Callable[[App], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call(app)


def test_seconds_and_timedeltas_are_the_same_for_a_worker(app: App) -> None:
    worker = Worker(app, grace=timedelta(seconds=3), lease=timedelta(minutes=1))
    assert (worker.grace, worker.lease) == (3.0, 60.0)


def test_the_default_tenant_may_be_written_as_it_is_shown() -> None:
    assert in_microseconds(Settings(default_tenant="_default")) == in_microseconds(Settings())


@pytest.mark.parametrize("sharing", [Sharing(least_share=0.1), Sharing("round-robin", rotation=1_000_000)])
async def test_fairness_that_a_server_cannot_be_told_is_refused(sharing: Sharing) -> None:
    async with App("http://127.0.0.1:1") as app:
        with pytest.raises(InvalidRequest, match="Configure a pool"):
            await app.client().jobs.fetch(Claim(("a", "b"), 1, "w", sharing=sharing))


def test_what_a_docstring_says_of_a_default_is_the_default() -> None:
    shown: dict[Any, set[str]] = {
        10: {"10 by default"},
        25.0: {"25 by default"},
        30.0: {"30 by default"},
        500: {"500 by default"},
        100: {"100 by default"},
        1_000: {"1,000 by default"},
        10_000: {"10,000 by default"},
        1_048_576: {"1 MiB by default"},
        268_435_456: {"256 MiB by default"},
        107_374_182_400: {"100 GiB by default"},
        timedelta(seconds=30): {"30 seconds by default"},
        timedelta(minutes=30): {"30 minutes by default"},
        timedelta(days=1): {"1 day by default"},
        timedelta(days=7): {"7 days by default"},
        timedelta(days=90): {"90 days by default"},
        timedelta(days=365): {"365 days by default"},
    }
    for name, option in checked_options():
        text = options_of(CHECKED[name][0])[option.name].description
        assert text, f"{name} does not describe {option.name}"
        if isinstance(option.default, str):
            assert f"``{option.default}``" in text
        elif option.default.__hash__ and option.default in shown and not isinstance(option.default, bool):
            assert shown[option.default] & set(re.findall(r"[\d,]+(?: \w+)? by default", text)), (name, option.name)


def test_bounds_of_job_options_are_the_same_on_the_wire_in_checks_and_in_texts() -> None:
    wire, python = options_of(OptionsBody), options_of(JobOptions)
    for name, (least, _, _) in _WHOLE.items():
        assert bounds_of(wire[name].kind)["ge"] == least
    assert bounds_of(wire["priority"].kind) == {"ge": PRIORITIES[0], "le": PRIORITIES[-1]}
    assert f"from {PRIORITIES[0]} to {PRIORITIES[-1]}" in python["priority"].description
    texts = {name: option.description for name, option in options_of(Retry).items()}
    assert f"{DEFAULT_RETRY.max_attempts} by default" in texts["max_attempts"]
    assert f"the first is {DEFAULT_RETRY.initial_interval // SECOND} second" in texts["initial_interval"]
    assert f"the longest {DEFAULT_RETRY.max_interval // SECOND} seconds" in texts["max_interval"]
    assert f"{DEFAULT_RETRY.backoff_coefficient:g} by default" in texts["coefficient"]
    assert f"``{DEFAULT_RETRY.backoff}`` (the default)" in texts["backoff"]
