"""The Python clients: in-process on a database, or over HTTP to a server, with the same calls."""
