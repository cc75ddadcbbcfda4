"""Comparison of Ojster with other Python task queues, with the same no-op job."""
