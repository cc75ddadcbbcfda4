"""Fuzzing: random inputs for the parsers, and random calls of a running server (``python -m tests.fuzz --help``)."""
