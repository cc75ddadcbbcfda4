"""The JSON examples of the specification and of the documents that the project follows, as requests."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(os.environ.get("OJSTER_DOCUMENTS", Path(__file__).parents[2].parent / "shared"))
"""The folder with the documents: the specification in ``spec``, the others in ``seeds``."""

_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_COMMENT: Final = re.compile(r'(?m)(^|\s)//[^\n"]*$')
_REQUEST: Final = re.compile(r"(GET|POST|PUT|PATCH|DELETE) (\S+)(?: HTTP/1.1)?\n(.*)$", re.DOTALL)
_BASE: Final = "/ojs/v1"
_CONTAINERS: Final = ("chain", "group", "batch", "saga", "graph", "map")


class Example(NamedTuple):
    """A request, and where it is written."""

    place: str
    method: str
    path: str
    body: Any


def examples() -> Iterator[Example]:
    """Return all examples that are requests, each with its file and line."""
    for file in sorted((ROOT / "seeds").glob("*.txt")):
        yield from _in_text(file.name.partition("_")[0], file.read_text())
    for file in sorted((ROOT / "spec").glob("*.md")):
        text = file.read_text()
        for match in _BLOCK.finditer(text):
            place = f"{file.stem}:{text[: match.start()].count(chr(10)) + 1}"
            if (example := _of_block(place, match[1], match[2])) is not None:
                yield example


def _in_text(name: str, text: str) -> Iterator[Example]:
    """Yield the examples in running text."""
    decoder, start = json.JSONDecoder(), text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError:
            end = start + 1
        else:
            if (request := _meaning(value)) is not None:
                yield Example(f"{name}:{text[:start].count(chr(10)) + 1}", *request, value)
        start = text.find("{", end)


def _of_block(place: str, language: str, text: str) -> Example | None:
    if language in ("json", "jsonc", ""):
        try:
            value = json.loads(_COMMENT.sub("", text))
        except json.JSONDecodeError:
            value = None
        if (request := _meaning(value)) is not None:
            return Example(place, *request, value)
    match = _REQUEST.match(text) if language in ("http", "") else None
    if match is None or "{" in match[2] or "..." in match[2]:
        return None  # a template, not an example
    path = match[2] if match[2].startswith(("/ojs/", "/health")) else _BASE + match[2]
    start = match[3].partition("HTTP/1.1 ")[0].find("{")
    if start < 0:
        return Example(place, match[1], path, None if match[1] in ("GET", "DELETE") else {})
    try:
        body, _ = json.JSONDecoder().raw_decode(_COMMENT.sub("", match[3][start:]))
    except json.JSONDecodeError:
        return None  # a template
    return Example(place, match[1], path, body)


def _meaning(value: Any) -> tuple[str, str] | None:
    """Return the method and the path to which a JSON value is sent, if it is a request."""
    if not isinstance(value, dict) or "state" in value:
        return None
    jobs = value.get("jobs")
    if isinstance(value.get("type"), str) and isinstance(value.get("args"), list):
        return "POST", f"{_BASE}/jobs"
    if value.get("type") in _CONTAINERS and ("steps" in value or "jobs" in value):
        return "POST", f"{_BASE}/workflows"
    if "cron" in value or ("expression" in value and "name" in value):
        return "POST", f"{_BASE}/cron"
    if isinstance(jobs, list) and jobs and isinstance(jobs[0], dict) and "args" in jobs[0] and "state" not in jobs[0]:
        return "POST", f"{_BASE}/jobs/batch"
    return None
