"""A check of every answer and event in the tests against the specification's OpenAPI file and JSON Schemas.

A rule is named by where the specification states it, such as ``job.json#/properties/error/required:type``. To list what
breaks which rule instead of failing, record a run and then read the records:

    OJSTER_SPEC_ANSWERS=/tmp/records pytest
    python -m tests.faithful.spec_answers /tmp/records

Spec: openapi.yaml, schemas/v1
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import msgspec
import pytest
from msgspec import inspect
from starlette.requests import Request
from starlette.responses import Response

from ojster.core import events
from ojster.core.events import Event, EventPage
from ojster.core.wire import ErrorAnswer, ErrorBody
from ojster.events import webhooks
from ojster.events.wire import SubscriptionInfo
from ojster.fleet.answer_wire import WorkerInfo
from ojster.insight.wire import ManifestAnswer
from ojster.jobs.answer_wire import AdjustedAnswer, CheckpointInfo, JobBody, JobDetailAnswer
from ojster.jobs.answer_wire import ProgressAnswer as ProgressInfo
from ojster.jobs.policy_wire import RetryPolicyBody
from ojster.queues.answer_wire import QueueStatisticsAnswer
from ojster.schedules.wire import CronInfo
from ojster.server.answer import MEDIA_TYPE, PLAIN_JSON, Answer
from ojster.server.application import Application
from ojster.server.endpoint import Endpoint
from ojster.server.endpoints import webhooks as webhook_routes
from ojster.server.request import HttpRequest
from ojster.server.route import Route
from ojster.workflows.read.info import WorkflowInfo
from tests.faithful.examples import ROOT
from tests.faithful.spec_exceptions import EXCEPTIONS

SPEC: Final = ROOT / "spec"
RECORDS: Final = "OJSTER_SPEC_ANSWERS"
"""Environment variable with the folder for records. If it is set, broken rules are recorded and no test fails."""

_HOME: Final = "https://openjobspec.org/"
_OPENAPI: Final = f"{_HOME}openapi.yaml"
_SCHEMAS: Final = f"{_HOME}schemas/v1/"
_MAX_VALUE_LENGTH: Final = 300
_JSON_TYPES: Final = (MEDIA_TYPE, PLAIN_JSON)
_NOTHING: Final[dict[str, Any]] = {}
_ALLOWED: Final = EXCEPTIONS


def _schema(name: str) -> dict[str, Any]:
    return {"$ref": f"{_SCHEMAS}{name}"}


def _member(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"properties": {name: schema}}


_JOB: Final = _schema("job.json")
_EVENT: Final = _schema("event.json")
_OJS_ERROR: Final = {"$ref": f"{_OPENAPI}#/components/schemas/OJSError"}
_ERROR_ANSWER: Final = {"$ref": f"{_OPENAPI}#/components/schemas/ErrorResponse"}

SCHEMA_OF_TYPE: Final[dict[type, dict[str, Any]]] = {
    AdjustedAnswer: _member("job", _JOB),
    CheckpointInfo: _schema("checkpoint.json#/definitions/checkpointResponse"),
    CronInfo: _schema("cron.json"),
    ErrorBody: _schema("api-error.json"),
    EventPage: _member("events", {"items": _EVENT}),
    JobBody: _JOB,
    JobDetailAnswer: _JOB,
    ManifestAnswer: _schema("manifest.json"),
    ProgressInfo: _schema("progress.json#/definitions/progressResponse"),
    QueueStatisticsAnswer: _schema("queue-stats.json"),
    RetryPolicyBody: _schema("retry-policy.json"),
    SubscriptionInfo: _schema("webhook.json#/definitions/webhookSubscription"),
    WorkerInfo: _schema("worker-info.json"),
    WorkflowInfo: _schema("workflow.json"),
}
"""The JSON Schema of each type that occurs in the server's answers and that the specification has a schema for."""

SCHEMA_OF_ANSWER: Final = {
    ("POST", "/ojs/v1/jobs", 201): _schema("http/enqueue-response.json"),
    ("POST", "/ojs/v1/jobs/batch", 201): _schema("http/batch-enqueue-response.json"),
    ("POST", "/ojs/v1/workers/fetch", 200): _schema("http/fetch-response.json"),
    ("POST", "/ojs/v1/workers/heartbeat", 200): _schema("http/heartbeat-response.json"),
}
"""The JSON Schema of whole answers, in addition to the OpenAPI file."""


