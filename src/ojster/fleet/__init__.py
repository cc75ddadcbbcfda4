"""Workers as the server knows them: heartbeats, resources, matching and operator rules."""
