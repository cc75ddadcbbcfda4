"""Statements of an application in the file of its jobs: reads at once, writes together with what Ojster writes.

SQLite has one writer. It is locked only while the statements run, and never while code of the application does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import apsw
import apsw.ext
import msgspec

from ojster.core.errors import InvalidRequest
from ojster.storage.migrations import scripts
from ojster.storage.sqlite.lane import Lane
from ojster.storage.transaction import Row, Transaction

MAX_STATEMENTS: Final = 1_000
"""Maximum number of statements that a step writes in its transaction."""

_WRITES: Final = frozenset(("SQLITE_INSERT", "SQLITE_UPDATE", "SQLITE_DELETE"))
_HARMLESS: Final = _WRITES | {"SQLITE_SELECT", "SQLITE_READ", "SQLITE_FUNCTION", "SQLITE_RECURSIVE"}
"""What statements may do. Others would end the transaction, or change how the file is used."""

_SHOWN: Final = 80
"""How much of a statement an error shows, in characters."""


class Outdated(RuntimeError):
    """A statement has changed another number of rows than it expects: what the step had read is no longer true."""


class _Write(msgspec.Struct, frozen=True):
    sql: str
    parameters: Any
    expect: int | None


class StepConnection:
    """The file of the jobs, as the function of a step with ``in_transaction=True`` gets it.

    What reads runs at once. What writes is kept until the function has returned, and then runs in one transaction with
    the record of the step, in which nothing else runs. So all reads come before the first write.

    Parameters
    ----------
    lane:
        A connection that reads.

    Examples
    --------
    >>> def charge(db, order: int) -> int:
    ...     [(total,)] = db.execute("SELECT total FROM orders WHERE id = ?", (order,))
    ...     db.execute("INSERT INTO charges (order_id, total) VALUES (?, ?)", (order, total))
    ...     return total
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._writes: list[_Write] = []

    def execute(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), *, expect: int | None = None
    ) -> list[Row]:
        """Run a statement that reads, or keep one that writes for the transaction.

        Parameters
        ----------
        sql:
            One statement: ``SELECT``, ``INSERT``, ``UPDATE`` or ``DELETE``, also after ``WITH``.
        parameters:
            Values for ``?``, or for ``:name``.
        expect:
            How many rows a statement that writes has to change. If it changes another number, nothing is written, and
            the function is called again, 5 times at most. ``None``: any number.

        Returns
        -------
        list
            The rows of a statement that reads; of one that writes, none.

        Raises
        ------
        InvalidRequest
            The statement does something else, writes to tables of Ojster, returns rows although it writes, reads after
            a write, or is one too many.
        apsw.Error
            The statement is malformed, or names what does not exist.
        """
        looked = self._lane.run(lambda connection: apsw.ext.query_info(connection, sql, actions=True))
        shown = f"{sql.strip():.{_SHOWN}}"
        names = {action.action_name for action in looked.actions or ()}
        if (looked.query_remaining or "").strip() or not names <= _HARMLESS or looked.is_explain:
            raise InvalidRequest(f"A step runs one SELECT, INSERT, UPDATE or DELETE at a time, not {shown!r}.")
        if not names & _WRITES:
            if looked.is_readonly and names:
                return self._read(sql, parameters, shown)
            raise InvalidRequest(f"A step runs SELECT, INSERT, UPDATE and DELETE, not {shown!r}.")
        own = {str(action.table_name) for action in looked.actions or () if action.action_name in _WRITES}
        if taken := sorted(own & tables_of_jobs()):
            raise InvalidRequest(
                f"The table {taken[0]!r} is one of Ojster's. A step writes to tables of its application."
            )
        if _RETURNING.search(sql):
            raise InvalidRequest(
                f"{shown!r} returns rows, but runs after the function. Read them before, with a SELECT."
            )
        if len(self._writes) == MAX_STATEMENTS:
            raise InvalidRequest(f"A step writes with at most {MAX_STATEMENTS} statements. Make several steps of it.")
        self._writes.append(_Write(sql, parameters, expect))
        return []

    def _read(self, sql: str, parameters: Any, shown: str) -> list[Row]:
        if self._writes:
            raise InvalidRequest(
                f"{shown!r} reads after a write, which it would not see: writes run after the function. Read first."
            )
        return self._lane.run(lambda connection: connection.execute(sql, parameters).fetchall())

    def write(self, tx: Transaction) -> None:
        """Run what was kept, in a transaction.

        Raises
        ------
        Outdated
            A statement has changed another number of rows than it expects.
        apsw.Error
            A statement has failed, such as by a constraint.
        """
        for write in self._writes:
            tx.execute(write.sql, write.parameters)
            if write.expect is None:
                continue
            ((changed,),) = tx.execute("SELECT changes()")
            if changed != write.expect:
                raise Outdated(
                    f"{write.sql.strip():.{_SHOWN}} changed {changed} rows, not {write.expect}: something else has "
                    "changed them meanwhile. Nothing was written."
                )


_RETURNING: Final = re.compile(r"\breturning\b", re.IGNORECASE)


@cache
def tables_of_jobs() -> frozenset[str]:
    """Return the names of the tables of Ojster."""
    created = re.findall(r"CREATE (?:VIRTUAL )?TABLE (?:IF NOT EXISTS )?(\w+)", "\n".join(scripts("sqlite")))
    return frozenset(created)
