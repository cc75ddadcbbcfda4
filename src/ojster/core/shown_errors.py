"""Errors read from the JSON that shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from ojster.core.errors import BackendError, OjsterError


def error_of(shown: Mapping[str, Any], status: int | None = None) -> OjsterError:
    """Return the error that JSON describes."""
    known = _by_code_and_status()
    code = shown.get("code", "backend_error")
    statuses = [status] if status is not None else [each for name, each in known if name == code]
    kind = next((known[code, each] for each in statuses if (code, each) in known), OjsterError)
    details = shown.get("details") or {}
    return kind(shown.get("message", f"The server answered {status}."), **details)


@cache
def _by_code_and_status() -> dict[tuple[str, int], type[OjsterError]]:
    # Of several with the same code and status, the most general one is read. An error of the server itself is read as
    # what it is, and not as the base of all, so that workers report again after it.
    known = {(kind.code, kind.status): kind for kind in reversed([*_error_classes(OjsterError)])}
    return known | {(BackendError.code, BackendError.status): BackendError}


def _error_classes(root: type[OjsterError]) -> Iterator[type[OjsterError]]:
    yield root
    for child in root.__subclasses__():
        yield from _error_classes(child)
