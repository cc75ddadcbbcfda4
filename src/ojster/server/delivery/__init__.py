"""What a server sends: webhooks and e-mails."""
