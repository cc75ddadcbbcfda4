"""Queues: pausing, rate limits, backpressure, fairness and pools."""