class Expected(msgspec.Struct, frozen=True):
    """What the specification says about the answers of one route with one status.

    Parameters
    ----------
    content_types:
        Accepted media types; empty if the OpenAPI file does not have the route or gives no body.
    headers:
        Headers that the OpenAPI file declares, in lower case.
    is_declared:
        ``False`` if the OpenAPI file has the route, but not this status.
    validator:
        Validates the body.
    """

    content_types: tuple[bytes, ...]
    headers: tuple[bytes, ...]
    is_declared: bool
    validator: jsonschema_rs.Draft202012Validator


class Breach(msgspec.Struct):
    """A rule that answers break: how often, by place, and the first case."""

    pointer: str
    message: str
    value: str
    test: str
    places: dict[str, int] = {}


class Record(msgspec.Struct):
    """The broken rules of a test process, and what the check cost.

    Parameters
    ----------
    seconds:
        Time spent on checks, in seconds.
    checked:
        Number of answers and events checked.
    """

    breaches: dict[str, Breach] = {}
    seconds: float = 0.0
    checked: int = 0


class SpecAnswers:
    """The check: it collects the rules that answers and events break."""

    def __init__(self) -> None:
        self.record = Record()
        self._openapi: dict[str, Any] = msgspec.yaml.decode((SPEC / "openapi.yaml").read_bytes())
        assert self._openapi["openapi"].startswith("3.1."), "only from 3.1 on are the schemas of OpenAPI JSON Schemas"
        self._operations = {
            (method.upper(), _nameless(path)): (f"{_OPENAPI}#/paths/{_escaped(path)}/{method}", operation)
            for path, item in self._openapi["paths"].items()
            for method, operation in item.items()
        }
        self._registry = jsonschema_rs.Registry(_documents(self._openapi), draft=jsonschema_rs.Draft202012)
        self._expected: dict[tuple[str, str, int], Expected] = {}
        self._event = self._validator([_EVENT])
        self._refusal = self._validator([_ERROR_ANSWER, _schema_within(ErrorAnswer)])
        self._unexplained: list[str] = []

    def check(self, route: Route, answer: Answer) -> None:
        """Check an answer of a route."""
        started = time.perf_counter()
        place = f"{route.method} {route.path} {answer.status}"
        expected = self._expected.get((route.method, route.path, answer.status)) or self._expect(route, answer.status)
        if not expected.is_declared:
            self._note(place, f"undeclared status {answer.status}")
        if expected.content_types and answer.content_type not in expected.content_types:
            self._note(place, f"content type {answer.content_type.decode()}")
        for name in expected.headers:
            if all(name != given for given, _ in answer.headers):
                self._note(place, f"missing header {name.decode()}")
        if answer.body and answer.stream is None and answer.content_type in _JSON_TYPES:
            try:
                body = msgspec.json.decode(answer.body)
            except msgspec.ValidationError:  # an argument or a result: a number that Python does not have
                return
            self._validate(place, expected.validator, body)
        self.record.seconds += time.perf_counter() - started

    def check_refusal(self, answer: Response) -> None:
        """Check the answer for a path or method that no route has."""
        self._validate(f"no route {answer.status_code}", self._refusal, msgspec.json.decode(answer.body))

    def check_event(self, event: dict[str, Any]) -> None:
        """Check the envelope of an event."""
        started = time.perf_counter()
        self._validate(f"event {event['type']}", self._event, event)
        self.record.seconds += time.perf_counter() - started

    def unexplained(self) -> list[str]:
        """Return the broken rules that are no exceptions, once each, and forget them."""
        found, self._unexplained = self._unexplained, []
        return found

    def _validator(self, schemas: list[dict[str, Any]]) -> jsonschema_rs.Draft202012Validator:
        return jsonschema_rs.Draft202012Validator(
            {"allOf": schemas or [{}]}, registry=self._registry, validate_formats=True, offline=True
        )

    def _expect(self, route: Route, status: int) -> Expected:
        """Return what the specification says about the answers of a route with a status, and remember it."""
        schemas = []
        if (whole := SCHEMA_OF_ANSWER.get((route.method, route.path, status))) is not None:
            schemas.append(whole)
        if status >= 400:
            schemas += [_member("error", _OJS_ERROR), _schema_within(ErrorAnswer)]
        elif route.answer is not None:
            schemas.append(_schema_within(route.answer))
        content_types: list[bytes] = []
        headers: list[bytes] = []
        is_declared = True
        if (operation := self._operations.get((route.method, _nameless(route.path)))) is not None:
            place, described = operation
            response = described["responses"].get(str(status))
            is_declared = response is not None
            place = f"{place}/responses/{status}"
            if response is not None:
                if "$ref" in response:
                    place = f"{_OPENAPI}{response['$ref']}"
                    response = self._openapi["components"]["responses"][response["$ref"].rpartition("/")[2]]
                headers = [name.lower().encode() for name in response.get("headers", ())]
                for content_type, content in response.get("content", _NOTHING).items():
                    content_types.append(content_type.encode())
                    if "json" in content_type and "schema" in content:
                        schemas.append({"$ref": f"{place}/content/{_escaped(content_type)}/schema"})
        expected = Expected(tuple(content_types), tuple(headers), is_declared, self._validator(schemas))
        self._expected[route.method, route.path, status] = expected
        return expected

    def _validate(self, place: str, validator: jsonschema_rs.Draft202012Validator, value: Any) -> None:
        self.record.checked += 1
        if validator.is_valid(value):
            return
        for error in validator.iter_errors(value):
            pointer = "".join(f"/{'*' if isinstance(part, int) else part}" for part in error.instance_path)
            for rule in _rules(error):
                self._note(place, rule, pointer, error.message, repr(error.instance))

    def _note(self, place: str, rule: str, pointer: str = "", message: str = "", value: str = "") -> None:
        breach = self.record.breaches.get(rule)
        if breach is None:
            test = os.environ.get("PYTEST_CURRENT_TEST", "")
            breach = Breach(pointer, message[:_MAX_VALUE_LENGTH], value[:_MAX_VALUE_LENGTH], test)
            self.record.breaches[rule] = breach
        breach.places[place] = breach.places.get(place, 0) + 1
        if reason(rule, place) is None:
            self._unexplained.append(f"{place} breaks {rule}: {pointer} {message[:_MAX_VALUE_LENGTH]}")


