"""The ``ojster`` command line: one module per command group."""
