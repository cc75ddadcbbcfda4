"""What wakes those who follow workflows."""

from __future__ import annotations

from typing import Final

from ojster.storage.transaction import Transaction

WORKFLOWS: Final = "workflows"
"""Topic: any workflow has changed."""

STREAMS: Final = "streams"
"""Topic: the stream of any workflow has new chunks."""


def workflow_topic(workflow_id: str) -> str:
    """Return the topic of changes to one workflow."""
    return "workflow:" + workflow_id


def workflow_end_topic(workflow_id: str) -> str:
    """Return the topic of the end of one workflow."""
    return f"workflow:{workflow_id}:end"


def stream_topic(workflow_id: str) -> str:
    """Return the topic of new chunks in the streams of one workflow."""
    return f"stream:{workflow_id}"


def wake_readers(tx: Transaction, workflow_id: str) -> None:
    """Wake those who read the streams of a workflow: one has new chunks."""
    tx.effects.topics[stream_topic(workflow_id)] = STREAMS


def wake_followers(tx: Transaction, workflow_id: str, *, has_ended: bool = False) -> None:
    """Wake those who follow a workflow: it has changed."""
    tx.effects.topics[workflow_topic(workflow_id)] = WORKFLOWS
    if has_ended:
        tx.effects.topics[workflow_end_topic(workflow_id)] = WORKFLOWS
