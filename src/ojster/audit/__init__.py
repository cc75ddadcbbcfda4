"""The audit log: who did what, to which object, from where, and how it ended."""
