"""Statistics of growing tables: counted before autovacuum comes, so that plans for a few rows do not meet many."""

from __future__ import annotations

import logging
from typing import Final

from ojster.storage.postgres.pipeline import PipelineConnection, StatementFailed

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Minimum time between two looks for grown tables, in seconds."""

LOOK_TRANSACTIONS: Final = 20
"""Minimum number of transactions between two looks: the first job after a pause does not wait for one."""

# What costs as much to read as to look up is read whole, by plans that are kept until the table is analyzed.
# Tables that others own are left to them: PostgreSQL would refuse, with a warning in its log each time. Above 5,000
# counted rows, no plan reads all of them, and autovacuum is soon enough.
_GROWN: Final = """
SELECT oid::regclass::text FROM pg_class
WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = ?) AND relkind = 'r' AND reltuples < 5000
  AND pg_stat_get_live_tuples(oid) > 100 + 2 * reltuples AND pg_has_role(relowner, 'USAGE')
"""


class TableStatistics:
    """The statistics of the tables in a schema, looked after by a process that writes.

    It analyzes a small table when its rows exceed twice the number that the last analysis found by more than 100. All
    connections then plan their statements on this table anew.
    """

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._looked_at = 0.0
        self._transactions = 0

    def note_transaction(self, connection: PipelineConnection, now: float) -> None:
        """Look for grown tables if it is time, before a transaction begins. ``now``: the time, in seconds.

        Tables that are locked, such as by autovacuum, are left out, and so are all if the database refuses: it is a
        matter of speed alone.
        """
        self._transactions += 1
        if self._transactions < LOOK_TRANSACTIONS or now < self._looked_at + LOOK_SECONDS:
            return
        self._transactions, self._looked_at = 0, now
        try:
            for (table,) in connection.execute(_GROWN, (self._schema,)):
                connection.execute(f"ANALYZE (SKIP_LOCKED) {table}")
            connection.answer()
        except StatementFailed as error:
            log.debug("grown tables are left to autovacuum: %s", error)
