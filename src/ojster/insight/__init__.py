"""Statistics, overview and task history."""
