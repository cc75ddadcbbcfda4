"""The parameters of a request's path."""

from __future__ import annotations

from starlette.types import Scope

from ojster.core.ids import canonical_job_id


def path_parameters(scope: Scope) -> dict[str, str]:
    """Return the parameters of a path, with the ids of jobs in lower case; those of workflows are any text."""
    given: dict[str, str] = scope.get("path_params", {})
    if scope["path"].startswith("/ojs/v1/workflows/"):
        return given
    return {name: canonical_job_id(value) for name, value in given.items()}
