"""No models: jobs are in tables of their own. Django sends ``post_migrate`` only to applications with this module."""
