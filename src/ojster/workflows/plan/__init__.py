"""From a request to a plan: its nodes, their order, and what is checked before anything is stored."""
