"""Workflows that the command line starts: from a file, or by the name of a definition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from ojster.cli.options import read_file
from ojster.core.json_objects import Members, read_members
from ojster.core.settings import ServiceSettings
from ojster.core.values import to_duration
from ojster.workflows.declaration import start_request
from ojster.workflows.orchestrator_request import ORCHESTRATOR_MEMBER as ORCHESTRATOR
from ojster.workflows.plan.request import refuse_unknown

SUFFIXES: Final = (".json", ".yaml", ".yml")
"""Suffixes of files with workflows: what has one is a file, and not the name of a definition."""


def named_start(name: str, values: Mapping[str, Any], more: Mapping[str, Any]) -> Members:
    """Return the request to start a workflow from a definition, with the values of the command line."""
    return start_request(name, **{member: value or None for member, value in values.items()}, **more)


def read_start(
    file: Path, values: Mapping[str, Any], *, name: str | None, delay: float | None, **of_definitions: Any
) -> Members:
    """Return the request to start the workflow in a file, with the values of the command line."""
    if unknown := [option for option, value in of_definitions.items() if value is not None]:
        raise click.UsageError(
            f"--{unknown[0]} is an option for workflows of a definition, and {file} is a file. Create the definition "
            "with 'ojster definitions apply', and start it by its name."
        )
    if str(file) != "-" and not file.is_file():
        raise click.UsageError(f"There is no file {file}. Check the path.")
    wire = read_file(file)
    for member, value in values.items():
        if value:
            wire[member] = dict(wire.get(member) or {}) | value
    wire |= {} if name is None else {"name": name}
    wire |= {} if delay is None else {"scheduled_at": "+" + to_duration(delay)}
    members = read_members(msgspec.json.encode(wire), str(file))
    if "definition" not in members and ORCHESTRATOR not in members:  # a server only warns about unknown members
        refuse_unknown(dict(members), 0, largest=ServiceSettings().largest_job)
    return members
