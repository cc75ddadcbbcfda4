"""What a worker needs of an application: its handlers, their options, and what they are called with."""
