"""Every option of the Python API changes the request that is made, or another test shows what it does."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from ojster import (
    App,
    JobOptions,
    RateLimit,
    Retention,
    Retry,
    Settings,
    Snooze,
    Step,
    Unique,
    Wait,
    Worker,
    Workflow,
    batch,
    chain,
    code,
    definition,
    each,
    gate,
    group,
    saga,
    wait,
)
from ojster.handlers.job_decorator import JobDecorator
from ojster.handlers.job_options import JobOptionsDict
from ojster.worker.children import ChildLimits
from ojster.workflows.declaration import start_request
from tests.options.scenes import ShownBy
from tests.options.test_members_of_requests import functions_of

pytestmark = pytest.mark.anyio

MOMENT: Final = datetime(2030, 1, 1, tzinfo=UTC)
A: Final = Step({"type": "a", "args": []})
B: Final = Step({"type": "b", "args": []})
EACH: Final[dict[str, Any]] = {"over": [1], "do": A}
BODY: Final = "def body(job):\n    return 1\n"


def request_of(options: JobOptions) -> Any:
    return options.to_wire(), {name: bytes(raw) for name, raw in options.beside().items()}, options.meta


def typed_wire_of(step: Step) -> Any:
    return wire_of(step), step.convert is None


def wire_of(step: Step) -> Any:
    return step.wire


CALLS: Final[dict[str, tuple[Callable[..., Any], Mapping[str, Any]]]] = {
    "JobOptions": (
        lambda **options: request_of(JobOptions(**options)),
        {
            "queue": "mail",
            "priority": 5,
            "timeout": 5,
            "grace_period": 5,
            "total_timeout": 5,
            "retry": 7,
            "unique": Unique(),
            "rate_limit": RateLimit(key="k", concurrency=1),
            "delay": 5,
            "scheduled_at": MOMENT,
            "expires_in": 5,
            "expires_at": MOMENT,
            "tags": ["x"],
            "pending": True,
            "meta": {"m": 1},
            "version": "2.0",
            "resources": {"gpu_count": 1},
            "requires": {"region": "eu"},
            "agent": {"model": "m"},
            "reactions": {"on_success": []},
            "expiration_delay": "never",
            "heartbeat_timeout": 5,
            "result_ttl": 5,
            "result_size_limit": 5,
        },
    ),
    "Retry": (
        lambda **options: Retry(**options).to_wire(),
        {
            "max_attempts": 7,
            "initial_interval": 2,
            "max_interval": 400,
            "backoff": "linear",
            "coefficient": 3.0,
            "jitter": False,
            "give_up_on": (ValueError,),
            "dead_letter": True,
        },
    ),
    "Unique": (
        lambda **options: Unique(**{"keys": ["args", "meta"], "meta_keys": ["b"]} | options).to_wire(),
        {
            "keys": ["args", "meta", "queue"],
            "args_keys": ["a"],
            "meta_keys": ["a"],
            "period": 5,
            "states": ["active"],
            "on_conflict": "replace",
        },
    ),
    "RateLimit": (
        lambda **options: RateLimit(**{"key": "k"} | options).to_wire(),
        {"key": "other", "concurrency": 1, "rate": (1, 60), "throttle": (1, 60), "on_limit": "drop"},
    ),
    "Workflow.request": (
        chain(A).request,
        {
            "name": "nightly",
            "params": {"p": 1},
            "metadata": {"m": 1},
            "options": {"queue": "other"},
            "priority": 5,
            "timeout": 5,
            "scheduled_at": MOMENT,
            "delay": 5,
            "expires_in": 5,
            "on_error": A,
            "on_cancel": [A, B],
            "on_lost_worker": "cancel",
            "properties": {"p": 1},
            "expiration_delay": timedelta(days=1),
        },
    ),
    "start_request": (
        lambda **options: start_request(**{"definition": "d"} | options),
        {
            "definition": "other",
            "version": 2,
            "params": {"p": 1},
            "target": "t",
            "locks": "l",
            "properties": {"p": 1},
            "name": "nightly",
            "metadata": {"m": 1},
            "priority": 5,
            "scheduled_at": MOMENT,
            "delay": 5,
            "expires_in": 5,
            "expiration_delay": "never",
        },
    ),
    "Step.set": (
        lambda **options: wire_of(chain(A).set(**options)),
        {
            "id": "i",
            "when": "finished",
            "if_": "true",
            "allow_failure": True,
            "manual": True,
            "fallback": B,
            "compensate": B,
            "compensate_when": "started",
            "display_name": "D",
            "step": "s",
            "group": "g",
            "visible": False,
            "priority_adjustment": 5,
            "options": {"queue": "other"},
            "provides": ["item"],
        },
    ),
    "chain": (lambda **options: wire_of(chain(A, **options)), {"name": "n"}),
    "group": (lambda **options: wire_of(group(A, **options)), {"name": "n"}),
    "saga": (lambda **options: wire_of(saga(A, **options)), {"name": "n", "failure_policy": "skip"}),
    "batch": (
        lambda **options: wire_of(batch(A, **{"on_complete": A} | options)),
        {"name": "n", "on_complete": B, "on_success": B, "on_failure": B},
    ),
    "each": (
        lambda **options: wire_of(each(**EACH | options)),
        {"over": [2], "do": B, "element": "x", "name": "n"},
    ),
    "gate": (lambda **options: wire_of(gate(**options)), {"id": "i", "timeout": 5, "display_name": "D"}),
    "wait": (
        lambda **options: wire_of(wait(**options)),
        {
            "id": "i",
            "delay": 5,
            "until": MOMENT,
            "form": {"type": "object"},
            "timeout": 5,
            "remind": [5],
            "reactions": {"on_reminder": []},
            "display_name": "D",
        },
    ),
    "code": (
        lambda **options: wire_of(code(**{"body": BODY} | options)),
        {"body": BODY + "#", "modules": ["math"], "timeout": 5, "attempts": 5, "queue": "other"},
    ),
    "definition": (
        lambda **options: typed_wire_of(definition(**{"name": "d"} | options)),
        {"name": "other", "params": {"p": 1}, "version": 2, "returns": int},
    ),
    "Snooze": (
        lambda **options: Snooze(**options).release("j", "w", 1),
        {"delay": 5, "until": MOMENT},
    ),
    "Wait": (
        lambda **options: Wait(**options).release("j", "w", 1),
        {"timeout": 5, "deadline": MOMENT, "again": True},
    ),
}
"""A call that makes a request, and a value of each of its options."""

SIGNATURES: Final[dict[str, Any]] = {
    "JobOptions": JobOptions,
    "Retry": Retry,
    "Unique": Unique,
    "RateLimit": RateLimit,
    "Workflow.request": Workflow.request,
    "start_request": start_request,
    "Step.set": Step.set,
    "chain": chain,
    "group": group,
    "saga": saga,
    "batch": batch,
    "each": each,
    "gate": gate,
    "wait": wait,
    "code": code,
    "definition": definition,
    "Snooze": Snooze,
    "Wait": Wait,
}

SETTINGS: Final = ShownBy("core/test_public_settings.py", "test_seconds_and_timedeltas_mean_the_same")

SHOWN: Final[dict[str, tuple[Any, dict[str, ShownBy]]]] = {
    "App.job": (
        JobDecorator.__call__,
        {
            "type": ShownBy("client/test_declaring.py", "test_a_class_is_a_handler_with_a_new_object_for_each_job"),
            "process": ShownBy("testing/test_tester.py", "test_plain_functions_run_in_the_thread_of_the_test"),
            "versions": ShownBy("jobs/test_versions.py", "test_handlers_say_in_python_which_versions_they_understand"),
            "keep_logs": ShownBy("worker/test_kept_logs.py", "test_lines_are_kept_however_an_attempt_ends"),
        },
    ),
    "Retention": (
        Retention,
        {
            "completed": SETTINGS,
            "cancelled": ShownBy("options/test_options_in_python.py", "test_each_age_and_number_is_a_setting"),
            "discarded": SETTINGS,
            "dead_letter": SETTINGS,
            "most_dead_letters": SETTINGS,
            "audit": ShownBy("options/test_options_in_python.py", "test_each_age_and_number_is_a_setting"),
            "logs": ShownBy("jobs/test_logs.py", "test_lines_of_finished_jobs_have_a_retention_of_their_own"),
        },
    ),
    "ChildLimits": (
        ChildLimits,
        {
            "max_jobs": ShownBy("worker/test_children.py", "test_a_child_is_replaced_after_so_many_jobs"),
            "max_memory": ShownBy("worker/test_children.py", "test_a_child_is_replaced_when_it_has_become_too_large"),
        },
    ),
}
"""Callables whose options do something in the process, and tests that show it."""


def options_of(function: Any) -> set[str]:
    """Return the parameters of a function that have names."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, one in inspect.signature(function).parameters.items() if one.kind in named} - {"self"}


