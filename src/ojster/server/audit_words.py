"""What callers did, in words, for the audit log.

Spec: ojs-security 11
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from string import Formatter
from typing import Any, Final

import msgspec
from msgspec import Raw

from ojster.core.printable import printable

MAX_REQUEST_BYTES: Final = 2_048
"""Maximum size of a request that is shown in an entry, in bytes. Of a larger one, the entry has the size."""

MAX_OBJECT_CHARS: Final = 512
"""Maximum length of what an entry says about the object, in characters."""

MAX_EXAMINED_BYTES: Final = 65_536
"""Maximum size of a request whose members an entry may name, in bytes. Larger ones would hold up other requests."""

_SECRET: Final = frozenset(
    {
        *("secret", "secrets", "password", "passwords", "token", "tokens", "key", "keys", "apikey", "credentials"),
        *("authorization", "header", "headers", "url", "urls"),
    }
)
"""Words in the names of members that may be secret."""

_MEASURE: Final = frozenset({"count", "limit", "max", "min", "number", "size", "total"})
"""Words in the names of members that are numbers of such things, as in ``max_tokens``."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_OF_USERS: Final = frozenset(
    ("args", "data", "meta", "metadata", "params", "payload", "payloads", "properties", "result", "results")
)
"""Members with the values of users, such as numbers of cards: an entry says only that there were some."""

_MANY: Final = {
    f"{verb}_{kind}": (done, "job")
    for verb, done in (("cancel", "cancelled"), ("retry", "retried"), ("delete", "deleted"))
    for kind in ("batch", "bulk", "admin_jobs")
} | {
    "purge_queue": ("deleted", "job"),
    "retry_dead_letters": ("retried", "dead letter"),
    "purge_dead_letters": ("deleted", "dead letter"),
    "cancel_workflows": ("cancelled", "workflow"),
    "retry_workflows": ("retried", "workflow"),
    "fork_workflows": ("ran again", "workflow"),
    "hold_workflows": ("held", "workflow"),
    "release_workflows": ("released", "workflow"),
    "pin_workflows": ("pinned", "workflow"),
    "delete_workflows": ("deleted", "workflow"),
}
"""For each operation on many jobs or workflows: what was done, and to what."""

_DECISIONS: Final = {
    "review_step": {"approve": "approved", "reject": "rejected", "": "made a note on"},
    "resume_workflow": {"result": "answered", "error": "declined to answer", "": "resumed"},
    "activate_job": {"result": "answered", "error": "declined to answer", "": "activated"},
}
"""For each operation by which people decide something: the words for what its body says."""

_WORDS: Final = {
    "adjust_job": "changed the priority of the job {id}: {request}",
    "cancel_job": "cancelled the job {id}",
    "cancel_admin_job": "cancelled the job {id}",
    "retry_admin_job": "retried the job {id}",
    "retry_dead_letter": "retried the dead letter {id}",
    "retry_admin_dead_letter": "retried the dead letter {id}",
    "delete_dead_letter": "deleted the dead letter {id}",
    "delete_admin_dead_letter": "deleted the dead letter {id}",
    "purge_history": "deleted the history of the job {id}",
    "register_schema": "registered a schema of the job type {job_type}",
    "put_schema": "registered the schema {version} of the job type {type}",
    "delete_schema": "deleted the schema {version} of the job type {type}",
    "delete_schema_with_uri": "deleted the schema {type}",
    "delete_job_type": "deleted the defaults of the job type {type}",
    "put_tenant": "set up the workspace {id}: {request}",
    "limit_tenant": "changed the limits of the workspace {id}: {request}",
    "delete_tenant": "deleted the settings of the workspace {id}",
    "create_token": "created the token {name}: {request}",
    "rotate_token": "gave the token {id} a new secret",
    "revoke_token": "revoked the token {id}",
    "direct_worker": "told the worker {id} to be {directive}",
    "quiet_worker": "told the worker {id} to be quiet",
    "deregister_worker": "removed the lost worker {id}",
    "change_worker_rule": "changed the rule of the worker {id}: {request}",
    "forget_worker_rule": "deleted the rule of the worker {id}",
    "pause_queue": "paused the queue {name}",
    "pause_admin_queue": "paused the queue {name}",
    "resume_queue": "resumed the queue {name}",
    "resume_admin_queue": "resumed the queue {name}",
    "create_queue": "created the queue {name}",
    "delete_queue": "deleted the queue {name}: {request}",
    "configure_queue": "changed the settings of the queue {name}: {request}",
    "limit_admin_queue": "replaced the limits of the queue {name}: {request}",
    "override_rate_limit": "overrode the limits of the key {key}: {request}",
    "restore_rate_limit": "deleted the override of the limits of the key {key}",
    "put_pool": "set up the pool {name}: {request}",
    "delete_pool": "deleted the pool {name}",
    "retry_workflow": "retried the workflow {id}",
    "fork_workflow": "ran the workflow {id} again as a new one: {request}",
    "terminate_workflow": "terminated the workflow {id}",
    "hold_workflow": "held the workflow {id}",
    "release_workflow": "released the workflow {id}",
    "cancel_workflow": "cancelled the workflow {id}",
    "add_dependencies": "let the step {step} of the workflow {id} wait for others: {request}",
    "retry_step": "retried the step {step} of the workflow {id}",
    "cancel_step": "cancelled the step {step} of the workflow {id}",
    "create_definition": "created the definition {name}",
    "update_definition": "changed the definition {name}",
    "delete_definition": "deleted the definition {name}",
    "create_collection": "created the collection {name}",
    "change_collection": "changed the settings of the collection {name}: {request}",
    "delete_collection": "deleted the collection {name}",
    "delete_file": "deleted the file {id}",
    "register_cron": "registered the schedule {name}",
    "switch_cron": "switched the schedule {name}: {request}",
    "trigger_cron": "ran the schedule {name} by hand",
    "backfill_cron": "ran missed occurrences of the schedule {name}: {request}",
    "unregister_cron": "deleted the schedule {name}",
    "prune": "deleted all data past its retention: {request}",
    "maintain": "switched maintenance mode: {request}",
    "create_subscription": "subscribed a webhook to events",
    "change_subscription": "changed the webhook {id}",
    "delete_subscription": "deleted the webhook {id}",
    "rotate_secret": "gave the webhook {id} a new secret",
    "retry_delivery": "retried the delivery {id}",
    "test_subscription": "tested the webhook {id}",
    "put_push_endpoint": "set up the push endpoint {id}",
    "pause_push_endpoint": "paused the push endpoint {id}",
    "resume_push_endpoint": "resumed the push endpoint {id}",
    "rotate_push_secret": "gave the push endpoint {id} a new secret",
    "delete_push_endpoint": "deleted the push endpoint {id}",
    "put_channel": "set up the channel {name}",
    "delete_channel": "deleted the channel {name}",
}
"""For each other operation that the audit log has: what was done, to the values of its path and its request."""

