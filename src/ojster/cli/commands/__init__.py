"""The commands about each capability."""