def test_each_option_has_a_value_here_or_names_a_test() -> None:
    assert {name: set(values) for name, (_, values) in CALLS.items()} == {
        name: options_of(function) for name, function in SIGNATURES.items()
    }
    for function, tests in SHOWN.values():
        assert set(tests) == options_of(function) - {"options"}
        for option, test in tests.items():
            source = functions_of(test.file)[test.test]
            assert option == "type" or option in source, f"{test} does not use {option}"
    assert JobOptionsDict.__annotations__.keys() == set(JobOptions.__struct_fields__)


@pytest.mark.parametrize("name", [f"{call} {option}" for call, (_, options) in CALLS.items() for option in options])
def test_an_option_changes_the_request(name: str) -> None:
    call, option = name.split()
    make, values = CALLS[call]
    assert make(**{option: values[option]}) != make()


@pytest.mark.parametrize(
    ("call", "options"),
    [
        ("JobOptions", ("delay", "scheduled_at")),
        ("JobOptions", ("expires_in", "expires_at")),
        ("Workflow.request", ("delay", "scheduled_at")),
        ("start_request", ("delay", "scheduled_at")),
        ("Snooze", ("delay", "until")),
        ("Wait", ("timeout", "deadline")),
    ],
)
def test_options_that_exclude_each_other_are_refused(call: str, options: tuple[str, str]) -> None:
    make, values = CALLS[call]
    with pytest.raises(TypeError, match=f"'{options[0]}' and '{options[1]}' exclude each other"):
        make(**{name: values[name] for name in options})