OPERATIONS_IN_WORDS: Final = frozenset({*_MANY, *_DECISIONS, *_WORDS})
"""The operations that have words."""


class _Summary(msgspec.Struct):
    succeeded: int | None = None


class _Outcome(msgspec.Struct):
    """The members of the answers of bulk operations that have the number of what was changed."""

    succeeded: int | None = None
    cancelled: int | None = None
    retried: int | None = None
    deleted: int | None = None
    purged_count: int | None = None
    summary: _Summary | None = None

    def number(self) -> int | None:
        """Return the number of what was changed."""
        of_batch = None if self.summary is None else self.summary.succeeded
        told = (self.succeeded, of_batch, self.cancelled, self.retried, self.deleted, self.purged_count)
        return next((number for number in told if number is not None), None)


_outcome_of: Final = msgspec.json.Decoder(_Outcome).decode


def in_words(operation: str, path: Mapping[str, str], body: bytes | None, answer: bytes | None) -> str | None:
    """Return what somebody did, in words; ``None`` for operations that the audit log does not have.

    Parameters
    ----------
    path, body:
        What the request concerns, and what it says.
    answer:
        What the server answered; ``None``: it refused the request.
    """
    if operation not in OPERATIONS_IN_WORDS:
        return None
    members = _members_of(body or b"{}")
    if operation in _DECISIONS:
        words = _decision(operation, path, members)
    elif operation in _MANY:
        words = _many(operation, path, members, answer)
    else:
        words = _filled(_WORDS[operation], path, members)
    preview = "previewed, and did not do: " if members.get("dry_run") is True else ""
    return printable(preview + words)


def _filled(template: str, path: Mapping[str, str], members: Mapping[str, Any]) -> str:
    places = {place for _, place, _, _ in Formatter().parse(template) if place}
    known = {**members, **path}
    named = {place: _text(known[place]) for place in places & known.keys()}
    if "request" in places:
        rest = {name: value for name, value in members.items() if name not in places}
        named["request"] = _pairs(without_values(rest))
        if not named["request"]:
            template = template.removesuffix(": {request}")
    return template.format_map(_Known(named))


class _Known(dict[str, str]):
    """What a sentence names. A request that was refused may lack some of it."""

    def __missing__(self, name: str) -> str:
        return "?"


def _decision(operation: str, path: Mapping[str, str], members: Mapping[str, Any]) -> str:
    words = _DECISIONS[operation]
    action = members.get("action") or next((name for name in ("error", "result") if name in members), "")
    if not isinstance(action, str):  # the request was refused for it
        action = ""
    step = path.get("step") or members.get("step")
    subject = f"the job {path['id']}" if operation == "activate_job" else f"the workflow {path['id']}"
    said = members.get("notes") or members.get(action)
    what = "" if said is None else f": {said if isinstance(said, str) else msgspec.json.encode(said).decode()}"
    if len(what) > MAX_REQUEST_BYTES:
        what = ""
    where = f"the step {str(step)[:MAX_OBJECT_CHARS]} of {subject}" if step else subject
    return f"{words.get(action, words[''])} {where}{what}"


