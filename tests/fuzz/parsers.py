"""The parsers under test: each gets any bytes, and must accept them or refuse them with an error of the caller's."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Mapping
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote

import msgspec

import ojster
from ojster.collections.items import check_data, read_lookup, read_provided
from ojster.collections.outputs import filled
from ojster.core import access, durations, timestamps
from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import MAX_NESTING_DEPTH, read_members
from ojster.core.json_schema import breaking_changes, compile_schema
from ojster.core.references import Reference, Unresolvable, follow, lookups_in, references_in, replace_lookups, resolve
from ojster.core.tenant import LONGEST_TENANT, check_tenant, qualify, split
from ojster.events.reaction_rules import MAX_ACTIONS, reactions_of
from ojster.jobs.code import LARGEST_BODY, read_code
from ojster.jobs.contents import carries_code, objects_in
from ojster.jobs.expiration import ATTRIBUTE as EXPIRATION
from ojster.jobs.expiration import delay_of
from ojster.jobs.filter_walk import JobFilter, conditions
from ojster.jobs.filters import _MEMBERS, filter_of, narrowing_filter_of
from ojster.jobs.names import (
    MAX_QUEUE_NAME_LENGTH,
    MAX_TYPE_LENGTH,
    QUEUE_PATTERN,
    TYPE_PATTERN,
    check_queue_name,
    read_type,
)
from ojster.jobs.new_job import MAX_META_BYTES, NewJob, read_job
from ojster.jobs.options import PRIORITIES
from ojster.jobs.versions import parse_handled, version_number
from ojster.schedules.cron_expression import LONGEST_EXPRESSION, CronSchedule
from ojster.server.compression import decompress
from ojster.server.pages import numbered_page, object_of, page_of, wait_ms
from ojster.server.proxies import TrustedProxies
from ojster.server.request import HttpRequest
from ojster.storage.database import without_password
from ojster.storage.postgres.url import MAX_CONNECTIONS, parse_postgres_url
from ojster.workflows.definition import check_params, read_definition, read_start
from ojster.workflows.locks import compile_lock
from ojster.workflows.plan.conditions import LONGEST_CONDITION, InvalidCondition, check_condition, evaluate
from ojster.workflows.plan.request import MAX_PARAMS_BYTES, read_workflow, refuse_unknown
from ojster.workflows.plan.values import NewWorkflow, read_spec
from tests.fuzz.connections import feed_connection, feed_socket
from tests.fuzz.targets import Target, lines_of, need, text_of

NOW: Final = 1_800_000_000_000_000
LARGEST: Final = 1_048_576
PASSWORD: Final = "hunter2"


def _decoders() -> dict[str, msgspec.json.Decoder[Any]]:
    """Return the decoders of all request bodies, by name."""
    found: dict[str, msgspec.json.Decoder[Any]] = {}
    for info in pkgutil.walk_packages(ojster.__path__, "ojster."):
        if info.name.endswith("wire"):
            module = importlib.import_module(info.name)
            found |= {name: one for name, one in vars(module).items() if isinstance(one, msgspec.json.Decoder)}
    return {name: one for name, one in found.items() if name.isupper()}


DECODERS: Final = _decoders()


# Jobs


def fuzz_job(data: bytes) -> None:
    """Read a job as ``POST /jobs`` does."""
    members = read_members(data)
    check_job(read_job(members, NOW, largest=LARGEST), data)
    carries_code(objects_in(data))


def check_job(job: NewJob, data: bytes) -> None:
    """Check an accepted job against the documented limits, and read again what is read later."""
    shown = _only_once(job.envelope)
    need(bool(TYPE_PATTERN.fullmatch(job.type)) and len(job.type) <= MAX_TYPE_LENGTH, "a job type")
    need(bool(QUEUE_PATTERN.fullmatch(job.queue)) and len(job.queue) <= MAX_QUEUE_NAME_LENGTH, "a queue name")
    need(len(job.envelope) <= LARGEST, "the size of a job")
    need(len(msgspec.json.encode(shown["meta"])) <= MAX_META_BYTES + 1_000, "the size of meta")
    need(job.priority in PRIORITIES, "a priority")
    need(depth_of(shown) <= MAX_NESTING_DEPTH, "the depth of JSON")
    for actions in reactions_of(job.envelope).values():
        need(len(actions) <= MAX_ACTIONS, "reactions to an event")
    if EXPIRATION in shown:
        delay_of(job.envelope)
    for at in (job.scheduled_at, job.expires_at):
        if at is not None:
            check_shown_time(at)


def _only_once(raw: bytes) -> dict[str, Any]:
    """Return a JSON object, in which no member of the outermost level may occur twice."""
    pairs = cast("list[tuple[str, Any]]", json.loads(raw, object_pairs_hook=_Pairs))
    need(len({name for name, _ in pairs}) == len(pairs), f"each attribute once: {[name for name, _ in pairs]}")
    return cast("dict[str, Any]", json.loads(raw))


class _Pairs(list[tuple[str, Any]]):
    """The members of an object."""


def depth_of(value: Any) -> int:
    """Return the nesting depth of a JSON value."""
    depth, level = 0, [value]
    while level := [
        inner
        for one in level
        if isinstance(one, dict | list)
        for inner in [None, *(one.values() if isinstance(one, dict) else one)]
    ]:
        depth += 1
    return depth


def check_shown_time(at: int) -> None:
    """Check that a time can be shown, and is the same when it is read again."""
    shown = timestamps.format_timestamp(at)
    need(_is_time(shown, at), f"a time that is read again: {at} is shown as {shown}")


def _is_time(shown: str, at: int) -> bool:
    try:
        return timestamps.parse_timestamp(shown) == at
    except InvalidRequest:
        return False


def fuzz_bulk(data: bytes) -> None:
    """Decode a request body of any endpoint, named in the first line, and what it holds."""
    name, _, body = data.partition(b"\n")
    names = sorted(DECODERS)
    decoder = DECODERS.get(text_of(name)) or DECODERS[names[len(data) % len(names)]]
    request = HttpRequest(cast("Any", None), LARGEST, (), b"", {}, cast("Any", None), cast("Any", None))
    read = request.decode(body, decoder)
    for job in getattr(read, "jobs", None) or ():
        if isinstance(job, msgspec.Raw):
            check_job(read_job(read_members(job, "The job"), NOW, largest=LARGEST), bytes(job))
    if isinstance(chosen := getattr(read, "filter", None), dict):
        conditions(filter_of(chosen))


def fuzz_filters(data: bytes) -> None:
    """Read a filter of jobs, and make an SQL condition of it."""
    members = read_members(data)
    given = {name: msgspec.json.decode(raw) for name, raw in members.items() if not _is_out_of_range(raw)}
    chosen = narrowing_filter_of(given)
    need(given.keys() <= _MEMBERS.keys(), "no unknown member of a filter")
    need(chosen != JobFilter(), "no filter that says nothing, and chooses all jobs")
    where, parameters = conditions(chosen)
    need(all(f":{name}" in where for name in parameters), "each parameter in the condition")
    need(all("\0" not in value for value in parameters.values() if isinstance(value, str)), "no U+0000 in SQL")


def _is_out_of_range(raw: msgspec.Raw) -> bool:
    try:
        msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return True
    return False


def fuzz_code(data: bytes) -> None:
    """Read the code of a job."""
    code = read_code(msgspec.json.encode({"body": text_of(data)}))
    need(len(code.body.encode()) <= LARGEST_BODY, "the size of code")


# Workflows


def fuzz_workflow(data: bytes) -> None:
    """Read a workflow as ``POST /workflows`` does."""
    members = read_members(data)
    if "definition" in members:
        read_start(members)
    check_workflow(read_workflow(members, NOW, largest=LARGEST), data)


def check_workflow(new: NewWorkflow, data: bytes) -> None:
    """Check the plan of an accepted workflow."""
    need(len(new.params) <= MAX_PARAMS_BYTES, "the size of parameters")
    need(len(new.plan.nodes) == len(new.plan.specs), "a spec for each node")
    numbers = {node.id for node in new.plan.nodes}
    need(all(one in numbers and other in numbers for one, other in new.plan.edges), "edges between nodes")
    for spec in new.plan.specs:
        need(read_spec(spec.to_json()) == spec, "specs that are read again")
    for job in new.plan.jobs.values():
        check_job(job, data)
    for at in (new.scheduled_at, new.expires_at):
        if at is not None:
            check_shown_time(at)


def fuzz_definition(data: bytes) -> None:
    """Read a definition, and start a workflow from it."""
    members = read_members(data)
    params = bytes(members.pop("params", b"{}"))
    definition = read_definition("known", members)
    refuse_unknown(definition.members, NOW, largest=LARGEST)
    check_workflow(read_workflow(definition.members, NOW, largest=LARGEST), data)
    check_params(definition, params)


def fuzz_condition(data: bytes) -> None:
    """Check a condition (the first line), and evaluate it with values (the second)."""
    *lines, values = data.split(b"\n")
    text = text_of(b"\n".join(lines))
    given = _object_of(values)
    names = check_condition(text, given.keys() - {"steps", "params"})
    need(len(text) <= LONGEST_CONDITION, "the length of a condition")
    need(not _has_nested_macros(text), "macros that are not nested")
    steps = given.get("steps")
    known = steps if isinstance(steps, dict) else {}
    filled_in = {name: known.get(name, {"state": "completed", "result": [1], "error": None}) for name in names}
    evaluate(text, given | {"steps": filled_in, "params": given.get("params", {})})


_NO_CODE: Final = re.compile(
    r"//[^\n]*"
    r'|"{3}(?:[^\\]|\\.)*?"{3}'
    r"|'{3}(?:[^\\]|\\.)*?'{3}"
    r'|"(?:[^"\\]|\\.)*"'
    r"|'(?:[^'\\]|\\.)*'",
    re.DOTALL,
)
"""Comments and strings of CEL."""

_BRACKET: Final = re.compile(r"(\.\s*(?:all|exists|exists_one|map|filter)\s*\()|([(\[{])|[)\]}]")


def _has_nested_macros(condition: str) -> bool:
    """Whether a valid condition has a list macro inside of another, comments and strings aside."""
    is_macro: list[bool] = []
    for match in _BRACKET.finditer(_NO_CODE.sub("''", condition)):
        if match[1] is not None and any(is_macro):
            return True
        if match[1] is not None or match[2] is not None:
            is_macro.append(match[1] is not None)
        elif is_macro:
            is_macro.pop()
    return False


def _object_of(line: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line.decode(errors="replace"))
    except (msgspec.DecodeError, RecursionError):
        return {}
    return {name: one for name, one in found.items() if name.isidentifier()} if isinstance(found, dict) else {}


def fuzz_references(data: bytes) -> None:
    """Find, check and replace references and lookups in JSON."""
    members = read_members(b'{"args":%b}' % data)
    raw = bytes(members["args"])
    for lookup in lookups_in(raw):
        read_lookup(lookup)
    list(references_in(raw))
    known = b'{"a":[{"n":1},"x"],"size":4}'

    def see(reference: Reference) -> bytes:
        return follow(reference, known)

    for found in (resolve(raw, see, lambda _: b"[]"), replace_lookups(raw, lambda _: b"[]")):
        read_members(b'{"args":%b}' % found)
    if raw[:1] == b"[":
        read_provided(raw)
    check_data(raw)


def fuzz_templates(data: bytes) -> None:
    """Fill the templates in all lines but the last with the job in the last."""
    *templates, last = data.split(b"\n")
    job = bytes(read_members(b'{"job":%b}' % (last or b"{}"))["job"])

    def see(reference: Reference) -> bytes:
        return follow(reference, job)

    for template in templates:
        filled(text_of(template), see)


def fuzz_schema(data: bytes) -> None:
    """Compile a JSON Schema (the first line), compare it with itself, and validate a value (the last)."""
    *lines, last = data.split(b"\n")
    schema = msgspec.json.decode(read_members(b'{"schema":%b}' % b"\n".join(lines))["schema"])
    check = compile_schema(schema)
    breaking_changes(schema, schema)
    value = msgspec.json.decode(read_members(b'{"value":%b}' % (last or b"null"))["value"])
    breaking_changes(schema, value if isinstance(value, Mapping) and _compiles(value) else {})
    need(all(isinstance(one, str) for one in check(value)), "violations that are texts")


def _compiles(schema: Any) -> bool:
    try:
        compile_schema(schema)
    except InvalidRequest:
        return False
    return True


# Texts


def fuzz_cron(data: bytes) -> None:
    """Read a cron expression in a time zone, and find its next runs."""
    expression, zone, start = lines_of(data, 3)
    schedule = CronSchedule(expression, zone or "UTC")
    need(len(expression) <= LONGEST_EXPRESSION, "the length of a cron expression")
    moment = int(start) % 10**10 * 1_000_000 if start.isascii() and start.isdigit() else NOW
    for _ in range(5):
        following = schedule.next_after(moment)
        if following is None:
            break
        need(following > moment, f"a run after the last: {following} after {moment}")
        skipped = schedule.skipped_between(moment, following)
        need(all(moment < one <= following for one in skipped), f"skipped runs between runs: {skipped[:3]}")
        moment = following


def fuzz_durations(data: bytes) -> None:
    """Read a duration."""
    text = text_of(data)
    micros = durations.parse_any_duration(text.removeprefix("+"))
    need(0 <= micros <= durations.LONGEST, "a duration of at most 100 years")
    again = durations.parse_duration(durations.format_duration(micros))
    need(again == micros, f"a duration that is read again: {micros} is {again}")


def fuzz_timestamps(data: bytes) -> None:
    """Read a time stamp, and show it."""
    check_shown_time(timestamps.parse_moment(text_of(data), NOW))


def fuzz_postgres_url(data: bytes) -> None:
    """Read the URL of a database. Neither the result nor an error may show a password."""
    text = text_of(data)
    try:
        parsed = parse_postgres_url(text)
    except InvalidRequest as error:
        need(not _is_password_in(text) or PASSWORD not in error.message, f"no password in an error: {error.message}")
        raise
    need(not _is_password_in(text) or PASSWORD not in parsed.shown, f"no password in {parsed.shown}")
    need(1 <= parsed.connections <= MAX_CONNECTIONS, "the number of connections")
    need(0 < len(parsed.schema.encode()) <= 63, "the length of a schema")


def _is_password_in(url: str) -> bool:
    """Whether a URL has the password where a password belongs: behind a user, or as a parameter."""
    place = url.find(f":{PASSWORD}@") if "//" in url else -1
    return url.count(PASSWORD) == 1 and (f"?password={PASSWORD}" in url or 0 <= place < (url + "?").index("?"))


def fuzz_names(data: bytes) -> None:
    """Check a job type, a queue, a workspace, versions and a lock, a line each."""
    type, queue, tenant, versions, lock = lines_of(data, 5)
    for check in (
        lambda: read_type(msgspec.json.encode(type)),
        lambda: check_queue_name(queue),
        lambda: _check_tenant(tenant),
        lambda: parse_handled("a", versions),
        lambda: compile_lock(lock)("/disk/a"),
    ):
        try:
            check()
        except InvalidRequest:
            continue
    version_number(versions)


def _check_tenant(name: str) -> None:
    stored = check_tenant(name)
    need(len(stored) <= LONGEST_TENANT, "the length of a workspace")
    need(split(qualify(stored, "x")) == (stored, "x"), "a qualified name that is split again")


def fuzz_access(data: bytes) -> None:
    """Split a token, read a grant, and match patterns for queues."""
    token, role, tenant, pattern, queue = lines_of(data, 5)
    if (parts := access.split_token(token)) is not None:
        need(access.join_token(*parts) == token, "a token that is joined again")
    grant = access.read_grant(role if role in list(access.Role) else "viewer", tenant)
    need(not grant.covers("other") or grant.tenant in (None, "other"), "a grant for its own workspace")
    if access.covers(pattern, queue) and not queue.endswith("*"):
        access.Access("a", frozenset(), (pattern,)).check_queue(queue)


def fuzz_query(data: bytes) -> None:
    """Read the query parameters of lists."""
    query = dict(parse_qsl(data.decode("latin-1"), keep_blank_values=True))
    limit, offset, before = page_of(query)
    need(1 <= limit <= 200 and offset >= 0 and (before is None or before < 2**63), "the bounds of a page")
    number = numbered_page(query)
    need(number.number >= 1 and 1 <= number.size <= 100, "the bounds of a numbered page")
    wait_ms(query)
    object_of(query, "params")
    conditions(filter_of({name: value for name, value in query.items() if name not in ("limit", "cursor", "offset")}))


def fuzz_headers(data: bytes) -> None:
    """Find the address of a caller behind proxies; decompress a body; unquote a path."""
    peer, networks, forwarded = lines_of(data, 3)
    TrustedProxies(networks.split(",") if networks else ()).address_of(peer, forwarded)
    without_password(unquote(text_of(data)))
    decompress(data, "gzip", LARGEST)


TARGETS: Final = {
    one.name: one
    for one in (
        Target("job", fuzz_job),
        Target("bulk", fuzz_bulk),
        Target("filters", fuzz_filters),
        Target("code", fuzz_code),
        Target("workflow", fuzz_workflow, (Unresolvable,)),
        Target("definition", fuzz_definition),
        Target("condition", fuzz_condition, (InvalidCondition,)),
        Target("references", fuzz_references, (Unresolvable,)),
        Target("templates", fuzz_templates, (Unresolvable,)),
        Target("schema", fuzz_schema, (msgspec.DecodeError,)),
        Target("cron", fuzz_cron),
        Target("durations", fuzz_durations),
        Target("timestamps", fuzz_timestamps),
        Target("postgres_url", fuzz_postgres_url),
        Target("names", fuzz_names),
        Target("access", fuzz_access),
        Target("query", fuzz_query),
        Target("headers", fuzz_headers),
        Target("protocol", feed_connection),
        Target("websocket", feed_socket),
    )
}
"""The parsers under test, by name."""
