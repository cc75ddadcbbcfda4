"""The parameters of a request's path. A slash that is encoded (``%2F``) belongs to a parameter, such as a URI."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from starlette.types import Scope

from ojster.core.ids import canonical_job_id

_OF_A_JOB: Final = re.compile(r"/ojs/v1/(admin/)?(jobs|dead-letter|checkpoints)/")
"""Paths whose ``id`` or ``job`` is the id of a job."""

_SLASH: Final = "\ufdd0"
"""Stands for an encoded slash while the path is matched; no character of Unicode, so that nobody can mean it."""

_ENCODED: Final = re.compile(rb"%2[fF]")


def with_encoded_slashes(scope: Scope) -> Scope:
    """Return a request whose encoded slashes do not separate the segments of its path."""
    raw: bytes = (scope.get("raw_path") or b"").partition(b"?")[0]
    if b"%2" not in raw or not _ENCODED.search(raw):
        return scope
    return {**scope, "path": unquote(_ENCODED.sub(_SLASH.encode(), raw))}


def path_parameters(scope: Scope) -> dict[str, str]:
    """Return the parameters of a path, with the id of a job in lower case; other ids and names are any text.

    The address of a page of the dashboard, ``path``, has its segments, in which slashes stay encoded.
    """
    parameters: dict[str, str] = {
        name: value.replace(_SLASH, "%2F" if name == "path" else "/")
        for name, value in scope.get("path_params", {}).items()
    }
    if not _OF_A_JOB.search(scope["path"]):
        return parameters
    return parameters | {name: canonical_job_id(parameters[name]) for name in ("id", "job") if name in parameters}
