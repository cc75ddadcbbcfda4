"""Sandbox for code carried by jobs: a child process that can only compute."""
