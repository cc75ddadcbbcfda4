"""Cron jobs, due work and retention."""
