"""The same no-op job through Ojster and through what else a Python developer would pick."""
