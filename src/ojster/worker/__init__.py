"""How are jobs run? A loop that fetches, executors for each kind of handler, and a stop that loses nothing."""
