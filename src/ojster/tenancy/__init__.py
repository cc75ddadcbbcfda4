"""Tenants, workspaces, tokens and roles."""
