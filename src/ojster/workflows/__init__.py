"""Graphs of jobs: plans, definitions, gates, suspensions and orchestrators."""
