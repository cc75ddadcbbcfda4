"""Ojster benchmarks, each compared with a floor (the raw parts) from the same run on the same machine."""
