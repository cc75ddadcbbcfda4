"""The types of the public API, as two type checkers see them."""
