"""The options of `ojster serve` that become the settings of the server."""

from __future__ import annotations

import functools
from typing import Any, Final

from ojster.cli.declared import Command, option_of, together
from ojster.cli.options import with_retention
from ojster.core.public_settings import Settings

_FLAGS: Final = {
    "largest_job": "--max-job-bytes",
    "largest_workflow": "--max-workflow-bytes",
    "largest_storage": "--max-file-bytes",
    "largest_batch": "--max-batch",
    "most_generations": "--max-generations",
    "most_losses": "--max-losses",
}
"""Options that have another name on the command line than in Python."""

_NAMES: Final = tuple(name for name in Settings.__struct_fields__ if name != "retention")


def with_settings(command: Command) -> Command:
    """Add an option for each setting, and pass them to the command as one argument, ``settings``."""

    @functools.wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        own = {name: options.pop(name) for name in Settings.__struct_fields__ if name in options}
        return command(*args, settings=Settings(**own), **options)

    options = (option_of(Settings, name, *((_FLAGS[name],) if name in _FLAGS else ())) for name in _NAMES)
    return together(*options, with_retention)(wrapped)
