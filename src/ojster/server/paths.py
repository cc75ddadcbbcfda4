"""The parameters of a request's path."""

from __future__ import annotations

import re
from typing import Final

from starlette.types import Scope

from ojster.core.ids import canonical_job_id

_OF_A_JOB: Final = re.compile(r"/ojs/v1/(admin/)?(jobs|dead-letter)/")
"""Paths whose ``id`` or ``job`` is the id of a job."""


def path_parameters(scope: Scope) -> dict[str, str]:
    """Return the parameters of a path, with the id of a job in lower case; other ids and names are any text."""
    given: dict[str, str] = scope.get("path_params", {})
    if not _OF_A_JOB.match(scope["path"]):
        return given
    return given | {name: canonical_job_id(given[name]) for name in ("id", "job") if name in given}
