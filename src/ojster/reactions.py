"""Reactions: actions that the server performs when an event happens to a job.

Example: ``@app.job(reactions={"on_success": [enqueue(bill.s(OF_JOB["result"]))]})``. The events are ``on_creation``,
``on_unblock``, ``on_assignment``, ``on_success``, ``on_failure`` and ``on_reminder``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ojster.core.declared_options import checks_options
from ojster.core.values import to_json
from ojster.handlers.workflow_requests import workflow_request
from ojster.workflows.declaration import Step
from ojster.workflows.placeholders import Placeholder

OF_JOB: Final[Any] = Placeholder("job")
"""The job that triggers the reaction: ``OF_JOB["id"]``, ``["args"][0]``, ``["result"]``, ``["error"]``."""


def enqueue(step: Step) -> dict[str, Any]:
    """Enqueue a job, written as ``send.s(…)``. References in its arguments resolve to the triggering job."""
    return {"action": "enqueue", "job": step.wire}


def start(workflow: Step | str, **options: Any) -> dict[str, Any]:
    """Start a workflow, given as steps or as the name of a definition. The options are those of ``App.start``.

    References in ``params``, ``properties`` and ``target`` can resolve to the triggering job.
    """
    members = workflow_request(workflow, options)
    return {"action": "start-workflow", "workflow": {name: msgspec.json.decode(raw) for name, raw in members.items()}}


@checks_options
def collect(
    name: str,
    *,
    collection: str = "internal",
    category: str | None = None,
    data: Any = None,
    replace: bool = True,
    artifacts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Add data, or artifacts of the job, to a collection.

    Parameters
    ----------
    name:
        The item's name. Placeholders in braces refer to the job, ``"build-{job.result.arch}"``, or to the artifact,
        ``"{artifact.name}"``.
    collection:
        The collection's name. ``internal`` is the collection of the job's workflow.
    data:
        Any JSON, with references to the job. ``None``: the result of the job, or the data of the artifact.
    replace:
        Whether to replace an existing item of that name. If false, the reaction fails when the item exists.
    artifacts:
        Filter for the job's artifacts (``job.artifacts``): ``name``, ``name_startswith``, ``name_endswith``,
        ``name_contains``, ``category``, ``data``, ``data_startswith``, ``data_endswith``, ``data_contains``. ``{}``:
        all artifacts. ``None``: add ``data`` instead.
    """
    action: dict[str, Any] = {"action": "collect", "name": name, "collection": collection, "replace": replace}
    if category is not None:
        action["category"] = category
    if data is not None:
        action["data"] = msgspec.json.decode(to_json(data))
    if artifacts is not None:
        action["artifacts"] = dict(artifacts)
    return action


@checks_options
def notify(
    channel: str,
    *,
    subject: str | None = None,
    text: str | None = None,
    to: Sequence[str] = (),
    cc: Sequence[str] = (),
) -> dict[str, Any]:
    """Send a notification through a channel (``ojster channels``): an e-mail or a signed HTTP request.

    Parameters
    ----------
    subject, text:
        The message. Placeholders in braces refer to the job: ``"{job.type} has failed: {job.error.message}"``.
    to, cc:
        E-mail recipients that replace those of the channel. Only administrators may set them.
    """
    members = {"subject": subject, "text": text, "to": list(to) or None, "cc": list(cc) or None}
    action: dict[str, Any] = {"action": "notify", "channel": channel}
    return action | {name: value for name, value in members.items() if value is not None}


@checks_options
def record(subject: str = "", context: str = "") -> dict[str, Any]:
    """Record the job's outcome in the task history. For ``on_success`` and ``on_failure``.

    Parameters
    ----------
    subject, context:
        What the job worked on, and where it ran. Placeholders in braces refer to the job: ``"{job.args.0}"``.
    """
    return {"action": "record", "subject": subject, "context": context}


@checks_options
def skip_if_unchanged(inputs: Any = None, *, subject: str = "", context: str = "") -> dict[str, Any]:
    """Skip the job if its inputs equal those of the last recorded success. For ``on_assignment``.

    A skipped job is completed with the result and the artifacts of that success.

    Parameters
    ----------
    inputs:
        The inputs to compare: any JSON, with references to the job (``OF_JOB["args"][0]``) and lookups
        (``found(…)``). ``None``: the job's arguments.
    subject, context:
        Same as for ``record``.
    """
    action: dict[str, Any] = {"action": "skip-if-unchanged", "subject": subject, "context": context}
    return action if inputs is None else action | {"inputs": msgspec.json.decode(to_json(inputs))}


@checks_options
def skip_if_changed(lookup: str, item: int | None, *, provides: str | None = None) -> dict[str, Any]:
    """Skip the job if a lookup finds a different item than before. For ``on_assignment``.

    The item differs when another job has added or replaced it in the meantime.

    Parameters
    ----------
    lookup:
        ``"COLLECTION/NAME"``.
    item:
        The ``id`` of the item found before. ``None``: there was no item.
    provides:
        Name under which the item found now is added to the workflow's collection. ``None``: do not add it.
    """
    return {"action": "skip-if-changed", "lookup": lookup, "item": item, "provides": provides}


@checks_options
def retry_after(*delays: str) -> dict[str, Any]:
    """Retry after each of these delays once the job's retries are exhausted: ``"30m"``, ``"12h"``, ``"1d"``, ``"2w"``.

    For ``on_failure``. The failure is reported only after the last of these attempts fails.
    """
    return {"action": "retry-with-delays", "delays": list(delays)}
