"""Statistics of growing tables: counted before autovacuum comes, so that plans for a few rows do not meet many."""

from __future__ import annotations

import logging
from typing import Final

from ojster.storage.postgres.pipeline import PipelineConnection, StatementFailed

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Minimum time between two looks of a process for grown tables, in seconds. Only processes that write look."""

# What costs as much to read as to look up is read whole, by plans that are kept until the table is analyzed.
# Tables that others own are left to them: PostgreSQL would refuse, with a warning in its log each time. Above 5,000
# counted rows, no plan reads all of them, and autovacuum is soon enough.
_GROWN: Final = """
SELECT oid::regclass::text FROM pg_class
WHERE relnamespace = to_regnamespace(?) AND relkind = 'r' AND reltuples < 5000
  AND pg_stat_get_live_tuples(oid) > 100 + 2 * reltuples AND pg_has_role(relowner, 'USAGE')
"""


def analyze_grown(connection: PipelineConnection, schema: str) -> None:
    """Analyze the small tables that have grown to more than twice of what PostgreSQL has counted, and 100 rows.

    All connections then plan their statements on these tables anew. Tables that are locked, such as by autovacuum, are
    left out, and so is everything if the database refuses: it is a matter of speed alone.
    """
    try:
        for (table,) in connection.execute(_GROWN, (schema,)):
            connection.execute(f"ANALYZE (SKIP_LOCKED) {table}")
        connection.answer()
    except StatementFailed as error:
        log.debug("grown tables are left to autovacuum: %s", error)
