"""From a plan to results: nodes start, become jobs, end, and are undone, in transactions."""
