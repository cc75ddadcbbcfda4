"""Ojster: durable jobs for Python, and for every language through Open Job Spec."""

__version__ = "0.1.0"
