"""Events as they are sent: as those of Open Job Spec, or as CloudEvents in structured or binary form.

Spec: ojs-cloudevents-interop 5; CloudEvents 1.0, HTTP protocol binding 3
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import msgspec

from ojster.events.subscription import CloudEventsForm

STRUCTURED: Final = "application/cloudevents+json"
"""Media type of an event whose attributes are in the body."""

_JSON: Final = "application/json"

_SAFE: Final = "".join(char for char in map(chr, range(0x21, 0x7F)) if char not in '"%')
"""Characters that a header has as they are; all others are percent-encoded."""


def encode_event(event: dict[str, Any], form: CloudEventsForm | None) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body that say an event; ``None``: as an event of Open Job Spec."""
    if form is None:
        return {"Content-Type": _JSON}, msgspec.json.encode(event)
    changed = {"type": form.type_prefix + event["type"], "source": form.source_uri}
    attributes = {name: value for name, value in event.items() if value != ""} | changed
    if form.content_mode == "structured":
        return {"Content-Type": STRUCTURED}, msgspec.json.encode(attributes | {"datacontenttype": _JSON})
    data = msgspec.json.encode(attributes.pop("data"))
    named = {f"ce-{name}": quote(value, safe=_SAFE) for name, value in attributes.items()}
    return {"Content-Type": _JSON} | named, data
