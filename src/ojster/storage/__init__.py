"""Transactions, group commit, migrations and wake-ups, on SQLite and PostgreSQL."""
