"""In which words are reactions written? ``@app.job(reactions={"on_success": [enqueue(bill.s(OF_JOB["result"]))]})``.

(Seed 003, "Event reactions". The events: ``on_creation``, ``on_unblock``, ``on_assignment``, ``on_success``,
``on_failure``.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ojster.core.values import to_json
from ojster.workflow import Reference, Step, Workflow, chain, start_request

OF_JOB: Final = Reference("job")
"""Stands for the job that it is a reaction to: ``OF_JOB["id"]``, ``["args"][0]``, ``["result"]``, ``["error"]``."""


def enqueue(step: Step) -> dict[str, Any]:
    """Push a job, written as ``send.s(…)``; references in its arguments lead to the job that it is a reaction to."""
    return {"action": "enqueue", "job": step.wire}


def start(workflow: Step | str, **options: Any) -> dict[str, Any]:
    """Start a workflow, or one of the definition of this name; the options are those of ``App.start``.

    References in ``params``, ``properties`` and ``target`` may lead to the job that it is a reaction to.
    """
    if isinstance(workflow, str):
        members = start_request(workflow, **options)
    else:
        members = (workflow if isinstance(workflow, Workflow) else chain(workflow)).request(**options)
    return {"action": "start-workflow", "workflow": {name: msgspec.json.decode(raw) for name, raw in members.items()}}


def collect(
    name: str,
    *,
    collection: str = "internal",
    category: str | None = None,
    data: Any = None,
    replace: bool = True,
    artifacts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Put data, or artifacts of the job, into a collection; ``internal`` is that of the job's workflow.

    Parameters
    ----------
    name:
        The item's name; what stands in braces leads to the job, ``"build-{job.result.arch}"``, or the artifact,
        ``"{artifact.name}"``.
    data:
        Any JSON, with references to the job; ``None``: the result of the job, or the data of the artifact.
    replace:
        Whether it takes the place of an item of that name; else the reaction fails if there is one.
    artifacts:
        Which of the job's artifacts (``job.artifacts``) they are: ``name``, ``name_startswith``, ``name_endswith``,
        ``name_contains``, ``category``, ``data``; ``{}``: all. ``None``: it is data.
    """
    action: dict[str, Any] = {"action": "collect", "name": name, "collection": collection, "replace": replace}
    if category is not None:
        action["category"] = category
    if data is not None:
        action["data"] = msgspec.json.decode(to_json(data))
    if artifacts is not None:
        action["artifacts"] = dict(artifacts)
    return action


def notify(
    channel: str,
    *,
    subject: str | None = None,
    text: str | None = None,
    to: Sequence[str] = (),
    cc: Sequence[str] = (),
) -> dict[str, Any]:
    """Tell somebody through a channel (``ojster channels``): by e-mail, or a signed call.

    Parameters
    ----------
    subject, text:
        What is said; what stands in braces leads to the job: ``"{job.type} has failed: {job.error.message}"``.
    to, cc:
        Of e-mail, instead of those of the channel; who does not administer may not say them.
    """
    given = {"subject": subject, "text": text, "to": list(to) or None, "cc": list(cc) or None}
    action: dict[str, Any] = {"action": "notify", "channel": channel}
    return action | {name: value for name, value in given.items() if value is not None}


def record(subject: str = "", context: str = "") -> dict[str, Any]:
    """Remember how the job has ended, by what it was about: for ``on_success`` and ``on_failure``.

    Parameters
    ----------
    subject, context:
        What it was about, and where it ran; what stands in braces leads to the job: ``"{job.args.0}"``.
    """
    return {"action": "record", "subject": subject, "context": context}


def skip_if_unchanged(inputs: Any = None, *, subject: str = "", context: str = "") -> dict[str, Any]:
    """Do not run if the inputs are those of the last success that was recorded: for ``on_assignment``.

    The job is then completed with the result and the artifacts of that.

    Parameters
    ----------
    inputs:
        What is compared: any JSON, with references to the job (``OF_JOB["args"][0]``) and lookups (``found(…)``);
        ``None``: its arguments.
    subject, context:
        As ``record`` has them.
    """
    action: dict[str, Any] = {"action": "skip-if-unchanged", "subject": subject, "context": context}
    return action if inputs is None else action | {"inputs": msgspec.json.decode(to_json(inputs))}


def skip_if_changed(lookup: str, item: int | None, *, provides: str | None = None) -> dict[str, Any]:
    """Do not run if a lookup finds another item than it did, as somebody else was faster: for ``on_assignment``.

    Parameters
    ----------
    lookup:
        ``"COLLECTION/NAME"``.
    item:
        The ``id`` of the item that it found before; ``None``: there was none.
    provides:
        Under which name what is found now is put into the workflow's collection.
    """
    return {"action": "skip-if-changed", "lookup": lookup, "item": item, "provides": provides}


def retry_after(*delays: str) -> dict[str, Any]:
    """When all attempts have failed, try again after each of these delays: ``"30m"``, ``"12h"``, ``"1d"``, ``"2w"``.

    For ``on_failure``. Nobody hears of the failure before the last of them.
    """
    return {"action": "retry-with-delays", "delays": list(delays)}