def test_another_time_replaces_the_one_of_a_declaration() -> None:
    app = App("sqlite:///:memory:")

    @app.job("report.build", delay=60, expires_at=MOMENT)
    def build() -> None: ...

    later = build.using(scheduled_at=MOMENT, expires_in=5).options
    assert (later.delay, later.scheduled_at, later.expires_in, later.expires_at) == (None, MOMENT, 5, None)
    assert build.using(priority=5).options.delay == 60
    app.close()


def test_each_age_and_number_is_a_setting() -> None:
    from ojster.core.public_settings import in_microseconds

    changed: dict[type[Any], dict[str, Any]] = {
        Retention: {"cancelled": 7, "audit": 7, "logs": 7},
        Settings: {
            "default_lease": 7,
            "default_timeout": 7,
            "heartbeat_timeout": 7,
            "largest_job": 2_000,
            "largest_workflow": 2_000,
            "largest_storage": 2_000,
            "largest_batch": 200,
            "most_generations": 7,
            "most_losses": 7,
            "on_exhaustion": "dead_letter",
            "contributors_cancel": "own",
            "tenants": "required",
            "default_tenant": "acme",
            "schema_mode": "off",
            "retention": Retention(completed=7),
        },
    }
    assert set(changed[Settings]) == set(Settings.__struct_fields__)
    for name, value in changed[Settings].items():
        assert in_microseconds(Settings(**{name: value})) != in_microseconds(Settings())
    for name, value in changed[Retention].items():
        assert in_microseconds(Settings(retention=Retention(**{name: value}))) != in_microseconds(Settings())


@pytest.mark.parametrize(
    ("url", "options", "idle"),
    [
        ("http://127.0.0.1:1", {"settings": Settings(most_losses=3), "migrate": True}, "settings, migrate of App"),
        ("http://127.0.0.1:1", {"synchronous": "NORMAL", "files": "f"}, "synchronous, files of App"),
        ("sqlite:///:memory:", {"headers": {"a": "b"}, "token": "t"}, "headers, token of App"),
        ("sqlite:///:memory:", {"settings": Settings(most_losses=3)}, None),
        ("http://127.0.0.1:1", {"token": "t"}, None),
    ],
)
async def test_options_of_an_application_without_effect_bring_a_warning(
    url: str, options: dict[str, Any], idle: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ojster"):
        async with App(url, **options) as app:
            app.client()
            app.client()
    assert [idle in record.message for record in caplog.records if idle] == ([] if idle is None else [True])
    assert (idle is None) == (not caplog.records)


def test_a_worker_refuses_capabilities_that_no_job_can_require() -> None:
    app = App("sqlite:///:memory:")

    @app.job("one")
    def one() -> None: ...

    with pytest.raises(Exception, match="The capability 'region' has no effect"):
        Worker(app, capabilities={"region": "eu"})
    app.close()


def test_values_of_policies_are_no_defaults() -> None:
    for kind in (Retry, Unique, RateLimit):
        _, values = CALLS[kind.__name__]
        for field in msgspec.structs.fields(kind):
            assert values[field.name] != field.default
