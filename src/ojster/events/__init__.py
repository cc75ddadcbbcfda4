"""The event log, streams, webhooks, notifications and reactions."""
