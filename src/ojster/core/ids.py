"""Job ids: UUIDv7 in lower case with hyphens.

Spec: ojs-core 5.1
"""

from __future__ import annotations

import re
from typing import Final

import uuid_utils

JOB_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def new_id() -> str:
    """Return a new UUIDv7. The ids of one process sort in the order in which they were made."""
    return str(uuid_utils.uuid7())


def is_job_id(text: str) -> bool:
    """Tell whether ``text`` is a UUIDv7 in its canonical form."""
    return JOB_ID.fullmatch(text) is not None