def _many(operation: str, path: Mapping[str, str], members: Mapping[str, Any], answer: bytes | None) -> str:
    """Return what was done to jobs or workflows that were named, or chosen by a filter."""
    done, what = _MANY[operation]
    number = None if answer is None else _outcome_of(answer).number()
    subject = f"{what}s" if number is None else f"{number} {what}{'' if number == 1 else 's'}"
    filter, ids = members.get("filter"), members.get("job_ids")
    if isinstance(ids, list):
        more = f" and {len(ids) - _MAX_IDS} more" if len(ids) > _MAX_IDS else ""
        return f"{done} {subject}: {', '.join(map(_text, ids[:_MAX_IDS]))}{more}"
    conditions = dict(filter) if isinstance(filter, dict) else {}
    if "name" in path:  # of a queue
        conditions |= {"queue": path["name"], "states": members.get("states")}
    conditions |= {name: members[name] for name in ("older_than", "from_step") if members.get(name) is not None}
    return f"{done} {subject}{_chosen(conditions)[:MAX_REQUEST_BYTES]}"


_MAX_IDS: Final = 3
"""Number of jobs whose ids a sentence has."""

_PHRASES: Final = (
    (("type", "job_type"), " of {}"),
    (("definition",), " of the definition {}"),
    (("cron_name",), " of the schedule {}"),
    (("queue",), " in the queue {}"),
)
"""How people say which jobs a filter asks for."""

_CLAUSES: Final = (
    (("state", "states"), "were {}"),
    (("error_type",), "failed with {}"),
    (("error_pattern",), "failed with '{}'"),
    (("discarded_before",), "gave up before {}"),
    (("until",), "were created before {}"),
)
"""How people say what is so of the jobs that a filter asks for; its other members are named behind that."""


def _chosen(conditions: dict[str, Any]) -> str:
    """Return the conditions of a filter, in words."""

    def said(phrases: Sequence[tuple[Sequence[str], str]]) -> list[str]:
        named = [(conditions.pop(name, None), phrase) for names, phrase in phrases for name in names]
        return [phrase.format(_text(value)) for value, phrase in named if value not in (None, [], "")]

    words = "".join(said(_PHRASES))
    if clauses := said(_CLAUSES):
        words += f" that {' and '.join(clauses)}"
    return f"{words} with {rest}" if (rest := _pairs(conditions)) else words


def _pairs(members: Mapping[str, Any]) -> str:
    """Return the members of an object as ``name value`` pairs, those of inner objects with the names of both."""
    told = ", ".join(f"{name} {_text(value)}" for name, value in _flat(members))
    return told if len(told) <= MAX_REQUEST_BYTES else ""


_UNSAID: Final = ("confirm", "dry_run", "idempotency_key")
"""Members of requests that say nothing about what was done, or are told otherwise."""


def _flat(members: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in members.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{outer}{name}.")
        elif outer or name not in _UNSAID:
            yield f"{outer}{name}", value


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " or ".join(value)[:MAX_OBJECT_CHARS]
    return (value if isinstance(value, str) else msgspec.json.encode(value).decode())[:MAX_OBJECT_CHARS]


class _Brief(msgspec.Struct):
    """The members of a large request without which its sentence would be wrong."""

    dry_run: Raw = Raw()
    action: Raw = Raw()
    result: Raw = Raw()
    error: Raw = Raw()
    step: Raw = Raw()
    name: Raw = Raw()
    job_type: Raw = Raw()
    directive: Raw = Raw()

    def members(self) -> dict[str, Any]:
        """Return the members that are there; ``None`` as the value of a large one."""
        parts = {name: memoryview(getattr(self, name)) for name in self.__struct_fields__}
        return {
            name: msgspec.json.decode(raw) if len(raw) <= MAX_OBJECT_CHARS else None
            for name, raw in parts.items()
            if raw
        }


_brief_of: Final = msgspec.json.Decoder(_Brief).decode


def _members_of(body: bytes) -> dict[str, Any]:
    """Return the members of a request without what may be secret: of a large one few, and none of what is no object."""
    try:
        is_large = len(body) > MAX_EXAMINED_BYTES
        request = without_secrets(_brief_of(body).members() if is_large else msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return request if isinstance(request, dict) else {}


def without_secrets(value: Any) -> Any:
    """Return a JSON value with ``…`` in place of all members whose names are those of secrets."""
    if isinstance(value, dict):
        return {name: "…" if _may_be_secret(name) else without_secrets(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_secrets(inner) for inner in value]
    return value


def _may_be_secret(name: str) -> bool:
    words = {word.lower() for word in _WORD.findall(name)}
    return not words.isdisjoint(_SECRET) and words.isdisjoint(_MEASURE)


def without_values(value: Any) -> Any:
    """Return a JSON value with ``…`` in place of users' values; the conditions of a filter stay."""
    if isinstance(value, dict):
        return {
            name: "…"
            if name in _OF_USERS and inner is not None
            else inner
            if name == "filter"
            else without_values(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [without_values(inner) for inner in value]
    return value
