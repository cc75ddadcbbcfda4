"""Answers in the form that the official SDKs read.

Every official SDK sends the header ``OJS-Version``. Browsers and the conformance suites do not, and the suites compare
answers as a whole, so only requests with the header get this form, and those of the official command line.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

from ojster.server.answer import MEDIA_TYPE, SDK_JSON, Answer

_WRAPPER: Final = re.compile(rb'\{"(job|workflow|cron|queue)":\{')
"""Matches the beginning of an answer with one object in a member."""

_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode


def adapt(answer: Answer) -> None:
    """Give an answer the media type and the members that the official SDKs look for."""
    if answer.content_type is MEDIA_TYPE:
        answer.content_type = SDK_JSON
    if answer.stream is None:
        answer.body = unwrapped(answer.body)


def unwrapped(body: bytes) -> bytes:
    """Return an answer whose wrapped object also has its members beside the wrapper, where some SDKs look for them.

    A member of the answer itself takes precedence. Two wrappers give way to what all SDKs read under the same name: the
    expression of a cron job, which ``cron_job`` wraps as well, and the name of a queue beside its ``stats``.
    """
    if (wrapper := _WRAPPER.match(body)) is None:
        return body
    name = wrapper[1].decode()
    members = _members(body)
    if name == "queue" and "stats" not in members:
        return body
    inner = _members(members[name])
    if name == "queue":
        inner |= _members(members["stats"])
    if name in ("cron", "queue"):
        members[name] = inner["cron" if name == "cron" else "name"]
    return msgspec.json.encode(inner | members)
