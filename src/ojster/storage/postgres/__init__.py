"""Storage in PostgreSQL."""