@cache
def reason(rule: str, place: str) -> str | None:
    """Return why the answers at a place may break a rule; ``None`` if they must not."""
    return next((why for pattern, why in _ALLOWED.items() if _matches(rule, place, pattern)), None)


def _matches(rule: str, place: str, pattern: str) -> bool:
    return fnmatchcase(f"{rule} in {place}" if " in " in pattern else rule, pattern)


def _rules(error: jsonschema_rs.ValidationError) -> Iterator[str]:
    """Yield the names of the rules that an error is about: the schema's keyword, and what it complains about."""
    rule = (error.absolute_keyword_location or "").removeprefix(_HOME).removeprefix("schemas/v1/")
    kind: Any = error.kind
    match kind.name:
        case "required":
            yield f"{rule}:{kind.property}"
        case "additionalProperties":
            yield from (f"{rule}:{name}" for name in kind.unexpected)
        case "enum" | "const":
            yield f"{rule}:{error.instance}"
        case _:
            yield rule


def _documents(openapi: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the documents of the specification, by every address at which they refer to each other."""
    yield _OPENAPI, openapi
    folder = SPEC / "schemas" / "v1"
    for file in sorted(folder.rglob("*.schema.json")):
        schema = msgspec.json.decode(file.read_bytes())
        yield schema["$id"], schema
        yield f"{_SCHEMAS}{file.relative_to(folder)}", schema


def _schema_within(type: Any) -> dict[str, Any]:
    """Return a schema that applies ``SCHEMA_OF_TYPE`` to every part of a type."""
    return _schema_of(inspect.type_info(type), ()) or {}


def _schema_of(type: inspect.Type, outer: tuple[Any, ...]) -> dict[str, Any] | None:
    match type:
        case inspect.StructType(cls, fields) if cls not in outer:
            if cls in SCHEMA_OF_TYPE:
                return SCHEMA_OF_TYPE[cls]
            members = {one.encode_name: _schema_of(one.type, (*outer, cls)) for one in fields}
            known = {name: schema for name, schema in members.items() if schema is not None}
            return {"properties": known} if known else None
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            schema = _schema_of(item, outer)
            return None if schema is None else {"items": schema}
        case inspect.UnionType(types):
            return next((schema for one in types if (schema := _schema_of(one, outer)) is not None), None)
    return None


def _nameless(path: str) -> str:
    """Return a path template without the names of its parameters."""
    return "/".join("{}" if part.startswith("{") else part for part in path.split("/"))


def _escaped(part: str) -> str:
    """Return a name as a part of a JSON Pointer in a URL."""
    return part.replace("~", "~0").replace("/", "~1").replace("{", "%7B").replace("}", "%7D")


@contextmanager
def spec_answers() -> Iterator[SpecAnswers | None]:
    """Check every answer of every server in this process, and every event; without the documents, check nothing."""
    if not SPEC.is_dir():
        yield None
        return
    check = SpecAnswers()
    with pytest.MonkeyPatch.context() as patch:
        _check_answers(patch, check)
        _check_events(patch, check)
        yield check
    if folder := os.environ.get(RECORDS):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{os.getpid()}.json").write_bytes(msgspec.json.encode(check.record))


def _check_answers(patch: pytest.MonkeyPatch, check: SpecAnswers) -> None:
    endpoint_of, answer_of, refuse_path = Application._endpoint, Endpoint._answer, Application._refuse_path

    def endpoint(self: Application, route: Route) -> Endpoint:
        made = endpoint_of(self, route)
        # Kept by the endpoint itself: some routes have a method of the application as handler, so that a table, however
        # weak its keys, would keep all applications and their databases until the process ends.
        vars(made)["specified_route"] = route
        return made

    async def answer(self: Endpoint, request: HttpRequest) -> Answer:
        given = await answer_of(self, request)
        if (route := vars(self).get("specified_route")) is not None:
            check.check(route, given)
        return given

    async def refuse(self: Application, request: Request, error: Exception) -> Response:
        given = await refuse_path(self, request, error)
        check.check_refusal(given)
        return given

    patch.setattr(Application, "_endpoint", endpoint)
    patch.setattr(Endpoint, "_answer", answer)
    patch.setattr(Application, "_refuse_path", refuse)


def _check_events(patch: pytest.MonkeyPatch, check: SpecAnswers) -> None:
    describe = events.describe_event

    def described(event: Event, id: str, source: str) -> dict[str, Any]:
        envelope = describe(event, id, source)
        check.check_event(envelope)
        return envelope

    for module in (events, webhooks, webhook_routes):
        patch.setattr(module, "describe_event", described)


def merged(records: Iterable[Record]) -> Record:
    """Return the records of several processes as one."""
    whole = Record({})
    for record in records:
        whole.seconds += record.seconds
        whole.checked += record.checked
        for rule, breach in record.breaches.items():
            if rule in whole.breaches:
                known = whole.breaches[rule]
                known.places = dict(Counter(known.places) + Counter(breach.places))
            else:
                whole.breaches[rule] = breach
    return whole


def show(record: Record) -> None:
    """Print the broken rules with the reasons why they may be broken, and the exceptions that nothing needed."""
    needed: set[str] = set()
    for rule, breach in sorted(record.breaches.items()):
        for place in breach.places:
            needed.update(pattern for pattern in _ALLOWED if _matches(rule, place, pattern))
        print(f"{rule}\n  {breach.pointer} {breach.message}\n  value {breach.value}\n  first in {breach.test}")
        for place, count in Counter(breach.places).most_common():
            print(f"  {count:6} {place}: {reason(rule, place) or 'NOT ALLOWED'}")
    for pattern in _ALLOWED:
        if pattern not in needed:
            print(f"No answer needs the exception: {pattern}")
    print(f"{record.checked} answers and events checked in {record.seconds:.1f} s")


if __name__ == "__main__":
    show(merged(msgspec.json.decode(file.read_bytes(), type=Record) for file in Path(sys.argv[1]).glob("*.json")))
