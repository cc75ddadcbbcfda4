"""The logs of jobs: lines that handlers write while they run, kept for job types that ask for it.

A job keeps its newest lines. Each line knows the size of all lines up to it, so that old lines are deleted without
counting the others. Jobs that log nothing cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from ojster.core.calls import Whole
from ojster.core.errors import Conflict
from ojster.core.states import FINISHED, JobState
from ojster.core.tenant import called
from ojster.core.timestamps import format_timestamp
from ojster.jobs.queries import no_job
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import ColumnType, Transaction

MAX_LOG_LINES: Final = 1_000
"""Maximum number of lines that a job keeps: the newest ones."""

MAX_LOG_BYTES: Final = 262_144
"""Size of the lines that a job keeps, in bytes of their texts and the names of their loggers: lines before the one that
reaches it are deleted."""

MAX_LINE_CHARACTERS: Final = 4_096
"""Maximum length of the text of a line, in characters; longer ones are cut."""

MAX_LOGGER_CHARACTERS: Final = 255
"""Maximum length of the name of a logger, in characters; longer ones are cut."""

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
"""How severe a line is, as in ``logging``."""


class NewLine(msgspec.Struct, frozen=True):
    """A line to keep; ``at`` is in microseconds since the epoch."""

    at: int
    level: LogLevel
    logger: str
    message: str


class NewLines(msgspec.Struct, frozen=True):
    """Lines of an attempt, oldest first. Worker and attempt are checked if they are given.

    ``dropped`` is the number of lines before them that were not sent, because there were too many.
    """

    job_id: str
    lines: Sequence[NewLine]
    worker_id: str | None = None
    attempt: int | None = None
    dropped: int = 0


class LogLine(msgspec.Struct, frozen=True):
    """A line that a handler has logged.

    Parameters
    ----------
    number:
        Number of the line in the log of its job, from 1.
    attempt:
        The attempt that wrote it.
    at:
        When it was written, in RFC 3339.
    level:
        How severe it is: ``debug``, ``info``, ``warning``, ``error`` or ``critical``.
    logger:
        Name of the logger.
    message:
        Its text, with the traceback if it has one.
    """

    number: int
    attempt: int
    at: str
    level: str
    logger: str
    message: str


class JobLog(Whole):
    """The log of a job, oldest line first.

    Parameters
    ----------
    dropped:
        Number of lines before the first that are not kept.
    is_complete:
        Whether the job has finished.
    """

    lines: list[LogLine]
    dropped: int
    is_complete: bool


@for_each
@returns_refusal
def add_lines(tx: Transaction, item: NewLines) -> int:
    """Keep lines of jobs; return the number of the last line of each job, or its refusal.

    Lines of an attempt that has ended are kept until the next one begins: what a handler says while it is stopped
    explains its end.
    """
    job = tx.lock_jobs([item.job_id]).get(item.job_id)  # lines that arrive at the same time would get the same number
    if job is None:
        raise no_job(item.job_id)
    if item.attempt not in (None, job.attempt) or (item.worker_id or job.worker_id) not in (None, job.worker_id):
        holder = f"attempt {job.attempt}" + (f" of the worker {called(job.worker_id)}" if job.worker_id else "")
        raise Conflict(f"The job {job.id} is in {holder}; another one cannot add to its log.", job_id=job.id)
    rows = tx.execute(
        "SELECT number, upto FROM job_logs WHERE seq = :seq ORDER BY number DESC LIMIT 1", {"seq": job.seq}
    )
    number, upto = rows[0] if rows else (0, 0)
    number += item.dropped
    added = []
    for line in item.lines:
        logger, message = storable(line.logger, MAX_LOGGER_CHARACTERS), storable(line.message, MAX_LINE_CHARACTERS)
        number += 1
        upto += len(message.encode()) + len(logger.encode())
        added.append((job.seq, number, job.attempt, line.at, line.level, logger, message, upto))
    tx.insert_rows("job_logs", _COLUMNS, added)
    tx.execute(
        "DELETE FROM job_logs WHERE seq = :seq AND (number <= :number OR upto <= :upto)",
        {"seq": job.seq, "number": number - MAX_LOG_LINES, "upto": upto - MAX_LOG_BYTES},
    )
    return int(number)


_COLUMNS: Final[dict[str, ColumnType]] = {
    "seq": "bigint",
    "number": "bigint",
    "attempt": "bigint",
    "at": "bigint",
    "level": "text",
    "logger": "text",
    "message": "text",
    "upto": "bigint",
}


def storable(text: str, most: int) -> str:
    """Return a text as requests can carry it and both databases can store it, cut to a number of characters."""
    return text[:most].replace("\0", "\ufffd").encode("utf-8", "replace").decode()


@for_each
@returns_refusal
def read_log(tx: Transaction, item: tuple[str, int]) -> JobLog:
    """Return the lines of each job, given by its id, that come after the line with a number."""
    job_id, after = item
    job = tx.find_jobs([job_id]).get(job_id)
    if job is None:
        raise no_job(job_id)
    rows = tx.execute(
        """
        SELECT number, attempt, at, level, logger, message
        FROM job_logs
        WHERE seq = :seq AND number > :after
        ORDER BY number
        """,
        {"seq": job.seq, "after": after},
    )
    lines = [
        LogLine(number, attempt, format_timestamp(at), level, logger, message)
        for number, attempt, at, level, logger, message in rows
    ]
    dropped = lines[0].number - after - 1 if lines else 0
    return JobLog(lines, dropped, job.state in FINISHED)


_FINISHED_STATES: Final = ", ".join(f"'{state}'" for state in JobState if state in FINISHED)

# The lines of a job that is not finished stay: their numbers go on.
_EXPIRED: Final = f"""
    at < :before AND NOT EXISTS (
        SELECT 1
        FROM jobs
        WHERE jobs.seq = job_logs.seq AND state NOT IN ({_FINISHED_STATES})
    )
"""


def forget_lines(tx: Transaction, room: int) -> int:
    """Delete at most ``room`` lines past their retention; return how many."""
    if tx.settings.retention.logs is None or room <= 0:
        return 0
    rows = tx.execute(
        f"SELECT seq, number FROM job_logs WHERE {_EXPIRED} ORDER BY at LIMIT :room",
        {"before": tx.now - tx.settings.retention.logs, "room": room},
    )
    tx.execute_many("DELETE FROM job_logs WHERE seq = ? AND number = ?", [(seq, number) for seq, number in rows])
    return len(rows)


def count_expired_lines(tx: Transaction) -> int:
    """Return the number of lines past their retention."""
    if tx.settings.retention.logs is None:
        return 0
    ((count,),) = tx.execute(
        f"SELECT count(*) FROM job_logs WHERE {_EXPIRED}", {"before": tx.now - tx.settings.retention.logs}
    )
    return int(count)
