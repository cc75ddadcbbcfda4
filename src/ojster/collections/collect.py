"""``collect``: the action of a reaction that puts data or artifacts of a job into a collection."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.collections.items import INTERNAL, Matching
from ojster.core.job_flags import JobEvent
from ojster.core.short_cache import cache_short
from ojster.jobs.stored_actions import stored_actions


class Collect(msgspec.Struct, frozen=True, tag_field="action", tag="collect", forbid_unknown_fields=True):
    """Put data or artifacts into a collection (``ojster.collections.items``).

    Parameters
    ----------
    name:
        The item's name. Braces refer to the job, ``build-{job.result.arch}``, or to the artifact, ``{artifact.name}``.
    collection:
        Its name; ``internal`` (the default) is the collection of the job's workflow.
    data:
        Any JSON, in which references may lead to the job or the artifact. Default: the result of the job, or the data
        of the artifact.
    replace:
        Whether to replace an item of the same name; otherwise the reaction fails if there is one.
    artifacts:
        Which artifacts of the job to put into the collection; ``None``: put ``data``.
    """

    name: str
    collection: str = INTERNAL
    category: str | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    replace: bool = True
    artifacts: Matching | None = None


_decode: Final = cache_short(1024)(msgspec.json.Decoder(Collect).decode)
"""With a cache, because jobs of a type mostly have the same actions."""


def collects_of(envelope: bytes, event: JobEvent | None = "on_success") -> list[Collect]:
    """Return the ``collect`` actions of a job for an event; ``None``: for any."""
    return [_decode(action) for action in stored_actions(envelope, event, "collect")]
