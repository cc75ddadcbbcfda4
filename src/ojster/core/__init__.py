"""Values and rules that every capability shares: ids, times, errors, settings."""
