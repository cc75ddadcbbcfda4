"""What the server does with jobs: transactions as plain functions, one module a capability, and the engine above."""
