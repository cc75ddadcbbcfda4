"""The logs of servers and workers on standard error, as text or as lines of JSON."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import click
import msgspec
from rich.logging import RichHandler

from ojster.cli.declared import together
from ojster.cli.output import errors
from ojster.core.timestamps import format_timestamp

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

_OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that log records have without those that the caller adds."""


with_logging: Final = together(
    click.option(
        "--log-level",
        type=click.Choice(LOG_LEVELS),
        default="info",
        show_default=True,
        help="Least severe entries to log.",
    ),
    click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS),
        default="text",
        show_default=True,
        help="json: a line of JSON for each entry, with job_id, job_type, queue, attempt and duration.",
    ),
)
"""Adds the options ``--log-level`` and ``--log-format``."""


class JsonFormatter(logging.Formatter):
    """Formats log records as lines of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON, with the members that the caller has added."""
        shown: dict[str, Any] = {
            "timestamp": format_timestamp(round(record.created * 1e6)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        shown |= {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        return msgspec.json.encode(shown, enc_hook=str).decode()


def log_to_console(level: str, layout: str = "text") -> None:
    """Log to standard error, with colours on a terminal, unless the application has set up logging itself."""
    handler: logging.Handler
    if layout == "json":
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
    elif errors.is_terminal:
        handler = RichHandler(console=errors, show_path=False, log_time_format="%H:%M:%S")
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler()
        logging.Formatter.converter = time.gmtime
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
